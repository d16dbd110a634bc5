//! Everything that happens in a simulation, one line each. Two runs of one seed write the same
//! bytes, or the simulation is worth nothing.

use std::fmt::{Arguments, Write as _};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

/// Cheap to clone; all clones write to one.
#[derive(Clone, Debug)]
pub(crate) struct Trace(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    /// True time, microseconds.
    now: u64,
    line: String,
    lines: u64,
    hash: u32,
    file: Option<BufWriter<File>>,
}

impl Trace {
    pub(crate) fn new(path: Option<&Path>) -> io::Result<Self> {
        let file = path.map(File::create).transpose()?.map(BufWriter::new);
        let line = String::new();
        Ok(Self(Arc::new(Mutex::new(Inner { now: 0, line, lines: 0, hash: 0, file }))))
    }

    pub(crate) fn set_time(&self, now: u64) {
        self.0.lock().now = now;
    }

    pub(crate) fn note(&self, what: Arguments<'_>) {
        let inner = &mut *self.0.lock();
        inner.line.clear();
        let millis = (inner.now / 1000, inner.now % 1000);
        writeln!(inner.line, "{}.{:03} {what}", millis.0, millis.1).expect("a string takes all");
        inner.hash = crc32c::crc32c_append(inner.hash, inner.line.as_bytes());
        inner.lines += 1;
        if let Some(file) = &mut inner.file {
            // A trace that cannot be written is noticed where it is compared.
            let _ = file.write_all(inner.line.as_bytes());
        }
    }

    /// How many lines there are, and a checksum over all of them.
    pub(crate) fn sum(&self) -> (u64, u32) {
        let mut inner = self.0.lock();
        if let Some(file) = &mut inner.file {
            let _ = file.flush();
        }
        (inner.lines, inner.hash)
    }
}
