//! Instances that see everything read from every broker group that has the topic.

use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all, select_all};
use tokio::time::{Instant, timeout};

use crate::broker::Broker;
use crate::broker::broadcast::{
    CommitPlace, FETCH_MAX, FetchPlace, FetchRequest, FetchedPart, InstancePlace, LeaveRequest,
    PlaceRequest, Wish,
};
use crate::broker::error::{LimitError, NoTopic, ReceiveError};
use crate::command::JoinAt;
use crate::filter::Filter;
use crate::machine::QUEUES_MAX;

/// How long the broker group whose turn it is may take to say what it has.
const FIRST_LOOK: Duration = Duration::from_millis(50);

type Fetching<'a> = BoxFuture<'a, Result<FetchedPart, ReceiveError>>;

impl Broker {
    /// Waits until one of the broker groups has something, or the polling time is over. One part
    /// with messages, or all that answered without. It may be given up at any moment.
    pub async fn fetch(&self, request: FetchRequest) -> Result<Vec<FetchedPart>, ReceiveError> {
        let filter = Filter::tags(&request.filter)?;
        if request.max == 0 {
            let allowed = format!("1 to {FETCH_MAX}");
            return Err(
                LimitError { what: "number of messages", value: "0".into(), allowed }.into()
            );
        }
        self.check_places(request.places.iter().map(|place| place.positions.len()))?;
        let deadline = Instant::now() + request.poll;
        let mut sources = Vec::with_capacity(request.places.len());
        for place in &request.places {
            let replica = self.named(std::slice::from_ref(&place.broker_group));
            let replica = replica.map_err(|error| LimitError {
                what: "broker group",
                value: place.broker_group.to_string(),
                allowed: error.to_string(),
            })?;
            sources.push((replica[0], wish(&request, place)));
        }
        if sources.is_empty() {
            return Err(NoTopic { topic: request.topic }.into());
        }
        let turn = self.turn(sources.len());
        sources.rotate_left(turn);
        if let [(first, wish), _, ..] = &sources[..] {
            // So that one that always has something does not hide the others.
            let look = first.fetch(wish.clone(), &filter, Instant::now());
            if let Ok(Ok(part)) = timeout(FIRST_LOOK, look).await
                && !part.messages.is_empty()
            {
                return Ok(vec![part]);
            }
        }
        let fetching = sources.iter().map(|(replica, wish)| -> Fetching<'_> {
            replica.fetch(wish.clone(), &filter, deadline).boxed()
        });
        first_part(fetching.collect()).await
    }

    /// Tells every broker group that has the topic that an instance lives, and how far it is.
    pub async fn place_instance(
        &self,
        request: &PlaceRequest,
    ) -> Result<Vec<InstancePlace>, ReceiveError> {
        self.check_places(request.places.iter().map(|place| place.positions.len()))?;
        let asks = request.places.is_empty();
        if asks {
            self.resolve_topic(&request.topic, self.default_deadline()).await?;
            self.resolve_group(&request.group, self.default_deadline()).await?;
            // A broker group that is left out would be read from too late.
            self.catch_up().await?;
        }
        let sources = self.sources(&request.topic, &request.group).await?;
        let placed = sources.iter().map(|replica| {
            let of_replica = |place: &&CommitPlace| place.broker_group == replica.name;
            let place = request.places.iter().find(of_replica);
            // Where the topic came to while the instance was there, nothing is to be missed.
            let begin = if asks || place.is_some() { request.begin } else { JoinAt::Earliest };
            replica.place_instance(request, (place, begin))
        });
        let mut placed = join_all(placed).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        placed.sort_by(|one, other| one.broker_group.cmp(&other.broker_group));
        Ok(placed)
    }

    /// The instance's positions go at once.
    pub async fn leave_instance(&self, request: &LeaveRequest) -> Result<(), ReceiveError> {
        self.check_places(request.incarnations.iter().map(|_| 0))?;
        let leaving = request.incarnations.iter().filter_map(|(broker_group, incarnation)| {
            let replica = self.0.replicas.iter().find(|replica| replica.name == *broker_group)?;
            Some(replica.leave_instance(request, *incarnation))
        });
        join_all(leaving).await.into_iter().collect()
    }

    /// Each place costs a request of its own, and each position is looked at: no more than there can
    /// be.
    fn check_places(
        &self,
        positions: impl ExactSizeIterator<Item = usize>,
    ) -> Result<(), LimitError> {
        let most = |what, value: usize, most: usize| {
            let allowed = format!("at most {most}");
            if value <= most {
                Ok(())
            } else {
                Err(LimitError { what, value: value.to_string(), allowed })
            }
        };
        most("number of broker groups", positions.len(), self.0.replicas.len())?;
        let mut positions = positions;
        positions.try_for_each(|count| most("number of positions", count, QUEUES_MAX as usize))
    }
}

fn wish(request: &FetchRequest, place: &FetchPlace) -> Wish {
    Wish {
        topic: request.topic.clone(),
        group: request.group.clone(),
        filter: request.filter.clone(),
        positions: place.positions.clone(),
        max: request.max.min(FETCH_MAX),
        poll: request.poll,
    }
}

/// The first that has messages, or all that have none. An error counts only where nobody answers.
async fn first_part(mut fetching: Vec<Fetching<'_>>) -> Result<Vec<FetchedPart>, ReceiveError> {
    let mut without = Vec::new();
    let mut failed = None;
    while !fetching.is_empty() {
        let (outcome, _, rest) = select_all(fetching).await;
        match outcome {
            Ok(part) if !part.messages.is_empty() => return Ok(vec![part]),
            Ok(part) => without.push(part),
            Err(error) => failed = failed.or(Some(error)),
        }
        fetching = rest;
    }
    match failed {
        Some(error) if without.is_empty() => Err(error),
        _ => Ok(without),
    }
}
