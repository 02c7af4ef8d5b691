//! Replaying fast commits: what the kernel appended to the journal instead of whole transactions.
//!
//! A record says that a name was added or removed, that a range of a file was mapped or unmapped, or what an inode
//! looks like now. They are done again in memory, on the state that the ordinary log describes, and the outcome is a
//! set of changed metadata blocks: for an overlay, or for a transaction that takes the place of the fast commits
//! (`jbd2`).
//! Nothing of it can be seen before all of it is there.
//!
//! A fast commit that cannot be replayed ends them for readers, who see what came before it. For writers nothing is
//! replayed then.
//!
//! | file | what |
//! |---|---|
//! | `inode.rs` | inodes: the recorded ones over those of the volume, and what they map (by `map/edit`) |
//! | `dentry.rs`, `chain.rs`, `htree.rs`, `inline.rs` | names, in blocks, hash trees and inodes |
//! | `waiting.rs` | names and ranges whose inode is described later |
//! | `bitmaps.rs` | when bitmaps change, and where blocks for what grew come from |
//!
//! # What is done as in the kernel, and what is not
//! Source: the behaviour of `fs/ext4/fast_commit.c` (`ext4_fc_replay*`) and of e2fsck.
//!
//! * The mapping of a file does not come with its inode but by ranges of its own; new nodes of its tree and new blocks
//!   of directories are allocated anew, clear of everything that records map.
//! * A name that is added is looked for first, and one that is removed may be gone: links and names of files that were
//!   deleted before their fast commit was written lead nowhere, and are ignored.
//! * An inode that has no name is deleted at the end of the last fast commit, as one of them may give it a name again.
//!   A record with another generation, time of creation or type means that another file has got its number. The name
//!   of a directory or file, its ranges and its record count together only. (The kernel refuses to mount a volume
//!   with the record of an inode that has no links, and leaves directories that were removed behind.)
//! * Link counts of directories are kept up, those of parents too. (The kernel gives new directories one link and
//!   leaves parents as they are, for e2fsck to find.)
//! * A file with block pointers keeps the ranges that are recorded for it, and a deleted one its blocks for others.
//!   (The kernel writes such ranges, but neither it nor e2fsck replays them.)
//! * A file that grows out of its inode keeps the blocks that are recorded for it. (The kernel forgets them: it looks
//!   at ranges before it knows that there are extents.) What fallocate moves from an inode to a block is lost all the
//!   same: it waits in the transaction, which no fast commit holds.
//! * Device nodes and short links keep what lies in their inode. (The kernel does not write any into fast commits.)
//! * A name or range whose inode is described later in the same fast commit (a temporary file that got a name) counts
//!   then. Ranges of inodes that never are, are those of deleted files; a name of one is an error.
//! * Times of directories stay as they are: no record has them. (The kernel sets the time of the replay.)
//! * What contradicts the volume or itself ends the replay with an error, while the kernel ignores much of it.
//!
//! # What it may cost
//! What is looked at and copied is counted in bytes, roughly, and bounded (`ground/canvas.rs`): that bounds the time.
//! What is kept in memory is charged for before it is there (`Canvas::charge`). A node of an extent tree and a
//! block of a directory are one inode's only, and all trees together map no more blocks than there are: so a small
//! record cannot make much of a small volume by naming the same nodes in many inodes.

mod bitmaps;
mod chain;
mod dentry;
mod htree;
mod inline;
mod inode;
mod waiting;

use crate::ground::canvas::{Canvas, Work};
use crate::ground::error::{Error, Result};
use crate::ground::state::{ROOT, is_system_file};
use crate::inode::Ext4State;
use crate::inode::fields::{LINKS_MAX, count_subdirectory};
use crate::map::edit::Leaf;
use bitmaps::Groups;
use chain::Entry;
use dentry::{Directory, check_name};
use inode::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uext4_jbd2::{Changes, FastCommitReplay, FastCommits, LogMap, Recovery};
use uext4_ondisk::ext4::Extent;
use uext4_ondisk::jbd2::{FastCommitName as Name, FastCommitRecord};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk};
use waiting::{Range, Waiting};

