//! Where consumer groups stand: where they begin, resets, pauses, offsets of readers.

use std::io;

use tokio::time::Instant;

use crate::base::{
    BrokerGroupName, GroupId, GroupName, Millis, QueueId, QueueOffset, TopicId, TopicName,
    UtcMillis,
};
use crate::broker::Replica;
use crate::broker::error::{GroupError, LimitError, OffsetError, Unavailable};
use crate::broker::propose::{unavailable, unexpected};
use crate::broker::remote::Declined;
use crate::command::{Command, Refusal, Reply, Reset, Start, StoreOffset};
use crate::machine::{ResetPreview, State};

/// Pause before a reset whose outcome is not known is proposed again.
const AGAIN: Millis = Millis::new(100);

/// Where a group is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetTo {
    /// The first message that there is.
    Earliest,
    /// Behind the last one.
    Latest,
    /// The first message that became visible then or later.
    Time(UtcMillis),
    /// One beyond either end of a queue stands for that end.
    Offset(QueueOffset),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetRequest {
    pub group: GroupName,
    pub topic: TopicName,
    pub to: ResetTo,
    /// `None` for all.
    pub queue: Option<QueueId>,
    /// Where; none stands for all that have both.
    pub broker_groups: Vec<BrokerGroupName>,
    /// Say what would happen, and do nothing.
    pub dry_run: bool,
}

/// What a reset comes to in one broker group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetStep {
    pub broker_group: BrokerGroupName,
    /// How often the group has been reset in the topic, this time included where it was done.
    pub epoch: u32,
    pub queues: Vec<QueueReset>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueReset {
    pub queue: QueueId,
    /// The first message that the group was not done with.
    pub from: QueueOffset,
    pub to: QueueOffset,
    /// Messages that come again though they were handed out, or done with.
    pub again: u64,
    /// Messages that the group was not done with and does not get.
    pub passed_by: u64,
}

/// A reset with its offsets, so that repeating it means the same.
pub(super) struct ResetPlan {
    reset: Reset,
    pub(super) step: ResetStep,
}

impl Replica {
    /// It is decided afterwards where the group begins in the topic. To be called where the state is
    /// current: as the leader, or after [`super::replica::Inner::catch_up`].
    pub(super) async fn ensure_begun(
        &self,
        group: GroupId,
        topic: TopicId,
    ) -> Result<(), Declined> {
        let offsets = self.group.read(|state| begin(state, (group, topic)));
        let Some(offsets) = offsets.map_err(|error| self.storage(&error))? else { return Ok(()) };
        let start = Command::Start(Start { group, topic, offsets });
        match self.group.propose(start, self.default_deadline()).await {
            Ok(Reply::Done) => Ok(()),
            Ok(Reply::Refused(Refusal::NoGroup { .. })) => Err(Declined::NoGroup),
            Ok(Reply::Refused(Refusal::NoTopic { .. })) => Err(Declined::NoTopic),
            Ok(other) => Err(unexpected(&other).into()),
            Err(_) if !self.serving() => Err(Declined::NotLeader),
            Err(error) => Err(unavailable(&error).into()),
        }
    }

    /// The same for what is asked at any node; afterwards this node's state knows it as well.
    async fn begin_and_know(&self, group: GroupId, topic: TopicId) -> Result<(), Unavailable> {
        if self.group.read(|state| state.has_begun(group, topic)) {
            return Ok(());
        }
        match self.ensure_begun(group, topic).await {
            Ok(()) => self.catch_up().await,
            Err(Declined::Unavailable { reason, outcome_unknown }) => {
                Err(Unavailable { reason, outcome_unknown })
            }
            Err(_) => {
                let reason = "the group could not begin in the topic; ask again".to_owned();
                Err(Unavailable { reason, outcome_unknown: false })
            }
        }
    }

