//! Every rpc of `apache.rocketmq.v2.MessagingService`: who calls, then the file that answers.

use std::future::ready;

use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::broker::Broker;
use crate::wire::rocketmq as v2;
use crate::wire::rocketmq::messaging_service_server::MessagingService;

use super::ending::Ending;
use super::metadata::Caller;
use super::observed::Observed;
use super::status::{Answer, Refused};
use super::telemetry::Streams;
use super::{ack, heartbeat, pull, recall, receive, route, send, telemetry, transaction};

#[derive(Debug)]
pub(super) struct Messaging {
    pub(super) broker: Broker,
    pub(super) streams: Streams,
    pub(super) ending: Ending,
}

/// What all unary rpcs share. Business errors are answers; only a request that nobody waits for any
/// more is a gRPC error, and no work is done for it.
pub(super) async fn unary<Q, A: Answer, W>(
    rpc: &'static str,
    request: Request<Q>,
    work: impl FnOnce(Caller, Q) -> W,
) -> Result<Response<A>, Status>
where
    W: Future<Output = Result<A, Refused>>,
{
    let observed = Observed::begin(rpc);
    let result = match Caller::of(&request) {
        Ok(caller) if caller.is_late() => {
            observed.end_with("DEADLINE_EXCEEDED");
            return Err(late());
        }
        // On the heap: what the broker does is large, and most of the time it waits.
        Ok(caller) => Box::pin(work(caller, request.into_inner())).await,
        Err(refused) => Err(refused),
    };
    let answer = result.unwrap_or_else(|refused| A::refused(refused.status()));
    observed.end(answer.code());
    Ok(Response::new(answer))
}

/// An rpc of the protocol that this version does not have.
async fn not_yet<Q, A: Answer>(
    rpc: &'static str,
    request: Request<Q>,
) -> Result<Response<A>, Status> {
    unary(rpc, request, |_, _| ready(Err(Refused::not_yet(rpc)))).await
}

fn late() -> Status {
    Status::deadline_exceeded("the request came after its own deadline")
}

#[tonic::async_trait]
impl MessagingService for Messaging {
    async fn query_route(
        &self,
        request: Request<v2::QueryRouteRequest>,
    ) -> Result<Response<v2::QueryRouteResponse>, Status> {
        unary("QueryRoute", request, |caller, message| {
            route::query_route(&self.broker, caller, message)
        })
        .await
    }

    async fn heartbeat(
        &self,
        request: Request<v2::HeartbeatRequest>,
    ) -> Result<Response<v2::HeartbeatResponse>, Status> {
        unary("Heartbeat", request, |caller, message| {
            ready(heartbeat::heartbeat(&self.broker, &caller, &message))
        })
        .await
    }

    async fn send_message(
        &self,
        request: Request<v2::SendMessageRequest>,
    ) -> Result<Response<v2::SendMessageResponse>, Status> {
        unary("SendMessage", request, |caller, message| send::send(&self.broker, caller, message))
            .await
    }

    async fn query_assignment(
        &self,
        request: Request<v2::QueryAssignmentRequest>,
    ) -> Result<Response<v2::QueryAssignmentResponse>, Status> {
        unary("QueryAssignment", request, |caller, message| {
            route::query_assignment(&self.broker, caller, message)
        })
        .await
    }

    type ReceiveMessageStream = receive::Items;

    async fn receive_message(
        &self,
        request: Request<v2::ReceiveMessageRequest>,
    ) -> Result<Response<Self::ReceiveMessageStream>, Status> {
        let caller = Caller::of(&request);
        if caller.as_ref().is_ok_and(Caller::is_late) {
            Observed::begin(receive::RPC).end_with("DEADLINE_EXCEEDED");
            return Err(late());
        }
        let (broker, ending) = (self.broker.clone(), self.ending.clone());
        let items = receive::receive(broker, caller, request.into_inner(), ending);
        Ok(Response::new(items))
    }

    async fn ack_message(
        &self,
        request: Request<v2::AckMessageRequest>,
    ) -> Result<Response<v2::AckMessageResponse>, Status> {
        unary("AckMessage", request, |caller, message| ack::ack(&self.broker, caller, message))
            .await
    }

    async fn forward_message_to_dead_letter_queue(
        &self,
        request: Request<v2::ForwardMessageToDeadLetterQueueRequest>,
    ) -> Result<Response<v2::ForwardMessageToDeadLetterQueueResponse>, Status> {
        unary("ForwardMessageToDeadLetterQueue", request, |caller, message| {
            ack::forward_to_dead_letters(&self.broker, caller, message)
        })
        .await
    }

    type PullMessageStream = ReceiverStream<pull::Item>;

    async fn pull_message(
        &self,
        request: Request<v2::PullMessageRequest>,
    ) -> Result<Response<Self::PullMessageStream>, Status> {
        let (caller, message) = (Caller::of(&request), request.into_inner());
        let items = pull::pull(self.broker.clone(), caller, message, self.ending.clone());
        Ok(Response::new(items))
    }

    async fn update_offset(
        &self,
        request: Request<v2::UpdateOffsetRequest>,
    ) -> Result<Response<v2::UpdateOffsetResponse>, Status> {
        unary("UpdateOffset", request, |_, message| pull::update_offset(&self.broker, message))
            .await
    }

    async fn get_offset(
        &self,
        request: Request<v2::GetOffsetRequest>,
    ) -> Result<Response<v2::GetOffsetResponse>, Status> {
        unary("GetOffset", request, |_, message| pull::get_offset(&self.broker, message)).await
    }

    async fn query_offset(
        &self,
        request: Request<v2::QueryOffsetRequest>,
    ) -> Result<Response<v2::QueryOffsetResponse>, Status> {
        unary("QueryOffset", request, |_, message| pull::query_offset(&self.broker, message)).await
    }

    async fn end_transaction(
        &self,
        request: Request<v2::EndTransactionRequest>,
    ) -> Result<Response<v2::EndTransactionResponse>, Status> {
        unary("EndTransaction", request, |caller, message| {
            transaction::end(&self.broker, caller, message)
        })
        .await
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
        unary("NotifyClientTermination", request, |caller, message| {
            heartbeat::notify_client_termination(&self.broker, caller, message)
        })
        .await
    }

    async fn change_invisible_duration(
        &self,
        request: Request<v2::ChangeInvisibleDurationRequest>,
    ) -> Result<Response<v2::ChangeInvisibleDurationResponse>, Status> {
        unary("ChangeInvisibleDuration", request, |caller, message| {
            ack::change_invisible_duration(&self.broker, caller, message)
        })
        .await
    }

    async fn recall_message(
        &self,
        request: Request<v2::RecallMessageRequest>,
    ) -> Result<Response<v2::RecallMessageResponse>, Status> {
        unary("RecallMessage", request, |caller, message| {
            recall::recall(&self.broker, caller, message)
        })
        .await
    }

    async fn sync_lite_subscription(
        &self,
        request: Request<v2::SyncLiteSubscriptionRequest>,
    ) -> Result<Response<v2::SyncLiteSubscriptionResponse>, Status> {
        not_yet("SyncLiteSubscription", request).await
    }
}
