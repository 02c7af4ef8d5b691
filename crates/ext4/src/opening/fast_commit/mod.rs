//! Replays fast commits: compact records that the kernel appends to the journal instead of whole transactions.
//!
//! A record says that a name was added or removed, that a range of a file was mapped or unmapped, or what an inode
//! contains now. The replay repeats these changes in memory, on the volume that the ordinary log describes. The result
//! is a set of changed metadata blocks: for an overlay, or for a transaction that replaces the fast commits (`jbd2`).
//! No part of it is visible before all of it is done.
//!
//! A fast commit that cannot be replayed ends the replay. A read-only open shows the volume before it. An open for
//! writing is refused.
//!
//! | file | what |
//! |---|---|
//! | `inode.rs` | inodes: the recorded ones over the volume's, their maps (`map/edit`) and names (`dir/edit`) |
//! | `waiting.rs` | names and ranges that wait for the record of their inode |
//! | `bitmaps.rs` | bitmaps and counts of the groups, and blocks for what grows |
//!
//! # What follows the kernel, and what does not
//! Source: the behaviour of `fs/ext4/fast_commit.c` (`ext4_fc_replay*`) and of e2fsck.
//!
//! * The mapping of a file is recorded separately from its inode, as ranges. New nodes of its tree and new blocks of
//!   directories are allocated by the replay, clear of all blocks that records map.
//! * A name to add may already exist, and one to remove may be gone. Links and names of files that were deleted before
//!   their fast commit was written lead nowhere, and are ignored.
//! * An inode without a name is deleted at the end of the last fast commit, because a later one may give it a name
//!   again. A record with another generation, time of creation or type means that another file reused the number. The
//!   name of a new file, its ranges and its record count only together. (The kernel refuses to mount if a recorded
//!   inode has no links, and leaves removed directories behind.)
//! * Link counts of directories are maintained, including those of parents. (The kernel gives new directories one link
//!   and leaves parents as they are, for e2fsck to find.)
//! * Ranges of files with block pointers are replayed too, and a deleted one frees its blocks. (The kernel writes such
//!   ranges, but neither it nor e2fsck replays them.)
//! * A file converted from inline keeps the blocks recorded for it. (The kernel drops them: it processes ranges before
//!   it knows that the file has extents.) Contents that fallocate moves from an inode to a block are lost all the same:
//!   they are in the transaction, which did not commit.
//! * Device nodes and short links keep the contents of their inode. (The kernel writes none of them into fast commits.)
//! * A name or range may precede the record of its inode in the same fast commit (a temporary file that gets a name).
//!   It is applied when the record comes. If none comes, a range belonged to a deleted file and is dropped; a name is
//!   an error.
//! * Times of directories are unchanged: no record has them. (The kernel sets the time of the replay.)
//! * A record that contradicts the volume or another record ends the replay with an error. The kernel ignores many of
//!   them.
//!
//! # What it may cost
//! The bytes that a replay reads and copies are counted, roughly, and bounded (`ground/canvas.rs`). That bounds the
//! time. Memory is charged before it is allocated (`Canvas::charge`). A node of an extent tree and a block of a
//! directory belong to one inode only, and all trees together map no more blocks than the volume has. So records cannot
//! make a small volume large by naming the same nodes in many inodes.

mod bitmaps;
mod inode;
mod waiting;

use crate::dir::name;
use crate::ground::canvas::{Canvas, Work};
use crate::ground::error::{Error, Result};
use crate::ground::state::{ROOT, is_system_file};
use crate::inode::Ext4State;
use crate::inode::fields::{LINKS_MAX, count_subdirectory};
use bitmaps::Groups;
use inode::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uext4_jbd2::{Changes, FastCommitReplay, FastCommits, LogMap, Recovery};
use uext4_ondisk::ext4::Extent;
use uext4_ondisk::jbd2::{FastCommitName as Name, FastCommitRecord};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk};
use waiting::{Range, Waiting};

/// Work that every record counts as, in bytes.
const RECORD_WORK: usize = 256;
/// The first logical block that extents cannot map.
const LOGICAL_END: u64 = 0xffff_ffff;

/// Blocks on the volume: first and count.
type BlockRun = (u64, u64);

