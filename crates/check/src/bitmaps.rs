//! Pass 5: compares bitmaps and counts with the blocks and inodes found in use.

use crate::bits::{Bits, low_mask};
use crate::kinds;
use crate::read::Reader;
use crate::report::{Findings, Kind};
use crate::shared::{FREE, Shared};
use uext4::Result;
use uext4_ondisk::ext4::{FileType, GroupDescriptor};
use uext4_ondisk::{Group, Pblk, Place};

/// Bitmaps of a flex group are adjacent: this many are read with the first.
const AHEAD: u64 = 31;

/// A worker's findings.
pub(crate) struct GroupScanner<'s, 'd> {
    shared: &'s Shared<'d>,
    blocks: Reader<'d>,
    inodes: Reader<'d>,
    pub findings: Findings,
    pub used_clusters: u64,
    pub free_clusters: u64,
    pub free_inodes: u64,
}

/// Differences between a bitmap and what was found.
#[derive(Default)]
struct Differences {
    /// In use, but free in the bitmap: how many, and the first.
    free: (u64, Option<u64>),
    /// Not in use, but not free in the bitmap.
    leaked: (u64, Option<u64>),
}

impl Differences {
    fn word(&mut self, first: u64, found: u64, bitmap: u64) {
        for (side, bits) in [(&mut self.free, found & !bitmap), (&mut self.leaked, bitmap & !found)] {
            if bits != 0 {
                side.0 += u64::from(bits.count_ones());
                side.1.get_or_insert(first + u64::from(bits.trailing_zeros()));
            }
        }
    }

    fn tell(&self, place: Place, what: [&'static Kind; 2], name: &str, findings: &mut Findings) {
        for ((count, first), kind) in [self.free, self.leaked].into_iter().zip(what) {
            if let Some(first) = first {
                findings.add(kind, place, format_args!("{count} {name}, the first is {first}"));
            }
        }
    }
}

/// 64 bits of a bitmap block; `None` past its end.
fn word_at(bitmap: &[u8], bit: u64) -> Option<u64> {
    let start = (bit / 8) as usize;
    bitmap.get(start..start + 8)?.first_chunk().copied().map(u64::from_le_bytes)
}

/// Whether all bits of a bitmap block from `first` on are set.
fn padded(bitmap: &[u8], first: u64) -> bool {
    let (byte, bit) = ((first / 8) as usize, first % 8);
    let Some((head, rest)) = bitmap.get(byte..).and_then(<[u8]>::split_first) else { return true };
    let mask = 0xff_u8 << bit;
    head & mask == mask && rest.iter().all(|byte| *byte == 0xff)
}

impl<'s, 'd> GroupScanner<'s, 'd> {
    pub(crate) fn new(shared: &'s Shared<'d>) -> Result<Self> {
        let bytes = (AHEAD as usize + 1) * shared.sb.geometry.block_size().min(8192) as usize;
        Ok(GroupScanner {
            shared,
            blocks: shared.reader_of(bytes)?,
            inodes: shared.reader_of(bytes)?,
            findings: Findings::new(shared.cap),
            used_clusters: 0,
            free_clusters: 0,
            free_inodes: 0,
        })
    }

    pub(crate) fn group(&mut self, group: Group) -> Result<()> {
        let shared = self.shared;
        let Some(descriptor) = shared.groups[group.get() as usize] else {
            self.findings.not_examined("bitmaps of a group", "its descriptor is damaged");
            return Ok(());
        };
        self.block_bitmap(group, &descriptor)?;
        self.inode_bitmap(group, &descriptor)
    }

