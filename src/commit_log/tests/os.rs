//! The same log over real files.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::commit_log::Identity;
use crate::env::os;

const OPTIONS: Options = Options { segment_bytes: 64 << 10, spare: true };

fn append_and_wait(log: &CommitLog, frames: Vec<Frame>) {
    let (sender, receiver) = std::sync::mpsc::channel();
    log.append(frames, Box::new(move |result| sender.send(result).unwrap())).unwrap();
    receiver.recv().unwrap().unwrap();
}

#[test]
fn appends_rolls_purges_and_reopens_while_others_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let (log, flusher) = CommitLog::open(os::env(), &path, OPTIONS).unwrap();
    let upkeep = log.upkeep();
    let threads =
        [std::thread::spawn(move || flusher.run()), std::thread::spawn(move || upkeep.run())];
    let stop = Arc::new(AtomicBool::new(false));
    let reader = {
        let (log, stop) = (log.clone(), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut read = 0;
            while !stop.load(Ordering::Acquire) {
                let bounds = log.bounds();
                let Some(first) = bounds.first else { continue };
                // A purge may come between; nothing else may go wrong.
                for frame in
                    log.read(first, bounds.last.unwrap().0.next(), 4_096).unwrap_or_default()
                {
                    assert_eq!(frame.body, body(frame.index.get(), 1));
                    let size = u32::try_from(frame.body.len()).unwrap();
                    if let Ok(record) = log.read_record(frame.body_position(), size) {
                        assert_eq!(record, frame.body);
                    }
                    read += 1;
                }
            }
            read
        })
    };
    let mut kept = Vec::new();
    for at in (0..8_000).step_by(20) {
        append_and_wait(&log, (at..at + 20).map(|at| frame(at, 1)).collect());
        if at % 1_000 == 0 {
            kept.push(log.read(index(at), index(at + 1), 0).unwrap().remove(0));
            let record = log.read_record(kept.last().unwrap().body_position(), 5).unwrap();
            assert_eq!(record, b"entry".as_slice());
        }
        if at % 2_500 == 0 && at > 0 {
            log.purge_to(index(at - 500), term(1)).unwrap();
        }
    }
    stop.store(true, Ordering::Release);
    assert!(reader.join().unwrap() > 0);
    for frame in kept {
        assert_eq!(frame.body, body(frame.index.get(), 1), "lent bytes outlive their file");
    }
    let bounds = log.bounds();
    assert!(log.stats().rolls > 5);
    drop(log);
    for thread in threads {
        thread.join().unwrap();
    }
    let (log, _flusher) = CommitLog::open(os::env(), &path, OPTIONS).unwrap();
    assert_eq!(log.bounds(), bounds);
    let frames = log.read(bounds.first.unwrap(), index(8_000), usize::MAX).unwrap();
    assert_eq!(frames.len() as u64, 7_999 - bounds.purged.unwrap().0.get());
    assert!(frames.iter().all(|frame| frame.body == body(frame.index.get(), 1)));
    while log.scrub(1 << 20).unwrap().left > 0 {}
}

#[test]
fn truncation_and_votes_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (log, flusher) = CommitLog::open(os::env(), dir.path(), OPTIONS).unwrap();
    log.append((0..100).map(|at| frame(at, 1)).collect(), Box::new(|result| result.unwrap()))
        .unwrap();
    log.save_vote(vote(3), Box::new(|result| result.unwrap()));
    while flusher.step() {}
    let lent = log.read(index(70), index(71), 0).unwrap().remove(0);
    log.truncate_after(Some(index(49))).unwrap();
    log.append((50..80).map(|at| frame(at, 3)).collect(), Box::new(|result| result.unwrap()))
        .unwrap();
    while flusher.step() {}
    assert_eq!(lent.body, body(70, 1));
    drop((log, flusher));
    let (log, _flusher) = CommitLog::open(os::env(), dir.path(), OPTIONS).unwrap();
    assert_eq!(log.vote(), Some(vote(3)));
    let frames = log.read(index(0), index(90), usize::MAX).unwrap();
    assert_eq!(frames.len(), 80);
    assert!(frames.iter().all(|frame| frame.body == body(frame.index.get(), frame.term.get())));
    let identity = Identity::load(&*os::env().disk, dir.path()).unwrap();
    assert_eq!(identity, None);
}
