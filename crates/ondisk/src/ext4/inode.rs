//! Inodes: what a file is, who owns it, its times, and the 60 bytes from which its blocks are found.

mod parts;
mod raw;

pub use parts::{DeviceNumber, FileType, InodeFlags, Timestamp};
use raw::{RawExtra, RawInode};

use super::features::{Incompat, RoCompat};
use super::superblock::Superblock;
use crate::bytes::{high16, high32, join16, join32, le32_at, low16, low32, put, record, record_mut};
use crate::checksum::{csum, csum_le32, csum_without};
use crate::error::{Corrupt, CorruptKind, EncodeError};
use crate::numbers::{Ino, Pblk};
use parts::{decode_time, encode_time};
use zerocopy::little_endian::U32;

/// `s_creator_os` of volumes made for Linux.
const CREATOR_LINUX: u32 = 0;
/// `s_creator_os` of volumes made for the Hurd. Its inodes hold the block of a passive translator where others have the
/// low half of the version, and a part of the mode where others have the high half of the attribute block.
const CREATOR_HURD: u32 = 1;
const STRUCTURE: &str = "inode";
/// Bytes of the part every inode has.
const BASE_SIZE: usize = 128;
const TRANSLATOR: usize = 0x24;
const FRAGMENT: usize = 0x70;
/// Bytes of the records of nearly all volumes.
const USUAL_SIZE: usize = 256;
const CHECKSUM_LO: usize = 0x7C;
const CHECKSUM_HI: usize = 0x82;
/// Bytes of an inode's mapping root or short symbolic link target.
pub const I_BLOCK_SIZE: usize = 60;

// Ends of the extra fields, in bytes after the base part. A field exists if `extra_isize` reaches its end.
const CHECKSUM_HI_END: u16 = 4;
const CHANGE_EXTRA_END: u16 = 8;
const MODIFY_EXTRA_END: u16 = 12;
const ACCESS_EXTRA_END: u16 = 16;
const CREATE_END: u16 = 20;
const CREATE_EXTRA_END: u16 = 24;
const VERSION_HI_END: u16 = 28;
const PROJECT_END: u16 = 32;

/// A decoded inode (`struct ext4_inode`). Which optional fields are present follows from
/// [`Inode::extra_isize`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Type and permissions (`i_mode`); see [`Inode::file_type`].
    pub mode: u16,
    /// Owner (`i_uid`).
    pub uid: u32,
    /// Group (`i_gid`).
    pub gid: u32,
    /// Size in bytes (`i_size`), below 2⁶³. The stored high half counts for regular files, and for all with
    /// `large_dir`.
    pub size: u64,
    /// Last access (`i_atime`).
    pub accessed: Timestamp,
    /// Last change of the inode (`i_ctime`).
    pub changed: Timestamp,
    /// Last change of the contents (`i_mtime`).
    pub modified: Timestamp,
    /// Creation (`i_crtime`), if the inode has room for it.
    pub created: Option<Timestamp>,
    /// Deletion time, or the next inode of the orphan list (`i_dtime`).
    pub deleted: u32,
    /// Hard links (`i_links_count`); 1 on a directory can mean "too many to count".
    pub links: u16,
    /// Blocks used, raw (`i_blocks`); see [`Inode::sectors`].
    pub blocks_raw: u64,
    /// Flags (`i_flags`).
    pub flags: InodeFlags,
    /// Change counter (`i_version`); its high half exists only if the inode has room for it. On volumes made for the
    /// Hurd it reads as 0 and is not stored.
    pub version: u64,
    /// Root of the mapping, inline data, device number or short link target (`i_block`).
    pub i_block: [u8; I_BLOCK_SIZE],
    /// Generation, part of the checksum seed (`i_generation`).
    pub generation: u32,
    /// Block of extended attributes (`i_file_acl`), 0 = none.
    pub xattr_block: Pblk,
    /// Bytes of extra fields after the base part (`i_extra_isize`): a multiple of 4 that fits the record.
    pub extra_isize: u16,
    /// Project (`i_projid`), if the inode has room for it.
    pub project: Option<u32>,
}