/// Bytes that a record counts for, whatever it does.
const RECORD_WORK: usize = 256;
/// The end of the logical blocks that extents can map.
const LOGICAL_END: u64 = 0xffff_ffff;

/// Blocks on the volume: first and number.
type BlockRun = (u64, u64);

/// What everything works on.
struct Parts<'v> {
    canvas: Canvas<'v>,
    groups: Groups,
    /// What the inodes that changed occupied before.
    released: Vec<BlockRun>,
    /// The leaf of a map that was looked at last, and whose it is: many names lie in few blocks.
    leaf: Option<(Ino, Leaf)>,
}

/// What came of a replay.
pub(crate) struct Replayed {
    /// The blocks that get other contents.
    pub(crate) changes: Changes,
    /// The fast commits that were done again: all of them, or those before the first that cannot be.
    pub(crate) done: FastCommits,
    /// Why the others were not.
    pub(crate) refused: Option<Error>,
}

/// Where fast commits are, and what they are replayed on.
#[derive(Clone, Copy)]
pub(crate) struct Source<'v> {
    /// The state that the ordinary log describes.
    pub(crate) view: &'v Ext4State,
    pub(crate) recovery: &'v Recovery,
    pub(crate) log: &'v dyn LogMap,
    /// Most bytes of blocks that get other contents.
    pub(crate) budget: u64,
}

/// The fast commit that cannot be replayed, counted from 1, and why.
type Failure = (u32, Error);

