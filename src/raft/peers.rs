//! Connections to the other replicas, and the handshake that every call carries.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tonic::metadata::{BinaryMetadataKey, MetadataMap, MetadataValue};
use tonic::transport::{Channel, Endpoint};

use crate::base::{BrokerGroupId, ClusterId, NodeId};
use crate::command::{COMMAND_VERSION, CommandError, Reader, Writer};
use crate::raft::Net;
use crate::raft::dial::Connector;
use crate::raft::versions::Versions;
use crate::wire::raftmq::peer_client::PeerClient;

/// The metadata entry of the handshake; gRPC wants `-bin` behind binary ones.
const HANDSHAKE_KEY: &str = "raftmq-peer-bin";
/// An append request is at most 1 MiB of frames or one entry, a command at most 4.5 MiB.
pub(crate) const MESSAGE_MAX: usize = 16 << 20;
/// Enough for a whole append request to be under way at once.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// What kind of traffic shares a connection. Heartbeats and votes must not wait behind a batch of
/// entries, nor those behind a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    Append,
    Pulse,
    State,
    Ask,
}

/// Who calls whom. 37 bytes, big-endian, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handshake {
    pub(crate) cluster: ClusterId,
    pub(crate) group: BrokerGroupId,
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    pub(crate) command_version: u8,
}

/// Why two nodes do not talk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("the call carries no handshake; the peer port is for RaftMQ nodes only")]
    Missing,
    #[error("the handshake cannot be read: {0}")]
    Field(#[from] CommandError),
    #[error("node {node} belongs to cluster {theirs}, this node to {ours}; check peer addresses")]
    Cluster { node: NodeId, theirs: ClusterId, ours: ClusterId },
    #[error("node {node} speaks for broker group {theirs}, this replica is of {ours}")]
    Group { node: NodeId, theirs: BrokerGroupId, ours: BrokerGroupId },
    #[error("the call is for node {meant}, but this is node {here}; check peer addresses")]
    Node { meant: NodeId, here: NodeId },
}

impl Handshake {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(37);
        writer.u128(self.cluster.get());
        writer.u32(self.group.get());
        writer.u64(self.from.get());
        writer.u64(self.to.get());
        writer.u8(self.command_version);
        writer.finish().to_vec()
    }

    pub(crate) fn insert(&self, metadata: &mut MetadataMap) {
        metadata.insert_bin(key(), MetadataValue::from_bytes(&self.encode()));
    }

    pub(crate) fn read(metadata: &MetadataMap) -> Result<Self, HandshakeError> {
        let value = metadata.get_bin(key()).ok_or(HandshakeError::Missing)?;
        let bytes = value.to_bytes().map_err(|_| HandshakeError::Missing)?;
        let mut reader = Reader::new(bytes);
        let handshake = Self {
            cluster: ClusterId::new(reader.u128()?),
            group: BrokerGroupId::new(reader.u32()?),
            from: NodeId::new(reader.u64()?),
            to: NodeId::new(reader.u64()?),
            command_version: reader.u8()?,
        };
        reader.end()?;
        Ok(handshake)
    }
}

fn key() -> BinaryMetadataKey {
    BinaryMetadataKey::from_static(HANDSHAKE_KEY)
}

/// This replica towards the others.
pub(crate) struct Peers {
    cluster: ClusterId,
    group: BrokerGroupId,
    me: NodeId,
    channels: Arc<Channels>,
    pub(crate) versions: Versions,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peers of node {} in cluster {}", self.me, self.cluster)
    }
}

impl Peers {
    pub(crate) fn new(
        cluster: ClusterId,
        group: BrokerGroupId,
        me: NodeId,
        channels: Arc<Channels>,
    ) -> Self {
        Self { cluster, group, me, channels, versions: Versions::default() }
    }

    pub(crate) fn client(
        &self,
        node: NodeId,
        address: &str,
        lane: Lane,
    ) -> Result<PeerClient<Channel>, tonic::Status> {
        self.channels.client(node, address, lane)
    }

    pub(crate) fn handshake(&self, to: NodeId) -> Handshake {
        Handshake {
            cluster: self.cluster,
            group: self.group,
            from: self.me,
            to,
            command_version: COMMAND_VERSION,
        }
    }

    pub(crate) fn request<T>(&self, to: NodeId, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        self.handshake(to).insert(request.metadata_mut());
        request
    }

    /// Checks what the other side said of itself: on a call, and on an answer.
    pub(crate) fn meet(&self, metadata: &MetadataMap) -> Result<NodeId, HandshakeError> {
        let theirs = Handshake::read(metadata)?;
        let node = theirs.from;
        if theirs.cluster != self.cluster {
            let ours = self.cluster;
            return Err(HandshakeError::Cluster { node, theirs: theirs.cluster, ours });
        }
        if theirs.group != self.group {
            let ours = self.group;
            return Err(HandshakeError::Group { node, theirs: theirs.group, ours });
        }
        if theirs.to != self.me {
            return Err(HandshakeError::Node { meant: theirs.to, here: self.me });
        }
        self.versions.heard(node, theirs.command_version);
        Ok(node)
    }
}

/// Lazily connected; a connection that breaks is made again by the next call, which resolves the
/// host's name anew.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    net: Net,
    open: Mutex<HashMap<(NodeId, Lane), (String, Channel)>>,
    moved: Mutex<HashMap<NodeId, Moved>>,
}

