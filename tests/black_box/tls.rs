//! TLS and plaintext on the one port of each node, under the certificate of the first start.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::cluster::{Cluster, PATIENCE, Plan};
use crate::common::raw::{Raw, message};

/// A send, since its answer has gone through the whole node.
async fn check_answers(raw: &mut Raw, id: &str) {
    let (code, text) = raw.send(vec![message("either", id, "x")]).await;
    assert_eq!(code, 20000, "{id}: {text}");
}

/// One file of roots is enough for all nodes, and it is still right after they start again: a
/// client that verifies could not be told of another.
#[tokio::test]
async fn one_port_answers_plaintext_and_tls_under_a_kept_certificate() {
    let mut cluster = Cluster::start(Plan::of(3));
    let folder = cluster.data().join("tls");
    let certificate = fs::read(folder.join("certificate.pem")).unwrap();
    let mode = fs::metadata(folder.join("key.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "nobody else reads the key");

    for round in ["first", "second"] {
        for node in cluster.nodes() {
            let mut plain = Raw::connect(node.grpc).await;
            let mut tls = Raw::connect_tls(node.grpc, &certificate).await.unwrap();
            check_answers(&mut plain, &format!("{round}-plain-{}", node.node)).await;
            check_answers(&mut tls, &format!("{round}-tls-{}", node.node)).await;
        }
        // The peer port has no TLS, and says nothing to who tries.
        let peer = cluster.node(1).peer;
        assert!(Raw::connect_tls(peer, &certificate).await.is_err());
        if round == "first" {
            assert!(cluster.stop().success());
            cluster.up();
            cluster.wait_ready(PATIENCE);
        }
    }
    assert_eq!(fs::read(folder.join("certificate.pem")).unwrap(), certificate);
}
