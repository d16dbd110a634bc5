//! The order in which a node starts and stops.
//!
//! Start: signals, directory lock, listeners, HTTP (so that probes hear what is missing), log and
//! machine, peer port, Raft, broker, registrations, gRPC. Stop: the reverse, after the leadership
//! was handed over while clients are still served.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::net::TcpListener;

use crate::base::Durability;
use crate::broker::Broker;
use crate::config::{Config, Listen};
use crate::env::{Env, os};
use crate::grpc::listener::Admission;
use crate::grpc::tls::Acceptor;
use crate::raft::{Group, peer_service};
use crate::{grpc, http, metrics};

use super::hosted::{
    Hosted, first_fatal, hand_over_all, join_groups, removed_from_all, warn_of_strangers,
};
use super::live::Live;
use super::load::{self, Load};
use super::lock::DataLock;
use super::peers::register;
use super::readiness::Readiness;
use super::signals::Signals;
use super::tasks::Tasks;
use super::{
    NodeError, broker_options, gauges, index, names, scrub, spread, take_all_handles, tls,
};

/// How long tasks may take to end; the gRPC server waits up to twice three seconds by itself.
const TASKS_END: Duration = Duration::from_secs(7);
/// How often a node that hands over looks whether somebody is left to take over.
const STAY_POLL: Duration = Duration::from_millis(20);
/// A peer connection that is idle is kept alive by pings; a dead one is found by them.
const PEER_PING_INTERVAL: Duration = Duration::from_secs(5);
const PEER_PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Calls that another node may take back before this one has looked at them: all polls that it
/// forwards may end at once. The default of 20 would end the connection instead.
const PEER_RESETS_MAX: usize = 16_384;

/// Runs a node until it is told to stop (`Ok`) or cannot go on. With a load it measures itself.
pub async fn run(config: Config, load: Option<Load>) -> Result<(), NodeError> {
    let mut signals = Signals::listen()?;
    enough_handles(&config);
    let _lock = DataLock::take(&config.data)?;
    let mut node = Node::bind(config).await?;
    node.load = load;
    let ended = tokio::select! {
        told = signals.stop() => Ok(told),
        error = node.live() => Err(error),
    };
    match &ended {
        Ok(signal) => tracing::info!(signal, "stopping"),
        Err(error) => tracing::error!(%error, "ending"),
    }
    tokio::select! {
        () = node.stop() => {}
        // Whoever says it twice means it.
        signal = signals.stop() => tracing::warn!(signal, "told twice; ending at once"),
    }
    ended.map(|_| ())
}

struct Node {
    config: Config,
    env: Env,
    live: Arc<Live>,
    readiness: Arc<Readiness>,
    /// What serves clients; ends before the replicas.
    front: Tasks,
    /// What the replicas need, and HTTP; ends last.
    back: Tasks,
    grpc: Option<TcpListener>,
    tls: Option<Acceptor>,
    peer: Option<TcpListener>,
    hosted: Vec<Hosted>,
    load: Option<Load>,
}

