//! The inodes that records name, as they are at this point of the replay.

use super::extents::{BlockRun, Tree};
use super::waiting::Range;
use super::{inline, pointers};
use crate::ground::canvas::Canvas;
use crate::ground::error::{Error, Result};
use crate::inode::draft::Draft;
use crate::inode::fields::{empty_record, unencodable};
use uext4_ondisk::ext4::{
    Extent, FileType, Incompat, Inode as DiskInode, InodeFlags, XATTR_BLOCK_HEADER_SIZE, XattrArea,
    XattrBlock, XattrFormat, XattrValue, update_inode_checksum, update_xattr_block_checksum,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Pblk};

/// Where the mapping is in an inode's record, and where it ends.
pub(super) const I_BLOCK: std::ops::Range<usize> = 0x28..0x64;
/// Bytes of a record's base part.
const BASE_SIZE: usize = 128;
/// Where an attribute block counts who shares it.
const REFERENCES: usize = 4;

/// An inode.
pub(super) struct Node {
    pub(super) ino: Ino,
    /// The bytes of its record; what `disk` says goes over them when it is stored.
    pub(super) raw: Vec<u8>,
    pub(super) disk: DiskInode,
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
    /// What it maps, once that is needed.
    tree: Option<Tree>,
    /// Space that is counted for it but not its own: values of attributes in inodes of their own. In units of 512
    /// bytes.
    extra_sectors: u64,
}

/// How a file finds its contents.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A tree of extents.
    Extents,
    /// Block pointers, as in ext2 and ext3.
    Pointers,
    /// They lie in the inode itself, or there are none.
    Inside,
}

impl Form {
    fn of(disk: &DiskInode) -> Form {
        let kind = disk.file_type();
        let mapped = matches!(kind, Some(FileType::Regular | FileType::Directory))
            || (kind == Some(FileType::Symlink) && disk.short_link_target().is_none());
        match (disk.has_inline_data(), disk.uses_extents()) {
            (true, _) => Form::Inside,
            (false, true) => Form::Extents,
            (false, false) if mapped => Form::Pointers,
            (false, false) => Form::Inside,
        }
    }

    /// A map without any blocks.
    fn empty(self, canvas: &Canvas<'_>) -> Option<Tree> {
        match self {
            Form::Extents => Some(Tree::empty(canvas)),
            Form::Pointers => Some(Tree::empty_of_pointers(canvas)),
            Form::Inside => None,
        }
    }
}

impl Node {
    /// The inode as the volume has it, `used` by its bitmap.
    pub(super) fn load(canvas: &Canvas<'_>, ino: Ino, used: bool) -> Result<Node> {
        let mut node = Node::fresh(canvas, ino)?;
        canvas.work(2 * node.raw.len())?;
        if !used {
            return Ok(node);
        }
        let Draft { disk, raw, .. } = Draft::load(canvas, ino)?;
        if disk.links == 0 && disk.file_type().is_none() {
            return Ok(node);
        }
        let directory = disk.file_type() == Some(FileType::Directory);
        node.names = if directory { u32::from(disk.links > 0) } else { u32::from(disk.links) };
        node.orphan = disk.links == 0;
        (node.raw, node.disk, node.used, node.home) = (raw, disk, true, Some(directory));
        Ok(node)
    }

    /// An inode that nobody uses.
    fn fresh(canvas: &Canvas<'_>, ino: Ino) -> Result<Node> {
        let (raw, disk) = empty_record(&canvas.ground.superblock, ino)?;
        Ok(Node {
            ino,
            raw,
            disk,
            used: false,
            names: 0,
            described: 0,
            recorded_links: 0,
            orphan: false,
            changed: false,
            home: None,
            tree: None,
            extra_sectors: 0,
        })
    }

    pub(super) fn is_directory(&self) -> bool {
        self.disk.file_type() == Some(FileType::Directory)
    }

    pub(super) fn corrupt(&self, what: impl Into<String>) -> Error {
        Error::CorruptInode { ino: self.ino, what: what.into() }
    }

