//! A disk in memory that can lose power, fail and rot on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::image::{Content, Names};
use crate::env::sim::SimEntropy;
use crate::env::{Disk, File, Open};

/// Clones share the same disk. After [`SimDisk::power_cut`] or [`SimDisk::kill`] the files that
/// were open are dead: the program that held them no longer runs.
#[derive(Clone, Debug, Default)]
pub struct SimDisk {
    world: Arc<Mutex<World>>,
}

#[derive(Debug, Default)]
struct World {
    contents: BTreeMap<u64, Content>,
    names: Names,
    dirs: BTreeSet<PathBuf>,
    next: u64,
    /// Counts lives of the program.
    life: u64,
    last_write: Option<(u64, usize, usize)>,
    faults: Faults,
    syncs: u64,
    changes: u64,
}

/// Countdowns: `Some(0)` fails the next operation of the kind.
#[derive(Debug, Default)]
struct Faults {
    sync: Option<u64>,
    write: Option<u64>,
    stop: Option<u64>,
    capacity: Option<u64>,
}

/// Counts one down; true when it was due.
fn due(countdown: &mut Option<u64>) -> bool {
    match countdown {
        Some(0) => true,
        Some(left) => {
            *left -= 1;
            false
        }
        None => false,
    }
}

fn power_is_off() -> io::Error {
    io::Error::other("the simulated machine has no power")
}

impl World {
    /// Called before whatever changes the disk.
    fn change(&mut self) -> io::Result<()> {
        if due(&mut self.faults.stop) {
            return Err(power_is_off());
        }
        self.changes += 1;
        Ok(())
    }

    fn powered(&self) -> io::Result<()> {
        if self.faults.stop == Some(0) { Err(power_is_off()) } else { Ok(()) }
    }

    fn used(&self) -> u64 {
        let named = self.names.all().filter_map(|(_, id)| self.contents.get(&id));
        named.map(|content| content.live.len() as u64).sum()
    }

    fn content(&mut self, id: u64, life: u64) -> io::Result<&mut Content> {
        if life != self.life {
            return Err(io::Error::other("this file was opened in an earlier life"));
        }
        self.contents.get_mut(&id).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sweep(&mut self) {
        let named: BTreeSet<u64> = self.names.all().map(|(_, id)| id).collect();
        self.contents.retain(|id, _| named.contains(id));
    }
}

impl SimDisk {
    pub fn new() -> Self {
        Self::default()
    }

    /// Loses what was not synced: each unsynced page survives or not by `seed`, the last write is
    /// torn, of each directory's unsynced names the first few survive. Faults are cleared.
    pub fn power_cut(&self, seed: u64) {
        let random = SimEntropy::new(seed);
        let world = &mut *self.world.lock();
        world.names.cut(&random);
        for (id, content) in &mut world.contents {
            let torn = world.last_write.and_then(|(last, from, to)| {
                // A write that was synced since is no longer at risk.
                (last == *id && !content.dirty.is_empty()).then_some((from, to))
            });
            content.cut(&random, torn);
        }
        world.sweep();
        world.last_write = None;
        world.faults = Faults::default();
        world.life += 1;
    }

    /// Ends the program but not the machine: all written bytes stay. Faults are cleared.
    pub fn kill(&self) {
        let mut world = self.world.lock();
        world.faults = Faults::default();
        world.life += 1;
    }

    /// Lets `changes` more operations that change the disk happen, then every operation fails as
    /// if the power had gone.
    pub fn stop_after(&self, changes: u64) {
        self.world.lock().faults.stop = Some(changes);
    }

    /// Lets `syncs` more syncs succeed, then each fails and its pages are dropped, as Linux does.
    pub fn fail_sync_after(&self, syncs: u64) {
        self.world.lock().faults.sync = Some(syncs);
    }

    /// Lets `writes` more writes succeed, then each fails.
    pub fn fail_write_after(&self, writes: u64) {
        self.world.lock().faults.write = Some(writes);
    }

    /// Bytes that fit on the disk; more is `StorageFull`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.world.lock().faults.capacity = bytes;
    }

    /// Rots one bit, of what is seen and of what is durable.
    pub fn flip_bit(&self, path: &Path, offset: usize, bit: u8) {
        let world = &mut *self.world.lock();
        let id = world.names.get(path).expect("the test names a file that exists");
        let content = world.contents.get_mut(&id).expect("a name leads to content");
        content.live[offset] ^= 1 << bit;
        if let Some(byte) = content.durable.get_mut(offset) {
            *byte ^= 1 << bit;
        }
    }

