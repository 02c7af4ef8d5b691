//! Group descriptors: where a group's bitmaps and inode table are, its free counts, and its checksums.

use std::ops::Range;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::superblock::Superblock;
use crate::bytes::{high16, high32, index, join16, join32, low16, low32, record, record_mut};
use crate::checksum::{CRC16_INIT, crc16, csum, csum_le32, csum_of_flips, csum_without};
use crate::error::{Corrupt, CorruptKind, EncodeError};
use crate::flags::named_flags;
use crate::numbers::{BlockRange, Group, Pblk};

const STRUCTURE: &str = "group descriptor";
/// Most bytes of a descriptor on usual volumes.
const USUAL_SIZE: usize = 64;
const CHECKSUM_OFFSET: usize = 30;
const CHECKSUM_END: usize = 32;
const HIGH_PART_SIZE: u16 = 64;

named_flags! {
    /// What of a group was never written (`bg_flags`). Ignored on volumes whose descriptors have no
    /// checksums.
    pub struct GroupFlags: u16, unknown "BG_FLAG_" {
        /// The inode bitmap and table were never written: no inode is in use.
        INODE_UNINIT = 0x1, "INODE_UNINIT";
        /// The block bitmap was never written: only the group's own metadata is in use.
        BLOCK_UNINIT = 0x2, "BLOCK_UNINIT";
        /// The inode table was written with zeros.
        INODE_ZEROED = 0x4, "ITABLE_ZEROED";
    }
}

/// The 32 bytes every descriptor has.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawLow {
    block_bitmap: U32,
    inode_bitmap: U32,
    inode_table: U32,
    free_blocks: U16,
    free_inodes: U16,
    used_dirs: U16,
    flags: U16,
    exclude_bitmap: U32,
    block_bitmap_csum: U16,
    inode_bitmap_csum: U16,
    unused_inodes: U16,
    checksum: U16,
}

/// The 32 bytes that follow on volumes with the `64bit` feature.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHigh {
    block_bitmap: U32,
    inode_bitmap: U32,
    inode_table: U32,
    free_blocks: U16,
    free_inodes: U16,
    used_dirs: U16,
    unused_inodes: U16,
    exclude_bitmap: U32,
    block_bitmap_csum: U16,
    inode_bitmap_csum: U16,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawFull {
    low: RawLow,
    high: RawHigh,
}

const _: () = assert!(size_of::<RawLow>() == 32 && size_of::<RawFull>() == 64);
const _: () = assert!(std::mem::offset_of!(RawLow, checksum) == CHECKSUM_OFFSET);

/// A decoded group descriptor (`struct ext4_group_desc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupDescriptor {
    /// Block of the block bitmap (`bg_block_bitmap`).
    pub block_bitmap: Pblk,
    /// Block of the inode bitmap (`bg_inode_bitmap`).
    pub inode_bitmap: Pblk,
    /// First block of the inode table (`bg_inode_table`).
    pub inode_table: Pblk,
    /// Free clusters (`bg_free_blocks_count`); a cluster is a block without `bigalloc`.
    pub free_clusters: u32,
    /// Free inodes (`bg_free_inodes_count`).
    pub free_inodes: u32,
    /// Directories (`bg_used_dirs_count`).
    pub used_dirs: u32,
    /// Inodes at the end of the table that were never used (`bg_itable_unused`).
    pub unused_inodes: u32,
    /// What was never written (`bg_flags`).
    pub flags: GroupFlags,
    /// Exclude bitmap of an experiment with snapshots (`bg_exclude_bitmap`), unused.
    pub exclude_bitmap: u64,
    /// Checksum of the block bitmap (`bg_block_bitmap_csum`); only 16 bits in a 32-byte descriptor.
    pub block_bitmap_csum: u32,
    /// Checksum of the inode bitmap (`bg_inode_bitmap_csum`); only 16 bits in a 32-byte descriptor.
    pub inode_bitmap_csum: u32,
}

/// The record of one group: exactly as many bytes as the volume's descriptors have.
fn whole<'a>(bytes: &'a [u8], sb: &Superblock) -> Result<&'a [u8], Corrupt> {
    let size = usize::from(sb.geometry.desc_size());
    bytes.get(..size).ok_or_else(|| CorruptKind::Truncated(STRUCTURE).into())
}

