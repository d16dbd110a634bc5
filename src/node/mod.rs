//! stub
use crate::config::Config;
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("stub")]
    Stub,
}
pub async fn run(config: Config) -> Result<(), NodeError> {
    tracing::info!(node = config.node.get(), "stub");
    std::future::pending().await
}
pub fn end_with_parent(_parent: u32) -> Result<(), NodeError> {
    Ok(())
}