/// The state shared by all parts of a replay.
struct Parts<'v> {
    canvas: Canvas<'v>,
    groups: Groups,
    /// Blocks that the changed inodes occupied before.
    released: Vec<BlockRun>,
}

/// The result of a replay.
pub(crate) struct Replayed {
    /// The changed blocks.
    pub(crate) changes: Changes,
    /// The fast commits that were replayed: all, or those before the first bad one.
    pub(crate) done: FastCommits,
    /// Why the others were not replayed.
    pub(crate) refused: Option<Error>,
}

/// Where fast commits are, and what they are replayed on.
#[derive(Clone, Copy)]
pub(crate) struct Source<'v> {
    /// The volume that the ordinary log describes.
    pub(crate) view: &'v Ext4State,
    pub(crate) recovery: &'v Recovery,
    pub(crate) log: &'v dyn LogMap,
    /// Most bytes of changed blocks.
    pub(crate) budget: u64,
}

/// The fast commit that cannot be replayed, counted from 1, and why.
type Failure = (u32, Error);

impl Source<'_> {
    /// Replays all fast commits.
    ///
    /// # Errors
    /// [`Error::FastCommit`] with the record and why it cannot be replayed; those of the device.
    pub(crate) fn replay(self) -> Result<Replayed> {
        self.replay_first(u32::MAX, &Work::new(self.view)).map_err(|(_, error)| error)
    }

    /// Replays the fast commits before the first bad one. Each one is a separate `fsync`, so a bad one is no reason to
    /// lose those before it.
    ///
    /// Most faults show up at their record. Some show up only when all fast commits are done, and may lie in any of
    /// them. So the number of good ones is found by binary search: n fast commits take at most 3 + log2 n replays. All
    /// replays after the first may together do as much work as the first may. If the search needs more, what it has not
    /// tried counts as bad.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn replay_good(self) -> Result<Replayed> {
        let (mut bad, mut why) = match self.replay_first(u32::MAX, &Work::new(self.view)) {
            Ok(replayed) => return Ok(replayed),
            Err(failure) => refusal(failure)?,
        };
        let work = Work::new(self.view);
        let none = Replayed { changes: Changes::new(), done: FastCommits::default(), refused: None };
        let (mut good, mut last) = (none, 0);
        // Usually all those before a bad record are good.
        let mut next = bad.saturating_sub(1);
        while next > last {
            match self.replay_first(next, &work) {
                Ok(replayed) => (good, last) = (replayed, next),
                // The work limit is reached: nothing is known about these.
                Err((_, Error::FastCommit { .. })) if work.is_over() => break,
                Err(failure) => {
                    let (failed, error) = refusal(failure)?;
                    (bad, why) = (failed.min(next), error);
                }
            }
            next = last + bad.saturating_sub(last) / 2;
        }
        Ok(Replayed { refused: Some(why), ..good })
    }

    /// Replays the first `commits` fast commits. A fault that shows up only at the end is attributed to the last of
    /// them.
    fn replay_first(self, commits: u32, work: &Work) -> std::result::Result<Replayed, Failure> {
        let Source { view, recovery, log, budget } = self;
        let device = view.cache.device();
        let mut mapped =
            Mapped { canvas: Canvas::new(view, budget, work.clone()), runs: Vec::new(), commit: 1 };
        let collected = recovery.replay_fast_commits(device, log, commits, &mut mapped);
        collected.map_err(|error| (mapped.commit, error))?;
        let Mapped { canvas, runs, .. } = mapped;
        let parts = Parts { canvas, groups: Groups::new(runs), released: Vec::new() };
        let mut replay = Replay {
            parts,
            nodes: BTreeMap::new(),
            waiting: Waiting::default(),
            described: BTreeSet::new(),
            unlinked: BTreeSet::new(),
            commit: 1,
            record: 0,
        };
        let done = recovery.replay_fast_commits(device, log, commits, &mut replay);
        let done = done.map_err(|error| (replay.commit, error))?;
        let record = replay.record;
        let changes = replay.finish().map_err(|error| (done.commits, refused(record, error)))?;
        Ok(Replayed { changes, done, refused: None })
    }
}

