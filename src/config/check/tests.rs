use super::*;
use crate::config::{ConfigError, Sources};

fn parse(text: &str) -> Result<Config, ConfigError> {
    Sources { file: "raftmq.toml".into(), overlays: Vec::new() }.parse(text)
}

fn broken(text: &str) -> RelationError {
    match parse(text) {
        Err(ConfigError::Relation(relation)) => relation,
        other => panic!("expected a broken relation, got {other:?}"),
    }
}

const NODE: &str = "[node]\nid = 2\ndata = \"d\"\n";

fn with(rest: &str) -> String {
    format!("{NODE}{rest}")
}

fn member(id: u64, port: u16) -> String {
    format!("[[members]]\nid = {id}\npeer = \"h:{port}\"\ngrpc = \"h:{}\"\n", port + 1)
}

#[test]
fn a_node_alone_needs_an_id_and_a_directory() {
    let config = parse(NODE).unwrap();
    assert_eq!(config.profile, Profile::Production);
    assert_eq!(config.log.segment, ByteSize::gib(1));
    assert!(!config.create_on_use);
    assert_eq!(config.members.len(), 1);
    assert_eq!(config.members[0].grpc, HostPort::loopback(8081));
    assert_eq!(broken("[node]\ndata = \"d\"\n"), RelationError::NoNodeId);
    assert_eq!(broken("[node]\nid = 0\ndata = \"d\"\n"), RelationError::NodeIdZero);
    assert_eq!(broken("[node]\nid = 1\n"), RelationError::NoData);
    assert_eq!(broken("[node]\nid = 1\ndata = \"\"\n"), RelationError::NoData);
}

#[test]
fn the_dev_profile_is_a_set_of_defaults_that_can_be_changed() {
    let dev = format!("{NODE}profile = \"dev\"\n");
    let config = parse(&dev).unwrap();
    assert_eq!(config.log.segment, ByteSize::mib(64));
    assert!(config.create_on_use);
    let config = parse(&format!("{dev}[broker]\ncreate_on_use = false\n")).unwrap();
    assert!(!config.create_on_use);
    assert!(parse(&format!("{NODE}profile = \"test\"\n")).is_err());
}

#[test]
fn tls_has_a_certificate_and_a_key_or_neither() {
    assert_eq!(parse(NODE).unwrap().tls, None);
    let tls = parse(&with("[tls]\ncertificate = \"c.pem\"\nkey = \"k.pem\"\n")).unwrap().tls;
    let files = TlsFiles { certificate: "c.pem".into(), key: "k.pem".into() };
    assert_eq!(tls, Some(files));
    assert_eq!(parse(&with("[tls]\ncertificate = \"\"\n")).unwrap().tls, None);
    let half = |set: &'static str, not| RelationError::HalfTls { set, path: "x".into(), not };
    assert_eq!(broken(&with("[tls]\ncertificate = \"x\"\n")), half("certificate", "key"));
    let no_certificate = "[tls]\nkey = \"x\"\ncertificate = \"\"\n";
    assert_eq!(broken(&with(no_certificate)), half("key", "certificate"));
}

#[test]
fn members_agree_with_the_node_and_with_each_other() {
    let three = [member(3, 30), member(1, 10), member(2, 20)].concat();
    let config = parse(&with(&three)).unwrap();
    let ids: Vec<u64> = config.members.iter().map(|member| member.node.get()).collect();
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!(config.advertise.peer, "h:20".parse().unwrap());

    let not = broken(&with(&[member(1, 10), member(3, 30)].concat()));
    assert_eq!(not, RelationError::NotAMember { node: NodeId::new(2), members: "1, 3".into() });
    let twice = broken(&with(&[member(2, 10), member(2, 30)].concat()));
    assert!(twice.to_string().contains("h:10") && twice.to_string().contains("h:30"), "{twice}");
    let same = broken(&with(&[member(1, 20), member(2, 20)].concat()));
    assert!(matches!(same, RelationError::AddressTwice { what: "peer", .. }));
    let many: String = (1..=10).map(|id| member(id, u16::try_from(id * 10).unwrap())).collect();
    assert_eq!(broken(&with(&many)), RelationError::TooManyMembers { count: 10, max: 9 });
}

#[test]
fn the_advertised_address_is_one_that_others_can_call() {
    let own = member(2, 20);
    let differs = broken(&with(&format!("[advertise]\npeer = \"other:20\"\n{own}")));
    assert!(matches!(differs, RelationError::AdvertiseDiffers { what: "peer", .. }));
    let nobody = broken(&with("[listen]\ngrpc = \"0.0.0.0:8081\"\n"));
    assert!(matches!(nobody, RelationError::NoAdvertise { what: "grpc", .. }));
    let named = "[listen]\ngrpc = \"0.0.0.0:8081\"\n[advertise]\ngrpc = \"name:9\"\n";
    assert_eq!(parse(&with(named)).unwrap().advertise.grpc, "name:9".parse().unwrap());
    assert!(parse(&with("[advertise]\ngrpc = \"name\"\n")).is_err());
}

#[test]
fn each_listener_has_its_own_port() {
    let same = broken(&with("[listen]\ngrpc = \"127.0.0.1:7\"\npeer = \"127.0.0.1:7\"\n"));
    assert!(matches!(same, RelationError::SamePort { first: "grpc", second: "peer", .. }));
    let covered = broken(&with("[listen]\nhttp = \"0.0.0.0:7\"\npeer = \"127.0.0.1:7\"\n"));
    assert!(matches!(covered, RelationError::SamePort { first: "http", second: "peer", .. }));
    let apart = "[listen]\nhttp = \"127.0.0.1:7\"\npeer = \"127.0.0.2:7\"\n";
    assert!(parse(&with(apart)).is_ok());
    let few = broken(&with("[listen]\nconnections_max = 1\n"));
    assert_eq!(few, RelationError::Connections { value: 1, min: 16, max: 1_000_000 });
}