/// The checksum that the descriptor should carry, or `None` on volumes whose descriptors have none.
fn checksum_of(bytes: &[u8], group: Group, sb: &Superblock) -> Option<u16> {
    let before = bytes.get(..CHECKSUM_OFFSET)?;
    let after = bytes.get(CHECKSUM_END..).unwrap_or_default();
    if sb.features.metadata_csum() {
        let seed = csum_le32(sb.checksum_seed(), group.0);
        let usual = csum_without::<USUAL_SIZE>(seed, bytes, &[CHECKSUM_OFFSET]);
        let sum = usual.unwrap_or_else(|| csum(csum(csum(seed, before), &[0, 0]), after));
        Some(low16(sum))
    } else if sb.features.gdt_csum() {
        let seed = crc16(crc16(CRC16_INIT, &sb.uuid), &group.0.to_le_bytes());
        Some(crc16(crc16(seed, before), after))
    } else {
        None
    }
}

impl GroupDescriptor {
    /// Decodes the descriptor of `group`; checksum and locations are checked.
    ///
    /// `bytes` starts at the descriptor ([`super::Geometry::descriptor_position`]) and may go on after it.
    pub fn decode(bytes: &[u8], group: Group, sb: &Superblock) -> Result<GroupDescriptor, Corrupt> {
        let place = |fault: Corrupt| fault.in_group(group);
        let bytes = whole(bytes, sb).map_err(place)?;
        let low: &RawLow = record(bytes, STRUCTURE).map_err(place)?;
        if checksum_of(bytes, group, sb).is_some_and(|sum| sum != low.checksum.get()) {
            return Err(Corrupt::new(CorruptKind::GroupDescriptorChecksum).in_group(group));
        }
        GroupDescriptor::decode_unverified(bytes, group, sb)
    }

    /// The same whatever the checksum says: for reading what is readable of a damaged volume. Nothing of it is to be
    /// trusted; its locations are possible ones.
    pub fn decode_unverified(
        bytes: &[u8],
        group: Group,
        sb: &Superblock,
    ) -> Result<GroupDescriptor, Corrupt> {
        let descriptor = GroupDescriptor::decode_known(bytes, group, sb)?;
        descriptor.check_locations(group, sb).map_err(|fault| fault.in_group(group))?;
        Ok(descriptor)
    }

    /// The same of a descriptor that [`GroupDescriptor::decode`] has accepted, and whose locations are as they were.
    pub fn decode_known(bytes: &[u8], group: Group, sb: &Superblock) -> Result<GroupDescriptor, Corrupt> {
        let fault = |fault: Corrupt| fault.in_group(group);
        let bytes = whole(bytes, sb).map_err(fault)?;
        let low: &RawLow = record(bytes, STRUCTURE).map_err(fault)?;
        let high = if sb.geometry.desc_size() >= HIGH_PART_SIZE {
            Some(&record::<RawFull>(bytes, STRUCTURE).map_err(fault)?.high)
        } else {
            None
        };
        Ok(GroupDescriptor::from_halves(low, high))
    }

    fn from_halves(low: &RawLow, high: Option<&RawHigh>) -> GroupDescriptor {
        let wide = |low: U32, high: Option<U32>| join32(low.get(), high.map_or(0, U32::get));
        let count = |low: U16, high: Option<U16>| join16(low.get(), high.map_or(0, U16::get));
        GroupDescriptor {
            block_bitmap: Pblk(wide(low.block_bitmap, high.map(|high| high.block_bitmap))),
            inode_bitmap: Pblk(wide(low.inode_bitmap, high.map(|high| high.inode_bitmap))),
            inode_table: Pblk(wide(low.inode_table, high.map(|high| high.inode_table))),
            free_clusters: count(low.free_blocks, high.map(|high| high.free_blocks)),
            free_inodes: count(low.free_inodes, high.map(|high| high.free_inodes)),
            used_dirs: count(low.used_dirs, high.map(|high| high.used_dirs)),
            unused_inodes: count(low.unused_inodes, high.map(|high| high.unused_inodes)),
            flags: GroupFlags::from_bits_retain(low.flags.get()),
            exclude_bitmap: wide(low.exclude_bitmap, high.map(|high| high.exclude_bitmap)),
            block_bitmap_csum: count(low.block_bitmap_csum, high.map(|high| high.block_bitmap_csum)),
            inode_bitmap_csum: count(low.inode_bitmap_csum, high.map(|high| high.inode_bitmap_csum)),
        }
    }

