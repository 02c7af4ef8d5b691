//! The inodes that records name, in their current state of the replay.

use super::bitmaps::Groups;
use super::waiting::Range;
use super::{BlockRun, Parts};
use crate::alloc::Space;
use crate::dir;
use crate::dir::map::BlockMap;
use crate::ground::blocks::Blocks;
use crate::ground::canvas::Canvas;
use crate::ground::error::{Error, Limit, Result};
use crate::inline::edit as inline;
use crate::inode::draft::{Draft, place_of};
use crate::inode::fields::{empty_record, unencodable};
use crate::map::edit::{self, Form, Part};
use uext4_ondisk::ext4::{
    Extent, FileType, Incompat, Inode as DiskInode, InodeFlags, RoCompat, XATTR_BLOCK_HEADER_SIZE, XattrArea,
    XattrBlock, XattrFormat, XattrValue, update_inode_checksum, update_xattr_block_checksum,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk, Pblk};

/// The bytes of an inode's record that hold its mapping (`i_block`).
pub(super) const I_BLOCK: std::ops::Range<usize> = 0x28..0x64;
/// Bytes of a record's base part.
const BASE_SIZE: usize = 128;
/// Offset of an attribute block's reference count.
const REFERENCES: usize = 4;

/// The names of a directory being edited.
pub(super) type Names<'e, 'v> = dir::edit::Edit<'e, Canvas<'v>, BlockMap<'e, Groups>>;

/// An inode.
pub(super) struct Node {
    /// Its record, with the root of its map.
    pub(super) draft: Draft,
    /// Whether it is in use now.
    pub(super) used: bool,
    /// Number of names that lead to it. Its link count may differ: a record may count names that follow later.
    pub(super) names: u32,
    /// The last fast commit with a record of it; 0 if there is none, or if it has lost its last name since.
    pub(super) described: u32,
    /// The link count in the last record.
    pub(super) recorded_links: u16,
    /// Whether it is an orphan on the volume: in use without a name. Orphan processing deletes it, not the replay.
    pub(super) orphan: bool,
    /// Whether it must be written.
    pub(super) changed: bool,
    /// `Some` if it is in use on the volume: whether it is a directory there.
    home: Option<bool>,
    /// Whether its map was read. Then its old blocks are in `Parts::released`, and its space is recounted at the end.
    noted: bool,
    /// Space counted for it outside its own blocks, in units of 512 bytes: attribute values in other inodes.
    extra_sectors: u64,
    /// For a directory, the block in which a name was found last.
    hint: u32,
}

impl Node {
    /// Loads the inode from the volume. `used` is its bit in the inode bitmap.
    pub(super) fn load(canvas: &Canvas<'_>, ino: Ino, used: bool) -> Result<Node> {
        let mut node = Node::fresh(canvas, ino)?;
        canvas.work(2 * node.draft.raw.len())?;
        if !used {
            return Ok(node);
        }
        let draft = Draft::load(canvas, ino)?;
        let disk = &draft.disk;
        if disk.links == 0 && disk.file_type().is_none() {
            return Ok(node);
        }
        let directory = disk.file_type() == Some(FileType::Directory);
        node.names = if directory { u32::from(disk.links > 0) } else { u32::from(disk.links) };
        node.orphan = disk.links == 0;
        (node.draft, node.used, node.home) = (draft, true, Some(directory));
        Ok(node)
    }

    /// A free inode.
    fn fresh(canvas: &Canvas<'_>, ino: Ino) -> Result<Node> {
        let (raw, disk) = empty_record(&canvas.ground.superblock, ino)?;
        let place = place_of(canvas.ground, ino)?;
        Ok(Node {
            draft: Draft { ino, disk, raw, place, charged: None, allowance: None, values: 0 },
            used: false,
            names: 0,
            described: 0,
            recorded_links: 0,
            orphan: false,
            changed: false,
            home: None,
            noted: false,
            extra_sectors: 0,
            hint: 0,
        })
    }

    pub(super) fn is_directory(&self) -> bool {
        self.draft.disk.file_type() == Some(FileType::Directory)
    }

