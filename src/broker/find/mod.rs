//! Messages found again: by id, by key, by place, by time.
//!
//! Each node answers from its own replica, once that has everything which was acknowledged before
//! the question: it has state, log and index of each broker group, so that nothing is asked of a
//! leader but how far it is, and no body travels twice. Ids and keys go by the index, which is this
//! node's own and may be behind; then the answer says so. A hash is no proof: every record is
//! compared with what was asked for.

mod by_hash;
mod family;
mod units;

use std::time::Duration;

use tokio::time::Instant;

use crate::base::{BrokerGroupName, LogPosition, QueueId, QueueOffset, TopicName, UtcMillis};
use crate::broker::Replica;
use crate::broker::error::NoTopic;
use crate::broker::replica::Inner;
use crate::message::Message;

use self::by_hash::ByHash;
use self::units::Units;

/// Messages of one answer at most.
pub const QUERY_MAX: usize = 1000;
/// Bytes of bodies of one broker group's answer, about.
const ANSWER_BYTES: usize = 64 << 20;
/// How long a question waits for an index that is only a little behind, and how little that is.
const INDEX_WAIT: Duration = Duration::from_secs(1);
const INDEX_WAIT_BYTES: u64 = 16 << 20;
const INDEX_POLL: Duration = Duration::from_millis(3);

/// What is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A message id, in one topic or in all.
    Id {
        id: String,
        topic: Option<TopicName>,
    },
    Key(KeyQuery),
    /// One place, in each broker group.
    Place {
        topic: TopicName,
        queue: QueueId,
        offset: QueueOffset,
    },
    /// The first message of each queue that was visible at this time or later.
    Time {
        topic: TopicName,
        at: UtcMillis,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyQuery {
    pub topic: TopicName,
    pub key: String,
    /// Visible at this time or later.
    pub from: Option<UtcMillis>,
    /// Visible at this time or earlier.
    pub to: Option<UtcMillis>,
    /// 1 to [`QUERY_MAX`].
    pub limit: usize,
    /// Those that lie first in the log first, instead of last.
    pub oldest_first: bool,
}

/// What all broker groups have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub found: Vec<FoundMessage>,
    /// One for each broker group.
    pub parts: Vec<AnswerPart>,
}

