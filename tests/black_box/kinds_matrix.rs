//! Every kind of message through every official client, unmodified, against three nodes.
//!
//! Each client's test adds its rows to one table, and the last one prints it. With a kill, the
//! leader dies (-9) in each cell: in the middle of the ordered messages, else between what was sent
//! and its outcome. `lacks` is what the client itself does not have.
//!
//! `RAFTMQ_KILLS` asks for the full form: kills under every client, not under `KILLED` alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Instant;

use super::scene::{Killed, Scene, Stand, WITHIN};
use crate::common::cluster::{Cluster, PATIENCE, Plan};
use crate::common::driver::{Content, Received, Sent, Task};
use crate::common::driver::{count, errors, ids, received_ids, sent};
use crate::common::official::Client;
use crate::common::script::Script;
use crate::common::table::{self, FAILED, cell, cell_if};
use crate::common::until;

/// Which clients see kills in the test command: those whose programs start soonest.
const KILLED: [Client; 2] = [Client::Python, Client::Go];

const LINES: u64 = 3;
const EACH: u64 = 20;
/// So slow that the leader dies while they are on their way.
const ORDERED_PACE_MS: u64 = 20;
/// A message group's messages that were handled so long before a kill do not come again: their
/// acknowledgements were answered.
const SETTLED_MS: u64 = 1000;

/// Longer than a busy machine takes for one message, and far shorter than a poll.
const STANDSTILL_MS: u64 = 4000;

const DELAYED: u64 = 10;
const DELAY_MS: u64 = 2000;
/// Longer than an election takes, so that the time comes under the next leader.
const DELAY_OVER_KILL_MS: u64 = 4000;

const RECALLED: u64 = 3;
/// Long enough for a slow client to recall in time.
const RECALL_MS: u64 = 3000;
const RECALL_OVER_KILL_MS: u64 = 7000;

const COLUMNS: [&str; 7] =
    ["client", "ordered", "delayed", "committed", "rolled back", "checked", "recalled"];
type Row = [String; COLUMNS.len()];
static TABLE: Mutex<BTreeMap<(Client, bool), Row>> = Mutex::new(BTreeMap::new());

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

/// Whether the leader is killed in each cell. In the test command a client's stories are told once:
/// the same assertions hold with a kill and without one.
fn forms(client: Client) -> &'static [bool] {
    if std::env::var_os("RAFTMQ_KILLS").is_some() {
        return &[false, true];
    }
    if KILLED.contains(&client) { &[true] } else { &[false] }
}

fn run_all(client: Client) {
    client.install();
    let cluster = Cluster::start(plan());
    let stand = Stand { client, cluster: &cluster };
    let start = Instant::now();
    let rows: Vec<_> = forms(client).iter().map(|kill| tell(&stand, *kill)).collect();
    let told = start.elapsed().as_secs_f64();
    println!("{client:?}: told its stories in {told:.1} s");
    rows.iter().for_each(|row| println!("{}", row.join(" | ")));
    cluster.wait_equal(PATIENCE);
    drop(cluster);
    let failed: Vec<_> = rows.iter().flatten().filter(|cell| *cell == FAILED).cloned().collect();
    note_rows(client, rows.clone());
    assert!(failed.is_empty(), "{client:?}: {rows:#?}");
}

fn plan() -> Plan {
    let environment = vec![
        ("RAFTMQ_TRANSACTIONS__FIRST_CHECK", "500ms".to_owned()),
        ("RAFTMQ_TRANSACTIONS__CHECK_INTERVAL", "500ms".to_owned()),
        // A checker that does not know yet is asked until it does.
        ("RAFTMQ_TRANSACTIONS__CHECKS_MAX", "100".to_owned()),
    ];
    Plan { environment, restart: true, ..Plan::of(3) }
}