    pub(super) fn corrupt(&self, what: impl Into<String>) -> Error {
        Error::CorruptInode { ino: self.draft.ino, what: what.into() }
    }

    /// Reads its whole map before the first look-up or change, and records its blocks on the volume.
    fn note(&mut self, parts: &mut Parts<'_>) -> Result<()> {
        if Form::of(&self.draft.disk).is_none() {
            return Err(self.corrupt("a fast commit maps blocks of a file that has none"));
        }
        if self.noted {
            return Ok(());
        }
        let (ino, canvas, mut runs) = (self.draft.ino, &parts.canvas, Vec::new());
        edit::walk(canvas, &self.draft, &mut |part| {
            match part {
                Part::Node(block) => canvas.claim_node(block, ino)?,
                Part::Data(extent) => canvas.load_extents(ino, 1, u64::from(extent.length))?,
            }
            runs.push(run(&part));
            Ok(())
        })?;
        let own = sectors(canvas, &mut runs, self.draft.disk.xattr_block);
        self.extra_sectors = self.draft.disk.sectors(&canvas.ground.superblock).saturating_sub(own);
        // The editor only adds and subtracts, so start from the true count.
        self.count(canvas, own.saturating_add(self.extra_sectors));
        parts.released.extend(runs);
        self.noted = true;
        Ok(())
    }

    /// Sets the space counted for it, in units of 512 bytes.
    fn count(&mut self, canvas: &Canvas<'_>, sectors: u64) {
        let (superblock, disk) = (&canvas.ground.superblock, &mut self.draft.disk);
        if sectors != disk.sectors(superblock) {
            let huge = superblock.features.ro_compat.contains(RoCompat::HUGE_FILE)
                && disk.flags.contains(InodeFlags::HUGE_FILE);
            let unit = if huge { u64::from(superblock.geometry.block_size() / 512) } else { 1 };
            disk.blocks_raw = sectors / unit.max(1);
            self.changed = true;
        }
    }

    /// Runs `edit` on its names. A new directory gets `.` and `..` first, with the parent `new_in`.
    pub(super) fn names<T>(
        &mut self,
        parts: &mut Parts<'_>,
        new_in: Option<Ino>,
        edit: impl FnOnce(&mut Names<'_, '_>) -> Result<T>,
    ) -> Result<T> {
        if Form::of(&self.draft.disk).is_some() {
            self.note(parts)?;
        } else {
            self.extra_sectors = self.values_elsewhere(&parts.canvas);
        }
        let Parts { canvas, groups, .. } = parts;
        let (mut map, draft, hint) = (BlockMap::new(groups), &mut self.draft, &mut self.hint);
        let names = match new_in {
            Some(parent) => dir::edit::Edit::start(canvas, &mut map, draft, parent),
            None => dir::edit::Edit::open(canvas, &mut map, draft),
        };
        let done = names.and_then(|mut names| {
            names.hint = *hint;
            let done = edit(&mut names);
            *hint = names.hint;
            done
        });
        // A directory that was just converted from inline has no blocks on the volume.
        self.noted = Form::of(&self.draft.disk).is_some();
        done.map_err(|error| self.refusal(&parts.canvas, error))
    }

    /// The first block that its map cannot reach.
    fn reach(&self) -> u64 {
        Form::of(&self.draft.disk).map_or(u64::MAX, Form::reach)
    }

    /// Turns "no space" into an error that says what needed the space.
    fn refusal(&self, canvas: &Canvas<'_>, error: Error) -> Error {
        let (limit, ino) = (self.reach(), self.draft.ino);
        let feature = match error {
            Error::NoSpace if limit < canvas.ground.superblock.geometry.blocks_count() => {
                format!("fast commits that need more blocks than are free below block {limit} (inode {ino})")
            }
            Error::NoSpace => "fast commits that need more blocks than are free".into(),
            other => return other,
        };
        Error::Incompatible { action: "recover", feature }
    }

