//! What clients did and what they were told.
//!
//! `Ok` took effect. `Fail` certainly had no effect. Everything else is `Unknown`, for ever: a late
//! effect may still come.

use std::fmt;

/// Microseconds of true time.
pub(crate) type Micros = u64;

/// A message's body names its sender and the sender's count, so that no two are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Value {
    pub(crate) producer: u32,
    pub(crate) count: u32,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}.{}", self.producer, self.count)
    }
}

/// What a consumer asks for. A value's tag is whether its count is even.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    All,
    Even,
    Odd,
}

impl Wanted {
    /// The filter expression for it.
    pub(crate) fn filter(self) -> &'static str {
        match self {
            Self::All => "*",
            Self::Even => "even",
            Self::Odd => "odd",
        }
    }

    /// What a filter of the log stands for; `None` for one that nobody here asks for. Tags that are
    /// never sent say nothing.
    pub(crate) fn of(filter: &str) -> Option<Self> {
        let tags = |tag: &str| filter.split("||").any(|one| one.trim() == tag);
        match (filter == "*", tags("even"), tags("odd")) {
            (true, ..) | (_, true, true) => Some(Self::All),
            (_, true, false) => Some(Self::Even),
            (_, false, true) => Some(Self::Odd),
            (_, false, false) => None,
        }
    }

    pub(crate) fn has(self, value: Value) -> bool {
        match self {
            Self::All => true,
            Self::Even => value.count.is_multiple_of(2),
            Self::Odd => !value.count.is_multiple_of(2),
        }
    }
}

/// One queue of one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) topic: u32,
    pub(crate) queue: u32,
    pub(crate) offset: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "topic {} queue {} offset {}", self.topic, self.queue, self.offset)
    }
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    CreateTopic {
        topic: u32,
    },
    /// The same value may be sent again under the same message id.
    Send {
        topic: u32,
        value: Value,
    },
    Receive {
        group: u32,
        topic: u32,
        invisible: Micros,
        wants: Wanted,
    },
    Ack {
        group: u32,
        place: Place,
        attempt: u32,
    },
    /// Moves the end of a delivery.
    Hold {
        group: u32,
        place: Place,
        attempt: u32,
        invisible: Micros,
    },
    /// As [`What::Send`], to be visible not before `due`.
    SendDelayed {
        topic: u32,
        value: Value,
        due: Micros,
    },
    Recall {
        topic: u32,
        value: Value,
    },
    Reschedule {
        topic: u32,
        value: Value,
        due: Micros,
    },
    /// A transactional message; as a send, it may be repeated.
    Prepare {
        topic: u32,
        value: Value,
    },
    /// Commits it, or rolls it back.
    End {
        topic: u32,
        value: Value,
        commit: bool,
    },
    /// Waits to be asked what became of a transaction.
    Listen {
        topic: u32,
    },
    /// Where the queues of a topic start and end.
    Bounds {
        topic: u32,
    },
    CreateGroup {
        group: u32,
        /// It takes what comes after its creation only.
        latest: bool,
    },
    /// A consumer has tried often enough.
    GiveUp {
        group: u32,
        place: Place,
        attempt: u32,
    },
    /// Looks at the dead letters of a group.
    ListDead {
        group: u32,
    },
    /// Takes dead letters as messages of their topic.
    ReceiveDead {
        group: u32,
    },
    /// Puts dead letters back into their group.
    Redrive {
        group: u32,
    },
    Reset {
        group: u32,
        topic: u32,
        to: Start,
    },
    Pause {
        group: u32,
        paused: bool,
    },
}

/// Where a group is to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Earliest,
    Latest,
    /// Of every queue.
    Offset(u64),
    /// What became visible then or later.
    Time(Micros),
}

impl What {
    /// The message that this makes visible, if it takes effect: a commit is a send.
    pub(crate) fn shows(&self) -> Option<Value> {
        match self {
            Self::Send { value, .. }
            | Self::SendDelayed { value, .. }
            | Self::End { value, commit: true, .. } => Some(*value),
            _ => None,
        }
    }
}

/// One message that a receive was answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) place: Place,
    /// `None` when the body is not one that was ever made.
    pub(crate) value: Option<Value>,
    pub(crate) attempt: u32,
}

/// What was said of a delayed message that was recalled or moved to another time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Recalled,
    Rescheduled,
    AlreadyFired,
    NotFound,
}

/// A dead letter as somebody was told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeadLetter {
    /// Its offset in the dead-letter topic.
    pub(crate) letter: u64,
    pub(crate) origin: Place,
    pub(crate) attempts: u32,
}

/// One queue's bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueBounds {
    pub(crate) queue: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Sent(Place),
    Received(Vec<Delivery>),
    Bounds(Vec<QueueBounds>),
    /// With its recall handle.
    Scheduled(String),
    Ended(Ending),
    /// The transaction's id.
    Prepared(String),
    /// It was ended otherwise before.
    Decided {
        committed: bool,
    },
    NoTransaction,
    /// Of which message, if of any.
    Asked(Option<Value>),
    Dead(Vec<DeadLetter>),
    /// Offsets in the dead-letter topic, with what lies there.
    Letters(Vec<(u64, Option<Value>)>),
    /// Those that went back.
    Redriven(Vec<DeadLetter>),
    /// The queues, each with where it goes on.
    Reset(Vec<(u32, u64)>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok(Answer),
    Fail(String),
    Unknown(String),
}

/// One call of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) client: u32,
    pub(crate) what: What,
    pub(crate) invoked: Micros,
    /// `None` while nobody knows, which for a call without an answer is for ever.
    pub(crate) completed: Option<Micros>,
    pub(crate) outcome: Outcome,
}

impl Operation {
    pub(crate) fn answer(&self) -> Option<&Answer> {
        match &self.outcome {
            Outcome::Ok(answer) => Some(answer),
            Outcome::Fail(_) | Outcome::Unknown(_) => None,
        }
    }

    /// When it was over; an open one never is.
    pub(crate) fn ended(&self) -> Micros {
        self.completed.unwrap_or(Micros::MAX)
    }
}

/// All calls, in the order of their invocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) operations: Vec<Operation>,
}

impl History {
    /// Notes a call before it is made.
    pub(crate) fn invoke(&mut self, client: u32, what: What, now: Micros) -> usize {
        let outcome = Outcome::Unknown("no answer yet".to_owned());
        self.operations.push(Operation { client, what, invoked: now, completed: None, outcome });
        self.operations.len() - 1
    }

    pub(crate) fn complete(&mut self, call: usize, outcome: Outcome, now: Micros) {
        let operation = &mut self.operations[call];
        assert!(operation.completed.is_none(), "a call has one answer");
        operation.completed = Some(now);
        operation.outcome = outcome;
    }
}
