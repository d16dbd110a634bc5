//! The smallest HTTP client that can ask a node whether it is ready.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(2);

/// Status code and body of a GET.
pub(crate) fn get(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("not HTTP: {answer:?}")))?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, body.to_owned()))
}

/// The number behind the first metric whose name starts so.
pub(crate) fn metric(address: SocketAddr, name: &str) -> Result<u64, String> {
    let (_, text) = get(address, "/metrics").map_err(|error| error.to_string())?;
    let line = text.lines().find(|line| line.starts_with(name));
    let line = line.ok_or_else(|| format!("no metric {name}"))?;
    let value = line.rsplit(' ').next().unwrap_or_default();
    value.parse().map_err(|error| format!("{name} is {value:?}: {error}"))
}
