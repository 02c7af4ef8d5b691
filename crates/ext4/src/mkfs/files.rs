//! The files of a new volume: the root directory, `lost+found`, the resize inode, the orphan file.

use super::error::{Error, Result};
use super::layout::{EXTRA_ISIZE, Layout};
use super::map::{self, Mapped};
use super::options::Options;
use super::sizes::FIRST_INODE;
use super::tables::first_block;
use uext4_ondisk::ext4::{
    DirBlockKind, DirFormat, FileType, Incompat, IndirectLayout, Inode, InodeFlags, Timestamp,
    encode_dir_entry, encode_dir_tail, encode_orphan_tail, entry_length,
};
use uext4_ondisk::{Group, Ino, Pblk};

pub(super) const LOST_FOUND: Ino = Ino(FIRST_INODE);
const NAME: &[u8] = b"lost+found";
/// Bytes of `lost+found`, preallocated so that a repair need not allocate.
pub(super) const LOST_FOUND_BYTES: u64 = 16 << 10;
const ORPHAN_BLOCKS_MIN: u64 = 32;
/// Linux mounts no volume whose orphan file is larger.
const ORPHAN_BLOCKS_MAX: u64 = 512;
/// Blocks of the volume for each block of the orphan file.
const ORPHAN_RATIO: u64 = 4096;

/// A new inode of this volume, without blocks.
pub(super) fn fresh(layout: &Layout, mode: u16, links: u16) -> Inode {
    let now = Timestamp { seconds: i64::try_from(layout.time).unwrap_or(i64::MAX), nanoseconds: 0 };
    let large = layout.superblock.geometry.inode_size() > 128;
    Inode {
        mode,
        uid: 0,
        gid: 0,
        size: 0,
        accessed: now,
        changed: now,
        modified: now,
        created: large.then_some(now),
        deleted: 0,
        links,
        blocks_raw: 0,
        flags: InodeFlags::empty(),
        version: 0,
        i_block: [0; 60],
        generation: 0,
        xattr_block: Pblk(0),
        extra_isize: if large { EXTRA_ISIZE } else { 0 },
        project: None,
    }
}

/// Gives an inode its blocks.
fn with_blocks(layout: &Layout, mut inode: Inode, mapped: &Mapped, blocks: u64) -> Inode {
    inode.size = blocks * layout.block_size() as u64;
    inode.blocks_raw = layout.sectors(blocks) + layout.sectors(1) * mapped.nodes.len() as u64;
    inode.i_block = mapped.i_block;
    if layout.superblock.features.incompat.contains(Incompat::EXTENTS) {
        inode.flags |= InodeFlags::EXTENTS;
    }
    inode
}

/// A file of the volume itself.
pub(super) fn regular(layout: &Layout, mapped: &Mapped, blocks: u64) -> Inode {
    let inode = fresh(layout, FileType::Regular.mode_bits() | 0o600, 1);
    with_blocks(layout, inode, mapped, blocks)
}

/// Takes the first free blocks of the volume and maps them.
pub(super) fn allocate(layout: &mut Layout, ino: Ino, blocks: u64) -> Result<Mapped> {
    let geometry = layout.superblock.geometry;
    let goal = first_block(&geometry, Group(0));
    let mapped = if layout.superblock.features.incompat.contains(Incompat::EXTENTS) {
        let seed = layout.seed(ino);
        map::extents(&mut layout.space, goal, blocks, geometry.block_size(), seed)?
    } else {
        map::pointers(&mut layout.space, goal, blocks, geometry.block_size())?
    };
    layout.blocks.extend(mapped.nodes.clone());
    Ok(mapped)
}

/// The root directory with `lost+found` in it.
pub(super) fn directories(layout: &mut Layout, options: &Options) -> Result<()> {
    let mapped = allocate(layout, Ino::ROOT, 1)?;
    let inode = fresh(layout, FileType::Directory.mode_bits() | 0o755, 3);
    let mut inode = with_blocks(layout, inode, &mapped, 1);
    if let Some((uid, gid)) = options.extended.root_owner {
        (inode.uid, inode.gid) = (uid, gid);
    }
    layout.add(Ino::ROOT, &inode)?;
    let entries = [(Ino::ROOT, &b"."[..]), (Ino::ROOT, b".."), (LOST_FOUND, NAME)];
    let bytes = directory_block(layout, Ino::ROOT, &entries, false)?;
    let first = mapped.blocks().next().ok_or_else(map::full)?;
    layout.blocks.insert(first, bytes);

    let block = layout.block_size() as u64;
    let inline = layout.superblock.features.incompat.contains(Incompat::INLINE_DATA);
    // The part of the directory that was inline in the inode counts as a block.
    let blocks = (LOST_FOUND_BYTES / block).clamp(2, 12) - u64::from(inline);
    let mapped = allocate(layout, LOST_FOUND, blocks)?;
    let inode = fresh(layout, FileType::Directory.mode_bits() | 0o700, 2);
    let inode = with_blocks(layout, inode, &mapped, blocks);
    layout.add(LOST_FOUND, &inode)?;
    if inline {
        layout.mark_attributes(LOST_FOUND)?;
    }
    for (number, at) in mapped.blocks().enumerate() {
        let entries = [(LOST_FOUND, &b"."[..]), (Ino::ROOT, b"..")];
        let bytes = match number {
            // Moved out of its inode: the entries are as short as they were inline.
            0 if inline => directory_block(layout, LOST_FOUND, &entries, true)?,
            0 => directory_block(layout, LOST_FOUND, &entries, false)?,
            _ => directory_block(layout, LOST_FOUND, &[], true)?,
        };
        layout.blocks.insert(at, bytes);
    }
    Ok(())
}

