//! A node that a test starts itself, beside those of `raftmq up`.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use super::cluster::{Cluster, Node, PATIENCE, RAFTMQ, print_tail};
use super::{http, until};

/// A running `raftmq serve`; killed when dropped.
pub(crate) struct ByHand {
    child: Child,
    pub(crate) node: Node,
    log: PathBuf,
}

impl ByHand {
    /// Starts the node with the files that `up` wrote for it.
    pub(crate) fn again(cluster: &Cluster, node: Node) -> Self {
        let dir = cluster.data().join(format!("node-{}", node.node));
        Self::serve(cluster, node, &dir)
    }

    /// Starts a node that is new, in a directory of its own, on ports that nobody has.
    pub(crate) fn new(cluster: &Cluster, id: u64) -> Self {
        // Beside what `up` looks after: it would count the folder as a node of its own.
        let dir = cluster.folder().join(format!("node-{id}"));
        fs::create_dir_all(&dir).unwrap();
        let node = cluster.spare_node(id);
        let listed = |node: &Node| {
            let Node { node: id, peer, grpc, .. } = node;
            format!("[[members]]\nid = {id}\npeer = \"{peer}\"\ngrpc = \"{grpc}\"\n")
        };
        let members: String =
            cluster.nodes().iter().chain([&node]).map(listed).collect::<Vec<_>>().join("\n");
        let groups = cluster.broker_groups().join(",");
        let Node { grpc, http, peer, .. } = &node;
        let text = format!(
            "[node]\nid = {id}\ndata = \"{}\"\nprofile = \"dev\"\n\n\
             [listen]\ngrpc = \"{grpc}\"\nhttp = \"{http}\"\npeer = \"{peer}\"\n\n\
             [broker]\ngroups = \"{groups}\"\n\n{members}",
            dir.join("data").display(),
        );
        fs::write(dir.join("raftmq.toml"), text).unwrap();
        Self::serve(cluster, node, &dir)
    }

    fn serve(cluster: &Cluster, node: Node, dir: &Path) -> Self {
        let log = dir.join("by-hand.txt");
        let output = File::options().create(true).append(true).open(&log).unwrap();
        let child = Command::new(RAFTMQ)
            .args(["serve", "--config"])
            .arg(dir.join("raftmq.toml"))
            .envs(cluster.environment())
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        Self { child, node: Node { pid, ..node }, log }
    }

    pub(crate) fn grpc(&self) -> SocketAddr {
        self.node.grpc
    }

    /// What the node has said.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the node tells why it is not ready, and that it is what is expected.
    pub(crate) fn wait_obstacle(&self, text: &str) {
        until(&format!("node {} says {text:?}", self.node.node), PATIENCE, || {
            let (status, body) = http::get(self.node.http, "/readyz").map_err(|e| e.to_string())?;
            if status != 200 && body.contains(text) {
                Ok(())
            } else {
                Err(format!("{status}: {body}"))
            }
        });
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn wait_end(&mut self) -> ExitStatus {
        until("a node ends by itself", PATIENCE, || {
            self.child.try_wait().unwrap().ok_or_else(|| "it runs".to_owned())
        })
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            print_tail(&self.log);
        }
    }
}
