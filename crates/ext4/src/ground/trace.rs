//! What operations do to metadata: a record of each journal handle, for the listener of
//! [`VolumeOptions::trace`](crate::VolumeOptions::trace).
//!
//! The handles that a thread starts while it does an operation on names belong to that operation. Without a listener
//! this costs a branch for each handle, block and look-up.
//
// `Trace::begin` begins an operation, the end of its `Scope` ends it, and edits say what the blocks are that they
// change (`Blocks::describe`).

use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use uext4_jbd2::Tid;
use uext4_ondisk::ext4::QuotaKind;
use uext4_ondisk::{Group, Ino, Lblk, Pblk};

/// Most names kept in memory, from which paths are told: 8 MiB with names of 30 bytes. When they are more, all are
/// forgotten.
const NAMES: usize = 1 << 16;
/// Deepest path that is told.
const DEPTH: usize = 1 << 12;
const ROOT: Ino = Ino(2);

/// What a metadata block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// The superblock.
    Superblock,
    /// The superblock, as the head of the list of orphans.
    OrphanList,
    /// A block of the orphan file.
    OrphanFile,
    /// Group descriptors, that of this group among them.
    GroupDescriptor(Group),
    /// The block bitmap of a group.
    BlockBitmap(Group),
    /// The inode bitmap of a group.
    InodeBitmap(Group),
    /// A block of an inode table, with the record of this inode.
    Inode(Ino),
    /// A block of an inode table of this group, with records that are made empty.
    InodeTable(Group),
    /// A block of a directory: its inode, and the block's number in it.
    Directory(Ino, Lblk),
    /// A node of an inode's extent tree, or a block of block pointers.
    Map(Ino),
    /// A block of extended attributes. Inodes with the same attributes share one.
    Attributes,
    /// Data of a file that is written through the journal.
    Data(Ino),
    /// The value of an extended attribute that has an inode of its own.
    Value(Ino),
    /// The target of a symbolic link.
    LinkTarget(Ino),
    /// A block of a quota file.
    Quota(QuotaKind),
}

/// A metadata block that a handle changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangedBlock {
    /// Its number on the volume.
    pub block: u64,
    /// What was changed in it: more than one where a block holds several things.
    pub roles: Vec<Role>,
    /// Whether this handle was the first in its transaction to change it, which costs a credit. Always on a volume
    /// without a journal.
    pub first: bool,
}

/// A journal handle, or a step on a volume without a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandleRecord {
    /// What it was started for.
    pub purpose: &'static str,
    /// Number of its transaction: handles with the same number become durable together.
    pub transaction: u64,
    /// Credits it started with: most blocks that it might have changed.
    pub credits_asked: u32,
    /// Credits it used; `None` without a journal.
    pub credits_used: Option<u32>,
    /// Blocks it changed, by number.
    pub blocks: Vec<ChangedBlock>,
    /// Blocks it revoked: they hold no metadata any longer.
    pub revoked: Vec<u64>,
    /// Blocks, in runs, that are free once the transaction is durable.
    pub freed_blocks: u64,
}

/// What handles are started for: a call on a name, or work of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// Operations on names count from 1, in the order in which they begin. 0: work outside them, such as the
    /// allocation of a file's blocks; each handle stands for itself then.
    pub number: u64,
    /// As system calls are called: `create`, `mkdir`, `mknod`, `symlink`, `link`, `unlink`, `rmdir`, `rename`,
    /// `replace`, `tmpfile`. Otherwise the purpose of the handle.
    pub name: &'static str,
    /// Its path: the name by which the inode was reached last. `None` if it was reached by number.
    pub path: Option<Vec<u8>>,
    /// The second path of a rename.
    pub new_path: Option<Vec<u8>>,
}

/// What a listener hears.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'e> {
    /// A handle of an operation has stopped.
    Handle(&'e Operation, &'e HandleRecord),
    /// An operation with a number has ended, perhaps with an error and without a handle.
    End(&'e Operation),
}