/// Prints the table once it is whole.
fn note_rows(client: Client, rows: Vec<Row>) {
    let mut table = TABLE.lock().unwrap();
    table.extend(forms(client).iter().map(|kill| (client, *kill)).zip(rows));
    let wanted: usize = Client::ALL.iter().map(|client| forms(*client).len()).sum();
    if table.len() == wanted {
        let head = COLUMNS.map(str::to_owned);
        let rows: Vec<_> =
            [&head].into_iter().chain(table.values()).map(|row| row.to_vec()).collect();
        table::print(&rows, Client::ALL.iter().filter_map(|client| client.lacks()));
    }
}

fn tell(stand: &Stand<'_>, kill: bool) -> Row {
    let client = stand.client;
    [
        if kill { format!("{client:?}, leader killed") } else { format!("{client:?}") },
        cell(|| stand.scene("ordered", "fifo", kill).ordered()),
        cell(|| stand.scene("delayed", "delay", kill).delayed()),
        cell(|| stand.scene("committed", "transaction", kill).committed()),
        cell(|| stand.scene("rolled-back", "transaction", kill).rolled_back()),
        cell(|| stand.scene("checked", "transaction", kill).checked()),
        cell_if(client.recalls(), "lacks", || stand.scene("recalled", "delay", kill).recalled()),
    ]
}

