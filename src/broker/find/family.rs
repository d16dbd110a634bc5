//! One message among entries of the index: its record, and what was written again of it.

use std::collections::BTreeMap;

use crate::base::LogPosition;
use crate::index::{Entry, Taken};

/// Entries that are copies of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Family {
    /// Where the record lay first, as far as the index knows.
    pub(super) root: LogPosition,
    /// The entry of that place; `None` once it has left.
    pub(super) first: Option<Entry>,
    /// The copy that leaves the log last.
    pub(super) newest: Entry,
    /// All places that a unit may point at.
    pub(super) places: Vec<LogPosition>,
}

/// In the order in which the messages were stored. `entries` are in the order of their places.
pub(super) fn families(entries: &[Entry]) -> Vec<Family> {
    let moved = |entry: &Entry| match entry.taken {
        Taken::Moved { original } => Some((entry.position, original)),
        _ => None,
    };
    let moved: BTreeMap<LogPosition, LogPosition> = entries.iter().filter_map(moved).collect();
    let root_of = |mut at: LogPosition| {
        // A copy lies behind what it is a copy of, or the index is wrong.
        while let Some(original) = moved.get(&at).filter(|original| **original < at) {
            at = *original;
        }
        at
    };
    let mut families: BTreeMap<LogPosition, Family> = BTreeMap::new();
    for entry in entries {
        let root = root_of(entry.position);
        let family = families.entry(root).or_insert_with(|| Family {
            root,
            first: None,
            newest: *entry,
            places: vec![root],
        });
        if entry.position == root {
            family.first = Some(*entry).filter(|entry| !matches!(entry.taken, Taken::Moved { .. }));
        } else {
            family.places.push(entry.position);
        }
        family.newest = *entry;
    }
    families.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{QueueId, UtcMillis};

    fn entry(position: u64, taken: Taken) -> Entry {
        let (position, stamp) = (LogPosition::new(position), UtcMillis::new(position));
        Entry { hash: 1, position, size: 9, queue: QueueId::new(2), stamp, taken }
    }

    fn moved(position: u64, original: u64) -> Entry {
        entry(position, Taken::Moved { original: LogPosition::new(original) })
    }

    #[test]
    fn copies_and_copies_of_copies_are_one_message() {
        let [a, b] = [entry(10, Taken::Published), entry(20, Taken::Prepared)];
        // One of 20 twice, one of its first copy, and one whose record has left.
        let entries = [a, b, moved(30, 20), moved(40, 5), moved(50, 20), moved(60, 30)];
        let found = families(&entries);
        let at = |family: &Family| {
            let places: Vec<u64> = family.places.iter().map(|place| place.get()).collect();
            (family.root.get(), family.first, family.newest.position.get(), places)
        };
        let told: Vec<_> = found.iter().map(at).collect();
        assert_eq!(
            told,
            [
                (5, None, 40, vec![5, 40]),
                (10, Some(a), 10, vec![10]),
                (20, Some(b), 60, vec![20, 30, 50, 60]),
            ]
        );
    }

    #[test]
    fn an_odd_copy_ends_no_search() {
        assert_eq!(families(&[moved(7, 7)])[0].first, None);
        assert_eq!(families(&[moved(7, 9), moved(9, 7)]).len(), 1);
    }
}