/// How far a broker group's answer reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerPart {
    pub broker_group: BrokerGroupName,
    /// Whether nothing is missing of what was acknowledged before the question.
    pub complete: bool,
    /// Everything up to this stamp was looked at; `None` when nothing was.
    pub complete_until: Option<UtcMillis>,
    /// Why it is not complete.
    pub why: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundMessage {
    pub broker_group: BrokerGroupName,
    pub state: FoundState,
    pub topic: TopicName,
    pub message_id: String,
    /// Where its record lies, or lay, in the log.
    pub position: Option<LogPosition>,
    pub queue: Option<QueueId>,
    /// `None` where it is not known: it has none yet, or it could not be found out.
    pub offset: Option<QueueOffset>,
    /// When it became visible.
    pub stored: Option<UtcMillis>,
    /// As it was sent; only of what is visible.
    pub message: Option<Message>,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundState {
    Visible,
    /// Its time has not come.
    Delayed {
        due: UtcMillis,
    },
    /// Nobody has committed it.
    Half,
    /// It was there and has left: with retention, or with its topic.
    Left,
    /// Delayed, transactional or long under way, and too long ago to know what became of it.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FindError {
    #[error(transparent)]
    NoTopic(#[from] NoTopic),
}

impl Wanted {
    pub(super) fn topic(&self) -> Option<&TopicName> {
        match self {
            Self::Id { topic, .. } => topic.as_ref(),
            Self::Key(KeyQuery { topic, .. })
            | Self::Place { topic, .. }
            | Self::Time { topic, .. } => Some(topic),
        }
    }

    /// Whether the index is needed for it.
    fn by_hash(&self) -> bool {
        matches!(self, Self::Id { .. } | Self::Key(_))
    }

    /// In the order in which they were asked for, and not more.
    pub(super) fn arrange(&self, found: &mut Vec<FoundMessage>) {
        let newest_first = match self {
            Self::Key(query) => !query.oldest_first,
            _ => false,
        };
        // Logs have no common order; within one the place tells it, among several the time.
        found.sort_by_key(|one| (one.stored, one.broker_group.clone(), one.position));
        if newest_first {
            found.reverse();
        }
        let limit = if let Self::Key(query) = self { query.limit } else { QUERY_MAX };
        found.truncate(limit);
    }
}

impl AnswerPart {
    fn incomplete(broker_group: &BrokerGroupName, why: impl ToString) -> Self {
        Self {
            broker_group: broker_group.clone(),
            complete: false,
            complete_until: None,
            why: Some(why.to_string()),
        }
    }
}

impl Answer {
    pub fn is_complete(&self) -> bool {
        self.parts.iter().all(|part| part.complete)
    }
}

/// What a search gives: messages, up to where it looked, and what it left out.
#[derive(Debug, Default)]
struct Looked {
    found: Vec<FoundMessage>,
    until: Option<(LogPosition, UtcMillis)>,
    left_out: Option<String>,
}

impl Replica {
    pub(super) async fn find(&self, wanted: &Wanted) -> (Vec<FoundMessage>, AnswerPart) {
        if let Err(error) = self.catch_up().await {
            return (Vec::new(), AnswerPart::incomplete(&self.name, error));
        }
        let (end, stamp) = self.group.read(|state| (state.log_end(), state.stamp()));
        if wanted.by_hash() {
            self.index_reaches(end).await;
        }
        let (replica, wanted) = (self.clone(), wanted.clone());
        // Whatever is read may have to come from the disk.
        let looking = tokio::task::spawn_blocking(move || replica.look(&wanted)).await;
        let looked = looking.map_err(|error| error.to_string()).flatten();
        let Looked { found, until, left_out } = match looked {
            Ok(looked) => looked,
            Err(why) => return (Vec::new(), AnswerPart::incomplete(&self.name, why)),
        };
        let (until, behind) = match until {
            Some((position, until)) if position < end => (until, Some(end.since(position))),
            _ => (stamp, None),
        };
        let behind = behind.map(|bytes| {
            format!("the index of node {} has {bytes} bytes of log to read", self.node())
        });
        let why = left_out.or(behind);
        let part = AnswerPart {
            broker_group: self.name.clone(),
            complete: why.is_none(),
            complete_until: Some(until),
            why,
        };
        (found, part)
    }
}

impl Inner {
    /// Waits for an index that is about to be there.
    async fn index_reaches(&self, end: LogPosition) {
        let Some(index) = &self.index else { return };
        let deadline = Instant::now() + INDEX_WAIT;
        let is_near = || {
            let at = index.reached().position;
            at < end && end.since(at) <= INDEX_WAIT_BYTES
        };
        while is_near() && Instant::now() < deadline {
            tokio::time::sleep(INDEX_POLL).await;
        }
    }

    fn look(&self, wanted: &Wanted) -> Result<Looked, String> {
        match wanted {
            Wanted::Id { .. } | Wanted::Key(_) => ByHash::new(self, wanted)?.look(),
            Wanted::Place { topic, queue, offset } => {
                let found = self.at_place(topic, *queue, *offset)?;
                Ok(Looked { found: found.into_iter().collect(), ..Looked::default() })
            }
            Wanted::Time { topic, at } => self.at_time(topic, *at),
        }
    }

    fn at_time(&self, topic: &TopicName, at: UtcMillis) -> Result<Looked, String> {
        let queues = self.group.read(|state| state.topic(topic).map_or(0, |topic| topic.queues));
        let mut looked = Looked::default();
        for queue in (0..queues).map(QueueId::new) {
            let Some(id) = self.group.read(|state| state.topic(topic).map(|topic| topic.id)) else {
                break;
            };
            let first = Units::of(self, id, queue).first_visible(at)?;
            looked.found.extend(self.at_place(topic, queue, first)?);
        }
        Ok(looked)
    }

    /// The message at a place; `None` where the queue has not come to yet.
    fn at_place(
        &self,
        topic: &TopicName,
        queue: QueueId,
        offset: QueueOffset,
    ) -> Result<Option<FoundMessage>, String> {
        let unit = self.group.read(|state| {
            let id = state.topic(topic).map(|topic| topic.id)?;
            if offset < state.queue_start(id, queue) {
                return Some(Ok(None));
            }
            let units = state.units(id, queue, offset, 1);
            units.map(|units| units.first().map(|unit| Some(state.locate(*unit)))).transpose()
        });
        let left = FoundMessage {
            broker_group: self.name.clone(),
            state: FoundState::Left,
            topic: topic.clone(),
            message_id: String::new(),
            position: None,
            queue: Some(queue),
            offset: Some(offset),
            stored: None,
            message: None,
        };
        let unit = match unit.transpose().map_err(|error| units::unreadable(&error))? {
            None => return Ok(None),
            Some(None) => return Ok(Some(left)),
            Some(Some(unit)) => unit,
        };
        let Some(message) = self.message_at(unit.position, unit.size)? else {
            return Ok(Some(left));
        };
        Ok(Some(FoundMessage {
            state: FoundState::Visible,
            message_id: message.message_id.clone(),
            position: Some(unit.position),
            stored: Some(unit.visible),
            message: Some(message),
            ..left
        }))
    }
}
