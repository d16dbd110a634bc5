//! Name servers that run alone: being one, and telling them.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::net::TcpListener;

use crate::broker::{BrokerNode, Nodes};
use crate::client::Registrar;
use crate::config::{HostPort, NameServerConfig};
use crate::env::{Clock, os};
use crate::grpc::name_server::{Registry, serve_names, serve_registrations};
use crate::name_server::{EXPIRY, Registration, RouteTable, Standing};
use crate::{grpc, http, metrics};

use super::NodeError;
use super::hosted::Hosted;
use super::peers::Desk;
use super::run::{admission, bind};
use super::signals::Signals;
use super::tasks::Tasks;
use super::tls;

/// How often a node registers; a third of the expiry.
const INTERVAL: Duration = Duration::from_secs(1);
const TASKS_END: Duration = Duration::from_secs(3);

/// Runs a name server without a broker until it is told to stop (`Ok`) or cannot go on. It keeps
/// nothing: after a start it knows every live broker within a second.
pub async fn run_name_server(config: NameServerConfig) -> Result<(), NodeError> {
    let mut signals = Signals::listen()?;
    let mut tasks = Tasks::new();
    serve(&config, &mut tasks).await?;
    let ended = tokio::select! {
        told = signals.stop() => Ok(told),
        error = tasks.first_end() => Err(error),
    };
    match &ended {
        Ok(signal) => tracing::info!(signal, "stopping"),
        Err(error) => tracing::error!(%error, "ending"),
    }
    tasks.end(TASKS_END).await;
    ended.map(|_| ())
}

async fn serve(config: &NameServerConfig, tasks: &mut Tasks) -> Result<(), NodeError> {
    let (clients, probes, brokers) = (
        bind("grpc", config.listen.grpc).await?,
        bind("http", config.listen.http).await?,
        bind("peer", config.listen.peer).await?,
    );
    let names = Arc::new(Names::new(os::env().clock));
    let router = http::router(metrics::install(), Arc::clone(&names) as _);
    let connections_max = config.listen.connections_max;
    let options = http::Options { connections_max, ..http::Options::default() };
    let failed = |task, error: std::io::Error| NodeError::Task { task, reason: error.to_string() };
    let stop = tasks.stop();
    tasks.start("http", async move {
        let served = http::serve(probes, router, options, stop.told()).await;
        served.map_err(|error| failed("http", error))
    });
    let options = grpc::Options {
        admission: admission(&config.listen),
        tls: config.tls.as_ref().map(tls::read).transpose()?,
        admin_from_anywhere: false,
    };
    start(tasks, "the gRPC port", clients, (Arc::clone(&names), options.clone()), serve_clients);
    start(tasks, "the peer port", brokers, (names, options), serve_brokers);
    let (grpc, peer) = (config.listen.grpc, config.listen.peer);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %grpc, %peer, "a name server starts");
    Ok(())
}

type Parts = (Arc<Names>, grpc::Options);

fn start<F>(
    tasks: &mut Tasks,
    task: &'static str,
    listener: TcpListener,
    parts: Parts,
    serve: impl FnOnce(TcpListener, Parts, super::tasks::Stop) -> F,
) where
    F: Future<Output = std::io::Result<()>> + Send + 'static,
{
    let served = serve(listener, parts, tasks.stop());
    tasks.start(task, async move {
        served.await.map_err(|error| NodeError::Task { task, reason: error.to_string() })
    });
}

async fn serve_clients(
    listener: TcpListener,
    (names, options): Parts,
    stop: super::tasks::Stop,
) -> std::io::Result<()> {
    serve_names(listener, names, options, stop.told()).await
}

async fn serve_brokers(
    listener: TcpListener,
    (names, options): Parts,
    stop: super::tasks::Stop,
) -> std::io::Result<()> {
    serve_registrations(listener, names, options, stop.told()).await
}

/// What a name server that runs alone has heard.
#[derive(Debug)]
struct Names {
    clock: Arc<dyn Clock>,
    table: Mutex<RouteTable>,
}

impl Names {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, table: Mutex::new(RouteTable::new(EXPIRY)) }
    }
}

impl Registry for Names {
    fn register(&self, registration: Registration) {
        let now = self.clock.monotonic();
        let mut table = self.table.lock();
        table.register(registration, now);
        table.expire(now);
    }
}

impl Nodes for Names {
    fn live(&self) -> Vec<BrokerNode> {
        let now = self.clock.monotonic();
        let table = self.table.lock();
        let stays = table.nodes(now).into_iter().filter(|told| told.standing != Standing::Leaves);
        stays.map(node).collect()
    }
}

impl http::Readiness for Names {
    fn obstacles(&self) -> Vec<String> {
        if self.live().is_empty() {
            return vec!["no broker is registered".to_owned()];
        }
        Vec::new()
    }
}

pub(super) fn node(told: &Registration) -> BrokerNode {
    let Registration { node, name, host, port, .. } = told;
    BrokerNode { node: *node, name: name.clone(), host: host.clone(), port: *port }
}

/// Registers this node's replicas with name servers that run alone, once a second and at once when
/// a leadership moves. Never ends.
pub(super) async fn tell(replicas: Vec<Arc<Desk>>, addresses: Vec<HostPort>) {
    let mut registrars = Vec::new();
    for address in addresses {
        match Registrar::new(&address.to_string()) {
            Ok(registrar) => registrars.push((address, registrar)),
            Err(error) => tracing::error!(%address, %error, "no registration with a name server"),
        }
    }
    loop {
        let moved = replicas.iter().filter_map(|desk| desk.group.get()).map(|group| {
            let mut leadership = group.leadership();
            leadership.mark_unchanged();
            Box::pin(async move { leadership.changed().await })
        });
        let moved: Vec<_> = moved.collect();
        let told = registrars.iter().flat_map(|(address, registrar)| {
            replicas.iter().filter_map(|desk| desk.own()).map(move |own| async move {
                if let Err(error) = registrar.register(own.encode()).await {
                    tracing::debug!(%address, %error, "told again in the next round");
                }
            })
        });
        join_all(told).await;
        if moved.is_empty() {
            tokio::time::sleep(INTERVAL).await;
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            _ = futures::future::select_all(moved) => {}
        }
    }
}

pub(super) fn desks(hosted: &[Hosted]) -> Vec<Arc<Desk>> {
    hosted.iter().map(|hosted| Arc::clone(&hosted.desk)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{BrokerGroupId, NodeId, Term};
    use crate::http::Readiness;

    #[test]
    fn who_registered_and_does_not_leave_is_in_the_route() {
        let names = Names::new(os::env().clock);
        assert_eq!(names.obstacles(), ["no broker is registered"]);
        let told = |node: u64, standing| Registration {
            node: NodeId::new(node),
            said: 1,
            name: format!("node-{node}"),
            host: "h".into(),
            port: 1,
            group: BrokerGroupId::new(7),
            term: Term::new(1),
            standing,
            committed: 0,
        };
        names.register(told(2, Standing::Follows));
        names.register(told(1, Standing::Leaves));
        let live: Vec<_> = names.live().into_iter().map(|node| node.name).collect();
        assert_eq!(live, ["node-2"]);
        assert!(names.obstacles().is_empty());
    }
}
