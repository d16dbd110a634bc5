//! Filters: members that want different things share a group and lose nothing; SQL conditions; wrong
//! ones are refused where they are wrong.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use raftmq::base::{GroupName, TopicName};
use raftmq::client::{Client, ClientError, Draft, GroupTopic, SimpleConsumer, Take};
use rustix::process::Signal;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::common::cluster::{Cluster, PATIENCE, Plan, kill};
use crate::common::until;

const EACH: usize = 100;

fn take(topic: &str, group: &str, filter: &str) -> Take {
    Take {
        topic: TopicName::new(topic).unwrap(),
        group: GroupName::new(group).unwrap(),
        filter: filter.to_owned(),
        max: 8,
        invisible: Duration::from_secs(10),
        wait: Duration::from_secs(2),
    }
}

fn create(cluster: &Cluster, topic: &str) {
    let at = cluster.node(1).grpc;
    cluster.tool(at, &["topic", "create", topic, "--queues", "2"]).unwrap();
}

/// Sends all of them, as often as it takes; what is sent again is one message by its body.
async fn send(cluster: &Cluster, drafts: &[Draft]) {
    for part in drafts.chunks(100) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let at = cluster.node(1).grpc.to_string();
            let sent = match Client::connect(&at).await {
                Ok(client) => client.send(part).await.map(drop),
                Err(error) => Err(error),
            };
            match sent {
                Ok(()) => break,
                Err(error) => assert!(Instant::now() < deadline, "not sent: {error}"),
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
}

fn tagged(topic: &str, tag: &str, number: usize) -> Draft {
    let name = TopicName::new(topic).unwrap();
    Draft { tag: Some(tag.to_owned()), ..Draft::new(name, format!("{tag}{number}")) }
}

/// Receives and acknowledges until `enough` says so; begins again after an error.
async fn consume(at: &str, take: Take, got: &Mutex<BTreeSet<String>>, enough: usize) {
    let deadline = Instant::now() + 3 * PATIENCE;
    while got.lock().len() < enough {
        assert!(
            Instant::now() < deadline,
            "{} of {enough} came to {}",
            got.lock().len(),
            take.filter
        );
        if let Err(error) = consume_some(at, take.clone(), got, enough).await {
            println!("{} begins again: {error}", take.filter);
            sleep(Duration::from_millis(200)).await;
        }
    }
}

async fn consume_some(
    at: &str,
    take: Take,
    got: &Mutex<BTreeSet<String>>,
    enough: usize,
) -> Result<(), ClientError> {
    let consumer = SimpleConsumer::new(Client::connect(at).await?, take).await?;
    let deadline = Instant::now() + PATIENCE;
    while got.lock().len() < enough && Instant::now() < deadline {
        let received = consumer.receive().await?;
        if received.is_empty() {
            continue;
        }
        let bodies = received.iter().map(|one| String::from_utf8(one.body.to_vec()).unwrap());
        got.lock().extend(bodies);
        consumer.ack(&received).await?;
    }
    Ok(())
}

async fn described(at: &str, group: &str, topic: &str) -> GroupTopic {
    let client = Client::connect(at).await.unwrap();
    let group = client.group(&GroupName::new(group).unwrap()).await.unwrap();
    let mut topics = group.parts.into_iter().flat_map(|part| part.topics);
    topics.find(|one| one.topic == topic).expect("the group has used the topic")
}

/// A poll that finds nothing has seen everything: what nobody wants leaves without another one.
async fn wait_no_lag(at: &str, group: &str, topic: &str, filter: &str) {
    let take = take(topic, group, filter);
    let consumer = SimpleConsumer::new(Client::connect(at).await.unwrap(), take).await.unwrap();
    assert!(consumer.receive().await.unwrap().is_empty());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let GroupTopic { ready, in_flight, .. } = described(at, group, topic).await;
        if (ready, in_flight) == (0, 0) {
            return;
        }
        assert!(Instant::now() < deadline, "{ready} are ready and {in_flight} in flight");
        sleep(Duration::from_millis(500)).await;
    }
}

