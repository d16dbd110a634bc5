//! Who listens where, and the configuration file that says so to each node.

use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::base::{Durability, NodeId};
use crate::config::HostPort;
use crate::node::certificate;

use super::UpError;

/// More voters than that make Raft slower and not safer; `serve` has the same limit.
pub(super) const NODES_MAX: u64 = 9;
/// From one node to the next, by the promise of `--base-port`.
const STRIDE: u16 = 10;
/// The well-known ports: RocketMQ's proxy for gRPC; the others are ours.
const WELL_KNOWN: Ports = Ports { grpc: 8081, http: 5557, peer: 8082 };

/// The ports of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ports {
    pub(super) grpc: u16,
    pub(super) http: u16,
    pub(super) peer: u16,
}

/// One node to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) node: NodeId,
    pub(super) ports: Ports,
    /// `DIR/node-N` with N the node's id: its configuration, data and log.
    pub(super) dir: PathBuf,
}

/// Ports of the node with this place, counted from 0.
pub(super) fn ports(base: Option<u16>, place: u16) -> Result<Ports, UpError> {
    let first = match base {
        None => WELL_KNOWN,
        Some(0) => return Err(UpError::BasePortZero),
        Some(base) => {
            let beyond = || UpError::PortsBeyondEnd { base, place };
            let at = |offset| base.checked_add(offset).ok_or_else(beyond);
            Ports { grpc: base, http: at(1)?, peer: at(2)? }
        }
    };
    let beyond = || UpError::PortsBeyondEnd { base: first.grpc, place };
    let shift = place.checked_mul(STRIDE).ok_or_else(beyond)?;
    let move_on = |port: u16| port.checked_add(shift).ok_or_else(beyond);
    Ok(Ports { grpc: move_on(first.grpc)?, http: move_on(first.http)?, peer: move_on(first.peer)? })
}

/// `count` nodes under `data`.
pub(super) fn plan(data: &Path, count: u64, base: Option<u16>) -> Result<Vec<Planned>, UpError> {
    if count == 0 || count > NODES_MAX {
        return Err(UpError::Nodes { count, max: NODES_MAX });
    }
    let planned = |id: u64| {
        let place = u16::try_from(id - 1).expect("at most 9 nodes");
        let dir = data.join(format!("node-{id}"));
        Ok(Planned { node: NodeId::new(id), ports: ports(base, place)?, dir })
    };
    (1..=count).map(planned).collect()
}

impl Planned {
    pub(super) fn config_path(&self) -> PathBuf {
        self.dir.join("raftmq.toml")
    }

    pub(super) fn log_path(&self) -> PathBuf {
        self.dir.join("log.txt")
    }

    pub(super) fn data_path(&self) -> PathBuf {
        self.dir.join("data")
    }
}

/// How many nodes live under `data`; 0 when there is no cluster yet.
pub(super) fn existing(data: &Path) -> u64 {
    let there = |id: &u64| data.join(format!("node-{id}")).join("raftmq.toml").exists();
    u64::try_from((1..=NODES_MAX).take_while(there).count()).expect("at most 9")
}

/// Writes the file of each node. Settings that someone added to an existing file stay; what the
/// plan decides is overwritten.
pub(super) fn write_configs(
    nodes: &[Planned],
    broker_groups: Option<u16>,
    durability: Option<Durability>,
) -> Result<(), UpError> {
    for planned in nodes {
        fs::create_dir_all(&planned.dir).map_err(|source| UpError::file(&planned.dir, source))?;
        let path = planned.config_path();
        let mut table = read(&path)?;
        set_plan(&mut table, planned, nodes);
        if let Some(asked) = broker_groups {
            let fewer = |there| UpError::FewerGroups { path: path.clone(), there, asked };
            set_broker_groups(&mut table, asked).map_err(fewer)?;
        }
        if let Some(durability) = durability {
            set(&mut table, "broker", "durability", Value::from(durability.name()));
        }
        let text = format!("# Written by raftmq up, which keeps what you add.\n\n{table}");
        if fs::read_to_string(&path).is_ok_and(|old| old == text) {
            continue;
        }
        replace(&path, text.as_bytes())?;
    }
    Ok(())
}

