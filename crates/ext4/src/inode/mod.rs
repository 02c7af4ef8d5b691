//! Inodes: the record on disk, its state in memory, and what may be done with the file.

mod access;
mod cache;
pub(crate) mod claims;
pub(crate) mod core;
pub(crate) mod draft;
pub(crate) mod edit;
#[allow(dead_code)] // The operations that use it come next.
pub(crate) mod fields;
mod leave;
pub(crate) mod metadata;
pub(crate) mod names;
mod places;
mod record;
pub(crate) mod set_attributes;
#[cfg(test)]
#[path = "../../tests/inside/inode.rs"]
mod tests;

pub(crate) use cache::Ext4State;

use crate::ground::clock::Clock;
use crate::ground::error::{Error, Result};
use crate::ground::known::DirectoryId;
use crate::ground::state::{Ground, is_system_file};
use access::LastAccess;
use claims::Claims;
use core::InodeValue;
use fields::{journals_data, maps_extents};
use leave::Leave;
use metadata::{FileKind, Metadata};
use parking_lot::{Mutex, RwLock};
use places::PointerPlaces;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use uext4_iomap::InodeState;
use uext4_ondisk::ext4::{Inode as DiskInode, InodeFlags, Superblock};
use uext4_ondisk::{Corrupt, CorruptKind, Group, Ino, Pblk};

/// A loaded inode.
///
/// [`edit::Edit::store`] replaces `core` as a whole, while its editor holds `editing`; readers hold the lock of `core`
/// only to count a reference. The engine's state has locks of its own.
pub struct Inode {
    ino: Ino,
    kind: FileKind,
    /// That of the volume.
    clock: Clock,
    /// It holds the value of an attribute (the flag does not change while the inode lives).
    holds_value: bool,
    core: Mutex<Arc<InodeValue>>,
    /// Held by an editor of the inode.
    editing: Mutex<()>,
    /// Lock of a directory's names: see `names.rs`.
    names: RwLock<()>,
    /// Of a directory: where its names are known by (`ground/known.rs`).
    directory_id: DirectoryId,
    /// Of a directory: the group of the last inode made in it, plus one. It guides a search, and is not stored.
    last_group: AtomicU32,
    /// Open files whose writes obey limits of quota.
    limited: AtomicU32,
    /// Users of the crate that hold it.
    holders: AtomicU32,
    /// Those that may write.
    writers: AtomicU32,
    /// Held by readers of its extended attributes, and exclusively while they change: they are in several places. Taken
    /// after the editor's turn.
    pub(crate) attributes: RwLock<()>,
    /// Where pointer blocks of an indirect map were found.
    pub(crate) pointer_places: PointerPlaces,
    /// Blocks that writes have claimed for holes.
    pub(crate) claims: Claims,
    /// First byte of the record on the volume.
    position: u64,
    /// When it was last read.
    last_access: LastAccess,
    /// When a scan of all inodes last wrote its times.
    times_looked_at: Mutex<Option<Instant>>,
    /// It was created without a name and may get one. An inode that has lost its last name may not.
    pub(crate) awaits_name: AtomicBool,
    /// Set on an inode without a name: reports when its last user goes.
    leave: Mutex<Option<Leave>>,
    /// The engine's state of the file.
    pub(crate) state: InodeState,
}

