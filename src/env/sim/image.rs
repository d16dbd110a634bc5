//! What a disk holds: file content and names, each as running programs see it and as it would be
//! after a power cut.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::env::Entropy;
use crate::env::sim::SimEntropy;

/// The unit that survives or is lost: a page of the page cache.
pub(super) const PAGE: usize = 4096;

/// One file's bytes, seen and durable.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pub(super) live: Vec<u8>,
    pub(super) durable: Vec<u8>,
    /// Pages whose live bytes were not synced.
    pub(super) dirty: BTreeSet<usize>,
}

impl Content {
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.live.len() < end {
            let old = self.live.len();
            self.live.resize(end, 0);
            self.dirty.extend(old / PAGE..=(end.max(1) - 1) / PAGE);
        }
        self.live[offset..end].copy_from_slice(bytes);
        if !bytes.is_empty() {
            self.dirty.extend(offset / PAGE..=(end - 1) / PAGE);
        }
    }

    pub(super) fn sync(&mut self) {
        self.durable.resize(self.live.len(), 0);
        for page in std::mem::take(&mut self.dirty) {
            self.keep(page);
        }
    }

    /// Makes one page durable as it is now.
    fn keep(&mut self, page: usize) {
        let from = page * PAGE;
        let to = (from + PAGE).min(self.live.len());
        if self.durable.len() < to {
            self.durable.resize(to, 0);
        }
        self.durable[from..to].copy_from_slice(&self.live[from..to]);
    }

    /// Each unsynced page survives or not on its own. `torn` is the part of the last write that
    /// lies in this file: of it, one page keeps only the first bytes.
    pub(super) fn cut(&mut self, random: &SimEntropy, torn: Option<(usize, usize)>) {
        if random.below(2) == 0 {
            self.durable.resize(self.live.len(), 0);
        }
        for page in std::mem::take(&mut self.dirty) {
            if random.below(2) == 0 {
                self.keep(page);
            }
        }
        if let Some((from, to)) = torn.filter(|(from, to)| from < to) {
            let span = (to - from) as u64;
            let edge = from + usize::try_from(random.below(span)).unwrap_or_default();
            let page_end = (edge / PAGE * PAGE + PAGE).min(to);
            let page_start = (edge / PAGE * PAGE).max(from);
            if self.durable.len() < page_end {
                self.durable.resize(page_end, 0);
            }
            let (live, durable) = (&self.live, &mut self.durable);
            durable[page_start..edge].copy_from_slice(&live[page_start..edge]);
            let rubbish = u8::try_from(random.u64() & 0xff).unwrap_or_default();
            if random.below(4) == 0 {
                durable[edge..page_end].fill(rubbish);
            }
        }
        self.live.clone_from(&self.durable);
    }
}

/// One change of a directory that is not durable yet.
#[derive(Clone, Debug)]
enum NameChange {
    Link(PathBuf, u64),
    Unlink(PathBuf),
    Rename(PathBuf, PathBuf),
}

/// Which names lead to which content.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    live: BTreeMap<PathBuf, u64>,
    durable: BTreeMap<PathBuf, u64>,
    pending: BTreeMap<PathBuf, Vec<NameChange>>,
}

fn parent(path: &Path) -> PathBuf {
    path.parent().map(Path::to_path_buf).unwrap_or_default()
}

impl Names {
    pub(super) fn get(&self, path: &Path) -> Option<u64> {
        self.live.get(path).copied()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&PathBuf, u64)> {
        self.live.iter().map(|(path, content)| (path, *content))
    }

    fn change(&mut self, dir: PathBuf, change: NameChange) {
        Self::play(&mut self.live, &change);
        self.pending.entry(dir).or_default().push(change);
    }

    fn play(names: &mut BTreeMap<PathBuf, u64>, change: &NameChange) {
        match change {
            NameChange::Link(path, content) => {
                names.insert(path.clone(), *content);
            }
            NameChange::Unlink(path) => {
                names.remove(path);
            }
            NameChange::Rename(from, to) => {
                if let Some(content) = names.remove(from) {
                    names.insert(to.clone(), content);
                }
            }
        }
    }

    pub(super) fn link(&mut self, path: &Path, content: u64) {
        self.change(parent(path), NameChange::Link(path.to_path_buf(), content));
    }

    pub(super) fn unlink(&mut self, path: &Path) {
        self.change(parent(path), NameChange::Unlink(path.to_path_buf()));
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) {
        assert_eq!(parent(from), parent(to), "names move within one directory only");
        self.change(parent(to), NameChange::Rename(from.to_path_buf(), to.to_path_buf()));
    }

    pub(super) fn sync(&mut self, dir: &Path) {
        for change in self.pending.remove(dir).unwrap_or_default() {
            Self::play(&mut self.durable, &change);
        }
    }

    /// As in a journalling file system, of the unsynced changes of a directory the first few
    /// survive and the rest are lost.
    pub(super) fn cut(&mut self, random: &SimEntropy) {
        for (_, changes) in std::mem::take(&mut self.pending) {
            let kept = random.below(changes.len() as u64 + 1);
            for (_, change) in (0..kept).zip(&changes) {
                Self::play(&mut self.durable, change);
            }
        }
        self.live.clone_from(&self.durable);
    }
}
