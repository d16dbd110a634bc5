//! Ties a node to the process that started it, so that none is left behind by a killed `up`.

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::NodeError;

/// From now on this process is killed when its parent ends in whatever way. Killed and not asked:
/// the parent is gone, so nobody would kill it if it did not listen; and a broker is made for it.
pub fn end_with_parent(parent: u32) -> Result<(), NodeError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| NodeError::Parent { parent, source: errno.into() })?;
    // It may have ended before the line above.
    let now = getppid().map(|pid| pid.as_raw_nonzero().get());
    if now.and_then(|now| u32::try_from(now).ok()) != Some(parent) {
        return Err(NodeError::Orphan { parent });
    }
    Ok(())
}
