//! Holds the shape of the house: which room may know which, and what no room may reach for.
//!
//! The compiler forbids no import within one package; these tests do. They look for arrows, for
//! doors to the world and for dead or overgrown files, never for words.

mod source;

use std::fs;
use std::path::{Path, PathBuf};

use self::source::{Source, UsedPath};

/// A room and the rooms it may import.
struct Room {
    name: &'static str,
    may: &'static [&'static str],
}

/// Lowest first: a room may import only rooms above its own line. ARCHITECTURE.md says why.
const ROOMS: &[Room] = &[
    Room { name: "base", may: &[] },
    Room { name: "wire", may: &[] },
    Room { name: "metrics", may: &["base"] },
    Room { name: "env", may: &["base"] },
    Room { name: "message", may: &["base"] },
    Room { name: "filter", may: &["base", "message"] },
    Room { name: "command", may: &["base", "message"] },
    Room { name: "index", may: &["base", "metrics", "env", "message", "command"] },
    Room { name: "commit_log", may: &["base", "metrics", "env"] },
    Room { name: "machine", may: &["base", "env", "message", "command"] },
    Room { name: "raft", may: REPLICATED },
    Room { name: "broker", may: BROKER },
    Room { name: "name_server", may: &["base", "metrics", "env"] },
    Room { name: "grpc", may: &["base", "wire", "metrics", "message", "broker", "name_server"] },
    Room { name: "http", may: &["base", "metrics", "broker"] },
    Room { name: "config", may: OPTIONS },
    Room { name: "client", may: &["base", "wire", "message"] },
    Room { name: "node", may: EVERYTHING },
    Room { name: "cli", may: &["base", "config", "client", "node"] },
];

const REPLICATED: &[&str] =
    &["base", "metrics", "env", "message", "filter", "command", "commit_log", "machine"];
const BROKER: &[&str] = &[
    "base",
    "metrics",
    "env",
    "message",
    "filter",
    "command",
    "index",
    "commit_log",
    "machine",
    "raft",
];
/// Rooms whose `Options` the settings become.
const OPTIONS: &[&str] = &[
    "base",
    "env",
    "index",
    "commit_log",
    "machine",
    "raft",
    "broker",
    "name_server",
    "grpc",
    "http",
];
const EVERYTHING: &[&str] = &[
    "base",
    "wire",
    "metrics",
    "env",
    "message",
    "filter",
    "command",
    "index",
    "commit_log",
    "machine",
    "raft",
    "broker",
    "name_server",
    "grpc",
    "http",
    "config",
    "client",
];

/// Arrows that only some files of a room have.
const EXCEPTIONS: &[(&str, &[&str])] = &[
    // What speaks to peers, in both directions.
    ("raft/bootstrap", &["wire"]),
    ("raft/group", &["wire"]),
    ("raft/network", &["wire"]),
    ("raft/peer", &["wire"]),
    ("raft/propose", &["wire"]),
    ("raft/read", &["wire"]),
    ("raft/refill", &["wire"]),
    ("raft/vitals", &["wire"]),
    ("cli/inspect", &["env", "message", "command", "commit_log"]),
    ("main.rs", &["cli"]),
];

/// What may stand in `src` beside rooms.
const TOP: &[&str] = &["ARCHITECTURE.md", "lib.rs", "main.rs", "tidy", "tidy.rs"];

/// Where the two crates start.
const ROOTS: &[&str] = &["lib.rs", "main.rs"];

/// A path outside the crate that only some places may name. `path` is a run of segments.
struct Door {
    path: &'static [&'static str],
    /// Prefixes of the files that may; tests inside others may as well if `tests` says so.
    may: Places,
    tests: bool,
    why: &'static str,
}

enum Places {
    Only(&'static [&'static str]),
    /// Everywhere but in the rooms that the simulator runs.
    NotSimulated,
}

/// What the simulator runs, tests whole, and repeats: `base` to `machine`.
const SIMULATED: &[&str] =
    &["base", "metrics", "env", "message", "filter", "command", "index", "commit_log", "machine"];
const REAL_ENV: &str = "env/os";

