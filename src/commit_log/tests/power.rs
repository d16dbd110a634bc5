//! The power goes at random points of a mixed workload (must show 5, at the log's level).

use super::*;
use crate::env::sim::SimEntropy;

/// What a client of the log may rely on.
#[derive(Default)]
struct Promise {
    /// Entries whose completion came, by index, with their terms.
    durable: Vec<(u64, u64)>,
    vote: u64,
    purged: u64,
}

/// All entries ever asked for since the last promise, and what completed.
struct Workload<'a> {
    rig: &'a Rig,
    random: &'a SimEntropy,
    /// The log as its writer sees it.
    entries: Vec<(u64, u64)>,
    term: u64,
    votes: Vec<u64>,
}

const VOTE: u64 = 1 << 40;

impl Workload<'_> {
    fn next(&self, promise: &Promise) -> u64 {
        self.entries.last().map_or(promise.purged, |(index, _)| index + 1)
    }

    /// One random step; false when the disk is gone.
    fn step(&mut self, promise: &mut Promise) -> bool {
        let next = self.next(promise);
        let alive = match self.random.below(20) {
            0..10 => {
                let count = 1 + self.random.below(12);
                let frames = (next..next + count).map(|at| frame(at, self.term)).collect();
                self.entries.extend(run(next, next + count, self.term));
                self.rig.log.append(frames, self.rig.done.completion(next + count - 1)).is_ok()
            }
            10..14 => {
                self.rig.flusher.step() || self.rig.log.append(vec![], Box::new(|_| ())).is_ok()
            }
            14 => {
                self.term += 1;
                self.votes.push(self.term);
                self.rig.log.save_vote(vote(self.term), self.rig.done.completion(VOTE + self.term));
                true
            }
            15 => {
                let upkeep = self.rig.log.upkeep();
                for _ in 0..self.random.below(6) {
                    upkeep.step();
                }
                true
            }
            16 => self.truncate(promise),
            17 => self.purge(promise),
            _ => {
                self.note(promise);
                let committed = promise.durable.get(promise.durable.len() / 2).copied();
                committed.is_none_or(|(at, of)| {
                    at < promise.purged || self.rig.log.save_committed(index(at), term(of)).is_ok()
                })
            }
        };
        self.note(promise);
        alive
    }

    /// Turns completions into promises.
    fn note(&self, promise: &mut Promise) {
        for (tag, good) in self.rig.done.all() {
            if !good {
                continue;
            }
            if tag >= VOTE {
                promise.vote = promise.vote.max(tag - VOTE);
            } else {
                let known = promise.durable.last().map(|(index, _)| *index);
                let from = known.map_or(promise.purged, |known| known + 1);
                let fresh = self.entries.iter().filter(|(at, _)| (from..=tag).contains(at));
                promise.durable.extend(fresh);
            }
        }
        self.rig.done.clear();
    }

    fn truncate(&mut self, promise: &mut Promise) -> bool {
        let floor = self.rig.log.committed().map_or(promise.purged, |(at, _)| at.get() + 1);
        let floor = floor.max(promise.purged).max(1);
        let next = self.next(promise);
        if next <= floor {
            return true;
        }
        let cut = floor + self.random.below(next - floor);
        // Until it returned, either end is right.
        self.note(promise);
        promise.durable.retain(|(at, _)| *at < cut);
        let result = self.rig.log.truncate_after(Some(index(cut - 1)));
        // Completions that came with it are of entries that are gone, or of kept ones.
        self.note(promise);
        promise.durable.retain(|(at, _)| *at < cut);
        if result.is_ok() {
            self.entries.retain(|(at, _)| *at < cut);
            self.term += 1;
        }
        result.is_ok()
    }

    fn purge(&mut self, promise: &mut Promise) -> bool {
        let Some((at, of)) = promise.durable.get(promise.durable.len() / 3).copied() else {
            return true;
        };
        if at < promise.purged {
            return true;
        }
        let result = self.rig.log.purge_to(index(at), term(of));
        promise.durable.retain(|(index, _)| *index > at);
        promise.purged = at + 1;
        result.is_ok()
    }
}

/// What must hold after the machine came back.
fn check(rig: &Rig, promise: &Promise, asked: &[(u64, u64)]) {
    let entries = rig.entries();
    for wanted in &promise.durable {
        assert!(entries.contains(wanted), "{wanted:?} was promised; there is {entries:?}");
    }
    for found in &entries {
        assert!(asked.contains(found), "{found:?} was never appended");
    }
    let vote = rig.log.vote().map_or(0, |vote| vote.term.get());
    assert!(vote >= promise.vote, "vote {} was promised; there is {vote}", promise.vote);
    assert!(rig.log.committed() <= rig.log.bounds().last);
    assert_eq!(rig.log.damage(), None);
}

fn play(seed: u64) -> (u64, usize) {
    let random = SimEntropy::new(seed);
    let segment_bytes = 512 + random.below(8_192);
    let options = Options { segment_bytes, spare: random.below(2) == 0 };
    let mut rig = Rig::on(Sim::new(seed), options);
    let mut promise = Promise::default();
    let (mut term, mut cuts, mut promised) = (1, 0, 0);
    for life in 0..5 {
        let entries = rig.entries();
        let mut work = Workload { rig: &rig, random: &random, entries, term, votes: vec![] };
        let after = random.below(120);
        rig.sim.disk.stop_after(after);
        let mut asked = work.entries.clone();
        for _ in 0..60 {
            let alive = work.step(&mut promise);
            asked.extend(&work.entries);
            if !alive {
                break;
            }
        }
        work.note(&mut promise);
        term = work.term + 1;
        promised += promise.durable.len();
        rig = if life % 3 == 2 { rig.reopen() } else { rig.power_cut(random.below(u64::MAX)) };
        cuts += 1;
        asked.sort_unstable();
        asked.dedup();
        check(&rig, &promise, &asked);
        promise.purged = rig.log.bounds().purged.map_or(0, |(at, _)| at.get() + 1);
        promise.durable = rig.entries();
    }
    (cuts, promised)
}

#[test]
fn five_hundred_power_cuts_lose_nothing_that_completed() {
    let (mut cuts, mut promised) = (0, 0);
    for seed in 0..125 {
        let (more, entries) = play(seed);
        cuts += more;
        promised += entries;
    }
    assert!(cuts >= 500 && promised > 5_000, "{cuts} cuts, {promised} entries promised");
}

#[test]
fn frames_whose_sync_failed_are_written_again_before_the_next_one_counts() {
    // The pages of a sync that failed are clean for the kernel, and gone with the power. Found by
    // `jepsen simulate --seed 5`.
    for seed in 0..40 {
        let rig = Rig::new(4096);
        rig.fill(0, 5, 1);
        rig.sim.disk.fail_sync_after(0);
        rig.append(5, 8, 1);
        rig.flush();
        assert_eq!(rig.done.all().last(), Some(&(7, false)));
        let rig = rig.reopen();
        assert_eq!(rig.entries(), run(0, 8, 1), "the page cache has them");
        rig.fill(8, 10, 1);
        assert_eq!(rig.done.all().last(), Some(&(9, true)));
        let rig = rig.power_cut(seed);
        assert_eq!(rig.entries(), run(0, 10, 1));
    }
}