    /// Another disk takes this one's place: everything is gone.
    pub fn wipe(&self) {
        let mut world = self.world.lock();
        let life = world.life + 1;
        *world = World { life, ..World::default() };
    }

    /// All files that have names, with their lengths.
    pub fn files(&self) -> Vec<(PathBuf, usize)> {
        let world = self.world.lock();
        let len = |id| world.contents.get(&id).map_or(0, |content| content.live.len());
        world.names.all().map(|(path, id)| (path.clone(), len(id))).collect()
    }

    /// Whether the countdown of [`Self::stop_after`] has come to its end.
    pub fn is_stopped(&self) -> bool {
        self.world.lock().faults.stop == Some(0)
    }

    /// Bytes in files that have names.
    pub fn used(&self) -> u64 {
        self.world.lock().used()
    }

    /// No fault that was asked for comes any more.
    pub fn heal(&self) {
        self.world.lock().faults = Faults::default();
    }

    /// How many syncs succeeded so far.
    pub fn syncs(&self) -> u64 {
        self.world.lock().syncs
    }

    /// How many changing operations were let through so far.
    pub fn changes(&self) -> u64 {
        self.world.lock().changes
    }
}

impl Disk for SimDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world.lock();
        world.powered()?;
        for dir in path.ancestors() {
            world.dirs.insert(dir.to_path_buf());
        }
        Ok(())
    }

    fn open(&self, path: &Path, open: Open) -> io::Result<Arc<dyn File>> {
        let world = &mut *self.world.lock();
        world.powered()?;
        let id = match world.names.get(path) {
            Some(id) => id,
            None if open == Open::Read => return Err(io::ErrorKind::NotFound.into()),
            None => {
                let parent = path.parent().unwrap_or_else(|| Path::new(""));
                if !world.dirs.contains(parent) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                world.change()?;
                let id = world.next;
                world.next += 1;
                world.contents.insert(id, Content::default());
                world.names.link(path, id);
                id
            }
        };
        Ok(Arc::new(SimFile { world: Arc::clone(&self.world), id, life: world.life, open }))
    }

    fn read(&self, path: &Path) -> io::Result<Bytes> {
        let world = self.world.lock();
        world.powered()?;
        let id = world.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(world
            .contents
            .get(&id)
            .map(|content| Bytes::from(content.live.clone()))
            .unwrap_or_default())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let world = self.world.lock();
        world.powered()?;
        if !world.dirs.contains(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let files = world.names.all().map(|(name, _)| name);
        let mut names: Vec<String> = files
            .chain(&world.dirs)
            .filter(|name| name.parent() == Some(path))
            .filter_map(|name| Some(name.file_name()?.to_string_lossy().into_owned()))
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.world.lock();
        world.change()?;
        world.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        world.names.rename(from, to);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world.lock();
        world.change()?;
        world.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        world.names.unlink(path);
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world.lock();
        world.change()?;
        if due(&mut world.faults.sync) {
            return Err(io::Error::other("the simulated disk failed to sync a directory"));
        }
        world.names.sync(path);
        world.syncs += 1;
        Ok(())
    }

    fn free(&self, _path: &Path) -> io::Result<u64> {
        let world = self.world.lock();
        world.powered()?;
        let left = |capacity: u64| capacity.saturating_sub(world.used());
        Ok(world.faults.capacity.map_or(u64::MAX, left))
    }

    fn exists(&self, path: &Path) -> bool {
        let world = self.world.lock();
        world.names.get(path).is_some() || world.dirs.contains(path)
    }
}

#[derive(Debug)]
struct SimFile {
    world: Arc<Mutex<World>>,
    id: u64,
    life: u64,
    open: Open,
}