/// The seed of all checksums that belong to one inode: its own, its extent blocks, its directory blocks.
pub fn inode_checksum_seed(sb: &Superblock, inode: Ino, generation: u32) -> u32 {
    csum_le32(csum_le32(sb.checksum_seed(), inode.0), generation)
}

/// The record of one inode: exactly as many bytes as the volume's inodes have.
fn whole<'a>(bytes: &'a [u8], sb: &Superblock) -> Result<&'a [u8], Corrupt> {
    let size = usize::from(sb.geometry.inode_size());
    bytes.get(..size).ok_or_else(|| CorruptKind::Truncated(STRUCTURE).into())
}

/// The checksum that the record should carry, and whether its high half has a field. `None` = record too
/// short.
fn checksum_of(bytes: &[u8], seed: u32, extra_isize: u16) -> Option<(u32, bool)> {
    const ZERO: [u8; 2] = [0; 2];
    if bytes.len() == USUAL_SIZE {
        let high = extra_isize >= CHECKSUM_HI_END;
        let fields: &[usize] = if high { &[CHECKSUM_LO, CHECKSUM_HI] } else { &[CHECKSUM_LO] };
        return Some((csum_without::<USUAL_SIZE>(seed, bytes, fields)?, high));
    }
    let mut sum = csum(seed, bytes.get(..CHECKSUM_LO)?);
    sum = csum(sum, &ZERO);
    sum = csum(sum, bytes.get(CHECKSUM_LO.saturating_add(2)..BASE_SIZE)?);
    if bytes.len() == BASE_SIZE {
        return Some((sum, false));
    }
    sum = csum(sum, bytes.get(BASE_SIZE..CHECKSUM_HI)?);
    if extra_isize < CHECKSUM_HI_END {
        return Some((csum(sum, bytes.get(CHECKSUM_HI..)?), false));
    }
    sum = csum(sum, &ZERO);
    Some((csum(sum, bytes.get(CHECKSUM_HI.saturating_add(2)..)?), true))
}

/// The part of a record that every inode has, and the one behind it.
fn split_record(bytes: &[u8]) -> Result<(&RawInode, Option<&RawExtra>), Corrupt> {
    let extra = match bytes.get(BASE_SIZE..) {
        Some(rest) if !rest.is_empty() => Some(record(rest, STRUCTURE)?),
        _ => None,
    };
    Ok((record(bytes, STRUCTURE)?, extra))
}

fn checksum_matches(
    bytes: &[u8],
    inode: Ino,
    raw: &RawInode,
    extra: Option<&RawExtra>,
    sb: &Superblock,
) -> bool {
    let extra_isize = extra.map_or(0, |extra| extra.extra_isize.get());
    let stored_high = extra.map_or(0, |extra| extra.checksum_hi.get());
    let seed = inode_checksum_seed(sb, inode, raw.generation.get());
    match checksum_of(bytes, seed, extra_isize) {
        Some((sum, true)) => sum == join16(raw.checksum_lo.get(), stored_high),
        Some((sum, false)) => low16(sum) == raw.checksum_lo.get(),
        None => false,
    }
}

/// The address of a fragment (`i_faddr`) in an inode's record, `None` if that is too short. Fragments were never
/// written, so it is 0 in every sound inode.
pub fn fragment_address(bytes: &[u8]) -> Option<u32> {
    le32_at(bytes, FRAGMENT)
}

/// The block of the passive translator of an inode, `None` if it has none: on volumes made for the Hurd alone.
pub fn translator_block(bytes: &[u8], sb: &Superblock) -> Option<Pblk> {
    let block = le32_at(bytes, TRANSLATOR).filter(|block| *block != 0 && for_hurd(sb))?;
    Some(Pblk(u64::from(block)))
}

fn for_hurd(sb: &Superblock) -> bool {
    sb.creator_os == CREATOR_HURD
}