    /// Runs an edit of its map.
    fn change<T>(
        &mut self,
        parts: &mut Parts<'_>,
        edit: impl FnOnce(&mut Canvas<'_>, &mut Groups, &mut Draft) -> Result<T>,
    ) -> Result<T> {
        let before = (self.draft.disk.i_block, self.draft.disk.blocks_raw);
        let done = edit(&mut parts.canvas, &mut parts.groups, &mut self.draft);
        self.changed |= before != (self.draft.disk.i_block, self.draft.disk.blocks_raw);
        done.map_err(|error| self.refusal(&parts.canvas, error))
    }

    /// Maps an extent. The caller has checked its blocks and its end.
    pub(super) fn insert(&mut self, parts: &mut Parts<'_>, extent: Extent) -> Result<()> {
        self.note(parts)?;
        let pointers = Form::of(&self.draft.disk) == Some(Form::Pointers);
        let done = match pointers && extent.unwritten {
            true => Err(Error::Limit(Limit::Map)),
            false => self.change(parts, |blocks, space, draft| edit::replace(blocks, space, draft, extent)),
        };
        match done {
            Err(Error::Limit(Limit::Map)) if pointers => {
                let (logical, physical) = (extent.logical, extent.physical);
                Err(self.corrupt(format!("block pointers cannot map block {logical} at {physical}")))
            }
            done => done.map(drop),
        }
    }

    /// Unmaps a range leaf by leaf, so that only one leaf's extents are in memory.
    fn remove(&mut self, parts: &mut Parts<'_>, range: &std::ops::Range<u32>) -> Result<()> {
        self.note(parts)?;
        let mut at = range.start;
        while at < range.end {
            let end = edit::leaf(&parts.canvas, &self.draft, Lblk(at))?.window.end.min(range.end);
            self.change(parts, |blocks, space, draft| edit::remove(blocks, space, draft, at..end))?;
            at = end;
        }
        Ok(())
    }

    /// Starts an empty map, if inodes of its kind have one.
    fn start(&mut self, parts: &mut Parts<'_>) -> Result<()> {
        self.noted = Form::of(&self.draft.disk).is_some();
        if self.noted {
            edit::start(&mut self.draft)?;
            let attributes = sectors(&parts.canvas, &mut [], self.draft.disk.xattr_block);
            self.count(&parts.canvas, attributes.saturating_add(self.extra_sectors));
        }
        Ok(())
    }

    /// Frees its map, if it has one. Records its blocks on the volume.
    fn give_up(&mut self, parts: &mut Parts<'_>) -> Result<()> {
        if Form::of(&self.draft.disk).is_none() {
            return Ok(());
        }
        if !self.noted {
            // The map is unchanged, so there is nothing else to free.
            return self.note(parts);
        }
        let (mut metadata, directory) = (Vec::new(), self.is_directory());
        edit::walk(&parts.canvas, &self.draft, &mut |part| {
            if directory || matches!(part, Part::Node(_)) {
                metadata.push(run(&part));
            }
            Ok(())
        })?;
        for (first, count) in metadata {
            // By the end the block may hold a file's data.
            parts.groups.give_back(&mut parts.canvas, self.draft.ino, &[(Pblk(first), count)])?;
            parts.canvas.freed_run(first, count)?;
        }
        Ok(())
    }

    /// Converts an inline inode to one with an empty map.
    pub(super) fn start_map(&mut self, parts: &mut Parts<'_>) -> Result<()> {
        let canvas = &parts.canvas;
        inline::remove(&canvas.ground.superblock, &mut self.draft)?;
        self.extra_sectors = self.values_elsewhere(canvas);
        self.draft.disk.flags &= !InodeFlags::INLINE_DATA;
        if canvas.ground.superblock.features.incompat.contains(Incompat::EXTENTS) {
            self.draft.disk.flags |= InodeFlags::EXTENTS;
        }
        self.changed = true;
        self.start(parts)
    }

    /// The `extra_sectors` of an inode that maps no blocks.
    fn values_elsewhere(&self, canvas: &Canvas<'_>) -> u64 {
        let own = sectors(canvas, &mut [], self.draft.disk.xattr_block);
        self.draft.disk.sectors(&canvas.ground.superblock).saturating_sub(own)
    }

    /// Whether the replay has to remember it.
    pub(super) fn is_worth_keeping(&self) -> bool {
        self.used || self.changed || self.home.is_some()
    }

    /// Whether a range can be applied to it now: it has a name, or this fast commit has its record.
    pub(super) fn is_known(&self, commit: u32) -> bool {
        self.used && (self.names > 0 || self.described == commit)
    }

    /// Whether `record` belongs to the same file, which has no name now. Otherwise the number was reused by another
    /// file.
    fn goes_on(&self, canvas: &Canvas<'_>, record: &DiskInode) -> Result<bool> {
        let kind = record.file_type();
        if kind != self.draft.disk.file_type() || kind == Some(FileType::Directory) {
            return Ok(false);
        }
        if record.created != self.draft.disk.created {
            return Ok(false);
        }
        if record.generation == self.draft.disk.generation {
            return Ok(true);
        }
        // Without checksums users can set the generation, so this may be the same file or another one.
        if record.created.is_some() && !canvas.ground.superblock.features.metadata_csum() {
            return Err(self.corrupt("the record changes the generation of a file without a name"));
        }
        Ok(false)
    }

    /// Applies a range to a file. The caller has checked its blocks and its ends.
    pub(super) fn map(&mut self, parts: &mut Parts<'_>, range: &Range) -> Result<()> {
        if self.is_directory() {
            return Err(self.corrupt(match range {
                Range::Add(_) => "a fast commit maps a range of a directory",
                Range::Remove(..) => "a fast commit unmaps a range of a directory",
            }));
        }
        parts.canvas.charge(2 * size_of::<Range>())?;
        match range {
            Range::Add(extent) => {
                if self.draft.disk.has_inline_data() {
                    self.start_map(parts)?;
                }
                self.insert(parts, *extent)
            }
            Range::Remove(first, end) if !self.draft.disk.has_inline_data() => {
                self.remove(parts, &(*first..*end))
            }
            Range::Remove(..) => Ok(()),
        }
    }

    /// Applies the record of an inode.
    pub(super) fn apply(&mut self, parts: &mut Parts<'_>, record: &[u8]) -> Result<()> {
        let canvas = &parts.canvas;
        let superblock = &canvas.ground.superblock;
        let size = usize::from(superblock.geometry.inode_size());
        // The record is copied, decoded and checksummed several times.
        canvas.work(8 * size)?;
        let field =
            |name| Error::from(Corrupt::from(CorruptKind::FastCommitRecord(name)).in_inode(self.draft.ino));
        if record.len() > size || record.len() < BASE_SIZE {
            return Err(field("fc_len"));
        }
        if self.used && self.names == 0 {
            let mut raw = vec![0; size];
            raw[..record.len()].copy_from_slice(record);
            update_inode_checksum(&mut raw, self.draft.ino, superblock).map_err(unencodable)?;
            let recorded = DiskInode::decode(&raw, self.draft.ino, superblock)?;
            if !self.goes_on(canvas, &recorded)? {
                self.free(parts)?;
            }
        }
        let canvas = &parts.canvas;
        let mut raw = if self.used { self.encoded(canvas)? } else { vec![0; size] };
        raw[..I_BLOCK.start].copy_from_slice(&record[..I_BLOCK.start]);
        raw[I_BLOCK.end..record.len()].copy_from_slice(&record[I_BLOCK.end..]);
        let mut with_mapping = raw.clone();
        with_mapping[I_BLOCK].copy_from_slice(&record[I_BLOCK]);
        update_inode_checksum(&mut with_mapping, self.draft.ino, superblock).map_err(unencodable)?;
        let recorded = DiskInode::decode(&with_mapping, self.draft.ino, superblock)?;
        self.check(canvas, &recorded)?;
        let (had, has) = (Form::of(&self.draft.disk), Form::of(&recorded));
        let unit = |disk: &DiskInode| disk.flags.contains(InodeFlags::HUGE_FILE);
        if self.used && had != has {
            self.give_up(parts)?;
        } else if self.used && had.is_some() && unit(&recorded) != unit(&self.draft.disk) {
            // The unit of its space changes, so the end recounts it. That needs its map.
            self.note(parts)?;
        }
        let canvas = &parts.canvas;
        let (was_used, was_inline) = (self.used, self.draft.disk.has_inline_data());
        let (i_block, sectors) = (self.draft.disk.i_block, self.draft.disk.sectors(superblock));
        if was_inline && has.is_some() {
            self.extra_sectors = self.values_elsewhere(canvas);
        }
        if was_used && was_inline && !recorded.has_inline_data() {
            inline::remove(superblock, &mut self.draft)?;
            // Attributes after the recorded fields stay. The one of inline data is removed.
            raw[record.len()..].copy_from_slice(&self.draft.raw[record.len()..]);
        }
        (self.draft.raw, self.draft.disk) = (raw, recorded);
        (self.used, self.changed, self.recorded_links) = (true, true, self.draft.disk.links);
        // The record has inline contents, but not the map of a file.
        if was_used && had == has && has.is_some() {
            self.draft.disk.i_block = i_block;
            self.count(canvas, sectors);
        } else {
            self.start(parts)?;
            self.draft.raw[I_BLOCK].copy_from_slice(&self.draft.disk.i_block);
        }
        if self.draft.disk.has_inline_data() {
            inline::value(&parts.canvas.ground.superblock, &self.draft)?;
        }
        Ok(())
    }

    /// Checks that the record can belong to this inode.
    fn check(&self, canvas: &Canvas<'_>, recorded: &DiskInode) -> Result<()> {
        let Some(kind) = recorded.file_type() else {
            return Err(self.corrupt(format!("mode {:#o} names no file type", recorded.mode)));
        };
        let both = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA;
        if recorded.flags.contains(both) || recorded.flags.contains(InodeFlags::EA_INODE) {
            return Err(self.corrupt("the record has flags that no such file can have"));
        }
        let attributes = if self.used { self.draft.disk.xattr_block } else { Pblk(0) };
        if recorded.xattr_block != attributes {
            return Err(self.corrupt("the record changes the block of attributes"));
        }
        if !self.used {
            return Ok(());
        }
        if kind == FileType::Directory {
            return Err(self.corrupt("the record makes a directory of an inode in use"));
        }
        if self.draft.disk.file_type() != Some(kind) {
            return Err(self.corrupt("the record changes the type of the file"));
        }
        // A file that was emptied may become inline.
        let (had, has) = (Form::of(&self.draft.disk), Form::of(recorded));
        if had != has && had.is_some() && !recorded.has_inline_data() {
            return Err(self.corrupt("the record changes how the file is mapped"));
        }
        // On volumes with checksums users cannot set it.
        let checksums = canvas.ground.superblock.features.metadata_csum();
        if checksums && recorded.generation != self.draft.disk.generation {
            return Err(self.corrupt("the record changes the generation of a file that has a name"));
        }
        Ok(())
    }

    /// Deletes the inode. Its blocks on the volume go to `released`.
    pub(super) fn free(&mut self, parts: &mut Parts<'_>) -> Result<()> {
        self.give_up(parts)?;
        if self.home.is_some() {
            self.release_attributes(parts)?;
        }
        let home = self.home;
        *self = Node { home, changed: true, ..Node::fresh(&parts.canvas, self.draft.ino)? };
        Ok(())
    }

    fn release_attributes(&self, parts: &mut Parts<'_>) -> Result<()> {
        let Parts { canvas, released, .. } = parts;
        let superblock = &canvas.ground.superblock;
        let refuse_values = |area: &XattrArea<'_>| {
            let elsewhere = area.entries().any(|entry| matches!(entry.value, XattrValue::Inode { .. }));
            let feature = format!(
                "fast commits that delete a file with attributes in inodes (inode {})",
                self.draft.ino
            );
            if elsewhere { Err(Error::Incompatible { action: "recover", feature }) } else { Ok(()) }
        };
        let place = |corrupt: Corrupt| Error::from(corrupt.in_inode(self.draft.ino));
        if self.draft.disk.extra_isize > 0
            && let Some(bytes) = self.draft.raw.get(self.draft.disk.xattr_range(superblock))
            && let Some(area) = XattrArea::in_inode(bytes, &XattrFormat::new(superblock)).map_err(place)?
        {
            refuse_values(&area)?;
        }
        let block = self.draft.disk.xattr_block;
        if block.get() == 0 {
            return Ok(());
        }
        let mut bytes = canvas.read(block.get())?;
        let decoded = XattrBlock::decode(&bytes, block, superblock).map_err(place)?;
        refuse_values(&decoded.area)?;
        let left = decoded.reference_count.saturating_sub(1);
        if !canvas.ground.zones.allows(block.get(), 1) {
            return Err(place(Corrupt::from(CorruptKind::SystemZone).at_block(block)));
        }
        if left == 0 {
            released.push((block.get(), 1));
            // Other inodes that shared it may have been deleted before, which changed the block.
            return canvas.freed(block);
        }
        debug_assert!(bytes.len() > XATTR_BLOCK_HEADER_SIZE, "a block holds its header");
        bytes[REFERENCES..REFERENCES + 4].copy_from_slice(&left.to_le_bytes());
        update_xattr_block_checksum(&mut bytes, block, superblock).map_err(unencodable)?;
        canvas.write(block.get(), bytes)
    }

