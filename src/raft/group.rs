//! One replica of a broker group: opened, started, asked, stopped.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use bytes::Bytes;
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::time::{Duration, Instant, timeout};

use crate::base::{ClusterId, Durability, LogIndex, NodeId, Term, UtcMillis};
use crate::command::{Command, Reply};
use crate::commit_log::{CommitLog, Flusher, Identity};
use crate::env::{Clock, Disk, Env};
use crate::machine::{Machine, State, UnitsCursor};
use crate::raft::admission::{Admission, Class};
use crate::raft::awake::{self, Awake};
use crate::raft::belonging::{self, Belonging};
use crate::raft::bootstrap::{self, Joined, StartError};
use crate::raft::checkpoints::{self, Checkpoints};
use crate::raft::clock::BoundedClock;
use crate::raft::ending::Ending;
use crate::raft::floor;
use crate::raft::inflow::Refusing;
use crate::raft::leadership::{self, Leadership};
use crate::raft::log_store::{InstalledCell, LogStore};
use crate::raft::marks::{MarkFiles, Marks};
use crate::raft::network::Network;
use crate::raft::opening::{OpenError, check_identity, check_state, open_machine};
use crate::raft::options::{Member, Options};
use crate::raft::peers::{Channels, Peers};
use crate::raft::propose::{AskError, ProposeError};
use crate::raft::read::BarrierError;
use crate::raft::snapshot::SnapshotFile;
use crate::raft::state_machine::{StateMachine, Watched};
use crate::raft::transfer::TransferError;
use crate::raft::types::{Address, Types, index_of, members_of};
use crate::raft::vitals::{self, Health};
use crate::raft::{Asked, EffectSink};

pub(crate) type Raft = openraft::Raft<Types, StateMachine>;

/// How long stopping waits for the log's last entries to be synced.
const LAST_CHECKPOINT_DEADLINE: Duration = Duration::from_secs(5);

/// One replica of a broker group. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Group(Arc<Shared>);

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { node, group, .. } = &self.0.options;
        write!(f, "node {node} of broker group {group}")
    }
}

/// What a replica does in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Not joined yet, or ended.
    Down,
    Learner,
    Follower,
    Candidate,
    Leader,
}

impl Role {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Learner => "learner",
            Self::Follower => "follower",
            Self::Candidate => "candidate",
            Self::Leader => "leader",
        }
    }
}

/// A replica at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    pub role: Role,
    pub term: Term,
    pub leader: Option<NodeId>,
    /// The last entry in the log here.
    pub last: Option<LogIndex>,
    /// The last entry known here to be at a majority.
    pub committed: Option<LogIndex>,
    /// The last entry that the leader said was committed, here or not.
    pub group_committed: Option<LogIndex>,
    pub applied: Option<LogIndex>,
    /// The last entry that is on this node's disk.
    pub flushed: Option<LogIndex>,
}

/// A replica that has joined its group.
pub(crate) struct Running {
    pub(crate) raft: Raft,
    pub(crate) peers: Arc<Peers>,
    pub(crate) cluster: ClusterId,
}

/// What all clones of a [`Group`] and its peer port share.
pub(crate) struct Shared {
    pub(crate) env: Env,
    /// The one in `env` before it was put into bounds, which stamps go by.
    pub(crate) clock: Arc<BoundedClock>,
    pub(crate) vitals: vitals::Watch,
    pub(crate) refusing: Refusing,
    pub(crate) awake: Awake,
    pub(crate) options: Options,
    pub(crate) log: CommitLog,
    pub(crate) machine: Arc<RwLock<Machine>>,
    pub(crate) asked: Arc<dyn Asked>,
    pub(crate) ending: Ending,
    pub(crate) watched: Watched,
    pub(crate) leadership: watch::Sender<Leadership>,
    pub(crate) admission: Admission,
    pub(crate) channels: Arc<Channels>,
    pub(crate) identity: Mutex<Option<Identity>>,
    pub(crate) adopted: watch::Sender<Option<Identity>>,
    pub(crate) belonging: watch::Sender<Belonging>,
    /// A leader called since this was last looked at.
    pub(crate) heard: AtomicBool,
    /// Held while the members are changed.
    pub(crate) changing: tokio::sync::Mutex<()>,
    running: OnceLock<Running>,
    /// The end of raft is wanted.
    stopping: AtomicBool,
    /// Taken by the start.
    storage: Mutex<Option<(LogStore, StateMachine)>>,
}