/// Hears what happens on a volume, on the threads that do it: two threads may call it at the same time. It may not use
/// the volume, and locks may be held while it runs.
#[derive(Clone)]
pub struct Listener(Arc<dyn Fn(Event<'_>) + Send + Sync>);

impl Listener {
    /// Calls `hear` for each event.
    pub fn new(hear: impl Fn(Event<'_>) + Send + Sync + 'static) -> Listener {
        Listener(Arc::new(hear))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

/// A directory and a name in it.
type Name = (Ino, Box<[u8]>);

/// The listener of an open volume, and what is needed to tell it names.
pub(crate) struct Trace {
    listener: Listener,
    numbers: AtomicU64,
    /// The operations that run, by their threads.
    active: Mutex<HashMap<ThreadId, Arc<Operation>>>,
    /// The directory and the name by which an inode was reached last.
    names: Mutex<HashMap<u32, Name>>,
}

impl Trace {
    pub(crate) fn new(listener: Listener) -> Trace {
        Trace { listener, numbers: AtomicU64::new(0), active: Mutex::default(), names: Mutex::default() }
    }

    /// A name of a directory leads to an inode.
    #[cold]
    pub(crate) fn learn(&self, directory: Ino, name: &[u8], ino: Ino) {
        if matches!(name, b"." | b"..") || ino == ROOT {
            return;
        }
        let mut names = self.names.lock();
        if names.len() >= NAMES && !names.contains_key(&ino.get()) {
            names.clear();
        }
        names.insert(ino.get(), (directory, name.into()));
    }

    fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        let names = self.names.lock();
        let (mut at, mut reversed) = (ino, Vec::new());
        while at != ROOT {
            let (above, name) = names.get(&at.get()).filter(|_| reversed.len() < DEPTH)?;
            reversed.push(name);
            at = *above;
        }
        let path: Vec<u8> =
            reversed.iter().rev().flat_map(|name| [b"/".as_slice(), &***name].concat()).collect();
        Some(if path.is_empty() { b"/".to_vec() } else { path })
    }

    fn path_in(&self, (directory, name): (Ino, &[u8])) -> Option<Vec<u8>> {
        let mut path = self.path(directory)?;
        if path != b"/" {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Some(path)
    }

    /// An operation on a name of a directory begins, and perhaps on a second name. Inside another one of this thread it
    /// is part of that.
    #[cold]
    pub(crate) fn begin(&self, name: &'static str, at: (Ino, &[u8]), new: Option<(Ino, &[u8])>) -> Scope<'_> {
        let mut active = self.active.lock();
        let thread = thread::current().id();
        if active.contains_key(&thread) {
            return Scope { trace: None };
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let (path, new_path) = (self.path_in(at), new.and_then(|new| self.path_in(new)));
        active.insert(thread, Arc::new(Operation { number, name, path, new_path }));
        Scope { trace: Some(self) }
    }

    /// A handle starts.
    #[cold]
    pub(crate) fn watch(&self, purpose: &'static str, asked: u32) -> Box<Watched<'_>> {
        Box::new(Watched { trace: self, purpose, asked, notes: RefCell::default() })
    }

    fn tell(&self, record: &HandleRecord, ino: Option<Ino>) {
        let active = self.active.lock().get(&thread::current().id()).cloned();
        match active {
            Some(operation) => (self.listener.0)(Event::Handle(&operation, record)),
            None => {
                let path = ino.and_then(|ino| self.path(ino));
                let operation = Operation { number: 0, name: record.purpose, path, new_path: None };
                (self.listener.0)(Event::Handle(&operation, record));
            }
        }
    }
}

/// An operation that runs, until this is dropped.
pub(crate) struct Scope<'t> {
    trace: Option<&'t Trace>,
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        let Some(trace) = self.trace else { return };
        let ended = trace.active.lock().remove(&thread::current().id());
        if let Some(operation) = ended {
            (trace.listener.0)(Event::End(&operation));
        }
    }
}

/// A handle that a trace records.
pub(crate) struct Watched<'t> {
    trace: &'t Trace,
    purpose: &'static str,
    asked: u32,
    notes: RefCell<Notes>,
}

#[derive(Default)]
struct Notes {
    blocks: BTreeMap<u64, Note>,
    revoked: Vec<u64>,
    freed: u64,
    /// The first inode whose record was described.
    ino: Option<Ino>,
}

#[derive(Default)]
struct Note {
    roles: Vec<Role>,
    /// Changed, and whether for the first time.
    changed: Option<bool>,
}

impl Watched<'_> {
    pub(crate) fn describe(&self, block: Pblk, role: Role) {
        let notes = &mut *self.notes.borrow_mut();
        if let (None, Role::Inode(ino)) = (notes.ino, role) {
            notes.ino = Some(ino);
        }
        let roles = &mut notes.blocks.entry(block.get()).or_default().roles;
        if !roles.contains(&role) {
            roles.push(role);
        }
    }

    /// `first`: the change cost a credit.
    pub(crate) fn changed(&self, block: Pblk, first: bool) {
        let notes = &mut *self.notes.borrow_mut();
        let changed = &mut notes.blocks.entry(block.get()).or_default().changed;
        *changed = Some(first || *changed == Some(true));
    }

    pub(crate) fn revoked(&self, block: Pblk) {
        let notes = &mut *self.notes.borrow_mut();
        notes.blocks.remove(&block.get());
        notes.revoked.push(block.get());
    }

    pub(crate) fn freed(&self, count: u64) {
        self.notes.borrow_mut().freed += count;
    }

    /// The handle has stopped. `left`: its credits, if it had any.
    pub(crate) fn end(self, tid: Tid, left: Option<u32>) {
        let Watched { trace, purpose, asked, notes } = self;
        let Notes { blocks, revoked, freed, ino } = notes.into_inner();
        let changed = blocks.into_iter().filter_map(|(block, Note { roles, changed })| {
            changed.map(|first| ChangedBlock { block, roles, first })
        });
        let record = HandleRecord {
            purpose,
            transaction: tid.0,
            credits_asked: asked,
            credits_used: left.map(|left| asked.saturating_sub(left)),
            blocks: changed.collect(),
            revoked,
            freed_blocks: freed,
        };
        trace.tell(&record, ino);
    }
}
