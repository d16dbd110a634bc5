//! Every official client, unmodified, through the same stories against three nodes.
//!
//! A test a client; each adds its row to one table and prints what is there so far, so that the
//! last one prints it whole (`--nocapture`). `n/a` is what the client itself does not have.
//! `RAFTMQ_KILLS` is how often a leader is killed under each client's load, 1 unless set.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails, and its figures are printed"
)]

#[expect(dead_code, reason = "the other black-box binary uses the rest")]
mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use common::cluster::{Cluster, PATIENCE, Plan, check_ready, kill, wait_drained};
use common::driver::{Content, Received, Task};
use common::driver::{count, errors, received, received_ids, sent, told};
use common::official::Client;
use common::script::Script;
use common::until;

/// Whether a node serves TLS beside plaintext on its one port.
const TLS_IS_SERVED: bool = false;

const MESSAGES: u64 = 200;
const HIDDEN: u64 = 3;
const WITHIN: Duration = Duration::from_secs(60);
/// Receipts between two kills, so that each one hits a cluster at work.
const LOAD_BETWEEN: usize = 100;
const LOAD_PACE_MS: u64 = 5;

const COLUMNS: [&str; 7] =
    ["client", "send", "simple receive", "push", "change invisible", "TLS", "leader killed"];
static TABLE: Mutex<Vec<[String; 7]>> = Mutex::new(Vec::new());

#[test]
fn python() {
    run_all(Client::Python);
}

#[test]
fn node() {
    run_all(Client::Node);
}

#[test]
fn java() {
    run_all(Client::Java);
}

#[test]
fn go() {
    run_all(Client::Go);
}

#[test]
fn rust() {
    run_all(Client::Rust);
}

fn run_all(client: Client) {
    // A first install takes minutes, in which no cluster needs to run.
    drop(client.driver(&std::env::temp_dir()));
    let cluster = Cluster::start(Plan { restart: true, ..Plan::of(3) });
    let at = cluster.nodes()[0].grpc;
    let stand = Stand { client, cluster, at };
    stand.create_topic("plain");

    let mut shared = BTreeMap::new();
    let cells = [
        format!("{client:?}"),
        cell(|| stand.send(&mut shared)),
        cell(|| stand.consume("simple", &shared)),
        cell_if(client.has_push(), "n/a", || stand.consume("push", &shared)),
        cell_if(client.changes_invisible(), "n/a", || stand.change_invisible()),
        cell_if(client.speaks_tls(), "n/a", || {
            if TLS_IS_SERVED { stand.use_tls() } else { "not served yet".to_owned() }
        }),
        cell(|| stand.kill_leaders()),
    ];
    let failed: Vec<_> = COLUMNS.iter().zip(&cells).filter(|(_, cell)| *cell == FAILED).collect();
    let verdict = format!("{client:?}: {failed:?}");
    let passed = failed.is_empty();
    print_table(cells);
    assert!(passed, "{verdict}");
}

const FAILED: &str = "FAILED";

/// What a story found, or that it failed: the others are told all the same.
fn cell(story: impl FnOnce() -> String) -> String {
    let start = Instant::now();
    match catch_unwind(AssertUnwindSafe(story)) {
        Ok(found) => format!("{found} ({:.1} s)", start.elapsed().as_secs_f64()),
        Err(_) => FAILED.to_owned(),
    }
}

fn cell_if(has: bool, otherwise: &str, story: impl FnOnce() -> String) -> String {
    if has { cell(story) } else { otherwise.to_owned() }
}

fn print_table(row: [String; 7]) {
    let mut table = TABLE.lock().unwrap();
    table.push(row);
    let rows = [COLUMNS.map(str::to_owned)].into_iter().chain(table.iter().cloned());
    let rows: Vec<_> = rows.collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap();
    for row in &rows {
        let cells: Vec<_> =
            row.iter().enumerate().map(|(n, cell)| format!("{cell:<0$}", width(n))).collect();
        println!("| {} |", cells.join(" | "));
    }
}

/// A client before a cluster.
struct Stand {
    client: Client,
    cluster: Cluster,
    at: SocketAddr,
}

type ById = BTreeMap<String, Content>;

impl Stand {
    fn create_topic(&self, name: &str) {
        self.cluster.tool(self.at, &["topic", "create", name, "--queues", "4"]).unwrap();
    }

