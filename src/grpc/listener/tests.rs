use std::sync::LazyLock;

use futures::StreamExt;
use rcgen::CertifiedKey;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsConnector;
use tokio_rustls::client;

use super::*;

async fn door(
    admission: Admission,
) -> (SocketAddr, impl Stream<Item = io::Result<Connection>> + use<>) {
    door_with(admission, None).await
}

async fn door_with(
    admission: Admission,
    tls: Option<Acceptor>,
) -> (SocketAddr, impl Stream<Item = io::Result<Connection>> + use<>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    (listener.local_addr().unwrap(), admitted(listener, admission, tls))
}

static OWN: LazyLock<CertifiedKey<rcgen::KeyPair>> = LazyLock::new(|| {
    rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a plain name")
});

fn acceptor() -> Option<Acceptor> {
    let (certificate, key) = (OWN.cert.pem(), OWN.signing_key.serialize_pem());
    Some(Acceptor::new(certificate.as_bytes(), key.as_bytes()).unwrap())
}

/// As a client that trusts this one certificate and offers these protocols.
async fn over_tls(
    stream: TcpStream,
    protocols: &[&[u8]],
) -> io::Result<client::TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(OWN.cert.der().clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Serves to the end of the test; what it admits is kept open.
fn keep_serving(connections: impl Stream<Item = io::Result<Connection>> + Send + 'static) {
    tokio::spawn(async move {
        let admitted: Vec<_> = connections.collect().await;
        drop(admitted);
    });
}

/// Ends within 5 seconds; the TLS alert that may come before is of no interest.
async fn ends(stream: &mut (impl AsyncRead + Unpin)) -> bool {
    let mut rest = Vec::new();
    let end = stream.read_to_end(&mut rest);
    tokio::time::timeout(Duration::from_secs(5), end).await.is_ok()
}

/// Reads to the end, whether it comes as a close or as a reset.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    let end = stream.read_to_end(&mut rest);
    let end = tokio::time::timeout(Duration::from_secs(5), end).await;
    rest.is_empty() && end.is_ok()
}

#[tokio::test]
async fn what_was_read_is_read_again() {
    let (address, connections) = door(Admission::default()).await;
    let mut connections = std::pin::pin!(connections);
    let client = tokio::spawn(async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // In two pieces, with something behind.
        stream.write_all(&PREFACE[..5]).await.unwrap();
        tokio::task::yield_now().await;
        stream.write_all(&PREFACE[5..]).await.unwrap();
        stream.write_all(b"more").await.unwrap();
        stream
    });
    let mut connection = connections.next().await.unwrap().unwrap();
    let mut said = [0; 28];
    connection.read_exact(&mut said).await.unwrap();
    assert_eq!(&said[..24], PREFACE);
    assert_eq!(&said[24..], b"more");
    assert_eq!(
        connection.connect_info().remote_addr,
        Some(client.await.unwrap().local_addr().unwrap())
    );
}

#[tokio::test]
async fn garbage_is_closed_and_others_get_in() {
    let (address, connections) = door(Admission::default()).await;
    let mut connections = std::pin::pin!(connections);
    let mut garbage = TcpStream::connect(address).await.unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut good = TcpStream::connect(address).await.unwrap();
    good.write_all(PREFACE).await.unwrap();
    connections.next().await.unwrap().unwrap();
    assert!(is_closed(&mut garbage).await);
}

#[tokio::test]
async fn silence_is_closed() {
    let admission =
        Admission { preface_timeout: Duration::from_millis(50), ..Admission::default() };
    let (address, connections) = door(admission).await;
    let serving = tokio::spawn(async move { std::pin::pin!(connections).next().await.is_some() });
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(&PREFACE[..10]).await.unwrap();
    assert!(is_closed(&mut silent).await && is_closed(&mut half).await);
    serving.abort();
}

#[tokio::test]
async fn there_are_never_more_than_allowed() {
    let (address, connections) =
        door(Admission { connections_max: 1, ..Admission::default() }).await;
    let mut connections = std::pin::pin!(connections);
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(PREFACE).await.unwrap();
    let held = connections.next().await.unwrap().unwrap();
    let mut second = TcpStream::connect(address).await.unwrap();
    let closed = async { is_closed(&mut second).await };
    tokio::select! {
        closed = closed => assert!(closed),
        _ = connections.next() => panic!("one more than allowed"),
    }
    drop(held);
    let mut third = TcpStream::connect(address).await.unwrap();
    third.write_all(PREFACE).await.unwrap();
    connections.next().await.unwrap().unwrap();
}