impl Group {
    /// Opens log and state and starts the flusher. The replica joins its group in [`Self::start`];
    /// the peer port must be served by then.
    pub fn open(
        mut env: Env,
        options: Options,
        asked: Arc<dyn Asked>,
        sink: Arc<dyn EffectSink>,
    ) -> Result<Self, OpenError> {
        options.check()?;
        let clock = Arc::new(BoundedClock::new(env.clock));
        env.clock = clock.clone();
        let directory = |source| OpenError::Directory { path: options.dir.clone(), source };
        env.disk.create_dir_all(&options.dir).map_err(directory)?;
        let identity = Identity::load(&*env.disk, &options.dir)?;
        check_identity(identity, &options)?;
        let (log, flusher) = CommitLog::open(env.clone(), &options.dir.join("log"), options.log)?;
        if log.vote().is_none() && log.bounds().last.is_some() {
            return Err(OpenError::VoteLost);
        }
        let mut machine = open_machine(&env, &options)?;
        let ending = Ending::new();
        let installed: InstalledCell = InstalledCell::default();
        let snapshots = SnapshotFile { disk: env.disk.clone(), path: options.dir.join("snapshot") };
        let marks = MarkFiles::open(env.disk.clone(), options.dir.clone());
        let marks = marks.map_err(directory)?;
        let start = floor::restore(&mut machine, &log, &snapshots, &marks)?;
        check_state(&machine, &log, &snapshots, &installed)?;
        let log_store = LogStore::new(log.clone(), installed.clone(), ending.clone());
        let watched = Watched::new(&machine);
        let machine = Arc::new(RwLock::new(machine));
        let state_machine = StateMachine {
            machine: machine.clone(),
            sink,
            watched: watched.clone(),
            checkpoints: Checkpoints::new(machine.clone(), log_store.clone(), options.threads),
            marks: Marks::new(
                marks,
                log_store.clone(),
                options.threads,
                start,
                watched.floor.clone(),
            ),
            snapshots,
            installed,
            ending: ending.clone(),
        };
        run_flusher(flusher, &options, env.disk.clone()).map_err(OpenError::Thread)?;
        let admission = Admission::new(options.admission);
        let awake = Awake::new(&*clock, options.timing.election_min.duration() / 2);
        let channels = Arc::new(Channels::new(options.net.clone()));
        Ok(Self(Arc::new(Shared {
            env,
            clock,
            vitals: vitals::Watch::default(),
            refusing: Refusing::default(),
            awake,
            options,
            log,
            machine,
            asked,
            ending,
            watched,
            leadership: watch::Sender::new(Leadership::default()),
            admission,
            channels,
            identity: Mutex::new(identity),
            adopted: watch::Sender::new(identity),
            belonging: watch::Sender::new(Belonging::Starting),
            heard: AtomicBool::new(false),
            changing: tokio::sync::Mutex::new(()),
            running: OnceLock::new(),
            stopping: AtomicBool::new(false),
            storage: Mutex::new(Some((log_store, state_machine))),
        })))
    }

    /// Joins the group, founding it together with the other members if there is none yet. Returns
    /// when this replica takes part; a leader may not be known yet. Call it once.
    pub async fn start(&self) -> Result<(), StartError> {
        let shared = &self.0;
        let Joined { identity, initialise } = bootstrap::join(shared).await?;
        let Identity { cluster, durability, .. } = identity;
        let storage = shared.storage.lock().take();
        let (log_store, state_machine) = storage.ok_or(StartError::Again)?;
        let log_store = log_store.of(durability);
        shared.belonging.send_replace(Belonging::Starting);
        let Options { node, group, timing, .. } = &shared.options;
        let peers = Arc::new(Peers::new(cluster, *group, *node, shared.channels.clone()));
        let network = Network { peers: peers.clone(), idle: timing.idle() };
        let config = timing.config(*group, durability).validate();
        let config = Arc::new(config.map_err(|error| StartError::Raft(error.to_string()))?);
        let raft = Raft::new(node.get(), config, network, log_store, state_machine).await;
        let raft = raft.map_err(|error| StartError::Raft(shared.explain(&error)))?;
        let running = Running { raft: raft.clone(), peers, cluster };
        assert!(shared.running.set(running).is_ok(), "the storage was taken only once");
        tokio::spawn(watch_raft(shared.clone()));
        tokio::spawn(leadership::watch(shared.clone()));
        tokio::spawn(belonging::watch(shared.clone()));
        tokio::spawn(floor::watch(shared.clone()));
        tokio::spawn(vitals::keep(shared.clone()));
        tokio::spawn(awake::keep(shared.clone()));
        if initialise {
            // Refused when the log is not empty any more, which is as good.
            if let Err(error) = raft.initialize(first_members(&shared.options)).await {
                tracing::info!(%error, "the group was initialised already");
            }
        }
        Ok(())
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    /// Puts a command into the log, here or at the leader, and answers what applying it said.
    /// Waits for a leader where none is known; never longer than `deadline`.
    pub async fn propose(
        &self,
        command: Command,
        deadline: Instant,
    ) -> Result<Reply, ProposeError> {
        Box::pin(self.0.propose(command, deadline)).await
    }

    /// Whether messages of so many bytes would be refused for what is under way here: asked before
    /// they are turned into a command.
    pub fn has_room(&self, bytes: usize) -> Result<(), ProposeError> {
        let shared = &self.0;
        let standing = shared.vitals.standing();
        standing.check(Class::Message, bytes).map_err(|full| full.of(shared.options.node))?;
        let room = shared.admission.would_admit(Class::Message, bytes);
        room.map_err(|busy| busy.of(shared.options.node))
    }

    /// Looks at the state as it is here. Entries are not applied meanwhile, so `look` must be
    /// quick.
    pub fn read<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(self.0.machine.read().state())
    }