    fn task<'a>(&self, command: &'a str, topic: &'a str, group: &'a str) -> Task<'a> {
        Task { group, ..Task::of(command, self.at, topic) }
    }

    fn start(&self, task: &Task<'_>, label: &str) -> Script {
        let mut script = task.start(self.client, self.cluster.folder(), label);
        script.wait("the client starts", WITHIN, |lines| count(lines, "started") == 1);
        script
    }

    /// Sends messages that must all be acknowledged.
    fn send_all(&self, task: &Task<'_>, label: &str) -> ById {
        let mut script = self.start(task, label);
        script.wait("all is sent", WITHIN, |lines| count(lines, "done") == 1);
        let lines = script.finish();
        assert_eq!(errors(&lines, "send"), [""; 0], "no send fails");
        let by_id: ById =
            sent(&lines).into_iter().map(|sent| (sent.id, Content::of(sent.number))).collect();
        assert_eq!(by_id.len() as u64, task.count, "message ids are unique");
        by_id
    }

    fn send(&self, shared: &mut ById) -> String {
        let task = Task { count: MESSAGES, ..self.task("send", "plain", "") };
        *shared = self.send_all(&task, "send");
        format!("{MESSAGES} OK")
    }

    /// All messages come once and as they were sent, to a simple or a push consumer.
    fn consume(&self, command: &str, wanted: &ById) -> String {
        assert_eq!(wanted.len() as u64, MESSAGES, "there is something to receive");
        let group = format!("{command}-group");
        self.consume_all(&self.task(command, "plain", &group), command, wanted)
    }

    fn consume_all(&self, task: &Task<'_>, label: &str, wanted: &ById) -> String {
        let mut script = self.start(task, label);
        script.wait("all is received", WITHIN, |lines| received_ids(lines).len() >= wanted.len());
        wait_drained(&self.cluster, self.at, task.group);
        let lines = script.finish();
        let got = received(&lines);
        check_content(&got, wanted);
        assert_eq!(got.len(), wanted.len(), "nothing comes twice");
        assert_eq!(errors(&lines, "ack"), [""; 0], "no acknowledgement fails");
        format!("{} OK", got.len())
    }

    /// Received for ten seconds, then told to come back much sooner: each comes again, soon, as
    /// its second attempt, and then never more.
    fn change_invisible(&self) -> String {
        const HIDE_MS: u64 = 1000;
        const SOON_MS: u64 = 6000;
        self.create_topic("hidden");
        let send = Task { count: HIDDEN, ..self.task("send", "hidden", "") };
        let wanted = self.send_all(&send, "send-hidden");
        let task = Task {
            count: HIDDEN,
            hide_ms: HIDE_MS,
            invisible_ms: 30_000,
            ..self.task("invisible", "hidden", "hiders")
        };
        let mut script = self.start(&task, "invisible");
        script.wait("all is acknowledged", WITHIN, |lines| count(lines, "done") == 1);
        let lines = script.finish();
        check_content(&received(&lines), &wanted);
        let (hidden, acked) = (told(&lines, "hidden"), told(&lines, "acked"));
        assert!(hidden.keys().eq(wanted.keys()), "all were hidden: {hidden:?}");
        assert!(acked.keys().eq(wanted.keys()), "all were acknowledged: {acked:?}");
        assert!(acked.values().all(|acked| acked.attempt == 2), "{acked:?}");
        let again = received(&lines).into_iter().filter(|got| got.attempt == 2);
        let waits: Vec<_> = again.map(|got| got.at_ms - hidden[&got.id].at_ms).collect();
        assert_eq!(waits.len() as u64, HIDDEN, "each comes again once");
        // The answer takes a moment to the client, from when on it counts.
        let in_time = |wait: &u64| (HIDE_MS - 200..SOON_MS).contains(wait);
        assert!(waits.iter().all(in_time), "hidden for {HIDE_MS} ms, came after {waits:?} ms");
        wait_drained(&self.cluster, self.at, "hiders");
        format!("attempt 2 after {} ms", waits.iter().max().unwrap())
    }

    /// Where a node keeps the certificate that it made at its first start.
    fn certificate(&self) -> PathBuf {
        self.cluster.data().join("tls").join("certificate.pem")
    }

    fn use_tls(&self) -> String {
        self.create_topic("secret");
        let certificate = self.certificate();
        let tls = Some(certificate.as_path());
        let send = Task { count: 20, tls, ..self.task("send", "secret", "") };
        let wanted = self.send_all(&send, "send-tls");
        let simple = Task { tls, ..self.task("simple", "secret", "readers") };
        self.consume_all(&simple, "simple-tls", &wanted)
    }

    /// The leader is killed -9 under load: every acknowledged message is received, and none comes
    /// again after its acknowledgement was answered OK.
    fn kill_leaders(&self) -> String {
        let kills = std::env::var("RAFTMQ_KILLS").map_or(1, |kills| kills.parse().unwrap());
        self.create_topic("killed");
        let mut consumer = self.start(&self.task("simple", "killed", "survivors"), "survivors");
        let load = Task { pace_ms: LOAD_PACE_MS, ..self.task("send", "killed", "") };
        let mut load = self.start(&load, "load");

        let mut killed_at = Vec::new();
        for _ in 0..kills {
            wait_receipts(&mut load, LOAD_BETWEEN);
            killed_at.push(self.kill_leader());
        }
        wait_receipts(&mut load, LOAD_BETWEEN);
        let lines = load.finish();
        let (oks, failed) = (sent(&lines), errors(&lines, "send"));
        let wanted: ById =
            oks.iter().map(|sent| (sent.id.clone(), Content::of(sent.number))).collect();
        assert_eq!(wanted.len(), oks.len(), "message ids are unique");
        let ok_times: Vec<u64> = oks.iter().map(|sent| sent.at_ms).collect();
        let gaps: Vec<u64> = killed_at.iter().map(|kill| gap_at(*kill, &ok_times)).collect();
        println!("{:?}: gaps between receipts at each kill, ms: {gaps:?}", self.client);
        for (text, times) in tally(&failed) {
            println!("{:?}: {times} sends failed with {text}", self.client);
        }

        consumer.wait("every acknowledged message is received", WITHIN, |lines| {
            let ids = received_ids(lines);
            wanted.keys().all(|id| ids.contains(&**id))
        });
        wait_drained(&self.cluster, self.cluster.leader().grpc, "survivors");
        let lines = consumer.finish();
        let got = received(&lines);
        let known: Vec<_> =
            got.iter().filter(|got| wanted.contains_key(&got.id)).cloned().collect();
        check_content(&known, &wanted);
        let acked = told(&lines, "acked");
        for got in &got {
            let Some(acked) = acked.get(&got.id) else { continue };
            let again = got.attempt > acked.attempt || got.asked_ms > acked.at_ms;
            assert!(!again, "{acked:?}, yet it came again: {got:?}");
        }
        self.cluster.wait_equal(PATIENCE);
        let longest = gaps.iter().max().unwrap();
        let (oks, failed) = (oks.len(), failed.len());
        format!("{oks} OK, {failed} errors, gap {longest} ms")
    }

    /// When it was killed, in milliseconds since 1970.
    fn kill_leader(&self) -> u64 {
        let leader = self.cluster.leader();
        let at = now_ms();
        kill(leader.pid, Signal::KILL);
        until("the killed node is back and all are ready", PATIENCE, || {
            let nodes = self.cluster.try_nodes()?;
            if nodes.iter().any(|node| node.pid == leader.pid) {
                return Err(format!("node {} is not back", leader.node));
            }
            nodes.iter().try_for_each(check_ready)
        });
        at
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

fn wait_receipts(load: &mut Script, more: usize) {
    let before = count(load.lines(), "sent");
    load.wait("receipts come in", WITHIN, |lines| count(lines, "sent") >= before + more);
}

/// The longest time without a receipt around this instant: a receipt may be on the wire when its
/// node dies, so a gap may begin up to two seconds later.
fn gap_at(instant: u64, oks: &[u64]) -> u64 {
    let near = oks.windows(2).filter(|pair| pair[1] > instant && pair[0] < instant + 2000);
    near.map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
}

/// How often each text occurs, digits aside: ids and ports differ.
fn tally(texts: &[String]) -> BTreeMap<String, usize> {
    let mut tally = BTreeMap::new();
    for text in texts {
        let plain: String = text.chars().filter(|c| !c.is_ascii_digit()).take(300).collect();
        *tally.entry(plain).or_insert(0) += 1;
    }
    tally
}

/// Each delivery is of a message that was sent, and equals it.
fn check_content(got: &[Received], wanted: &ById) {
    let mut attempts = BTreeSet::new();
    for got in got {
        let id = &got.id;
        let sent = wanted.get(id).unwrap_or_else(|| panic!("{id} was never sent"));
        assert!(!got.corrupted, "{id} is corrupted");
        assert_eq!(&got.content, sent, "{id} differs from what was sent");
        assert!(attempts.insert((id, got.attempt)), "{id} came twice as attempt {}", got.attempt);
    }
}