    /// `None` where the topic or the group does not exist. The state here must be current.
    pub(super) async fn plan_reset(
        &self,
        request: &ResetRequest,
    ) -> Result<Option<ResetPlan>, GroupError> {
        let Some((group, topic, queues)) = self.place_of(&request.group, &request.topic) else {
            return Ok(None);
        };
        let chosen = match request.queue {
            None => 0..queues,
            Some(queue) if queue.get() < queues => queue.get()..queue.get() + 1,
            Some(queue) => return Err(no_queue(queue, queues).into()),
        };
        if !request.dry_run {
            self.begin_and_know(group, topic).await?;
        }
        let previews = self.group.read(|state| {
            let preview = |queue| {
                let queue = QueueId::new(queue);
                let to = resolve(state, topic, queue, request.to)?;
                Ok((queue, preview(state, (group, topic), (queue, to))?))
            };
            chosen.map(preview).collect::<io::Result<Vec<_>>>()
        });
        let previews = previews.map_err(|error| unread(&error))?;
        let offsets = previews.iter().map(|(queue, preview)| (*queue, preview.to)).collect();
        let step = ResetStep {
            broker_group: self.name.clone(),
            epoch: self.group.read(|state| state.epoch(group, topic)),
            queues: previews.into_iter().map(|(queue, preview)| moved(queue, preview)).collect(),
        };
        Ok(Some(ResetPlan { reset: Reset { group, topic, offsets }, step }))
    }

    /// Repeated while its outcome is not known: twice is as good as once.
    pub(super) async fn reset(
        &self,
        plan: ResetPlan,
        deadline: Instant,
    ) -> Result<ResetStep, Unavailable> {
        let ResetPlan { reset, step } = plan;
        // Once it may have been taken, it may have been, whatever a later try says.
        let mut unsure = false;
        loop {
            let command = Command::Reset(reset.clone());
            let error = match self.group.propose(command, deadline).await {
                Ok(Reply::Reset { epoch }) => return Ok(ResetStep { epoch, ..step }),
                Ok(Reply::Refused(refusal)) => {
                    let reason = refusal.to_string();
                    return Err(Unavailable { reason, outcome_unknown: unsure });
                }
                Ok(other) => return Err(unexpected(&other)),
                Err(error) => unavailable(&error),
            };
            unsure |= error.outcome_unknown;
            if Instant::now() + AGAIN.duration() >= deadline {
                return Err(Unavailable { outcome_unknown: unsure, ..error });
            }
            self.leader_changed(AGAIN).await;
        }
    }

    /// Nothing where the group does not exist.
    pub(super) async fn pause_group(
        &self,
        name: &GroupName,
        paused: bool,
    ) -> Result<(), GroupError> {
        let Some(group) = self.group.read(|state| Some(state.group(name)?.id)) else {
            return Ok(());
        };
        let pause = Command::Pause { group, paused };
        match self.group.propose(pause, self.default_deadline()).await {
            // Deleted in the meantime.
            Ok(Reply::Done | Reply::Refused(_)) => Ok(()),
            Ok(other) => Err(unexpected(&other).into()),
            Err(error) => Err(unavailable(&error).into()),
        }
    }

    /// What a reader of the group stored last; without that, where the group is or begins. `None` when
    /// it has no place in the queue yet. The state here must be current.
    pub(super) fn offset_of_group(
        &self,
        (group, topic): (&GroupName, &TopicName),
        queue: QueueId,
    ) -> Result<Option<QueueOffset>, OffsetError> {
        let Some((group, topic, queues)) = self.place_of(group, topic) else { return Ok(None) };
        check_queue(queue, queues)?;
        let found = self.group.read(|state| {
            let pair = (group, topic);
            if let Some(stored) = state.stored_offset(pair, queue) {
                return Ok(Some(stored));
            }
            if let Some(begin) = begin_in(state, pair, queue)? {
                return Ok(Some(begin));
            }
            let here = || state.reset_preview(pair, queue, QueueOffset::ZERO).from;
            Ok(state.knows(pair).then(here))
        });
        found.map_err(|error: io::Error| unread(&error).into())
    }