/// Whether the attribute block's number has a high half.
fn wide_xattr_block(sb: &Superblock) -> bool {
    sb.features.incompat.contains(Incompat::BIT64) && !for_hurd(sb)
}

/// Whether the checksums of inodes count. The kernel neither checks nor keeps them up on other systems' volumes
/// (`ext4_inode_csum_verify`, `ext4_inode_csum_set`).
fn has_checksums(sb: &Superblock) -> bool {
    sb.features.metadata_csum() && sb.creator_os == CREATOR_LINUX
}

/// Checks the checksum of an inode's record, and nothing else of it: the other fields of a record not in use are what
/// was left there. Where the checksums of inodes do not count, any is right (see [`Inode::decode`]).
pub fn verify_inode_checksum(bytes: &[u8], inode: Ino, sb: &Superblock) -> Result<(), Corrupt> {
    let bytes = whole(bytes, sb)?;
    let (raw, extra) = split_record(bytes)?;
    if has_checksums(sb) && !checksum_matches(bytes, inode, raw, extra, sb) {
        return Err(Corrupt::from(CorruptKind::InodeChecksum).in_inode(inode));
    }
    Ok(())
}

/// Brings the checksum of an inode record up to date after its bytes (extended attributes, for instance) were
/// changed by other means than [`Inode::encode`]. Does nothing on volumes without metadata checksums, or that another
/// system made (see [`Inode::decode`]).
pub fn update_inode_checksum(bytes: &mut [u8], inode: Ino, sb: &Superblock) -> Result<(), EncodeError> {
    if !has_checksums(sb) {
        return Ok(());
    }
    let size = usize::from(sb.geometry.inode_size());
    let bytes = bytes.get_mut(..size).ok_or(EncodeError::too_short(STRUCTURE))?;
    let generation = record_mut::<RawInode>(bytes, STRUCTURE)?.generation.get();
    let extra_isize = match bytes.get_mut(BASE_SIZE..) {
        Some(extra) if !extra.is_empty() => record_mut::<RawExtra>(extra, STRUCTURE)?.extra_isize.get(),
        _ => 0,
    };
    let seed = inode_checksum_seed(sb, inode, generation);
    let (sum, high) = checksum_of(bytes, seed, extra_isize).ok_or(EncodeError::too_short(STRUCTURE))?;
    put(bytes, CHECKSUM_LO, &low16(sum).to_le_bytes(), STRUCTURE)?;
    if high {
        put(bytes, CHECKSUM_HI, &high16(sum).to_le_bytes(), STRUCTURE)?;
    }
    Ok(())
}

impl Inode {
    /// Decodes the record of `inode`; bounds are checked, and the checksum unless another system than Linux made the
    /// volume: the kernel leaves it alone there. `bytes` may go on after the record.
    ///
    /// As the kernel does, this accepts records not in use (mode 0) and unknown file types: what they mean
    /// is for the caller to decide.
    pub fn decode(bytes: &[u8], inode: Ino, sb: &Superblock) -> Result<Inode, Corrupt> {
        Self::decode_record(bytes, inode, sb, false).map_err(|fault| fault.in_inode(inode))
    }

    /// The same of a record that [`verify_inode_checksum`] has accepted.
    pub fn decode_known(bytes: &[u8], inode: Ino, sb: &Superblock) -> Result<Inode, Corrupt> {
        Self::decode_record(bytes, inode, sb, true).map_err(|fault| fault.in_inode(inode))
    }

    fn decode_record(bytes: &[u8], inode: Ino, sb: &Superblock, is_known: bool) -> Result<Inode, Corrupt> {
        if sb.geometry.group_of_inode(inode).is_none() {
            return Err(CorruptKind::InodeNumber.into());
        }
        let bytes = whole(bytes, sb)?;
        let (raw, extra) = split_record(bytes)?;
        // The extra size decides which bytes the checksum covers, so it is judged first.
        let extra_isize = extra.map_or(0, |extra| extra.extra_isize.get());
        let end = BASE_SIZE.saturating_add(usize::from(extra_isize));
        if end > bytes.len() || !extra_isize.is_multiple_of(4) {
            return Err(CorruptKind::InodeField("extra_isize").into());
        }
        if !is_known && has_checksums(sb) && !checksum_matches(bytes, inode, raw, extra, sb) {
            return Err(CorruptKind::InodeChecksum.into());
        }
        Inode::from_parts(raw, extra, extra_isize, sb)
    }

