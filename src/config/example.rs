//! The file that `raftmq config example` prints.

/// A valid file with every setting in it. Settings with a comment sign show their default.
pub const EXAMPLE: &str = r#"# RaftMQ, one node of a cluster of three. Check it with: raftmq serve --config FILE --check
#
# A flag (--set node.id=2) wins over an environment variable (RAFTMQ_NODE__ID=2: section, two
# underscores, key), which wins over this file. Unknown keys are refused. [[members]] can be set
# in the file only.

[node]
# This node's own number, from 1. A wiped disk comes back under a new one.
id = 1
# A directory for this node alone; it is locked while the node runs.
data = "/var/lib/raftmq"
# "production", or "dev": topics and groups on first use, segments and checkpoints of 64MiB.
profile = "production"

[listen]
# Addresses to bind. Clients and the command line use grpc, scrapers and probes use http,
# the other nodes use peer. The peer port has no authentication: keep it inside.
grpc = "0.0.0.0:8081"
http = "127.0.0.1:5557"
peer = "0.0.0.0:8082"
# Open connections at once, for each port; 16 to 1000000.
# connections_max = 4096

[advertise]
# What others are told: host names or IPv4 addresses. By default this node's entry of
# [[members]], or else what it binds.
grpc = "broker-1.example.org:8081"
peer = "broker-1.example.org:8082"

[tls]
# PEM files, both or none, read at start: this node's certificate with those that lead to its root
# behind it, and its key. The gRPC port then serves TLS and plaintext. Without them "dev" makes a
# certificate of its own (tls/certificate.pem in the data directory), and "production" serves
# plaintext only. The peer port is plaintext in any case.
# certificate = ""
# key = ""

# The nodes that found the cluster, this one among them, the same on all. Without any, the node is
# alone. A node that comes later lists the others and itself, and is added with raftmq cluster
# add-node. Afterwards the log has the last word on who belongs and where: a node that moved tells
# the others.
[[members]]
id = 1
peer = "broker-1.example.org:8082"
grpc = "broker-1.example.org:8081"

[[members]]
id = 2
peer = "broker-2.example.org:8082"
grpc = "broker-2.example.org:8081"

[[members]]
id = 3
peer = "broker-3.example.org:8082"
grpc = "broker-3.example.org:8081"

[log]
# Size of one segment file, 8MiB to 2GiB. One more is kept ready.
# segment_bytes = "1GiB"
# Log between two checkpoints, at least a quarter of a segment. It bounds the replay at start.
# checkpoint_bytes = "1GiB"
# How fast sealed segments are read again and checked, 1MiB to 4GiB.
# scrub_bytes_per_second = "64MiB"
# New messages are refused while the disks of a majority have less than this left for the log, 64MiB
# to 1024GiB; reading and acknowledging go on. By default four segments and 64MiB.
# reserve_bytes = "4160MiB"

[retention]
# How long a message stays at least, with ms, s, m, h or d; "0s" for ever. What the node that leads
# says counts, so give all nodes the same.
# time = "72h"
# Log bytes kept at most, for each broker group; 0 without a limit. Messages that nobody has
# consumed leave too, and are counted; those under way are kept.
# bytes = 0
# The front of the log moves in steps of this many bytes, 1MiB to 4GiB. By default a quarter of a
# segment, or a 16th of retention.bytes if that is less.
# stride_bytes = "256MiB"
# Bytes of messages under way that are kept when the front has passed them; beyond it nothing new
# is handed out. Delayed messages may have as many together, and those whose transactions are open;
# beyond it no more of them are taken. By default a quarter of retention.bytes, or this.
# under_way_bytes = "1GiB"

[raft]
# Milliseconds. A follower that hears nothing for a time between min and max stands for
# election; min is at least twice the heartbeat.
# heartbeat_ms = 100
# election_min_ms = 300
# election_max_ms = 600
# Requests that may be under way at this node, 16KiB to 1GiB. What drains in a fraction of a second
# is the bound, if that is less; a send beyond it is refused at once and told when to try again.
# under_way_bytes = "64MiB"

[broker]
# The broker groups of the cluster, the same on all nodes: each has a log and a leader of its own,
# and every node of [[members]] has a replica of each. A name may be added later, not removed. As a
# flag or variable: names separated by commas.
# groups = ["group-0"]
# Peer addresses of name servers that run alone (raftmq serve --role name-server); this node
# registers with all of them. Every node is a name server itself, so none is needed.
# name_servers = []
# What an OK stands for in broker groups that are created now: "majority-fsync" (on the disks of a
# majority) or "majority-memory" (in memory there and synced a little later: faster, and lost if a
# majority loses power at once); "NAME=MODE" is for one broker group, several with commas. Cannot be
# changed afterwards: a broker group that has another one is refused. Without it what there is counts.
# durability = "majority-fsync"
# Create topics and groups when a client first names them. By default true in "dev" only.
# create_on_use = false
# How far ahead a message may be delayed, 1ms to 730d; one for later is refused.
# delay_max = "730d"

[transactions]
# When a producer is first asked about a transactional message that nobody has committed or rolled
# back, where the message does not say so itself; how long from one check to the next, from 100ms;
# and after how many checks that reached a producer, 1 to 1000, the message is parked until an
# operator decides (raftmq transaction list). What the node that took the message in says counts.
# first_check = "6s"
# check_interval = "30s"
# checks_max = 15

[admin]
# Answer admin calls to any peer, not only to those of this machine.
# from_anywhere = false

[index]
# How fast the log is read to find messages by id and key, while that is far behind: after its files
# were lost, or on a new node; 4KiB to 4GiB.
# bytes_per_second = "64MiB"
"#;

#[cfg(test)]
mod tests {
    use super::super::{Config, Sources};
    use super::*;
    use crate::base::Durability;

    fn parse(text: &str) -> Config {
        Sources { file: "example".into(), overlays: Vec::new() }.parse(text).unwrap()
    }

    #[test]
    fn the_example_is_valid_and_shows_true_defaults() {
        let settings = EXAMPLE.lines().map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.contains(" = ") => rest,
            _ => line,
        });
        let uncommented: Vec<&str> = settings.collect();
        assert_eq!(uncommented.iter().filter(|line| line.contains(" = ")).count(), 42);
        // Saying the durability is more than not saying it: a broker group that has another one
        // is refused then.
        let shown = parse(&uncommented.join("\n"));
        assert!(shown.durability.values().all(|mode| *mode == Durability::default()));
        assert_eq!(Config { durability: Default::default(), ..shown }, parse(EXAMPLE));
    }
}