    /// Everything before `offset` is done with.
    pub(super) async fn store_offset(
        &self,
        (group, topic): (&GroupName, &TopicName),
        (queue, offset): (QueueId, QueueOffset),
        deadline: Instant,
    ) -> Result<(), OffsetError> {
        let Some((group, topic, queues)) = self.place_of(group, topic) else {
            let reason = "the topic or the group is gone".to_owned();
            return Err(Unavailable { reason, outcome_unknown: false }.into());
        };
        check_queue(queue, queues)?;
        let end = self.group.read(|state| state.queue_end(topic, queue));
        if offset > end {
            return Err(OffsetError::Illegal { offset, end });
        }
        self.begin_and_know(group, topic).await?;
        let store = StoreOffset { group, topic, queue, offset };
        match self.group.propose(Command::StoreOffset(store), deadline).await {
            Ok(Reply::Done) => Ok(()),
            Ok(Reply::Refused(refusal)) => {
                let reason = refusal.to_string();
                Err(Unavailable { reason, outcome_unknown: false }.into())
            }
            Ok(other) => Err(unexpected(&other).into()),
            Err(error) => Err(unavailable(&error).into()),
        }
    }

    /// The state here must be current.
    pub(super) fn find_offset(
        &self,
        topic: &TopicName,
        queue: QueueId,
        to: ResetTo,
    ) -> Result<QueueOffset, OffsetError> {
        let found = self.group.read(|state| {
            let (id, queues) = state.topic(topic).map(|topic| (topic.id, topic.queues))?;
            Some((queues, resolve(state, id, queue, to)))
        });
        let Some((queues, offset)) = found else {
            return Err(crate::broker::NoTopic { topic: topic.clone() }.into());
        };
        check_queue(queue, queues)?;
        offset.map_err(|error| unread(&error).into())
    }

    fn place_of(&self, group: &GroupName, topic: &TopicName) -> Option<(GroupId, TopicId, u32)> {
        self.group.read(|state| {
            let topic = state.topic(topic)?;
            Some((state.group(group)?.id, topic.id, topic.queues))
        })
    }
}

/// Where a group would begin in a topic; `None` when that is decided.
fn begin(state: &State, pair: (GroupId, TopicId)) -> io::Result<Option<Vec<QueueOffset>>> {
    let queues = state.topic_by_id(pair.1).map_or(0, |topic| topic.queues);
    (0..queues).map(|queue| begin_in(state, pair, QueueId::new(queue))).collect()
}

/// The same for one queue.
fn begin_in(
    state: &State,
    (group, topic): (GroupId, TopicId),
    queue: QueueId,
) -> io::Result<Option<QueueOffset>> {
    if state.has_begun(group, topic) {
        return Ok(None);
    }
    state.group_start(group).map(|start| state.offset_at(topic, queue, start)).transpose()
}

/// What a reset would do, also where the group has not begun: there it would begin elsewhere.
fn preview(
    state: &State,
    pair: (GroupId, TopicId),
    (queue, to): (QueueId, QueueOffset),
) -> io::Result<ResetPreview> {
    let preview = state.reset_preview(pair, queue, to);
    let Some(from) = begin_in(state, pair, queue)? else { return Ok(preview) };
    let (from_number, to_number) = (from.get(), preview.to.get());
    let again = from_number.saturating_sub(to_number);
    Ok(ResetPreview { from, again, passed_by: to_number.saturating_sub(from_number), ..preview })
}

fn resolve(state: &State, topic: TopicId, queue: QueueId, to: ResetTo) -> io::Result<QueueOffset> {
    match to {
        ResetTo::Earliest => Ok(state.queue_start(topic, queue)),
        ResetTo::Latest => Ok(state.queue_end(topic, queue)),
        ResetTo::Time(time) => state.offset_at(topic, queue, time),
        ResetTo::Offset(offset) => Ok(offset),
    }
}

fn moved(queue: QueueId, preview: ResetPreview) -> QueueReset {
    let ResetPreview { from, to, again, passed_by } = preview;
    QueueReset { queue, from, to, again, passed_by }
}

/// This node lacks units for the moment: it takes over another one's state.
fn unread(error: &io::Error) -> Unavailable {
    let reason = format!("the queue cannot be read here at the moment: {error}; ask again");
    Unavailable { reason, outcome_unknown: false }
}

fn check_queue(queue: QueueId, queues: u32) -> Result<(), LimitError> {
    if queue.get() < queues { Ok(()) } else { Err(no_queue(queue, queues)) }
}

fn no_queue(queue: QueueId, queues: u32) -> LimitError {
    let allowed = format!("0 to {}, the queues of the topic", queues.saturating_sub(1));
    LimitError { what: "queue", value: queue.to_string(), allowed }
}
