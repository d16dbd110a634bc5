//! Connections that are no client: garbage, silence, and sizes without sense, on every port.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::common::cluster::{Cluster, Node, PATIENCE, Plan};
use crate::common::raw::{Raw, message};
use crate::common::until;

/// How soon everything a bad connection took must be free again.
const FREE_WITHIN: Duration = Duration::from_secs(60);
/// Of each kind on each port of each node: 9 ports and 10 kinds make several hundred connections.
const EACH: usize = 4;
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// An HTTP/2 frame whose header may say any length.
fn frame(length: u32, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn after_preface(frames: &[Vec<u8>]) -> Vec<u8> {
    let settings = frame(0, 4, 0, 0, &[]);
    [HTTP2_PREFACE, &settings, &frames.concat()].concat()
}

/// One header, literal and without indexing, in the plainest form HPACK has.
fn header(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| {
        let length = u8::try_from(text.len()).unwrap();
        assert!(length < 127, "longer texts need a second length byte");
        [&[length], text.as_bytes()].concat()
    };
    [vec![0], text(name), text(value)].concat()
}

/// A gRPC call whose one message claims to have 4 GiB and never comes.
fn endless_message() -> Vec<u8> {
    let headers = [
        header(":method", "POST"),
        header(":scheme", "http"),
        header(":path", "/apache.rocketmq.v2.MessagingService/SendMessage"),
        header(":authority", "raftmq"),
        header("content-type", "application/grpc"),
        header("te", "trailers"),
        header("x-mq-client-id", "storm"),
    ]
    .concat();
    let length = u32::try_from(headers.len()).unwrap();
    let prefix = [0, 0xff, 0xff, 0xff, 0xff];
    after_preface(&[frame(length, 1, 4, 1, &headers), frame(5, 0, 0, 1, &prefix)])
}

/// What is said on connect; then the connection stays open and silent.
fn kinds() -> Vec<(&'static str, Vec<u8>)> {
    let noise: Vec<u8> =
        (0..4096_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    vec![
        ("silence", Vec::new()),
        ("noise", noise),
        ("half a preface", HTTP2_PREFACE[..10].to_vec()),
        ("a preface and silence", after_preface(&[])),
        ("a TLS hello", [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc][..], &[7; 200]].concat()),
        ("noise in a TLS record", [&[0x16, 3, 3, 0, 200][..], &[7; 200]].concat()),
        ("half a request", b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Half: ".to_vec()),
        ("an endless header", [&b"GET / HTTP/1.1\r\nX: "[..], &[b'a'; 1 << 20]].concat()),
        ("an oversized frame", after_preface(&[frame(0xff_ffff, 0, 0, 1, &[0; 100_000])])),
        ("an endless message", endless_message()),
    ]
}

/// Open descriptors and anonymous memory in KiB, as the kernel counts them.
fn usage(pid: i32) -> (usize, u64) {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    (descriptors, line.trim().trim_end_matches(" kB").parse().unwrap())
}

/// Connects and says it; the answer, if any, is of no interest. The server may close at any time.
fn open(address: SocketAddr, say: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let _ = stream.write_all(say);
    stream
}

/// What clients ordinarily do, at every node; their connections are closed when it returns.
async fn work(nodes: &[Node], sends: usize) {
    for node in nodes {
        let mut raw = Raw::connect(node.grpc).await;
        for n in 0..sends {
            let id = format!("{}-{n}", node.node);
            assert_eq!(raw.send(vec![message("calm", &id, "x")]).await.0, 20000);
        }
    }
    // Our side of a connection is a task of this thread, which must come to its end.
    tokio::time::sleep(Duration::from_millis(200)).await;
}

#[tokio::test]
async fn bad_connections_leave_nothing_behind() {
    let cluster = Cluster::start(Plan::of(3));
    cluster.wait_equal(PATIENCE);
    let nodes = cluster.nodes();
    // Ordinary work first, so that what a node holds for it is not taken for a leak.
    work(&nodes, 50).await;
    let before: Vec<_> = until("the nodes are calm", PATIENCE, || {
        let first: Vec<_> = nodes.iter().map(|node| usage(node.pid)).collect();
        std::thread::sleep(Duration::from_millis(500));
        let second: Vec<_> = nodes.iter().map(|node| usage(node.pid)).collect();
        let same = first.iter().zip(&second).all(|(a, b)| a.0 == b.0);
        if same { Ok(second) } else { Err(format!("{first:?} {second:?}")) }
    });

    let mut held = Vec::new();
    for (_, say) in kinds() {
        for node in &nodes {
            for port in [node.grpc, node.http, node.peer] {
                held.extend((0..EACH).map(|_| open(port, &say)));
            }
        }
    }
    println!("{} bad connections of {} kinds are open", held.len(), kinds().len());
    // Clients are served meanwhile.
    let mut raw = Raw::connect(nodes[0].grpc).await;
    assert_eq!(raw.send(vec![message("calm", "in-the-storm", "x")]).await.0, 20000);
    drop(raw);

    let start = Instant::now();
    let after = loop {
        // The same work again: an idle connection between the nodes may have been closed meanwhile.
        work(&nodes, 1).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now: Vec<_> = nodes.iter().map(|node| usage(node.pid)).collect();
        let back = |(now, before): (&(usize, u64), &(usize, u64))| {
            now.0 == before.0 && now.1 <= before.1 + before.1 / 10
        };
        if now.iter().zip(&before).all(back) {
            break now;
        }
        assert!(start.elapsed() < FREE_WITHIN, "{before:?} before, {now:?} after");
    };
    println!("(descriptors, KiB) of the nodes: {before:?} before, {after:?} after");
    println!("free after {:?}, with every connection still open on our side", start.elapsed());
    drop(held);
}
