//! `host:port`, as other machines are told it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// A host name or an IPv4 literal, and a port from 1 to 65535.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    host: String,
    port: u16,
}

/// Why a text is not `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not HOST:PORT ({why}); write a host name or an IPv4 address, as in broker-1:8081"
)]
pub struct HostPortError {
    text: String,
    why: &'static str,
}

/// Longest host name in bytes, by RFC 1035 section 2.3.4.
const HOST_MAX: usize = 253;

impl HostPort {
    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address itself, where it says something to others: `0.0.0.0` and IPv6 do not.
    pub fn of_bound(address: SocketAddr) -> Option<Self> {
        let IpAddr::V4(ip) = address.ip() else { return None };
        if ip.is_unspecified() || address.port() == 0 {
            return None;
        }
        Some(Self { host: ip.to_string(), port: address.port() })
    }

    /// A port of this machine, for processes of this machine.
    pub fn loopback(port: u16) -> Self {
        Self { host: Ipv4Addr::LOCALHOST.to_string(), port }
    }
}

impl FromStr for HostPort {
    type Err = HostPortError;

    fn from_str(text: &str) -> Result<Self, HostPortError> {
        let error = |why| HostPortError { text: text.to_owned(), why };
        let (host, port) = text.rsplit_once(':').ok_or_else(|| error("no port"))?;
        let port: u16 = port.parse().map_err(|_| error("the port is not a number up to 65535"))?;
        if port == 0 {
            return Err(error("port 0 is no place to call"));
        }
        if host.is_empty() || host.len() > HOST_MAX {
            return Err(error("the host has 0 or more than 253 bytes"));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if !host.chars().all(plain) {
            return Err(error("the host has a character that no host name has"));
        }
        if host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_unspecified()) {
            return Err(error("0.0.0.0 can be bound but not called"));
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_names_and_literals() {
        for text in ["broker-1.example.org:8081", "10.0.0.7:1", "a_b:65535"] {
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_what_nobody_can_call() {
        for text in ["broker", ":80", "a:0", "a:65536", "0.0.0.0:80", "[::1]:80", "a b:80", "a:"] {
            let error = text.parse::<HostPort>().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn a_bound_address_speaks_for_itself_only_when_specific() {
        let told = |text: &str| HostPort::of_bound(text.parse().unwrap());
        assert_eq!(told("127.0.0.1:80"), Some(HostPort::loopback(80)));
        assert_eq!(told("0.0.0.0:80"), None);
        assert_eq!(told("[::1]:80"), None);
    }
}
