//! Which transactions were decided lately, and how.
//!
//! A decision is remembered while it is among the last 2^18 and at most an hour old, and in any case
//! among the last 2^14. Stamps never fall, so what is remembered is always the newest part.

use std::collections::{BTreeMap, VecDeque};

use crate::base::{LogPosition, UtcMillis};
use crate::command::{Decided, Reader, Writer};
use crate::machine::codec::{read_rows, require, write_rows};
use crate::machine::error::SectionError;
use crate::machine::limits::{DECIDED_MAX, DECIDED_MIN, DECIDED_WINDOW};

#[derive(Debug, Default)]
pub(in crate::machine) struct DecidedMemory {
    by_place: BTreeMap<LogPosition, Decided>,
    /// In the order of decisions.
    order: VecDeque<LogPosition>,
}

impl DecidedMemory {
    pub(in crate::machine) fn get(&self, at: LogPosition) -> Option<&Decided> {
        self.by_place.get(&at)
    }

    pub(super) fn add(&mut self, at: LogPosition, decided: Decided) {
        let fresh = self.by_place.insert(at, decided);
        assert!(fresh.is_none(), "a transaction is decided once");
        self.order.push_back(at);
    }

    /// Forgets what is not remembered any more by `stamp`.
    pub(in crate::machine) fn forget(&mut self, stamp: UtcMillis) {
        while self.order.len() > DECIDED_MIN {
            let first = self.order[0];
            let decided = self.by_place[&first];
            let within = stamp.since(decided.stamp) <= DECIDED_WINDOW;
            if within && self.order.len() <= DECIDED_MAX {
                break;
            }
            self.order.pop_front();
            self.by_place.remove(&first);
        }
    }

    pub(in crate::machine) fn write(&self, writer: &mut Writer) {
        write_rows(writer, self.order.iter(), |w, at| {
            w.put(at);
            w.put(&self.by_place[at]);
        });
    }

    pub(in crate::machine) fn read(reader: &mut Reader) -> Result<Self, SectionError> {
        let mut memory = Self::default();
        read_rows(reader, |r| {
            let (at, decided) = (r.get()?, r.get()?);
            require(memory.get(at).is_none(), "a transaction was decided twice")?;
            memory.add(at, decided);
            Ok(())
        })?;
        Ok(memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Decider, Decision};

    fn decided(stamp: u64) -> Decided {
        let (decision, by) = (Decision::RollBack, Decider::Producer);
        Decided { decision, by, stamp: UtcMillis::new(stamp), place: None }
    }

    #[test]
    fn decisions_are_remembered_by_time_and_by_count() {
        let mut memory = DecidedMemory::default();
        let at = |number: usize| LogPosition::new(number as u64);
        for number in 0..DECIDED_MAX + 5 {
            memory.add(at(number), decided(1_000));
            memory.forget(UtcMillis::new(1_000));
        }
        assert!(memory.get(at(4)).is_none() && memory.get(at(5)).is_some());
        assert_eq!(memory.order.len(), DECIDED_MAX);
        let over = 1_000 + DECIDED_WINDOW.get();
        memory.forget(UtcMillis::new(over));
        assert_eq!(memory.order.len(), DECIDED_MAX, "an hour is within");
        memory.forget(UtcMillis::new(over + 1));
        assert_eq!((memory.order.len(), memory.by_place.len()), (DECIDED_MIN, DECIDED_MIN));
        assert!(memory.get(at(DECIDED_MAX + 4)).is_some());
    }
}