    fn from_parts(
        raw: &RawInode,
        extra: Option<&RawExtra>,
        extra_isize: u16,
        sb: &Superblock,
    ) -> Result<Inode, Corrupt> {
        // Fields that the record does not have read as absent.
        let has = |end: u16| extra.filter(|_| extra_isize >= end);
        let word = |end: u16, field: fn(&RawExtra) -> U32| has(end).map(|extra| field(extra).get());
        let mode = raw.mode.get();
        let size = size_of_file(raw, mode, sb)?;
        let xattr_block = xattr_block(raw, sb)?;
        let create_extra = word(CREATE_EXTRA_END, |extra| extra.create_extra);
        let version_hi = word(VERSION_HI_END, |extra| extra.version_hi).unwrap_or(0);
        Ok(Inode {
            mode,
            uid: join16(raw.uid_lo.get(), raw.uid_hi.get()),
            gid: join16(raw.gid_lo.get(), raw.gid_hi.get()),
            size,
            accessed: decode_time(raw.access.get(), word(ACCESS_EXTRA_END, |extra| extra.access_extra)),
            changed: decode_time(raw.change.get(), word(CHANGE_EXTRA_END, |extra| extra.change_extra)),
            modified: decode_time(raw.modify.get(), word(MODIFY_EXTRA_END, |extra| extra.modify_extra)),
            created: has(CREATE_END).map(|extra| decode_time(extra.create.get(), create_extra)),
            deleted: raw.delete.get(),
            links: raw.links.get(),
            blocks_raw: blocks_raw(raw, sb),
            flags: InodeFlags::from_bits_retain(raw.flags.get()),
            version: if for_hurd(sb) { 0 } else { join32(raw.version_lo.get(), version_hi) },
            i_block: raw.i_block,
            generation: raw.generation.get(),
            xattr_block,
            extra_isize,
            project: word(PROJECT_END, |extra| extra.project),
        })
    }

    /// Writes every field into the inode record at the start of `bytes` and brings its checksum up to date.
    ///
    /// Bytes after the extra fields (extended attributes) stay as they are and are covered by the checksum.
    pub fn encode(&self, bytes: &mut [u8], inode: Ino, sb: &Superblock) -> Result<(), EncodeError> {
        let size = usize::from(sb.geometry.inode_size());
        let bytes = bytes.get_mut(..size).ok_or(EncodeError::too_short(STRUCTURE))?;
        let end = BASE_SIZE.saturating_add(usize::from(self.extra_isize));
        if end > bytes.len() || !self.extra_isize.is_multiple_of(4) {
            return Err(EncodeError::new(STRUCTURE, "extra_isize"));
        }
        self.encode_base(record_mut(bytes, STRUCTURE)?, sb)?;
        match bytes.get_mut(BASE_SIZE..) {
            Some(extra) if !extra.is_empty() => self.encode_extra(record_mut(extra, STRUCTURE)?, sb)?,
            _ => {}
        }
        update_inode_checksum(bytes, inode, sb)
    }

    /// Whether the record has room for the size.
    pub fn has_room_for_size(&self, sb: &Superblock) -> bool {
        i64::try_from(self.size).is_ok() && (wide_size(self.mode, sb) || high32(self.size) == 0)
    }

