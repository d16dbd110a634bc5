//! Telling a name server that runs alone.

use std::time::Duration;

use tonic::Request;
use tonic::transport::{Channel, Endpoint};

use crate::wire::raftmq as v1;
use crate::wire::raftmq::name_server_client::NameServerClient;

use super::error::ClientError;

/// A name server that does not answer within this is told again in the next round.
const TIMEOUT: Duration = Duration::from_millis(700);

/// A connection to one name server, made when it is needed and again when it breaks.
#[derive(Clone, Debug)]
pub struct Registrar {
    channel: Channel,
}

impl Registrar {
    /// For the name server whose peer port is at `host:port`.
    pub fn new(address: &str) -> Result<Self, ClientError> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|source| ClientError::Unreachable { endpoint: address.into(), source })?;
        Ok(Self { channel: endpoint.connect_timeout(TIMEOUT).connect_lazy() })
    }

    pub async fn register(&self, registration: Vec<u8>) -> Result<(), ClientError> {
        let message = v1::RegisterRequest { registration: registration.into() };
        let mut request = Request::new(message);
        request.set_timeout(TIMEOUT);
        NameServerClient::new(self.channel.clone()).register(request).await?;
        Ok(())
    }
}
