//! What a node says of itself, as values and as bytes.
//!
//! ```text
//! version u8 (1) | node u64 | said u64 | group u32 | term u64 | standing u8 | committed u64
//! | port u16 | name: length u16, UTF-8 | host: length u16, UTF-8
//! ```
//! Big-endian. Sent between nodes only; never stored.

use crate::base::{BrokerGroupId, NodeId, Term};

/// One node, one broker group that it hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    pub node: NodeId,
    /// When the node said this, in microseconds of its own monotonic clock. Only compared with
    /// what the same node says.
    pub said: u64,
    /// The broker name that clients see, stable for ever.
    pub name: String,
    /// Where clients are told to call it.
    pub host: String,
    pub port: u16,
    pub group: BrokerGroupId,
    /// The term that the node was in when it said this.
    pub term: Term,
    pub standing: Standing,
    /// How many entries it knew to be committed: the index of the last one, plus one.
    pub committed: u64,
}

/// What a node is to its broker group. The numbers are part of the peer protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Standing {
    Follows = 0,
    /// It leads in the registration's term.
    Leads = 1,
    /// It is about to stop: no longer to be shown to clients, or to be given the leadership.
    Leaves = 2,
}

/// Why bytes are no registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationError {
    #[error("the registration has version {found}; this node reads {VERSION}")]
    Version { found: u8 },
    #[error("the registration ends after {len} bytes, in the middle of a field")]
    Short { len: usize },
    #[error("the registration has {extra} bytes too many")]
    Long { extra: usize },
    #[error("a text of the registration is not UTF-8")]
    Text,
    #[error("the standing of the registration is {found}; allowed is 0 to 2")]
    Standing { found: u8 },
}

const VERSION: u8 = 1;

impl Registration {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.node.get().to_be_bytes());
        out.extend(self.said.to_be_bytes());
        out.extend(self.group.get().to_be_bytes());
        out.extend(self.term.get().to_be_bytes());
        out.push(self.standing as u8);
        out.extend(self.committed.to_be_bytes());
        out.extend(self.port.to_be_bytes());
        for text in [&self.name, &self.host] {
            let len = u16::try_from(text.len()).expect("names and hosts have at most 253 bytes");
            out.extend(len.to_be_bytes());
            out.extend(text.as_bytes());
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RegistrationError> {
        let mut rest = Rest { bytes, len: bytes.len() };
        let version = rest.array::<1>()?[0];
        if version != VERSION {
            return Err(RegistrationError::Version { found: version });
        }
        let node = NodeId::new(u64::from_be_bytes(rest.array()?));
        let said = u64::from_be_bytes(rest.array()?);
        let group = BrokerGroupId::new(u32::from_be_bytes(rest.array()?));
        let term = Term::new(u64::from_be_bytes(rest.array()?));
        let standing = match rest.array::<1>()?[0] {
            0 => Standing::Follows,
            1 => Standing::Leads,
            2 => Standing::Leaves,
            found => return Err(RegistrationError::Standing { found }),
        };
        let committed = u64::from_be_bytes(rest.array()?);
        let port = u16::from_be_bytes(rest.array()?);
        let name = rest.text()?;
        let host = rest.text()?;
        if !rest.bytes.is_empty() {
            return Err(RegistrationError::Long { extra: rest.bytes.len() });
        }
        Ok(Self { node, said, name, host, port, group, term, standing, committed })
    }
}

struct Rest<'a> {
    bytes: &'a [u8],
    len: usize,
}

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], RegistrationError> {
        let short = RegistrationError::Short { len: self.len };
        let (head, tail) = self.bytes.split_at_checked(count).ok_or(short)?;
        self.bytes = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RegistrationError> {
        let head = self.take(N)?;
        Ok(head.try_into().expect("take gives the length that was asked for"))
    }

    fn text(&mut self) -> Result<String, RegistrationError> {
        let len = u16::from_be_bytes(self.array()?);
        let bytes = self.take(usize::from(len))?;
        String::from_utf8(bytes.to_vec()).map_err(|_| RegistrationError::Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Registration {
        Registration {
            node: NodeId::new(3),
            said: 5,
            name: "b3".into(),
            host: "h".into(),
            port: 8081,
            group: BrokerGroupId::new(0),
            term: Term::new(7),
            standing: Standing::Leads,
            committed: 9,
        }
    }

    #[test]
    fn the_bytes_are_fixed() {
        let golden = [
            1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7,
            1, 0, 0, 0, 0, 0, 0, 0, 9, 0x1f, 0x91, 0, 2, b'b', b'3', 0, 1, b'h',
        ];
        assert_eq!(example().encode(), golden);
        assert_eq!(Registration::decode(&golden), Ok(example()));
    }

    #[test]
    fn any_cut_or_addition_is_refused() {
        let bytes = example().encode();
        for cut in 0..bytes.len() {
            assert_eq!(
                Registration::decode(&bytes[..cut]),
                Err(RegistrationError::Short { len: cut })
            );
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(Registration::decode(&longer), Err(RegistrationError::Long { extra: 1 }));
        let mut other = bytes.clone();
        other[0] = 2;
        assert_eq!(Registration::decode(&other), Err(RegistrationError::Version { found: 2 }));
        let mut unsure = bytes;
        unsure[29] = 3;
        assert_eq!(Registration::decode(&unsure), Err(RegistrationError::Standing { found: 3 }));
    }
}
