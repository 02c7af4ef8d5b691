//! Makes every checksum right for the bytes as they are now, so that a change is judged by what it says.

use super::bytes::{Order, be32, crc16, crc32c, le16, le32, put};
use super::geometry::{SUPERBLOCK, feature, seed};
use super::journal::{INCOMPAT_CSUM_V2, INCOMPAT_CSUM_V3};
use super::layout::{Kind, Layout, Site};

/// Repairs all checksums of a volume that had this layout before it was changed. What no longer has a place for a
/// checksum keeps what it has.
pub fn repair(image: &mut [u8], layout: &Layout) {
    repair_fast_commits(image, layout);
    repair_log(image, layout);
    let features = le32(image, SUPERBLOCK + 0x64);
    let checksums = layout.geometry.checksums() || features & feature::RO_METADATA_CSUM != 0;
    // Inside out: bitmaps are summed in descriptors, and nothing but its own sum depends on the superblock's.
    if checksums {
        for site in layout.sites.iter().filter(|site| site.kind != Kind::Descriptor) {
            repair_site(image, layout, site);
        }
    }
    for site in layout.of_kind(Kind::Descriptor) {
        repair_descriptor(image, layout, site, checksums);
    }
    if checksums && let Some(superblock) = image.get_mut(SUPERBLOCK..SUPERBLOCK + 1024) {
        let sum = crc32c(!0, &superblock[..0x3fc]);
        put32(superblock, 0x3fc, sum);
    }
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, 4, Order::Little, value.into());
}

fn put_be32(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, 4, Order::Big, value.into());
}

/// What the checksums of an inode and its blocks start with.
fn inode_seed(image: &[u8], layout: &Layout, number: u64) -> u32 {
    let at = layout.inodes.get(number as usize).copied().unwrap_or(0);
    let start = crc32c(seed(image), &(number as u32).to_le_bytes());
    crc32c(start, &(le32(image, at + 0x64) as u32).to_le_bytes())
}

fn repair_site(image: &mut [u8], layout: &Layout, site: &Site) {
    let start = seed(image);
    let own = inode_seed(image, layout, site.owner);
    let Some(bytes) = image.get_mut(site.at..site.at + site.length) else { return };
    let end = bytes.len();
    match site.kind {
        Kind::Inode => repair_inode(bytes, own),
        Kind::ExtentNode => {
            let tail = 12 + 12 * le16(bytes, 4) as usize;
            if tail + 4 <= end {
                put32(bytes, tail, crc32c(own, &bytes[..tail]));
            }
        }
        Kind::DirLeaf => put32(bytes, end - 4, crc32c(own, &bytes[..end - 12])),
        Kind::HtreeRoot => repair_htree(bytes, own, 32),
        Kind::HtreeNode => repair_htree(bytes, own, 8),
        Kind::Xattrs => {
            put32(bytes, 0x10, 0);
            let sum = crc32c(crc32c(start, &site.block.to_le_bytes()), bytes);
            put32(bytes, 0x10, sum);
        }
        Kind::Orphans => {
            let sum = crc32c(crc32c(own, &site.block.to_le_bytes()), &bytes[..end - 8]);
            put32(bytes, end - 4, sum);
        }
        Kind::Mmp => put32(bytes, 1020, crc32c(start, &bytes[..1020])),
        Kind::BlockBitmap | Kind::InodeBitmap => {
            let (bits, low, high, unused) = if site.kind == Kind::BlockBitmap {
                (layout.geometry.clusters, 0x18, 0x38, 2)
            } else {
                (layout.geometry.inodes_per_group, 0x1a, 0x3a, 1)
            };
            let sum = crc32c(start, &bytes[..(bits as usize / 8).min(end)]);
            let at = layout.of_kind(Kind::Descriptor).iter().find(|of| of.owner == site.owner);
            let Some(at) = at.map(|of| of.at) else { return };
            // The bitmap of a group that was never used is not looked at.
            if le16(image, at + 0x12) & unused != 0 {
                return;
            }
            put(image, at + low, 2, Order::Little, (sum & 0xffff).into());
            if layout.geometry.descriptor >= 64 {
                put(image, at + high, 2, Order::Little, (sum >> 16).into());
            }
        }
        _ => {}
    }
}

