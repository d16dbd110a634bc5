use super::*;
use crate::base::{LogPosition, Millis, UtcMillis};
use crate::commit_log::{AppendError, FRAME_BODY_MAX, FRAME_HEADER, ReadError, Seal};
use crate::env::{Clock, Disk};

#[test]
fn appends_are_readable_at_once_and_complete_in_order_after_one_sync() {
    let rig = Rig::new(4096);
    let before = rig.sim.disk.syncs();
    rig.append(0, 2, 1);
    rig.log.save_vote(vote(2), rig.done.completion(100));
    rig.append(2, 5, 1);
    rig.append(5, 6, 2);
    rig.log.barrier(rig.done.completion(101));
    assert_eq!(rig.entries(), [run(0, 5, 1), run(5, 6, 2)].concat());
    assert_eq!(rig.done.all(), [], "nothing completes before the disk has it");
    assert_eq!(rig.log.bounds().flushed, None);
    assert_eq!(rig.log.vote(), None);

    assert!(rig.flusher.step());
    assert!(!rig.flusher.step());
    let expected = [(1, true), (100, true), (4, true), (5, true), (101, true)];
    assert_eq!(rig.done.all(), expected);
    assert_eq!(rig.log.bounds().flushed, Some(index(5)));
    assert_eq!(rig.log.vote(), Some(vote(2)));
    // Two groups of appends (data, and the first file's name), file and name of the vote.
    assert_eq!(rig.sim.disk.syncs() - before, 2 + 2 + 1);
    assert_eq!(rig.log.stats().syncs, 2);
    assert_eq!(rig.log.stats().appends, 3);
    assert_eq!(rig.log.stats().frames, 6);
}

#[test]
fn an_append_call_is_one_write_for_each_segment_it_touches() {
    let rig = Rig::new(4096);
    rig.append(0, 1, 1);
    let before = rig.sim.disk.changes();
    rig.append(1, 11, 1);
    assert_eq!(rig.sim.disk.changes() - before, 1);
    let before = rig.sim.disk.changes();
    rig.append(11, 100, 1);
    let segments = rig.log.segments().len() as u64;
    assert!(segments > 2);
    // Each further segment is a file made and a write.
    assert_eq!(rig.sim.disk.changes() - before, 1 + 2 * (segments - 1));
}

#[test]
fn frames_never_cross_segments_and_positions_have_no_gap() {
    let rig = Rig::new(600);
    rig.append(0, 40, 1);
    rig.fill(40, 60, 2);
    rig.upkeep();
    let segments = rig.log.segments();
    assert!(segments.len() > 8);
    for (segment, next) in segments.iter().zip(&segments[1..]) {
        assert!(segment.sealed && segment.bytes <= 600);
        assert_eq!(segment.base.plus(segment.bytes), next.base);
        let name = format!("{:020}.log", segment.base.get());
        assert!(segment.path.ends_with(name));
        assert!(rig.sim.disk.exists(&segment.path.with_extension("idx")));
    }
    let all = [run(0, 40, 1), run(40, 60, 2)].concat();
    assert_eq!(rig.entries(), all);
    let rig = rig.reopen();
    assert_eq!(rig.entries(), all);
    assert_eq!(rig.log.segments(), segments);
    // Positions do not depend on the segment size.
    let other = Rig::new(1 << 20);
    other.append(0, 40, 1);
    other.append(40, 60, 2);
    let positions = |rig: &Rig| rig.read_all().iter().map(|f| f.position).collect::<Vec<_>>();
    assert_eq!(positions(&rig), positions(&other));
}

#[test]
fn a_frame_larger_than_a_segment_has_one_of_its_own() {
    let rig = Rig::new(512);
    rig.append(0, 2, 1);
    let large = Bytes::from(vec![7; 5_000]);
    let frame = Frame::unsealed(index(2), term(1), FrameKind::Command, large.clone());
    rig.log.append(vec![frame], rig.done.completion(2)).unwrap();
    rig.append(3, 4, 1);
    rig.flush();
    rig.upkeep();
    let rig = rig.reopen();
    assert_eq!(rig.log.segments().len(), 3);
    assert_eq!(rig.log.read(index(2), index(3), 0).unwrap()[0].body, large);
    assert_eq!(rig.log.read(index(3), index(4), 0).unwrap()[0].body, body(3, 1));
}

