//! The shape of a hash tree as fs-verity and dm-verity store it: blocks of digests, level over level.
//!
//! The lowest level has a digest of each data block, each level above one of each block below. A level of one block is
//! the last; the root hash is its digest, or that of the only data block. The highest level is stored first.

/// Levels of a tree, at most: so many bits has a number of blocks.
const LEVELS_MAX: u32 = 64;

/// A tree over a number of data blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashTree {
    /// Blocks of each level, the lowest first.
    levels: Vec<u64>,
}

impl HashTree {
    /// A tree over so many blocks. `None` if a block holds fewer than two digests.
    pub fn new(data_blocks: u64, digests_per_block: u32) -> Option<HashTree> {
        let per_block = u64::from(digests_per_block);
        if per_block < 2 {
            return None;
        }
        let (mut levels, mut blocks) = (Vec::new(), data_blocks);
        for _ in 0..LEVELS_MAX {
            if blocks <= 1 {
                break;
            }
            blocks = blocks.div_ceil(per_block);
            levels.push(blocks);
        }
        Some(HashTree { levels })
    }

    /// Number of levels: 0 with one data block or none.
    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// Blocks of a level; level 0 is the lowest.
    pub fn blocks_of(&self, level: usize) -> u64 {
        self.levels.get(level).copied().unwrap_or(0)
    }

    /// The first block of a level, counted from the start of the tree.
    pub fn first_of(&self, level: usize) -> u64 {
        let above = self.levels.get(level..).unwrap_or_default().iter().skip(1);
        above.fold(0, |sum: u64, blocks| sum.saturating_add(*blocks))
    }

    /// Blocks of all levels.
    pub fn blocks(&self) -> u64 {
        self.levels.iter().fold(0, |sum: u64, blocks| sum.saturating_add(*blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(data_blocks: u64, per_block: u32) -> Vec<(u64, u64)> {
        let tree = HashTree::new(data_blocks, per_block).unwrap();
        (0..tree.levels()).map(|level| (tree.first_of(level), tree.blocks_of(level))).collect()
    }

    #[test]
    fn levels_end_with_one_block_and_are_stored_from_the_highest_on() {
        assert!(shape(0, 128).is_empty());
        assert!(shape(1, 128).is_empty());
        assert_eq!(shape(2, 128), [(0, 1)]);
        assert_eq!(shape(128, 128), [(0, 1)]);
        assert_eq!(shape(129, 128), [(1, 2), (0, 1)]);
        assert_eq!(shape(128 * 128 + 1, 128), [(3, 129), (1, 2), (0, 1)]);
        assert_eq!(HashTree::new(128 * 128 + 1, 128).unwrap().blocks(), 132);
    }

    #[test]
    fn any_number_of_blocks_has_a_tree() {
        for per_block in [2, 16, 128] {
            let tree = HashTree::new(u64::MAX, per_block).unwrap();
            assert_eq!(tree.blocks_of(tree.levels() - 1), 1);
        }
        assert_eq!(HashTree::new(5, 1), None);
    }
}
