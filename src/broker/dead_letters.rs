//! Dead letters in one broker group: what is known of them, and sending them back to their group.

use std::collections::BTreeSet;

use bytes::Bytes;
use tokio::time::Instant;

use crate::base::{
    BrokerGroupName, GroupId, GroupName, Millis, QueueId, QueueOffset, TopicId, TopicName,
    UtcMillis,
};
use crate::broker::Replica;
use crate::broker::error::{GroupError, LimitError, Unavailable};
use crate::broker::propose::{unavailable, unexpected};
use crate::broker::remote::Declined;
use crate::command::{
    Command, CommandError, DeathReason, Reader, Redrive, Redriven, Refusal, Reply, UpdateGroup,
    Writer,
};
use crate::machine::{DeadLetter, REDRIVE_MAX};
use crate::message::{Message, decode_record};

/// Rows that are looked at before the state is let go of for a moment.
const SCAN: usize = 4096;
/// How long a redrive may take whose leader goes: the next one is asked.
const REDRIVE_TIME: Millis = Millis::from_secs(8);
/// Pause before a leader is looked for again.
const PAUSE: Millis = Millis::new(100);

/// What is known of how a message became a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeathFacts {
    /// The topic that it came from.
    pub topic: TopicName,
    pub queue: QueueId,
    pub offset: QueueOffset,
    /// Deliveries that it got.
    pub attempts: u32,
    pub reason: DeathReason,
    pub died: UtcMillis,
}

/// Which dead letters of a group; what is empty or absent stands for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterFilter {
    /// The topic that they came from.
    pub topic: Option<TopicName>,
    /// When they died: not before the first, and before the second.
    pub from: Option<UtcMillis>,
    pub until: Option<UtcMillis>,
    /// In the topic of dead letters.
    pub offsets: Vec<QueueOffset>,
    pub message_ids: Vec<String>,
    pub broker_groups: Vec<BrokerGroupName>,
}

/// Where a list of dead letters goes on: behind this one. As text `NAME:OFFSET`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterCursor {
    pub broker_group: BrokerGroupName,
    pub offset: QueueOffset,
}

/// What one page may hold.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) letters: usize,
    /// Bytes of bodies; without it, letters come without them.
    pub(super) bytes: Option<usize>,
    /// The bytes are used up.
    pub(super) cut: bool,
}

impl Room {
    /// Takes a place in the page; the last one may have more bytes than are left.
    fn take(&mut self, message: &mut Message) {
        self.letters -= 1;
        match &mut self.bytes {
            None => message.body = Bytes::new(),
            Some(left) => {
                *left = left.saturating_sub(message.body.len());
                self.cut = *left == 0;
            }
        }
    }

    fn is_full(&self) -> bool {
        self.letters == 0 || self.cut
    }
}

/// A part of a list, and whether more may follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterPage {
    pub letters: Vec<DeadLetterInfo>,
    pub more: bool,
}

/// One dead letter, read; without its body where that was not asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterInfo {
    /// Where it is, and its offset in the topic of dead letters.
    pub at: LetterCursor,
    pub facts: DeathFacts,
    pub message: Message,
}

/// What came of sending one back; `None` when it was only asked what would be tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedrivenLetter {
    pub letter: DeadLetterInfo,
    pub outcome: Option<Redriven>,
}

/// Other settings for a group; what is absent stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupChange {
    pub attempts_max: Option<u32>,
    pub backoff: Option<crate::command::Backoff>,
    /// 0 stands for as long as the log is kept.
    pub dead_keep: Option<Millis>,
}

impl LetterCursor {
    pub fn parse(text: &str) -> Result<Self, LimitError> {
        let parse = || {
            let (name, offset) = text.rsplit_once(':')?;
            let offset = QueueOffset::new(offset.parse().ok()?);
            Some(Self { broker_group: BrokerGroupName::new(name).ok()?, offset })
        };
        let allowed =
            "a broker group and an offset, as a list of dead letters shows them".to_owned();
        let odd = LimitError { what: "place to go on behind", value: text.to_owned(), allowed };
        parse().ok_or(odd)
    }
}

impl std::fmt::Display for LetterCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.broker_group, self.offset)
    }
}

