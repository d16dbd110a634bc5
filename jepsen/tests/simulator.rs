//! The simulator in its short form: the same seed is the same run, sixty seeds hold, and checks have
//! teeth. `jepsen prove seeds` and `jepsen prove mutants` are the long forms.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;

const JEPSEN: &str = env!("CARGO_BIN_EXE_jepsen");
/// Mutants that few seeds catch.
const QUICK: [&str; 3] = ["ack-before-fsync", "offset-at-append", "dedup-left-out"];

/// Each of these takes all cores.
static TURN: Mutex<()> = Mutex::new(());

fn jepsen(arguments: &[&str]) -> Output {
    Command::new(JEPSEN).args(arguments).output().expect("the program can be run")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs a seed and reads all that happened in it.
fn trace(seed: &str, file: &Path) -> Vec<u8> {
    let output = jepsen(&["simulate", "--seed", seed, "--trace", &file.to_string_lossy()]);
    assert!(matches!(output.status.code(), Some(0..=2)), "{}", text(&output));
    let trace = fs::read(file).expect("the trace was written");
    fs::remove_file(file).expect("the trace is there");
    trace
}

#[test]
fn a_seed_is_one_run_byte_for_byte() {
    let _turn = TURN.lock();
    let dir = std::env::temp_dir();
    for seed in ["3", "11", "17"] {
        let file = |run: &str| dir.join(format!("raftmq-{}-{seed}-{run}", std::process::id()));
        let (first, second) = (trace(seed, &file("a")), trace(seed, &file("b")));
        assert!(first.len() > 100_000, "seed {seed} wrote {} bytes", first.len());
        assert!(first == second, "seed {seed} is two runs");
    }
}

#[test]
fn sixty_seeds_hold() {
    let _turn = TURN.lock();
    let output = jepsen(&["prove", "seeds", "--count", "60", "--dry"]);
    println!("{}", text(&output));
    assert!(output.status.success(), "some seed is not true; its command is printed above");
}

/// Each of these was false once. What runs under a number changes with the program, so faults of the
/// library that they found have tests where they were mended, too; the third was the simulator's own.
#[test]
fn seeds_that_were_false_hold() {
    let _turn = TURN.lock();
    let named = [
        ("40962414945646", "a follower with a full disk was sent entries until a write failed"),
        ("99316102609696", "a frame that had rotted was written again, with a checksum that held"),
        ("247213127868602", "the drain began while a majority of clocks was wrong"),
        ("17201327999310", "the scrub looked into a segment that was purged to its very end"),
    ];
    for (seed, was) in named {
        let output = jepsen(&["simulate", "--seed", seed]);
        assert!(output.status.success(), "seed {seed} ({was}):\n{}", text(&output));
    }
}

#[test]
fn the_normal_program_knows_no_mutants() {
    for arguments in [&["simulate", "--seed", "1", "--mutant", "vote-not-synced"][..], &["hunt"]] {
        let output = jepsen(arguments);
        assert!(!output.status.success());
        let said = text(&output);
        assert!(said.contains("unexpected argument") || said.contains("unrecognized"), "{said}");
    }
}

#[test]
fn three_mutants_are_caught() {
    let _turn = TURN.lock();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args([
        "build",
        "--package",
        "jepsen",
        "--features",
        "mutants",
        "--bin",
        "jepsen-mutants",
    ]);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    let built = build.current_dir(root).output().unwrap();
    assert!(built.status.success(), "{}", text(&built));
    let program = Path::new(JEPSEN).with_file_name("jepsen-mutants");
    let hunt = Command::new(program).arg("hunt").args(QUICK).output().unwrap();
    println!("{}", text(&hunt));
    assert!(hunt.status.success(), "a mutant lives; see above");
}
