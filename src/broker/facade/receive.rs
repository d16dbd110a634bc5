//! A receive takes from every broker group that has the topic.
//!
//! With several of them nothing may be handed out by one while another one's messages are already
//! on their way to the client. So the groups are only *watched* together, which takes nothing and
//! can be given up at any moment, and asked one at a time once one of them has something.

use std::time::Duration;

use futures::future::{FutureExt, join_all, select_all};
use tokio::time::{Instant, sleep_until, timeout};

use crate::base::{GroupName, TopicName};
use crate::broker::api::{Delivered, ReceiveRequest};
use crate::broker::error::{LimitError, ReceiveError};
use crate::broker::receive::AUTO_RENEW_STEP;
use crate::broker::{Broker, Gone, RECEIVE_BATCH_MAX, Replica};
use crate::filter::Filter;

/// How long the group whose turn it is may take to say whether it has something, so that a node
/// that hangs does not hold back the others' messages.
const FIRST_LOOK: Duration = Duration::from_millis(50);
/// Pause after a group had something to watch and nothing to give: another consumer was faster, or
/// a limit is reached.
const FRUITLESS_PAUSE: Duration = Duration::from_millis(20);

impl Broker {
    /// Waits until something is there, the polling time is over, or the asker is gone (then an
    /// empty list). It must be heard to its end: what it hands out for an asker that is gone has to
    /// be given back.
    pub async fn receive(
        &self,
        mut request: ReceiveRequest,
        gone: &Gone,
    ) -> Result<Vec<Delivered>, ReceiveError> {
        let filter = request.filter.parse()?;
        if request.batch == 0 {
            let allowed = format!("1 to {RECEIVE_BATCH_MAX}");
            return Err(LimitError { what: "batch size", value: "0".into(), allowed }.into());
        }
        request.batch = request.batch.min(RECEIVE_BATCH_MAX);
        if request.auto_renew {
            request.invisible = AUTO_RENEW_STEP;
        }
        if request.attempt_id.is_none() {
            // A lost answer or a change of leader must not hand the messages out twice.
            request.attempt_id = Some(self.fresh_id());
        }
        self.resolve_topic(&request.topic, self.default_deadline()).await?;
        self.resolve_group(&request.group, self.default_deadline()).await?;
        let deadline = Instant::now() + request.poll;
        let sources = self.sources(&request.topic, &request.group).await?;
        match sources[..] {
            // Here a poll can be left at any time; one under way at another node cannot.
            [only] if only.serving() => only.receive(request, &filter, deadline, gone).await,
            [only] => {
                let delivered = take_now(only, &request, &filter).await?;
                if !delivered.is_empty() {
                    return Ok(delivered);
                }
                receive_from_any(sources, request, &filter, (deadline, gone)).await
            }
            _ => {
                let delivered = take_first(sources[0], &request, &filter).await?;
                if !delivered.is_empty() {
                    return Ok(delivered);
                }
                receive_from_any(sources, request, &filter, (deadline, gone)).await
            }
        }
    }

    /// The replicas to take from, beginning with the one whose turn it is. Where the topic is and
    /// the consumer group is not, the group is made as everywhere else.
    pub(super) async fn sources(
        &self,
        topic: &TopicName,
        group: &GroupName,
    ) -> Result<Vec<&Replica>, ReceiveError> {
        let mut sources: Vec<&Replica> =
            self.0.replicas.iter().filter(|replica| replica.knows_topic(topic)).collect();
        if sources.is_empty() {
            return Err(crate::broker::NoTopic { topic: topic.clone() }.into());
        }
        let missing = sources.iter().filter(|replica| !replica.knows_group(group));
        let made = missing.map(|replica| replica.ensure_group(group, self.group_settings(group)));
        // A broker group without a leader is looked at again by the next poll.
        drop(join_all(made).await);
        let turn = self.turn(sources.len());
        sources.rotate_left(turn);
        Ok(sources)
    }

    /// 128 random bits as text.
    pub(super) fn fresh_id(&self) -> String {
        let entropy = &self.0.env.entropy;
        format!("{:016x}{:016x}", entropy.u64(), entropy.u64())
    }
}

/// What the group has whose turn it is, if it says soon that it has something.
async fn take_first(
    first: &Replica,
    request: &ReceiveRequest,
    filter: &Filter,
) -> Result<Vec<Delivered>, ReceiveError> {
    match timeout(FIRST_LOOK, first.watch(request, filter, Instant::now())).await {
        Ok(true) => take_now(first, request, filter).await,
        Ok(false) | Err(_) => Ok(Vec::new()),
    }
}

async fn receive_from_any(
    sources: Vec<&Replica>,
    request: ReceiveRequest,
    filter: &Filter,
    (deadline, gone): (Instant, &Gone),
) -> Result<Vec<Delivered>, ReceiveError> {
    loop {
        let watches = sources.iter().map(|source| {
            let watch = source.watch(&request, filter, deadline);
            watch.map(move |ready| (*source, ready)).boxed()
        });
        let (source, ready) = tokio::select! {
            outcome = first_ready(watches.collect()) => outcome,
            () = gone.told() => return Ok(Vec::new()),
        };
        if !ready {
            return Ok(Vec::new());
        }
        let delivered = take_now(source, &request, filter).await?;
        if !delivered.is_empty() {
            return Ok(delivered);
        }
        let again = Instant::now() + FRUITLESS_PAUSE;
        if again >= deadline {
            return Ok(Vec::new());
        }
        sleep_until(again).await;
    }
}

/// The first that is ready, or the last to give up.
async fn first_ready<'a>(
    mut watches: Vec<futures::future::BoxFuture<'a, (&'a Replica, bool)>>,
) -> (&'a Replica, bool) {
    loop {
        let (outcome, _, rest) = select_all(watches).await;
        if outcome.1 || rest.is_empty() {
            return outcome;
        }
        watches = rest;
    }
}

/// What is there now, without waiting for more. A leader that was asked and is gone is another
/// matter: it may have handed something out, so the next one is waited for and asked for the same
/// attempt, for a moment.
async fn take_now(
    source: &Replica,
    request: &ReceiveRequest,
    filter: &Filter,
) -> Result<Vec<Delivered>, ReceiveError> {
    let now = ReceiveRequest { poll: Duration::ZERO, ..request.clone() };
    match source.receive(now, filter, Instant::now(), &Gone::never()).await {
        // Nobody leads it for longer than that; the other groups are served meanwhile.
        Err(ReceiveError::Unavailable(error)) if !error.outcome_unknown => Ok(Vec::new()),
        outcome => outcome,
    }
}
