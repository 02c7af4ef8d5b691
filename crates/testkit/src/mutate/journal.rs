//! The log of a sound volume, as a crash left it (`Documentation/filesystems/ext4/journal.rst`).

use super::bytes::{be32, get};
use super::layout::{Kind, Layout};

/// First word of every log block that is not data.
pub const MAGIC: u64 = 0xc03b_3998;
/// incompat: 64-bit block numbers.
pub const INCOMPAT_64BIT: u64 = 0x2;
/// incompat: 16-bit checksums in tags.
pub const INCOMPAT_CSUM_V2: u64 = 0x8;
/// incompat: 32-bit checksums in tags.
pub const INCOMPAT_CSUM_V3: u64 = 0x10;
/// incompat: an area for fast commits at the end.
pub const INCOMPAT_FAST_COMMIT: u64 = 0x20;

const FLAG_SAME_UUID: u64 = 2;
const FLAG_LAST: u64 = 8;

/// What is in the log.
#[derive(Debug, Clone, Default)]
pub struct Log {
    /// Byte of the journal superblock, if there is a journal.
    pub superblock: Option<usize>,
    /// Logged blocks.
    pub tags: Vec<Tag>,
    /// Bytes of the blocks of the fast-commit area, in order.
    pub fast: Vec<usize>,
}

/// A logged block.
#[derive(Debug, Clone, Copy)]
pub struct Tag {
    /// Byte of its descriptor block.
    pub descriptor: usize,
    /// Byte of its tag.
    pub at: usize,
    /// Byte of its copy in the log.
    pub data: usize,
}

/// Bytes of a tag without its UUID.
pub fn tag_size(incompat: u64) -> usize {
    if incompat & INCOMPAT_CSUM_V3 != 0 {
        return 16;
    }
    let wide = if incompat & INCOMPAT_64BIT != 0 { 12 } else { 8 };
    wide + if incompat & INCOMPAT_CSUM_V2 != 0 { 2 } else { 0 }
}

/// The flags of a tag.
pub fn tag_flags(image: &[u8], at: usize, incompat: u64) -> u64 {
    if incompat & INCOMPAT_CSUM_V3 != 0 {
        be32(image, at + 4)
    } else {
        get(image, at + 6, 2, super::bytes::Order::Big)
    }
}

/// Finds the blocks of the log; `blocks` are those of the journal's inode.
pub fn scan(image: &[u8], layout: &mut Layout, owner: u64, blocks: &[(u64, u64)]) -> Log {
    let size = layout.geometry.block;
    let place = |number: u64| blocks.get(number as usize).map(|&(_, block)| block as usize * size);
    let Some(superblock) = place(0) else { return Log::default() };
    layout.add_block(Kind::JournalSuper, blocks[0].1, owner);
    let mut log = Log { superblock: Some(superblock), ..Log::default() };
    let incompat = be32(image, superblock + 0x28);
    let (mut end, first) = (be32(image, superblock + 0x10), be32(image, superblock + 0x14));
    if incompat & INCOMPAT_FAST_COMMIT != 0 {
        let fast = match be32(image, superblock + 0x54) {
            0 => 256,
            number => number,
        };
        end = end.saturating_sub(fast);
        for number in end..end + fast {
            let Some(at) = place(number) else { break };
            if number == end || image[at..at + size].iter().any(|&byte| byte != 0) {
                layout.add_block(Kind::FastCommit, (at / size) as u64, owner);
                log.fast.push(at);
            }
        }
    }
    let mut number = be32(image, superblock + 0x1c);
    let mut fuel = end;
    let next = |number: u64| if number + 1 >= end { first } else { number + 1 };
    while number != 0 && fuel > 0 {
        fuel -= 1;
        let Some(at) = place(number) else { break };
        if be32(image, at) != MAGIC {
            break;
        }
        let kind = match be32(image, at + 4) {
            1 => Kind::JournalDescriptor,
            2 => Kind::JournalCommit,
            5 => Kind::JournalRevoke,
            _ => break,
        };
        layout.add_block(kind, (at / size) as u64, owner);
        if kind == Kind::JournalDescriptor {
            for tag in tags(image, at, size, incompat) {
                number = next(number);
                let Some(data) = place(number) else { break };
                layout.add_block(Kind::JournalData, (data / size) as u64, owner);
                log.tags.push(Tag { descriptor: at, at: tag, data });
            }
        }
        number = next(number);
    }
    log
}

/// Bytes of the tags of the descriptor block at `at`.
pub fn tags(image: &[u8], at: usize, size: usize, incompat: u64) -> Vec<usize> {
    let (mut tags, mut tag) = (Vec::new(), at + 12);
    let step = tag_size(incompat);
    while tag + step <= at + size {
        tags.push(tag);
        let flags = tag_flags(image, tag, incompat);
        if flags & FLAG_LAST != 0 {
            break;
        }
        tag += step + if flags & FLAG_SAME_UUID == 0 { 16 } else { 0 };
    }
    tags
}
