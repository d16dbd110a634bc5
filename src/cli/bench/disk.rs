//! The disk's own speed: what one `fdatasync` takes, as the log uses it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::node::Tally;

use super::super::failure::Failure;

/// What one sync covers.
const WRITE: usize = 4096;
/// Zero-filled before, as the log's segments are.
const FILE: usize = 16 << 20;
const TIME: Duration = Duration::from_secs(1);

/// Of one writer that writes 4 KiB and syncs, again and again, for a second.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Disk {
    pub(super) fdatasync_p50_us: u64,
    pub(super) fdatasync_p99_us: u64,
    pub(super) fdatasync_per_second: f64,
}

pub(super) async fn measure(data: &Path) -> Result<Disk, Failure> {
    let path = data.to_owned();
    let measured = tokio::task::spawn_blocking(move || run(&path)).await;
    let measured = measured.map_err(io::Error::other).and_then(|measured| measured);
    measured.map_err(|source| Failure::Disk { path: data.to_owned(), source })
}

fn run(data: &Path) -> io::Result<Disk> {
    std::fs::create_dir_all(data)?;
    let path = data.join(format!("raftmq-disk-{}", std::process::id()));
    let file = File::options().create_new(true).write(true).open(&path)?;
    let tally = rounds(&file);
    std::fs::remove_file(&path)?;
    let (tally, time) = tally?;
    let figures = tally.figures(WRITE, time);
    Ok(Disk {
        fdatasync_p50_us: figures.p50_us,
        fdatasync_p99_us: figures.p99_us,
        fdatasync_per_second: figures.messages_per_second,
    })
}

fn rounds(file: &File) -> io::Result<(Tally, Duration)> {
    let zeros = vec![0; 1 << 20];
    for at in (0..FILE).step_by(zeros.len()) {
        file.write_all_at(&zeros, at as u64)?;
    }
    file.sync_all()?;
    let (tally, page, start) = (Tally::new(), vec![b'x'; WRITE], Instant::now());
    for round in 0.. {
        if start.elapsed() >= TIME {
            break;
        }
        file.write_all_at(&page, (round * WRITE % FILE) as u64)?;
        let begun = Instant::now();
        file.sync_data()?;
        tally.note(begun.elapsed(), 1);
    }
    Ok((tally, start.elapsed()))
}
