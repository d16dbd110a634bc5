//! Heartbeat and NotifyClientTermination: who lives.

use crate::base::GroupName;
use crate::broker::{Broker, ClientKind};
use crate::wire::rocketmq::{self as v2, ClientType, Code};

use super::limits;
use super::metadata::Caller;
use super::status::{Refused, ok};

/// Needs no earlier Settings: any node, also one that never saw the client, takes a heartbeat.
pub(super) fn heartbeat(
    broker: &Broker,
    caller: &Caller,
    request: &v2::HeartbeatRequest,
) -> Result<v2::HeartbeatResponse, Refused> {
    let kind = kind(request.client_type)?;
    let group = match kind {
        ClientKind::Producer => None,
        ClientKind::PushConsumer | ClientKind::SimpleConsumer => {
            Some(limits::group(request.group.as_ref())?)
        }
    };
    broker.client_seen(&caller.client, kind, group.as_ref());
    Ok(v2::HeartbeatResponse { status: Some(ok()) })
}

pub(super) async fn notify_client_termination(
    broker: &Broker,
    caller: Caller,
    request: v2::NotifyClientTerminationRequest,
) -> Result<v2::NotifyClientTerminationResponse, Refused> {
    let group = consumer_group(request.group.as_ref())?;
    broker.client_gone(&caller.client, group.as_ref()).await;
    Ok(v2::NotifyClientTerminationResponse { status: Some(ok()) })
}

/// Producers send none, or one with an empty name.
fn consumer_group(group: Option<&v2::Resource>) -> Result<Option<GroupName>, Refused> {
    match group {
        Some(resource) if !resource.name.is_empty() => limits::group(group).map(Some),
        _ => Ok(None),
    }
}

/// Pull and lite clients are not served yet.
pub(super) fn kind(client_type: i32) -> Result<ClientKind, Refused> {
    match ClientType::try_from(client_type) {
        Ok(ClientType::Producer) => Ok(ClientKind::Producer),
        Ok(ClientType::PushConsumer) => Ok(ClientKind::PushConsumer),
        Ok(ClientType::SimpleConsumer) => Ok(ClientKind::SimpleConsumer),
        _ => Err(Refused::new(
            Code::UnrecognizedClientType,
            format_args!(
                "the client type is {client_type}; 1 (PRODUCER), 2 (PUSH_CONSUMER) and \
                 3 (SIMPLE_CONSUMER) are served"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_types_of_client_are_served() {
        assert_eq!(kind(1), Ok(ClientKind::Producer));
        assert_eq!(kind(2), Ok(ClientKind::PushConsumer));
        assert_eq!(kind(3), Ok(ClientKind::SimpleConsumer));
        for other in [0, 4, 5, 6, 7, -1] {
            let refused = kind(other).unwrap_err();
            assert_eq!(refused.code, Code::UnrecognizedClientType);
            assert!(refused.text.contains(&other.to_string()), "{}", refused.text);
        }
    }

    #[test]
    fn producers_say_goodbye_without_a_group() {
        let named = |name: &str| v2::Resource { name: name.into(), ..Default::default() };
        assert_eq!(consumer_group(None), Ok(None));
        assert_eq!(consumer_group(Some(&named(""))), Ok(None));
        assert_eq!(consumer_group(Some(&named("g"))), Ok(Some(GroupName::new("g").unwrap())));
        let refused = consumer_group(Some(&named("a b"))).unwrap_err();
        assert_eq!(refused.code, Code::IllegalConsumerGroup);
    }
}
