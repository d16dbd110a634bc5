use std::process::ExitCode;

fn main() -> ExitCode {
    raftmq::cli::run()
}
