//! Reading a queue by offset: nothing is hidden, and nothing is written.
//!
//! Any node answers from its own log, once the leader has vouched that its state is current: so
//! readers are served by all nodes.

use bytes::Bytes;
use tokio::time::{Duration, Instant, timeout_at};

use crate::base::{GroupId, GroupName, Millis, QueueId, QueueOffset, TopicId, TopicName};
use crate::broker::api::Delivered;
use crate::broker::api::FilterText;
use crate::broker::error::{LimitError, NoTopic, Overloaded, ReceiveError, Unavailable};
use crate::broker::receive::RECEIVE_BATCH_MAX;
use crate::broker::remote::Declined;
use crate::broker::{Gone, Replica};
use crate::command::Unit;
use crate::filter::Filter;
use crate::machine::QUEUES_MAX;
use crate::message::{decode_record, record_properties};

/// A reader names the queue `q` of the n-th broker group by name, counted from 0, as
/// `n * PULL_QUEUES + q`. With one broker group that is the queue's own number.
pub const PULL_QUEUES: u32 = QUEUES_MAX;

/// Units that one look goes through before it answers how far it came.
const SCAN_MAX: usize = 8192;
const SCAN_CHUNK: usize = 256;
/// What one answer carries, in bytes of records.
const REPLY_BYTES_MAX: usize = 15 << 20;
/// Readers that a node lets wait at once.
const WAITING_MAX: usize = 100_000;

/// A queue as a reader names it; see [`PULL_QUEUES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRequest {
    pub topic: TopicName,
    pub queue: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullRequest {
    pub at: QueueRequest,
    /// Who reads, for the metrics: it need not exist.
    pub group: GroupName,
    pub offset: QueueOffset,
    /// 1 to 32.
    pub batch: u32,
    pub filter: FilterText,
    /// How long to wait for a message.
    pub poll: Duration,
}

/// What a reader gets. `next` is where it goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pulled {
    Found {
        messages: Vec<Delivered>,
        next: QueueOffset,
    },
    /// What came, if anything, did not match.
    Nothing {
        next: QueueOffset,
    },
    /// The offset lies before the first message, or behind the next one to come.
    OutOfRange {
        next: QueueOffset,
    },
}

/// Which offset is asked for; the same words as for a reset.
pub type OffsetOf = super::cursors::ResetTo;

/// What one look saw.
struct Look {
    units: Vec<(QueueOffset, Unit)>,
    next: QueueOffset,
    end: QueueOffset,
}

impl Replica {
    /// `queue` is this broker group's own. `line` is a text that no other reader uses.
    pub(super) async fn pull(
        &self,
        request: &PullRequest,
        (queue, line): (QueueId, &str),
        filter: &Filter,
        gone: &Gone,
    ) -> Result<Pulled, ReceiveError> {
        if self.waiters.waiting() >= WAITING_MAX {
            let what = format!("{WAITING_MAX} receives wait already");
            return Err(Overloaded { what, retry_after: Millis::from_secs(1) }.into());
        }
        let deadline = Instant::now() + request.poll;
        self.catch_up().await?;
        let topic = self.topic_of(request, queue)?;
        // No consumer group has the id 0. It waits before it looks, so that nothing goes unseen.
        let waiter = self.waiters.join(topic, GroupId::new(0), line);
        let (start, end) = self
            .group
            .read(|state| (state.queue_start(topic, queue), state.queue_end(topic, queue)));
        if request.offset < start || request.offset > end {
            return Ok(Pulled::OutOfRange { next: request.offset.clamp(start, end) });
        }
        let mut at = request.offset;
        loop {
            let look = self.look((topic, queue), at, filter, request.batch as usize);
            let look = look.map_err(unavailable)?;
            let (messages, next) = self.read_all(look.units, (topic, queue, filter), look.next)?;
            if !messages.is_empty() {
                let labels = [request.at.topic.as_str(), request.group.as_str()];
                crate::metrics::MESSAGES_OUT.add(labels, messages.len() as u64);
                return Ok(Pulled::Found { messages, next });
            }
            at = next;
            if at < look.end {
                if Instant::now() >= deadline {
                    return Ok(Pulled::Nothing { next: at });
                }
                tokio::task::yield_now().await;
                continue;
            }
            let woken = tokio::select! {
                woken = timeout_at(deadline, waiter.woken()) => woken.is_ok(),
                () = gone.told() => false,
            };
            if !woken {
                return Ok(Pulled::Nothing { next: at });
            }
        }
    }

