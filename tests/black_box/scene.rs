//! A client before a cluster, and a topic and a group for one story of it.
//!
//! What the matrices of official clients share: starting a client's programs, killing the leader
//! and waiting until it is back, and what holds for everything that is received.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::client_matrix::{ById, check_content, check_no_acked_again, kill_now, tally};
use crate::common::cluster::{Cluster, Node, PATIENCE, check_ready};
use crate::common::cluster::{wait_acknowledged, wait_drained};
use crate::common::driver::{Content, Received, Sent, Task};
use crate::common::driver::{count, errors, received, received_ids, told};
use crate::common::official::Client;
use crate::common::script::Script;
use crate::common::until;

/// How long a step of a story may take, on a machine that other tests keep busy.
pub(super) const WITHIN: Duration = Duration::from_secs(90);

/// A client before a cluster.
pub(super) struct Stand<'c> {
    pub(super) client: Client,
    pub(super) cluster: &'c Cluster,
}

/// What a cell works with: a topic and a group of its own, and where its programs connect.
pub(super) struct Scene<'s> {
    pub(super) stand: &'s Stand<'s>,
    pub(super) kill: bool,
    pub(super) at: SocketAddr,
    pub(super) topic: String,
    pub(super) group: String,
    pub(super) gate: PathBuf,
}

/// A leader that was killed.
pub(super) struct Killed {
    node: Node,
    pub(super) at_ms: u64,
}

impl Stand<'_> {
    /// A new topic of this kind, and a group.
    pub(super) fn scene(&self, name: &str, kind: &str, kill: bool) -> Scene<'_> {
        let topic = format!("{name}{}", if kill { "-killed" } else { "" });
        let scene = self.scene_at(&topic, &format!("{topic}-group"), kill);
        let words = ["topic", "create", &topic, "--queues", "4", "--type", kind];
        self.cluster.tool(scene.at, &words).unwrap();
        scene
    }

    /// A topic that is there.
    pub(super) fn scene_at(&self, topic: &str, group: &str, kill: bool) -> Scene<'_> {
        // What the cell before killed is back, even where it failed.
        self.wait_whole();
        // A node that follows, so that it outlives the leader.
        let at = self.cluster.a_follower().grpc;
        let gate = self.cluster.folder().join(format!("{group}.gate"));
        Scene { stand: self, kill, at, topic: topic.to_owned(), group: group.to_owned(), gate }
    }

    fn wait_whole(&self) {
        until("all nodes are ready", PATIENCE, || {
            self.cluster.try_nodes()?.iter().try_for_each(check_ready)
        });
    }
}

impl Scene<'_> {
    pub(super) fn task<'a>(&'a self, command: &'a str) -> Task<'a> {
        let consumes = matches!(command, "simple" | "push" | "invisible");
        let group = if consumes { &self.group } else { "" };
        Task { group, ..Task::of(command, self.at, &self.topic) }
    }

    /// Starts a program, without waiting until its client has started.
    pub(super) fn launch(&self, task: &Task<'_>, what: &str) -> Script {
        let label = format!("{}-{what}", self.group);
        task.start(self.stand.client, self.stand.cluster.folder(), &label)
    }

    /// A consumer and a producer, which start side by side.
    pub(super) fn start(&self, consumer: &Task<'_>, producer: &Task<'_>) -> [Script; 2] {
        [self.launch(consumer, "consumer"), self.launch(producer, "producer")].map(started)
    }

    /// Kills the leader, where that is the story.
    pub(super) fn kill_leader(&self) -> Option<Killed> {
        let node = self.kill.then(|| self.stand.cluster.leader())?;
        let at_ms = kill_now(&node);
        Some(Killed { node, at_ms })
    }

    pub(super) fn wait_back(&self, killed: Option<Killed>) {
        let Some(killed) = killed else { return };
        until("the killed node is back", PATIENCE, || {
            let nodes = self.stand.cluster.try_nodes()?;
            let back = nodes.iter().all(|node| node.pid != killed.node.pid);
            if back { Ok(()) } else { Err(format!("node {} is not back", killed.node.node)) }
        });
        self.stand.wait_whole();
    }

    /// Nothing fails while all nodes live; else it is told. A poll may: the Rust client waits for
    /// its answer no longer than the server does for messages.
    pub(super) fn check_errors(&self, lines: &[Value], whats: &[&str]) {
        for what in whats {
            let texts = errors(lines, what);
            assert!(self.kill || *what == "receive" || texts.is_empty(), "{what}: {texts:?}");
            for (text, times) in tally(&texts) {
                println!("{:?}, {}: {times} × {what}: {text}", self.stand.client, self.topic);
            }
        }
    }

    /// Waits until these messages came and the group has nothing left; all that came.
    pub(super) fn receive_all(
        &self,
        mut consumer: Script,
        wanted: &BTreeSet<&str>,
    ) -> Vec<Received> {
        consumer.wait("all is received", WITHIN, |lines| wanted.is_subset(&received_ids(lines)));
        wait_drained(self.stand.cluster, self.at, &self.group);
        self.cut(consumer)
    }

    /// As `receive_all`, without waiting until the log knows that nobody wants the rest.
    pub(super) fn receive_wanted(
        &self,
        mut consumer: Script,
        wanted: &BTreeSet<&str>,
    ) -> Vec<Received> {
        consumer.wait("all is received", WITHIN, |lines| wanted.is_subset(&received_ids(lines)));
        wait_acknowledged(self.stand.cluster, self.at, &self.group);
        self.cut(consumer)
    }

    /// Ends a consumer; all that came.
    fn cut(&self, consumer: Script) -> Vec<Received> {
        let lines = consumer.cut();
        let got = received(&lines);
        check_no_acked_again(&got, &told(&lines, "acked"));
        self.check_errors(&lines, &["ack", "receive"]);
        got
    }

    /// All that came are these and as they were sent, once each; a kill may let one come again
    /// that was not acknowledged.
    pub(super) fn check_received(&self, got: &[Received], wanted: &[&Sent]) {
        let wanted: ById =
            wanted.iter().map(|sent| (sent.id.clone(), Content::of(sent.number))).collect();
        check_content(got, &wanted);
        assert!(self.kill || got.len() == wanted.len(), "something came twice: {got:?}");
    }
}

/// Waits until its client has started.
pub(super) fn started(mut script: Script) -> Script {
    script.wait("the client starts", WITHIN, |lines| count(lines, "started") == 1);
    script
}