    /// The kernel's rules: inside the group (with `flex_bg`, inside the volume), clear of superblock and
    /// descriptors.
    fn check_locations(&self, group: Group, sb: &Superblock) -> Result<(), Corrupt> {
        let geometry = &sb.geometry;
        let allowed =
            match (geometry.flex_bg(), geometry.group_first_block(group), geometry.group_blocks(group)) {
                (_, None, _) | (_, _, None) => {
                    return Err(CorruptKind::GroupDescriptorField("group number").into());
                }
                (true, ..) => geometry.usable_blocks(),
                (false, Some(first), Some(blocks)) => {
                    BlockRange { first, end: Pblk(first.0.saturating_add(u64::from(blocks))) }
                }
            };
        let (superblock, _) = geometry.superblock_position();
        let descriptors = u64::from(geometry.descriptor_blocks_in(Group(0)));
        let primary = BlockRange {
            first: superblock,
            end: Pblk(superblock.0.saturating_add(descriptors).saturating_add(1)),
        };
        let areas = [
            ("block_bitmap", self.block_bitmap, 1),
            ("inode_bitmap", self.inode_bitmap, 1),
            ("inode_table", self.inode_table, u64::from(geometry.inode_table_blocks())),
        ];
        for (name, start, count) in areas {
            if !allowed.contains(start, count) || primary.overlaps(start, count) {
                return Err(CorruptKind::GroupDescriptorField(name).into());
            }
        }
        Ok(())
    }

    /// Whether the inode bitmap and table were never written, so that no inode of the group is in use.
    ///
    /// The flag has a meaning only on volumes whose descriptors have checksums.
    pub fn inodes_uninitialised(&self, sb: &Superblock) -> bool {
        has_checksums(sb) && self.flags.contains(GroupFlags::INODE_UNINIT)
    }

    /// Whether the block bitmap was never written, so that only the group's own metadata is in use.
    ///
    /// The flag has a meaning only on volumes whose descriptors have checksums.
    pub fn blocks_uninitialised(&self, sb: &Superblock) -> bool {
        has_checksums(sb) && self.flags.contains(GroupFlags::BLOCK_UNINIT)
    }

    /// Inodes at the start of the table that may be in use; those after were never written and may hold
    /// anything.
    pub fn initialised_inodes(&self, sb: &Superblock) -> u32 {
        let all = sb.geometry.inodes_per_group();
        if self.inodes_uninitialised(sb) {
            0
        } else if has_checksums(sb) {
            all.saturating_sub(self.unused_inodes)
        } else {
            all
        }
    }

    /// Writes the descriptor of `group` into the start of `bytes` and brings its checksum up to date.
    pub fn encode(&self, bytes: &mut [u8], group: Group, sb: &Superblock) -> Result<(), EncodeError> {
        let size = usize::from(sb.geometry.desc_size());
        let bytes = bytes.get_mut(..size).ok_or(EncodeError::too_short(STRUCTURE))?;
        if sb.geometry.desc_size() >= HIGH_PART_SIZE {
            let raw: &mut RawFull = record_mut(bytes, STRUCTURE)?;
            self.put_low(&mut raw.low);
            self.put_high(&mut raw.high);
        } else {
            self.check_narrow()?;
            self.put_low(record_mut(bytes, STRUCTURE)?);
        }
        if let Some(sum) = checksum_of(bytes, group, sb) {
            record_mut::<RawLow>(bytes, STRUCTURE)?.checksum.set(sum);
        }
        Ok(())
    }

    /// Refuses what [`GroupDescriptor::encode`] refuses of a record that is long enough.
    pub fn check_fits(&self, sb: &Superblock) -> Result<(), EncodeError> {
        if sb.geometry.desc_size() >= HIGH_PART_SIZE { Ok(()) } else { self.check_narrow() }
    }