    /// The record with all fields of the inode.
    fn encoded(&self, canvas: &Canvas<'_>) -> Result<Vec<u8>> {
        let mut raw = self.draft.raw.clone();
        self.draft.disk.encode(&mut raw, self.draft.ino, &canvas.ground.superblock).map_err(unencodable)?;
        Ok(raw)
    }

    /// Recounts its space. Returns the blocks that it occupies, if its map was read.
    pub(super) fn recount(&mut self, canvas: &Canvas<'_>) -> Result<Vec<BlockRun>> {
        let mut runs = Vec::new();
        if !self.noted || !self.used {
            return Ok(runs);
        }
        edit::walk(canvas, &self.draft, &mut |part| {
            runs.push(run(&part));
            Ok(())
        })?;
        let own = sectors(canvas, &mut runs, self.draft.disk.xattr_block);
        self.count(canvas, own.saturating_add(self.extra_sectors));
        Ok(runs)
    }

    /// Writes the record, and marks the inode in its group.
    pub(super) fn store(&mut self, canvas: &mut Canvas<'_>, groups: &mut Groups) -> Result<()> {
        if !self.changed || (!self.used && self.home.is_none()) {
            return Ok(());
        }
        let was_directory = self.home == Some(true);
        let directories = i32::from(self.used && self.is_directory()) - i32::from(was_directory);
        if self.home.is_some() != self.used || directories != 0 {
            groups.set_inode(canvas, self.draft.ino, self.used, directories)?;
        }
        self.draft.store(canvas)
    }
}

