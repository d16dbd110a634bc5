use super::*;
use crate::base::{LogPosition, UtcMillis};
use crate::commit_log::{PurgeError, ReadError, TruncateError};

#[test]
fn truncation_keeps_lent_bytes_and_goes_on_in_a_new_file() {
    let rig = Rig::new(1 << 20);
    rig.fill(0, 10, 1);
    let lent = rig.log.read(index(7), index(8), 0).unwrap().remove(0);
    rig.append(10, 12, 1);
    rig.log.truncate_after(Some(index(4))).unwrap();
    assert_eq!(rig.done.all().last(), Some(&(11, true)), "what waited is completed first");
    assert_eq!(rig.entries(), run(0, 5, 1));
    assert_eq!(rig.log.bounds().flushed, Some(index(4)));
    assert_eq!(rig.log.segments().len(), 2);
    rig.append(5, 20, 2);
    let all = [run(0, 5, 1), run(5, 20, 2)].concat();
    assert_eq!(rig.entries(), all);
    assert_eq!(lent.body, body(7, 1), "bytes that were lent do not change");
    rig.flush();
    let rig = rig.reopen();
    assert_eq!(rig.entries(), all);
    rig.log.truncate_after(Some(index(19))).unwrap();
    rig.log.truncate_after(Some(index(90))).unwrap();
    assert_eq!(rig.log.segments().len(), 2, "nothing lay behind");
}

#[test]
fn truncates_anywhere_and_again() {
    // Every place to cut, over sealed and active segments, with index files and without.
    for (kept, upkeep) in (0..40).flat_map(|kept| [(kept, false), (kept, true)]) {
        let rig = Rig::new(600);
        rig.fill(0, 25, 1);
        if upkeep {
            rig.upkeep();
        }
        rig.fill(25, 41, 2);
        let before = rig.read_all();
        let at = usize::try_from(kept).unwrap();
        rig.log.truncate_after(Some(index(kept))).unwrap();
        let stamp = before[at].seal.unwrap().stamp;
        assert_eq!(rig.log.bounds().last_stamp, stamp);
        assert_eq!(rig.read_all(), before[..=at]);
        assert_eq!(rig.log.bounds().end, before[at + 1].position);
        let rig = rig.reopen();
        assert_eq!(rig.read_all(), before[..=at]);
        rig.fill(kept + 1, kept + 30, 3);
        rig.log.truncate_after(Some(index(kept / 2))).unwrap();
        rig.fill(kept / 2 + 1, 50, 4);
        let rig = rig.reopen();
        assert_eq!(rig.read_all()[..=at / 2], before[..=at / 2]);
        assert_eq!(rig.entries()[at / 2 + 1..], run(kept / 2 + 1, 50, 4));
    }
    let rig = Rig::new(600);
    rig.fill(0, 30, 1);
    rig.log.truncate_after(None).unwrap();
    assert_eq!(rig.entries(), []);
    assert_eq!(rig.log.bounds().last, None);
    assert_eq!(rig.log.bounds().end, LogPosition::ZERO);
    let rig = rig.reopen();
    rig.fill(3, 9, 2);
    assert_eq!(rig.reopen().entries(), run(3, 9, 2));
}

#[test]
fn never_truncates_what_is_committed_or_purged() {
    let rig = Rig::new(600);
    rig.fill(0, 30, 1);
    rig.log.save_committed(index(20), term(1)).unwrap();
    let error = rig.log.truncate_after(Some(index(19))).unwrap_err();
    assert!(matches!(error, TruncateError::Committed { .. }), "{error}");
    rig.log.purge_to(index(20), term(1)).unwrap();
    let error = rig.log.truncate_after(None).unwrap_err();
    assert!(matches!(error, TruncateError::Committed { .. }), "{error}");
    rig.log.truncate_after(Some(index(20))).unwrap();
    assert_eq!(rig.entries(), []);
    assert_eq!(rig.log.bounds().last, Some((index(20), term(1))));
    let rig = rig.reopen();
    rig.fill(21, 25, 2);
    assert_eq!(rig.reopen().entries(), run(21, 25, 2));
}

#[test]
fn purging_drops_whole_segments_and_serves_nothing_below() {
    let rig = Rig::new(600);
    rig.fill(0, 40, 1);
    rig.upkeep();
    let lent = rig.log.read(index(2), index(3), 0).unwrap().remove(0);
    for purged in [5, 5, 3, 21, 38, 39] {
        rig.log.purge_to(index(purged), term(1)).unwrap();
    }
    assert_eq!(lent.body, body(2, 1));
    let bounds = rig.log.bounds();
    assert_eq!((bounds.purged, bounds.last), (Some((index(39), term(1))), bounds.purged));
    assert_eq!((bounds.first, bounds.start), (None, bounds.end));
    assert_eq!(rig.log.segments().len(), 1);
    assert_eq!(rig.log.term_of(index(39)), Some(term(1)));
    assert_eq!(rig.log.term_of(index(38)), None);
    assert!(matches!(rig.log.read(index(39), index(50), 9), Err(ReadError::Purged { .. })));
    let error = rig.log.purge_to(index(40), term(1)).unwrap_err();
    assert!(matches!(error, PurgeError::Missing { .. }), "{error}");
    let rig = rig.reopen();
    assert_eq!(rig.log.bounds(), bounds);
    rig.fill(40, 60, 2);
    let error = rig.log.purge_to(index(50), term(3)).unwrap_err();
    assert!(matches!(error, PurgeError::Term { .. }), "{error}");
    assert_eq!(rig.reopen().entries(), run(40, 60, 2));
}

