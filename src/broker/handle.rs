//! Receipt handles as text: a signed name of one delivery, valid on every node.

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::base::{BrokerGroupId, CheckoutId, GroupId, QueueId, QueueOffset, TopicId};
use crate::broker::error::BadHandle;
use crate::command::{Handle, Reader, Writer};

/// The first byte of every handle; another layout gets another number.
const VERSION: u8 = 2;
/// Bytes of the signature that are kept: 128 bits leave no room for guessing.
const MAC_LEN: usize = 16;
const FIELDS_LEN: usize = 1 + 4 + 8 + 8 + 4 + 8 + 8 + 4;

/// Writes a handle that only the holder of `key` can have written: lower-case hex, 122 characters.
pub(super) fn sign(broker_group: BrokerGroupId, handle: &Handle, key: &[u8; 32]) -> String {
    let mut writer = Writer::new();
    writer.u8(VERSION);
    writer.u32(broker_group.get());
    writer.u64(handle.group.get());
    writer.u64(handle.topic.get());
    writer.u32(handle.queue.get());
    writer.u64(handle.offset.get());
    writer.u64(handle.checkout.get());
    writer.u32(handle.attempt);
    let fields = writer.finish();
    assert_eq!(fields.len(), FIELDS_LEN, "the handle's layout changed without its length");
    seal(&fields, key)
}

/// These bytes and their signature, as text.
pub(super) fn seal(fields: &[u8], key: &[u8; 32]) -> String {
    let mut text = String::with_capacity(2 * (fields.len() + MAC_LEN));
    for byte in fields.iter().chain(&mac(fields, key)[..MAC_LEN]) {
        text.push(hex_digit(byte >> 4));
        text.push(hex_digit(byte & 15));
    }
    text
}

/// What was sealed by anybody: at most `max` bytes of fields, and their signature. Only
/// [`is_genuine`] tells whether it was this cluster.
pub(super) fn read_seal(text: &str, max: usize) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut fields = from_hex(text, max + MAC_LEN)?;
    let signature = fields.split_off(fields.len().checked_sub(MAC_LEN)?);
    Some((fields, signature))
}

pub(super) fn is_genuine(fields: &[u8], signature: &[u8], key: &[u8; 32]) -> bool {
    let mut verifier = keyed(key);
    verifier.update(fields);
    signature.len() == MAC_LEN && verifier.verify_truncated_left(signature).is_ok()
}

/// The signed bytes of a text, `len` of them, and whether `key` signed them; `None` when it is no
/// such text. Without a key nobody did.
pub(super) fn unseal(text: &str, len: usize, key: Option<&[u8; 32]>) -> Option<(Vec<u8>, bool)> {
    if text.len() != 2 * (len + MAC_LEN) {
        return None;
    }
    let mut fields = from_hex(text, len + MAC_LEN)?;
    let signature = fields.split_off(len);
    let genuine = key.is_some_and(|key| {
        let mut verifier = keyed(key);
        verifier.update(&fields);
        verifier.verify_truncated_left(&signature).is_ok()
    });
    Some((fields, genuine))
}

/// The broker group that a handle says it is of; only opening it tells whether that is true.
pub(super) fn broker_group(text: &str) -> Result<BrokerGroupId, BadHandle> {
    let malformed = BadHandle { why: "is malformed" };
    let (fields, _) = unseal(text, FIELDS_LEN, None).ok_or_else(|| malformed.clone())?;
    match fields.first_chunk::<5>() {
        Some([VERSION, id @ ..]) => Ok(BrokerGroupId::new(u32::from_be_bytes(*id))),
        _ => Err(malformed),
    }
}

/// Reads a handle, refusing whatever this broker group did not sign.
pub(super) fn open(
    broker_group: BrokerGroupId,
    text: &str,
    key: &[u8; 32],
) -> Result<Handle, BadHandle> {
    let malformed = BadHandle { why: "is malformed" };
    let unsealed = unseal(text, FIELDS_LEN, Some(key)).ok_or_else(|| malformed.clone())?;
    let (fields, genuine) = unsealed;
    if fields[0] != VERSION {
        return Err(malformed);
    }
    if !genuine || fields[1..5] != broker_group.get().to_be_bytes() {
        return Err(BadHandle { why: "was not issued by this cluster" });
    }
    let mut reader = Reader::new(fields[5..].to_vec().into());
    let mut read = || -> Result<Handle, crate::command::CommandError> {
        Ok(Handle {
            group: GroupId::new(reader.u64()?),
            topic: TopicId::new(reader.u64()?),
            queue: QueueId::new(reader.u32()?),
            offset: QueueOffset::new(reader.u64()?),
            checkout: CheckoutId::new(reader.u64()?),
            attempt: reader.u32()?,
        })
    };
    read().map_err(|_| malformed)
}

fn keyed(key: &[u8; 32]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

fn mac(fields: &[u8], key: &[u8; 32]) -> [u8; 32] {
    let mut signer = keyed(key);
    signer.update(fields);
    signer.finalize().into_bytes().into()
}

fn hex_digit(nibble: u8) -> char {
    char::from_digit(u32::from(nibble), 16).expect("a nibble is below 16")
}

fn from_hex(text: &str, max: usize) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || text.len() > 2 * max {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
    text.as_bytes()
        .chunks_exact(2)
        .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: BrokerGroupId = BrokerGroupId::new(0x0102_0304);

    fn handle() -> Handle {
        Handle {
            group: GroupId::new(1),
            topic: TopicId::new(2),
            queue: QueueId::new(3),
            offset: QueueOffset::new(4),
            checkout: CheckoutId::new(5),
            attempt: 6,
        }
    }

    #[test]
    fn only_the_key_that_signed_opens_a_handle() {
        let text = sign(GROUP, &handle(), &[7; 32]);
        assert_eq!(text.len(), 122);
        assert_eq!(open(GROUP, &text, &[7; 32]), Ok(handle()));
        assert_eq!(broker_group(&text), Ok(GROUP));
        let other = BrokerGroupId::new(5);
        assert_eq!(open(other, &text, &[7; 32]).unwrap_err().why, "was not issued by this cluster");
        assert_eq!(open(GROUP, &text, &[8; 32]).unwrap_err().why, "was not issued by this cluster");
    }

    #[test]
    fn every_changed_character_is_noticed() {
        let text = sign(GROUP, &handle(), &[7; 32]);
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(open(GROUP, &changed, &[7; 32]).is_err(), "character {at} is not covered");
        }
    }

    #[test]
    fn garbage_is_malformed() {
        for text in ["", "0", "zz", "0102", "ü", &"0".repeat(10_000)] {
            assert_eq!(open(GROUP, text, &[7; 32]).unwrap_err().why, "is malformed");
            assert_eq!(broker_group(text).unwrap_err().why, "is malformed");
        }
    }
}