impl Scene<'_> {
    fn ordered(&self) -> String {
        let consumer = if self.stand.client.has_push() { "push" } else { "simple" };
        let words = ["group", "create", &self.group, "--ordered"];
        self.stand.cluster.tool(self.at, &words).unwrap();
        let consumer = self.task(consumer);
        let total = LINES * EACH;
        let pace_ms = if self.kill { ORDERED_PACE_MS } else { 0 };
        let producer = Task { count: total, lines: LINES, pace_ms, ..self.task("send") };
        let [mut consumer, mut producer] = self.start(&consumer, &producer);
        let third = usize::try_from(total / 3).unwrap();
        consumer.wait("a third came", WITHIN, |lines| received_ids(lines).len() >= third);
        let killed = self.kill_leader();
        producer.wait("all is sent", WITHIN, |lines| count(lines, "sent") as u64 == total);
        let lines = producer.cut();
        self.check_errors(&lines, &["send"]);
        let sent = sent(&lines);
        let got = self.receive_all(consumer, &sent.iter().map(|sent| &*sent.id).collect());
        let repeats = check_order(&got, &sent, killed.as_ref());
        if !self.kill {
            check_no_standstill(&got, &sent);
        }
        self.wait_back(killed);
        format!("{} OK, {repeats} again", sent.len())
    }

    fn delayed(&self) -> String {
        let delay_ms = if self.kill { DELAY_OVER_KILL_MS } else { DELAY_MS };
        let producer = Task { count: DELAYED, delay_ms, ..self.task("send") };
        let [consumer, mut producer] = self.start(&self.task("simple"), &producer);
        producer.wait("all is sent", WITHIN, |lines| count(lines, "sent") as u64 == DELAYED);
        let killed = self.kill_leader();
        let lines = producer.cut();
        self.check_errors(&lines, &["send"]);
        let sent = sent(&lines);
        let got = self.receive_all(consumer, &sent.iter().map(|sent| &*sent.id).collect());
        self.check_received(&got, &sent.iter().collect::<Vec<_>>());
        let late = check_not_early(&got, &sent);
        self.wait_back(killed);
        format!("{DELAYED} OK, {late} ms late")
    }

    /// Sends halves, kills the leader if that is the story, and lets the producer end them; its
    /// messages, its lines, and what became of the leader.
    fn transact(&self, outcomes: &str) -> (Script, Script, Vec<Sent>, Option<Killed>) {
        let halves = outcomes.split(' ').count();
        let producer = Task { outcomes, gate: Some(&self.gate), ..self.task("transact") };
        let [mut consumer, mut producer] = self.start(&self.task("simple"), &producer);
        producer.wait("the halves are sent", WITHIN, |lines| count(lines, "sent") == halves);
        assert_eq!(count(consumer.lines(), "received"), 0, "nobody sees a half");
        let killed = self.kill_leader();
        std::fs::write(&self.gate, "").unwrap();
        let sent = sent(producer.lines());
        (consumer, producer, sent, killed)
    }

    /// Every one of these was ended by the producer, as it was told, or, where the client cannot
    /// repeat an end that a kill met, by its checker.
    fn wait_ended(&self, producer: &mut Script, sent: &[&Sent], outcome: &str) {
        let by_checks = self.kill && !self.stand.client.repeats_ends();
        producer.wait("all is ended", WITHIN, |lines| {
            let mut done = ids(lines, "ended", None);
            if by_checks {
                done.extend(ids(lines, "asked", Some(outcome)));
            }
            sent.iter().all(|sent| done.contains(&sent.id))
        });
    }

    fn check_closed(&self) {
        until("no transaction is open", PATIENCE, || {
            let words = ["transaction", "list", "--topic", &self.topic];
            let open = self.stand.cluster.tool(self.at, &words)?;
            if open.as_array().is_some_and(Vec::is_empty) { Ok(()) } else { Err(open.to_string()) }
        });
    }

    fn committed(&self) -> String {
        let (consumer, mut producer, sent, killed) = self.transact("commit commit commit");
        let all: Vec<_> = sent.iter().collect();
        self.wait_ended(&mut producer, &all, "commit");
        let got = self.receive_all(consumer, &sent.iter().map(|sent| &*sent.id).collect());
        self.check_received(&got, &all);
        self.check_closed();
        self.check_errors(&producer.cut(), &["send", "end"]);
        self.wait_back(killed);
        format!("{} OK", sent.len())
    }

    /// The last one is committed after the others were rolled back, so that whoever saw it would
    /// have seen them.
    fn rolled_back(&self) -> String {
        let (consumer, mut producer, sent, killed) = self.transact("rollback rollback commit");
        let (last, gone) = sent.split_last().unwrap();
        self.wait_ended(&mut producer, &gone.iter().collect::<Vec<_>>(), "rollback");
        let got = self.receive_all(consumer, &BTreeSet::from([&*last.id]));
        self.check_received(&got, &[last]);
        self.check_closed();
        self.check_errors(&producer.cut(), &["send", "end"]);
        self.wait_back(killed);
        format!("{} never came", gone.len())
    }

    /// The producer leaves its transactions open, and commits them once it is asked.
    fn checked(&self) -> String {
        let (consumer, producer, sent, killed) = self.transact("open open open");
        let got = self.receive_all(consumer, &sent.iter().map(|sent| &*sent.id).collect());
        self.check_received(&got, &sent.iter().collect::<Vec<_>>());
        self.check_closed();
        let lines = producer.cut();
        self.check_errors(&lines, &["send", "end"]);
        let asked = ids(&lines, "asked", Some("commit"));
        assert!(sent.iter().all(|sent| asked.contains(&sent.id)), "asked for {asked:?} alone");
        assert_eq!(count(&lines, "ended"), 0, "the producer ended nothing by itself");
        self.wait_back(killed);
        format!("{} OK by {} checks", sent.len(), count(&lines, "asked"))
    }

    /// What was recalled never comes, as one shows that is due later and does come; then it is too
    /// late for that one.
    fn recalled(&self) -> String {
        let delay_ms = if self.kill { RECALL_OVER_KILL_MS } else { RECALL_MS };
        let gate = Some(&*self.gate);
        let producer = Task { count: RECALLED, delay_ms, gate, ..self.task("recall") };
        let [consumer, mut producer] = self.start(&self.task("simple"), &producer);
        producer.wait("all is sent", WITHIN, |lines| count(lines, "sent") as u64 == RECALLED + 1);
        let killed = self.kill_leader();
        std::fs::write(&self.gate, "").unwrap();
        let sent = sent(producer.lines());
        let (last, gone) = sent.split_last().unwrap();
        let recalls = 2 * gone.len();
        producer.wait("all is recalled", WITHIN, |lines| count(lines, "recalled") == recalls);
        let got = self.receive_all(consumer, &BTreeSet::from([&*last.id]));
        self.check_received(&got, &[last]);
        check_not_early(&got, &sent);
        self.wait_back(killed);
        let lines = producer.finish();
        self.check_errors(&lines, &["recall"]);
        let twice = gone.iter().flat_map(|sent| [sent.id.clone(), sent.id.clone()]);
        assert_eq!(ids(&lines, "recalled", None), twice.collect::<Vec<_>>(), "said both times");
        let late = errors(&lines, "late");
        let told = matches!(&*late, [text] if text.contains("ALREADY_FIRED"));
        assert!(told, "it is too late, and that is said: {late:?}");
        format!("{} never came", gone.len())
    }
}

