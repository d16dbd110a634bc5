//! Which records the leader writes again before their messages fire.
//!
//! A message that fires behind a mark before which its record lies needs its row until retention is
//! over. With a copy behind the mark it needs none, so what is due soon is brought forward.

use super::Timers;
use super::rows::Phase;
use super::wheel::Place;
use crate::base::{LogPosition, UtcMillis};
use crate::command::Unit;

/// Entries that one look considers: the state is held meanwhile.
const LOOKED_AT: usize = 8192;

/// How far a leader has looked ahead; whatever it missed keeps its row.
#[derive(Debug, Default)]
pub struct Ahead {
    /// The newest mark when it looked.
    mark: LogPosition,
    /// Bytes that were written again since that mark.
    spent: u64,
    at: Place,
}

/// How much a look may find.
#[derive(Clone, Copy, Debug)]
pub(in crate::machine) struct Most {
    /// Bytes of one look, but for its first message.
    pub(in crate::machine) at_once: usize,
    /// Bytes between two marks: what is written again makes marks itself, which make it void.
    pub(in crate::machine) of_mark: u64,
}

impl Timers {
    /// Pending messages that are due by `until` and whose records lie before `mark`: where each lay
    /// first, and a unit that says where it lies. Goes on where it ended, from the start again with
    /// each new mark. `false` when there may be more.
    pub(in crate::machine) fn ahead(
        &self,
        ahead: &mut Ahead,
        until: UtcMillis,
        mark: LogPosition,
        most: Most,
    ) -> (Vec<(LogPosition, Unit)>, bool) {
        if ahead.mark != mark {
            *ahead = Ahead { mark, ..Ahead::default() };
        }
        let (mut found, mut bytes) = (Vec::new(), 0);
        for (looked_at, (at, due, position)) in self.wheel.soon_from(ahead.at, until).enumerate() {
            let row = self.rows.get(position);
            let row = row.filter(|row| row.phase == (Phase::Pending { due }) && row.is_late(mark));
            let size = row.map_or(0, |row| row.size as usize);
            if row.is_some() && ahead.spent >= most.of_mark {
                return (found, true);
            }
            if looked_at == LOOKED_AT || (!found.is_empty() && bytes + size > most.at_once) {
                return (found, false);
            }
            bytes += size;
            ahead.spent += size as u64;
            found.extend(row.map(|row| {
                let unit = row.unit(UtcMillis::ZERO);
                (row.original, Unit { position: row.now, ..unit })
            }));
            ahead.at = at;
        }
        (found, true)
    }
}