    fn encode_base(&self, raw: &mut RawInode, sb: &Superblock) -> Result<(), EncodeError> {
        if !self.has_room_for_size(sb) {
            return Err(EncodeError::new(STRUCTURE, "size"));
        }
        raw.mode.set(self.mode);
        raw.uid_lo.set(low16(self.uid));
        raw.uid_hi.set(high16(self.uid));
        raw.gid_lo.set(low16(self.gid));
        raw.gid_hi.set(high16(self.gid));
        raw.size_lo.set(low32(self.size));
        // Without meaning for this kind of file the high half is left alone, so that decoding and encoding
        // keeps it.
        if wide_size(self.mode, sb) {
            raw.size_hi.set(high32(self.size));
        }
        raw.access.set(encode_time(self.accessed, self.extra_isize >= ACCESS_EXTRA_END, "accessed")?.0);
        raw.change.set(encode_time(self.changed, self.extra_isize >= CHANGE_EXTRA_END, "changed")?.0);
        raw.modify.set(encode_time(self.modified, self.extra_isize >= MODIFY_EXTRA_END, "modified")?.0);
        raw.delete.set(self.deleted);
        raw.links.set(self.links);
        self.encode_blocks(raw, sb)?;
        raw.flags.set(self.flags.bits());
        if !for_hurd(sb) {
            raw.version_lo.set(low32(self.version));
        }
        raw.i_block = self.i_block;
        raw.generation.set(self.generation);
        Ok(())
    }

    fn encode_blocks(&self, raw: &mut RawInode, sb: &Superblock) -> Result<(), EncodeError> {
        let blocks_hi = high32(self.blocks_raw);
        if sb.features.ro_compat.contains(RoCompat::HUGE_FILE) {
            raw.blocks_hi.set(u16::try_from(blocks_hi).map_err(|_| EncodeError::new(STRUCTURE, "blocks"))?);
        } else if blocks_hi != 0 {
            return Err(EncodeError::new(STRUCTURE, "blocks"));
        }
        raw.blocks_lo.set(low32(self.blocks_raw));
        let xattr_hi = high32(self.xattr_block.0);
        if wide_xattr_block(sb) {
            let half = u16::try_from(xattr_hi).map_err(|_| EncodeError::new(STRUCTURE, "xattr_block"))?;
            raw.xattr_block_hi.set(half);
        } else if xattr_hi != 0 {
            return Err(EncodeError::new(STRUCTURE, "xattr_block"));
        }
        raw.xattr_block_lo.set(low32(self.xattr_block.0));
        Ok(())
    }

    fn encode_extra(&self, raw: &mut RawExtra, sb: &Superblock) -> Result<(), EncodeError> {
        let has = |end: u16| self.extra_isize >= end;
        raw.extra_isize.set(self.extra_isize);
        if has(CHANGE_EXTRA_END) {
            raw.change_extra.set(encode_time(self.changed, true, "changed")?.1);
        }
        if has(MODIFY_EXTRA_END) {
            raw.modify_extra.set(encode_time(self.modified, true, "modified")?.1);
        }
        if has(ACCESS_EXTRA_END) {
            raw.access_extra.set(encode_time(self.accessed, true, "accessed")?.1);
        }
        if has(CREATE_END) {
            let created = self.created.unwrap_or_default();
            let (seconds, extra) = encode_time(created, has(CREATE_EXTRA_END), "created")?;
            raw.create.set(seconds);
            if has(CREATE_EXTRA_END) {
                raw.create_extra.set(extra);
            }
        } else if self.created.is_some() {
            return Err(EncodeError::new(STRUCTURE, "created"));
        }
        if for_hurd(sb) {
            // No part of the version is stored.
        } else if has(VERSION_HI_END) {
            raw.version_hi.set(high32(self.version));
        } else if high32(self.version) != 0 {
            return Err(EncodeError::new(STRUCTURE, "version"));
        }
        match self.project {
            Some(project) if has(PROJECT_END) => raw.project.set(project),
            Some(_) => return Err(EncodeError::new(STRUCTURE, "project")),
            None => {}
        }
        Ok(())
    }

