//! Describes what the steps of a transaction declared, as records of a fast commit.
//!
//! A file is described by the ranges that may have changed, as they are mapped now, and by its record. In the order of
//! Linux (`ext4_fc_write_inode_data`, `ext4_fc_write_inode` in fs/ext4/fast_commit.c): changed names come first, the
//! name of a new file after its record and its ranges; then the ranges and the record of each file.
//!
//! Only files whose map fits into the inode: a replay of e2fsck 1.47.0 puts nodes of a tree into blocks that later
//! records map.

use crate::ground::direct::Direct;
use crate::ground::error::Result;
use crate::ground::state::{Ground, is_system_file};
use crate::ground::tracking::{ChangedName, Declared, NameChange};
use crate::inode::draft::Draft;
use crate::inode::fields::journals_data;
use std::ops::Range;
use uext4_jbd2::{FastCommitContents, FastCommitRoom, FullCommit};
use uext4_ondisk::ext4::{Extent, ExtentNode, FileType, InodeFlags, NodeLimits, encode_extent_leaf};
use uext4_ondisk::jbd2::{FastCommitName, FastCommitRecord, FastCommitWriter};
use uext4_ondisk::{Ino, Lblk, Pblk};

/// Bytes of the first part of an inode record, and of the field behind it that holds the length of the second part.
const BASE: usize = 128;
const EXTRA: usize = 2;
/// Bytes of an extent, and of the header before it.
const EXTENT: usize = 12;

/// Describes everything declared for a transaction. Nobody changes anything meanwhile.
pub(crate) fn describe(ground: &Ground, room: &FastCommitRoom) -> FastCommitContents {
    let Some(tracking) = &ground.tracking else { return FastCommitContents::Full(FullCommit::File) };
    let declared = tracking.take(room.tid);
    if declared.overflowed {
        return FastCommitContents::Full(FullCommit::File);
    }
    if declared.files.is_empty() && declared.names.is_empty() {
        return FastCommitContents::Nothing;
    }
    match written(ground, room, &declared) {
        Ok(Some(blocks)) if blocks.len() <= room.blocks as usize * room.block_size => {
            FastCommitContents::Blocks(blocks)
        }
        Ok(Some(_)) => FastCommitContents::Full(FullCommit::AreaFull),
        // What cannot be read need not be for a full commit.
        Ok(None) | Err(_) => FastCommitContents::Full(FullCommit::File),
    }
}

/// The blocks of a fast commit. `None` if no record describes something.
fn written(ground: &Ground, room: &FastCommitRoom, declared: &Declared) -> Result<Option<Vec<u8>>> {
    let mut writer = FastCommitWriter::new(room.block_size, room.tid.sequence(), room.first)?;
    let mut files = declared.files.clone();
    for ChangedName { change, parent, ino, name } in &declared.names {
        if !takes_names(ground, *parent)? {
            return Ok(None);
        }
        let changed = FastCommitName { parent: *parent, ino: *ino, name };
        let record = match change {
            NameChange::Create => {
                // Its ranges come with its first record; that at the end sets the times again.
                let blocks = files.insert(*ino, 0..0).unwrap_or(0..0);
                if !describe_new(ground, &mut writer, *ino, &blocks)? {
                    return Ok(None);
                }
                FastCommitRecord::Create(changed)
            }
            NameChange::Link => FastCommitRecord::Link(changed),
            NameChange::Unlink => FastCommitRecord::Unlink(changed),
        };
        writer.push(&record)?;
    }
    for (ino, blocks) in &files {
        if !describe_file(ground, &mut writer, *ino, blocks)? {
            return Ok(None);
        }
    }
    Ok(Some(writer.finish()?))
}

/// Whether names in a directory can be described. e2fsck 1.47.0 does not hash folded names as others do.
fn takes_names(ground: &Ground, ino: Ino) -> Result<bool> {
    let draft = Draft::load(&Direct(ground), ino)?;
    let disk = &draft.disk;
    Ok(disk.file_type() == Some(FileType::Directory)
        && disk.links > 0
        && !disk.flags.intersects(InodeFlags::CASEFOLD | InodeFlags::ENCRYPT | InodeFlags::INLINE_DATA)
        && !is_beside_journal(ground, &draft))
}

