//! What may be under way at this node, in bytes and in commands. A proposal beyond that is refused
//! at once, with the time in which it is likely to find room: a refusal that comes early costs
//! little, and what waits longer than its caller does is work for nothing.
//!
//! The bounds follow from what is drained (Little's law): of bytes what drains in [`DELAY`], of
//! commands what drains in [`COMMANDS_DELAY`], within fixed limits. What is drained is measured while
//! something is under way without a pause; nothing is ever held back to be measured.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::base::{ByteSize, Millis};

/// How long the bytes that were admitted may take to drain …
const DELAY: Duration = Duration::from_millis(250);
/// … and the commands. What is refused waits for its turn behind them on a busy processor: with 1000
/// of them a refusal took 5 ms at the median, and 60 to 100 ms at p99.
const COMMANDS_DELAY: Duration = Duration::from_millis(30);
/// So much is admitted whatever was measured: a small load never shows what is possible.
const FLOOR: u64 = 2 << 20;
const COMMANDS_FLOOR: u64 = 512;
/// What a command costs beside its bytes: many small ones are as much work as few large ones.
const COMMAND_COST: u64 = 1024;
/// Time over which the rate is measured.
const WINDOW: Duration = Duration::from_millis(100);
/// Told while nothing is known.
const RETRY_UNKNOWN: Millis = Millis::new(400);
/// Long beside what is under way: each refusal is a whole rpc, which takes its time from the others.
const RETRY_MIN: Millis = Millis::new(400);
const RETRY_MAX: Millis = Millis::new(2_000);

/// How much room a command has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// New messages: what an overload is made of.
    Message,
    /// Handing messages out. This and all below have a reserve, so that consumers can drain an
    /// overload.
    Checkout,
    /// All else, acknowledgements above all.
    Other,
    /// Writing again what is still needed, before what lies around it leaves the disk.
    Relocate,
    /// What makes room on the disk.
    Purge,
}

/// Too much is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Busy {
    pub(crate) under_way: ByteSize,
    pub(crate) retry_after: Millis,
}

pub(crate) struct Admission {
    limit: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    used: u64,
    commands: u64,
    /// Bytes and commands in a second, once measured.
    rate: Option<u64>,
    commands_rate: u64,
    /// Drained since then, always with something under way.
    drained: u64,
    commands_drained: u64,
    since: Instant,
    /// Commands since then, and in the window before.
    now: Counts,
    before: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    admitted: u64,
    refused: u64,
}

/// Room that was given; it comes back when this is dropped.
#[must_use = "the room comes back when this is dropped"]
pub(crate) struct Permit<'a> {
    admission: &'a Admission,
    cost: u64,
}

impl Admission {
    pub(crate) fn new(limit: ByteSize) -> Self {
        let state = State {
            used: 0,
            commands: 0,
            rate: None,
            commands_rate: 0,
            drained: 0,
            commands_drained: 0,
            since: Instant::now(),
            now: Counts::default(),
            before: Counts::default(),
        };
        Self { limit: limit.get(), state: Mutex::new(state) }
    }

    /// One command alone always finds room, however large it is.
    pub(crate) fn admit(&self, class: Class, bytes: usize) -> Result<Permit<'_>, Busy> {
        let cost = bytes as u64 + COMMAND_COST;
        let mut state = self.state.lock();
        self.fits(&mut state, class, cost)?;
        if state.used == 0 {
            (state.drained, state.commands_drained) = (0, 0);
            state.since = Instant::now();
        }
        state.used += cost;
        state.commands += 1;
        state.now.admitted += 1;
        Ok(Permit { admission: self, cost })
    }

    /// Whether it would be admitted now: before work is done for it.
    pub(crate) fn would_admit(&self, class: Class, bytes: usize) -> Result<(), Busy> {
        self.fits(&mut self.state.lock(), class, bytes as u64 + COMMAND_COST)
    }

    fn fits(&self, state: &mut State, class: Class, cost: u64) -> Result<(), Busy> {
        let (bytes, commands) = self.bounds(state, class);
        if state.used == 0 || (state.used + cost <= bytes && state.commands < commands) {
            return Ok(());
        }
        state.now.refused += 1;
        let under_way = ByteSize::new(state.used);
        Err(Busy { under_way, retry_after: state.retry_after() })
    }

    /// Of bytes, and of commands.
    fn bounds(&self, state: &State, class: Class) -> (u64, u64) {
        let wanted = state.rate.map_or(self.limit, |rate| drains(rate, DELAY));
        let bytes = wanted.max(FLOOR).min(self.limit);
        let commands = drains(state.commands_rate, COMMANDS_DELAY).max(COMMANDS_FLOOR);
        match class {
            Class::Message => (bytes, commands),
            Class::Checkout | Class::Other | Class::Relocate | Class::Purge => {
                (bytes + bytes / 4, commands + commands / 4)
            }
        }
    }

    fn release(&self, cost: u64, now: Instant) {
        let mut state = self.state.lock();
        state.used = state.used.checked_sub(cost).expect("what comes back was given");
        state.drained += cost;
        state.commands = state.commands.checked_sub(1).expect("what comes back was given");
        state.commands_drained += 1;
        let elapsed = now.duration_since(state.since);
        if elapsed < WINDOW {
            return;
        }
        let latest = per_second(state.drained, elapsed);
        state.rate = Some(state.rate.map_or(latest, |rate| rate / 2 + latest / 2));
        let latest = per_second(state.commands_drained, elapsed);
        state.commands_rate = state.commands_rate / 2 + latest / 2;
        (state.drained, state.commands_drained) = (0, 0);
        state.since = now;
        state.before = std::mem::take(&mut state.now);
    }
}

