//! The blocks of a file of a sound volume, and the tree blocks on the way to them.

use super::bytes::{le16, le32};
use super::layout::{Kind, Layout};

const I_BLOCK: usize = 0x28;
const FLAG_EXTENTS: u64 = 0x8_0000;
/// More than any base image has; ends the walk of one that is not sound after all.
const MOST: usize = 1 << 16;

/// Logical and physical number of each block of the inode at byte `at`; tree blocks become sites of `layout`.
pub fn blocks(image: &[u8], layout: &mut Layout, at: usize, owner: u64) -> Vec<(u64, u64)> {
    let mut walk = Walk { image, layout, owner, blocks: Vec::new() };
    if le32(image, at + 0x20) & FLAG_EXTENTS != 0 {
        walk.extents(at + I_BLOCK, 5);
    } else {
        for index in 0..12 {
            walk.leaf(index, le32(image, at + I_BLOCK + 4 * index as usize));
        }
        let mut logical = 12;
        for depth in 1..=3u32 {
            let root = le32(image, at + I_BLOCK + 4 * (11 + depth as usize));
            walk.indirect(root, depth, logical);
            logical += walk.per_block().pow(depth);
        }
    }
    walk.blocks
}

struct Walk<'a> {
    image: &'a [u8],
    layout: &'a mut Layout,
    owner: u64,
    blocks: Vec<(u64, u64)>,
}

impl Walk<'_> {
    fn per_block(&self) -> u64 {
        self.layout.geometry.block as u64 / 4
    }

    fn leaf(&mut self, logical: u64, block: u64) {
        if block != 0 && self.blocks.len() < MOST {
            self.blocks.push((logical, block));
        }
    }

    fn extents(&mut self, at: usize, fuel: u32) {
        let (entries, depth) = (le16(self.image, at + 2), le16(self.image, at + 6));
        for index in 0..entries as usize {
            let entry = at + 12 + 12 * index;
            let logical = le32(self.image, entry);
            if depth == 0 {
                let length = le16(self.image, entry + 4);
                let length = if length > 0x8000 { length - 0x8000 } else { length };
                let start = le32(self.image, entry + 8);
                (0..length).for_each(|step| self.leaf(logical + step, start + step));
            } else if fuel > 0 {
                let child = le32(self.image, entry + 4);
                self.layout.add_block(Kind::ExtentNode, child, self.owner);
                self.extents(child as usize * self.layout.geometry.block, fuel - 1);
            }
        }
    }

    fn indirect(&mut self, block: u64, depth: u32, logical: u64) {
        if block == 0 {
            return;
        }
        self.layout.add_block(Kind::Indirect, block, self.owner);
        let at = block as usize * self.layout.geometry.block;
        for index in 0..self.per_block() {
            let child = le32(self.image, at + 4 * index as usize);
            let first = logical + index * self.per_block().pow(depth - 1);
            if depth == 1 {
                self.leaf(first, child);
            } else {
                self.indirect(child, depth - 1, first);
            }
        }
    }
}