#[test]
fn sizes_keep_within_limits_and_to_each_other() {
    let small = broken(&with("[log]\nsegment_bytes = \"4MiB\"\n"));
    assert!(small.to_string().contains("4MiB") && small.to_string().contains("8MiB"), "{small}");
    let rare = broken(&with("[log]\nsegment_bytes = \"1GiB\"\ncheckpoint_bytes = \"64MiB\"\n"));
    assert_eq!(
        rare,
        RelationError::CheckpointBelowSegment {
            checkpoint: ByteSize::mib(64),
            segment: ByteSize::gib(1)
        }
    );
    let plain = parse(&with("[log]\nsegment_bytes = 16777216\n")).unwrap();
    assert_eq!(plain.log.segment, ByteSize::mib(16));
    assert!(parse(&with("[log]\nsegment_bytes = -1\n")).is_err());
    let off = broken(&with("[index]\nbytes_per_second = 0\n"));
    assert!(matches!(off, RelationError::Index { what: "bytes_per_second", .. }));
    let off = broken(&with("[log]\nscrub_bytes_per_second = 0\n"));
    assert!(matches!(off, RelationError::Size { what: "scrub_bytes_per_second", .. }));
}

#[test]
fn elections_wait_for_more_than_one_heartbeat_and_spread() {
    let early = broken(&with("[raft]\nheartbeat_ms = 200\n"));
    let expected = RelationError::ElectionBeforeHeartbeat { election_min: 300, heartbeat: 200 };
    assert_eq!(early, expected);
    let together = broken(&with("[raft]\nelection_min_ms = 600\n"));
    let expected = RelationError::ElectionSpread { election_min: 600, election_max: 600 };
    assert_eq!(together, expected);
    let long = broken(&with("[raft]\nelection_max_ms = 60001\n"));
    assert_eq!(long, RelationError::ElectionTooLong { value: 60_001, max: 60_000 });
    let hasty = broken(&with("[raft]\nheartbeat_ms = 1\n"));
    assert_eq!(hasty, RelationError::Heartbeat { value: 1, min: 10, max: 10_000 });
}

#[test]
fn broker_groups_have_names_of_their_own() {
    let with = |groups: &str| {
        let text = format!("[node]\nid = 1\ndata = \"d\"\n[broker]\n{groups}\n");
        Sources { file: "raftmq.toml".into(), overlays: vec![] }.parse(&text)
    };
    let names = |groups: &str| -> Vec<String> {
        let config = with(groups).unwrap();
        config.broker_groups.iter().map(ToString::to_string).collect()
    };
    assert_eq!(names(""), ["group-0"]);
    assert_eq!(names("groups = [\"b\", \"a\"]"), ["a", "b"]);
    assert_eq!(names("groups = \"b, a\""), ["a", "b"]);
    for wrong in ["groups = []", "groups = \"a,a\"", "groups = \"a,\"", "groups = \"../a\""] {
        let error = with(wrong).unwrap_err().to_string();
        assert!(error.contains("broker.groups"), "{wrong}: {error}");
    }
}

#[test]
fn durability_is_said_for_all_broker_groups_or_for_one() {
    let with = |broker: &str| {
        let text = format!("[broker]\ngroups = \"a, b\"\ndurability = {broker}\n");
        parse(&with(&text))
    };
    let modes = |broker: &str| -> Vec<String> {
        let durability = with(broker).unwrap().durability;
        durability.iter().map(|(group, mode)| format!("{group}={mode}")).collect()
    };
    assert!(parse(NODE).unwrap().durability.is_empty());
    assert_eq!(modes("\"majority-memory\""), ["a=majority-memory", "b=majority-memory"]);
    assert_eq!(modes("\"b=majority-memory\""), ["b=majority-memory"]);
    let both = "[\"majority-fsync\", \"a = majority-memory\"]";
    assert_eq!(modes(both), ["a=majority-memory", "b=majority-fsync"]);
    for wrong in ["\"fsync\"", "\"c=majority-fsync\"", "\"a=majority-fsync,a=majority-memory\""] {
        let error = with(wrong).unwrap_err().to_string();
        assert!(error.contains("broker.durability") && error.contains("NAME=MODE"), "{error}");
    }
}

#[test]
fn checks_of_transactions_have_bounds() {
    let settings = parse(NODE).unwrap().transactions;
    let default = (Millis::from_secs(6), Millis::from_secs(30), 15);
    assert_eq!((settings.first_check, settings.check_interval, settings.checks_max), default);
    let set = "[transactions]\nfirst_check = \"0s\"\ncheck_interval = \"1s\"\nchecks_max = 3\n";
    let settings = parse(&with(set)).unwrap().transactions;
    let told = (Millis::ZERO, Millis::from_secs(1), 3);
    assert_eq!((settings.first_check, settings.check_interval, settings.checks_max), told);
    let (what, min, max) = ("check_interval", CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX);
    let short = RelationError::Transactions { what, value: 99, min, max };
    assert_eq!(broken(&with("[transactions]\ncheck_interval = \"99ms\"\n")), short);
    let never = RelationError::Transactions { what: "checks_max", value: 0, min: 1, max: 1000 };
    assert_eq!(broken(&with("[transactions]\nchecks_max = 0\n")), never);
}
