//! The certificate that a dev node makes for itself, once.
//!
//! It signs itself, so a client that verifies is given the certificate as its one root. It never
//! expires: a broker on one's own machine that stops being reachable some day helps nobody, and
//! production brings its own.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};

use crate::config::TlsFiles;

/// Where it lies, below a data directory.
const FOLDER: &str = "tls";
const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";
/// Whoever has the key can pose as the node.
const KEY_MODE: u32 = 0o600;
const CERTIFICATE_MODE: u32 = 0o644;
/// What a client on the same machine calls it.
const LOCAL_NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(
        "{} is there, but its key {} is not; bring the key back, or delete the certificate to have both made again",
        certificate.display(), key.display()
    )]
    KeyGone { certificate: PathBuf, key: PathBuf },
    #[error("cannot make a certificate for {host}: {source}")]
    Make { host: String, source: rcgen::Error },
}

/// Where the certificate of this data directory lies, or will.
pub fn own_files(data: &Path) -> TlsFiles {
    let folder = data.join(FOLDER);
    TlsFiles { certificate: folder.join(CERTIFICATE), key: folder.join(KEY) }
}

/// The certificate of this data directory, made unless it is there. It names `host`, which is an
/// address or a name, and this machine.
pub fn keep_own(data: &Path, host: &str) -> Result<TlsFiles, CertificateError> {
    let files = own_files(data);
    let (certificate, key) = (&files.certificate, &files.key);
    match (certificate.exists(), key.exists()) {
        (true, true) => return Ok(files),
        (true, false) => {
            let (certificate, key) = (certificate.clone(), key.clone());
            return Err(CertificateError::KeyGone { certificate, key });
        }
        // A key alone is what a start that was cut off has left.
        (false, _) => {}
    }
    let make = |source| CertificateError::Make { host: host.to_owned(), source };
    let (new_certificate, new_key) = make_own(host).map_err(make)?;
    let folder = data.join(FOLDER);
    fs::create_dir_all(&folder)
        .map_err(|source| CertificateError::File { path: folder.clone(), source })?;
    // The certificate last: where it is, its key is.
    replace(key, &new_key, KEY_MODE)?;
    replace(certificate, &new_certificate, CERTIFICATE_MODE)?;
    Ok(files)
}

/// Both in PEM. No extension says that it may sign others: webpki refuses a root as a server's own
/// certificate, and OpenSSL takes any self-signed one that it was told to trust.
fn make_own(host: &str) -> Result<(String, String), rcgen::Error> {
    let mut names = LOCAL_NAMES.map(str::to_owned).to_vec();
    if !LOCAL_NAMES.contains(&host) {
        names.push(host.to_owned());
    }
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, "raftmq");
    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// Old or new but never half, also after a power cut.
fn replace(path: &Path, text: &str, mode: u32) -> Result<(), CertificateError> {
    let temporary = path.with_extension("tmp");
    let written = || {
        // The mode is for a file that is made, not for one that is there.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        File::open(folder)?.sync_all()
    };
    written().map_err(|source| CertificateError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::tls::Acceptor;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn made_once_for_this_machine_and_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let files = keep_own(dir.path(), "broker-1.example.org").unwrap();
        let read = || (fs::read(&files.certificate).unwrap(), fs::read(&files.key).unwrap());
        let (certificate, key) = read();
        let acceptor = Acceptor::new(&certificate, &key).unwrap();
        for host in ["localhost", "127.0.0.1", "broker-1.example.org"] {
            assert!(acceptor.names(host), "{host}");
        }
        assert!(!acceptor.names("broker-2.example.org"));
        let mode = fs::metadata(&files.key).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, KEY_MODE);

        assert_eq!(keep_own(dir.path(), "another").unwrap(), files);
        assert_eq!(read(), (certificate, key), "it is kept");
    }

    #[test]
    fn a_cut_off_start_is_repeated_and_a_lost_key_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let files = keep_own(dir.path(), "127.0.0.1").unwrap();
        fs::remove_file(&files.certificate).unwrap();
        fs::write(files.key.with_extension("tmp"), "half").unwrap();
        keep_own(dir.path(), "127.0.0.1").unwrap();
        let read = |path| fs::read(path).unwrap();
        Acceptor::new(&read(&files.certificate), &read(&files.key)).unwrap();

        fs::remove_file(&files.key).unwrap();
        let error = keep_own(dir.path(), "127.0.0.1").unwrap_err().to_string();
        assert!(error.contains("key.pem"), "{error}");
    }
}
