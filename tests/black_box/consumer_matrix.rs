//! What a consumer can ask for, through every official client, unmodified, against three nodes.
//!
//! A client's messages are sent once; each cell is a group of its own that reads them. The cells of
//! a client are told at the same time, since most of their time is waiting; its form with kills, in
//! which the leader dies (-9) in each cell, is told one cell after the other. `lacks` is what the
//! client itself does not have, and a line below the table says what follows from it.
//!
//! `RAFTMQ_KILLS` asks for the form with kills as well.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::client_matrix::{check_content, check_no_acked_again};
use super::scene::{Killed, Scene, Stand, WITHIN, started};
use crate::common::cluster::{Cluster, PATIENCE, Plan, wait_drained};
use crate::common::driver::{Content, Received, Sent, Task, Told};
use crate::common::driver::{all_told, count, errors, received, received_ids, sent, told};
use crate::common::official::Client;
use crate::common::script::Script;
use crate::common::table::{self, FAILED, cell, cell_if};
use crate::common::until;

const MESSAGES: u64 = 20;
/// How many more are sent while the leader dies in the middle, and how slowly.
const OVER_KILL: u64 = 40;
const PACE_OVER_KILL_MS: u64 = 100;

const TAG_CELL: &str = "tags";
const SQL_CELL: &str = "sql";
const TAGS: &str = "tag-1 || tag-3";
/// Numbers and texts, these in letters of one, two and three bytes.
const SQL: &str =
    "number > 4 AND number <= 14 AND town = 'Zürich 東京' AND number NOT IN ('7', '11')";
/// An operand is missing where its second AND stands.
const WRONG_SQL: &str = "number > 4 AND AND town = 'x'";

/// Numbers of the messages that fail once.
const FAILING: [u64; 2] = [3, 8];
/// Number of the message that always fails.
const POISON: u64 = 4;
const POISON_ATTEMPTS: u64 = 3;
const ALWAYS: u64 = 1000;

/// The back-off of the groups whose messages fail; over a kill it is so long that its end comes
/// under the next leader.
const BACKOFF_MS: u64 = 1000;
const BACKOFF_OVER_KILL_MS: u64 = 4000;
/// What a client says of a failure has reached the broker by then.
const SAID: Duration = Duration::from_millis(1000);
/// How much longer than it has to wait something may take while all nodes live, between polls of 2
/// seconds and on a busy machine.
const SOON_MS: u64 = 6000;

/// Received for much longer than this, then told to come back after `HIDE_FIRST_MS`, and at once
/// after `HIDE_MS`: neither sooner, by the change before, nor later, by what it was received for.
const RECEIVED_FOR_MS: u64 = 60_000;
const HIDE_FIRST_MS: u64 = 1000;
const HIDE_MS: u64 = 3000;
const HIDE_OVER_KILL_MS: u64 = 6000;

const COLUMNS: [&str; 6] =
    ["client", "tag filter", "SQL filter", "nack and retry", "dead letter", "change invisible"];
type Row = [String; COLUMNS.len()];

#[test]
fn every_client() {
    Client::ALL.iter().for_each(|client| client.install());
    let cluster = Cluster::start(Plan { restart: true, ..Plan::of(3) });
    let start = Instant::now();
    let mut rows = tell_all(&cluster);
    println!("every client: told its stories in {:.1} s", start.elapsed().as_secs_f64());
    // Before any leader dies: what it has not told the log yet would wait for another consumer.
    if rows.values().flatten().all(|cell| cell != FAILED) {
        Client::ALL.iter().for_each(|client| check_nothing_left(&cluster, *client));
    }
    if std::env::var_os("RAFTMQ_KILLS").is_some() {
        let killed = Client::ALL.map(|client| ((client, true), tell(client, &cluster, true)));
        rows.extend(killed);
    }
    let head = COLUMNS.map(str::to_owned);
    let table: Vec<_> = [&head].into_iter().chain(rows.values()).map(|row| row.to_vec()).collect();
    table::print(&table, Client::ALL.iter().filter_map(|client| client.lacks_as_consumer()));
    let failed: Vec<_> =
        rows.values().filter(|row| row.iter().any(|cell| cell == FAILED)).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    cluster.wait_equal(PATIENCE);
}

