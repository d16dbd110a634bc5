//! A load from inside the leader: what log and machine do without a protocol in front of them. The
//! floor that every other figure is compared with.
//!
//! A node that was started with a [`Load`] and leads waits until all voters are heard, proposes in
//! closed loops for the asked time, and leaves [`Figures`] in [`REPORT`] in its data directory.

mod figures;

pub use figures::{Figures, Tally};

use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::base::{QueueId, TopicId, TopicName, UtcMillis};
use crate::broker::Nodes;
use crate::command::{Command, CreateTopic, Publish, PublishItem, Reply};
use crate::message::{BodyEncoding, Message, MessageIdHash, MessageKind, body_crc, encode_record};
use crate::raft::Group;

use super::NodeError;
use super::live::Live;

/// The file that the figures are left in.
pub const REPORT: &str = "figures.json";

/// Load that is not counted, so that the first spare segment, connections and caches are there.
const WARM_UP: Duration = Duration::from_secs(1);
const PROPOSAL_TIMEOUT: Duration = Duration::from_secs(10);
const VOTERS_POLL: Duration = Duration::from_millis(50);
const QUEUES: u32 = 8;

/// What is proposed, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Bytes of each body.
    pub size: usize,
    /// Loops that each have one proposal under way.
    pub in_flight: usize,
    /// Messages of one proposal.
    pub batch: usize,
    pub seconds: u64,
}

/// As `--load` has it: the four numbers, separated by commas.
impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { size, in_flight, batch, seconds } = self;
        write!(f, "{size},{in_flight},{batch},{seconds}")
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not SIZE,IN_FLIGHT,BATCH,SECONDS");
        let numbers: Result<Vec<u32>, _> = text.split(',').map(str::parse).collect();
        let numbers = numbers.map_err(|_| wrong())?;
        let [size, in_flight, batch, seconds] = numbers[..] else { return Err(wrong()) };
        if in_flight == 0 || batch == 0 || seconds == 0 {
            return Err(wrong());
        }
        let count = |number: u32| usize::try_from(number).map_err(|_| wrong());
        Ok(Self {
            size: count(size)?,
            in_flight: count(in_flight)?,
            batch: count(batch)?,
            seconds: u64::from(seconds),
        })
    }
}

/// Where the proposals of all loops go, and what they are counted by.
struct Aim {
    group: Group,
    topic: TopicId,
    item: PublishItem,
    turn: AtomicU64,
    tally: Tally,
    counted: Instant,
    end: Instant,
}

/// Never ends: a node with a load stays until it is told to stop.
pub(super) async fn run(
    load: Load,
    group: Group,
    live: Arc<Live>,
    data: std::path::PathBuf,
) -> Result<(), NodeError> {
    let mut leadership = group.leadership();
    let leads = leadership.wait_for(|now| now.serving).await.is_ok();
    while leads && live.live().len() < group.members().len() {
        tokio::time::sleep(VOTERS_POLL).await;
    }
    let failed = |reason: String| NodeError::Task { task: "the load", reason };
    if leads {
        let figures = measure(load, group).await.map_err(failed)?;
        leave(&data, &figures).map_err(|error| failed(error.to_string()))?;
    }
    std::future::pending().await
}

async fn measure(load: Load, group: Group) -> Result<Figures, String> {
    let name = TopicName::new("bench").expect("letters are a name");
    let item = item(&name, load.size)?;
    let topic = topic(&group, name).await?;
    let counted = Instant::now() + WARM_UP;
    let end = counted + Duration::from_secs(load.seconds);
    let (turn, tally) = (AtomicU64::new(0), Tally::new());
    let aim = Arc::new(Aim { group, topic, item, turn, tally, counted, end });
    let mut loops = JoinSet::new();
    for _ in 0..load.in_flight {
        loops.spawn(propose(Arc::clone(&aim), load.batch));
    }
    while let Some(ended) = loops.join_next().await {
        ended.map_err(|error| error.to_string())??;
    }
    Ok(aim.tally.figures(load.size, Duration::from_secs(load.seconds)))
}

