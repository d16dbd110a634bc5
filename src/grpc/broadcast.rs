//! `raftmq.v1.Broadcast`: reading for instances that each see everything. For consumers, so from
//! everywhere; only our own client speaks it.

use std::time::Duration;

use tonic::{Request, Response, Status};

use crate::base::{BrokerGroupName, ClientId, LogIndex, Millis, NameError, QueueId, QueueOffset};
use crate::broker::{
    Broker, CommitPlace, Delivered, FETCH_MAX, FetchPlace, FetchRequest, FetchedPart,
    InstancePlace, JoinAt, LEASE_MAX, LeaveRequest, PlaceRequest, ReceiveError,
};
use crate::message::BodyEncoding;
use crate::wire::raftmq as v1;

use super::admin::{group_name, topic_name};
use super::ending::Ending;
use super::receive::POLL_MAX;
use super::status::unavailable;

/// Shorter ones would end between two commits.
const LEASE_MIN: Millis = Millis::from_secs(1);

#[derive(Debug)]
pub(super) struct Broadcast {
    pub(super) broker: Broker,
    pub(super) ending: Ending,
}

#[tonic::async_trait]
impl v1::broadcast_server::Broadcast for Broadcast {
    async fn fetch(
        &self,
        request: Request<v1::BroadcastFetchRequest>,
    ) -> Result<Response<v1::BroadcastFetchResponse>, Status> {
        let request = fetch_request(request.into_inner())?;
        let mut ending = self.ending.clone();
        // A fetch takes nothing, so it may be left at any moment.
        let parts = tokio::select! {
            parts = Box::pin(self.broker.fetch(request)) => parts.map_err(|error| status(&error))?,
            () = ending.comes() => return Err(Status::unavailable("the node is ending")),
        };
        let parts = parts.into_iter().map(part).collect();
        Ok(Response::new(v1::BroadcastFetchResponse { parts }))
    }

    async fn commit(
        &self,
        request: Request<v1::BroadcastCommitRequest>,
    ) -> Result<Response<v1::BroadcastCommitResponse>, Status> {
        let request = place_request(request.into_inner())?;
        let placed = Box::pin(self.broker.place_instance(&request)).await;
        let places = placed.map_err(|error| status(&error))?.into_iter().map(place).collect();
        Ok(Response::new(v1::BroadcastCommitResponse { places }))
    }

    async fn leave(
        &self,
        request: Request<v1::BroadcastLeaveRequest>,
    ) -> Result<Response<v1::BroadcastLeaveResponse>, Status> {
        let request = request.into_inner();
        let incarnation = |place: v1::broadcast_leave_request::Place| {
            Ok((broker_group(&place.broker_group)?, LogIndex::new(place.incarnation)))
        };
        let request = LeaveRequest {
            topic: topic_name(&request.topic)?,
            group: group_name(&request.group)?,
            instance: instance(&request.instance)?,
            incarnations: request
                .places
                .into_iter()
                .map(incarnation)
                .collect::<Result<_, Status>>()?,
        };
        let left = Box::pin(self.broker.leave_instance(&request)).await;
        left.map_err(|error| status(&error))?;
        Ok(Response::new(v1::BroadcastLeaveResponse {}))
    }
}

fn fetch_request(request: v1::BroadcastFetchRequest) -> Result<FetchRequest, Status> {
    let place = |place: v1::broadcast_fetch_request::Place| {
        let broker_group = broker_group(&place.broker_group)?;
        Ok(FetchPlace { broker_group, positions: positions(&place.positions) })
    };
    if request.max == 0 || request.max > FETCH_MAX {
        let text =
            format!("the number of messages is {}; allowed is 1 to {FETCH_MAX}", request.max);
        return Err(Status::invalid_argument(text));
    }
    Ok(FetchRequest {
        topic: topic_name(&request.topic)?,
        group: group_name(&request.group)?,
        filter: request.filter,
        places: request.places.into_iter().map(place).collect::<Result<_, Status>>()?,
        max: request.max,
        poll: Duration::from_millis(request.poll).min(POLL_MAX),
    })
}

