//! Transaction ids as text: a signed name of one half message, valid on every node.

use crate::base::{BrokerGroupId, LogPosition, TopicId};
use crate::broker::error::BadTransactionId;
use crate::broker::handle;
use crate::command::{Reader, Transaction, Writer};
use crate::message::MessageIdHash;

/// The first byte of every transaction id; no receipt handle begins with it.
const VERSION: u8 = b'T';
const FIELDS_LEN: usize = 1 + 4 + 8 + 8 + 16;
const MALFORMED: BadTransactionId = BadTransactionId { why: "is malformed" };

/// What a transaction id says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::broker) struct TransactionName {
    pub(in crate::broker) transaction: Transaction,
    pub(in crate::broker) message: MessageIdHash,
}

impl TransactionName {
    /// Lower-case hex, 106 characters.
    pub(in crate::broker) fn sign(self, broker_group: BrokerGroupId, key: &[u8; 32]) -> String {
        let mut writer = Writer::new();
        writer.u8(VERSION);
        writer.u32(broker_group.get());
        writer.u64(self.transaction.topic.get());
        writer.u64(self.transaction.at.get());
        writer.u128(self.message.get());
        let fields = writer.finish();
        assert_eq!(fields.len(), FIELDS_LEN, "the id's layout changed without its length");
        handle::seal(&fields, key)
    }

    /// Refuses whatever this broker group did not sign.
    pub(in crate::broker) fn open(
        broker_group: BrokerGroupId,
        text: &str,
        key: &[u8; 32],
    ) -> Result<Self, BadTransactionId> {
        let (fields, genuine) = handle::unseal(text, FIELDS_LEN, Some(key)).ok_or(MALFORMED)?;
        if fields[0] != VERSION {
            return Err(MALFORMED);
        }
        if !genuine || fields[1..5] != broker_group.get().to_be_bytes() {
            return Err(BadTransactionId { why: "was not issued by this cluster" });
        }
        let mut reader = Reader::new(fields[5..].to_vec().into());
        let mut read = || -> Result<Self, crate::command::CommandError> {
            let (topic, at) = (TopicId::new(reader.u64()?), LogPosition::new(reader.u64()?));
            let message = MessageIdHash::new(reader.u128()?);
            Ok(Self { transaction: Transaction { topic, at }, message })
        };
        read().map_err(|_| MALFORMED)
    }
}

/// The broker group that an id says it is of; only opening it tells whether that is true.
pub(in crate::broker) fn broker_group(text: &str) -> Result<BrokerGroupId, BadTransactionId> {
    let (fields, _) = handle::unseal(text, FIELDS_LEN, None).ok_or(MALFORMED)?;
    match fields.first_chunk::<5>() {
        Some([VERSION, id @ ..]) => Ok(BrokerGroupId::new(u32::from_be_bytes(*id))),
        _ => Err(MALFORMED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: BrokerGroupId = BrokerGroupId::new(0x0102_0304);

    fn name() -> TransactionName {
        let transaction = Transaction { topic: TopicId::new(2), at: LogPosition::new(3) };
        TransactionName { transaction, message: MessageIdHash::of("m") }
    }

    #[test]
    fn only_the_key_that_signed_opens_an_id() {
        let text = name().sign(GROUP, &[7; 32]);
        assert_eq!(text.len(), 106);
        assert_eq!(TransactionName::open(GROUP, &text, &[7; 32]), Ok(name()));
        assert_eq!(broker_group(&text), Ok(GROUP));
        for (group, key) in [(GROUP, [8; 32]), (BrokerGroupId::new(5), [7; 32])] {
            let error = TransactionName::open(group, &text, &key).unwrap_err();
            assert_eq!(error.why, "was not issued by this cluster");
        }
    }

    #[test]
    fn every_changed_character_is_noticed() {
        let text = name().sign(GROUP, &[7; 32]);
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(changed).unwrap();
            let opened = TransactionName::open(GROUP, &changed, &[7; 32]);
            assert!(opened.is_err(), "character {at} is not covered");
        }
    }

    #[test]
    fn garbage_is_malformed() {
        for text in ["", "0", "zz", "0102", "ü", &"0".repeat(106), &"0".repeat(10_000)] {
            assert_eq!(TransactionName::open(GROUP, text, &[7; 32]), Err(MALFORMED));
            assert_eq!(broker_group(text), Err(MALFORMED));
        }
    }
}
