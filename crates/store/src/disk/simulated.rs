//! A disk that lies: by seed it loses what was not synced, tears writes, reorders them, refuses, and loses power.
//! Under the embedded store in `power_cut_tests`.
//! What a successful sync covered is there after a power cut; nothing else is promised. After a failed sync the
//! system's view and the disk differ, and no later sync brings them together.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;

use super::{DirectoryLock, Disk, DiskFile, SyncPoint};

const SECTOR_BYTES: usize = 512;

/// Numbers by a seed.
#[derive(Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

enum Pending {
    Write(usize, Vec<u8>),
    Length(usize),
}

#[derive(Default)]
struct Inode {
    /// What the system shows.
    current: Vec<u8>,
    /// What is on the disk for sure.
    durable: Vec<u8>,
    pending: Vec<Pending>,
}

fn apply(contents: &mut Vec<u8>, change: &Pending) {
    match change {
        Pending::Write(offset, bytes) => write(contents, *offset, bytes),
        Pending::Length(length) => contents.resize(*length, 0),
    }
}

fn write(contents: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    contents.resize(contents.len().max(offset + bytes.len()), 0);
    contents[offset..offset + bytes.len()].copy_from_slice(bytes);
}

impl Inode {
    fn change(&mut self, change: Pending) {
        apply(&mut self.current, &change);
        self.pending.push(change);
    }

    fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            apply(&mut self.durable, &change);
        }
    }

    /// Some of what is pending reaches the disk, in pieces of a sector; the rest never does.
    fn sync_partly(&mut self, dice: &mut Dice) {
        let percent = [0, 50, 90, 100][dice.below(4) as usize];
        for change in std::mem::take(&mut self.pending) {
            match change {
                Pending::Write(offset, bytes) => {
                    let mut at = 0;
                    while at < bytes.len() {
                        let end = bytes.len().min(at + SECTOR_BYTES - (offset + at) % SECTOR_BYTES);
                        if dice.chance(percent) {
                            write(&mut self.durable, offset + at, &bytes[at..end]);
                        }
                        at = end;
                    }
                }
                length if dice.chance(percent) => apply(&mut self.durable, &length),
                Pending::Length(_) => {}
            }
        }
    }
}

enum NameChange {
    Directory(PathBuf),
    Link(PathBuf, usize),
    Unlink(PathBuf),
    /// Within one directory; the new name and the end of the old one come together.
    Rename {
        from: PathBuf,
        to: PathBuf,
        inode: usize,
    },
}

impl NameChange {
    fn parent(&self) -> Option<&Path> {
        match self {
            Self::Directory(path) | Self::Link(path, _) | Self::Unlink(path) | Self::Rename { to: path, .. } => {
                path.parent()
            }
        }
    }
}

#[derive(Clone, Default)]
struct Names {
    directories: BTreeSet<PathBuf>,
    files: BTreeMap<PathBuf, usize>,
}

impl Names {
    fn apply(&mut self, change: &NameChange) {
        match change {
            NameChange::Directory(path) => drop(self.directories.insert(path.clone())),
            NameChange::Link(path, inode) => drop(self.files.insert(path.clone(), *inode)),
            NameChange::Unlink(path) => drop(self.files.remove(path)),
            NameChange::Rename { from, to, inode } => {
                self.files.insert(to.clone(), *inode);
                self.files.remove(from);
            }
        }
    }
}

/// What may go wrong while there is power, in percent.
#[derive(Clone, Copy, Default)]
pub(crate) struct Faults {
    pub write: u64,
    pub sync: u64,
}

struct State {
    dice: Dice,
    inodes: Vec<Inode>,
    names: Names,
    durable_names: Names,
    pending_names: Vec<NameChange>,
    faults: Faults,
    /// Writes that make a file longer fail.
    full: bool,
    /// Calls until the power goes; `None` is never.
    fuse: Option<u64>,
    calls: u64,
    failures: u64,
    /// Syncs that do nothing.
    without: Option<SyncPoint>,
}

#[derive(Clone)]
pub(crate) struct SimulatedDisk(Arc<Mutex<State>>);