const RAFT: Places = Places::Only(&["raft/"]);
const PROTOCOL: Places = Places::Only(&["grpc/", "client/", "raft/", "wire", "node/", "cli/"]);
const TLS: Places = Places::Only(&["grpc/", "node/"]);
const NO_TLS: &str = "TLS ends at the client port";
const NO_OPENRAFT: &str = "openraft stays in raft";
const NO_PROTOCOL: &str = "generated types and gRPC stay in grpc, client, raft, node and cli";
const THROUGH_ENV: &str = "the world comes in through env, or as data in an entry";
const NO_THREAD: &str = "long work is a function here; node gives it a thread";

const DOORS: &[Door] = &[
    Door { path: &["openraft"], may: RAFT, tests: false, why: NO_OPENRAFT },
    Door { path: &["openraft_rt"], may: RAFT, tests: false, why: NO_OPENRAFT },
    Door { path: &["openraft_rt_tokio"], may: RAFT, tests: false, why: NO_OPENRAFT },
    Door { path: &["openraft_macros"], may: RAFT, tests: false, why: NO_OPENRAFT },
    Door { path: &["prost"], may: PROTOCOL, tests: false, why: NO_PROTOCOL },
    Door { path: &["prost_types"], may: PROTOCOL, tests: false, why: NO_PROTOCOL },
    Door { path: &["tonic"], may: PROTOCOL, tests: false, why: NO_PROTOCOL },
    Door { path: &["tonic_prost"], may: PROTOCOL, tests: false, why: NO_PROTOCOL },
    Door { path: &["rustls"], may: TLS, tests: false, why: NO_TLS },
    Door { path: &["tokio_rustls"], may: TLS, tests: false, why: NO_TLS },
    Door { path: &["rcgen"], may: TLS, tests: false, why: NO_TLS },
    Door { path: &["std", "fs"], may: Places::NotSimulated, tests: true, why: THROUGH_ENV },
    Door {
        path: &["net", "TcpListener"],
        may: Places::NotSimulated,
        tests: true,
        why: THROUGH_ENV,
    },
    Door { path: &["net", "TcpStream"], may: Places::NotSimulated, tests: true, why: THROUGH_ENV },
    Door { path: &["SystemTime"], may: Places::NotSimulated, tests: true, why: THROUGH_ENV },
    Door { path: &["Instant", "now"], may: Places::NotSimulated, tests: true, why: THROUGH_ENV },
    Door { path: &["rand"], may: Places::NotSimulated, tests: true, why: THROUGH_ENV },
    Door { path: &["thread", "spawn"], may: Places::NotSimulated, tests: true, why: NO_THREAD },
    Door { path: &["thread", "Builder"], may: Places::NotSimulated, tests: true, why: NO_THREAD },
    Door { path: &["tokio"], may: Places::NotSimulated, tests: true, why: THROUGH_ENV },
];

/// A file longer than this has two subjects.
const CODE_LINES_MAX: usize = 600;

impl Door {
    fn is_open_for(&self, file: &str, test: bool) -> bool {
        if test && self.tests {
            return true;
        }
        match self.may {
            Places::Only(places) => places.iter().any(|place| file.starts_with(place)),
            Places::NotSimulated => {
                !SIMULATED.contains(&room_of(file)) || file.starts_with(REAL_ENV)
            }
        }
    }

    fn is_named_by(&self, path: &UsedPath) -> bool {
        path.segments.windows(self.path.len()).any(|window| window == self.path)
    }
}

/// `machine/topics.rs` and `machine.rs` belong to `machine`.
fn room_of(file: &str) -> &str {
    let first = file.split('/').next().unwrap_or(file);
    first.strip_suffix(".rs").unwrap_or(first)
}

/// How many modules a file lies below the crate's root.
fn depth_of(file: &str) -> usize {
    let folders = file.matches('/').count();
    folders + usize::from(!file.ends_with("mod.rs"))
}

/// The room that a path of `file` leads to, if it leaves the room at all.
fn target<'path>(file: &str, path: &'path UsedPath) -> Option<&'path str> {
    let ups = path.segments.iter().take_while(|segment| *segment == "super").count();
    let named = match path.segments.first()?.as_str() {
        "crate" | "raftmq" => path.segments.get(1)?,
        "super" if ups >= depth_of(file) => path.segments.get(ups)?,
        _ => return None,
    };
    let is_room = ROOMS.iter().any(|room| room.name == named);
    (is_room && named != room_of(file)).then_some(named)
}

