//! Official clients, installed from lock files into `target/clients`, once for all tests.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The Python interpreter of a virtual environment that holds the official client and nothing
/// that is not in the lock file. Tests that run at the same time wait for the one that installs.
pub(crate) fn python() -> PathBuf {
    let clients = target_dir().join("clients");
    fs::create_dir_all(&clients).expect("target/clients can be created");
    let guard = File::create(clients.join("python-venv.lock")).expect("the lock can be created");
    guard.lock().expect("the lock can be taken");

    let venv = clients.join("python-venv");
    let python = venv.join("bin/python");
    let requirements = manifest_dir().join("tests/clients/python/requirements.lock");
    let wanted = fs::read_to_string(&requirements).expect("the lock file of the client exists");
    // The stamp is written last, so an install that was cut off is done again.
    let stamp = venv.join("installed.lock");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return python;
    }
    let _ = fs::remove_dir_all(&venv);
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv));
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(["--require-hashes", "--only-binary", ":all:", "--requirement"])
        .arg(&requirements));
    fs::write(&stamp, wanted).expect("the stamp can be written");
    python
}

/// A script beside the lock file of the Python client.
pub(crate) fn python_script(name: &str) -> PathBuf {
    manifest_dir().join("tests/clients/python").join(name)
}

/// Where cargo builds, also when `CARGO_TARGET_DIR` moves it: the parent of what cargo made.
pub(crate) fn target_dir() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("cargo's tmp lies in its target")
}

pub(crate) fn manifest_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().expect("the program exists");
    assert!(
        output.status.success(),
        "{command:?} failed with {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
}
