//! Every official client, unmodified, through the same stories against three nodes.
//!
//! Each client's test adds its row to one table, and the last one prints it. `n/a` is what the
//! client itself does not have. Where a client stalls by its own rules, the line below the table
//! says why.
//!
//! `RAFTMQ_KILLS` asks for the full form: a leader is killed that often under each client's load
//! (1 unless set), and then one that does not come back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::panic::{catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use super::broker_groups::{held, spread_leaders};
use crate::common::cluster::{Cluster, Node, PATIENCE, Plan, check_ready, kill, wait_drained};
use crate::common::driver::{Content, Received, Task, Told};
use crate::common::driver::{count, errors, received, received_ids, sent, told};
use crate::common::official::Client;
use crate::common::script::Script;
use crate::common::table::{self, FAILED, cell, cell_if};
use crate::common::until;

const MESSAGES: u64 = 200;
const HIDDEN: u64 = 3;
const WITHIN: Duration = Duration::from_secs(90);
/// Receipts between two kills, so that each one hits a cluster at work.
const LOAD_BETWEEN: usize = 100;
const LOAD_PACE_MS: u64 = 5;
/// The longest time without a receipt, for a client that retries by its own rules.
const GAP_MAX_MS: u64 = 5000;
/// How long the load goes on without the node that stays dead: longer than a node takes to be
/// dropped from the route, and time enough to come round to its queues several times.
const WITHOUT_IT: Duration = Duration::from_secs(8);

const COLUMNS: [&str; 9] = [
    "client",
    "send",
    "simple receive",
    "push",
    "change invisible",
    "TLS",
    "leader killed",
    "leader stays dead",
    "two broker groups",
];
type Row = [String; COLUMNS.len()];
static TABLE: Mutex<BTreeMap<Client, Row>> = Mutex::new(BTreeMap::new());

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
    let told = catch_unwind(|| run_stories(client));
    let row = match &told {
        Ok(row) => row.clone(),
        Err(_) => COLUMNS.map(|_| FAILED.to_owned()),
    };
    note_row(client, row);
    let row = told.unwrap_or_else(|why| resume_unwind(why));
    let failed: Vec<_> = COLUMNS.iter().zip(&row).filter(|(_, cell)| *cell == FAILED).collect();
    assert!(failed.is_empty(), "{client:?}: {failed:?}");
}

fn run_stories(client: Client) -> Row {
    let kills = std::env::var("RAFTMQ_KILLS").ok().map(|kills| kills.parse().unwrap());
    // Before the turn of its cluster: a first install takes minutes, and no story's time.
    let start = Instant::now();
    client.install();
    let (installed, start) = (start.elapsed(), Instant::now());
    let stand = Stand::new(client, Plan { restart: true, ..Plan::of(3) });
    let (turn, start) = (start.elapsed(), Instant::now());
    stand.create_topic("plain");

    let mut shared = BTreeMap::new();
    let mut row = [
        format!("{client:?}"),
        cell(|| stand.send(&mut shared)),
        cell(|| stand.consume("simple", &shared)),
        cell_if(client.has_push(), "n/a", || stand.consume("push", &shared)),
        cell_if(client.changes_invisible(), "n/a", || stand.change_invisible()),
        cell_if(client.speaks_tls(), "n/a", || stand.use_tls()),
        cell(|| stand.kill_leaders(kills.unwrap_or(1))),
        String::new(),
        String::new(),
    ];
    // One cluster at a time.
    drop(stand);
    row[7] = cell_if(kills.is_some(), "full form only", || {
        Stand::new(client, Plan::of(3)).lose_leader()
    });
    row[8] = cell(|| reach_both_groups(client));
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    println!(
        "{client:?}: installed in {}, waited {} for its cluster, told its stories in {}",
        seconds(installed),
        seconds(turn),
        seconds(start.elapsed()),
    );
    row
}

/// Prints the table once it is whole, past the capture of a test's output.
fn note_row(client: Client, row: Row) {
    let mut table = TABLE.lock().unwrap();
    table.insert(client, row);
    if table.len() < Client::ALL.len() {
        return;
    }
    let rows: Vec<_> =
        [COLUMNS.map(str::to_owned)].iter().chain(table.values()).map(|row| row.to_vec()).collect();
    let notes = Client::ALL.iter().filter_map(|client| client.stalls_by_its_own_rules());
    table::print(&rows, notes);
}