#[tokio::test]
async fn one_port_serves_plaintext_and_tls() {
    let (address, connections) = door_with(Admission::default(), acceptor()).await;
    let mut connections = std::pin::pin!(connections);
    let client = tokio::spawn(async move {
        let plain = TcpStream::connect(address).await.unwrap();
        let mut tls = over_tls(TcpStream::connect(address).await.unwrap(), &[b"h2"]).await.unwrap();
        tls.write_all(PREFACE).await.unwrap();
        tls.write_all(b"ping").await.unwrap();
        let mut answer = [0; 4];
        tls.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"pong");
        (plain, tls)
    });
    let mut connection = connections.next().await.unwrap().unwrap();
    assert!(matches!(connection.stream, Begun::Tls(_)));
    let mut said = [0; 28];
    connection.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nping");
    connection.write_all(b"pong").await.unwrap();
    connection.flush().await.unwrap();
    let (mut plain, tls) = client.await.unwrap();
    let told = connection.connect_info().remote_addr;
    assert_eq!(told, Some(tls.get_ref().0.local_addr().unwrap()));

    // The one that came first and said nothing yet kept nobody waiting.
    plain.write_all(PREFACE).await.unwrap();
    let connection = connections.next().await.unwrap().unwrap();
    assert!(matches!(connection.stream, Begun::Plain(_)));
}

/// A client that would not speak HTTP/2 learns so by its handshake, or by the end of it.
#[tokio::test]
async fn tls_for_another_protocol_is_closed() {
    let (address, connections) = door_with(Admission::default(), acceptor()).await;
    keep_serving(connections);
    let connect = async || TcpStream::connect(address).await.unwrap();
    assert!(over_tls(connect().await, &[b"http/1.1"]).await.is_err());
    let mut without = over_tls(connect().await, &[]).await.unwrap();
    assert!(ends(&mut without).await);
    let mut liar = over_tls(connect().await, &[b"h2"]).await.unwrap();
    liar.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(ends(&mut liar).await);
}

#[tokio::test]
async fn garbage_that_begins_as_tls_is_closed_at_once() {
    let (address, connections) = door_with(Admission::default(), acceptor()).await;
    keep_serving(connections);
    let mut garbage = TcpStream::connect(address).await.unwrap();
    garbage.write_all(&[[HANDSHAKE].as_slice(), &[0xa5; 200]].concat()).await.unwrap();
    // Five seconds are half of the time for a handshake, so it is not silence that ends it.
    assert!(ends(&mut garbage).await);
}

/// However far a handshake got, it has the time that a plaintext connection has, and no more.
#[tokio::test]
async fn a_handshake_that_stops_is_closed() {
    let admission =
        Admission { preface_timeout: Duration::from_millis(200), ..Admission::default() };
    let (address, connections) = door_with(admission, acceptor()).await;
    keep_serving(connections);
    let connect = async || TcpStream::connect(address).await.unwrap();
    // A record of 512 bytes of which nothing comes; one byte; a handshake, and then nothing.
    let mut header = connect().await;
    header.write_all(&[HANDSHAKE, 3, 1, 2, 0]).await.unwrap();
    let mut byte = connect().await;
    byte.write_all(&[HANDSHAKE]).await.unwrap();
    let mut silent = over_tls(connect().await, &[b"h2"]).await.unwrap();
    assert!(ends(&mut header).await && ends(&mut byte).await && ends(&mut silent).await);
}

#[tokio::test]
async fn handshakes_count_among_the_connections() {
    let admission = Admission { connections_max: 1, ..Admission::default() };
    let (address, connections) = door_with(admission, acceptor()).await;
    keep_serving(connections);
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(&[HANDSHAKE]).await.unwrap();
    let mut second = TcpStream::connect(address).await.unwrap();
    assert!(is_closed(&mut second).await);
}

#[tokio::test]
async fn without_a_certificate_tls_is_garbage() {
    let (address, connections) = door(Admission::default()).await;
    keep_serving(connections);
    let stream = TcpStream::connect(address).await.unwrap();
    let refused = tokio::time::timeout(Duration::from_secs(5), over_tls(stream, &[b"h2"])).await;
    assert!(refused.unwrap().is_err());
}