    /// Whether all values fit a 32-byte descriptor. Bitmap checksums are cut there, as the format says.
    fn check_narrow(&self) -> Result<(), EncodeError> {
        let blocks = [
            ("block_bitmap", self.block_bitmap.0),
            ("inode_bitmap", self.inode_bitmap.0),
            ("inode_table", self.inode_table.0),
            ("exclude_bitmap", self.exclude_bitmap),
        ];
        let counts = [
            ("free_clusters", self.free_clusters),
            ("free_inodes", self.free_inodes),
            ("used_dirs", self.used_dirs),
            ("unused_inodes", self.unused_inodes),
        ];
        let wide_block = blocks.iter().find(|(_, value)| high32(*value) != 0).map(|(name, _)| *name);
        let wide_count = counts.iter().find(|(_, value)| high16(*value) != 0).map(|(name, _)| *name);
        match wide_block.or(wide_count) {
            Some(name) => Err(EncodeError::new(STRUCTURE, name)),
            None => Ok(()),
        }
    }

    fn put_low(&self, raw: &mut RawLow) {
        raw.block_bitmap.set(low32(self.block_bitmap.0));
        raw.inode_bitmap.set(low32(self.inode_bitmap.0));
        raw.inode_table.set(low32(self.inode_table.0));
        raw.free_blocks.set(low16(self.free_clusters));
        raw.free_inodes.set(low16(self.free_inodes));
        raw.used_dirs.set(low16(self.used_dirs));
        raw.unused_inodes.set(low16(self.unused_inodes));
        raw.flags.set(self.flags.bits());
        raw.exclude_bitmap.set(low32(self.exclude_bitmap));
        raw.block_bitmap_csum.set(low16(self.block_bitmap_csum));
        raw.inode_bitmap_csum.set(low16(self.inode_bitmap_csum));
    }

    fn put_high(&self, raw: &mut RawHigh) {
        raw.block_bitmap.set(high32(self.block_bitmap.0));
        raw.inode_bitmap.set(high32(self.inode_bitmap.0));
        raw.inode_table.set(high32(self.inode_table.0));
        raw.free_blocks.set(high16(self.free_clusters));
        raw.free_inodes.set(high16(self.free_inodes));
        raw.used_dirs.set(high16(self.used_dirs));
        raw.unused_inodes.set(high16(self.unused_inodes));
        raw.exclude_bitmap.set(high32(self.exclude_bitmap));
        raw.block_bitmap_csum.set(high16(self.block_bitmap_csum));
        raw.inode_bitmap_csum.set(high16(self.inode_bitmap_csum));
    }

    /// Checks the block bitmap of `group` against this descriptor. `bitmap` is the whole bitmap block.
    ///
    /// With [`GroupDescriptor::blocks_uninitialised`] there are no contents to check: do not read the bitmap.
    pub fn verify_block_bitmap(&self, bitmap: &[u8], group: Group, sb: &Superblock) -> Result<(), Corrupt> {
        let place = |kind: CorruptKind| Corrupt::new(kind).in_group(group).at_block(self.block_bitmap);
        match block_bitmap_csum(bitmap, sb) {
            None => Err(place(CorruptKind::Truncated("block bitmap"))),
            Some(sum) if same_sum(self.block_bitmap_csum, sum, sb) => Ok(()),
            Some(_) => Err(place(CorruptKind::BlockBitmapChecksum)),
        }
    }

    /// Checks the inode bitmap of `group` against this descriptor. `bitmap` is the whole bitmap block.
    ///
    /// With [`GroupDescriptor::inodes_uninitialised`] there are no contents to check: do not read the bitmap.
    pub fn verify_inode_bitmap(&self, bitmap: &[u8], group: Group, sb: &Superblock) -> Result<(), Corrupt> {
        let place = |kind: CorruptKind| Corrupt::new(kind).in_group(group).at_block(self.inode_bitmap);
        match inode_bitmap_csum(bitmap, sb) {
            None => Err(place(CorruptKind::Truncated("inode bitmap"))),
            Some(sum) if same_sum(self.inode_bitmap_csum, sum, sb) => Ok(()),
            Some(_) => Err(place(CorruptKind::InodeBitmapChecksum)),
        }
    }