impl Inode {
    /// Number.
    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }

    /// The number under which the names of a directory are known.
    pub(crate) fn directory_id(&self) -> DirectoryId {
        self.directory_id
    }

    /// Whether limits of quota hold for what it grows by.
    pub(crate) fn is_limited(&self) -> bool {
        self.limited.load(Ordering::Relaxed) > 0
    }

    /// Makes limits hold, or ends one reason for it.
    pub(crate) fn limit(&self, more: bool) {
        if more {
            self.limited.fetch_add(1, Ordering::Relaxed);
        } else {
            self.limited.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The group of the last inode that was made in this directory.
    pub(crate) fn last_group(&self) -> Option<Group> {
        self.last_group.load(Ordering::Relaxed).checked_sub(1).map(Group)
    }

    /// An inode was made in this directory, in this group.
    pub(crate) fn made_in(&self, group: Group) {
        self.last_group.store(group.get().saturating_add(1), Ordering::Relaxed);
    }

    /// It lost its last name: `leave` is dropped with it.
    fn leaves_with(&self, leave: Leave) {
        if let Some(twice) = self.leave.lock().replace(leave) {
            twice.disarm();
        }
    }

    /// It was linked again.
    fn stays(&self) {
        if let Some(leave) = self.leave.lock().take() {
            leave.disarm();
        }
    }

    /// Its record, including uncommitted changes. A snapshot: take it once for fields that must agree.
    pub(crate) fn disk(&self) -> Arc<InodeValue> {
        self.core.lock().clone()
    }

    /// Whether its last name is gone.
    pub(crate) fn is_removed(&self) -> bool {
        self.core.lock().links == 0
    }

    /// A user of the crate holds it from now on.
    pub(crate) fn hold(&self, writes: bool) {
        self.holders.fetch_add(1, Ordering::Relaxed);
        if writes {
            self.writers.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A user lets go. Returns whether it was the last one, or the last one that may write.
    pub(crate) fn let_go(&self, writes: bool) -> bool {
        let last_writer = writes && self.writers.fetch_sub(1, Ordering::AcqRel) == 1;
        self.holders.fetch_sub(1, Ordering::AcqRel) == 1 || last_writer
    }

    /// Whether nobody can read or write it any more: it has no name, awaits none, and no user holds it.
    pub(crate) fn is_gone(&self) -> bool {
        self.holders.load(Ordering::Acquire) == 0
            && self.is_removed()
            && !self.awaits_name.load(Ordering::Acquire)
    }

    /// File type.
    pub(crate) fn kind(&self) -> FileKind {
        self.kind
    }

    /// First byte of the record on the volume.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The inode table block that holds the record, and its byte offset there.
    pub(crate) fn place(&self, ground: &Ground) -> (Pblk, usize) {
        let block = u64::from(ground.superblock.geometry.block_size());
        (Pblk(self.position / block), (self.position % block) as usize)
    }

    /// Attributes, including the times of the latest write and access if those are in memory only.
    pub(crate) fn metadata(&self, ground: &Ground) -> Metadata {
        let core = self.disk();
        let mut metadata = ground.metadata_of(self.ino, &core, self.kind);
        let (written, accessed) = self.noted();
        if written > core.told.written_ns {
            (metadata.modified, metadata.changed) = (self.clock.at(written), self.clock.at(written));
        }
        if self.kind == FileKind::Regular {
            // Buffered writes may have gone past the end that the record has.
            metadata.size = metadata.size.max(self.state.visible_size());
        }
        if accessed > core.told.accessed_ns {
            metadata.accessed = self.clock.at(accessed);
        }
        metadata
    }

    /// When it was last overwritten and read, as the volume's clock counts moments.
    fn noted(&self) -> (u64, u64) {
        let clock = self.clock;
        (clock.moment(self.state.gate.last_write_ns()), clock.moment(self.last_access.ns()))
    }

    /// Whether it was overwritten or read since its record got its times.
    pub(crate) fn has_untold_times(&self) -> bool {
        let (told, (written, accessed)) = (self.disk().told, self.noted());
        written > told.written_ns || accessed > told.accessed_ns
    }

    /// Whether the last scan that wrote its times is at least `age` ago; if so, this scan counts as the last one.
    pub(crate) fn times_are_old(&self, now: Instant, age: Duration) -> bool {
        let mut looked_at = self.times_looked_at.lock();
        let old = looked_at.is_none_or(|then| now.saturating_duration_since(then) >= age);
        if old {
            *looked_at = Some(now);
        }
        old
    }

    /// Whether it must stay in memory although unused: a change of it is not committed.
    fn is_pinned(&self) -> bool {
        self.state.sync_tid().is_some()
    }

    /// Bytes of memory freed with it.
    fn resident_bytes(&self) -> usize {
        let core = size_of::<InodeValue>() + self.disk().record_xattrs().len();
        // Entries in the cache's tables, and the two counters of the `Arc`.
        let named = 128;
        size_of::<Inode>() + core + named + self.pointer_places.bytes() + self.state.heap_bytes()
    }
}

/// Refuses inodes that hold attribute values, as the kernel does: they are reached through attributes only.
pub(crate) fn refuse_value(ino: Ino, disk: &DiskInode) -> Result<()> {
    match disk.flags.contains(InodeFlags::EA_INODE) {
        true => Err(value_refused(ino)),
        false => Ok(()),
    }
}

#[cold]
fn value_refused(ino: Ino) -> Error {
    Corrupt::from(CorruptKind::InodeOfValue).in_inode(ino).into()
}

impl Inode {
    /// Whether the contents are inline.
    pub(crate) fn is_inline(&self) -> bool {
        self.disk().has_inline_data()
    }

    /// Refuses reading contents that are not in plain blocks.
    pub(crate) fn check_contents(&self) -> Result<()> {
        let refuse = |feature: &str| {
            Err(Error::Incompatible { action: "read", feature: format!("{feature} (inode {})", self.ino) })
        };
        let flags = self.disk().flags;
        if flags.contains(InodeFlags::ENCRYPT) {
            return refuse(match self.kind {
                FileKind::Directory => "an encrypted directory",
                FileKind::Symlink => "an encrypted symbolic link",
                _ => "an encrypted file",
            });
        }
        if flags.contains(InodeFlags::INLINE_DATA) {
            return refuse("inline data");
        }
        Ok(())
    }

    /// Refuses appending to files whose contents must not change.
    pub(crate) fn check_append(&self) -> Result<()> {
        let flags = self.disk().flags;
        if flags.contains(InodeFlags::IMMUTABLE) {
            return Err(Error::NotPermitted("the file is immutable"));
        }
        if flags.contains(InodeFlags::VERITY) {
            return Err(Error::NotPermitted("the file is sealed by fs-verity"));
        }
        Ok(())
    }
}

/// Refuses overwriting inodes that are reserved, internal to the volume, or protected.
pub(crate) fn check_overwrite(superblock: &Superblock, inode: &Inode) -> Result<()> {
    check_append(superblock, inode)?;
    match inode.disk().flags.contains(InodeFlags::APPEND) {
        true => Err(Error::NotPermitted("the file is append-only")),
        false => Ok(()),
    }
}

/// The same for writes at the end, which append-only files allow.
pub(crate) fn check_append(superblock: &Superblock, inode: &Inode) -> Result<()> {
    // Reserved inodes (journal, resize, quota …) are internal, even if a directory names one.
    if inode.ino() < superblock.geometry.first_inode() {
        return Err(Error::NotPermitted("a reserved inode"));
    }
    if is_system_file(superblock, inode.ino()) {
        return Err(Error::NotPermitted("the superblock names it as an internal file"));
    }
    let disk = inode.disk();
    if journals_data(superblock, &disk) && !maps_extents(superblock, &disk) {
        let feature = format!("journaled data in a map of block pointers (inode {})", inode.ino());
        return Err(Error::Incompatible { action: "write", feature });
    }
    inode.check_append()
}
