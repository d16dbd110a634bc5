//! What a queue should be to each group: a plain copy of every offset, and of who has it.

use std::collections::BTreeMap;

use super::{ATTEMPTS_MAX, GROUPS, LATE};
use crate::base::GroupId;
use crate::command::Handle;

/// What the model knows of an offset that was considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Free,
    /// With the consumer that has this handle, until a deadline of this number.
    Flying {
        handle: Handle,
        due: (u64, u64),
        held: bool,
    },
    Waiting {
        attempt: u32,
        due: (u64, u64),
    },
    Ready {
        attempt: u32,
        last: Handle,
    },
    /// The dead letter of this offset, after this delivery.
    Dead {
        letter: u64,
        last: Handle,
    },
    Done,
}

/// Everything here is done with, but what is dead.
fn settle_all(offsets: &mut [At]) {
    let done = |at: &&mut At| !matches!(at, At::Dead { .. });
    offsets.iter_mut().filter(done).for_each(|at| *at = At::Done);
}

/// One queue, as each group sees it: one entry for each offset below `next`.
#[derive(Default)]
pub(super) struct Model {
    pub(super) end: u64,
    pub(super) groups: BTreeMap<GroupId, Vec<At>>,
    /// Deadlines set so far.
    pub(super) set: u64,
    /// Checkouts that still have something: consumer, attempt, first deadline.
    pub(super) checkouts: BTreeMap<u64, (GroupId, u8, Option<u8>, u64)>,
    pub(super) last_checkout: u64,
    /// Dead letters so far.
    pub(super) letters: BTreeMap<GroupId, u64>,
    /// What else is known of a group.
    pub(super) known: BTreeMap<GroupId, Known>,
    /// Dead letters that were not redriven: the deliveries after which they died.
    pub(super) rows: BTreeMap<(GroupId, u64), Handle>,
}

#[derive(Default)]
pub(super) struct Known {
    pub(super) epoch: u32,
    /// Handles of checkouts up to this one are stale.
    pub(super) barred: u64,
    pub(super) paused: bool,
    pub(super) stored: Option<u64>,
}

impl Model {
    pub(super) fn due(&mut self, at: u64) -> (u64, u64) {
        self.set += 1;
        (at, self.set)
    }

    pub(super) fn at(&mut self, handle: &Handle) -> Option<&mut At> {
        let offset = usize::try_from(handle.offset.get()).unwrap();
        self.groups.entry(handle.group).or_default().get_mut(offset)
    }

    pub(super) fn live(&mut self, handle: &Handle) -> bool {
        matches!(self.at(handle), Some(At::Flying { handle: live, .. }) if live == handle)
    }

    /// A delivery ended without an ack.
    pub(super) fn fail(&mut self, handle: Handle, given_up: bool) {
        let next = if given_up || handle.attempt >= ATTEMPTS_MAX {
            let letters = self.letters.entry(handle.group).or_default();
            *letters += 1;
            let letter = *letters - 1;
            self.rows.insert((handle.group, letter), handle);
            At::Dead { letter, last: handle }
        } else {
            At::Ready { attempt: handle.attempt, last: handle }
        };
        *self.at(&handle).unwrap() = next;
    }

    /// Handles of a group that satisfy `which`, in the order of offsets.
    pub(super) fn flying(&self, group: GroupId, which: impl Fn(&Handle) -> bool) -> Vec<Handle> {
        let all = self.groups.get(&group).into_iter().flatten().filter_map(|at| match at {
            At::Flying { handle, .. } => Some(*handle),
            _ => None,
        });
        all.filter(|handle| which(handle)).collect()
    }

    pub(super) fn known(&mut self, group: GroupId) -> &mut Known {
        self.known.entry(group).or_default()
    }

    pub(super) fn has_begun(&self, group: GroupId) -> bool {
        group != LATE || self.groups.contains_key(&group)
    }

    /// The group begins at `to` in its queue, whatever it had.
    pub(super) fn put(&mut self, group: GroupId, to: u64) {
        let to = usize::try_from(to.min(self.end)).unwrap();
        let offsets = self.groups.entry(group).or_default();
        offsets.resize(to, At::Done);
        settle_all(offsets);
        let barred = self.last_checkout;
        let standing = self.known(group);
        standing.epoch += 1;
        standing.barred = barred;
        if let Some(stored) = &mut standing.stored {
            *stored = to as u64;
        }
    }

    pub(super) fn store(&mut self, group: GroupId, offset: u64) {
        let at = offset.min(self.end);
        if self.known(group).stored.is_some_and(|stored| at < stored) {
            self.put(group, at);
        } else {
            let offsets = self.groups.entry(group).or_default();
            let count = usize::try_from(at).unwrap();
            offsets.resize(offsets.len().max(count), At::Done);
            settle_all(&mut offsets[..count]);
        }
        self.known(group).stored = Some(at);
    }

    /// Forgets checkouts of which nothing is in flight any more.
    pub(super) fn settle(&mut self) {
        let flying: Vec<_> =
            GROUPS.iter().flat_map(|group| self.flying(*group, |_| true)).collect();
        self.checkouts.retain(|id, _| flying.iter().any(|handle| handle.checkout.get() == *id));
    }

    pub(super) fn skip(&mut self, group: GroupId, from: u64, to: u64) {
        if from >= to || to > self.end {
            return;
        }
        let offsets = self.groups.entry(group).or_default();
        while (offsets.len() as u64) < to {
            offsets.push(At::Free);
        }
        for at in &mut offsets[usize::try_from(from).unwrap()..usize::try_from(to).unwrap()] {
            if matches!(*at, At::Free | At::Ready { .. }) {
                *at = At::Done;
            }
        }
    }

    /// The attempt that a grant of this offset would be, if it is available.
    pub(super) fn grant(&mut self, group: GroupId, offset: u64) -> Option<u32> {
        if offset >= self.end {
            return None;
        }
        let offsets = self.groups.entry(group).or_default();
        while offsets.len() as u64 <= offset {
            offsets.push(At::Free);
        }
        match offsets[usize::try_from(offset).unwrap()] {
            At::Free => Some(1),
            At::Ready { attempt, .. } => Some(attempt + 1),
            _ => None,
        }
    }

    pub(super) fn view(&self, group: GroupId) -> (u64, Vec<u64>, Vec<(u64, u32)>, usize) {
        let offsets = self.groups.get(&group).map_or(&[][..], |offsets| offsets);
        let (mut free, mut ready, mut flying) = (Vec::new(), Vec::new(), 0);
        for (offset, at) in (0..).zip(offsets) {
            match at {
                At::Free => free.push(offset),
                At::Ready { attempt, .. } => ready.push((offset, *attempt)),
                At::Flying { .. } | At::Waiting { .. } => flying += 1,
                At::Dead { .. } | At::Done => {}
            }
        }
        (offsets.len() as u64, free, ready, flying)
    }
}
