//! The inodes that records name, as they are at this point of the replay.

use super::bitmaps::Groups;
use super::waiting::Range;
use super::{BlockRun, Parts, inline};
use crate::alloc::Space;
use crate::ground::blocks::Blocks;
use crate::ground::canvas::Canvas;
use crate::ground::error::{Error, Limit, Result};
use crate::inode::draft::Draft;
use crate::inode::fields::{empty_record, unencodable};
use crate::map::edit::{self, Form, Part};
use uext4_ondisk::ext4::{
    Extent, FileType, Incompat, Inode as DiskInode, InodeFlags, RoCompat, XATTR_BLOCK_HEADER_SIZE, XattrArea,
    XattrBlock, XattrFormat, XattrValue, update_inode_checksum, update_xattr_block_checksum,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk, Pblk};

/// Where the mapping is in an inode's record, and where it ends.
pub(super) const I_BLOCK: std::ops::Range<usize> = 0x28..0x64;
/// Bytes of a record's base part.
const BASE_SIZE: usize = 128;
/// Where an attribute block counts who shares it.
const REFERENCES: usize = 4;

/// An inode.
pub(super) struct Node {
    /// Its record, with the root of what it maps.
    pub(super) draft: Draft,
    /// Whether it is in use now.
    pub(super) used: bool,
    /// Names that lead to it. Links say so too, but those of a record run ahead of the names behind it.
    pub(super) names: u32,
    /// The fast commit whose record says what it is, since it had its last name. 0 for none.
    pub(super) described: u32,
    /// The links that the last record had.
    pub(super) recorded_links: u16,
    /// Whether the volume has it in use without a name, to be deleted by whoever works off its orphans.
    pub(super) orphan: bool,
    /// Whether it must be written.
    pub(super) changed: bool,
    /// Whether the volume has it in use, and as a directory.
    home: Option<bool>,
    /// Whether what it maps was looked at: what that occupies at home is noted then, and counted anew at the end.
    noted: bool,
    /// Space that is counted for it but not its own: values of attributes in inodes of their own. In units of 512
    /// bytes.
    extra_sectors: u64,
}

impl Node {
    /// The inode as the volume has it, `used` by its bitmap.
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

    /// An inode that nobody uses.
    fn fresh(canvas: &Canvas<'_>, ino: Ino) -> Result<Node> {
        let (raw, disk) = empty_record(&canvas.ground.superblock, ino)?;
        Ok(Node {
            draft: Draft { ino, disk, raw },
            used: false,
            names: 0,
            described: 0,
            recorded_links: 0,
            orphan: false,
            changed: false,
            home: None,
            noted: false,
            extra_sectors: 0,
        })
    }

    pub(super) fn is_directory(&self) -> bool {
        self.draft.disk.file_type() == Some(FileType::Directory)
    }

    pub(super) fn corrupt(&self, what: impl Into<String>) -> Error {
        Error::CorruptInode { ino: self.draft.ino, what: what.into() }
    }

    /// The seed of its blocks' checksums, on volumes that have them.
    pub(super) fn seed(&self, canvas: &Canvas<'_>) -> Option<u32> {
        self.draft.seed(canvas.ground)
    }