/// The blocks of one part of a map.
fn run(part: &Part) -> BlockRun {
    match part {
        Part::Node(block) => (block.get(), 1),
        Part::Data(extent) => (extent.physical.get(), u64::from(extent.length)),
    }
}

/// The space of whole clusters around `runs` and the attribute block, in units of 512 bytes. Sorts the runs in place:
/// there may be too many to copy.
fn sectors(canvas: &Canvas<'_>, runs: &mut [BlockRun], xattr_block: Pblk) -> u64 {
    let geometry = &canvas.ground.superblock.geometry;
    let (log, base) = (geometry.cluster_log(), u64::from(geometry.first_data_block()));
    let cluster = |block: u64| block.saturating_sub(base) >> log;
    let attributes = Some(xattr_block.get()).filter(|block| *block != 0).map(cluster);
    runs.sort_unstable();
    let (mut total, mut end, mut shared) = (0, 0, false);
    for (first, count) in &*runs {
        let clusters = cluster(*first)..cluster(first + count - 1) + 1;
        total += clusters.end.saturating_sub(clusters.start.max(end));
        end = end.max(clusters.end);
        shared |= attributes.is_some_and(|attributes| clusters.contains(&attributes));
    }
    total += u64::from(attributes.is_some() && !shared);
    (total << log) * u64::from(geometry.block_size() / 512)
}
