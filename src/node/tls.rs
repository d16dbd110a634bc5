//! What the client port serves TLS with.

use std::path::Path;

use crate::config::{Config, Profile, TlsFiles};
use crate::grpc::tls::Acceptor;

use super::{NodeError, certificate};

/// From the configured files; else, in the dev profile, from the node's own; else nothing.
pub(super) fn acceptor(config: &Config) -> Result<Option<Acceptor>, NodeError> {
    let host = config.advertise.grpc.host();
    let files = match (&config.tls, config.profile) {
        (Some(files), _) => files.clone(),
        (None, Profile::Dev) => certificate::keep_own(&config.data, host)?,
        (None, Profile::Production) => {
            tracing::info!("the gRPC port serves plaintext only, since [tls] names no certificate");
            return Ok(None);
        }
    };
    let acceptor = read(&files)?;
    let TlsFiles { certificate, .. } = files;
    let certificate = certificate.display();
    tracing::info!(%certificate, "the gRPC port serves TLS and plaintext");
    if !acceptor.names(host) {
        tracing::warn!(
            %certificate, host,
            "the certificate does not name the advertised host; clients that verify will refuse it"
        );
    }
    Ok(Some(acceptor))
}

pub(super) fn read(files: &TlsFiles) -> Result<Acceptor, NodeError> {
    let content = |path: &Path| {
        std::fs::read(path).map_err(|source| NodeError::TlsFile { path: path.to_owned(), source })
    };
    let (certificate, key) = (content(&files.certificate)?, content(&files.key)?);
    Acceptor::new(&certificate, &key).map_err(|source| NodeError::TlsIdentity {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;

    #[test]
    fn configured_files_win_then_the_profile_decides() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let node = format!("[node]\nid = 1\ndata = \"{}\"\n", data.display());
        let of = |rest: &str| {
            let sources = Sources { file: "raftmq.toml".into(), overlays: Vec::new() };
            acceptor(&sources.parse(&format!("{node}{rest}")).unwrap())
        };
        assert!(of("").unwrap().is_none());
        assert!(!data.exists(), "production makes nothing");

        let missing = "profile = \"dev\"\n[tls]\ncertificate = \"/no/c\"\nkey = \"/no/k\"\n";
        let error = of(missing).unwrap_err().to_string();
        assert!(error.contains("/no/c"), "{error}");
        assert!(!data.exists(), "what is configured is not replaced");

        let own = of("profile = \"dev\"\n[advertise]\ngrpc = \"broker-1:8081\"\n").unwrap();
        assert!(own.unwrap().names("broker-1"));
        let files = certificate::own_files(&data);
        let (certificate, key) = (files.certificate.display(), files.key.display());
        let configured = |certificate, key| {
            of(&format!("[tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n"))
        };
        assert!(configured(&certificate, &key).unwrap().is_some());
        let error = configured(&certificate, &certificate).unwrap_err();
        assert!(matches!(error, NodeError::TlsIdentity { .. }), "{error}");
    }
}