    /// Looks at everything that it maps, before the first look-up or change, and notes what that occupies at home.
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
                Part::Node(block) => canvas.claim(block.get(), ino)?,
                Part::Data(extent) => canvas.load_extents(ino, 1, u64::from(extent.length))?,
            }
            runs.push(run(&part));
            Ok(())
        })?;
        let own = sectors(canvas, &mut runs, self.draft.disk.xattr_block);
        self.extra_sectors = self.draft.disk.sectors(&canvas.ground.superblock).saturating_sub(own);
        // The editor counts nodes up and down, so it starts from what there is.
        self.count(canvas, own.saturating_add(self.extra_sectors));
        parts.released.extend(runs);
        self.noted = true;
        Ok(())
    }

    /// Counts space for it, in units of 512 bytes.
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

    /// Where a written block of it is.
    pub(super) fn written(&mut self, parts: &mut Parts<'_>, block: Lblk) -> Result<Option<Pblk>> {
        self.note(parts)?;
        let known = parts.leaf.take();
        let known = known.filter(|(ino, leaf)| *ino == self.draft.ino && leaf.window.contains(&block.get()));
        let (ino, leaf) = match known {
            Some(known) => known,
            None => (self.draft.ino, edit::leaf(&parts.canvas, &self.draft, block)?),
        };
        let extent = leaf.find(block).filter(|extent| !extent.unwritten);
        parts.leaf = Some((ino, leaf));
        Ok(extent.and_then(|extent| extent.physical_of(block)))
    }

    /// A block for it, of its directory.
    pub(super) fn allocate(&self, parts: &mut Parts<'_>) -> Result<Pblk> {
        let block = parts.groups.take(&mut parts.canvas, self.draft.ino, self.reach());
        block.map_err(|error| self.refusal(&parts.canvas, error))
    }

    /// Blocks from here on cannot be mapped by it.
    fn reach(&self) -> u64 {
        Form::of(&self.draft.disk).map_or(u64::MAX, Form::reach)
    }

    /// What a full volume means to a replay.
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

    /// Runs an edit of what it maps.
    fn change<T>(
        &mut self,
        parts: &mut Parts<'_>,
        edit: impl FnOnce(&mut Canvas<'_>, &mut Groups, &mut Draft) -> Result<T>,
    ) -> Result<T> {
        parts.leaf = None;
        let before = (self.draft.disk.i_block, self.draft.disk.blocks_raw);
        let done = edit(&mut parts.canvas, &mut parts.groups, &mut self.draft);
        self.changed |= before != (self.draft.disk.i_block, self.draft.disk.blocks_raw);
        done.map_err(|error| self.refusal(&parts.canvas, error))
    }

    /// Maps an extent, whose blocks and ends were checked.
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

    /// Unmaps a range, leaf by leaf: a leaf's extents are in memory, not those of the whole range.
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

    /// Starts an empty map, if contents of its form have one.
    fn start(&mut self, parts: &mut Parts<'_>) -> Result<()> {
        parts.leaf = None;
        self.noted = Form::of(&self.draft.disk).is_some();
        if self.noted {
            edit::start(&mut self.draft)?;
            let attributes = sectors(&parts.canvas, &mut [], self.draft.disk.xattr_block);
            self.count(&parts.canvas, attributes.saturating_add(self.extra_sectors));
        }
        Ok(())
    }

    /// Gives up what it maps, if it maps anything; what that occupies at home is noted.
    fn give_up(&mut self, parts: &mut Parts<'_>) -> Result<()> {
        if Form::of(&self.draft.disk).is_none() {
            return Ok(());
        }
        if !self.noted {
            // So nothing of it was changed.
            return self.note(parts);
        }
        let mut nodes = Vec::new();
        edit::walk(&parts.canvas, &self.draft, &mut |part| {
            if let Part::Node(block) = part {
                nodes.push(block);
            }
            Ok(())
        })?;
        for block in nodes {
            // It may be a file's data by the end.
            parts.groups.give_back(&mut parts.canvas, self.draft.ino, block, 1)?;
            parts.canvas.freed(block)?;
        }
        Ok(())
    }

    /// Makes a file or directory that maps blocks, none of them yet, of one whose contents lay in it.
    pub(super) fn start_map(&mut self, parts: &mut Parts<'_>) -> Result<()> {
        let canvas = &parts.canvas;
        inline::remove(canvas, self)?;
        self.extra_sectors = self.values_elsewhere(canvas);
        self.draft.disk.flags &= !InodeFlags::INLINE_DATA;
        if canvas.ground.superblock.features.incompat.contains(Incompat::EXTENTS) {
            self.draft.disk.flags |= InodeFlags::EXTENTS;
        }
        self.changed = true;
        self.start(parts)
    }

    /// The space that is counted for it but not its own, of one that maps no blocks.
    fn values_elsewhere(&self, canvas: &Canvas<'_>) -> u64 {
        let own = sectors(canvas, &mut [], self.draft.disk.xattr_block);
        self.draft.disk.sectors(&canvas.ground.superblock).saturating_sub(own)
    }

    /// Whether anything has to be remembered of it.
    pub(super) fn is_worth_keeping(&self) -> bool {
        self.used || self.changed || self.home.is_some()
    }

    /// Whether a range can be applied to it now: it has a name, or its record came before.
    pub(super) fn is_known(&self, commit: u32) -> bool {
        self.used && (self.names > 0 || self.described == commit)
    }

    /// Whether the file without a name that this was goes on with this record. Otherwise another one has got its
    /// number.
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
        // Without checksums the generation can be set, so this may be either.
        if record.created.is_some() && !canvas.ground.superblock.features.metadata_csum() {
            return Err(self.corrupt("the record changes the generation of a file without a name"));
        }
        Ok(false)
    }

    /// Does to a file what a range says. Its blocks and its ends were checked.
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

    /// Takes over the bytes of an inode record.
    pub(super) fn apply(&mut self, parts: &mut Parts<'_>, record: &[u8]) -> Result<()> {
        let canvas = &parts.canvas;
        let superblock = &canvas.ground.superblock;
        let size = usize::from(superblock.geometry.inode_size());
        // Copied, decoded and summed up several times.
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
            // Its space is counted in another unit: anew, once its map is known.
            self.note(parts)?;
        }
        let canvas = &parts.canvas;
        let (was_used, was_inline) = (self.used, self.draft.disk.has_inline_data());
        let (i_block, sectors) = (self.draft.disk.i_block, self.draft.disk.sectors(superblock));
        if was_inline && has.is_some() {
            self.extra_sectors = self.values_elsewhere(canvas);
        }
        if was_used && was_inline && !recorded.has_inline_data() {
            inline::remove(canvas, self)?;
            // Behind the fields that the record has, the attributes stay; that one is gone.
            raw[record.len()..].copy_from_slice(&self.draft.raw[record.len()..]);
        }
        (self.draft.raw, self.draft.disk) = (raw, recorded);
        (self.used, self.changed, self.recorded_links) = (true, true, self.draft.disk.links);
        // What maps a file is not in the record; only what lies in the inode itself is.
        if was_used && had == has && has.is_some() {
            self.draft.disk.i_block = i_block;
            self.count(canvas, sectors);
        } else {
            self.start(parts)?;
            self.draft.raw[I_BLOCK].copy_from_slice(&self.draft.disk.i_block);
        }
        if self.draft.disk.has_inline_data() {
            inline::check(&parts.canvas, self)?;
        }
        Ok(())
    }

    /// Whether the recorded inode can be this one.
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
        // A file that was emptied may take new contents into its inode.
        let (had, has) = (Form::of(&self.draft.disk), Form::of(recorded));
        if had != has && had.is_some() && !recorded.has_inline_data() {
            return Err(self.corrupt("the record changes how the file is mapped"));
        }
        // It can be set on volumes without checksums only.
        let checksums = canvas.ground.superblock.features.metadata_csum();
        if checksums && recorded.generation != self.draft.disk.generation {
            return Err(self.corrupt("the record changes the generation of a file that has a name"));
        }
        Ok(())
    }

    /// Deletes the inode; what it occupies at home is noted in `released`.
    pub(super) fn free(&mut self, parts: &mut Parts<'_>) -> Result<()> {
        self.give_up(parts)?;
        parts.leaf = None;
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
            return Ok(());
        }
        debug_assert!(bytes.len() > XATTR_BLOCK_HEADER_SIZE, "a block holds its header");
        bytes[REFERENCES..REFERENCES + 4].copy_from_slice(&left.to_le_bytes());
        update_xattr_block_checksum(&mut bytes, block, superblock).map_err(unencodable)?;
        canvas.write(block.get(), bytes)
    }

    /// The record with everything that is known of the inode.
    fn encoded(&self, canvas: &Canvas<'_>) -> Result<Vec<u8>> {
        let mut raw = self.draft.raw.clone();
        self.draft.disk.encode(&mut raw, self.draft.ino, &canvas.ground.superblock).map_err(unencodable)?;
        Ok(raw)
    }

    /// Counts its space anew. Returns what it occupies, if its map was looked at.
    pub(super) fn settle(&mut self, canvas: &Canvas<'_>) -> Result<Vec<BlockRun>> {
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

/// The blocks of a part of a map.
fn run(part: &Part) -> BlockRun {
    match part {
        Part::Node(block) => (block.get(), 1),
        Part::Data(extent) => (extent.physical.get(), u64::from(extent.length)),
    }
}

/// The space that blocks take with their clusters, in units of 512 bytes. Puts the runs in order: there may be very
/// many, so this makes no copy.
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