    /// Returns when the state here contains everything that was answered before the call.
    pub async fn read_barrier(&self) -> Result<(), BarrierError> {
        Box::pin(self.0.read_barrier()).await
    }

    /// Whether the entry was applied here by the deadline.
    pub async fn wait_applied(&self, index: LogIndex, deadline: Instant) -> bool {
        self.0.wait_applied(index, deadline).await
    }

    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.0.leadership.subscribe()
    }

    pub fn log(&self) -> &CommitLog {
        &self.0.log
    }

    pub fn node(&self) -> NodeId {
        self.0.options.node
    }

    pub fn members(&self) -> Vec<Member> {
        self.0.members()
    }

    /// `None` until the group is founded or joined.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.0.running().map(|running| running.cluster)
    }

    /// What an OK stands for here; before there is an identity, what it would be.
    pub fn durability(&self) -> Durability {
        self.0.durability()
    }

    /// A question to another node, which its [`Asked`] answers.
    pub async fn ask(
        &self,
        node: NodeId,
        request: Bytes,
        deadline: Instant,
    ) -> Result<Bytes, AskError> {
        Box::pin(self.0.ask(node, request, deadline)).await
    }

    pub fn status(&self) -> Status {
        self.0.status()
    }

    /// Whether this process has been running without a pause that another could have taken the
    /// leadership in. While not, nothing is to be answered as the leader.
    pub fn is_awake(&self) -> bool {
        self.0.awake.is_awake(&*self.0.clock)
    }

    /// How this replica's clock and disk compare with the others'.
    pub fn health(&self) -> Health {
        self.0.vitals.health()
    }

    /// What time it is, as far as a majority agrees: what stamps go by.
    pub fn wall(&self) -> UtcMillis {
        self.0.clock.wall()
    }

    /// Compares some queue units with what was appended; true at the end of a round. Damage ends the
    /// replica, and the next start derives all units again.
    pub fn check_units(&self, cursor: &mut UnitsCursor, budget: u64) -> bool {
        let checked = self.read(|state| state.check_units(cursor, budget));
        checked.unwrap_or_else(|error| {
            self.units_failed(&error);
            true
        })
    }

    /// A queue unit cannot be read or trusted: as [`Self::storage_failed`], and the next start
    /// derives all of them again.
    pub fn units_failed(&self, error: &dyn fmt::Display) {
        if let Err(error) = self.0.machine.read().note_doubt() {
            tracing::warn!(%error, "the damage cannot be noted for the next start");
        }
        self.storage_failed(error);
    }

    /// A derived file or the log cannot be read: the replica ends with this reason, as it does
    /// after any other storage error.
    pub fn storage_failed(&self, error: &dyn fmt::Display) {
        self.0.ending.note(&error.to_string());
    }

    /// Why this replica ended, once it did. It must not be used any further then.
    pub fn fatal(&self) -> watch::Receiver<Option<String>> {
        self.0.ending.watch()
    }

    /// Hands over what this node leads, stops taking part, and leaves a checkpoint so that the
    /// next start has little to apply.
    pub async fn shutdown(self) {
        match self.transfer_leadership().await {
            Ok(()) | Err(TransferError::NotLeader | TransferError::NobodyElse) => {}
            Err(error) => tracing::warn!(%error, "stopping without handing over"),
        }
        self.end().await;
    }

    /// As [`Self::shutdown`], for an owner that has handed over already or knows that nobody is
    /// left to hand over to.
    pub async fn end(self) {
        self.stop().await;
        let shared = &self.0;
        if shared.ending.reason().is_none() {
            let store =
                LogStore::new(shared.log.clone(), InstalledCell::default(), shared.ending.clone());
            let checkpoint = shared.machine.write().freeze();
            let left = checkpoints::publish(&store, checkpoint, shared.options.threads);
            match timeout(LAST_CHECKPOINT_DEADLINE, left).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "no checkpoint was left"),
                Err(_) => tracing::warn!("no checkpoint was left: the log was not synced in time"),
            }
        }
        shared.ending.finish();
    }

    /// Stops taking part without telling anybody, as a crash would.
    async fn stop(&self) {
        let Some(running) = self.0.running() else { return };
        self.0.stopping.store(true, Ordering::Release);
        if let Err(error) = running.raft.shutdown().await {
            tracing::warn!(%error, "raft did not stop cleanly");
        }
    }

    /// Stops at once, leaves nothing behind, and hands over nothing.
    #[cfg(test)]
    pub(crate) async fn crash(&self) {
        self.stop().await;
        self.0.ending.finish();
    }

    #[cfg(test)]
    pub(crate) fn downgrade(&self) -> std::sync::Weak<Shared> {
        Arc::downgrade(&self.0)
    }
}