fn per_second(count: u64, time: Duration) -> u64 {
    let rate = u128::from(count) * 1000 / time.as_millis().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

fn drains(rate: u64, within: Duration) -> u64 {
    u64::try_from(u128::from(rate) * within.as_millis() / 1000).unwrap_or(u64::MAX)
}

impl State {
    /// When what is under way has drained; the more was refused of late, the later. Refusing is work
    /// too, and who comes too soon only takes it from the others.
    fn retry_after(&self) -> Millis {
        let Some(rate) = self.rate.filter(|rate| *rate > 0) else { return RETRY_UNKNOWN };
        let Counts { admitted, refused } = self.before;
        let asked = u128::from(admitted + refused).max(1);
        let drained_in = u128::from(self.used) * 1000 / u128::from(rate);
        let at_least = drained_in.max(u128::from(RETRY_MIN.get()));
        let later = at_least * asked / u128::from(admitted).max(1);
        let later = u64::try_from(later).unwrap_or(u64::MAX).min(RETRY_MAX.get());
        // Spread over as much again, so that who was refused together does not come together.
        let spread = later * (self.now.refused % 16) / 16;
        Millis::new(later + spread)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.admission.release(self.cost, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    #[test]
    fn what_does_not_fit_is_refused_at_once_and_fits_again_later() {
        let admission = Admission::new(ByteSize::kib(64));
        // Each counts as two KiB, so that 32 are 64 KiB.
        let all: Vec<_> =
            (0..32).map(|_| admission.admit(Class::Message, KIB).ok().unwrap()).collect();
        let busy = admission.admit(Class::Message, KIB).err().unwrap();
        assert_eq!(busy, Busy { under_way: ByteSize::kib(64), retry_after: RETRY_UNKNOWN });
        // Deliveries still find room, and not without end.
        let others: Vec<_> =
            (0..8).map(|_| admission.admit(Class::Other, KIB).ok().unwrap()).collect();
        assert!(admission.admit(Class::Other, KIB).is_err());
        drop((all, others));
        let large = admission.admit(Class::Message, 4 << 20).ok();
        assert!(large.is_some(), "one alone always fits");
        assert!(admission.admit(Class::Message, 0).is_err());
        drop(large);
        assert!(admission.admit(Class::Message, 0).is_ok());
    }

    #[test]
    fn the_bound_follows_the_rate() {
        let admission = Admission::new(ByteSize::mib(64));
        // 40 MiB a second, with something under way all the time.
        let _one = admission.admit(Class::Message, 0).ok().unwrap();
        let mut now = Instant::now();
        for _ in 0..100 {
            let next = admission.admit(Class::Message, (1 << 20) - KIB).ok().unwrap();
            now += Duration::from_millis(25);
            admission.release(next.cost, now);
            std::mem::forget(next);
        }
        let rate = admission.state.lock().rate.unwrap() >> 20;
        assert!((36..=44).contains(&rate), "{rate} MiB/s");
        let mut held = Vec::new();
        let busy = loop {
            match admission.admit(Class::Message, (1 << 20) - KIB) {
                Ok(permit) => held.push(permit),
                Err(busy) => break busy,
            }
        };
        assert!((8..=11).contains(&held.len()), "{}", held.len());
        assert!((400..=800).contains(&busy.retry_after.get()), "{busy:?}");
    }
}
