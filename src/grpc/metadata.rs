//! Who calls, and until when they listen: what every request says beside its message.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::time::Instant;
use tonic::metadata::MetadataMap;

use crate::base::ClientId;
use crate::wire::rocketmq::Code;

use super::status::Refused;

const CLIENT_ID: &str = "x-mq-client-id";
const LANGUAGE: &str = "x-mq-language";
const CLIENT_VERSION: &str = "x-mq-client-version";
const GRPC_TIMEOUT: &str = "grpc-timeout";

/// What a request without a deadline gets; clients use 3 s by default.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// No request is worked on for longer, whatever its deadline.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// What an answer may take to travel.
const TRAVEL_MAX: Duration = Duration::from_millis(200);

/// The caller of one request.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) client: ClientId,
    pub(super) peer: SocketAddr,
    /// When the client stops listening.
    pub(super) deadline: Instant,
    /// Whether the client said so itself.
    pub(super) has_deadline: bool,
    /// The crate `rocketmq` 5.0.0 ends its task at a status code newer than itself.
    pub(super) old_rust: bool,
    /// The Go client dials a broker that is gone for 5 s, and lets no other call begin meanwhile.
    pub(super) blocks_on_dial: bool,
}

impl Caller {
    /// Refuses requests without a client id: everything that a client holds is kept under it.
    pub(super) fn of<T>(request: &tonic::Request<T>) -> Result<Self, Refused> {
        let metadata = request.metadata();
        let id = text(metadata, CLIENT_ID).unwrap_or_default();
        let client = ClientId::new(id).map_err(|error| {
            Refused::new(Code::ClientIdRequired, format_args!("the header {CLIENT_ID}: {error}"))
        })?;
        let timeout = text(metadata, GRPC_TIMEOUT).and_then(timeout);
        let nowhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        Ok(Self {
            client,
            peer: request.remote_addr().unwrap_or(nowhere),
            deadline: Instant::now() + allowed(timeout),
            has_deadline: timeout.is_some(),
            old_rust: text(metadata, LANGUAGE) == Some("RUST")
                && text(metadata, CLIENT_VERSION) == Some("5.0.0"),
            blocks_on_dial: text(metadata, LANGUAGE) == Some("GO"),
        })
    }

    /// When work must be over, so that the answer still reaches the client in time.
    pub(super) fn answer_by(&self) -> Instant {
        let travel = (self.remaining() / 10).min(TRAVEL_MAX);
        self.deadline.checked_sub(travel).unwrap_or(self.deadline)
    }

    pub(super) fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Nobody listens any more: no work is to be done.
    pub(super) fn is_late(&self) -> bool {
        self.remaining().is_zero()
    }
}

fn text<'a>(metadata: &'a MetadataMap, name: &str) -> Option<&'a str> {
    metadata.get(name)?.to_str().ok()
}

/// How long a request may take that came with this timeout.
fn allowed(timeout: Option<Duration>) -> Duration {
    timeout.unwrap_or(TIMEOUT_DEFAULT).min(TIMEOUT_MAX)
}

/// The `grpc-timeout` header: at most 8 digits and a unit. Anything else is as good as absent, as
/// the transport would already have refused it.
fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&'static str, &str)]) -> tonic::Request<()> {
        let mut request = tonic::Request::new(());
        for (name, value) in headers {
            request.metadata_mut().insert(*name, value.parse().unwrap());
        }
        request
    }

    #[test]
    fn a_client_id_is_required_and_nothing_else_is() {
        for headers in [&[][..], &[(CLIENT_ID, "")], &[(CLIENT_ID, "  ")]] {
            let refused = Caller::of(&request(headers)).unwrap_err();
            assert_eq!(refused.code, Code::ClientIdRequired);
            assert!(refused.text.contains("x-mq-client-id"), "{}", refused.text);
        }
        let long = "c".repeat(256);
        let refused = Caller::of(&request(&[(CLIENT_ID, &long)])).unwrap_err();
        assert!(refused.text.contains("256") && refused.text.contains("255"), "{}", refused.text);
        let caller = Caller::of(&request(&[(CLIENT_ID, "h@1@0@x"), (LANGUAGE, "COBOL")])).unwrap();
        assert_eq!(caller.client.as_str(), "h@1@0@x");
        assert!(!caller.has_deadline && !caller.is_late() && !caller.old_rust);
    }

    #[test]
    fn the_deadline_is_the_clients_up_to_a_limit() {
        assert_eq!(allowed(timeout("3S")), Duration::from_secs(3));
        assert_eq!(allowed(timeout("250m")), Duration::from_millis(250));
        assert_eq!(allowed(timeout("1H")), TIMEOUT_MAX);
        assert_eq!(allowed(timeout("99999999H")), TIMEOUT_MAX);
        assert_eq!(allowed(timeout("0n")), Duration::ZERO);
        assert_eq!(allowed(None), TIMEOUT_DEFAULT);
        assert!(Caller::of(&request(&[(CLIENT_ID, "c"), (GRPC_TIMEOUT, "0n")])).unwrap().is_late());
        for odd in ["S", "", "123456789S", "5x", "-5S", "+5S"] {
            assert_eq!(timeout(odd), None, "{odd}");
        }
        assert_eq!(timeout("5ü"), None);
    }

    #[test]
    fn the_client_that_fails_at_new_codes_is_known() {
        let headers = [(CLIENT_ID, "c"), (LANGUAGE, "RUST"), (CLIENT_VERSION, "5.0.0")];
        assert!(Caller::of(&request(&headers)).unwrap().old_rust);
    }
}