/// Of what a filter does not want nothing waits, once the log was told. What a leader that died had
/// not told yet is seen by the next consumer, and there is none after a story.
fn check_nothing_left(cluster: &Cluster, client: Client) {
    let (at, topic) = (cluster.a_follower().grpc, topic_of(client, false));
    for name in [TAG_CELL, SQL_CELL] {
        for form in forms(client) {
            wait_drained(cluster, at, &format!("{topic}-{name}-{form}"));
        }
    }
}

/// The kinds of consumers that a client has.
fn forms(client: Client) -> &'static [&'static str] {
    if client.has_push() { &["simple", "push"] } else { &["simple"] }
}

fn topic_of(client: Client, kill: bool) -> String {
    format!("{client:?}{}", if kill { "-killed" } else { "" }).to_lowercase()
}

/// One client after the other, for the sake of two cores; beside them the one whose messages come
/// again by the end of their time alone, which takes longer than all else.
fn tell_all(cluster: &Cluster) -> BTreeMap<(Client, bool), Row> {
    let (quick, slow): (Vec<_>, Vec<_>) =
        Client::ALL.into_iter().partition(|client| client.has_push());
    let tell_each = |clients: Vec<Client>| -> Vec<_> {
        clients.into_iter().map(|client| ((client, false), tell(client, cluster, false))).collect()
    };
    thread::scope(|scope| {
        let slow = scope.spawn(|| tell_each(slow));
        let mut rows = tell_each(quick);
        rows.extend(slow.join().unwrap());
        rows.into_iter().collect()
    })
}

/// Its cells at the same time, while all nodes live; with kills one after the other.
fn tell(client: Client, cluster: &Cluster, kill: bool) -> Row {
    let stand = Stand { client, cluster };
    let name = if kill { format!("{client:?}, leader killed") } else { format!("{client:?}") };
    let topic = topic_of(client, kill);
    let cells = send(&stand, &topic).map(|sent| {
        let story = Story { stand: &stand, topic: &topic, sent: &sent, kill };
        if kill {
            return Story::CELLS.map(|tell| tell(story));
        }
        thread::scope(|scope| {
            let cells = Story::CELLS.map(|tell| scope.spawn(move || tell(story)));
            cells.map(|cell| cell.join().unwrap())
        })
    });
    let cells = cells.unwrap_or_else(|| Story::CELLS.map(|_| FAILED.to_owned()));
    let [tags, sql, nack, dead, hidden] = cells;
    let row = [name, tags, sql, nack, dead, hidden];
    println!("{}", row.join(" | "));
    row
}

/// What all cells of a client read, as its own producer sent it; nothing if that failed.
fn send(stand: &Stand<'_>, topic: &str) -> Option<Vec<Sent>> {
    let mut all = None;
    cell(|| {
        let scene = stand.scene(topic, "normal", false);
        let mut producer =
            scene.launch(&Task { count: MESSAGES, ..scene.task("send") }, "producer");
        producer.wait("all is sent", WITHIN, |lines| count(lines, "sent") as u64 == MESSAGES);
        let lines = producer.cut();
        scene.check_errors(&lines, &["send"]);
        all = Some(sent(&lines));
        String::new()
    });
    all
}

/// What a cell is told of.
#[derive(Clone, Copy)]
struct Story<'s> {
    stand: &'s Stand<'s>,
    topic: &'s str,
    sent: &'s [Sent],
    kill: bool,
}

impl<'s> Story<'s> {
    const CELLS: [fn(Self) -> String; COLUMNS.len() - 1] = [
        |story| cell(|| story.filter(TAG_CELL, false)),
        |story| cell(|| story.filter(SQL_CELL, true)),
        |story| cell(|| story.retry()),
        |story| cell(|| story.die()),
        |story| cell_if(story.stand.client.changes_invisible(), "lacks", || story.hide()),
    ];

