//! What libraries ask of the machine by themselves: randomness for their tables and schedulers, and
//! the time. On the thread of a simulation the seed answers.
//!
//! The standard library, tokio and others reach both through the C library, so the functions of the
//! same names here come before the C library's. That seeds tokio's scheduler and every `HashMap`
//! without a build of its own for the simulator. Other threads get the real thing.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::ffi::{c_int, c_uint, c_void};
use std::hash::BuildHasher;
use std::thread;

use rustix::rand::GetRandomFlags;
use rustix::time::ClockId;

/// The simulation's answers, on its thread.
#[derive(Clone, Copy)]
struct Seeded {
    random: u64,
    nanos: u64,
}

thread_local! {
    static SEEDED: Cell<Option<Seeded>> = const { Cell::new(None) };
}

/// Makes this thread's randomness and time those of a simulation.
pub(crate) fn seed(seed: u64) {
    SEEDED.set(Some(Seeded { random: seed, nanos: 0 }));
}

/// What the clocks of this thread say, since the simulation began.
pub(crate) fn set_time(nanos: u64) {
    SEEDED.set(SEEDED.get().map(|seeded| Seeded { nanos, ..seeded }));
}

/// Whether the functions below are the ones that the standard library calls.
pub(crate) fn is_effective() -> bool {
    let hash = |seed_of_thread| {
        let drawn = thread::spawn(move || {
            seed(seed_of_thread);
            RandomState::new().hash_one(0_u8)
        });
        drawn.join().ok()
    };
    let first = hash(1);
    first.is_some() && first == hash(1) && first != hash(2)
}

/// SplitMix64.
fn next(seeded: &mut Seeded) -> u64 {
    seeded.random = seeded.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = seeded.random;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[expect(unsafe_code, reason = "takes the place of the C library's function of this name")]
#[unsafe(no_mangle)]
extern "C" fn getrandom(buffer: *mut c_void, len: usize, _flags: c_uint) -> isize {
    if buffer.is_null() || len == 0 {
        return 0;
    }
    // SAFETY: as with the C library's function, the caller lends `len` bytes to write to.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), len) };
    if let Some(mut seeded) = SEEDED.get() {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&next(&mut seeded).to_be_bytes()[..chunk.len()]);
        }
        SEEDED.set(Some(seeded));
        return isize::try_from(len).unwrap_or(isize::MAX);
    }
    match rustix::rand::getrandom(bytes, GetRandomFlags::empty()) {
        Ok(filled) => isize::try_from(filled).unwrap_or(isize::MAX),
        Err(_) => -1,
    }
}

/// As the C library's `timespec` on 64-bit systems.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanos: i64,
}

/// The simulation's clocks start here, so that no subtraction falls below zero.
const STARTED_SECONDS: u64 = 1_700_000_000;

#[expect(unsafe_code, reason = "takes the place of the C library's function of this name")]
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: c_int, to: *mut Timespec) -> c_int {
    let told = match SEEDED.get() {
        Some(Seeded { nanos, .. }) => Timespec {
            seconds: (STARTED_SECONDS + nanos / 1_000_000_000).cast_signed(),
            nanos: (nanos % 1_000_000_000).cast_signed(),
        },
        None => {
            let clock = match clock {
                0 => ClockId::Realtime,
                2 => ClockId::ProcessCPUTime,
                3 => ClockId::ThreadCPUTime,
                4 => ClockId::MonotonicRaw,
                5 => ClockId::RealtimeCoarse,
                6 => ClockId::MonotonicCoarse,
                7 => ClockId::Boottime,
                _ => ClockId::Monotonic,
            };
            let now = rustix::time::clock_gettime(clock);
            Timespec { seconds: now.tv_sec, nanos: now.tv_nsec }
        }
    };
    if to.is_null() {
        return -1;
    }
    // SAFETY: as with the C library's function, the caller lends a `timespec` to write to.
    unsafe { to.write(told) };
    0
}