fn place_request(request: v1::BroadcastCommitRequest) -> Result<PlaceRequest, Status> {
    let lease = Millis::new(request.lease);
    if lease < LEASE_MIN || lease > LEASE_MAX {
        let text = format!("the lease is {lease}; allowed is {LEASE_MIN} to {LEASE_MAX}");
        return Err(Status::invalid_argument(text));
    }
    let place = |place: v1::broadcast_commit_request::Place| {
        Ok(CommitPlace {
            broker_group: broker_group(&place.broker_group)?,
            incarnation: LogIndex::new(place.incarnation),
            positions: positions(&place.positions),
        })
    };
    Ok(PlaceRequest {
        topic: topic_name(&request.topic)?,
        group: group_name(&request.group)?,
        instance: instance(&request.instance)?,
        lease,
        begin: if request.from_earliest { JoinAt::Earliest } else { JoinAt::Latest },
        attempt: request.attempt,
        seek: request.seek,
        places: request.places.into_iter().map(place).collect::<Result<_, Status>>()?,
    })
}

fn broker_group(name: &str) -> Result<BrokerGroupName, Status> {
    BrokerGroupName::new(name).map_err(bad_name)
}

fn instance(name: &str) -> Result<ClientId, Status> {
    ClientId::new(name).map_err(bad_name)
}

fn bad_name(error: NameError) -> Status {
    Status::invalid_argument(error.to_string())
}

fn positions(positions: &[v1::QueuePosition]) -> Vec<(QueueId, QueueOffset)> {
    let one = |at: &v1::QueuePosition| (QueueId::new(at.queue), QueueOffset::new(at.offset));
    positions.iter().map(one).collect()
}

fn told(positions: &[(QueueId, QueueOffset)]) -> Vec<v1::QueuePosition> {
    let one = |(queue, offset): &(QueueId, QueueOffset)| v1::QueuePosition {
        queue: queue.get(),
        offset: offset.get(),
    };
    positions.iter().map(one).collect()
}

fn part(part: FetchedPart) -> v1::broadcast_fetch_response::Part {
    v1::broadcast_fetch_response::Part {
        broker_group: part.broker_group.to_string(),
        messages: part.messages.into_iter().map(message).collect(),
        next: told(&part.next),
        lost: part.lost,
    }
}

fn message(delivered: Delivered) -> v1::BroadcastMessage {
    let Delivered { message, queue, offset, stored, .. } = delivered;
    v1::BroadcastMessage {
        message_id: message.message_id,
        body: message.body,
        gzip: message.encoding == BodyEncoding::Gzip,
        tag: message.tag,
        keys: message.keys,
        properties: message.properties.into_iter().collect(),
        message_group: message.message_group,
        priority: message.priority,
        queue: queue.get(),
        offset: offset.get(),
        stored: stored.get(),
        born: message.born.get(),
    }
}

fn place(place: InstancePlace) -> v1::broadcast_commit_response::Place {
    v1::broadcast_commit_response::Place {
        broker_group: place.broker_group.to_string(),
        incarnation: place.incarnation.get(),
        known: place.known,
        until: place.until.get(),
        lost: place.lost,
        positions: told(&place.positions),
    }
}

fn status(error: &ReceiveError) -> Status {
    match error {
        ReceiveError::NoTopic(_) | ReceiveError::NoGroup(_) => Status::not_found(error.to_string()),
        ReceiveError::Overloaded(_) => Status::resource_exhausted(error.to_string()),
        ReceiveError::Unavailable(cause) => unavailable(cause),
        ReceiveError::Filter(_) | ReceiveError::Limit(_) => {
            Status::invalid_argument(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_checked_and_polls_lowered() {
        let fetch = |max, poll| {
            let (topic, group) = ("t".to_owned(), "g".to_owned());
            fetch_request(v1::BroadcastFetchRequest {
                topic,
                group,
                max,
                poll,
                ..Default::default()
            })
        };
        assert_eq!(fetch(256, 60_000).unwrap().poll, POLL_MAX);
        for max in [0, 257] {
            assert_eq!(fetch(max, 0).unwrap_err().code(), tonic::Code::InvalidArgument);
        }
        let place = |lease, instance: &str| {
            place_request(v1::BroadcastCommitRequest {
                topic: "t".to_owned(),
                group: "g".to_owned(),
                instance: instance.to_owned(),
                lease,
                ..Default::default()
            })
        };
        let request = place(1000, "i").unwrap();
        assert_eq!((request.begin, request.lease), (JoinAt::Latest, Millis::from_secs(1)));
        assert!(place(999, "i").unwrap_err().message().contains("999 ms"));
        assert!(place(LEASE_MAX.get() + 1, "i").is_err());
        assert!(place(1000, " ").is_err());
    }
}
