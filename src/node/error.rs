//! Why a node ended other than by being told to.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::base::BrokerGroupName;
use crate::grpc::tls::IdentityError;
use crate::raft;

use super::certificate::CertificateError;

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("the data directory {}: {source}", path.display())]
    Data { path: PathBuf, source: io::Error },
    #[error("another process runs with the data directory {}; every node needs its own", path.display())]
    DataInUse { path: PathBuf },
    #[error("cannot listen on {address} (listen.{what}): {source}")]
    Listen { what: &'static str, address: SocketAddr, source: io::Error },
    #[error("cannot listen to signals: {0}")]
    Signals(io::Error),
    #[error("cannot start the thread {name}: {source}")]
    Thread { name: &'static str, source: io::Error },
    #[error("cannot tie this process to process {parent}: {source}")]
    Parent { parent: u32, source: io::Error },
    #[error("process {parent}, which this one was to end with, is not its parent (any more)")]
    Orphan { parent: u32 },
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("cannot read {} ([tls]): {source}", path.display())]
    TlsFile { path: PathBuf, source: io::Error },
    #[error("the certificate {} with the key {}: {source}", certificate.display(), key.display())]
    TlsIdentity { certificate: PathBuf, key: PathBuf, source: IdentityError },
    #[error("broker group {broker_group}: {source}")]
    Open { broker_group: BrokerGroupName, source: raft::OpenError },
    #[error("broker group {broker_group} is damaged here and cannot be mended: {source}")]
    Mend { broker_group: BrokerGroupName, source: raft::RefillError },
    #[error("broker group {broker_group}: {source}")]
    Start { broker_group: BrokerGroupName, source: raft::StartError },
    #[error("the replica of broker group {broker_group} ended: {reason}")]
    Replica { broker_group: BrokerGroupName, reason: String },
    #[error("{damage}; this node ends and answers nothing from it")]
    Damaged { damage: String },
    #[error("{task} ended: {reason}")]
    Task { task: &'static str, reason: String },
}
