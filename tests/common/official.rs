//! The official clients in five languages, unmodified, and the drivers that the tests run.
//!
//! Each is installed from the lock file beside its driver into `target/clients`, once for all
//! tests; a tool or a client that is missing is a failure, never a skip.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha512};

use super::clients::{manifest_dir, python, python_script, run, target_dir};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Client {
    Python,
    Node,
    Java,
    Go,
    Rust,
}

impl Client {
    pub(crate) const ALL: [Self; 5] = [Self::Python, Self::Node, Self::Java, Self::Go, Self::Rust];

    /// Installs what is not installed yet.
    pub(crate) fn install(self) {
        drop(self.driver(Path::new("")));
    }

    /// Installs what is not installed yet; the driver, which wants its command and its fields.
    pub(crate) fn driver(self, home: &Path) -> Command {
        let mut command = match self {
            Self::Python => {
                let mut command = Command::new(python());
                command.arg("-B").arg(python_script("driver.py"));
                command
            }
            Self::Node => node(),
            Self::Java => java(home),
            Self::Go => Command::new(go()),
            Self::Rust => {
                let mut command = Command::new(rust());
                // Each error of the client would carry one.
                command.env_remove("RUST_BACKTRACE");
                command
            }
        };
        // The clients log into the home folder.
        command.env("HOME", home);
        command
    }

    /// Version 5.0.0 of the Rust client has neither.
    pub(crate) fn has_push(self) -> bool {
        self != Self::Rust
    }

    pub(crate) fn changes_invisible(self) -> bool {
        self != Self::Rust
    }

    /// The Rust client takes the flag but attaches no TLS configuration to its connection.
    pub(crate) fn speaks_tls(self) -> bool {
        self != Self::Rust
    }

    /// Whether its receipts tell the recall handle of a message.
    pub(crate) fn recalls(self) -> bool {
        self != Self::Rust
    }

    /// Why it cannot do what the others can.
    pub(crate) fn lacks(self) -> Option<&'static str> {
        match self {
            Self::Rust => Some(
                "Rust 5.0.0 lacks recall: its receipt leaves out the recall handle, and its \
                 producer has no call; it also has no push consumer, so a simple one gets the \
                 ordered messages",
            ),
            Self::Python | Self::Node | Self::Java | Self::Go => None,
        }
    }

    /// Whether a push consumer waits for what a listed back-off says before a failed message comes
    /// again.
    pub(crate) fn reads_backoff(self) -> bool {
        self != Self::Node
    }

    /// Why it shows what a consumer can ask for in another way than the others, or not at all.
    pub(crate) fn lacks_as_consumer(self) -> Option<&'static str> {
        match self {
            Self::Node => Some(
                "Node 1.0.8 does not read a listed back-off: its push consumer asks for what failed \
                 again at once",
            ),
            Self::Rust => Some(
                "Rust 5.0.0 has no push consumer and cannot change an invisible time: what fails \
                 comes again when the time for which it was received is over, 10 s at the least",
            ),
            Self::Java => Some(
                "Java 5.2.0 does not start with a wrong SQL expression, but \
                 leaves out why",
            ),
            Self::Python | Self::Go => None,
        }
    }

    /// Whether an application learns why its consumer does not start.
    pub(crate) fn tells_why_not_started(self) -> bool {
        self != Self::Java
    }

    /// Whether a transaction can be ended again after an attempt that failed.
    pub(crate) fn repeats_ends(self) -> bool {
        self != Self::Rust
    }

    /// Python and Node verify the server's certificate; Java and Go trust any.
    pub(crate) fn verifies_tls(self) -> bool {
        matches!(self, Self::Python | Self::Node)
    }

    /// Whether its own retry must cover a leader's end and the election of the next one.
    pub(crate) fn rides_out(self, access_point_lives: bool) -> bool {
        match self {
            Self::Python | Self::Node | Self::Java => true,
            Self::Go => access_point_lives,
            Self::Rust => false,
        }
    }

    /// Why a leader's end can cost this client more than the time that the others need to elect
    /// the next one.
    pub(crate) fn stalls_by_its_own_rules(self) -> Option<&'static str> {
        match self {
            Self::Python | Self::Node | Self::Java => None,
            Self::Go => Some(
                "Go 5.1.4 dials a node that is gone for 5 s at each of its three attempts, so it is \
                 told its access point alone, and waits while that node itself is away",
            ),
            Self::Rust => Some(
                "Rust 5.0.0 tries a send once and never asks for a route again, so each send to a \
                 node that is gone fails at once",
            ),
        }
    }
}

fn sources(language: &str) -> PathBuf {
    manifest_dir().join("tests/clients").join(language)
}