impl DeathFacts {
    pub(super) fn of(letter: &DeadLetter) -> Self {
        Self {
            topic: letter.origin_name.clone(),
            queue: letter.queue,
            offset: letter.offset,
            attempts: letter.attempts,
            reason: letter.reason,
            died: letter.died,
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.put(&self.topic);
        writer.put(&self.queue);
        writer.put(&self.offset);
        writer.u32(self.attempts);
        writer.put(&self.reason);
        writer.put(&self.died);
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            topic: reader.get()?,
            queue: reader.get()?,
            offset: reader.get()?,
            attempts: reader.u32()?,
            reason: reader.get()?,
            died: reader.get()?,
        })
    }
}

impl LetterFilter {
    /// All but the message ids, for which the records would have to be read.
    fn may_match(&self, letter: &DeadLetter) -> bool {
        self.topic.as_ref().is_none_or(|topic| *topic == letter.origin_name)
            && self.from.is_none_or(|from| from <= letter.died)
            && self.until.is_none_or(|until| letter.died < until)
    }

    fn matches(&self, message: &Message) -> bool {
        self.message_ids.is_empty() || self.message_ids.contains(&message.message_id)
    }
}

impl Replica {
    /// Dead letters of a group, as many as there is room for, in the order of their deaths, from the
    /// one behind `after`; none where the group is not.
    pub(super) async fn dead_letters(
        &self,
        group: &GroupName,
        filter: &LetterFilter,
        mut after: Option<QueueOffset>,
        room: &mut Room,
    ) -> Result<Vec<DeadLetterInfo>, Unavailable> {
        self.catch_up().await?;
        let Some(ids) = self.letters_of(group) else { return Ok(Vec::new()) };
        let mut infos = Vec::new();
        while !room.is_full() {
            let (found, last) = self.scan(ids, filter, after, room.letters);
            for (offset, letter) in found {
                let Some(mut info) = self.read_letter(offset, &letter, filter)? else { continue };
                room.take(&mut info.message);
                infos.push(info);
                if room.is_full() {
                    break;
                }
            }
            if last.is_none() {
                break;
            }
            after = last;
        }
        Ok(infos)
    }

    fn letters_of(&self, group: &GroupName) -> Option<(GroupId, TopicId)> {
        self.group.read(|state| {
            let group = state.group(group)?.id;
            Some((group, state.dead_letters_topic(group)?))
        })
    }

    /// Some rows that may match, and where to go on if there may be more.
    fn scan(
        &self,
        (group, topic): (GroupId, TopicId),
        filter: &LetterFilter,
        after: Option<QueueOffset>,
        wanted: usize,
    ) -> (Vec<(QueueOffset, DeadLetter)>, Option<QueueOffset>) {
        let mut found = Vec::new();
        self.group.read(|state| {
            if !filter.offsets.is_empty() {
                let behind = |offset: &QueueOffset| after.is_none_or(|after| after < *offset);
                let named: BTreeSet<_> = filter.offsets.iter().copied().filter(behind).collect();
                for offset in named {
                    let letter = state.dead_letter(topic, offset);
                    let letter = letter.filter(|letter| filter.may_match(letter));
                    found.extend(letter.map(|letter| (offset, letter.clone())));
                    if found.len() == wanted {
                        return (std::mem::take(&mut found), Some(offset));
                    }
                }
                return (std::mem::take(&mut found), None);
            }
            for (count, (offset, letter)) in (1..).zip(state.dead_letters(group, after)) {
                if filter.may_match(letter) {
                    found.push((offset, letter.clone()));
                }
                if count == SCAN || found.len() == wanted {
                    return (std::mem::take(&mut found), Some(offset));
                }
            }
            (std::mem::take(&mut found), None)
        })
    }

    fn read_letter(
        &self,
        offset: QueueOffset,
        letter: &DeadLetter,
        filter: &LetterFilter,
    ) -> Result<Option<DeadLetterInfo>, Unavailable> {
        // Gone by retention since it was listed.
        let Some(record) = self.record(letter.unit).map_err(declined)? else { return Ok(None) };
        let stored = decode_record(&record).map_err(|error| Unavailable {
            reason: format!("the record of dead letter {offset} cannot be read: {error}"),
            outcome_unknown: false,
        })?;
        let at = LetterCursor { broker_group: self.name.clone(), offset };
        let facts = DeathFacts::of(letter);
        let info = DeadLetterInfo { at, facts, message: stored.message };
        Ok(filter.matches(&info.message).then_some(info))
    }