    /// Takes over the checksum of a changed block bitmap. The descriptor must be encoded afterwards.
    pub fn set_block_bitmap_csum(&mut self, bitmap: &[u8], sb: &Superblock) -> Result<(), EncodeError> {
        let sum = block_bitmap_csum(bitmap, sb).ok_or(EncodeError::too_short("block bitmap"))?;
        if sb.features.metadata_csum() {
            self.block_bitmap_csum = sum;
        }
        Ok(())
    }

    /// The same if only these bits have changed, all of them, and the checksum was right before.
    pub fn flip_block_bitmap_csum(
        &mut self,
        bitmap: &[u8],
        bits: Range<u32>,
        sb: &Superblock,
    ) -> Result<(), EncodeError> {
        match flipped_csum(&bits, sb.geometry.clusters_per_group()) {
            None => self.set_block_bitmap_csum(bitmap, sb),
            Some(change) if sb.features.metadata_csum() => {
                self.block_bitmap_csum ^= change;
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }

    /// The same of the inode bitmap.
    pub fn flip_inode_bitmap_csum(
        &mut self,
        bitmap: &[u8],
        bits: Range<u32>,
        sb: &Superblock,
    ) -> Result<(), EncodeError> {
        match flipped_csum(&bits, sb.geometry.inodes_per_group()) {
            None => self.set_inode_bitmap_csum(bitmap, sb),
            Some(change) if sb.features.metadata_csum() => {
                self.inode_bitmap_csum ^= change;
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }

    /// Takes over the checksum of a changed inode bitmap. The descriptor must be encoded afterwards.
    pub fn set_inode_bitmap_csum(&mut self, bitmap: &[u8], sb: &Superblock) -> Result<(), EncodeError> {
        let sum = inode_bitmap_csum(bitmap, sb).ok_or(EncodeError::too_short("inode bitmap"))?;
        if sb.features.metadata_csum() {
            self.inode_bitmap_csum = sum;
        }
        Ok(())
    }
}

/// Most bytes whose change is summed alone: a tenth of a bitmap costs less than all of it.
const FLIPS: usize = 384;

/// How the checksum of a bitmap changes when these bits are flipped. `None` if they are many, or not all covered.
fn flipped_csum(bits: &Range<u32>, covered: u32) -> Option<u32> {
    let (first, end) = (bits.start.checked_div(8)?, bits.end.div_ceil(8));
    let covered = covered.checked_div(8)?;
    let mut flips = [0_u8; FLIPS];
    let flips = flips.get_mut(..index(end.checked_sub(first)?))?;
    flips.fill(!0);
    if let Some(head) = flips.first_mut() {
        *head &= !0 << (bits.start & 7);
    }
    if let Some(tail) = flips.last_mut().filter(|_| bits.end & 7 != 0) {
        *tail &= !(!0 << (bits.end & 7));
    }
    Some(csum_of_flips(flips, index(covered.checked_sub(end)?)))
}

fn has_checksums(sb: &Superblock) -> bool {
    sb.features.metadata_csum() || sb.features.gdt_csum()
}

fn same_sum(stored: u32, computed: u32, sb: &Superblock) -> bool {
    if !sb.features.metadata_csum() {
        return true;
    }
    if sb.geometry.desc_size() >= HIGH_PART_SIZE {
        stored == computed
    } else {
        low16(stored) == low16(computed)
    }
}

fn block_bitmap_csum(bitmap: &[u8], sb: &Superblock) -> Option<u32> {
    bitmap_csum(bitmap, sb.geometry.clusters_per_group(), sb)
}

fn inode_bitmap_csum(bitmap: &[u8], sb: &Superblock) -> Option<u32> {
    bitmap_csum(bitmap, sb.geometry.inodes_per_group(), sb)
}

/// Covers as many whole bytes as a full group uses, in every group.
fn bitmap_csum(bitmap: &[u8], bits: u32, sb: &Superblock) -> Option<u32> {
    let used = bitmap.get(..index(bits.checked_div(8)?))?;
    Some(csum(sb.checksum_seed(), used))
}