#[test]
fn a_purge_may_end_anywhere() {
    for purged in 0..40 {
        let rig = Rig::new(600);
        rig.fill(0, 20, 1);
        rig.fill(20, 40, 2);
        let at = usize::try_from(purged).unwrap();
        let before = rig.read_all();
        rig.log.purge_to(index(purged), before[at].term).unwrap();
        assert_eq!(rig.read_all(), before[at + 1..]);
        let bounds = rig.log.bounds();
        let rig = rig.reopen();
        assert_eq!(rig.read_all(), before[at + 1..]);
        assert_eq!(rig.log.bounds(), bounds);
        rig.upkeep();
        assert_eq!(rig.reopen().read_all(), before[at + 1..]);
    }
}

#[test]
fn restarts_after_a_snapshot_at_a_given_position() {
    let rig = Rig::new(600);
    rig.fill(0, 30, 1);
    rig.upkeep();
    let (at, stamp) = (LogPosition::new(1_000_000), UtcMillis::new(1_900_000_000_000));
    rig.log.restart_at(index(99), term(4), at, stamp).unwrap();
    let check = |rig: &Rig| {
        let bounds = rig.log.bounds();
        assert_eq!(bounds.last, Some((index(99), term(4))));
        assert_eq!((bounds.start, bounds.end, bounds.last_stamp), (at, at, stamp));
        assert_eq!(bounds.flushed, Some(index(99)));
        assert_eq!(rig.log.segments().len(), 1);
    };
    check(&rig);
    let rig = rig.reopen();
    check(&rig);
    rig.fill(100, 120, 4);
    let rig = rig.reopen();
    assert_eq!(rig.entries(), run(100, 120, 4));
    assert!(rig.read_all()[0].seal.unwrap().stamp >= stamp);
    let error = rig.log.restart_at(index(98), term(4), at, stamp).unwrap_err();
    assert!(matches!(error, PurgeError::Backwards { .. }));
}

/// Does `work` on a log of 40 entries with the power cut after each possible number of disk
/// operations in turn, and hands what comes back to `check` with whether the work had returned.
fn at_every_cut(work: impl Fn(&Rig) -> bool, check: impl Fn(&Rig, bool)) {
    let mut cuts = 0;
    loop {
        let rig = Rig::new(600);
        rig.fill(0, 20, 1);
        rig.upkeep();
        rig.fill(20, 40, 2);
        rig.sim.disk.stop_after(cuts);
        let finished = work(&rig);
        let rig = rig.power_cut(cuts);
        check(&rig, finished);
        rig.upkeep();
        let entries = rig.entries();
        let rig = rig.reopen();
        assert_eq!(rig.entries(), entries);
        let next = rig.log.bounds().last.map_or(0, |(last, _)| last.get() + 1);
        rig.fill(next, next + 20, 9);
        assert_eq!(rig.power_cut(cuts).entries(), [entries, run(next, next + 20, 9)].concat());
        if finished {
            assert!(cuts > 3, "the work was cut at each of its {cuts} steps");
            return;
        }
        cuts += 1;
    }
}

#[test]
fn a_power_cut_leaves_a_truncation_done_or_not_begun() {
    for kept in [35, 17, 9, 0] {
        let old = [run(0, 20, 1), run(20, 40, 2)].concat();
        at_every_cut(
            |rig| rig.log.truncate_after(Some(index(kept))).is_ok(),
            |rig, finished| {
                // Whole segments go from the end backwards, then the last one is cut.
                let entries = rig.entries();
                let at_least = usize::try_from(kept).unwrap() + 1;
                assert!(entries.len() >= at_least && old.starts_with(&entries));
                assert!(!finished || entries.len() == at_least);
            },
        );
    }
}

#[test]
fn a_power_cut_leaves_a_purge_done_or_not_begun() {
    for purged in [5, 17, 39] {
        let old = [run(0, 20, 1), run(20, 40, 2)].concat();
        at_every_cut(
            |rig| {
                let of = if purged < 20 { 1 } else { 2 };
                rig.log.purge_to(index(purged), term(of)).is_ok()
            },
            |rig, finished| {
                let entries = rig.entries();
                let left = &old[usize::try_from(purged).unwrap() + 1..];
                assert!(entries == left || (!finished && entries == old), "{entries:?}");
            },
        );
    }
}

#[test]
fn a_power_cut_leaves_a_restart_done_or_not_begun() {
    let old = [run(0, 20, 1), run(20, 40, 2)].concat();
    at_every_cut(
        |rig| {
            let stamp = rig.log.bounds().last_stamp;
            rig.log.restart_at(index(99), term(4), LogPosition::new(77_777), stamp).is_ok()
        },
        |rig, finished| {
            let last = rig.log.bounds().last.unwrap().0.get();
            let entries = rig.entries();
            assert!((last == 99 && entries.is_empty()) || (!finished && entries == old));
        },
    );
}