    /// Sends these back, at most as many as one entry takes. What another leader may have done
    /// already is not reported as missing.
    pub(super) async fn redrive(
        &self,
        group: &GroupName,
        letters: Vec<DeadLetterInfo>,
    ) -> Result<Vec<RedrivenLetter>, Unavailable> {
        assert!(letters.len() <= REDRIVE_MAX, "pages are no longer than what one entry takes");
        let deadline = Instant::now() + REDRIVE_TIME.duration();
        let mut unsure = false;
        loop {
            let Some((group, topic)) = self.letters_of(group) else {
                return Ok(told(letters, &[], Redriven::NotFound));
            };
            let offsets = letters.iter().map(|letter| letter.at.offset).collect();
            let redrive = Command::Redrive(Redrive { group, topic, letters: offsets });
            let error = match self.group.propose(redrive, deadline).await {
                Ok(Reply::Redriven(outcomes)) => {
                    // These were there before the first try.
                    let missing = if unsure { Redriven::Done } else { Redriven::NotFound };
                    return Ok(told(letters, &outcomes, missing));
                }
                Ok(Reply::Refused(Refusal::NoGroup { .. })) => {
                    return Ok(told(letters, &[], Redriven::NotFound));
                }
                Ok(other) => return Err(unexpected(&other)),
                Err(error) => unavailable(&error),
            };
            unsure |= error.outcome_unknown;
            if Instant::now() + PAUSE.duration() >= deadline {
                return Err(Unavailable { outcome_unknown: unsure, ..error });
            }
            self.leader_changed(PAUSE).await;
        }
    }

    /// How the group's messages are to fail from now on.
    pub(super) async fn update_group(
        &self,
        name: &GroupName,
        change: &GroupChange,
    ) -> Result<(), GroupError> {
        use crate::broker::error::NoGroup;
        let group = self.group.read(|state| state.group(name).map(|group| group.id));
        let group = group.ok_or_else(|| NoGroup { group: name.clone() })?;
        let GroupChange { attempts_max, backoff, dead_keep } = change.clone();
        let update = UpdateGroup { group, attempts_max, backoff, dead_keep };
        let reply = self.group.propose(Command::UpdateGroup(update), self.default_deadline());
        match reply.await.map_err(|error| unavailable(&error))? {
            Reply::Done => Ok(()),
            Reply::Refused(Refusal::NoGroup { .. }) => Err(NoGroup { group: name.clone() }.into()),
            Reply::Refused(Refusal::Limit { what, limit }) => {
                let allowed = limit.to_string();
                Err(LimitError { what: "a consumer group", value: what, allowed }.into())
            }
            other => Err(unexpected(&other).into()),
        }
    }

    /// What is known of a message that a topic for dead letters has.
    pub(super) fn facts(&self, topic: TopicId, offset: QueueOffset) -> Option<DeathFacts> {
        self.group.read(|state| state.dead_letter(topic, offset).map(DeathFacts::of))
    }
}

fn told(
    letters: Vec<DeadLetterInfo>,
    outcomes: &[Redriven],
    missing: Redriven,
) -> Vec<RedrivenLetter> {
    let mut outcomes = outcomes.iter().copied();
    let told = |letter| {
        let outcome = outcomes.next().unwrap_or(Redriven::NotFound);
        let outcome = if outcome == Redriven::NotFound { missing } else { outcome };
        RedrivenLetter { letter, outcome: Some(outcome) }
    };
    letters.into_iter().map(told).collect()
}

fn declined(declined: Declined) -> Unavailable {
    Unavailable { reason: format!("{declined:?}"), outcome_unknown: false }
}

/// What became dead letters is told once, by name.
pub(super) fn count(replica: &Replica) {
    let dead = std::mem::take(&mut *replica.dead.lock());
    for ((group, topic), count) in dead {
        let names = replica.group.read(|state| {
            let (group, topic) = (state.group_by_id(group)?, state.topic_by_id(topic)?);
            Some((group.name.clone(), topic.name.clone()))
        });
        let Some((group, topic)) = names else { continue };
        crate::metrics::DEAD_LETTERS.add([topic.as_str(), group.as_str()], count);
        if replica.serving() {
            tracing::info!(%topic, %group, count, "messages became dead letters");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_to_go_on_behind_is_a_name_and_an_offset() {
        let cursor = LetterCursor::parse("group-0:17").unwrap();
        assert_eq!((cursor.broker_group.as_str(), cursor.offset.get()), ("group-0", 17));
        assert_eq!(cursor.to_string(), "group-0:17");
        for odd in ["", "17", ":17", "group-0:", "group-0:x", "group 0:1"] {
            let error = LetterCursor::parse(odd).unwrap_err();
            assert!(error.to_string().contains(odd), "{error}");
        }
    }
}