    /// The seed of its blocks' checksums, on volumes that have them.
    pub(super) fn seed(&self, canvas: &Canvas<'_>) -> Option<u32> {
        let superblock = &canvas.ground.superblock;
        superblock.features.metadata_csum().then(|| self.disk.checksum_seed(self.ino, superblock))
    }

    /// What it maps. What that occupies at home is noted in `released` when it is looked at first.
    pub(super) fn tree(
        &mut self,
        canvas: &mut Canvas<'_>,
        released: &mut Vec<BlockRun>,
    ) -> Result<&mut Tree> {
        let form = Form::of(&self.disk);
        if form == Form::Inside {
            return Err(self.corrupt("a fast commit maps blocks of a file that has none"));
        }
        if self.tree.is_none() {
            let (ino, i_block) = (self.ino, &self.disk.i_block);
            let tree = match form {
                Form::Pointers => Tree::load_pointers(canvas, ino, i_block)?,
                _ => Tree::load(canvas, ino, i_block, self.seed(canvas))?,
            };
            let mut runs = tree.runs();
            let superblock = &canvas.ground.superblock;
            let own = sectors(canvas, &mut runs, self.disk.xattr_block);
            self.extra_sectors = self.disk.sectors(superblock).saturating_sub(own);
            released.extend(runs);
            self.tree = Some(tree);
        }
        // It is there now.
        self.tree.as_mut().ok_or_else(|| Error::Invalid("no extent tree".into()))
    }

    /// Blocks from here on cannot be mapped by it.
    pub(super) fn reach(&self) -> u64 {
        if Form::of(&self.disk) == Form::Pointers { pointers::REACH } else { u64::MAX }
    }

    /// Maps an extent, whose blocks and ends were checked.
    pub(super) fn insert(
        &mut self,
        canvas: &mut Canvas<'_>,
        released: &mut Vec<BlockRun>,
        extent: Extent,
    ) -> Result<()> {
        let tree = self.tree(canvas, released)?;
        if tree.can_hold(&extent) {
            let looked_at = tree.insert(extent);
            return canvas.work(looked_at);
        }
        Err(self
            .corrupt(format!("block pointers cannot map block {} at {}", extent.logical, extent.physical)))
    }

    /// Makes a file or directory that maps blocks, none of them yet, of one whose contents lay in it.
    pub(super) fn start_map(&mut self, canvas: &Canvas<'_>) -> Result<()> {
        inline::remove(canvas, self)?;
        self.extra_sectors = self.values_elsewhere(canvas);
        self.disk.flags &= !InodeFlags::INLINE_DATA;
        if canvas.ground.superblock.features.incompat.contains(Incompat::EXTENTS) {
            self.disk.flags |= InodeFlags::EXTENTS;
        }
        self.tree = Form::of(&self.disk).empty(canvas);
        self.changed = true;
        Ok(())
    }

    /// The space that is counted for it but not its own, of one that maps no blocks.
    fn values_elsewhere(&self, canvas: &Canvas<'_>) -> u64 {
        let own = sectors(canvas, &mut [], self.disk.xattr_block);
        self.disk.sectors(&canvas.ground.superblock).saturating_sub(own)
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
        if kind != self.disk.file_type() || kind == Some(FileType::Directory) {
            return Ok(false);
        }
        if record.created != self.disk.created {
            return Ok(false);
        }
        if record.generation == self.disk.generation {
            return Ok(true);
        }
        // Without checksums the generation can be set, so this may be either.
        if record.created.is_some() && !canvas.ground.superblock.features.metadata_csum() {
            return Err(self.corrupt("the record changes the generation of a file without a name"));
        }
        Ok(false)
    }

    /// Does to a file what a range says. Its blocks and its ends were checked.
    pub(super) fn map(
        &mut self,
        canvas: &mut Canvas<'_>,
        released: &mut Vec<BlockRun>,
        range: &Range,
    ) -> Result<()> {
        if self.is_directory() {
            return Err(self.corrupt(match range {
                Range::Add(_) => "a fast commit maps a range of a directory",
                Range::Remove(..) => "a fast commit unmaps a range of a directory",
            }));
        }
        canvas.charge(2 * size_of::<Range>())?;
        match range {
            Range::Add(extent) => {
                if self.disk.has_inline_data() {
                    self.start_map(canvas)?;
                }
                self.insert(canvas, released, *extent)?;
            }
            Range::Remove(first, end) if !self.disk.has_inline_data() => {
                let looked_at = self.tree(canvas, released)?.remove(*first, *end);
                canvas.work(looked_at)?;
            }
            Range::Remove(..) => {}
        }
        Ok(())
    }

