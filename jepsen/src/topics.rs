//! Ten thousand topics of four queues: how long their creation takes, what they cost, how they are
//! listed, and how soon a cluster is ready that has them.

use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::cluster::{Cluster, End, Scratch, program};
use crate::{Failure, Outcome, say};

const TOPICS: usize = 10_000;
const QUEUES: usize = 4;
const PAGE: usize = 1000;
const CREATED_WITHIN: Duration = Duration::from_secs(30);
const ANONYMOUS_MIB_MAX: u64 = 150;
const READY_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug, Deserialize)]
struct Topic {
    name: String,
    parts: Vec<Part>,
}

/// The topic in one broker group.
#[derive(Debug, Deserialize)]
struct Part {
    queues: Vec<Queue>,
}

#[derive(Debug, Deserialize)]
struct Queue {}

pub(crate) fn prove() -> Result<Outcome, Failure> {
    let program = program()?;
    let scratch = Scratch::make()?;
    let mut cluster = Cluster::start(&program, &scratch.0.join("cluster"), false)?;
    let before = cluster.anonymous_mib()?;
    let names: Vec<String> = (0..TOPICS).map(|number| format!("topic-{number:05}")).collect();

    let start = Instant::now();
    let queues = QUEUES.to_string();
    let words = ["topic", "create", "--from", "-", "--queues", &queues];
    cluster.tell(&words, &names.join("\n"))?;
    let created = start.elapsed();
    say(format_args!("{TOPICS} topics are created in {created:.2?}"));
    say(cluster.agree()?);
    let after = cluster.anonymous_mib()?;
    say(format_args!("anonymous memory of a node: {before} MiB before, {after} MiB after"));

    let (listed, pages, longest) = list(&cluster, &names)?;
    say(format_args!("listed in {pages} pages, the longest took {longest:.2?}"));

    let mut starts = Vec::new();
    let mut all_there = listed;
    // First without a checkpoint, so that all creations are applied again.
    for how in [End::Killed, End::Told] {
        let ready = cluster.start_again(how)?;
        say(format_args!("{how:?}: ready again in {ready:.2?}; {}", cluster.agree()?));
        all_there &= list(&cluster, &names)?.0;
        starts.push(ready);
    }
    let restarted = cluster.anonymous_mib()?;
    let (killed, told) = (starts[0], starts[1]);
    let figures = format!(
        "{TOPICS} topics of {QUEUES} queues created in {created:.2?}; anonymous memory {before} \
         MiB before, {after} MiB after, {restarted} MiB after a restart; ready {told:.2?} after a \
         clean stop, {killed:.2?} after kill -9 of all; listed in {pages} pages, the longest \
         {longest:.2?}; all there: {all_there}"
    );
    let good = all_there
        && created < CREATED_WITHIN
        && after.max(restarted) < ANONYMOUS_MIB_MAX
        && told.max(killed) < READY_WITHIN;
    Ok(Outcome { good, figures })
}

/// Whether exactly these topics are there, in how many pages, and how long one page took at most.
fn list(cluster: &Cluster, names: &[String]) -> Result<(bool, usize, Duration), Failure> {
    let limit = PAGE.to_string();
    let mut found: Vec<Topic> = Vec::new();
    let (mut pages, mut longest) = (0, Duration::ZERO);
    loop {
        let mut words = vec!["topic", "list", "--limit", &limit];
        if let Some(last) = found.last() {
            words.extend(["--after", &last.name]);
        }
        let start = Instant::now();
        let page: Vec<Topic> = cluster.ask(&words)?;
        longest = longest.max(start.elapsed());
        if page.is_empty() {
            break;
        }
        pages += 1;
        found.extend(page);
    }
    let same = found.iter().map(|topic| &topic.name).eq(names.iter());
    let whole: Vec<Topic> = cluster.ask(&["topic", "list"])?;
    let whole_is_same = whole.iter().map(|topic| &topic.name).eq(names.iter());
    let mut parts = found.iter().flat_map(|topic| &topic.parts);
    let queues = parts.all(|part| part.queues.len() == QUEUES);
    Ok((same && whole_is_same && queues, pages, longest))
}