impl Source<'_> {
    /// Does all fast commits again.
    ///
    /// # Errors
    /// [`Error::FastCommit`] naming the record and why it cannot be done; the device's.
    pub(crate) fn replay(self) -> Result<Replayed> {
        self.replay_first(u32::MAX, &Work::new(self.view)).map_err(|(_, error)| error)
    }

    /// Does fast commits again up to a good one whose successor is not. Each was an `fsync` of its own, so what is
    /// wrong with a later one is no reason to lose it. Most of what can be wrong shows at its record. What shows only
    /// when all of them are done may lie in any of them, so how many are good is searched for by halves: for n fast
    /// commits there are no more than 3 + log2 n replays, and those behind the first one may do as much work together
    /// as that. What is too much work for the search counts as not good.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn replay_good(self) -> Result<Replayed> {
        let (mut bad, mut why) = match self.replay_first(u32::MAX, &Work::new(self.view)) {
            Ok(replayed) => return Ok(replayed),
            Err(failure) => refusal(failure)?,
        };
        let work = Work::new(self.view);
        let none = Replayed { changes: Changes::new(), done: FastCommits::default(), refused: None };
        let (mut good, mut last) = (none, 0);
        // Those before a bad record end well, as a rule.
        let mut next = bad.saturating_sub(1);
        while next > last {
            match self.replay_first(next, &work) {
                Ok(replayed) => (good, last) = (replayed, next),
                // Nothing is known of these.
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

    /// Does the first so many fast commits again. What shows only once all of them are done is put down to the last.
    fn replay_first(self, commits: u32, work: &Work) -> std::result::Result<Replayed, Failure> {
        let Source { view, recovery, log, budget } = self;
        let device = view.cache.device();
        let mut mapped =
            Mapped { canvas: Canvas::new(view, budget, work.clone()), runs: Vec::new(), commit: 1 };
        let collected = recovery.replay_fast_commits(device, log, commits, &mut mapped);
        collected.map_err(|error| (mapped.commit, error))?;
        let Mapped { canvas, runs, .. } = mapped;
        let parts = Parts { canvas, groups: Groups::new(runs), released: Vec::new(), leaf: None };
        let mut replay = Replay {
            parts,
            nodes: BTreeMap::new(),
            directories: BTreeMap::new(),
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

/// The failure, if it is one of fast commits.
fn refusal(failure: Failure) -> Result<Failure> {
    match failure {
        (_, Error::FastCommit { .. }) => Ok(failure),
        (_, error) => Err(error),
    }
}

/// An error of the volume or of the records becomes one of the fast commits; one of the device stays.
fn refused(record: u32, error: Error) -> Error {
    match error {
        Error::Io(_) | Error::MetadataIo { .. } | Error::FastCommit { .. } => error,
        cause => Error::FastCommit { record, cause: Arc::new(cause) },
    }
}

/// Collects what records map, so that nothing else is put there.
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
            // The list is as long as twice what is in it, at most.
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

/// The state of a replay.
struct Replay<'v> {
    parts: Parts<'v>,
    nodes: BTreeMap<Ino, Node>,
    directories: BTreeMap<Ino, Directory>,
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
    /// Refuses numbers that are none of a file. The root is one for names in it only.
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

    /// An inode, to be put back with [`Replay::put`].
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
        // There can be as many of the others as the volume has inodes.
        if node.is_worth_keeping() {
            self.nodes.insert(node.draft.ino, node);
        }
    }

    /// The names of a directory, to be put back.
    fn take_directory(&mut self, node: &mut Node) -> Result<Directory> {
        match self.directories.remove(&node.draft.ino) {
            Some(directory) => Ok(directory),
            None => Directory::load(&mut self.parts, node),
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
        let state = self.parts.canvas.ground;
        if !state.zones.allows(extent.physical.get(), u64::from(extent.length)) {
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
        if node.used && node.names == 0 {
            self.directories.remove(&ino);
        }
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
            // Only a new directory is recorded, and its name, which follows, makes it one.
            node.draft.disk.links = 0;
        }
        if node.names == 0 {
            self.unlinked.insert(ino);
        }
        self.put(node);
        Ok(())
    }

    /// Checks a name record and gets the directory; `None` if that was deleted meanwhile.
    fn parent(&mut self, name: &Name<'_>) -> Result<Option<(Node, Directory)>> {
        self.check_number(name.parent, true)?;
        self.check_number(name.ino, false)?;
        check_name(name.name, name.parent)?;
        let mut node = self.take(name.parent)?;
        if name.parent == name.ino {
            return Err(node.corrupt("a fast commit gives a directory a name in itself"));
        }
        if !node.used || node.draft.disk.links == 0 {
            self.put(node);
            return Ok(None);
        }
        let directory = self.take_directory(&mut node)?;
        Ok(Some((node, directory)))
    }

    fn put_parent(&mut self, node: Node, directory: Directory) {
        self.directories.insert(node.draft.ino, directory);
        self.put(node);
    }

    fn create(&mut self, name: &Name<'_>) -> Result<()> {
        let Some((mut parent, mut directory)) = self.parent(name)? else { return Ok(()) };
        let mut node = self.take(name.ino)?;
        if !node.used || node.described != self.commit {
            return Err(node.corrupt("a fast commit creates a name for an inode that is not in use"));
        }
        let is_new = self.add_name(&mut parent, &mut directory, &mut node, name)?;
        if node.is_directory() {
            if self.directories.contains_key(&name.ino) {
                return Err(node.corrupt("a fast commit creates a directory twice"));
            }
            let names = Directory::start(&mut self.parts, &mut node, parent.draft.ino)?;
            self.directories.insert(node.draft.ino, names);
            node.draft.disk.links = 2;
            if is_new {
                self.change_subdirectories(&mut parent, true)?;
            }
        }
        node.changed = true;
        self.put(node);
        self.put_parent(parent, directory);
        Ok(())
    }

    fn link(&mut self, name: &Name<'_>) -> Result<()> {
        let Some((mut parent, mut directory)) = self.parent(name)? else { return Ok(()) };
        let mut node = self.take(name.ino)?;
        if !node.used || node.names == 0 {
            // Maybe of another file, which gets the number with its record.
            let (canvas, waiting) = (&mut self.parts.canvas, &mut self.waiting);
            if let Some(other) = waiting.add_name(canvas, &directory.key(name.name), name)? {
                return Err(name_taken(&parent, name, other));
            }
        } else {
            self.link_now(&mut parent, &mut directory, &mut node, name)?;
        }
        self.put(node);
        self.put_parent(parent, directory);
        Ok(())
    }

    fn link_now(
        &mut self,
        parent: &mut Node,
        directory: &mut Directory,
        node: &mut Node,
        name: &Name<'_>,
    ) -> Result<()> {
        if node.is_directory() {
            return Err(node.corrupt("a fast commit gives a directory another name"));
        }
        if node.names >= u32::from(LINKS_MAX) {
            return Err(node.corrupt("a fast commit gives the file more links than it can have"));
        }
        self.add_name(parent, directory, node, name).map(drop)
    }

    /// Adds a name, unless it is there already. Returns whether it was not.
    fn add_name(
        &mut self,
        parent: &mut Node,
        directory: &mut Directory,
        node: &mut Node,
        name: &Name<'_>,
    ) -> Result<bool> {
        match directory.get(name.name) {
            Some(found) if found == name.ino => return Ok(false),
            Some(found) => return Err(name_taken(parent, name, found)),
            None => {}
        }
        node.names += 1;
        if !node.is_directory() {
            node.draft.disk.links = u16::try_from(node.names).unwrap_or(u16::MAX);
        }
        node.changed = true;
        let entry = Entry { name: name.name.into(), ino: name.ino, kind: node.draft.disk.file_type() };
        directory.insert(&mut self.parts, parent, entry)?;
        Ok(true)
    }

    fn unlink(&mut self, name: &Name<'_>) -> Result<()> {
        let Some((mut parent, mut directory)) = self.parent(name)? else { return Ok(()) };
        let waited = self.waiting.remove_name(name.parent, name.ino, &directory.key(name.name));
        if !waited && directory.remove(&mut self.parts, &mut parent, name.name, name.ino)? {
            let mut node = self.take(name.ino)?;
            if node.used {
                self.remove_link(&mut parent, &mut node)?;
            }
            self.put(node);
        }
        self.put_parent(parent, directory);
        Ok(())
    }

    fn remove_link(&mut self, parent: &mut Node, node: &mut Node) -> Result<()> {
        node.changed = true;
        if node.is_directory() {
            let names = self.take_directory(node)?;
            if !names.is_empty() {
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

    /// Counts a directory in `parent`. One link stands for more directories than can be counted.
    fn change_subdirectories(&self, parent: &mut Node, more: bool) -> Result<()> {
        parent.changed = true;
        parent.draft.disk.links = count_subdirectory(self.parts.canvas.ground, parent.draft.disk.links, more)
            .map_err(|_| parent.corrupt("a fast commit makes more directories than one can have"))?;
        Ok(())
    }

    /// The end of a fast commit.
    fn commit(&mut self) -> Result<()> {
        for ((parent, _), (ino, spelt)) in self.waiting.end() {
            let name = Name { parent, ino, name: &spelt };
            let mut node = self.take(ino)?;
            let place = self.parent(&name)?;
            let (Some((mut parent, mut directory)), true) = (place, node.described == self.commit) else {
                let text = name.name.escape_ascii();
                return Err(
                    node.corrupt(format!("a fast commit names it `{text}`, but never says what it is"))
                );
            };
            // Its record came after the name, so it has counted it already.
            self.link_now(&mut parent, &mut directory, &mut node, &name)?;
            self.put(node);
            self.put_parent(parent, directory);
        }
        for ino in std::mem::take(&mut self.described) {
            if let Some(node) = self.nodes.get(&ino).filter(|node| node.described == self.commit) {
                check_links(node)?;
            }
        }
        self.commit += 1;
        Ok(())
    }

    /// Deletes what no name is left for.
    fn delete(&mut self) -> Result<()> {
        for ino in std::mem::take(&mut self.unlinked) {
            let mut node = self.take(ino)?;
            if node.used && node.names == 0 && !node.orphan {
                self.directories.remove(&ino);
                node.free(&mut self.parts)?;
            }
            self.put(node);
        }
        Ok(())
    }

    /// Puts everything into blocks.
    fn finish(mut self) -> Result<Changes> {
        self.delete()?;
        let parts = &mut self.parts;
        let mut owners = Vec::new();
        for node in self.nodes.values_mut() {
            let runs = node.settle(&parts.canvas)?;
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
        parts.groups.settle(&mut parts.canvas, released, &owners)?;
        Ok(self.parts.canvas.into_changes())
    }
}

/// The names of a new or changed inode at the end of a fast commit must be as many as its record says.
fn check_links(node: &Node) -> Result<()> {
    let recorded = u32::from(node.recorded_links);
    // Of directories only new ones have records, with links of what is in them.
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
