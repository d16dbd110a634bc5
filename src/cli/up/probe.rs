//! Asks a node whether it is ready.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An answer is a few lines, from this machine.
const TIMEOUT: Duration = Duration::from_secs(2);
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// `Ok` when `/readyz` answers 200, otherwise what is missing.
pub(super) async fn ready(port: u16) -> Result<(), String> {
    match tokio::time::timeout(TIMEOUT, ask(port)).await {
        Ok(Ok(answer)) => judge(&answer),
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Err("it does not listen yet".to_owned())
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
    }
}

async fn ask(port: u16) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn judge(answer: &str) -> Result<(), String> {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    match head.split(' ').nth(1) {
        Some("200") => Ok(()),
        Some("503") => Err(body.trim().replace('\n', "; ")),
        _ => Err(format!("it answered {:?}", head.lines().next().unwrap_or(""))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_200_is_ready() {
        assert_eq!(judge("HTTP/1.1 200 OK\r\nx: y\r\n\r\nready\n"), Ok(()));
        let missing = judge("HTTP/1.1 503 Service Unavailable\r\n\r\nno leader\nbehind\n");
        assert_eq!(missing, Err("no leader; behind".to_owned()));
        assert!(judge("HTTP/1.1 404 Not Found\r\n\r\n").is_err());
        assert!(judge("").is_err());
    }
}
