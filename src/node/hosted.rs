//! The broker groups that this node has replicas of: opened together, joined together.

use std::sync::Arc;

use futures::future::{join_all, select_all, try_join_all};

use crate::base::{BrokerGroupId, BrokerGroupName};
use crate::broker::{Bell, Seat};
use crate::config::Config;
use crate::env::Env;
use crate::index::Index;
use crate::raft::{Belonging, Group, Options, TransferError, refill};

use super::live::Live;
use super::peers::{Desk, tell_now};
use super::{NodeError, index, raft_options, replica_dir};

/// A replica that still cannot be opened after so many attempts to mend it is not mended by more.
const MENDS_MAX: u32 = 3;

/// One replica and what goes with it.
#[derive(Debug)]
pub(super) struct Hosted {
    pub(super) name: BrokerGroupName,
    pub(super) id: BrokerGroupId,
    pub(super) group: Group,
    pub(super) desk: Arc<Desk>,
    bell: Bell,
    /// `None` when it could not be opened.
    pub(super) index: Option<Index>,
}

impl Hosted {
    /// Opening may replay much log, so it has a thread of its own.
    pub(super) async fn open(
        env: Env,
        config: &Config,
        name: &BrokerGroupName,
        live: &Arc<Live>,
    ) -> Result<Self, NodeError> {
        let options = raft_options(config, name);
        let (id, bell) = (name.id(), Bell::default());
        let desk = Arc::new(Desk::new(Arc::clone(live), id));
        let mut mends = 0;
        let group = loop {
            let (asked, sink) = (Arc::clone(&desk) as _, Arc::new(bell.clone()) as _);
            let (at, with) = (env.clone(), options.clone());
            let opening = tokio::task::spawn_blocking(move || Group::open(at, with, asked, sink));
            let opened = opening.await.map_err(|error| NodeError::Task {
                task: "opening the replica",
                reason: error.to_string(),
            })?;
            match opened {
                Ok(group) => break group,
                Err(error) if error.is_mendable() && mends < MENDS_MAX => {
                    mends += 1;
                    tracing::error!(broker_group = %name, %error, "not opened as it is");
                    mend(&env, &options, name).await?;
                }
                Err(source) => {
                    return Err(NodeError::Open { broker_group: name.clone(), source });
                }
            }
        };
        assert!(desk.group.set(group.clone()).is_ok(), "a desk has one replica");
        let dir = replica_dir(config, name).join("index");
        let log = group.log().clone();
        let opening = tokio::task::spawn_blocking(move || index::open(&env, &dir, &log));
        let index = opening.await.map_err(|error| NodeError::Task {
            task: "opening the index",
            reason: error.to_string(),
        })?;
        Ok(Self { name: name.clone(), id, group, desk, bell, index })
    }

    pub(super) fn seat(&self) -> Seat {
        let Self { name, group, bell, index, .. } = self;
        Seat { name: name.clone(), group: group.clone(), bell: bell.clone(), index: index.clone() }
    }

    /// The start, unless the replica ends meanwhile.
    async fn join(&self) -> Result<(), NodeError> {
        let broker_group = self.name.clone();
        let mut fatal = self.group.fatal();
        tokio::select! {
            started = self.group.start() => {
                started.map_err(|source| NodeError::Start { broker_group, source })
            }
            reason = ended(&mut fatal) => Err(NodeError::Replica { broker_group, reason }),
        }
    }

    /// Clients are still served meanwhile, by way of the next leader.
    async fn hand_over(&self) {
        let broker_group = &self.name;
        match self.group.transfer_leadership().await {
            Ok(()) => tracing::info!(%broker_group, "the leadership is handed over"),
            Err(TransferError::NotLeader | TransferError::NobodyElse) => {}
            Err(error) => {
                tracing::warn!(%broker_group, %error, "the leadership is not handed over");
            }
        }
    }
}

/// What is lost here is put back from other members. Reading a whole log blocks, so it has a thread
/// of its own.
async fn mend(env: &Env, options: &Options, name: &BrokerGroupName) -> Result<(), NodeError> {
    let (env, options) = (env.clone(), options.clone());
    let runtime = tokio::runtime::Handle::current();
    let mending = tokio::task::spawn_blocking(move || runtime.block_on(refill(&env, &options)));
    let mended = mending.await.map_err(|error| NodeError::Task {
        task: "mending the replica",
        reason: error.to_string(),
    })?;
    mended.map_err(|source| NodeError::Mend { broker_group: name.clone(), source })
}

pub(super) async fn join_groups(hosted: &[Hosted]) -> Result<(), NodeError> {
    try_join_all(hosted.iter().map(Hosted::join)).await.map(|_| ())
}

pub(super) async fn hand_over_all(hosted: &[Hosted]) {
    join_all(hosted.iter().map(|hosted| tell_now(&hosted.desk))).await;
    join_all(hosted.iter().map(Hosted::hand_over)).await;
}

/// The first replica that ends by itself.
pub(super) async fn first_fatal(hosted: &[Hosted]) -> NodeError {
    let fatal = |hosted: &Hosted| {
        let (broker_group, mut fatal) = (hosted.name.clone(), hosted.group.fatal());
        Box::pin(async move {
            let reason = ended(&mut fatal).await;
            NodeError::Replica { broker_group, reason }
        })
    };
    select_all(hosted.iter().map(fatal)).await.0
}

/// Returns once no broker group knows this node any more.
pub(super) async fn removed_from_all(hosted: &[Hosted]) {
    let removed = |hosted: &Hosted| {
        let mut belonging = hosted.group.belonging();
        async move {
            let removed = belonging.wait_for(|now| *now == Belonging::Removed);
            if removed.await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    join_all(hosted.iter().map(removed)).await;
}

async fn ended(fatal: &mut tokio::sync::watch::Receiver<Option<String>>) -> String {
    let reason = fatal.wait_for(Option::is_some).await.map(|reason| reason.clone());
    reason.ok().flatten().unwrap_or_else(|| "without a reason".to_owned())
}

/// Data of a broker group that is not configured any more would be forgotten silently.
pub(super) fn warn_of_strangers(config: &Config) {
    let Ok(entries) = std::fs::read_dir(&config.data) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let known = |group: &BrokerGroupName| *group.as_str() == *name;
        if entry.path().join("log").is_dir() && !config.broker_groups.iter().any(known) {
            tracing::warn!(
                directory = %entry.path().display(),
                "there is data of a broker group that broker.groups does not name; its messages \
                 are not served"
            );
        }
    }
}