/// What is sent through any node comes to a consumer behind any node, and both groups have a part.
fn reach_both_groups(client: Client) -> String {
    const EACH: u64 = 20;
    let mut stand = Stand::new(client, Plan { broker_groups: 2, ..Plan::of(3) });
    spread_leaders(&stand.cluster);
    stand.create_topic("both");
    let nodes = stand.cluster.nodes();
    let mut wanted = ById::new();
    for node in &nodes {
        stand.at = node.grpc;
        let task = Task { count: EACH, ..stand.task("send", "both", "") };
        wanted.extend(stand.send_all(&task, &format!("both-{}", node.node)));
    }
    let held: Vec<u64> =
        held(&stand.cluster, stand.at, "both").into_iter().map(|(_, held)| held).collect();
    assert!(held.len() == 2 && held.iter().all(|held| *held > 0), "{held:?}");
    for node in &nodes {
        stand.at = node.grpc;
        let group = format!("behind-{}", node.node);
        stand.consume_all(&stand.task("simple", "both", &group), &group, &wanted);
    }
    format!("{} + {} OK through each node", held[0], held[1])
}

/// A client before a cluster.
struct Stand {
    client: Client,
    cluster: Cluster,
    at: SocketAddr,
}

pub(super) type ById = BTreeMap<String, Content>;

/// A load, and a consumer of all that it sends.
struct Load {
    producer: Script,
    consumer: Script,
}

impl Stand {
    /// The client's access point is a node that follows, so that the route is what it lives by.
    fn new(client: Client, plan: Plan) -> Self {
        let cluster = Cluster::start(plan);
        let at = cluster.a_follower().grpc;
        Self { client, cluster, at }
    }

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
        // At its end a push consumer of Java or Go waits for its polls, which take 20 seconds.
        let lines = if task.command == "push" { script.cut() } else { script.finish() };
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

    /// The leader is killed -9 under load and comes back; as often as was asked for.
    fn kill_leaders(&self, kills: usize) -> String {
        let mut load = self.start_load();
        let mut killed_at = Vec::new();
        let mut access_point_lives = true;
        for _ in 0..kills {
            wait_receipts(&mut load.producer, LOAD_BETWEEN);
            let leader = self.cluster.leader();
            access_point_lives &= leader.grpc != self.at;
            killed_at.push(kill_now(&leader));
            until("the killed node is back and all are ready", PATIENCE, || {
                let nodes = self.cluster.try_nodes()?;
                if nodes.iter().any(|node| node.pid == leader.pid) {
                    return Err(format!("node {} is not back", leader.node));
                }
                nodes.iter().try_for_each(check_ready)
            });
        }
        wait_receipts(&mut load.producer, LOAD_BETWEEN);
        let found = self.check_load(load, access_point_lives, |oks| {
            let gaps: Vec<u64> = killed_at.iter().map(|kill| gap_at(*kill, 2000, oks)).collect();
            println!("{:?}: gaps between receipts at each kill, ms: {gaps:?}", self.client);
            gaps.into_iter().max().unwrap()
        });
        self.cluster.wait_equal(PATIENCE);
        found
    }

    /// The leader is killed -9 under load and does not come back, so the client goes on with a
    /// route that still names it.
    fn lose_leader(&self) -> String {
        let mut load = self.start_load();
        wait_receipts(&mut load.producer, LOAD_BETWEEN);
        let killed_at = kill_now(&self.cluster.leader());
        std::thread::sleep(WITHOUT_IT);
        wait_receipts(&mut load.producer, LOAD_BETWEEN);
        self.check_load(load, true, |oks| gap_at(killed_at, u64::MAX, oks))
    }

    fn start_load(&self) -> Load {
        self.create_topic("killed");
        let consumer = self.start(&self.task("simple", "killed", "survivors"), "survivors");
        let task = Task { pace_ms: LOAD_PACE_MS, ..self.task("send", "killed", "") };
        Load { producer: self.start(&task, "load"), consumer }
    }