/// A whole small file, old or new but never half.
pub(super) fn replace(path: &Path, content: &[u8]) -> Result<(), UpError> {
    let temporary = path.with_extension("tmp");
    fs::write(&temporary, content)
        .and_then(|()| fs::rename(&temporary, path))
        .map_err(|source| UpError::file(path, source))
}

fn read(path: &Path) -> Result<Table, UpError> {
    match fs::read_to_string(path) {
        Ok(text) => text
            .parse()
            .map_err(|source| UpError::Config { path: path.to_owned(), source: Box::new(source) }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Table::new()),
        Err(source) => Err(UpError::file(path, source)),
    }
}

fn set_plan(table: &mut Table, planned: &Planned, nodes: &[Planned]) {
    set_tls(table, planned);
    let local = |port| Value::from(HostPort::loopback(port).to_string());
    let id = |node: NodeId| Value::Integer(i64::try_from(node.get()).expect("at most 9"));
    let data = planned.data_path().to_string_lossy().into_owned();
    set(table, "node", "id", id(planned.node));
    set(table, "node", "data", Value::from(data));
    if table["node"].get("profile").is_none() {
        set(table, "node", "profile", Value::from("dev"));
    }
    set(table, "listen", "grpc", local(planned.ports.grpc));
    set(table, "listen", "http", local(planned.ports.http));
    set(table, "listen", "peer", local(planned.ports.peer));
    let member = |other: &Planned| {
        let mut member = Table::new();
        member.insert("id".into(), id(other.node));
        member.insert("peer".into(), local(other.ports.peer));
        member.insert("grpc".into(), local(other.ports.grpc));
        Value::Table(member)
    };
    table.insert("members".into(), Value::Array(nodes.iter().map(member).collect()));
}

/// Names that are there stay, since each stands for data; the error is those names.
fn set_broker_groups(table: &mut Table, asked: u16) -> Result<(), String> {
    let there = table.get("broker").and_then(|broker| broker.get("groups")).cloned();
    let mut names = match there {
        Some(Value::Array(names)) => names,
        Some(Value::String(names)) => {
            names.split(',').map(|name| Value::from(name.trim())).collect()
        }
        Some(_) | None => vec![Value::from("group-0")],
    };
    if names.len() > usize::from(asked) {
        let texts: Vec<_> = names.iter().filter_map(Value::as_str).collect();
        return Err(texts.join(", "));
    }
    let fresh = (0..).map(|number: u16| Value::from(format!("group-{number}")));
    for name in fresh {
        if names.len() == usize::from(asked) {
            break;
        }
        if !names.contains(&name) {
            names.push(name);
        }
    }
    set(table, "broker", "groups", Value::Array(names));
    Ok(())
}

/// All nodes have the one certificate of the cluster, so that a client needs one root. Somebody
/// else's stays; ours moves with the data.
fn set_tls(table: &mut Table, planned: &Planned) {
    let cluster = |node_data: &Path| node_data.parent()?.parent().map(certificate::own_files);
    let text = |section: &str, key: &str| table.get(section)?.get(key)?.as_str().map(Path::new);
    let named = [text("tls", "certificate"), text("tls", "key")];
    let old = text("node", "data").and_then(cluster);
    let ours = old.is_some_and(|old| named == [Some(&*old.certificate), Some(&*old.key)]);
    if !ours && (named != [None, None]) {
        return;
    }
    let files = cluster(&planned.data_path()).expect("DIR/node-N/data has two parents");
    let path = |path: PathBuf| Value::from(path.to_string_lossy().into_owned());
    set(table, "tls", "certificate", path(files.certificate));
    set(table, "tls", "key", path(files.key));
}