    fn block_bitmap(&mut self, group: Group, descriptor: &GroupDescriptor) -> Result<()> {
        let (shared, sb) = (self.shared, self.shared.sb);
        let clusters = u64::from(sb.geometry.group_clusters(group).unwrap_or(0));
        let first = u64::from(group.get()) * u64::from(sb.geometry.clusters_per_group());
        let used = count(&shared.used, first, clusters);
        self.used_clusters += used;
        self.free_clusters += clusters - used;
        let place = Place { group: Some(group), ..Place::default() };
        if u64::from(descriptor.free_clusters) != clusters - used {
            let text = format_args!("counts {}, found {}", descriptor.free_clusters, clusters - used);
            self.findings.add(&kinds::GROUP_FREE_BLOCKS, place, text);
        }
        if descriptor.blocks_uninitialised(sb) {
            // There is no bitmap: only the group's own metadata may be in use.
            let own = count(&shared.system, first, clusters);
            if own != used {
                let text = format_args!("{} blocks are in use", used.saturating_sub(own));
                self.findings.add(&kinds::GROUP_UNINIT, place, text);
            }
            return Ok(());
        }
        let place = Place { block: Some(descriptor.block_bitmap), ..place };
        let bitmap = self.blocks.block(descriptor.block_bitmap.get(), AHEAD)?;
        if let Err(fault) = descriptor.verify_block_bitmap(bitmap, group, sb) {
            self.findings.corrupt(&kinds::BLOCK_BITMAP_CHECKSUM, place, &fault);
        }
        if !padded(bitmap, clusters) {
            let text = format_args!("bits from {clusters} on must be set");
            self.findings.add(&kinds::BLOCK_BITMAP_PADDING, place, text);
        }
        let mut differences = Differences::default();
        for bit in (0..clusters).step_by(64) {
            let mask = low_mask(clusters - bit);
            let found = shared.used.word(first + bit) & mask;
            let bitmap = word_at(bitmap, bit).unwrap_or_default() & mask;
            if found != bitmap {
                differences.word(first + bit, found, bitmap);
            }
        }
        let to_block = |cluster: &mut Option<u64>| *cluster = cluster.map(|cluster| shared.block_of(cluster));
        to_block(&mut differences.free.1);
        to_block(&mut differences.leaked.1);
        let what = [&kinds::BLOCK_BITMAP_FREE, &kinds::BLOCK_BITMAP_LEAKED];
        let name = if sb.geometry.cluster_log() == 0 { "blocks" } else { "clusters" };
        differences.tell(place, what, name, &mut self.findings);
        Ok(())
    }

    fn inode_bitmap(&mut self, group: Group, descriptor: &GroupDescriptor) -> Result<()> {
        let (shared, sb) = (self.shared, self.shared.sb);
        let all = sb.geometry.inodes_per_group();
        let slots = shared.inodes.group(group.get()).unwrap_or_default();
        let used = slots.iter().filter(|slot| slot.kind() != FREE).count() as u32;
        let directories =
            slots.iter().filter(|slot| slot.file_type() == Some(FileType::Directory)).count() as u32;
        self.free_inodes += u64::from(all - used);
        let place = Place { group: Some(group), ..Place::default() };
        if descriptor.free_inodes != all - used {
            let text = format_args!("counts {}, found {}", descriptor.free_inodes, all - used);
            self.findings.add(&kinds::GROUP_FREE_INODES, place, text);
        }
        if descriptor.used_dirs != directories {
            let text = format_args!("counts {}, found {directories}", descriptor.used_dirs);
            self.findings.add(&kinds::GROUP_DIRECTORIES, place, text);
        }
        if descriptor.inodes_uninitialised(sb) {
            return Ok(());
        }
        let place = Place { block: Some(descriptor.inode_bitmap), ..place };
        let bitmap = self.inodes.block(descriptor.inode_bitmap.get(), AHEAD)?;
        if let Err(fault) = descriptor.verify_inode_bitmap(bitmap, group, sb) {
            self.findings.corrupt(&kinds::INODE_BITMAP_CHECKSUM, place, &fault);
        }
        if !padded(bitmap, u64::from(all)) {
            let text = format_args!("bits from {all} on must be set");
            self.findings.add(&kinds::INODE_BITMAP_PADDING, place, text);
        }
        let mut differences = Differences::default();
        let first = u64::from(group.get()) * u64::from(all) + 1;
        for bit in (0..u64::from(all)).step_by(64) {
            let mask = low_mask(u64::from(all) - bit);
            let mut found = 0;
            for (index, slot) in slots.iter().skip(bit as usize).take(64).enumerate() {
                found |= u64::from(slot.kind() != FREE) << index;
            }
            let bitmap = word_at(bitmap, bit).unwrap_or_default() & mask;
            if found & mask != bitmap {
                differences.word(first + bit, found & mask, bitmap);
            }
        }
        let what = [&kinds::INODE_BITMAP_FREE, &kinds::INODE_BITMAP_LEAKED];
        differences.tell(place, what, "inodes", &mut self.findings);
        Ok(())
    }
}

fn count(bits: &Bits, first: u64, length: u64) -> u64 {
    bits.overlap(first, length).map_or(0, |(_, count)| count)
}

/// The superblock's counts.
pub(crate) fn check_totals(shared: &Shared<'_>, clusters: u64, inodes: u64, findings: &mut Findings) {
    let sb = shared.sb;
    let blocks = clusters << sb.geometry.cluster_log();
    let (superblock, _) = sb.geometry.superblock_position();
    let place = Place { block: Some(Pblk(superblock.get())), ..Place::default() };
    if sb.free_blocks != blocks {
        let text = format_args!("counts {}, found {blocks}", sb.free_blocks);
        findings.add(&kinds::SUPER_FREE_BLOCKS, place, text);
    }
    if u64::from(sb.free_inodes) != inodes {
        let text = format_args!("counts {}, found {inodes}", sb.free_inodes);
        findings.add(&kinds::SUPER_FREE_INODES, place, text);
    }
}