    /// Takes over the bytes of an inode record.
    pub(super) fn apply(
        &mut self,
        canvas: &mut Canvas<'_>,
        record: &[u8],
        released: &mut Vec<BlockRun>,
    ) -> Result<()> {
        let superblock = &canvas.ground.superblock;
        let size = usize::from(superblock.geometry.inode_size());
        // Copied, decoded and summed up several times.
        canvas.work(8 * size)?;
        let field = |name| Error::from(Corrupt::from(CorruptKind::FastCommitRecord(name)).in_inode(self.ino));
        if record.len() > size || record.len() < BASE_SIZE {
            return Err(field("fc_len"));
        }
        if self.used && self.names == 0 {
            let mut raw = vec![0; size];
            raw[..record.len()].copy_from_slice(record);
            update_inode_checksum(&mut raw, self.ino, superblock).map_err(unencodable)?;
            let recorded = DiskInode::decode(&raw, self.ino, superblock)?;
            if !self.goes_on(canvas, &recorded)? {
                self.free(canvas, released)?;
            }
        }
        let superblock = &canvas.ground.superblock;
        let mut raw = if self.used { self.encoded(canvas)? } else { vec![0; size] };
        raw[..I_BLOCK.start].copy_from_slice(&record[..I_BLOCK.start]);
        raw[I_BLOCK.end..record.len()].copy_from_slice(&record[I_BLOCK.end..]);
        let mut with_mapping = raw.clone();
        with_mapping[I_BLOCK].copy_from_slice(&record[I_BLOCK]);
        update_inode_checksum(&mut with_mapping, self.ino, superblock).map_err(unencodable)?;
        let recorded = DiskInode::decode(&with_mapping, self.ino, superblock)?;
        self.check(canvas, &recorded)?;
        let (had, has) = (Form::of(&self.disk), Form::of(&recorded));
        if self.used && had != Form::Inside {
            if recorded.generation != self.disk.generation {
                let looked_at = self.tree(canvas, released)?.touch();
                canvas.work(looked_at)?;
            }
            let unit = InodeFlags::HUGE_FILE;
            if recorded.flags.contains(unit) != self.disk.flags.contains(unit) || had != has {
                // Its space is counted in another unit, or goes: anew, once its map is known.
                self.tree(canvas, released)?;
            }
        }
        let (was_used, was_inline) = (self.used, self.disk.has_inline_data());
        let before = (self.disk.i_block, self.disk.blocks_raw);
        if was_inline && has != Form::Inside {
            self.extra_sectors = self.values_elsewhere(canvas);
        }
        if was_used && was_inline && !recorded.has_inline_data() {
            inline::remove(canvas, self)?;
            // Behind the fields that the record has, the attributes stay; that one is gone.
            raw[record.len()..].copy_from_slice(&self.raw[record.len()..]);
        }
        (self.raw, self.disk) = (raw, recorded);
        (self.used, self.changed, self.recorded_links) = (true, true, self.disk.links);
        // What maps a file is not in the record; only what lies in the inode itself is.
        if was_used && had == has && has != Form::Inside {
            (self.disk.i_block, self.disk.blocks_raw) = before;
        } else {
            self.tree = has.empty(canvas);
            self.raw[I_BLOCK].copy_from_slice(&self.disk.i_block);
        }
        if self.disk.has_inline_data() {
            inline::check(canvas, self)?;
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
        let attributes = if self.used { self.disk.xattr_block } else { Pblk(0) };
        if recorded.xattr_block != attributes {
            return Err(self.corrupt("the record changes the block of attributes"));
        }
        if !self.used {
            return Ok(());
        }
        if kind == FileType::Directory {
            return Err(self.corrupt("the record makes a directory of an inode in use"));
        }
        if self.disk.file_type() != Some(kind) {
            return Err(self.corrupt("the record changes the type of the file"));
        }
        // A file that was emptied may take new contents into its inode.
        let (had, has) = (Form::of(&self.disk), Form::of(recorded));
        if had != has && had != Form::Inside && !recorded.has_inline_data() {
            return Err(self.corrupt("the record changes how the file is mapped"));
        }
        // It can be set on volumes without checksums only.
        let checksums = canvas.ground.superblock.features.metadata_csum();
        if checksums && recorded.generation != self.disk.generation {
            return Err(self.corrupt("the record changes the generation of a file that has a name"));
        }
        Ok(())
    }

    /// Deletes the inode; what it occupies at home is noted in `released`.
    pub(super) fn free(&mut self, canvas: &mut Canvas<'_>, released: &mut Vec<BlockRun>) -> Result<()> {
        if Form::of(&self.disk) != Form::Inside {
            self.tree(canvas, released)?;
        }
        if self.home.is_some() {
            self.release_attributes(canvas, released)?;
        }
        let home = self.home;
        *self = Node { home, changed: true, ..Node::fresh(canvas, self.ino)? };
        Ok(())
    }

    fn release_attributes(&self, canvas: &mut Canvas<'_>, released: &mut Vec<BlockRun>) -> Result<()> {
        let superblock = &canvas.ground.superblock;
        let refuse_values = |area: &XattrArea<'_>| {
            let elsewhere = area.entries().any(|entry| matches!(entry.value, XattrValue::Inode { .. }));
            let feature =
                format!("fast commits that delete a file with attributes in inodes (inode {})", self.ino);
            if elsewhere { Err(Error::Incompatible { action: "recover", feature }) } else { Ok(()) }
        };
        let place = |corrupt: Corrupt| Error::from(corrupt.in_inode(self.ino));
        if self.disk.extra_isize > 0
            && let Some(bytes) = self.raw.get(self.disk.xattr_range(superblock))
            && let Some(area) = XattrArea::in_inode(bytes, &XattrFormat::new(superblock)).map_err(place)?
        {
            refuse_values(&area)?;
        }
        let block = self.disk.xattr_block;
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
        let mut raw = self.raw.clone();
        self.disk.encode(&mut raw, self.ino, &canvas.ground.superblock).map_err(unencodable)?;
        Ok(raw)
    }