fn set(table: &mut Table, section: &str, key: &str, value: Value) {
    let section = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
    if !section.is_table() {
        *section = Value::Table(Table::new());
    }
    section.as_table_mut().expect("made a table above").insert(key.into(), value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;

    #[test]
    fn ports_are_those_of_the_promise() {
        let at = |grpc, http, peer| Ports { grpc, http, peer };
        assert_eq!(ports(None, 0).unwrap(), at(8081, 5557, 8082));
        assert_eq!(ports(None, 2).unwrap(), at(8101, 5577, 8102));
        assert_eq!(ports(Some(9000), 0).unwrap(), at(9000, 9001, 9002));
        assert_eq!(ports(Some(9000), 2).unwrap(), at(9020, 9021, 9022));
        assert!(ports(Some(65_534), 0).is_err());
        assert!(ports(Some(65_500), 4).is_err());
        assert!(ports(Some(0), 0).is_err());
    }

    #[test]
    fn no_port_is_planned_twice() {
        for base in [None, Some(20_000)] {
            let nodes = plan(Path::new("d"), NODES_MAX, base).unwrap();
            let mut all: Vec<u16> = nodes
                .iter()
                .flat_map(|planned| [planned.ports.grpc, planned.ports.http, planned.ports.peer])
                .collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 27);
        }
    }

    #[test]
    fn what_is_written_is_a_valid_configuration_and_keeps_additions() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(existing(dir.path()), 0);
        let nodes = plan(dir.path(), 3, Some(9000)).unwrap();
        write_configs(&nodes, None, None).unwrap();
        assert_eq!(existing(dir.path()), 3);

        let path = nodes[1].config_path();
        let load = || Sources { file: path.clone(), overlays: vec![] }.load().unwrap();
        assert_eq!(load().node, NodeId::new(2));
        assert_eq!(load().members.len(), 3);
        assert_eq!(load().advertise.grpc, HostPort::loopback(9010));
        assert!(load().create_on_use);

        let added = fs::read_to_string(&path).unwrap() + "\n[admin]\nfrom_anywhere = true\n";
        fs::write(&path, added).unwrap();
        write_configs(&nodes, None, None).unwrap();
        assert!(load().admin_from_anywhere);

        let own = certificate::own_files(dir.path());
        assert_eq!(load().tls, Some(own.clone()));
        let elsewhere = fs::read_to_string(&path).unwrap().replace("/tls/key", "/other/key");
        fs::write(&path, elsewhere).unwrap();
        write_configs(&nodes, None, None).unwrap();
        let key = dir.path().join("other/key.pem");
        assert_eq!(load().tls, Some(crate::config::TlsFiles { key, ..own }), "it was set by hand");
    }

    #[test]
    fn broker_groups_are_added_and_never_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let nodes = plan(dir.path(), 1, None).unwrap();
        let groups = || {
            let sources = Sources { file: nodes[0].config_path(), overlays: vec![] };
            let names = sources.load().unwrap().broker_groups;
            names.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        write_configs(&nodes, None, None).unwrap();
        assert_eq!(groups(), ["group-0"]);
        write_configs(&nodes, Some(3), None).unwrap();
        assert_eq!(groups(), ["group-0", "group-1", "group-2"]);
        let memory = Durability::MajorityMemory;
        write_configs(&nodes, None, Some(memory)).unwrap();
        write_configs(&nodes, None, None).unwrap();
        assert_eq!(groups().len(), 3, "what is there stays");
        let sources = Sources { file: nodes[0].config_path(), overlays: vec![] };
        let durability = sources.load().unwrap().durability;
        assert_eq!(durability.values().copied().collect::<Vec<_>>(), [memory; 3]);
        let error = write_configs(&nodes, Some(2), None).unwrap_err().to_string();
        assert!(error.contains("group-0, group-1, group-2"), "{error}");
    }

    #[test]
    fn the_certificate_moves_with_the_data() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        write_configs(&plan(&old, 1, None).unwrap(), None, None).unwrap();
        fs::rename(&old, &new).unwrap();
        let nodes = plan(&new, 1, None).unwrap();
        write_configs(&nodes, None, None).unwrap();
        let config = Sources { file: nodes[0].config_path(), overlays: vec![] }.load().unwrap();
        assert_eq!(config.tls, Some(certificate::own_files(&new)));
    }
}