/// The messages of each group come in the order in which they were sent. After a kill, a group may
/// go back to what was not acknowledged and go on from there; how many came again.
fn check_order(got: &[Received], sent: &[Sent], killed: Option<&Killed>) -> usize {
    let by_id: BTreeMap<_, _> = sent.iter().map(|sent| (&*sent.id, sent)).collect();
    let mut lines: BTreeMap<u64, Vec<&Received>> = BTreeMap::new();
    // What failed to be sent may be there all the same, and nobody knows where.
    for got in got {
        let Some(sent) = by_id.get(&*got.id) else { continue };
        assert!(!got.corrupted, "{} is corrupted", got.id);
        assert_eq!(got.content, Content::of(sent.number), "{} differs from what was sent", got.id);
        lines.entry(sent.number % LINES).or_default().push(got);
    }
    let mut repeats = 0;
    for (line, got) in lines {
        let order: Vec<_> = sent.iter().filter(|sent| sent.number % LINES == line).collect();
        let place = |got: &Received| order.iter().position(|sent| sent.id == got.id).unwrap();
        let places: Vec<_> = got.iter().map(|got| place(got)).collect();
        let mut last_at: BTreeMap<usize, u64> = BTreeMap::new();
        for (at, (place, got)) in places.iter().zip(&got).enumerate() {
            let before = last_at.insert(*place, got.at_ms);
            repeats += usize::from(before.is_some());
            let expected = at.checked_sub(1).map_or(0, |before| places[before] + 1);
            if *place == expected {
                continue;
            }
            // The group goes back.
            let settled = |killed: &Killed, before: u64| before + SETTLED_MS < killed.at_ms;
            let may = killed.zip(before).is_some_and(|(killed, before)| !settled(killed, before));
            assert!(may, "line {line} is out of order at {at}: {places:?}");
        }
        assert_eq!(last_at.len(), order.len(), "line {line} is not whole: {places:?}");
    }
    repeats
}

/// While nothing fails, no message group stands still: a consumer that waits is told of what is free.
fn check_no_standstill(got: &[Received], sent: &[Sent]) {
    let last_sent = sent.iter().map(|sent| sent.at_ms).max().unwrap();
    let mut times: Vec<u64> =
        got.iter().map(|got| got.at_ms).filter(|at| *at > last_sent).collect();
    times.push(last_sent);
    times.sort_unstable();
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    assert!(longest < STANDSTILL_MS, "nothing came for {longest} ms after all was sent: {times:?}");
}

/// No delivery comes before its time; how many milliseconds the latest first one came after it.
fn check_not_early(got: &[Received], sent: &[Sent]) -> u64 {
    let due: BTreeMap<_, _> = sent.iter().map(|sent| (&*sent.id, sent.due_ms)).collect();
    for got in got {
        let due = due[&*got.id];
        assert!(due > 0 && got.at_ms >= due, "{} was due at {due}, came at {}", got.id, got.at_ms);
    }
    let first = got.iter().filter(|got| got.attempt == 1);
    first.map(|got| got.at_ms - due[&*got.id]).max().unwrap_or(0)
}
