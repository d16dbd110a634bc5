//! The program on a node's host: a replica, its peer port and its broker, as the product puts them
//! together, and a port for letters of clients in place of gRPC.

use std::any::Any;
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream;
use parking_lot::Mutex;
use raftmq::base::{BrokerGroupId, BrokerGroupName, ByteSize, Millis, NodeId};
use raftmq::broker::{ASKED_OF_BROKER, Bell, Broker, BrokerNode, CheckRule, Nodes, Options, Seat};
use raftmq::command::Retention;
use raftmq::env::Env;
use raftmq::env::sim::SimEntropy;
use raftmq::machine::UnitsCursor;
use raftmq::raft::{self, Asked, Group, Member, Net as PeerNet, peer_service};
use raftmq::{commit_log, machine};

use super::disk::{NodeDisk, Watched};
use super::net::{Content, Dialer, HostId, Letter, Net};
use super::world::HostClock;

/// What of a node outlives its program, and what others see of it.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) host: HostId,
    pub(crate) disk: Arc<NodeDisk>,
    pub(crate) clock: Arc<HostClock>,
    pub(crate) net: Net,
    pub(crate) settings: Settings,
    /// The replica, while the program runs.
    pub(crate) replica: Arc<Mutex<Option<Group>>>,
}

/// How the nodes of one run are set up.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) nodes: usize,
    pub(crate) segment_bytes: u64,
    pub(crate) spare: bool,
    pub(crate) checkpoint_bytes: u64,
    /// How long the upkeep of the log rests when there is nothing to do.
    pub(crate) upkeep_millis: u64,
    pub(crate) retention: Retention,
}

/// What a client has a node do.
pub(crate) type Work = Box<dyn FnOnce(Broker) -> BoxFuture<'static, Box<dyn Any + Send>> + Send>;

/// Hands peers' questions to the broker.
struct Desk {
    id: BrokerGroupId,
    broker: OnceLock<Broker>,
}

#[async_trait]
impl Asked for Desk {
    async fn answer(&self, _from: NodeId, request: Bytes) -> Bytes {
        match (self.broker.get(), request.first()) {
            (Some(broker), Some(&ASKED_OF_BROKER)) => {
                broker.answer(self.id, request.slice(1..)).await
            }
            _ => Bytes::new(),
        }
    }
}

/// All members, always: clients of a simulation know where to go.
#[derive(Debug)]
struct Everybody(usize);

impl Nodes for Everybody {
    fn live(&self) -> Vec<BrokerNode> {
        let node = |at| BrokerNode {
            node: id_of(at),
            name: format!("n{}", at + 1),
            host: format!("n{}", at + 1),
            port: 8081,
        };
        (0..self.0).map(node).collect()
    }
}

/// Often enough that transactions are asked about, and parked, within a run.
const CHECKS: CheckRule = CheckRule { first: Millis::new(400), interval: Millis::new(700), max: 3 };

/// A piece of the scrub, and the pause before the next one.
const SCRUB_BYTES: u64 = 16 << 10;
const SCRUB_PAUSE: Duration = Duration::from_millis(100);

pub(crate) fn id_of(host: HostId) -> NodeId {
    NodeId::new(host as u64 + 1)
}

impl Node {
    fn env(&self, seed: u64) -> Env {
        Env {
            disk: Arc::new(Watched(self.disk.clone())),
            clock: self.clock.clone(),
            entropy: Arc::new(SimEntropy::new(seed)),
        }
    }

    fn raft_options(&self, name: &BrokerGroupName) -> raft::Options {
        let member = |at| Member {
            node: id_of(at),
            peer: format!("n{}:7000", at + 1),
            grpc: format!("n{}:8081", at + 1),
        };
        let Settings { nodes, segment_bytes, spare, checkpoint_bytes, .. } = self.settings;
        let members = (0..nodes).map(member).collect();
        raft::Options {
            group: name.id(),
            log: commit_log::Options { segment_bytes, spare },
            machine: machine::Options { checkpoint_bytes, extents_per_file: 16 },
            admission: ByteSize::mib(1),
            reserve: ByteSize::kib(16),
            threads: false,
            net: PeerNet::Through(Arc::new(Dialer { net: self.net.clone(), from: self.host })),
            ..raft::Options::new(id_of(self.host), "/data".into(), members)
        }
    }