/// Describes a new file, with attributes in its record. `false` if no record can.
fn describe_new(
    ground: &Ground,
    writer: &mut FastCommitWriter,
    ino: Ino,
    blocks: &Range<u32>,
) -> Result<bool> {
    let draft = Draft::load(&Direct(ground), ino)?;
    if !is_describable(ground, &draft)
        || is_beside_journal(ground, &draft)
        || draft.disk.xattr_block.get() != 0
    {
        return Ok(false);
    }
    writer.push(&FastCommitRecord::Inode { ino, raw: &draft.raw })?;
    describe_ranges(ground, writer, &draft, blocks)
}

/// Describes a file. `false` if no record can.
fn describe_file(
    ground: &Ground,
    writer: &mut FastCommitWriter,
    ino: Ino,
    blocks: &Range<u32>,
) -> Result<bool> {
    let draft = Draft::load(&Direct(ground), ino)?;
    if !is_describable(ground, &draft) || is_beside_journal(ground, &draft) {
        return Ok(false);
    }
    if !describe_ranges(ground, writer, &draft, blocks)? {
        return Ok(false);
    }
    let size = draft.raw.len();
    let more = if size >= BASE + EXTRA { usize::from(draft.disk.extra_isize) } else { 0 };
    let Some(raw) = draft.raw.get(..BASE + more) else { return Ok(false) };
    writer.push(&FastCommitRecord::Inode { ino, raw })?;
    Ok(true)
}

/// Describes how blocks of a file are mapped. `false` if its map has nodes.
fn describe_ranges(
    ground: &Ground,
    writer: &mut FastCommitWriter,
    draft: &Draft,
    blocks: &Range<u32>,
) -> Result<bool> {
    let ino = draft.ino;
    let root = ExtentNode::root(&draft.disk.i_block, NodeLimits::root(&ground.superblock))?;
    if root.depth() > 0 {
        return Ok(false);
    }
    let mut at = blocks.start;
    for extent in root.extents() {
        let part = extent.logical.get().max(at)..extent.logical_end().get().min(blocks.end);
        if part.is_empty() {
            continue;
        }
        delete(writer, ino, at..part.start)?;
        add(writer, ino, &extent, &part)?;
        at = part.end;
    }
    delete(writer, ino, at..blocks.end)?;
    Ok(true)
}

/// Whether ranges and a record say all about the contents of an inode.
fn is_describable(ground: &Ground, draft: &Draft) -> bool {
    let disk = &draft.disk;
    let others = InodeFlags::INLINE_DATA | InodeFlags::ENCRYPT | InodeFlags::VERITY | InodeFlags::EA_INODE;
    disk.file_type() == Some(FileType::Regular)
        && disk.uses_extents()
        && !disk.flags.intersects(others)
        && !journals_data(&ground.superblock, disk)
        // Linux refuses a volume with a record of an inode without links.
        && disk.links > 0
        // It is in the chain of orphans.
        && disk.deleted == 0
        && draft.ino >= ground.superblock.geometry.first_inode()
        && !is_system_file(&ground.superblock, draft.ino)
}

/// Whether a record is in the block of the journal's. e2fsck 1.47.0 keeps that block in memory from before it replays
/// the log: with a fast commit of another inode there it undoes what the log changed.
fn is_beside_journal(ground: &Ground, draft: &Draft) -> bool {
    let geometry = &ground.superblock.geometry;
    // The table of a group has no blocks of others.
    let block = |ino: Ino| {
        geometry.group_of_inode(ino).map(|(group, index)| (group, geometry.inode_table_position(index).0))
    };
    ground.superblock.journal_inode().is_some_and(|journal| block(journal) == block(draft.ino))
}

fn delete(writer: &mut FastCommitWriter, ino: Ino, blocks: Range<u32>) -> Result<()> {
    if blocks.is_empty() {
        return Ok(());
    }
    let (first, blocks) = (Lblk(blocks.start), blocks.end - blocks.start);
    Ok(writer.push(&FastCommitRecord::DeleteRange { ino, first, blocks })?)
}

/// Adds `part` of an extent.
fn add(writer: &mut FastCommitWriter, ino: Ino, extent: &Extent, part: &Range<u32>) -> Result<()> {
    let inside = u64::from(part.start - extent.logical.get());
    let part = Extent {
        logical: Lblk(part.start),
        length: part.end - part.start,
        physical: Pblk(extent.physical.get() + inside),
        unwritten: extent.unwritten,
    };
    let mut leaf = [0; 5 * EXTENT];
    encode_extent_leaf(&mut leaf, 0, &[part])?;
    let mut bytes = [0; EXTENT];
    bytes.copy_from_slice(&leaf[EXTENT..2 * EXTENT]);
    Ok(writer.push(&FastCommitRecord::AddRange { ino, extent: &bytes })?)
}