#[test]
fn stamps_never_fall_even_when_the_clock_does() {
    let rig = Rig::new(4096);
    let start = rig.sim.clock.wall();
    rig.append(0, 1, 1);
    rig.sim.clock.advance(Millis::new(70));
    rig.append(1, 2, 1);
    rig.sim.clock.set_skew(-5_000);
    rig.append(2, 3, 1);
    rig.flush();
    let rig = rig.reopen();
    assert_eq!(rig.log.bounds().last_stamp, start.plus(Millis::new(70)));
    rig.append(3, 4, 1);
    let frames = rig.read_all();
    let stamps: Vec<_> = frames.iter().map(|frame| frame.seal.unwrap().stamp).collect();
    let late = start.plus(Millis::new(70));
    assert_eq!(stamps, [start, late, late, late]);

    // A follower keeps the leader's seal and refuses one that falls.
    let sealed =
        |at: u64, stamp: UtcMillis| Frame { seal: Some(Seal { stamp, crc: 0 }), ..frame(at, 1) };
    let error = rig.log.append(vec![sealed(4, start)], rig.done.completion(4)).unwrap_err();
    assert!(matches!(error, AppendError::Stamp { .. }), "{error}");
    let follower = Rig::new(4096);
    follower.log.append(frames.clone(), follower.done.completion(3)).unwrap();
    assert_eq!(follower.read_all(), frames, "replicas hold the same bytes");
}

#[test]
fn refuses_what_does_not_continue_the_log() {
    let rig = Rig::new(4096);
    let append = |frames: Vec<Frame>| rig.log.append(frames, rig.done.completion(0));
    append(vec![frame(0, 1), frame(1, 3)]).unwrap();
    assert!(matches!(append(vec![frame(3, 3)]), Err(AppendError::Index { .. })));
    assert!(matches!(append(vec![frame(1, 3)]), Err(AppendError::Index { .. })));
    assert!(matches!(append(vec![frame(2, 3), frame(4, 3)]), Err(AppendError::Index { .. })));
    assert!(matches!(append(vec![frame(2, 2)]), Err(AppendError::Term { .. })));
    let large = Bytes::from(vec![0; FRAME_BODY_MAX + 1]);
    let large = Frame::unsealed(index(2), term(3), FrameKind::Command, large);
    assert!(matches!(append(vec![large]), Err(AppendError::Length { .. })));
    append(vec![frame(2, 3)]).unwrap();
    assert_eq!(rig.entries(), [(0, 1), (1, 3), (2, 3)]);
    append(Vec::new()).unwrap();
    rig.flush();
    assert_eq!(rig.done.all().len(), 3, "an empty append completes too");
}

#[test]
fn an_empty_log_starts_at_any_index() {
    // openraft's storage suite does that.
    let rig = Rig::new(512);
    assert_eq!(rig.log.bounds().last, None);
    assert_eq!(rig.log.read(index(0), index(9), 100).unwrap(), []);
    rig.fill(5, 40, 2);
    let rig = rig.reopen();
    assert_eq!(rig.entries(), run(5, 40, 2));
    assert_eq!(rig.log.bounds().first, Some(index(5)));
    assert!(matches!(rig.log.read(index(4), index(9), 100), Err(ReadError::Purged { .. })));
    rig.log.purge_to(index(4), term(1)).unwrap();
    assert_eq!(rig.log.bounds().purged, Some((index(4), term(1))));
    assert_eq!(rig.reopen().entries(), run(5, 40, 2));
}

#[test]
fn reads_keep_to_their_bytes_and_give_at_least_one() {
    let rig = Rig::new(700);
    rig.fill(0, 50, 1);
    let frames = rig.read_all();
    for max in [0, 1, 100, 333, 1_000, 100_000] {
        for from in 0..50_u64 {
            let got = rig.log.read(index(from), index(50), max).unwrap();
            let bytes: usize = got.iter().map(Frame::encoded_len).sum();
            let from = usize::try_from(from).unwrap();
            assert_eq!(got, frames[from..from + got.len()]);
            assert!(!got.is_empty() && (got.len() == 1 || bytes <= max));
            let next = frames.get(from + got.len()).map(Frame::encoded_len);
            assert!(next.is_none_or(|next| bytes + next > max), "as many as fit");
        }
    }
    assert_eq!(rig.log.read(index(10), index(13), 9_999).unwrap(), frames[10..13]);
    assert_eq!(rig.log.read(index(50), index(60), 9_999).unwrap(), []);
}