    /// Runs until the replica ends, and tells why. `seed` is this life's.
    pub(crate) async fn run(self, seed: u64) -> String {
        let name = BrokerGroupName::new("default").expect("the name is one");
        let env = self.env(seed);
        let bell = Bell::default();
        let desk = Arc::new(Desk { id: name.id(), broker: OnceLock::new() });
        let options = self.raft_options(&name);
        let group = loop {
            let (with, asked) = (options.clone(), desk.clone());
            match Group::open(env.clone(), with, asked, Arc::new(bell.clone())) {
                Ok(group) => break group,
                Err(error) if error.is_mendable() => {
                    if let Err(error) = raft::refill(&env, &options).await {
                        return format!("refilling: {error}");
                    }
                }
                Err(error) => return format!("opening: {error}"),
            }
        };
        *self.replica.lock() = Some(group.clone());
        let upkeep = group.log().upkeep();
        let rest = self.settings.upkeep_millis;
        tokio::spawn(async move {
            loop {
                let pause = if upkeep.step() { 2 } else { rest };
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        });
        let scrubbed = scrub(group.clone());
        tokio::spawn(serve_peers(self.net.clone(), self.host, group.clone()));
        let mut fatal = group.fatal();
        let served = async {
            if let Err(error) = group.start().await {
                return format!("starting: {error}");
            }
            let seat = Seat { name, group: group.clone(), bell, index: None };
            let options = Options {
                node: id_of(self.host),
                create_on_use: false,
                queues_on_use: 1,
                store_host: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8081),
                retention: self.settings.retention,
                delay_max: Millis::from_secs(730 * 24 * 60 * 60),
                checks: CHECKS,
            };
            let nodes = Arc::new(Everybody(self.settings.nodes));
            let (broker, pulses) = Broker::new(env, vec![seat], nodes, options);
            assert!(desk.broker.set(broker.clone()).is_ok(), "a node has one broker");
            for pulse in pulses {
                tokio::spawn(pulse.run());
            }
            serve_clients(&self.net, self.host, broker).await
        };
        tokio::select! {
            biased;
            reason = fatal.wait_for(Option::is_some) => match reason {
                Ok(reason) => reason.clone().unwrap_or_default(),
                Err(_) => "the replica is gone".to_owned(),
            },
            ended = served => ended,
            damage = scrubbed => damage,
        }
    }
}

/// Reads everything again and again, and tells when something is damaged.
async fn scrub(group: Group) -> String {
    let mut units = UnitsCursor::default();
    loop {
        tokio::time::sleep(SCRUB_PAUSE).await;
        if let Some(damage) = group.log().damage() {
            return format!("a reader found that {damage}");
        }
        if let Err(error) = group.log().scrub(SCRUB_BYTES) {
            return format!("the scrub found that {error}");
        }
        group.check_units(&mut units, SCRUB_BYTES);
    }
}

async fn serve_peers(net: Net, host: HostId, group: Group) {
    let connections = stream::unfold(net, move |net| async move {
        let end = poll_fn(|context| net.poll_accept(host, context)).await;
        Some((Ok::<_, std::io::Error>(end), net))
    });
    let served = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .add_routes(peer_service(&[group]))
        .serve_with_incoming(connections);
    if let Err(error) = served.await {
        unreachable!("connections never end: {error}");
    }
}

async fn serve_clients(net: &Net, host: HostId, broker: Broker) -> String {
    loop {
        let Letter { from, id, content } = poll_fn(|context| net.poll_mail(host, context)).await;
        let Content::Asked(asked) = content else { continue };
        let work = asked.downcast::<Work>().expect("clients send work");
        let (net, broker) = (net.clone(), broker.clone());
        tokio::spawn(async move {
            let answer = work(broker).await;
            net.post(host, from, id, Content::Answered(answer));
        });
    }
}
