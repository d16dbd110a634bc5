//! Every rpc of `apache.rocketmq.v2.MessagingService`: who calls, then the file that answers.

use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::broker::Broker;
use crate::wire::rocketmq as v2;
use crate::wire::rocketmq::messaging_service_server::MessagingService;

use super::ending::Ending;
use super::metadata::Caller;
use super::status::{Answer, Refused};
use super::telemetry::Streams;
use super::{ack, heartbeat, limits, receive, route, send, telemetry};

#[derive(Debug)]
pub(super) struct Messaging {
    pub(super) broker: Broker,
    pub(super) streams: Streams,
    pub(super) ending: Ending,
}

/// Business errors are answers; only a request that nobody waits for is a gRPC error.
fn answer<T: Answer>(result: Result<T, Refused>) -> Result<Response<T>, Status> {
    Ok(Response::new(result.unwrap_or_else(|refused| T::refused(refused.status()))))
}

/// Binds the caller and the message of a unary request.
macro_rules! open {
    ($request:ident) => {
        match Caller::of(&$request) {
            Ok(caller) if caller.is_late() => {
                return Err(Status::deadline_exceeded("the request's deadline is over"));
            }
            Ok(caller) => (caller, $request.into_inner()),
            Err(refused) => return answer(Err(refused)),
        }
    };
}

#[tonic::async_trait]
impl MessagingService for Messaging {
    async fn query_route(
        &self,
        request: Request<v2::QueryRouteRequest>,
    ) -> Result<Response<v2::QueryRouteResponse>, Status> {
        let (_, message) = open!(request);
        answer(route::query_route(&self.broker, message).await)
    }

    async fn heartbeat(
        &self,
        request: Request<v2::HeartbeatRequest>,
    ) -> Result<Response<v2::HeartbeatResponse>, Status> {
        let (caller, message) = open!(request);
        answer(heartbeat::heartbeat(&self.broker, &caller, &message))
    }

    async fn send_message(
        &self,
        request: Request<v2::SendMessageRequest>,
    ) -> Result<Response<v2::SendMessageResponse>, Status> {
        let (caller, message) = open!(request);
        answer(send::send(&self.broker, &caller, message).await)
    }

    async fn query_assignment(
        &self,
        request: Request<v2::QueryAssignmentRequest>,
    ) -> Result<Response<v2::QueryAssignmentResponse>, Status> {
        let (_, message) = open!(request);
        answer(route::query_assignment(&self.broker, message).await)
    }

    type ReceiveMessageStream = receive::Items;

    async fn receive_message(
        &self,
        request: Request<v2::ReceiveMessageRequest>,
    ) -> Result<Response<Self::ReceiveMessageStream>, Status> {
        let caller = Caller::of(&request);
        if caller.as_ref().is_ok_and(Caller::is_late) {
            return Err(Status::deadline_exceeded("the request's deadline is over"));
        }
        let (broker, ending) = (self.broker.clone(), self.ending.clone());
        let items = receive::receive(broker, caller, request.into_inner(), ending);
        Ok(Response::new(items))
    }

    async fn ack_message(
        &self,
        request: Request<v2::AckMessageRequest>,
    ) -> Result<Response<v2::AckMessageResponse>, Status> {
        let (caller, message) = open!(request);
        answer(ack::ack(&self.broker, &caller, message).await)
    }

    async fn forward_message_to_dead_letter_queue(
        &self,
        request: Request<v2::ForwardMessageToDeadLetterQueueRequest>,
    ) -> Result<Response<v2::ForwardMessageToDeadLetterQueueResponse>, Status> {
        let (caller, message) = open!(request);
        answer(ack::forward_to_dead_letters(&self.broker, &caller, message).await)
    }

    type PullMessageStream = ReceiverStream<Result<v2::PullMessageResponse, Status>>;

    async fn pull_message(
        &self,
        request: Request<v2::PullMessageRequest>,
    ) -> Result<Response<Self::PullMessageStream>, Status> {
        let refused = match Caller::of(&request) {
            Ok(_) => Refused::not_yet("PullMessage"),
            Err(refused) => refused,
        };
        let (items, stream) = tokio::sync::mpsc::channel(1);
        let content = v2::pull_message_response::Content::Status(refused.status());
        let item = v2::PullMessageResponse { content: Some(content) };
        items.try_send(Ok(item)).expect("the channel is new and has room");
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn update_offset(
        &self,
        request: Request<v2::UpdateOffsetRequest>,
    ) -> Result<Response<v2::UpdateOffsetResponse>, Status> {
        let _ = open!(request);
        answer(Err(Refused::not_yet("UpdateOffset")))
    }

    async fn get_offset(
        &self,
        request: Request<v2::GetOffsetRequest>,
    ) -> Result<Response<v2::GetOffsetResponse>, Status> {
        let _ = open!(request);
        answer(Err(Refused::not_yet("GetOffset")))
    }

    async fn query_offset(
        &self,
        request: Request<v2::QueryOffsetRequest>,
    ) -> Result<Response<v2::QueryOffsetResponse>, Status> {
        let _ = open!(request);
        answer(Err(Refused::not_yet("QueryOffset")))
    }

    async fn end_transaction(
        &self,
        request: Request<v2::EndTransactionRequest>,
    ) -> Result<Response<v2::EndTransactionResponse>, Status> {
        let (_, message) = open!(request);
        let named = limits::topic(message.topic.as_ref());
        answer(named.and(Err(Refused::not_yet("ending transactions"))))
    }

    type TelemetryStream = telemetry::Commands;

    async fn telemetry(
        &self,
        request: Request<Streaming<v2::TelemetryCommand>>,
    ) -> Result<Response<Self::TelemetryStream>, Status> {
        let caller = Caller::of(&request);
        let (broker, ending) = (self.broker.clone(), self.ending.clone());
        let inbound = request.into_inner();
        let commands = telemetry::telemetry(broker, &self.streams, caller, inbound, ending);
        Ok(Response::new(commands))
    }

    async fn notify_client_termination(
        &self,
        request: Request<v2::NotifyClientTerminationRequest>,
    ) -> Result<Response<v2::NotifyClientTerminationResponse>, Status> {
        let (caller, message) = open!(request);
        answer(heartbeat::notify_client_termination(&self.broker, &caller, message).await)
    }

    async fn change_invisible_duration(
        &self,
        request: Request<v2::ChangeInvisibleDurationRequest>,
    ) -> Result<Response<v2::ChangeInvisibleDurationResponse>, Status> {
        let (caller, message) = open!(request);
        answer(Ok(ack::change_invisible_duration(&self.broker, &caller, message).await))
    }

    async fn recall_message(
        &self,
        request: Request<v2::RecallMessageRequest>,
    ) -> Result<Response<v2::RecallMessageResponse>, Status> {
        let (_, message) = open!(request);
        let named = limits::topic(message.topic.as_ref());
        answer(named.and(Err(Refused::not_yet("recalling delayed messages"))))
    }

    async fn sync_lite_subscription(
        &self,
        request: Request<v2::SyncLiteSubscriptionRequest>,
    ) -> Result<Response<v2::SyncLiteSubscriptionResponse>, Status> {
        let _ = open!(request);
        answer(Err(Refused::not_yet("subscribing to lite topics")))
    }
}