#[test]
fn records_are_read_by_position_inside_one_body() {
    let rig = Rig::new(700);
    rig.fill(0, 50, 1);
    rig.upkeep();
    let check = |rig: &Rig| {
        for frame in rig.read_all() {
            let (at, len) = (frame.body_position(), frame.body.len());
            let size = u32::try_from(len).unwrap();
            assert_eq!(rig.log.read_record(at, size).unwrap(), frame.body);
            let part = rig.log.read_record(at.plus(3), size - 5).unwrap();
            assert_eq!(part, frame.body.slice(3..len - 2));
            let outside = [(at.plus(3), size), (frame.position, 4), (at.plus(len as u64), 1)];
            for (position, size) in outside {
                let error = rig.log.read_record(position, size).unwrap_err();
                assert!(matches!(error, ReadError::NotInFrame { .. }), "{error}");
            }
        }
    };
    check(&rig);
    let rig = rig.reopen();
    check(&rig);
    let frame = rig.log.read(index(30), index(31), 0).unwrap().remove(0);
    rig.log.purge_to(index(30), term(1)).unwrap();
    let error = rig.log.read_record(frame.body_position(), 4).unwrap_err();
    assert!(matches!(error, ReadError::PurgedPosition { .. }));
    let beyond = rig.log.read_record(LogPosition::new(1 << 40), 4).unwrap_err();
    assert!(matches!(beyond, ReadError::NotInFrame { .. }));
}

#[test]
fn a_commit_is_noted_no_further_than_this_disk_has_the_entry() {
    let rig = Rig::new(4096);
    rig.append(0, 10, 1);
    rig.flush();
    rig.append(10, 20, 1);
    rig.log.save_committed(index(15), term(1)).unwrap();
    assert_eq!(rig.log.committed(), Some((index(15), term(1))));
    // The machine loses power: entries 10 to 19 were never durable here, although two other
    // replicas committed some of them. That is no rot.
    for seed in 0..20 {
        let copy = Rig::new(4096);
        copy.append(0, 10, 1);
        copy.flush();
        copy.append(10, 20, 1);
        copy.log.save_committed(index(15), term(1)).unwrap();
        let copy = copy.power_cut(seed);
        assert!(copy.log.bounds().last >= Some((index(9), term(1))));
        assert!(copy.log.committed() <= copy.log.bounds().last);
        assert!(copy.log.committed() <= Some((index(9), term(1))), "{:?}", copy.log.committed());
    }
    rig.flush();
    rig.log.save_committed(index(15), term(1)).unwrap();
    assert_eq!(rig.reopen().log.committed(), Some((index(15), term(1))));
}

#[test]
fn the_flusher_runs_on_a_thread_and_as_a_task() {
    let Rig { log, flusher, .. } = Rig::new(4096);
    let thread = std::thread::spawn(move || flusher.run());
    let (sender, receiver) = std::sync::mpsc::channel();
    for at in 0..50 {
        let sender = sender.clone();
        let done = Box::new(move |result: io::Result<()>| sender.send(result.is_ok()).unwrap());
        log.append(vec![frame(at, 1)], done).unwrap();
    }
    assert!((0..50).all(|_| receiver.recv().unwrap()));
    assert_eq!(log.bounds().flushed, Some(index(49)));
    drop(log);
    thread.join().unwrap();

    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let Rig { log, flusher, .. } = Rig::new(4096);
        let task = tokio::spawn(async move {
            while flusher.wait().await {
                flusher.step();
            }
        });
        for at in 0..5 {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let done = Box::new(move |result: io::Result<()>| sender.send(result.is_ok()).unwrap());
            log.append(vec![frame(at, 1)], done).unwrap();
            assert!(receiver.await.unwrap());
        }
        drop(log);
        task.await.unwrap();
    });
}

#[test]
fn headers_take_forty_bytes() {
    let rig = Rig::new(4096);
    rig.append(0, 1, 1);
    let end = rig.log.bounds().end.get();
    assert_eq!(end, (FRAME_HEADER + body(0, 1).len()) as u64);
}
