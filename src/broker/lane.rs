//! The lane of deliveries: what queued while the previous proposal was under way shares an entry.
//!
//! Nothing waits for a timer: the first step goes at once, the ones behind it go together when it
//! is through.

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::base::Millis;
use crate::broker::error::Unavailable;
use crate::broker::propose::{self, unavailable};
use crate::command::{Command, Delivery, DeliveryOutcome, Reply};
use crate::raft::Group;

/// Steps that may share one entry. A checkout of 32 messages is about 2 KiB, so that an entry
/// stays within the preferred 64 KiB for checkouts and far below it for acknowledgements.
const STEPS_MAX: usize = 256;
/// Steps that may wait; beyond, callers wait to get in.
const WAITING_MAX: usize = 4096;
/// How long one proposal may take before its steps are answered as unknown.
const PROPOSAL_TIMEOUT: Millis = Millis::from_secs(5);

struct Step {
    delivery: Delivery,
    /// Nobody waits for it any longer.
    deadline: Instant,
    answer: oneshot::Sender<Result<DeliveryOutcome, Unavailable>>,
}

/// The sending end. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    steps: mpsc::Sender<Step>,
}

/// The task that drives the lane; it ends when all senders are gone.
#[derive(Debug)]
pub(super) struct LaneTask {
    steps: mpsc::Receiver<Step>,
}

pub(super) fn lane() -> (Lane, LaneTask) {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    (Lane { steps: sender }, LaneTask { steps: receiver })
}

impl Step {
    fn in_time(self, now: Instant) -> Option<Self> {
        if now < self.deadline {
            return Some(self);
        }
        let reason = "its time was over before its turn came".to_owned();
        drop(self.answer.send(Err(Unavailable { reason, outcome_unknown: false })));
        None
    }
}

impl Lane {
    /// Applied, or unavailable; the caller may give up waiting without undoing anything. What is
    /// not under way by its deadline is dropped.
    pub(super) async fn submit(
        &self,
        delivery: Delivery,
        deadline: Instant,
    ) -> Result<DeliveryOutcome, Unavailable> {
        let (answer, outcome) = oneshot::channel();
        let ended = || Unavailable { reason: "the node is stopping".into(), outcome_unknown: true };
        self.steps.send(Step { delivery, deadline, answer }).await.map_err(|_| ended())?;
        outcome.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl LaneTask {
    pub(super) async fn run(mut self, group: Group) {
        let mut steps = Vec::with_capacity(STEPS_MAX);
        while self.steps.recv_many(&mut steps, STEPS_MAX).await > 0 {
            let now = Instant::now();
            let (deliveries, answers): (Vec<_>, Vec<_>) = steps
                .drain(..)
                .filter_map(|step| step.in_time(now))
                .map(|step| (step.delivery, step.answer))
                .unzip();
            if deliveries.is_empty() {
                continue;
            }
            let outcomes = propose_all(&group, deliveries).await;
            match outcomes {
                Ok(outcomes) => {
                    assert_eq!(outcomes.len(), answers.len(), "one outcome for each step");
                    for (answer, outcome) in answers.into_iter().zip(outcomes) {
                        // A caller that stopped waiting needs no answer.
                        drop(answer.send(Ok(outcome)));
                    }
                }
                Err(error) => {
                    for answer in answers {
                        drop(answer.send(Err(error.clone())));
                    }
                }
            }
        }
    }
}

async fn propose_all(
    group: &Group,
    deliveries: Vec<Delivery>,
) -> Result<Vec<DeliveryOutcome>, Unavailable> {
    let deadline = Instant::now() + PROPOSAL_TIMEOUT.duration();
    match group.propose(Command::Deliveries(deliveries), deadline).await {
        Ok(Reply::Deliveries(outcomes)) => Ok(outcomes),
        Ok(other) => Err(propose::unexpected(&other)),
        Err(error) => Err(unavailable(&error)),
    }
}
