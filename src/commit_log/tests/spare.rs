use super::*;
use crate::env::{Disk, Entropy};

fn with_spares(seed: u64) -> Rig {
    Rig::on(Sim::new(seed), Options { segment_bytes: 4096, spare: true })
}

#[test]
fn a_roll_takes_the_spare_and_writes_nothing_else() {
    let rig = with_spares(1);
    rig.upkeep();
    assert!(rig.sim.disk.exists(&Path::new(DIR).join("ready.spare")));
    rig.fill(0, 20, 1);
    let mut at = 20;
    while rig.log.segments().len() == 1 {
        let before = rig.sim.disk.changes();
        rig.append(at, at + 1, 1);
        at += 1;
        // One write, and at the roll one rename.
        assert!(rig.sim.disk.changes() - before <= 2);
    }
    assert_eq!(rig.log.stats().rolls, 1);
    assert_eq!(rig.log.stats().rolls_without_spare, 0);
    assert_eq!(rig.sim.disk.read(&rig.path(1)).unwrap().len(), 4096, "it has its size");
    rig.flush();
    let rig = rig.reopen();
    assert_eq!(rig.entries(), run(0, at, 1));
    // Without a spare the log rolls all the same.
    rig.fill(at, at + 200, 1);
    assert!(rig.log.stats().rolls_without_spare > 0);
}

#[test]
fn a_full_disk_only_delays_the_spare() {
    let rig = with_spares(1);
    // Two files, for the next vote and the next purge, are made ahead.
    rig.sim.disk.set_capacity(Some(18_000 + 2 * 4096));
    rig.upkeep();
    rig.fill(0, 3, 1);
    rig.sim.disk.set_capacity(None);
    rig.upkeep();
    assert!(rig.sim.disk.exists(&Path::new(DIR).join("ready.spare")));
}

#[test]
fn stale_bytes_of_a_recycled_spare_are_harmless() {
    // Frames of one size, so that old frames lie exactly where new ones will.
    let same = |at: u64, of: u64| {
        let body = Bytes::from(format!("{at:08}{of:08}"));
        Frame::unsealed(index(at), term(of), FrameKind::Command, body)
    };
    for seed in 0..60 {
        let rig = with_spares(seed);
        let fill = |rig: &Rig, from: u64, to: u64| {
            for at in from..to {
                rig.log.append(vec![same(at, 1)], rig.done.completion(at)).unwrap();
            }
            rig.flush();
        };
        rig.upkeep();
        fill(&rig, 0, 100);
        rig.upkeep();
        fill(&rig, 100, 250);
        // The second segment is full size, so it becomes the spare, stale frames and all.
        let _ = std::mem::take(&mut *rig.done.0.lock());
        rig.log.upkeep();
        let spare = Path::new(DIR).join("ready.spare");
        let before = rig.log.segments();
        assert!(before.len() >= 3);
        if rig.sim.disk.exists(&spare) {
            rig.sim.disk.remove(&spare).unwrap();
        }
        rig.log.purge_to(index(200), term(1)).unwrap();
        let stale = rig.sim.disk.read(&spare).unwrap();
        assert!(stale.iter().any(|byte| *byte != 0), "it was not zeroed");
        let from = rig.log.bounds().last.unwrap().0.get() + 1;
        let to = from + 40 + seed;
        fill(&rig, from, to);
        rig.append(to, to, 1);
        for at in to..to + 5 {
            rig.log.append(vec![same(at, 1)], rig.done.completion(at)).unwrap();
        }
        let rig = if seed % 2 == 0 { rig.power_cut(seed) } else { rig.reopen() };
        let last = rig.log.bounds().last.unwrap().0.get();
        assert!((to - 1..to + 5).contains(&last), "{last} after {to}");
        for frame in rig.read_all() {
            assert_eq!(frame.body, same(frame.index.get(), 1).body);
        }
        fill(&rig, last + 1, last + 100);
        let rig = rig.power_cut(rig_seed(seed));
        assert_eq!(rig.log.bounds().last.unwrap().0.get(), last + 99);
    }
}

fn rig_seed(seed: u64) -> u64 {
    crate::env::sim::SimEntropy::new(seed).u64()
}
