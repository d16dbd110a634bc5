//! TLS on the client port: who this node says it is, and the handshake.
//!
//! The provider is *ring*: it builds with a C compiler alone. Versions and suites are rustls's own
//! choice (TLS 1.2 and 1.3). Clients are not asked for a certificate.

use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The first byte of a TLS connection: a record that holds a handshake (RFC 8446, section 5.1). An
/// HTTP/2 connection without TLS begins with `P`.
pub(super) const HANDSHAKE: u8 = 0x16;
/// What the connection must be for, by its ALPN name (RFC 9113, section 3.1).
const HTTP2: &[u8] = b"h2";

/// Does the server's half of handshakes, under one certificate.
#[derive(Clone)]
pub struct Acceptor {
    acceptor: TlsAcceptor,
    certificate: CertificateDer<'static>,
}

/// Why a certificate and a key do not make an [`Acceptor`].
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("the certificate is not PEM: {0}")]
    CertificateForm(pem::Error),
    #[error("there is no CERTIFICATE in it")]
    NoCertificate,
    #[error("the key is not one PRIVATE KEY in PEM: {0}")]
    KeyForm(pem::Error),
    #[error("certificate and key do not serve together: {0}")]
    Unusable(rustls::Error),
}

impl Acceptor {
    /// From PEM: this node's certificate with those that lead to its root behind it, and its key.
    pub fn new(certificates: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
        let chain = chain.map_err(IdentityError::CertificateForm)?;
        let certificate = chain.first().ok_or(IdentityError::NoCertificate)?.clone();
        let key = PrivateKeyDer::from_pem_slice(key).map_err(IdentityError::KeyForm)?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key))
            .map_err(IdentityError::Unusable)?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), certificate })
    }

    /// Whether a client that calls this host name or address, and verifies, accepts the
    /// certificate as far as its names go.
    pub fn names(&self, host: &str) -> bool {
        let certificate = ParsedCertificate::try_from(&self.certificate);
        let (Ok(certificate), Ok(name)) = (certificate, ServerName::try_from(host)) else {
            return false;
        };
        rustls::client::verify_server_name(&certificate, &name).is_ok()
    }

    /// The whole handshake. The caller sets the timeout.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let stream = self.acceptor.accept(stream).await?;
        // rustls refuses a client that offers other protocols only, but not one that offers none.
        if stream.get_ref().1.alpn_protocol() != Some(HTTP2) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "TLS without ALPN h2"));
        }
        Ok(stream)
    }
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acceptor").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_and_its_key_are_one_pair_that_names_hosts() {
        let own = ["localhost", "127.0.0.1"].map(str::to_owned);
        let own = rcgen::generate_simple_self_signed(own).unwrap();
        let (certificate, key) = (own.cert.pem(), own.signing_key.serialize_pem());
        let acceptor = Acceptor::new(certificate.as_bytes(), key.as_bytes()).unwrap();
        assert!(acceptor.names("localhost") && acceptor.names("127.0.0.1"));
        assert!(!acceptor.names("broker-1") && !acceptor.names("127.0.0.2"));
        assert!(!acceptor.names("no name at all"));

        let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let other = other.signing_key.serialize_pem();
        let error = |certificate: &str, key: &str| {
            Acceptor::new(certificate.as_bytes(), key.as_bytes()).unwrap_err()
        };
        assert!(matches!(error(&certificate, &other), IdentityError::Unusable(_)));
        assert!(matches!(error(&certificate, &certificate), IdentityError::KeyForm(_)));
        assert!(matches!(error(&key, &key), IdentityError::NoCertificate));
        assert!(matches!(error("", &key), IdentityError::NoCertificate));
        let cut = &certificate[..certificate.len() / 2];
        assert!(matches!(error(cut, &key), IdentityError::CertificateForm(_)));
    }
}
