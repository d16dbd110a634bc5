//! Which records the leader writes again before their messages fire.
//!
//! A message that fires behind a mark before which its record lies needs its row until retention is
//! over. With a copy behind the mark it needs none, so what is due soon is brought forward.

use super::rows::Phase;
use super::{Timers, Wheel};
use crate::base::{LogPosition, UtcMillis};
use crate::command::Unit;

/// Entries that one look considers: the state is held meanwhile.
const LOOKED_AT: usize = 8192;

/// How far a leader has looked ahead; whatever it missed keeps its row.
#[derive(Debug, Default)]
pub struct Ahead {
    /// The newest mark when it looked.
    mark: LogPosition,
    /// The fine bucket of the wheel, and how many of its entries were looked at.
    at: (u64, usize),
}

impl Timers {
    /// Pending messages that are due by `until` and whose records lie before `mark`: where each lay
    /// first, and a unit that says where it lies; of at most so many bytes, but for the first. Goes
    /// on where it ended, from the start again with each new mark. `false` when there may be more.
    pub(in crate::machine) fn ahead(
        &self,
        ahead: &mut Ahead,
        until: UtcMillis,
        mark: LogPosition,
        most: usize,
    ) -> (Vec<(LogPosition, Unit)>, bool) {
        if ahead.mark != mark {
            *ahead = Ahead { mark, at: Wheel::NEAR_START };
        }
        let (mut found, mut bytes) = (Vec::new(), 0);
        for (looked_at, (at, due, position)) in self.wheel.near_from(ahead.at, until).enumerate() {
            let row = self.rows.get(position);
            let row = row.filter(|row| row.phase == (Phase::Pending { due }) && row.is_late(mark));
            let size = row.map_or(0, |row| row.size as usize);
            if looked_at == LOOKED_AT || (!found.is_empty() && bytes + size > most) {
                return (found, false);
            }
            bytes += size;
            found.extend(row.map(|row| {
                let unit = row.unit(UtcMillis::ZERO);
                (row.original, Unit { position: row.now, ..unit })
            }));
            ahead.at = at;
        }
        (found, true)
    }
}