    /// The file type in the mode, or `None` if it is none of the seven.
    pub fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(self.mode)
    }

    /// Permission bits with set-user-ID, set-group-ID and sticky: the low 12 bits of the mode.
    pub fn permissions(&self) -> u16 {
        self.mode & 0o7777
    }

    /// Space used in units of 512 bytes, as `stat` reports it.
    pub fn sectors(&self, sb: &Superblock) -> u64 {
        let huge =
            sb.features.ro_compat.contains(RoCompat::HUGE_FILE) && self.flags.contains(InodeFlags::HUGE_FILE);
        if huge {
            let per_block = u64::from(sb.geometry.block_size()).div_ceil(512);
            self.blocks_raw.saturating_mul(per_block)
        } else {
            self.blocks_raw
        }
    }

    /// Whether the blocks are mapped by an extent tree rooted in [`Inode::i_block`].
    pub fn uses_extents(&self) -> bool {
        self.flags.contains(InodeFlags::EXTENTS)
    }

    /// Whether the contents lie inside the inode record.
    pub fn has_inline_data(&self) -> bool {
        self.flags.contains(InodeFlags::INLINE_DATA)
    }

    /// The target of a symbolic link that is stored in [`Inode::i_block`], `None` for other files and long
    /// targets.
    ///
    /// Decided by size as e2fsprogs does: the kernel's test for "no blocks" would depend on what extended
    /// attributes are accounted to the inode. An encrypted target is returned as stored.
    pub fn short_link_target(&self) -> Option<&[u8]> {
        let elsewhere = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA;
        if self.file_type() != Some(FileType::Symlink) || self.flags.intersects(elsewhere) {
            return None;
        }
        let length = usize::try_from(self.size).ok().filter(|length| *length < I_BLOCK_SIZE)?;
        self.i_block.get(..length)
    }

    /// The device that a character or block device node stands for.
    pub fn device(&self) -> Option<DeviceNumber> {
        match self.file_type()? {
            FileType::CharDevice | FileType::BlockDevice => DeviceNumber::decode(&self.i_block),
            _ => None,
        }
    }

    /// The seed of this inode's checksums.
    pub fn checksum_seed(&self, inode: Ino, sb: &Superblock) -> u32 {
        inode_checksum_seed(sb, inode, self.generation)
    }

    /// Where in the inode record the extended attributes may be: after the extra fields, to the record's end.
    pub fn xattr_range(&self, sb: &Superblock) -> std::ops::Range<usize> {
        let end = usize::from(sb.geometry.inode_size());
        BASE_SIZE.saturating_add(usize::from(self.extra_isize)).min(end)..end
    }
}

fn wide_size(mode: u16, sb: &Superblock) -> bool {
    FileType::from_mode(mode) == Some(FileType::Regular) || sb.features.incompat.contains(Incompat::LARGEDIR)
}

fn size_of_file(raw: &RawInode, mode: u16, sb: &Superblock) -> Result<u64, Corrupt> {
    let high = if wide_size(mode, sb) { raw.size_hi.get() } else { 0 };
    let size = join32(raw.size_lo.get(), high);
    match i64::try_from(size) {
        Ok(_) => Ok(size),
        Err(_) => Err(CorruptKind::InodeField("size").into()),
    }
}

fn blocks_raw(raw: &RawInode, sb: &Superblock) -> u64 {
    let huge = sb.features.ro_compat.contains(RoCompat::HUGE_FILE);
    let high = if huge { u32::from(raw.blocks_hi.get()) } else { 0 };
    join32(raw.blocks_lo.get(), high)
}

fn xattr_block(raw: &RawInode, sb: &Superblock) -> Result<Pblk, Corrupt> {
    let high = if wide_xattr_block(sb) { u32::from(raw.xattr_block_hi.get()) } else { 0 };
    let block = Pblk(join32(raw.xattr_block_lo.get(), high));
    if block.0 != 0 && !sb.geometry.usable_blocks().contains(block, 1) {
        return Err(CorruptKind::InodeField("xattr_block").into());
    }
    Ok(block)
}