/// A block with these entries, which are all directories. `rest`: append an empty record.
fn directory_block(layout: &Layout, ino: Ino, entries: &[(Ino, &[u8])], rest: bool) -> Result<Vec<u8>> {
    let format = DirFormat::new(&layout.superblock);
    let mut bytes = vec![0; layout.block_size()];
    let end = format.row_length(DirBlockKind::Linear);
    let mut at = 0;
    for (number, (target, name)) in entries.iter().enumerate() {
        let fills = number + 1 == entries.len() && !rest;
        let length = if fills { end - at } else { entry_length(name.len() as u8) };
        encode_dir_entry(&mut bytes, at, length, Some(*target), name, Some(FileType::Directory), &format)?;
        at += length;
    }
    if rest {
        encode_dir_entry(&mut bytes, at, end - at, None, &[], None, &format)?;
    }
    if let Some(seed) = layout.seed(ino) {
        encode_dir_tail(&mut bytes, seed)?;
    }
    Ok(bytes)
}

/// The bad-blocks inode, empty.
pub(super) fn bad_blocks(layout: &mut Layout) -> Result<()> {
    let inode = Inode { created: None, extra_isize: 0, ..fresh(layout, 0, 0) };
    layout.add(Ino::BAD_BLOCKS, &inode)
}

/// The resize inode, which owns the blocks reserved after the descriptors: each reserved block of group 0 points to its
/// copies in the backup groups.
pub(super) fn resize_inode(layout: &mut Layout) -> Result<()> {
    let geometry = layout.superblock.geometry;
    let (block, reserved) = (geometry.block_size(), u32::from(geometry.fields().reserved_gdt_blocks));
    let pointers = IndirectLayout::new(block).pointers_per_block();
    let descriptors = geometry.descriptor_blocks();
    let front = u64::from(geometry.first_data_block()) + u64::from(descriptors) + u64::from(reserved) + 2;
    let goal = front + u64::from(geometry.inode_table_blocks());
    let (double, _) = layout.space.run(goal, 1).ok_or_else(map::full)?;
    layout.space.place(double, 1);
    let backups: Vec<Group> =
        geometry.groups().skip(1).filter(|&group| geometry.has_superblock(group)).collect();
    let mut table = vec![0; block as usize];
    let first = geometry.superblock_position().0.get() + 1 + u64::from(descriptors);
    for number in 0..reserved {
        let primary = first + u64::from(number);
        map::put(&mut table, (descriptors + number) % pointers, primary)?;
        let mut bytes = vec![0; block as usize];
        for (place, &group) in (0..).zip(&backups) {
            let copy = primary + u64::from(group.get()) * u64::from(geometry.blocks_per_group());
            map::put(&mut bytes, place, copy)?;
        }
        layout.blocks.insert(primary, bytes);
    }
    layout.blocks.insert(double, table);
    let mut inode = fresh(layout, FileType::Regular.mode_bits() | 0o600, 1);
    let span = u64::from(pointers);
    inode.size = (span * span + span + 12) * u64::from(block);
    inode.blocks_raw = layout.sectors(1) * (1 + u64::from(reserved) * (1 + backups.len() as u64));
    map::put(&mut inode.i_block, 13, double)?;
    layout.add(Ino::RESIZE, &inode)
}

/// The orphan file, sized by the volume.
pub(super) fn orphans(layout: &mut Layout, options: &Options) -> Result<()> {
    let geometry = layout.superblock.geometry;
    let block = u64::from(geometry.block_size());
    let blocks = match options.extended.orphan_file_size {
        Some(bytes) if !(1..=ORPHAN_BLOCKS_MAX).contains(&(bytes / block)) => {
            let most = ORPHAN_BLOCKS_MAX * block;
            let text =
                format!("option `orphan_file_size` needs one block to {ORPHAN_BLOCKS_MAX} ({most} bytes)");
            return Err(Error::Option(text));
        }
        Some(bytes) => bytes / block,
        None => (geometry.blocks_count() / ORPHAN_RATIO).clamp(ORPHAN_BLOCKS_MIN, ORPHAN_BLOCKS_MAX),
    };
    let blocks = blocks.next_multiple_of(u64::from(geometry.cluster_blocks())).min(ORPHAN_BLOCKS_MAX);
    let ino = layout.next_inode();
    let mapped = allocate(layout, ino, blocks)?;
    let inode = regular(layout, &mapped, blocks);
    layout.add(ino, &inode)?;
    let seed = layout.seed(ino);
    for at in mapped.blocks() {
        let mut bytes = vec![0; block as usize];
        encode_orphan_tail(&mut bytes, Pblk(at), seed)?;
        layout.blocks.insert(at, bytes);
    }
    layout.superblock.orphan_file_inode = ino.get();
    Ok(())
}