impl SimulatedDisk {
    pub fn new(seed: u64, without: Option<SyncPoint>) -> Self {
        let mut names = Names::default();
        names.directories.insert("/".into());
        Self(Arc::new(Mutex::new(State {
            dice: Dice::new(seed),
            inodes: Vec::new(),
            durable_names: names.clone(),
            names,
            pending_names: Vec::new(),
            faults: Faults::default(),
            full: false,
            fuse: None,
            calls: 0,
            failures: 0,
            without,
        })))
    }

    pub fn set_faults(&self, faults: Faults) {
        self.0.lock().faults = faults;
    }

    pub fn set_full(&self, full: bool) {
        self.0.lock().full = full;
    }

    /// The power goes after so many calls.
    pub fn set_fuse(&self, fuse: Option<u64>) {
        self.0.lock().fuse = fuse;
    }

    pub fn has_power(&self) -> bool {
        self.0.lock().fuse != Some(0)
    }

    pub fn calls(&self) -> u64 {
        self.0.lock().calls
    }

    /// Calls that were refused while there was power.
    pub fn failures(&self) -> u64 {
        self.0.lock().failures
    }

    /// Of what was not synced some is there afterwards, in any order, and all else as it was.
    pub fn cut_power(&self) {
        let state = &mut *self.0.lock();
        for inode in &mut state.inodes {
            inode.sync_partly(&mut state.dice);
            inode.current = inode.durable.clone();
        }
        let percent = [0, 50, 100][state.dice.below(3) as usize];
        for change in std::mem::take(&mut state.pending_names) {
            if state.dice.chance(percent) {
                state.durable_names.apply(&change);
            }
        }
        let directories = state.durable_names.directories.clone();
        state.durable_names.files.retain(|path, _| path.parent().is_some_and(|parent| directories.contains(parent)));
        state.names = state.durable_names.clone();
        (state.fuse, state.full, state.faults) = (None, false, Faults::default());
    }

    /// The names in a directory and how long the files are.
    pub fn files(&self, directory: &Path) -> Vec<(PathBuf, usize)> {
        let state = self.0.lock();
        let inside = state.names.files.iter().filter(|(path, _)| path.parent() == Some(directory));
        inside.map(|(path, inode)| (path.clone(), state.inodes[*inode].current.len())).collect()
    }

    /// Bits that rot.
    pub fn flip(&self, path: &Path, offset: usize, mask: u8) {
        let state = &mut *self.0.lock();
        let inode = &mut state.inodes[state.names.files[path]];
        for contents in [&mut inode.current, &mut inode.durable] {
            if let Some(byte) = contents.get_mut(offset) {
                *byte ^= mask;
            }
        }
    }

    /// A write that went elsewhere: what is at `from` is at `to` as well, in place of what should be there.
    pub fn misdirect(&self, path: &Path, from: usize, to: usize) {
        let state = &mut *self.0.lock();
        let inode = &mut state.inodes[state.names.files[path]];
        for contents in [&mut inode.current, &mut inode.durable] {
            let end = contents.len();
            let length = SECTOR_BYTES.min(end - from).min(end - to);
            contents.copy_within(from..from + length, to);
        }
    }
}

impl State {
    /// Counts a call; fails when there is no power.
    fn call(&mut self) -> io::Result<()> {
        let Some(fuse) = &mut self.fuse else {
            self.calls += 1;
            return Ok(());
        };
        *fuse = fuse.saturating_sub(1);
        match *fuse {
            0 => Err(io::Error::other("the power is out")),
            _ => {
                self.calls += 1;
                Ok(())
            }
        }
    }

    fn is_out(&self) -> bool {
        self.fuse == Some(0)
    }

    fn refuse<T>(&mut self, kind: io::ErrorKind) -> io::Result<T> {
        self.failures += 1;
        Err(io::Error::from(kind))
    }

    fn rename(&mut self, change: NameChange) -> io::Result<()> {
        if self.is_out() {
            return self.call();
        }
        self.names.apply(&change);
        self.pending_names.push(change);
        self.call()
    }
}