fn repair_inode(bytes: &mut [u8], own: u32) {
    let has_high = bytes.len() > 128 && le16(bytes, 0x80) >= 4;
    put(bytes, 0x7c, 2, Order::Little, 0);
    if has_high {
        put(bytes, 0x82, 2, Order::Little, 0);
    }
    let sum = crc32c(own, bytes);
    put(bytes, 0x7c, 2, Order::Little, (sum & 0xffff).into());
    if has_high {
        put(bytes, 0x82, 2, Order::Little, (sum >> 16).into());
    }
}

/// `limits` is the byte of limit and count, which stand where the first hash would.
fn repair_htree(bytes: &mut [u8], own: u32, limits: usize) {
    let (limit, count) = (le16(bytes, limits) as usize, le16(bytes, limits + 2) as usize);
    let (tail, used) = (limits + 8 * limit, limits + 8 * count);
    if tail + 8 > bytes.len() || used > bytes.len() {
        return;
    }
    let sum = crc32c(own, &bytes[..used]);
    let sum = crc32c(crc32c(sum, &bytes[tail..tail + 4]), &[0; 4]);
    put32(bytes, tail + 4, sum);
}

fn repair_descriptor(image: &mut [u8], layout: &Layout, site: &Site, checksums: bool) {
    let start = seed(image);
    let uuid: Vec<u8> = image.get(SUPERBLOCK + 0x68..SUPERBLOCK + 0x78).unwrap_or_default().to_vec();
    let old_sums = le32(image, SUPERBLOCK + 0x64) & feature::RO_GDT_CSUM != 0;
    let Some(bytes) = image.get_mut(site.at..site.at + layout.geometry.descriptor) else { return };
    let group = (site.owner as u32).to_le_bytes();
    if checksums {
        put(bytes, 0x1e, 2, Order::Little, 0);
        let sum = crc32c(crc32c(start, &group), bytes);
        put(bytes, 0x1e, 2, Order::Little, (sum & 0xffff).into());
    } else if old_sums {
        let sum = crc16(crc16(crc16(!0, &uuid), &group), &bytes[..0x1e]);
        put(bytes, 0x1e, 2, Order::Little, crc16(sum, &bytes[0x20..]).into());
    }
}

fn repair_log(image: &mut [u8], layout: &Layout) {
    let Some(superblock) = layout.log.superblock else { return };
    let incompat = be32(image, superblock + 0x28);
    let Some(bytes) = image.get_mut(superblock..superblock + 1024) else { return };
    if incompat & (INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3) == 0 {
        return;
    }
    put_be32(bytes, 0xfc, 0);
    let sum = crc32c(!0, bytes);
    put_be32(bytes, 0xfc, sum);
    let own = crc32c(!0, &bytes[0x30..0x40]);
    let size = layout.geometry.block;
    for tag in &layout.log.tags {
        let sequence = image.get(tag.descriptor + 8..tag.descriptor + 12).unwrap_or_default();
        let Some(data) = image.get(tag.data..tag.data + size) else { continue };
        let sum = crc32c(crc32c(own, sequence), data);
        if incompat & INCOMPAT_CSUM_V3 != 0 {
            put_be32(image, tag.at + 12, sum);
        } else {
            put(image, tag.at + 4, 2, Order::Big, (sum & 0xffff).into());
        }
    }
    for (kind, at) in
        [(Kind::JournalDescriptor, size - 4), (Kind::JournalRevoke, size - 4), (Kind::JournalCommit, 0x10)]
    {
        for site in layout.of_kind(kind) {
            let Some(bytes) = image.get_mut(site.at..site.at + size) else { continue };
            put_be32(bytes, at, 0);
            let sum = crc32c(own, bytes);
            put_be32(bytes, at, sum);
        }
    }
}

const FC_PAD: u64 = 7;
const FC_TAIL: u64 = 8;

/// Tags and lengths of the fast-commit area; a tail sums everything since the tail before it.
fn repair_fast_commits(image: &mut [u8], layout: &Layout) {
    let mut sum = 0;
    for &at in &layout.log.fast {
        let Some(block) = image.get_mut(at..at + layout.geometry.block) else { continue };
        let mut pos = 0;
        while pos + 4 <= block.len() {
            let (tag, length) = (le16(block, pos), le16(block, pos + 2) as usize);
            let end = pos + 4 + length;
            if tag == 0 || end > block.len() {
                break;
            }
            if tag == FC_TAIL && length >= 8 {
                put32(block, pos + 8, crc32c(sum, &block[pos..pos + 8]));
                sum = 0;
            } else {
                sum = crc32c(sum, &block[pos..end]);
            }
            pos = end;
            if tag == FC_PAD {
                break;
            }
        }
    }
}