    /// Stores what it maps, which is gone from memory then, and counts the space anew. Returns what the inode
    /// occupies, if its map was looked at.
    pub(super) fn settle(
        &mut self,
        canvas: &mut Canvas<'_>,
        groups: &mut super::bitmaps::Groups,
    ) -> Result<Vec<BlockRun>> {
        let seed = self.seed(canvas);
        let tree = self.tree.take();
        let Some(mut tree) = tree.filter(|_| self.used) else { return Ok(Vec::new()) };
        if tree.is_changed() {
            self.disk.i_block = tree.store(canvas, groups, self.ino, seed)?;
            self.changed = true;
        }
        let mut runs = tree.runs();
        drop(tree);
        let total = sectors(canvas, &mut runs, self.disk.xattr_block).saturating_add(self.extra_sectors);
        if total != self.disk.sectors(&canvas.ground.superblock) {
            // Only as many as fit 32 bits are counted in this unit everywhere.
            self.disk.blocks_raw = if self.disk.flags.contains(InodeFlags::HUGE_FILE) {
                total / u64::from(canvas.ground.superblock.geometry.block_size() / 512).max(1)
            } else {
                total
            };
            self.changed = true;
        }
        Ok(runs)
    }

    /// Writes the record, and marks the inode in its group.
    pub(super) fn store(&self, canvas: &mut Canvas<'_>, groups: &mut super::bitmaps::Groups) -> Result<()> {
        if !self.changed || (!self.used && self.home.is_none()) {
            return Ok(());
        }
        let was_directory = self.home == Some(true);
        let directories = i32::from(self.used && self.is_directory()) - i32::from(was_directory);
        if self.home.is_some() != self.used || directories != 0 {
            groups.set_inode(canvas, self.ino, self.used, directories)?;
        }
        Draft { ino: self.ino, disk: self.disk.clone(), raw: self.raw.clone() }.store(canvas)
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