impl Node {
    /// Binds all ports, so that a taken one is told before anything is opened, and serves HTTP.
    async fn bind(config: Config) -> Result<Self, NodeError> {
        let env = os::env();
        let grpc = bind("grpc", config.listen.grpc).await?;
        let http = bind("http", config.listen.http).await?;
        let peer = bind("peer", config.listen.peer).await?;
        let live = Arc::new(Live::new(&config, Arc::clone(&env.clock)));
        let readiness = Arc::new(Readiness::new(Arc::clone(&live)));
        let (front, mut back) = (Tasks::new(), Tasks::new());
        let router = http::router(metrics::install(), Arc::clone(&readiness) as _);
        let connections_max = config.listen.connections_max;
        let options = http::Options { connections_max, ..http::Options::default() };
        let stop = back.stop();
        back.start("http", async move {
            let served = http::serve(http, router, options, stop.told()).await;
            served.map_err(|error| NodeError::Task { task: "http", reason: error.to_string() })
        });
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            node = %config.node,
            grpc = %config.listen.grpc,
            http = %config.listen.http,
            peer = %config.listen.peer,
            advertise = %config.advertise.grpc,
            broker_groups = ?config.broker_groups,
            profile = config.profile.name(),
            "raftmq starts"
        );
        let tls = tls::acceptor(&config)?;
        let (grpc, peer) = (Some(grpc), Some(peer));
        Ok(Self {
            config,
            env,
            live,
            readiness,
            front,
            back,
            grpc,
            tls,
            peer,
            hosted: Vec::new(),
            load: None,
        })
    }

    /// Starts the rest and lives; returns what went wrong.
    async fn live(&mut self) -> NodeError {
        match self.start().await {
            Ok(()) => self.watch().await,
            Err(error) => error,
        }
    }

    async fn start(&mut self) -> Result<(), NodeError> {
        self.open().await?;
        self.serve_peers();
        self.readiness.stage("it is joining its broker groups");
        join_groups(&self.hosted).await?;
        self.tell_durability();
        let nodes = Arc::clone(&self.live) as _;
        let options = broker_options(&self.config);
        let seats = self.hosted.iter().map(Hosted::seat).collect();
        let (broker, pulses) = Broker::new(self.env.clone(), seats, nodes, options);
        for pulse in pulses {
            self.front.endless("the broker's pulse", pulse.run());
        }
        for Hosted { desk, group, .. } in &self.hosted {
            assert!(desk.broker.set(broker.clone()).is_ok(), "a node has one broker");
            self.front.endless("registrations", register(Arc::clone(desk), group.clone()));
        }
        if !self.config.name_servers.is_empty() {
            let tell = names::tell(names::desks(&self.hosted), self.config.name_servers.clone());
            self.front.endless("registrations with name servers", tell);
        }
        let spread = spread::keep(Arc::clone(&self.live), spread::of(&self.hosted));
        self.front.endless("the spread of leaders", spread);
        let metrics = gauges::keep(metrics::install(), gauges::of(&self.hosted), broker.clone());
        self.front.endless("metrics", metrics);
        self.follow_logs();
        self.serve_clients(broker);
        self.carry_load();
        self.readiness.serving();
        Ok(())
    }

    fn follow_logs(&mut self) {
        for hosted in &self.hosted {
            let Some(messages) = &hosted.index else { continue };
            let (group, per_second) = (hosted.group.clone(), self.config.index.bytes_per_second);
            let follow = index::follow(group, messages.clone(), per_second);
            self.back.endless("the index of messages", follow);
            self.back.endless("merging the index of messages", index::merge(messages.clone()));
        }
    }

    /// The load of `bench raft` goes to the first broker group.
    fn carry_load(&mut self) {
        let Some(load) = self.load else { return };
        let group = self.hosted[0].group.clone();
        let (live, data) = (Arc::clone(&self.live), self.config.data.clone());
        let (load, stop) = (load::run(load, group, live, data), self.front.stop());
        self.front.start("the load", async move {
            tokio::select! {
                ended = load => ended,
                () = stop.told() => Ok(()),
            }
        });
    }

    async fn open(&mut self) -> Result<(), NodeError> {
        self.readiness.stage("it is opening its logs and applying what is new");
        warn_of_strangers(&self.config);
        for name in &self.config.broker_groups {
            let hosted = Hosted::open(self.env.clone(), &self.config, name, &self.live).await?;
            self.hosted.push(hosted);
        }
        for Hosted { name, id, group, .. } in &self.hosted {
            self.readiness.opened(name.clone(), *id, group.clone());
            let upkeep = group.log().upkeep();
            // Ends by itself when the log is closed, which the replica's end does.
            std::thread::Builder::new()
                .name("upkeep".to_owned())
                .spawn(move || upkeep.run())
                .map_err(|source| NodeError::Thread { name: "upkeep", source })?;
            let (group, per_second) = (group.clone(), self.config.log.scrub_per_second);
            let stop = self.back.stop();
            self.back.start("the scrub", async move {
                tokio::select! {
                    damage = scrub::scrub(group, per_second) => Err(NodeError::Damaged { damage }),
                    () = stop.told() => Ok(()),
                }
            });
        }
        Ok(())
    }

    fn serve_peers(&mut self) {
        let listener = self.peer.take().expect("the peer port is bound and served once");
        let groups: Vec<Group> = self.hosted.iter().map(|hosted| hosted.group.clone()).collect();
        let routes = peer_service(&groups);
        let connections = grpc::listener::admitted(listener, admission(&self.config.listen), None);
        let stop = self.back.stop();
        self.back.start("the peer port", async move {
            let served = tonic::transport::Server::builder()
                .http2_keepalive_interval(Some(PEER_PING_INTERVAL))
                .http2_keepalive_timeout(Some(PEER_PING_TIMEOUT))
                .http2_max_pending_accept_reset_streams(Some(PEER_RESETS_MAX))
                .add_routes(routes)
                .serve_with_incoming(connections);
            tokio::select! {
                served = served => served.map_err(|error| NodeError::Task {
                    task: "the peer port",
                    reason: error.to_string(),
                }),
                () = stop.told() => Ok(()),
            }
        });
    }

    fn serve_clients(&mut self, broker: Broker) {
        let listener = self.grpc.take().expect("the gRPC port is bound and served once");
        let options = grpc::Options {
            admission: admission(&self.config.listen),
            tls: self.tls.take(),
            admin_from_anywhere: self.config.admin_from_anywhere,
        };
        let stop = self.front.stop();
        self.front.start("the gRPC port", async move {
            let served = grpc::serve(listener, broker, options, stop.told()).await;
            served.map_err(|error| NodeError::Task {
                task: "the gRPC port",
                reason: error.to_string(),
            })
        });
    }

    fn tell_durability(&self) {
        for Hosted { name, group, .. } in &self.hosted {
            let durability = group.durability();
            match durability {
                Durability::MajorityFsync => {
                    tracing::info!(broker_group = %name, %durability, "joined the broker group");
                }
                Durability::MajorityMemory => tracing::warn!(
                    broker_group = %name, %durability,
                    "joined the broker group; what it acknowledges is synced a little later, and \
                     is lost if a majority of its nodes loses power at once"
                ),
            }
        }
    }

    /// Returns the first thing that ends. A node that was taken out of the cluster serves no
    /// client any more, and goes on so that whoever looks at it is told why.
    async fn watch(&mut self) -> NodeError {
        tokio::select! {
            biased;
            error = self.back.first_end() => return error,
            error = self.front.first_end() => return error,
            error = first_fatal(&self.hosted) => return error,
            () = removed_from_all(&self.hosted) => {}
        }
        tracing::warn!("this node was removed from the cluster; it serves no clients any more");
        self.live.leave();
        self.readiness.stage("this node was removed from the cluster");
        std::mem::replace(&mut self.front, Tasks::new()).end(TASKS_END).await;
        tokio::select! {
            error = self.back.first_end() => error,
            error = first_fatal(&self.hosted) => error,
        }
    }

    async fn stop(self) {
        self.readiness.stage("it is stopping");
        self.live.leave();
        tokio::select! {
            () = hand_over_all(&self.hosted) => {}
            () = alone(&self.live) => {}
        }
        self.front.end(TASKS_END).await;
        join_all(self.hosted.into_iter().map(|hosted| hosted.group.end())).await;
        self.back.end(TASKS_END).await;
        tracing::info!("stopped");
    }
}

pub(super) fn admission(listen: &Listen) -> Admission {
    Admission {
        connections_max: usize::try_from(listen.connections_max).unwrap_or(usize::MAX),
        ..Admission::default()
    }
}

/// Returns once no other node stays. When all nodes leave at once there is nobody to hand over to,
/// and waiting for it would only take time.
async fn alone(live: &Live) {
    while live.somebody_stays() {
        tokio::time::sleep(STAY_POLL).await;
    }
}

/// Beside connections of clients there are segments, extents and connections between nodes.
const OTHER_HANDLES: u64 = 512;

fn enough_handles(config: &Config) {
    let allowed = take_all_handles();
    let wanted = u64::from(config.listen.connections_max) + OTHER_HANDLES;
    if allowed < wanted {
        tracing::warn!(
            allowed,
            wanted,
            "the system allows fewer open files than there may be connections; raise the limit \
             (ulimit -n) or lower listen.connections_max"
        );
    }
}

pub(super) async fn bind(
    what: &'static str,
    address: SocketAddr,
) -> Result<TcpListener, NodeError> {
    TcpListener::bind(address).await.map_err(|source| NodeError::Listen { what, address, source })
}