/// A thread of its own, since it waits for the disk; a task where there are no threads.
fn run_flusher(flusher: Flusher, options: &Options, disk: Arc<dyn Disk>) -> io::Result<()> {
    if options.threads {
        let name = format!("flusher-{}", options.node);
        thread::Builder::new().name(name).spawn(move || flusher.run())?;
    } else {
        tokio::spawn(async move {
            while flusher.wait().await {
                // A simulated disk takes its time where a real one holds up the thread.
                let takes = disk.sync_takes();
                if !takes.is_zero() {
                    tokio::time::sleep(takes).await;
                }
                flusher.step();
            }
        });
    }
    Ok(())
}

impl Shared {
    pub(crate) fn running(&self) -> Option<&Running> {
        self.running.get()
    }

    pub(crate) fn members(&self) -> Vec<Member> {
        if let Some(running) = self.running() {
            let server = running.raft.server_metrics();
            let members = members_of(server.borrow_watched().membership_config.membership());
            if !members.is_empty() {
                return members;
            }
        }
        self.options.members.clone()
    }

    pub(crate) fn member(&self, node: NodeId) -> Option<Member> {
        self.members().into_iter().find(|member| member.node == node)
    }

    /// The exact reason where this room knows one, else what openraft says.
    fn explain(&self, error: &dyn fmt::Display) -> String {
        self.ending.reason().unwrap_or_else(|| error.to_string())
    }

    /// The last entry known here to be at a majority.
    pub(crate) fn committed(&self) -> Option<LogIndex> {
        self.status().committed
    }

    pub(crate) fn status(&self) -> Status {
        let bounds = self.log.bounds();
        let last = bounds.last.map(|(index, _)| index);
        let applied = self.watched.progress.borrow().index;
        let down = Status {
            role: Role::Down,
            term: self.log.vote().map_or(Term::ZERO, |vote| vote.term),
            leader: None,
            last,
            committed: None,
            group_committed: None,
            applied,
            flushed: bounds.flushed,
        };
        let Some(running) = self.running() else { return down };
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        Status {
            role: match metrics.state {
                ServerState::Learner => Role::Learner,
                ServerState::Follower => Role::Follower,
                ServerState::Candidate => Role::Candidate,
                ServerState::Leader => Role::Leader,
                ServerState::Shutdown => Role::Down,
            },
            term: Term::new(metrics.current_term),
            leader: metrics.current_leader.map(NodeId::new),
            committed: metrics.local_committed.as_ref().map(index_of),
            group_committed: metrics.cluster_committed.as_ref().map(index_of),
            ..down
        }
    }
}

/// Notes the reason when openraft ends. Waits on what changes rarely: the whole metrics are sent
/// anew in each turn of openraft's loop, and each time would wake this task.
async fn watch_raft(shared: Arc<Shared>) {
    let Some(running) = shared.running() else { return };
    let mut server = running.raft.server_metrics();
    while server.changed().await.is_ok() {}
    let state = running.raft.metrics().borrow_watched().running_state.clone();
    let reason = state.err().map_or_else(|| "raft stopped".to_owned(), |fatal| fatal.to_string());
    if !shared.stopping.load(Ordering::Acquire) {
        shared.ending.note(&reason);
    }
}

fn first_members(options: &Options) -> BTreeMap<u64, Address> {
    let address = |member: &Member| {
        let Member { node, peer, grpc } = member.clone();
        (node.get(), Address { peer, grpc })
    };
    options.members.iter().map(address).collect()
}