    fn topic_of(&self, request: &PullRequest, queue: QueueId) -> Result<TopicId, ReceiveError> {
        let name = &request.at.topic;
        let topic = self.group.read(|state| state.topic(name).map(|it| (it.id, it.queues)));
        let (topic, queues) = topic.ok_or_else(|| NoTopic { topic: name.clone() })?;
        if queue.get() < queues {
            return Ok(topic);
        }
        let allowed = format!("0 to {}, the queues of the topic", queues - 1);
        Err(LimitError { what: "queue", value: queue.to_string(), allowed }.into())
    }

    /// Units from `at` on that may match, at most `batch`.
    fn look(
        &self,
        (topic, queue): (TopicId, QueueId),
        mut at: QueueOffset,
        filter: &Filter,
        batch: usize,
    ) -> Result<Look, Declined> {
        self.group.read(|state| {
            // Retention may have passed by what is asked for since the reader's last look.
            at = at.max(state.queue_start(topic, queue));
            let end = state.queue_end(topic, queue);
            let mut units = Vec::new();
            let mut seen = 0;
            while at < end && seen < SCAN_MAX && units.len() < batch {
                let chunk = state.units(topic, queue, at, SCAN_CHUNK).map_err(|error| {
                    let reason = format!("the queue cannot be read here at the moment: {error}");
                    Declined::Unavailable { reason, outcome_unknown: false }
                })?;
                for unit in chunk {
                    if units.len() == batch {
                        break;
                    }
                    if filter.may_match(unit.tag_hash) {
                        units.push((at, unit));
                    }
                    (at, seen) = (at.next(), seen + 1);
                }
            }
            Ok(Look { units, next: at, end })
        })
    }

    /// The messages of these units whose tags really match, as many as one answer carries; `behind`
    /// is where the reader goes on when none is left out.
    fn read_all(
        &self,
        units: Vec<(QueueOffset, Unit)>,
        (topic, queue, filter): (TopicId, QueueId, &Filter),
        behind: QueueOffset,
    ) -> Result<(Vec<Delivered>, QueueOffset), ReceiveError> {
        let mut messages = Vec::with_capacity(units.len());
        let mut bytes = 0;
        for (offset, unit) in units {
            if bytes > 0 && bytes + unit.size as usize > REPLY_BYTES_MAX {
                return Ok((messages, offset));
            }
            // What has left with the log's front is not there to be had.
            let Some(record) = self.record(unit).map_err(unavailable)? else { continue };
            let properties = record_properties(&record).map_err(|error| self.storage(&error));
            if filter.matches(&properties.map_err(unavailable)?) {
                let death = self.facts(topic, offset);
                let message = Delivered { death, ..self.pulled(&record, (queue, offset), unit)? };
                bytes += record.len();
                messages.push(message);
            }
        }
        Ok((messages, behind))
    }

    fn pulled(
        &self,
        record: &Bytes,
        (queue, offset): (QueueId, QueueOffset),
        unit: Unit,
    ) -> Result<Delivered, Unavailable> {
        let stored = decode_record(record).map_err(|error| unavailable(self.storage(&error)))?;
        Ok(Delivered {
            message: stored.message,
            queue,
            offset,
            stored: unit.visible,
            store_host: stored.store_host.to_string(),
            attempt: 1,
            handle: String::new(),
            death: None,
        })
    }
}

/// A reader is refused for no other reason by what is shared with receives.
fn unavailable(declined: Declined) -> Unavailable {
    match declined {
        Declined::Unavailable { reason, outcome_unknown } => {
            Unavailable { reason, outcome_unknown }
        }
        other => Unavailable { reason: format!("{other:?}"), outcome_unknown: false },
    }
}

/// Refuses an empty batch, and bounds a large one.
pub(super) fn batch(asked: u32) -> Result<u32, LimitError> {
    if asked > 0 {
        return Ok(asked.min(RECEIVE_BATCH_MAX));
    }
    let allowed = format!("1 to {RECEIVE_BATCH_MAX}");
    Err(LimitError { what: "batch size", value: "0".into(), allowed })
}