    fn scene(&self, name: &str) -> Scene<'s> {
        self.stand.scene_at(self.topic, &format!("{}-{name}", self.topic), self.kill)
    }

    /// A group whose messages may fail so often, and come again so much later.
    fn failing_scene(&self, name: &str, attempts: u64) -> Scene<'s> {
        let (scene, backoff) = (self.scene(name), format!("{}ms", self.backoff_ms()));
        let words = ["group", "create", &scene.group, "--backoff", &backoff];
        let attempts = ["--attempts", &attempts.to_string()];
        self.stand.cluster.tool(scene.at, &[words.as_slice(), &attempts].concat()).unwrap();
        scene
    }

    fn backoff_ms(&self) -> u64 {
        if self.kill { BACKOFF_OVER_KILL_MS } else { BACKOFF_MS }
    }

    /// A push consumer, where the client has one.
    fn consumer(&self) -> &'static str {
        if self.stand.client.has_push() { "push" } else { "simple" }
    }

    /// Each kind of consumer gets all that it wants and nothing else, and nothing is left of what
    /// it does not want; a wrong expression is refused, with the place of the mistake.
    fn filter(&self, name: &str, sql: bool) -> String {
        if sql {
            self.refuse_wrong();
        }
        let (forms, own_topic) = (forms(self.stand.client), format!("{}-{name}", self.topic));
        let mut topic = self.topic;
        if self.kill {
            self.stand.scene(&own_topic, "normal", false);
            topic = &own_topic;
        }
        let scenes: Vec<_> = forms
            .iter()
            .map(|form| self.stand.scene_at(topic, &format!("{own_topic}-{form}"), self.kill))
            .collect();
        let filter = if sql { SQL } else { TAGS };
        let launch = |(scene, form): (&Scene<'_>, &&str)| {
            scene.launch(&Task { filter, sql, ..scene.task(form) }, "consumer")
        };
        let consumers: Vec<_> = scenes.iter().zip(forms).map(launch).collect();
        let mut consumers: Vec<_> = consumers.into_iter().map(started).collect();
        let (mut sent, mut killed) = (self.sent.to_vec(), None);
        if self.kill {
            (sent, killed) = send_over_kill(&scenes[0], &mut consumers[0]);
        }
        sent.retain(|sent| is_wanted(sent.number, sql));
        let (wanted, ids) = (sent.iter().collect::<Vec<_>>(), sent.iter().map(|sent| &*sent.id));
        let ids: BTreeSet<_> = ids.collect();
        for (scene, consumer) in scenes.iter().zip(consumers) {
            let mut got = scene.receive_wanted(consumer, &ids);
            for got in &got {
                let number = got.content.properties["number"].parse().unwrap();
                assert!(is_wanted(number, sql), "nobody asked for {got:?}");
            }
            // What failed to be sent may be there all the same.
            got.retain(|got| !self.kill || ids.contains(&*got.id));
            scene.check_received(&got, &wanted);
        }
        scenes[0].wait_back(killed);
        let refused = if sql { ", a wrong one refused" } else { "" };
        format!("{} to {}{refused}", sent.len(), forms.join(" and "))
    }

    fn refuse_wrong(&self) {
        let scene = self.scene("wrong");
        let task = Task { filter: WRONG_SQL, sql: true, ..scene.task("simple") };
        let refusals =
            |lines: &[Value]| [errors(lines, "start"), errors(lines, "receive")].concat();
        let mut consumer = scene.launch(&task, "consumer");
        consumer.wait("it is refused", WITHIN, |lines| !refusals(lines).is_empty());
        let lines = consumer.cut();
        assert_eq!(received_ids(&lines), BTreeSet::new(), "a wrong filter is no filter");
        let place = format!("column {}", WRONG_SQL.rfind("AND").unwrap() + 1);
        let silent = !self.stand.client.tells_why_not_started();
        let said = refusals(&lines).iter().any(|text| text.contains(&place));
        let good = said || silent && !errors(&lines, "start").is_empty();
        assert!(good, "what is wrong in {place}: {:?}", refusals(&lines));
    }

    /// What fails comes again as its next attempt, after the back-off that the client was told, and
    /// then no more; all else comes once.
    fn retry(&self) -> String {
        let scene = self.failing_scene("retry", 5);
        let fails = FAILING.map(|number| number.to_string()).join(" ");
        let task = Task { fails: &fails, failures: 1, ..scene.task(self.consumer()) };
        let mut consumer = started(scene.launch(&task, "consumer"));
        let failed = |lines: &[Value]| all_told(lines, "failed");
        consumer.wait("some fail", WITHIN, |lines| failed(lines).len() == FAILING.len());
        let killed = self.kill_once_said(&scene);
        consumer.wait("they come again", WITHIN, |lines| {
            let again = received(lines).into_iter().filter(|got| got.attempt > 1);
            let again: BTreeSet<_> = again.map(|got| got.id).collect();
            failed(lines).iter().all(|failed| again.contains(&failed.id))
        });
        let failed = failed(consumer.lines());
        let got = scene.receive_all(consumer, &self.ids());
        self.check_attempts(&got, |number| if FAILING.contains(&number) { 2 } else { 1 });
        let waits = self.check_waits(&got, &failed);
        scene.wait_back(killed);
        format!("attempt 2 after {} ms", waits.last().unwrap())
    }

    fn ids(&self) -> BTreeSet<&'s str> {
        self.sent.iter().map(|sent| &*sent.id).collect()
    }

    fn kill_once_said(&self, scene: &Scene<'_>) -> Option<Killed> {
        // Where it comes again at once, that is over by then.
        if self.kill && self.stand.client.reads_backoff() {
            thread::sleep(SAID);
        }
        scene.kill_leader()
    }

    /// All came as they were sent, each as often as it had to; a kill may let what was not
    /// acknowledged come again.
    fn check_attempts(&self, got: &[Received], attempts: impl Fn(u64) -> u64) {
        let wanted =
            self.sent.iter().map(|sent| (sent.id.clone(), Content::of(sent.number))).collect();
        check_content(got, &wanted);
        for sent in self.sent {
            let came: BTreeSet<_> =
                got.iter().filter(|got| got.id == sent.id).map(|got| got.attempt).collect();
            let expected: BTreeSet<_> = (1..=attempts(sent.number)).collect();
            let good = if self.kill { expected.is_subset(&came) } else { expected == came };
            assert!(good, "message {} came as {came:?} and not as {expected:?}", sent.number);
        }
    }

    /// How long each of these failures had to be waited for until it came again, sorted: never less
    /// than its back-off, where the client reads it, or than it was received for; and little more.
    fn check_waits(&self, got: &[Received], failed: &[Told]) -> Vec<u64> {
        let least = match self.consumer() {
            "push" if self.stand.client.reads_backoff() => self.backoff_ms(),
            "push" => 0,
            _ => Task::of("simple", self.stand.cluster.leader().grpc, "").invisible_ms,
        };
        let mut waits = Vec::new();
        for failed in failed {
            let of = |attempt| got.iter().find(|got| got.id == failed.id && got.attempt == attempt);
            let (Some(before), Some(after)) = (of(failed.attempt), of(failed.attempt + 1)) else {
                continue;
            };
            // Its own time runs from when it is handed out; a back-off from the failure.
            let from = if self.consumer() == "push" { failed.at_ms } else { before.asked_ms };
            waits.push(after.at_ms - from);
        }
        waits.sort_unstable();
        let good = |wait: &u64| *wait >= least && (self.kill || *wait < least + SOON_MS);
        assert!(!waits.is_empty() && waits.iter().all(good), "at least {least} ms: {waits:?}");
        waits
    }

    /// What always fails comes as often as its group says, and is then in the group's dead-letter
    /// topic, once, with where it is from; all else comes once.
    fn die(&self) -> String {
        let scene = self.failing_scene("dead", POISON_ATTEMPTS);
        let fails = POISON.to_string();
        let task = Task { fails: &fails, failures: ALWAYS, ..scene.task(self.consumer()) };
        let mut consumer = started(scene.launch(&task, "consumer"));
        consumer.wait("it fails", WITHIN, |lines| count(lines, "failed") > 0);
        let killed = self.kill_once_said(&scene);
        if !self.kill {
            consumer.wait("it fails as often as it may", WITHIN, |lines| {
                count(lines, "failed") as u64 == POISON_ATTEMPTS
            });
        }
        let dead = format!("%DLQ%{}", scene.group);
        let within = if self.kill { WITHIN } else { PATIENCE };
        until("there is a dead letter", within, || {
            self.stand.cluster.tool(scene.at, &["topic", "describe", &dead])
        });
        self.read_dead_letter(&dead);
        let got = scene.receive_all(consumer, &self.ids());
        let poison = |number| if number == POISON { POISON_ATTEMPTS } else { 1 };
        if self.kill {
            // An attempt whose answer was lost with the leader counts.
            self.check_attempts(&got, |_| 1);
            let most = got.iter().filter(|got| got.id == self.poison().id).count() as u64;
            assert!(most <= POISON_ATTEMPTS, "it came {most} times: {got:?}");
        } else {
            self.check_attempts(&got, poison);
        }
        scene.wait_back(killed);
        let came = got.iter().filter(|got| got.id == self.poison().id).count();
        format!("came {came} times, then a dead letter")
    }

    fn poison(&self) -> &'s Sent {
        self.sent.iter().find(|sent| sent.number == POISON).unwrap()
    }

    /// By a group of its own, as any topic is read.
    fn read_dead_letter(&self, dead: &str) {
        let readers = self.stand.scene_at(dead, &format!("{}-mourners", self.topic), self.kill);
        let mut reader = started(readers.launch(&readers.task("simple"), "consumer"));
        reader.wait("it is received", WITHIN, |lines| count(lines, "acked") > 0);
        wait_drained(self.stand.cluster, readers.at, &readers.group);
        let lines = reader.cut();
        let got = received(&lines);
        check_no_acked_again(&got, &told(&lines, "acked"));
        let poison = self.poison();
        let attempts = POISON_ATTEMPTS.to_string();
        let facts = [
            ("DLQ_ORIGIN_TOPIC", self.topic),
            ("DLQ_ORIGIN_MESSAGE_ID", &poison.id),
            ("RAFTMQ_DLQ_ATTEMPTS", &attempts),
        ];
        for got in &got {
            let mut content = got.content.clone();
            for (name, value) in facts {
                let told = content.properties.get(name);
                assert_eq!(told.map(String::as_str), Some(value), "{name}: {got:?}");
            }
            content.properties.retain(|name, _| !name.contains("DLQ_"));
            assert_eq!(content, Content::of(POISON), "a dead letter is what was sent");
        }
        assert!(self.kill || got.len() == 1, "one dead letter: {got:?}");
        let ids: BTreeSet<_> = got.iter().map(|got| &got.id).collect();
        assert_eq!(ids.len(), 1, "one dead letter: {got:?}");
    }

    /// None comes before the time that the last change gave it, and all soon after.
    fn hide(&self) -> String {
        let scene = self.scene("hidden");
        let hide_ms = if self.kill { HIDE_OVER_KILL_MS } else { HIDE_MS };
        let task = Task {
            count: MESSAGES,
            invisible_ms: RECEIVED_FOR_MS,
            hide_first_ms: HIDE_FIRST_MS,
            hide_ms,
            ..scene.task("invisible")
        };
        let mut consumer: Script = started(scene.launch(&task, "consumer"));
        consumer
            .wait("all is hidden", WITHIN, |lines| told(lines, "hidden").len() as u64 == MESSAGES);
        let killed = scene.kill_leader();
        consumer.wait("all is acknowledged", WITHIN, |lines| count(lines, "done") == 1);
        wait_drained(self.stand.cluster, scene.at, &scene.group);
        let lines = consumer.finish();
        scene.check_errors(&lines, &["hide", "ack", "receive"]);
        let (got, hidden) = (received(&lines), told(&lines, "hidden"));
        check_no_acked_again(&got, &told(&lines, "acked"));
        self.check_attempts(&got, |_| 2);
        let again = got.iter().filter(|got| got.attempt == 2);
        let waits = again.map(|got| got.at_ms - hidden[&got.id].asked_ms.unwrap());
        let waits: Vec<_> = waits.collect();
        let good = |wait: &u64| *wait >= hide_ms && (self.kill || *wait < hide_ms + SOON_MS);
        assert!(waits.iter().all(good), "hidden for {hide_ms} ms, came after {waits:?} ms");
        scene.wait_back(killed);
        format!("attempt 2 after {} ms", waits.iter().max().unwrap())
    }
}

/// Sends while the leader dies; what was sent.
fn send_over_kill(scene: &Scene<'_>, consumer: &mut Script) -> (Vec<Sent>, Option<Killed>) {
    let pace_ms = PACE_OVER_KILL_MS;
    let task = Task { count: OVER_KILL, pace_ms, ..scene.task("send") };
    let mut producer = started(scene.launch(&task, "producer"));
    consumer.wait("the first came", WITHIN, |lines| !received_ids(lines).is_empty());
    let killed = scene.kill_leader();
    producer.wait("all is sent, or failed", WITHIN, |lines| {
        (count(lines, "sent") + errors(lines, "send").len()) as u64 == OVER_KILL
    });
    let lines = producer.cut();
    scene.check_errors(&lines, &["send"]);
    (sent(&lines), killed)
}

fn is_wanted(number: u64, sql: bool) -> bool {
    if sql {
        (5..=14).contains(&number) && ![7, 11].contains(&number)
    } else {
        [1, 3].contains(&(number % 5))
    }
}
