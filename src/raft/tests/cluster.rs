//! Groups in one process: each node has a runtime of its own, so that killing one drops everything
//! it had, as the end of a process would.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, sleep, timeout};
use tokio_stream::wrappers::TcpListenerStream;

use crate::base::{Durability, Millis, NodeId, TopicName};
use crate::command::{Command, CreateTopic, Reply};
use crate::env;
use crate::machine::Effect;
use crate::message::MessageKind;
use crate::raft::{
    Asked, Belonging, ChangeError, EffectSink, Group, Member, MemberChange, OpenError, Options,
    ProposeError, StartError, Status, Timing,
};

/// Whatever is waited for comes within this time, or the test fails.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

struct Echo(NodeId);

#[async_trait]
impl Asked for Echo {
    async fn answer(&self, from: NodeId, request: Bytes) -> Bytes {
        let text = String::from_utf8_lossy(&request);
        format!("{} to {from}: {text}", self.0).into()
    }
}

struct Deaf;

impl EffectSink for Deaf {
    fn applied(&self, _effects: Vec<Effect>) {}
}

/// One running node.
pub(super) struct Node {
    pub(super) group: Group,
    runtime: Option<Runtime>,
}

impl Drop for Node {
    /// A runtime must not be waited for where other tasks run.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Node {
    /// Runs something where the node's own tasks run.
    pub(super) async fn on<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.spawn(task).await.unwrap()
    }

    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime.as_ref().expect("the node runs").spawn(task)
    }

    pub(super) async fn create_topic(&self, name: &str) -> Result<Reply, ProposeError> {
        self.create_topic_by(name, Instant::now() + PATIENCE).await
    }

    pub(super) async fn create_topic_by(
        &self,
        name: &str,
        deadline: Instant,
    ) -> Result<Reply, ProposeError> {
        let group = self.group.clone();
        let command = create_topic(name);
        self.on(async move { group.propose(command, deadline).await }).await
    }

    pub(super) fn topics(&self) -> usize {
        self.group.read(|state| state.topics_count())
    }

    pub(super) fn status(&self) -> Status {
        self.group.status()
    }
}

/// Members with fixed addresses and directories, running or not.
pub(super) struct Cluster {
    dir: TempDir,
    members: Vec<Member>,
    /// Who is in the configuration of a node that is started now.
    configured: Vec<u64>,
    /// As configured, for nodes that are started now.
    pub(super) durability: Option<Durability>,
    nodes: Vec<Option<Node>>,
    starting: Option<JoinHandle<Result<(), StartError>>>,
}

impl Cluster {
    /// Nobody runs yet.
    pub(super) async fn new(count: u64) -> Self {
        let mut members = Vec::new();
        let mut held = Vec::new();
        for node in 1..=count {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let peer = listener.local_addr().unwrap().to_string();
            let grpc = format!("broker-{node}:8081");
            members.push(Member { node: NodeId::new(node), peer, grpc });
            held.push(listener);
        }
        let nodes = (0..count).map(|_| None).collect();
        let configured = (1..=count).collect();
        let dir = tempfile::tempdir().unwrap();
        Self { dir, members, configured, durability: None, nodes, starting: None }
    }

    /// The first ones, out of `count` that have a place.
    pub(super) async fn started_with(count: u64, first: &[u64]) -> Self {
        let mut cluster = Self::new(count).await;
        cluster.configured = first.to_vec();
        for (node, result) in cluster.start_all(first).await {
            assert_eq!(result, Ok(()), "node {node} did not start");
        }
        cluster.leader().await;
        cluster
    }

    pub(super) fn configure_only(&mut self, nodes: &[u64]) {
        self.configured = nodes.to_vec();
    }

    /// Nodes that are started from now on know of this one.
    pub(super) fn configure(&mut self, node: u64) {
        self.configured.push(node);
    }