/// A node that said it is reached elsewhere. Calls to where it was go to where it is, until the
/// membership says it too: openraft keeps clients with an address from before.
#[derive(Debug)]
struct Moved {
    from: Vec<String>,
    to: String,
}

/// Old addresses of a node that are remembered.
const MOVES_MAX: usize = 8;

impl Channels {
    pub(crate) fn new(net: Net) -> Self {
        Self { net, open: Mutex::default(), moved: Mutex::default() }
    }

    /// The node was reached at `old` and says that it is at `new` now. Whoever answers there is
    /// asked for its id before anything else, so a wrong address does no harm.
    pub(crate) fn moved(&self, node: NodeId, old: &str, new: &str) {
        let mut moved = self.moved.lock();
        let known = moved.entry(node).or_insert_with(|| Moved { from: Vec::new(), to: new.into() });
        let before = std::mem::replace(&mut known.to, new.to_owned());
        known.from.extend([before, old.to_owned()]);
        known.from.retain(|address| address != new);
        known.from.dedup();
        let surplus = known.from.len().saturating_sub(MOVES_MAX);
        known.from.drain(..surplus);
    }

    fn place(&self, node: NodeId, address: &str) -> String {
        let moved = self.moved.lock();
        let moved = moved.get(&node).filter(|moved| moved.from.iter().any(|old| old == address));
        moved.map_or_else(|| address.to_owned(), |moved| moved.to.clone())
    }

    pub(crate) fn client(
        &self,
        node: NodeId,
        address: &str,
        lane: Lane,
    ) -> Result<PeerClient<Channel>, tonic::Status> {
        let address = &*self.place(node, address);
        let mut channels = self.open.lock();
        let channel = match channels.get(&(node, lane)) {
            Some((known, channel)) if known == address => channel.clone(),
            _ => {
                let endpoint = endpoint(address)?;
                let channel = match &self.net {
                    Net::Tcp => endpoint.connect_lazy(),
                    Net::Through(dial) => {
                        endpoint.connect_with_connector_lazy(Connector(dial.clone()))
                    }
                };
                channels.insert((node, lane), (address.to_owned(), channel.clone()));
                channel
            }
        };
        drop(channels);
        let client = PeerClient::new(channel);
        Ok(client.max_decoding_message_size(MESSAGE_MAX).max_encoding_message_size(MESSAGE_MAX))
    }
}

fn endpoint(address: &str) -> Result<Endpoint, tonic::Status> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| {
        tonic::Status::invalid_argument(format!("{address:?} is not a peer address: {error}"))
    })?;
    Ok(endpoint
        .connect_timeout(Duration::from_secs(1))
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(Duration::from_secs(1))
        .keep_alive_timeout(Duration::from_secs(3))
        .keep_alive_while_idle(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(cluster: u128, group: u32, me: u64) -> Peers {
        let (cluster, group) = (ClusterId::new(cluster), BrokerGroupId::new(group));
        Peers::new(cluster, group, NodeId::new(me), Arc::default())
    }

    fn call(from: &Peers, to: u64) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        from.handshake(NodeId::new(to)).insert(&mut metadata);
        metadata
    }

    #[test]
    fn strangers_are_refused_with_the_reason() {
        let here = peers(7, 0, 2);
        assert_eq!(here.meet(&call(&peers(7, 0, 1), 2)), Ok(NodeId::new(1)));
        let refusal = |metadata: &MetadataMap| here.meet(metadata).unwrap_err();
        assert!(matches!(refusal(&call(&peers(8, 0, 1), 2)), HandshakeError::Cluster { .. }));
        assert!(matches!(refusal(&call(&peers(7, 1, 1), 2)), HandshakeError::Group { .. }));
        assert!(matches!(refusal(&call(&peers(7, 0, 1), 3)), HandshakeError::Node { .. }));
        assert_eq!(refusal(&MetadataMap::new()), HandshakeError::Missing);
    }

    #[test]
    fn a_node_that_moved_is_called_where_it_is() {
        let (channels, node) = (Channels::default(), NodeId::new(3));
        assert_eq!(channels.place(node, "a:1"), "a:1");
        channels.moved(node, "a:1", "b:1");
        channels.moved(node, "b:1", "c:1");
        assert_eq!([channels.place(node, "a:1"), channels.place(node, "b:1")], ["c:1", "c:1"]);
        assert_eq!(channels.place(NodeId::new(4), "a:1"), "a:1");
        channels.moved(node, "c:1", "a:1");
        assert_eq!(channels.place(node, "a:1"), "a:1", "it moved back");
        assert_eq!(channels.place(node, "c:1"), "a:1");
        assert_eq!(channels.place(node, "d:1"), "d:1", "the log knows of a later move");
        for port in 0..100 {
            channels.moved(node, "a:1", &format!("e:{port}"));
        }
        assert!(channels.moved.lock()[&node].from.len() <= MOVES_MAX);
    }

    #[test]
    fn the_handshake_has_golden_bytes() {
        let handshake = peers(0x0102, 3, 4).handshake(NodeId::new(5));
        let mut expected = vec![0; 14];
        expected.extend([1, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5]);
        expected.push(COMMAND_VERSION);
        assert_eq!(handshake.encode(), expected);
    }
}