/// Runs `install` with `target/clients/<language>` unless it was done for these very sources.
/// Tests that run at the same time wait for the one that installs.
fn installed(language: &str, files: &[&str], install: impl FnOnce(&Path)) -> PathBuf {
    let folder = target_dir().join("clients").join(language);
    fs::create_dir_all(&folder).expect("target/clients can be created");
    let guard = File::create(folder.with_extension("lock")).expect("the lock can be created");
    guard.lock().expect("the lock can be taken");

    let read = |file: &&str| fs::read_to_string(sources(language).join(file));
    let wanted: String =
        files.iter().map(|file| read(file).unwrap_or_else(|e| panic!("{file}: {e}"))).collect();
    // The stamp is written last, so an install that was cut off is done again.
    let stamp = folder.join("installed.stamp");
    if !fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        install(&folder);
        fs::write(&stamp, wanted).expect("the stamp can be written");
    }
    folder
}

/// A tool that installs, behind the clusters of other tests: these measure times.
fn installer(tool: &str) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "10", tool]);
    command
}

fn node() -> Command {
    let files = ["package.json", "package-lock.json"];
    let folder = installed("node", &files, |folder| {
        for file in files {
            fs::copy(sources("node").join(file), folder.join(file)).expect("a file can be copied");
        }
        run(installer("npm")
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
            .arg("--cache")
            .arg(folder.join("cache"))
            .current_dir(folder));
    });
    let mut command = Command::new("node");
    command.arg(sources("node").join("driver.js")).env("NODE_PATH", folder.join("node_modules"));
    command
}

fn java(home: &Path) -> Command {
    let folder = installed("java", &["pom.xml", "jars.sha512", "Driver.java"], install_java);
    let class_path = format!("{0}/classes:{0}/jars/*", folder.display());
    let mut command = Command::new("java");
    command
        // It starts in half the time, and five run on two cores.
        .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        .arg(format!("-Duser.home={}", home.display()))
        .args(["-cp", &class_path, "Driver"]);
    command
}

fn install_java(folder: &Path) {
    let (jars, classes) = (folder.join("jars"), folder.join("classes"));
    for built in [&jars, &classes] {
        let _ = fs::remove_dir_all(built);
        fs::create_dir_all(built).expect("a folder can be created");
    }
    run(installer("mvn")
        .args(["--batch-mode", "--quiet", "dependency:copy-dependencies"])
        .arg(format!("-Dmaven.repo.local={}", folder.join("repository").display()))
        .arg(format!("-DoutputDirectory={}", jars.display()))
        .arg("--file")
        .arg(sources("java").join("pom.xml")));
    let wanted = fs::read_to_string(sources("java").join("jars.sha512")).expect("it was read");
    assert_eq!(checksums(&jars), wanted, "the jars are not those of jars.sha512");
    run(installer("javac")
        .args(["-encoding", "UTF-8", "-d"])
        .arg(&classes)
        .arg("-cp")
        .arg(jars.join("*"))
        .arg(sources("java").join("Driver.java")));
}

/// As `sha512sum *` prints it.
fn checksums(folder: &Path) -> String {
    let entries = fs::read_dir(folder).expect("the folder can be read");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry can be read")).collect();
    files.sort_by_key(fs::DirEntry::file_name);
    let mut lines = String::new();
    for file in files {
        let bytes = fs::read(file.path()).expect("a file can be read");
        for byte in Sha512::digest(bytes) {
            write!(lines, "{byte:02x}").expect("a string takes anything");
        }
        writeln!(lines, "  {}", file.file_name().display()).expect("a string takes anything");
    }
    lines
}

fn go() -> PathBuf {
    let folder = installed("go", &["go.mod", "go.sum", "main.go"], |folder| {
        run(installer("go")
            .args(["build", "-mod=readonly", "-modcacherw", "-buildvcs=false", "-o"])
            .arg(folder.join("driver"))
            .arg(".")
            .current_dir(sources("go"))
            .env("GOFLAGS", "")
            // Never another toolchain than the one that is here.
            .env("GOTOOLCHAIN", "local")
            .env("GOPATH", folder.join("path"))
            .env("GOMODCACHE", folder.join("modules"))
            .env("GOCACHE", folder.join("cache")));
    });
    folder.join("driver")
}

fn rust() -> PathBuf {
    let files = ["Cargo.toml", "Cargo.lock", "src/main.rs"];
    let folder = installed("rust", &files, |folder| {
        run(installer("cargo")
            .args(["build", "--locked", "--quiet", "--manifest-path"])
            .arg(sources("rust").join("Cargo.toml"))
            .arg("--target-dir")
            .arg(folder)
            // Flags for RaftMQ's own build are not for the client's.
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS"));
    });
    folder.join("debug/raftmq-client-driver")
}