    /// Ends the load. Every acknowledged message is received, and none comes again after its
    /// acknowledgement was answered OK. `gap` is told when each receipt came.
    fn check_load(
        &self,
        mut load: Load,
        access_point_lives: bool,
        gap: impl FnOnce(&[u64]) -> u64,
    ) -> String {
        // A client that ends in order takes leave of each node, for long if one is gone.
        let lines = load.producer.cut();
        let (oks, failed) = (sent(&lines), errors(&lines, "send"));
        let gap = gap(&oks.iter().map(|sent| sent.at_ms).collect::<Vec<_>>());
        for (text, times) in tally(&failed) {
            println!("{:?}: {times} sends failed with {text}", self.client);
        }
        let wanted: ById =
            oks.iter().map(|sent| (sent.id.clone(), Content::of(sent.number))).collect();
        assert_eq!(wanted.len(), oks.len(), "message ids are unique");

        load.consumer.wait("every acknowledged message is received", WITHIN, |lines| {
            let ids = received_ids(lines);
            wanted.keys().all(|id| ids.contains(&**id))
        });
        wait_drained(&self.cluster, self.at, "survivors");
        let lines = load.consumer.cut();
        for (text, times) in tally(&errors(&lines, "receive")) {
            println!("{:?}: {times} receives failed with {text}", self.client);
        }
        let got = received(&lines);
        // What failed to be sent may be there all the same.
        let known = got.iter().filter(|got| wanted.contains_key(&got.id)).cloned();
        check_content(&known.collect::<Vec<_>>(), &wanted);
        check_no_acked_again(&got, &told(&lines, "acked"));
        if self.client.rides_out(access_point_lives) {
            assert_eq!(failed, [""; 0], "the client's own retry covers an election");
            assert!(gap < GAP_MAX_MS, "{gap} ms without a receipt");
        }
        format!("{} OK, {} errors, gap {gap} ms", oks.len(), failed.len())
    }
}

/// When it was killed, in milliseconds since 1970.
pub(super) fn kill_now(node: &Node) -> u64 {
    let at = now_ms();
    kill(node.pid, Signal::KILL);
    at
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

fn wait_receipts(load: &mut Script, more: usize) {
    let before = count(load.lines(), "sent");
    load.wait("receipts come in", WITHIN, |lines| count(lines, "sent") >= before + more);
}

/// The longest time without a receipt after this instant, if it began within so many milliseconds:
/// a receipt may be on the wire when its node dies.
fn gap_at(instant: u64, within: u64, oks: &[u64]) -> u64 {
    let near =
        oks.windows(2).filter(|pair| pair[1] > instant && pair[0] < instant.saturating_add(within));
    near.map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
}

/// How often each text occurs, digits aside: ids and ports differ.
pub(super) fn tally(texts: &[String]) -> BTreeMap<String, usize> {
    let mut tally = BTreeMap::new();
    for text in texts {
        let plain: String = text.chars().filter(|c| !c.is_ascii_digit()).take(300).collect();
        *tally.entry(plain).or_insert(0) += 1;
    }
    tally
}

/// Each delivery is of a message that was sent, and equals it.
pub(super) fn check_content(got: &[Received], wanted: &ById) {
    let mut attempts = BTreeSet::new();
    for got in got {
        let id = &got.id;
        let sent = wanted.get(id).unwrap_or_else(|| panic!("{id} was never sent"));
        assert!(!got.corrupted, "{id} is corrupted");
        assert_eq!(&got.content, sent, "{id} differs from what was sent");
        assert!(attempts.insert((id, got.attempt)), "{id} came twice as attempt {}", got.attempt);
    }
}

/// Nothing comes with a later attempt, or to a question asked after its acknowledgement was OK.
pub(super) fn check_no_acked_again(got: &[Received], acked: &BTreeMap<String, Told>) {
    for got in got {
        let Some(acked) = acked.get(&got.id) else { continue };
        let again = got.attempt > acked.attempt || got.asked_ms > acked.at_ms;
        assert!(!again, "{acked:?}, yet it came again: {got:?}");
    }
}