impl Disk for SimulatedDisk {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        match state.names.directories.contains(path) {
            true => state.call(),
            false => state.rename(NameChange::Directory(path.to_path_buf())),
        }
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut state = self.0.lock();
        state.call()?;
        if !state.names.directories.contains(directory) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inside = state.names.files.keys().filter(|path| path.parent() == Some(directory));
        Ok(inside.filter_map(|path| Some(path.file_name()?.to_str()?.to_string())).collect())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.0.lock();
        if let Some(inode) = state.names.files.get(path).copied() {
            state.inodes[inode].change(Pending::Length(0));
            state.call()?;
            return Ok(Arc::new(SimulatedFile { disk: self.clone(), inode }));
        }
        let inode = state.inodes.len();
        state.inodes.push(Inode::default());
        state.rename(NameChange::Link(path.to_path_buf(), inode))?;
        Ok(Arc::new(SimulatedFile { disk: self.clone(), inode }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.0.lock();
        state.call()?;
        let inode = *state.names.files.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimulatedFile { disk: self.clone(), inode }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        match state.names.files.contains_key(path) {
            true => state.rename(NameChange::Unlink(path.to_path_buf())),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        let inode = *state.names.files.get(from).ok_or(io::ErrorKind::NotFound)?;
        state.rename(NameChange::Rename { from: from.to_path_buf(), to: to.to_path_buf(), inode })
    }

    fn sync_directory(&self, path: &Path, point: SyncPoint) -> io::Result<()> {
        let state = &mut *self.0.lock();
        state.call()?;
        if state.without == Some(point) {
            return Ok(());
        }
        let percent = state.faults.sync;
        if state.dice.chance(percent) {
            return state.refuse(io::ErrorKind::Other);
        }
        let (here, elsewhere) =
            std::mem::take(&mut state.pending_names).into_iter().partition(|change| change.parent() == Some(path));
        state.pending_names = elsewhere;
        let here: Vec<NameChange> = here;
        here.iter().for_each(|change| state.durable_names.apply(change));
        Ok(())
    }

    fn lock(&self, _: &Path) -> io::Result<Option<DirectoryLock>> {
        Ok(Some(Box::new(())))
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    inode: usize,
}

impl DiskFile for SimulatedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.call()?;
        let contents = &state.inodes[self.inode].current;
        let bytes = contents.get(offset as usize..offset as usize + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let state = &mut *self.disk.0.lock();
        if state.is_out() {
            return state.call();
        }
        let end = offset as usize + bytes.len();
        let is_longer = end > state.inodes[self.inode].current.len();
        let kind = match () {
            () if state.full && is_longer => Some(io::ErrorKind::StorageFull),
            () if state.dice.chance(state.faults.write) => Some(io::ErrorKind::Other),
            () => None,
        };
        if let Some(kind) = kind {
            let done = state.dice.below(bytes.len() as u64 + 1) as usize;
            state.inodes[self.inode].change(Pending::Write(offset as usize, bytes[..done].to_vec()));
            return state.refuse(kind);
        }
        state.inodes[self.inode].change(Pending::Write(offset as usize, bytes.to_vec()));
        state.call()
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let state = &mut *self.disk.0.lock();
        if state.is_out() {
            return state.call();
        }
        state.inodes[self.inode].change(Pending::Length(length as usize));
        state.call()
    }

    fn len(&self) -> io::Result<u64> {
        let mut state = self.disk.0.lock();
        state.call()?;
        Ok(state.inodes[self.inode].current.len() as u64)
    }

    fn sync(&self, point: SyncPoint) -> io::Result<()> {
        let state = &mut *self.disk.0.lock();
        state.call()?;
        if state.without == Some(point) {
            return Ok(());
        }
        if state.dice.chance(state.faults.sync) {
            state.inodes[self.inode].sync_partly(&mut state.dice);
            return state.refuse(io::ErrorKind::Other);
        }
        state.inodes[self.inode].sync();
        Ok(())
    }

    fn forget_cached(&self, _: u64, _: u64) {}
}