fn size(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

impl File for SimFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.open == Open::Read {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let world = &mut *self.world.lock();
        let from = size(offset)?;
        let end = from + bytes.len();
        let len = world.content(self.id, self.life)?.live.len();
        world.change()?;
        if due(&mut world.faults.write) {
            return Err(io::Error::other("the simulated disk failed to write"));
        }
        let grown = end.saturating_sub(len) as u64;
        if world
            .faults
            .capacity
            .is_some_and(|capacity| grown > 0 && world.used() + grown > capacity)
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        world.content(self.id, self.life)?.write(from, bytes);
        world.last_write = Some((self.id, from, end));
        Ok(())
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let world = &mut *self.world.lock();
        world.powered()?;
        let content = world.content(self.id, self.life)?;
        let from = size(offset)?;
        let bytes = from.checked_add(len).and_then(|to| content.live.get(from..to));
        bytes.map(Bytes::copy_from_slice).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        let world = &mut *self.world.lock();
        world.content(self.id, self.life)?;
        world.change()?;
        if due(&mut world.faults.sync) {
            // The kernel marks the pages clean although they never reached the disk.
            world.content(self.id, self.life)?.dirty.clear();
            return Err(io::Error::other("the simulated disk failed to sync"));
        }
        world.content(self.id, self.life)?.sync();
        world.syncs += 1;
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let now = self.len()?;
        if now >= len {
            return Ok(());
        }
        self.write_at(now, &vec![0; size(len - now)?])
    }

    fn len(&self) -> io::Result<u64> {
        let world = &mut *self.world.lock();
        world.powered()?;
        Ok(world.content(self.id, self.life)?.live.len() as u64)
    }

    fn lent(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: &str = "/data";

    fn disk() -> SimDisk {
        let disk = SimDisk::new();
        disk.create_dir_all(Path::new(DIR)).unwrap();
        disk
    }

    fn at(name: &str) -> PathBuf {
        Path::new(DIR).join(name)
    }

    #[test]
    fn synced_bytes_under_synced_names_survive_every_cut() {
        for seed in 0..100 {
            let disk = disk();
            let file = disk.open(&at("a"), Open::Log).unwrap();
            file.write_at(0, &[1; 10_000]).unwrap();
            file.sync_data().unwrap();
            disk.sync_dir(Path::new(DIR)).unwrap();
            file.write_at(10_000, &[2; 10_000]).unwrap();
            disk.power_cut(seed);
            assert_eq!(&disk.read(&at("a")).unwrap()[..10_000], [1; 10_000]);
            assert!(file.read_at(0, 1).is_err(), "the old program is gone");
        }
    }

    #[test]
    fn unsynced_pages_survive_one_by_one_and_names_in_order() {
        let (mut lost, mut kept, mut mixed, mut unnamed) = (0, 0, 0, 0);
        for seed in 0..200 {
            let disk = disk();
            let file = disk.open(&at("a"), Open::Log).unwrap();
            file.write_at(0, &[1; 40_960]).unwrap();
            file.sync_data().unwrap();
            file.write_at(0, &[2; 40_960]).unwrap();
            disk.open(&at("b"), Open::Log).unwrap();
            disk.power_cut(seed);
            assert!(disk.exists(&at("a")) || !disk.exists(&at("b")));
            let Ok(bytes) = disk.read(&at("a")) else {
                unnamed += 1;
                continue;
            };
            match bytes.iter().filter(|byte| **byte == 2).count() {
                0 => lost += 1,
                40_960 => kept += 1,
                _ => mixed += 1,
            }
        }
        assert!(mixed > 100 && unnamed > 10, "{lost} {kept} {mixed} {unnamed}");
    }

    #[test]
    fn the_same_seed_loses_the_same_bytes() {
        let run = |seed| {
            let disk = disk();
            let file = disk.open(&at("a"), Open::Log).unwrap();
            file.write_at(0, &[7; 100_000]).unwrap();
            disk.sync_dir(Path::new(DIR)).unwrap();
            disk.power_cut(seed);
            disk.read(&at("a")).unwrap()
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }

    #[test]
    fn faults_come_when_asked_for() {
        let disk = disk();
        let file = disk.open(&at("a"), Open::Log).unwrap();
        disk.fail_sync_after(1);
        file.write_at(0, b"x").unwrap();
        file.sync_data().unwrap();
        file.write_at(0, b"y").unwrap();
        assert!(file.sync_data().is_err());
        assert!(file.sync_data().is_err());
        disk.kill();
        let file = disk.open(&at("a"), Open::Log).unwrap();
        disk.fail_write_after(0);
        assert!(file.write_at(0, b"z").is_err());
        disk.kill();
        disk.set_capacity(Some(3));
        let file = disk.open(&at("a"), Open::Log).unwrap();
        assert_eq!(file.write_at(0, b"zzzz").unwrap_err().kind(), io::ErrorKind::StorageFull);
        disk.set_capacity(None);
        disk.stop_after(1);
        file.write_at(0, b"z").unwrap();
        assert!(file.write_at(0, b"z").is_err());
        assert!(file.read_at(0, 1).is_err());
        disk.sync_dir(Path::new(DIR)).unwrap_err();
        disk.power_cut(1);
        assert_eq!(disk.list(Path::new(DIR)).unwrap().len(), usize::from(disk.exists(&at("a"))));
    }

    #[test]
    fn a_flipped_bit_is_there_for_good() {
        let disk = disk();
        disk.replace(&at("a"), b"abc").unwrap();
        disk.flip_bit(&at("a"), 1, 0);
        disk.power_cut(1);
        assert_eq!(disk.read(&at("a")).unwrap(), b"acc".as_slice());
    }
}
