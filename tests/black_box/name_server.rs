//! A name server that runs alone: brokers register with it, and clients find topics through it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use raftmq::wire::rocketmq as v2;
use rustix::process::Signal;

use super::python_client::{check_once_and_equal, consumer, produce};
use crate::common::cluster::{Cluster, PATIENCE, Plan, RAFTMQ, free_ports, kill, wait_drained};
use crate::common::python::{count, deliveries};
use crate::common::raw::Raw;
use crate::common::{http, until};

const WITHIN: Duration = Duration::from_secs(60);
const MESSAGES: usize = 50;

struct NameServer {
    child: Child,
    base: u16,
}

impl NameServer {
    fn start(base: u16) -> Self {
        let setting =
            |port: &str, offset: u16| format!("listen.{port}=127.0.0.1:{}", base + offset);
        let child = Command::new(RAFTMQ)
            .args(["serve", "--role", "name-server"])
            .args(["--set", &setting("grpc", 0)])
            .args(["--set", &setting("http", 1)])
            .args(["--set", &setting("peer", 2)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, base }
    }

    fn at(&self, offset: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.base + offset))
    }

    fn wait_readiness(&self, wanted: u16, text: &str) {
        until("the name server says how it is", PATIENCE, || {
            let (status, said) = http::get(self.at(1), "/readyz").map_err(|e| e.to_string())?;
            if status == wanted && said.contains(text) { Ok(()) } else { Err(said) }
        });
    }

    /// The brokers of a topic's route.
    fn brokers(&self, topic: &str) -> Result<BTreeSet<String>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let topic = v2::Resource { name: topic.into(), ..v2::Resource::default() };
        let request = v2::QueryRouteRequest { topic: Some(topic), endpoints: None };
        let answer = runtime.block_on(async {
            Raw::connect(self.at(0)).await.query_route(request).await.map_err(|e| e.to_string())
        })?;
        let status = answer.status.unwrap();
        if status.code != i32::from(v2::Code::Ok) {
            return Err(status.message);
        }
        let name = |queue: v2::MessageQueue| queue.broker.unwrap().name;
        Ok(answer.message_queues.into_iter().map(name).collect())
    }

    fn wait_brokers(&self, topic: &str, wanted: &[&str]) {
        let wanted: BTreeSet<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        until(&format!("{wanted:?} are in the route"), PATIENCE, || {
            let brokers = self.brokers(topic)?;
            if brokers == wanted { Ok(()) } else { Err(format!("{brokers:?}")) }
        });
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn clients_find_topics_through_a_name_server_that_runs_alone() {
    let names = NameServer::start(free_ports(1));
    names.wait_readiness(503, "no broker is registered");
    let address = names.at(2).to_string();
    let environment = vec![("RAFTMQ_BROKER__NAME_SERVERS", address)];
    let cluster = Cluster::start(Plan { environment, ..Plan::of(3) });
    names.wait_readiness(200, "ready");

    let at = cluster.nodes()[0].grpc;
    cluster.tool(at, &["topic", "create", "found", "--queues", "4"]).unwrap();
    names.wait_brokers("found", &["node-1", "node-2", "node-3"]);

    // The official client is told nothing but the name server's address.
    let sent = produce(&cluster, names.at(0), "found", MESSAGES);
    for mode in ["simple", "push"] {
        let group = format!("found-{mode}");
        let mut script = consumer(&cluster, names.at(0), mode, "found", &group);
        script.wait("all has come", WITHIN, |lines| count(lines, "got") >= MESSAGES);
        wait_drained(&cluster, at, &group);
        check_once_and_equal(&deliveries(&script.finish()), &sent);
    }

    // Who falls silent leaves the route, also if it led.
    let leader = cluster.leader();
    kill(leader.pid, Signal::KILL);
    let rest: Vec<String> =
        (1..=3).filter(|node| *node != leader.node).map(|node| format!("node-{node}")).collect();
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    names.wait_brokers("found", &rest);

    // What it knows is soft: a new one has heard all live brokers soon.
    let base = names.base;
    drop(names);
    let names = NameServer::start(base);
    names.wait_readiness(200, "ready");
    names.wait_brokers("found", &rest);
}
