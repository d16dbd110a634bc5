//! The same program, under a name of its own, in a build whose library can be turned into mutants.

fn main() -> std::process::ExitCode {
    jepsen::main()
}
