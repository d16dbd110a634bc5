//! Which command versions the other replicas understand.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::base::NodeId;
use crate::command::COMMAND_VERSION;

/// What the first release understands; nothing older shares a cluster with it. A voter that was not
/// heard of since this process began is taken to understand it: while one is away, a leader that
/// started meanwhile would refuse delayed messages, transactions and the steps of retention.
const RELEASED_VERSION: u8 = 4;
const _: () = assert!(RELEASED_VERSION <= COMMAND_VERSION);

/// A command that some voter could not apply must not enter the log: it would stop that replica.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the command has version {version}, but node {node} understands at most {known}; upgrade that \
     node first"
)]
pub(crate) struct NotUnderstood {
    pub(crate) version: u8,
    pub(crate) node: NodeId,
    pub(crate) known: u8,
}

/// What handshakes told.
#[derive(Debug, Default)]
pub(crate) struct Versions(Mutex<BTreeMap<NodeId, u8>>);

impl Versions {
    pub(crate) fn heard(&self, node: NodeId, version: u8) {
        self.0.lock().insert(node, version);
    }

    /// Refuses a version that one of the other voters does not understand. Who they are is asked
    /// only where it matters.
    pub(crate) fn check<V: IntoIterator<Item = NodeId>>(
        &self,
        version: u8,
        voters: impl FnOnce() -> V,
    ) -> Result<(), NotUnderstood> {
        // Every program understands the first one.
        if version <= 1 {
            return Ok(());
        }
        let heard = self.0.lock();
        for node in voters() {
            let known = heard.get(&node).copied().unwrap_or(RELEASED_VERSION);
            if version > known {
                return Err(NotUnderstood { version, node, known });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_voter_that_does_not_understand_holds_a_version_back() {
        let versions = Versions::default();
        let voters = || [NodeId::new(1), NodeId::new(2)];
        assert_eq!(versions.check(1, voters), Ok(()));
        versions.heard(NodeId::new(1), 2);
        versions.heard(NodeId::new(2), 1);
        let refused = NotUnderstood { version: 2, node: NodeId::new(2), known: 1 };
        assert_eq!(versions.check(2, voters), Err(refused));
        assert_eq!(versions.check(1, voters), Ok(()));
        versions.heard(NodeId::new(2), 3);
        assert_eq!(versions.check(2, voters), Ok(()));
        assert_eq!(versions.check(3, voters).unwrap_err().node, NodeId::new(1));
    }

    #[test]
    fn a_voter_that_is_away_understands_what_was_released() {
        let versions = Versions::default();
        let voters = || [NodeId::new(1), NodeId::new(2)];
        versions.heard(NodeId::new(1), 9);
        assert_eq!(versions.check(RELEASED_VERSION, voters), Ok(()));
        let newer = RELEASED_VERSION + 1;
        assert_eq!(versions.check(newer, voters).unwrap_err().known, RELEASED_VERSION);
    }
}