    /// From its next start on, the node is somewhere else.
    pub(super) async fn relocate(&mut self, node: u64) {
        // Not where other tests look for free ports.
        let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
        self.members[index(node)].peer = listener.local_addr().unwrap().to_string();
    }

    pub(super) fn member(&self, node: u64) -> Member {
        self.members[index(node)].clone()
    }

    /// Starts a node that the group does not know, and returns while it waits.
    pub(super) async fn start_waiting(&mut self, node: u64) {
        let group = self.open(node).await;
        let mut belonging = group.belonging();
        self.starting = Some(self.node(node).spawn(async move { group.start().await }));
        let waiting = belonging.wait_for(|now| matches!(now, Belonging::Waiting { .. }));
        drop(timeout(PATIENCE, waiting).await.expect("the node waits to be added").unwrap());
    }

    /// How the start ended of the node that was last started to wait.
    pub(super) async fn started_waiting(&mut self) -> Result<(), StartError> {
        let starting = self.starting.take().expect("a node was started to wait");
        timeout(PATIENCE, starting).await.expect("the node starts or says why not").unwrap()
    }

    /// Makes a change at the leader, wherever it is, once none is under way.
    pub(super) async fn change(&self, change: MemberChange) -> Result<(), ChangeError> {
        let since = Instant::now();
        loop {
            let leader = self.node(self.leader().await);
            let (group, change) = (leader.group.clone(), change.clone());
            match leader.on(async move { group.change_members(change).await }).await {
                Err(ChangeError::UnderWay | ChangeError::NotLeader)
                    if since.elapsed() < PATIENCE => {}
                outcome => return outcome,
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// The leader knows the node to have everything that was there at the call.
    pub(super) async fn caught_up(&self, node: u64) {
        let leader = self.node(self.leader().await);
        let last = leader.status().last;
        eventually("the node has what the leader has", || {
            (leader.group.matched(NodeId::new(node)) >= last).then_some(())
        })
        .await;
    }

    /// All run, and one leads.
    pub(super) async fn started(count: u64) -> Self {
        let mut cluster = Self::new(count).await;
        let all: Vec<u64> = (1..=count).collect();
        for (node, result) in cluster.start_all(&all).await {
            assert_eq!(result, Ok(()), "node {node} did not start");
        }
        cluster.leader().await;
        cluster
    }

    pub(super) fn dir(&self, node: u64) -> PathBuf {
        self.dir.path().join(node.to_string())
    }

    fn options(&self, node: u64) -> Options {
        let configured = |member: &&Member| self.configured.contains(&member.node.get());
        let members = self.members.iter().filter(configured).cloned().collect();
        let mut options = Options::new(NodeId::new(node), self.dir(node), members);
        options.durability = self.durability;
        options.log.segment_bytes = 4 << 20;
        options.timing = Timing {
            heartbeat: Millis::new(100),
            election_min: Millis::new(500),
            election_max: Millis::new(1_000),
            idle: Millis::new(3_000),
        };
        options
    }

    /// Opens the files of a node that cannot be opened.
    pub(super) fn refused(&self, node: u64) -> OpenError {
        let asked = Arc::new(Echo(NodeId::new(node)));
        let opened = Group::open(env::os::env(), self.options(node), asked, Arc::new(Deaf));
        opened.expect_err("it was opened")
    }

    /// Opens a node and serves its peer port; it does not take part yet.
    pub(super) async fn open(&mut self, node: u64) -> Group {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let id = NodeId::new(node);
        let options = self.options(node);
        let address: SocketAddr = self.members[index(node)].peer.parse().unwrap();
        let opened = runtime.spawn(async move {
            let group =
                Group::open(env::os::env(), options, Arc::new(Echo(id)), Arc::new(Deaf)).unwrap();
            let listener = bind(address).await;
            let server = tonic::transport::Server::builder()
                .add_routes(crate::raft::peer_service(std::slice::from_ref(&group)));
            tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
            group
        });
        let group = opened.await.unwrap();
        self.nodes[index(node)] = Some(Node { group: group.clone(), runtime: Some(runtime) });
        group
    }

    pub(super) async fn start(&mut self, node: u64) -> Result<(), StartError> {
        let group = self.open(node).await;
        let node = self.node(node);
        let started = node.on(async move { group.start().await });
        timeout(PATIENCE, started).await.expect("the node starts or says why not")
    }

    /// Starts several at the same time, as they need each other.
    pub(super) async fn start_all(&mut self, nodes: &[u64]) -> Vec<(u64, Result<(), StartError>)> {
        let mut starting = Vec::new();
        for node in nodes {
            let group = self.open(*node).await;
            let started = self.node(*node).spawn(async move { group.start().await });
            starting.push((*node, started));
        }
        let mut results = Vec::new();
        for (node, started) in starting {
            let result = timeout(PATIENCE, started).await.expect("the node starts").unwrap();
            results.push((node, result));
        }
        results
    }

    pub(super) fn node(&self, node: u64) -> &Node {
        self.nodes[index(node)].as_ref().expect("the node runs")
    }

    pub(super) fn running(&self) -> impl Iterator<Item = (u64, &Node)> {
        let nodes = self.nodes.iter().zip(1..);
        nodes.filter_map(|(node, id)| node.as_ref().map(|node| (id, node)))
    }

    /// The node that serves as leader, once one does.
    pub(super) async fn leader(&self) -> u64 {
        eventually("a leader serves", || {
            let serves = |(_, node): &(u64, &Node)| node.group.leadership().borrow().serving;
            self.running().find(serves).map(|(id, _)| id)
        })
        .await
    }

    pub(super) async fn follower(&self) -> u64 {
        let leader = self.leader().await;
        self.running().map(|(id, _)| id).find(|id| *id != leader).expect("somebody follows")
    }

    /// Drops everything the node has; only its files stay.
    pub(super) async fn kill(&mut self, node: u64) {
        let node = self.nodes[index(node)].take().expect("the node runs");
        let shared = node.group.downgrade();
        node.group.crash().await;
        drop(node);
        eventually("the node is gone", || shared.upgrade().is_none().then_some(())).await;
    }

    /// Stops it as an operator would.
    pub(super) async fn shutdown(&mut self, node: u64) {
        let node = self.nodes[index(node)].take().expect("the node runs");
        let shared = node.group.downgrade();
        let group = node.group.clone();
        node.on(group.shutdown()).await;
        drop(node);
        eventually("the node is gone", || shared.upgrade().is_none().then_some(())).await;
    }

    /// All running nodes have applied the same entry and have the same state there.
    pub(super) async fn agree(&self) {
        self.agree_without(0).await;
    }

    /// The same, one node left out.
    pub(super) async fn agree_without(&self, stranger: u64) {
        eventually("all nodes have applied the same", || {
            let members = self.running().filter(|(node, _)| *node != stranger);
            let mut states = members.map(|(_, node)| {
                node.group
                    .read(|state| (state.applied(), state.hash(), state.units_hash().unwrap()))
            });
            let first = states.next()?;
            states.all(|state| state == first).then_some(())
        })
        .await;
    }
}

pub(super) fn create_topic(name: &str) -> Command {
    Command::CreateTopic(CreateTopic {
        name: TopicName::new(name).unwrap(),
        queues: 4,
        kinds: vec![MessageKind::Normal],
        keep: None,
    })
}

fn index(node: u64) -> usize {
    usize::try_from(node - 1).unwrap()
}

/// The port may still be closing.
async fn bind(address: SocketAddr) -> TcpListener {
    let since = Instant::now();
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => assert!(since.elapsed() < PATIENCE, "{address}: {error}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

pub(super) async fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(since.elapsed() < PATIENCE, "waited too long until {what}");
        sleep(Duration::from_millis(10)).await;
    }
}
