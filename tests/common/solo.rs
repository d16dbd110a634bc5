//! One node of a cluster, started again by itself, as an operator would.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::cluster::{Cluster, Node, RAFTMQ, check_ready};
use super::until;

/// Runs until dropped.
pub(crate) struct Solo {
    node: Node,
    config: PathBuf,
    environment: Vec<(&'static str, String)>,
    log: PathBuf,
    child: Child,
}

impl Solo {
    /// Starts a node that is not running. `name` tells its output apart from others.
    pub(crate) fn start(
        cluster: &Cluster,
        node: &Node,
        name: &str,
        environment: &[(&'static str, String)],
    ) -> Self {
        let config = cluster.data().join(format!("node-{}/raftmq.toml", node.node));
        let log = cluster.folder().join(format!("{name}.log"));
        let _ = fs::remove_file(&log);
        let environment = environment.to_vec();
        let child = spawn(&config, &log, &environment);
        Self { node: node.clone(), config, environment, log, child }
    }

    /// All that it has said.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits until it is ready; starts it again when it ends, at most twice.
    pub(crate) fn until_ready(&mut self, within: Duration) {
        let mut starts = 0;
        until("the node is ready", within, || {
            if let Some(status) = self.child.try_wait().unwrap() {
                starts += 1;
                assert!(starts <= 2, "it ended again with {status}, saying:\n{}", self.said());
                assert!(
                    !status.success(),
                    "a node that ends by itself does not say that all is well"
                );
                self.child = spawn(&self.config, &self.log, &self.environment);
            }
            check_ready(&self.node)
        });
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(config: &PathBuf, log: &PathBuf, environment: &[(&'static str, String)]) -> Child {
    let output = File::options().create(true).append(true).open(log).unwrap();
    Command::new(RAFTMQ)
        .args(["serve", "--config"])
        .arg(config)
        .envs(environment.iter().map(|(name, value)| (*name, value)))
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap()
}

impl Drop for Solo {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            super::cluster::print_tail(&self.log);
        }
    }
}