/// 100 of each tag to the member that wants it, and a few that nobody wants; `between` happens once
/// half of them came.
async fn mixed(cluster: &Cluster, topic: &str, between: impl FnOnce()) {
    create(cluster, topic);
    let at = cluster.node(1).grpc.to_string();
    let group = format!("{topic}-readers");
    let mut drafts = Vec::new();
    for number in 0..EACH {
        drafts.extend(["A", "B", "C"].map(|tag| tagged(topic, tag, number)));
    }
    let (first, second) = drafts.split_at(drafts.len() / 2);
    let (a, b) = (Mutex::new(BTreeSet::new()), Mutex::new(BTreeSet::new()));
    let c1 = consume(&at, take(topic, &group, "A"), &a, EACH);
    let c2 = consume(&at, take(topic, &group, "B"), &b, EACH);
    let producer = async {
        send(cluster, first).await;
        let deadline = Instant::now() + PATIENCE;
        while a.lock().len().min(b.lock().len()) < EACH / 4 {
            assert!(Instant::now() < deadline, "too little comes");
            sleep(Duration::from_millis(50)).await;
        }
        between();
        send(cluster, second).await;
    };
    tokio::join!(c1, c2, producer);
    for (tag, got) in [("A", &a), ("B", &b)] {
        let wanted: BTreeSet<String> = (0..EACH).map(|number| format!("{tag}{number}")).collect();
        assert_eq!(*got.lock(), wanted, "all of its tag, and no other");
    }
    let described = described(&at, &group, topic).await;
    assert_eq!(described.filters, ["A", "B"]);
    assert_eq!(described.conflicts, 1, "one event");
    assert!(described.differ_since.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_with_different_filters_get_what_they_want_and_are_one_event() {
    let cluster = Cluster::start(Plan { restart: true, ..Plan::of(3) });
    mixed(&cluster, "calm", || {}).await;
    // What nobody wants is skipped, and nobody has to ask for it.
    wait_no_lag(&cluster.node(1).grpc.to_string(), "calm-readers", "calm", "A").await;
    let leader = cluster.leader();
    mixed(&cluster, "storm", || kill(leader.pid, Signal::KILL)).await;
    until("the killed node is back", PATIENCE, || {
        let back = cluster.try_nodes()?.iter().all(|node| node.pid != leader.pid);
        if back { Ok(()) } else { Err(format!("node {} is not back", leader.node)) }
    });
    cluster.wait_equal(PATIENCE);
}

/// A message that conditions can tell from others.
fn priced(topic: &str, price: Option<&str>, colour: &str) -> Draft {
    let name = TopicName::new(topic).unwrap();
    let mut properties = vec![("colour".to_owned(), colour.to_owned())];
    properties.extend(price.map(|price| ("price".to_owned(), price.to_owned())));
    let body = format!("{colour} {}", price.unwrap_or("-"));
    Draft { properties, tag: Some("T".to_owned()), ..Draft::new(name, body) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_choose_by_numbers_texts_and_what_is_missing() {
    let cluster = Cluster::start(Plan::of(3));
    create(&cluster, "shop");
    let drafts = [
        priced("shop", Some("5"), "red"),
        priced("shop", Some("10.5"), "blue"),
        priced("shop", Some("20"), "dark red"),
        priced("shop", Some("dear"), "blue"),
        priced("shop", None, "it's green"),
    ];
    send(&cluster, &drafts).await;
    let at = cluster.a_follower().grpc.to_string();
    let wanted: [(&str, &[&str]); 9] = [
        ("price > 5", &["blue 10.5", "dark red 20"]),
        ("price BETWEEN 5 AND 10.5", &["blue 10.5", "red 5"]),
        ("price NOT BETWEEN 5 AND 10.5", &["dark red 20"]),
        ("price IS NULL", &["it's green -"]),
        ("price is not null and not price >= 0", &[]),
        ("colour IN ('blue', 'it''s green')", &["blue 10.5", "blue dear", "it's green -"]),
        ("colour NOT IN ('blue') AND price <> 5", &["dark red 20"]),
        ("colour ENDSWITH 'red' OR price = 'dear'", &["blue dear", "dark red 20", "red 5"]),
        (
            "TAGS = 'T' AND (price = 20 OR colour CONTAINS 'green')",
            &["dark red 20", "it's green -"],
        ),
    ];
    for (number, (condition, bodies)) in wanted.into_iter().enumerate() {
        let (group, got) = (format!("buyer-{number}"), Mutex::new(BTreeSet::new()));
        let take = take("shop", &group, &format!("sql:{condition}"));
        consume(&at, take.clone(), &got, bodies.len()).await;
        // Whatever else there is, it does not come.
        let consumer =
            SimpleConsumer::new(Client::connect(&at).await.unwrap(), take).await.unwrap();
        let more = consumer.receive_up_to(8, Duration::from_millis(300)).await.unwrap();
        assert!(more.is_empty(), "{condition}: {more:?}");
        assert_eq!(
            *got.lock(),
            bodies.iter().map(|body| (*body).to_owned()).collect(),
            "{condition}"
        );
    }
    let words =
        ["message", "receive", "--topic", "shop", "--group", "buyer", "--sql", "price = 20"];
    let received = cluster.tool(cluster.node(1).grpc, &words).unwrap();
    assert_eq!(received.as_array().map(Vec::len), Some(1), "{received}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_condition_is_refused_where_it_is_wrong() {
    let cluster = Cluster::start(Plan::of(1));
    create(&cluster, "shop");
    let at = cluster.node(1).grpc.to_string();
    for (condition, said) in [
        ("price >> 5", "'>' at column 8"),
        ("price BETWEEN 5 AND 1", "column 15"),
        ("price = 'dear", "column 9"),
        ("colour", "column 7"),
        ("", "blank"),
        (" ", "blank"),
    ] {
        let take = take("shop", "buyer", &format!("sql:{condition}"));
        let consumer =
            SimpleConsumer::new(Client::connect(&at).await.unwrap(), take).await.unwrap();
        match consumer.receive().await {
            Err(ClientError::Refused { name, text, .. }) => {
                assert_eq!(name, "ILLEGAL_FILTER_EXPRESSION", "{condition}");
                assert!(text.contains(said), "{condition}: {text}");
            }
            other => panic!("{condition}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_that_seldom_matches_gets_all_and_leaves_no_backlog() {
    const COUNT: usize = 5000;
    const EVERY: usize = 500;
    let cluster = Cluster::start(Plan::of(3));
    create(&cluster, "needles");
    let draft = |number: usize| {
        let properties = vec![("number".to_owned(), (number % EVERY).to_string())];
        let topic = TopicName::new("needles").unwrap();
        Draft { properties, ..Draft::new(topic, number.to_string()) }
    };
    let drafts: Vec<Draft> = (0..COUNT).map(draft).collect();
    send(&cluster, &drafts).await;
    let at = cluster.a_follower().grpc.to_string();
    let got = Mutex::new(BTreeSet::new());
    let take = take("needles", "seekers", "sql:number = 7");
    consume(&at, take, &got, COUNT / EVERY).await;
    let wanted = (0..COUNT / EVERY).map(|at| (at * EVERY + 7).to_string()).collect();
    assert_eq!(*got.lock(), wanted);
    wait_no_lag(&at, "seekers", "needles", "sql:number = 7").await;
    let words = ["group", "describe", "seekers"];
    let told: Value = cluster.tool(cluster.node(1).grpc, &words).unwrap();
    assert!(told.to_string().contains("sql:number = 7"), "{told}");
}