/// Every forbidden arrow and door of one file's text, as `file:line: what`.
fn violations(file: &str, text: &str) -> Vec<String> {
    let source = Source::read(text);
    let own = ROOMS.iter().find(|room| room.name == room_of(file));
    let mut found = Vec::new();
    for path in source.paths() {
        let line = path.line;
        if let Some(to) = target(file, &path) {
            let by_room = own.is_some_and(|room| room.may.contains(&to));
            let by_file = EXCEPTIONS
                .iter()
                .any(|(place, rooms)| file.starts_with(place) && rooms.contains(&to));
            if !by_room && !by_file {
                found.push(format!("{file}:{line}: {} must not know {to}", room_of(file)));
            }
        }
        let test = source.is_test(line) || is_test_file(file);
        for door in DOORS {
            if door.is_named_by(&path) && !door.is_open_for(file, test) {
                let what = door.path.join("::");
                found.push(format!("{file}:{line}: {what} here: {}", door.why));
            }
        }
    }
    found
}

fn is_test_file(file: &str) -> bool {
    file.ends_with("tests.rs") || file.contains("/tests/")
}

/// All files below `src`, with their texts; names are relative to it.
fn files() -> Vec<(String, String)> {
    fn walk(root: &Path, folder: &Path, into: &mut Vec<(String, String)>) {
        let mut entries: Vec<PathBuf> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                walk(root, &path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                into.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    walk(&root, &root, &mut found);
    assert!(found.len() > 20, "only {} files below {}", found.len(), root.display());
    found
}

fn report(found: &[String]) {
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn imports_point_one_way() {
    let all: Vec<String> = files().iter().flat_map(|(file, text)| violations(file, text)).collect();
    report(&all);
}

#[test]
fn the_table_is_ordered() {
    for (at, room) in ROOMS.iter().enumerate() {
        for to in room.may {
            let below = ROOMS[..at].iter().any(|lower| lower.name == *to);
            assert!(below, "{} may import {to}, which is not a lower room", room.name);
        }
    }
}

#[test]
fn src_holds_rooms_and_nothing_else() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let odd: Vec<String> = fs::read_dir(src)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !TOP.contains(&name.as_str()))
        .filter(|name| !ROOMS.iter().any(|room| room.name == room_of(name)))
        .map(|name| format!("src/{name}: neither a room nor known at the top; see tidy.rs"))
        .collect();
    report(&odd);
}

#[test]
fn files_are_short_and_rooms_explain_themselves() {
    let mut found = Vec::new();
    for (file, text) in files() {
        let lines = Source::read(&text).code_lines();
        if lines > CODE_LINES_MAX {
            found.push(format!("{file}: {lines} code lines; split it by {CODE_LINES_MAX}"));
        }
        let entrance = file == format!("{}/mod.rs", room_of(&file)) || !file.contains('/');
        if entrance && !ROOTS.contains(&file.as_str()) && !text.starts_with("//!") {
            found.push(format!("{file}:1: a room opens with what it is (//!)"));
        }
    }
    report(&found);
}

#[test]
fn no_file_is_dead() {
    let all = files();
    let text_of = |name: &str| all.iter().find(|(file, _)| file == name).map(|(_, text)| text);
    let mut dead = Vec::new();
    for (file, _) in all.iter().filter(|(file, _)| !ROOTS.contains(&file.as_str())) {
        let path = Path::new(file.strip_suffix("/mod.rs").unwrap_or(file)).with_extension("");
        let folder = path.parent().and_then(Path::to_str).unwrap();
        let parents = match folder {
            "" => ["lib.rs".to_owned(), "main.rs".to_owned()],
            folder => [format!("{folder}/mod.rs"), format!("{folder}.rs")],
        };
        let declared = format!("mod {};", path.file_name().and_then(|name| name.to_str()).unwrap());
        let is_declared = |parent: &String| {
            text_of(parent).is_some_and(|text| Source::read(text).code.contains(&declared))
        };
        if !parents.iter().any(is_declared) {
            dead.push(format!("{file}: nothing declares it with `{declared}`"));
        }
    }
    report(&dead);
}

#[cfg(test)]
mod tests;