/// The failure, if it is a fault of fast commits; otherwise an error.
fn refusal(failure: Failure) -> Result<Failure> {
    match failure {
        (_, Error::FastCommit { .. }) => Ok(failure),
        (_, error) => Err(error),
    }
}

/// Turns a fault of the volume or the records into one of the fast commits. Device errors stay as they are.
fn refused(record: u32, error: Error) -> Error {
    match error {
        Error::Io(_) | Error::MetadataIo { .. } | Error::FastCommit { .. } => error,
        cause => Error::FastCommit { record, cause: Arc::new(cause) },
    }
}

/// Collects the blocks that records map, so that nothing else is allocated there.
struct Mapped<'v> {
    canvas: Canvas<'v>,
    runs: Vec<BlockRun>,
    /// Number of this fast commit, from 1 on.
    commit: u32,
}

impl FastCommitReplay for Mapped<'_> {
    type Error = Error;

    fn record(&mut self, number: u32, record: &FastCommitRecord<'_>) -> Result<()> {
        if let FastCommitRecord::AddRange { extent, .. } = record
            && let Some(extent) = Extent::from_bytes(extent)
            && self.canvas.ground.zones.allows(extent.physical.get(), u64::from(extent.length))
        {
            // A growing list takes at most twice the memory of its entries.
            self.canvas.charge(2 * size_of::<BlockRun>()).map_err(|error| refused(number, error))?;
            self.runs.push((extent.physical.get(), u64::from(extent.length)));
        }
        Ok(())
    }

    fn committed(&mut self, _: u32) -> Result<()> {
        self.commit += 1;
        Ok(())
    }
}

/// A replay in progress.
struct Replay<'v> {
    parts: Parts<'v>,
    nodes: BTreeMap<Ino, Node>,
    waiting: Waiting,
    /// Inodes with a record in this fast commit.
    described: BTreeSet<Ino>,
    /// Inodes that may be without a name at the end.
    unlinked: BTreeSet<Ino>,
    /// Number of this fast commit, from 1 on.
    commit: u32,
    record: u32,
}

impl FastCommitReplay for Replay<'_> {
    type Error = Error;

    fn record(&mut self, number: u32, record: &FastCommitRecord<'_>) -> Result<()> {
        self.record = number;
        self.parts.canvas.work(RECORD_WORK).map_err(|error| refused(number, error))?;
        let done = match record {
            FastCommitRecord::AddRange { ino, extent } => self.add_range(*ino, extent),
            FastCommitRecord::DeleteRange { ino, first, blocks } => self.delete_range(*ino, *first, *blocks),
            FastCommitRecord::Create(name) => self.create(name),
            FastCommitRecord::Link(name) => self.link(name),
            FastCommitRecord::Unlink(name) => self.unlink(name),
            FastCommitRecord::Inode { ino, raw } => self.inode(*ino, raw),
            FastCommitRecord::Pad | FastCommitRecord::Tail { .. } | FastCommitRecord::Head { .. } => Ok(()),
        };
        done.map_err(|error| refused(number, error))
    }

    fn committed(&mut self, number: u32) -> Result<()> {
        self.record = number;
        self.parts.canvas.work(RECORD_WORK).map_err(|error| refused(number, error))?;
        self.commit().map_err(|error| refused(number, error))
    }
}