/// One closed loop: the next proposal goes when the one before is answered.
async fn propose(aim: Arc<Aim>, batch: usize) -> Result<(), String> {
    loop {
        let begun = Instant::now();
        if begun >= aim.end {
            return Ok(());
        }
        let items = (0..batch).map(|_| aim.next()).collect();
        let publish = Command::Publish(Publish { topic: aim.topic, dedup: true, items });
        let reply = aim.group.propose(publish, begun + PROPOSAL_TIMEOUT).await;
        match reply.map_err(|error| error.to_string())? {
            Reply::Published(published) => assert_eq!(published.len(), batch, "one outcome each"),
            other => return Err(format!("a message was answered with {other:?}")),
        }
        let now = Instant::now();
        if begun >= aim.counted && now <= aim.end {
            aim.tally.note(now - begun, batch as u64);
        }
    }
}

impl Aim {
    /// A message like the others with an id of its own.
    fn next(&self) -> PublishItem {
        // The golden ratio in 128 bits spreads the ids as a hash would.
        const SPREAD: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let queue = u32::try_from(turn % u64::from(QUEUES)).expect("below QUEUES");
        let id_hash = MessageIdHash::new(u128::from(turn).wrapping_mul(SPREAD));
        PublishItem { queue: QueueId::new(queue), id_hash, ..self.item.clone() }
    }
}

async fn topic(group: &Group, name: TopicName) -> Result<TopicId, String> {
    let kinds = vec![MessageKind::Normal];
    let create = Command::CreateTopic(CreateTopic { name, queues: QUEUES, kinds, keep: None });
    match group.propose(create, Instant::now() + PROPOSAL_TIMEOUT).await {
        Ok(Reply::TopicCreated { topic, .. }) => Ok(topic),
        Ok(other) => Err(format!("the topic was answered with {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

fn item(topic: &TopicName, size: usize) -> Result<PublishItem, String> {
    let body = Bytes::from(vec![b'x'; size]);
    let message = Message {
        topic: topic.clone(),
        body: body.clone(),
        encoding: BodyEncoding::Identity,
        message_id: "01000000000000000000000000000000".to_owned() + "00",
        kind: MessageKind::Normal,
        tag: None,
        keys: Vec::new(),
        properties: Vec::new(),
        message_group: None,
        born: UtcMillis::ZERO,
        born_host: "127.0.0.1:0".to_owned(),
        trace_context: None,
        deliver_at: None,
        priority: None,
    };
    let host = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0);
    let record = encode_record(&message, host).map_err(|error| error.to_string())?;
    Ok(PublishItem {
        queue: QueueId::new(0),
        kind: MessageKind::Normal,
        id_hash: MessageIdHash::new(0),
        body_crc: body_crc(&body),
        tag_hash: 0,
        group_hash: 0,
        record,
        record_at: 0,
    })
}

/// A whole file, or none: somebody waits for it to appear.
fn leave(data: &Path, figures: &Figures) -> io::Result<()> {
    let text = serde_json::to_vec(figures).map_err(io::Error::other)?;
    let temporary = data.join(REPORT).with_extension("tmp");
    std::fs::write(&temporary, text)?;
    std::fs::rename(&temporary, data.join(REPORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_four_numbers_and_none_of_the_last_three_is_0() {
        let load = Load { size: 0, in_flight: 256, batch: 16, seconds: 5 };
        assert_eq!(load.to_string().parse(), Ok(load));
        for wrong in ["", "1,2,3", "1,2,3,4,5", "1,0,1,1", "1,1,0,1", "1,1,1,0", "1,1,1,x"] {
            assert!(wrong.parse::<Load>().is_err(), "{wrong}");
        }
    }
}