impl Replay<'_> {
    /// Refuses inode numbers that no file can have. The root is allowed as a `parent` only.
    fn check_number(&self, ino: Ino, parent: bool) -> Result<()> {
        let superblock = &self.parts.canvas.ground.superblock;
        let geometry = &superblock.geometry;
        if geometry.group_of_inode(ino).is_none() {
            return Err(Corrupt::from(CorruptKind::InodeNumber).in_inode(ino).into());
        }
        let reserved = ino < geometry.first_inode() && !(parent && ino == ROOT);
        if reserved || is_system_file(superblock, ino) {
            let what = "a fast commit changes an inode of the volume's own".into();
            return Err(Error::CorruptInode { ino, what });
        }
        Ok(())
    }

    /// Takes an inode out of the table. [`Replay::put`] puts it back.
    fn take(&mut self, ino: Ino) -> Result<Node> {
        if let Some(node) = self.nodes.remove(&ino) {
            return Ok(node);
        }
        let used = self.parts.groups.inode_used(&self.parts.canvas, ino)?;
        let node = Node::load(&self.parts.canvas, ino, used)?;
        if node.is_worth_keeping() {
            self.parts.canvas.charge(2 * node.draft.raw.len() + size_of::<Node>())?;
        }
        Ok(node)
    }

    fn put(&mut self, node: Node) {
        // Drop the others: there may be as many as the volume has inodes.
        if node.is_worth_keeping() {
            self.nodes.insert(node.draft.ino, node);
        }
    }

    fn add_range(&mut self, ino: Ino, bytes: &[u8; 12]) -> Result<()> {
        self.check_number(ino, false)?;
        let field = || Error::from(Corrupt::from(CorruptKind::FastCommitRecord("fc_ex")).in_inode(ino));
        let extent = Extent::from_bytes(bytes).ok_or_else(field)?;
        let end = u64::from(extent.logical.get()) + u64::from(extent.length);
        if extent.length == 0 || end > LOGICAL_END {
            return Err(field());
        }
        if !self.parts.canvas.ground.zones.allows(extent.physical.get(), u64::from(extent.length)) {
            let what = format!(
                "a fast commit maps block {} to {} blocks at {}, in metadata or outside the volume",
                extent.logical, extent.length, extent.physical
            );
            return Err(Error::CorruptInode { ino, what });
        }
        self.range(ino, Range::Add(extent))
    }

    fn delete_range(&mut self, ino: Ino, first: Lblk, blocks: u32) -> Result<()> {
        self.check_number(ino, false)?;
        let field = || Error::from(Corrupt::from(CorruptKind::FastCommitRecord("fc_len")).in_inode(ino));
        let end = first.get().checked_add(blocks).filter(|_| blocks > 0).ok_or_else(field)?;
        self.range(ino, Range::Remove(first.get(), end))
    }

    fn range(&mut self, ino: Ino, range: Range) -> Result<()> {
        let mut node = self.take(ino)?;
        if node.is_known(self.commit) {
            node.map(&mut self.parts, &range)?;
        } else {
            self.waiting.add_range(&mut self.parts.canvas, ino, range)?;
        }
        self.put(node);
        Ok(())
    }

    fn inode(&mut self, ino: Ino, raw: &[u8]) -> Result<()> {
        self.check_number(ino, false)?;
        let mut node = self.take(ino)?;
        let parts = &mut self.parts;
        if !node.is_worth_keeping() {
            parts.canvas.charge(2 * node.draft.raw.len() + size_of::<Node>())?;
        }
        node.apply(parts, raw)?;
        node.described = self.commit;
        self.described.insert(ino);
        for range in self.waiting.take_ranges(ino) {
            node.map(parts, &range)?;
        }
        if node.is_directory() {
            // Only new directories have records. The name comes later, and makes it a directory.
            node.draft.disk.links = 0;
        }
        if node.names == 0 {
            self.unlinked.insert(ino);
        }
        self.put(node);
        Ok(())
    }

    /// Checks a record of a name and takes its directory out. `None` if that was deleted meanwhile.
    fn parent(&mut self, name: &Name<'_>) -> Result<Option<Node>> {
        self.check_number(name.parent, true)?;
        self.check_number(name.ino, false)?;
        name::check(name.name).map_err(|_| {
            Error::from(Corrupt::from(CorruptKind::FastCommitRecord("fc_dname")).in_inode(name.parent))
        })?;
        let node = self.take(name.parent)?;
        if name.parent == name.ino {
            return Err(node.corrupt("a fast commit gives a directory a name in itself"));
        }
        if !node.used || node.draft.disk.links == 0 {
            self.put(node);
            return Ok(None);
        }
        if !node.is_directory() {
            return Err(node.corrupt("names go into it, but it is no directory"));
        }
        Ok(Some(node))
    }

    /// The key by which its directory compares a name.
    fn key(&self, parent: &Node, name: &Name<'_>) -> Result<Box<[u8]>> {
        name::key(&self.parts.canvas.ground.superblock, &parent.draft, name.name)
    }

    fn create(&mut self, name: &Name<'_>) -> Result<()> {
        let Some(mut parent) = self.parent(name)? else { return Ok(()) };
        let mut node = self.take(name.ino)?;
        if !node.used || node.described != self.commit {
            return Err(node.corrupt("a fast commit creates a name for an inode that is not in use"));
        }
        let is_new = self.add_name(&mut parent, &mut node, name)?;
        if node.is_directory() {
            // Its record left it without links.
            if node.draft.disk.links > 0 {
                return Err(node.corrupt("a fast commit creates a directory twice"));
            }
            node.names(&mut self.parts, Some(parent.draft.ino), |_| Ok(()))?;
            node.draft.disk.links = 2;
            if is_new {
                self.change_subdirectories(&mut parent, true)?;
            }
        }
        node.changed = true;
        self.put(node);
        self.put(parent);
        Ok(())
    }

    fn link(&mut self, name: &Name<'_>) -> Result<()> {
        let Some(mut parent) = self.parent(name)? else { return Ok(()) };
        let mut node = self.take(name.ino)?;
        if !node.used || node.names == 0 {
            // It may be the name of another file, which reuses the number with its record.
            let key = self.key(&parent, name)?;
            if let Some(other) = self.waiting.add_name(&mut self.parts.canvas, &key, name)? {
                return Err(name_taken(&parent, name, other));
            }
        } else {
            self.link_now(&mut parent, &mut node, name)?;
        }
        self.put(node);
        self.put(parent);
        Ok(())
    }

    fn link_now(&mut self, parent: &mut Node, node: &mut Node, name: &Name<'_>) -> Result<()> {
        if node.is_directory() {
            return Err(node.corrupt("a fast commit gives a directory another name"));
        }
        if node.names >= u32::from(LINKS_MAX) {
            return Err(node.corrupt("a fast commit gives the file more links than it can have"));
        }
        self.add_name(parent, node, name).map(drop)
    }

    /// Adds a name unless it exists already. Returns whether it was added.
    fn add_name(&mut self, parent: &mut Node, node: &mut Node, name: &Name<'_>) -> Result<bool> {
        let kind = node.draft.disk.file_type();
        let there =
            parent.names(&mut self.parts, None, |names| match names.insert(name.name, name.ino, kind) {
                Err(Error::Exists) => names.get(name.name),
                done => done.map(|()| None),
            })?;
        match there {
            Some(found) if found.ino == name.ino => return Ok(false),
            Some(found) => return Err(name_taken(parent, name, found.ino)),
            None => parent.changed = true,
        }
        node.names += 1;
        if !node.is_directory() {
            node.draft.disk.links = u16::try_from(node.names).unwrap_or(u16::MAX);
        }
        node.changed = true;
        Ok(true)
    }

    fn unlink(&mut self, name: &Name<'_>) -> Result<()> {
        let Some(mut parent) = self.parent(name)? else { return Ok(()) };
        let waited = self.waiting.remove_name(name.parent, name.ino, &self.key(&parent, name)?);
        if !waited && self.remove_name(&mut parent, name)? {
            let mut node = self.take(name.ino)?;
            if node.used {
                self.remove_link(&mut parent, &mut node)?;
            }
            self.put(node);
        }
        self.put(parent);
        Ok(())
    }

    /// Removes a name if it leads to the recorded inode. Returns whether it did.
    fn remove_name(&mut self, parent: &mut Node, name: &Name<'_>) -> Result<bool> {
        match parent.names(&mut self.parts, None, |names| names.remove(name.name, name.ino)) {
            Err(Error::NotFound) => Ok(false),
            done => {
                parent.changed = true;
                done.map(|()| true)
            }
        }
    }

    fn remove_link(&mut self, parent: &mut Node, node: &mut Node) -> Result<()> {
        node.changed = true;
        if node.is_directory() {
            if !node.names(&mut self.parts, None, |names| names.is_empty())? {
                return Err(node.corrupt("a fast commit removes a directory that is not empty"));
            }
            (node.names, node.draft.disk.links) = (0, 0);
            self.change_subdirectories(parent, false)?;
        } else {
            node.names = node.names.saturating_sub(1);
            node.draft.disk.links = u16::try_from(node.names).unwrap_or(u16::MAX);
        }
        if node.names == 0 {
            node.described = 0;
            self.unlinked.insert(node.draft.ino);
        }
        Ok(())
    }

    /// Adjusts the link count of `parent` for one directory `more` or less in it. A link count of 1 means more
    /// directories than it can count.
    fn change_subdirectories(&self, parent: &mut Node, more: bool) -> Result<()> {
        parent.changed = true;
        parent.draft.disk.links = count_subdirectory(self.parts.canvas.ground, parent.draft.disk.links, more)
            .map_err(|_| parent.corrupt("a fast commit makes more directories than one can have"))?;
        Ok(())
    }

    /// Ends a fast commit.
    fn commit(&mut self) -> Result<()> {
        for ((parent, _), (ino, spelt)) in self.waiting.end() {
            let name = Name { parent, ino, name: &spelt };
            let mut node = self.take(ino)?;
            let directory = self.parent(&name)?;
            let (Some(mut parent), true) = (directory, node.described == self.commit) else {
                let (text, described) = (name.name.escape_ascii(), node.described == self.commit);
                let why =
                    if described { "in a directory that it removes" } else { "but never says what it is" };
                return Err(node.corrupt(format!("a fast commit names it `{text}`, {why}")));
            };
            // The record came after the name, so its link count includes it already.
            self.link_now(&mut parent, &mut node, &name)?;
            self.put(node);
            self.put(parent);
        }
        for ino in std::mem::take(&mut self.described) {
            if let Some(node) = self.nodes.get(&ino).filter(|node| node.described == self.commit) {
                check_links(node)?;
            }
        }
        self.commit += 1;
        Ok(())
    }

    /// Deletes the inodes that have no name left.
    fn delete(&mut self) -> Result<()> {
        for ino in std::mem::take(&mut self.unlinked) {
            let mut node = self.take(ino)?;
            if node.used && node.names == 0 && !node.orphan {
                node.free(&mut self.parts)?;
            }
            self.put(node);
        }
        Ok(())
    }

    /// Encodes all changes into blocks.
    fn finish(mut self) -> Result<Changes> {
        self.delete()?;
        let parts = &mut self.parts;
        let mut owners = Vec::new();
        for node in self.nodes.values_mut() {
            let runs = node.recount(&parts.canvas)?;
            owners.extend(runs.into_iter().map(|(first, count)| (first, count, node.draft.ino)));
        }
        owners.sort_unstable();
        let geometry = &parts.canvas.ground.superblock.geometry;
        let (log, base) = (geometry.cluster_log(), u64::from(geometry.first_data_block()));
        let cluster = |block: u64| block.saturating_sub(base) >> log;
        let collide = |pair: &&[(u64, u64, Ino)]| {
            let (end, next) = (pair[0].0 + pair[0].1, pair[1].0);
            // A cluster belongs to one file.
            end > next || (pair[0].2 != pair[1].2 && cluster(end - 1) == cluster(next))
        };
        if let Some(pair) = owners.windows(2).find(collide) {
            let ((_, _, one), (block, _, ino)) = (pair[0], pair[1]);
            let what = format!("fast commits give block {block} to it and to inode {one}");
            return Err(Error::CorruptInode { ino, what });
        }
        for node in self.nodes.values_mut() {
            node.store(&mut parts.canvas, &mut parts.groups)?;
        }
        let released = std::mem::take(&mut parts.released);
        parts.groups.store(&mut parts.canvas, released, &owners)?;
        Ok(self.parts.canvas.into_changes())
    }
}

/// Checks at the end of a fast commit that an inode has as many names as its record says.
fn check_links(node: &Node) -> Result<()> {
    let recorded = u32::from(node.recorded_links);
    // Only new directories have records. Their link count includes subdirectories, but they have one name.
    let agrees = if node.is_directory() { recorded == 0 || node.names == 1 } else { recorded == node.names };
    if agrees {
        return Ok(());
    }
    let names = node.names;
    Err(node.corrupt(format!("a fast commit gives it {recorded} links and leaves it {names} names")))
}

fn name_taken(parent: &Node, name: &Name<'_>, other: Ino) -> Error {
    let text = name.name.escape_ascii();
    parent.corrupt(format!("a fast commit adds the name `{text}`, which is that of inode {other}"))
}
