//! An inode whose blocks are converted, for what is counted and for what is timed.

use uext4_iomap::{InodeState, Run, State};

/// Requests that complete together.
const QD: usize = 32;

/// An inode of `extents` unwritten runs of `length` blocks, a block's hole behind each, all loaded.
pub fn inode(extents: u64, length: u64) -> InodeState {
    let stride = length + 1;
    let inode = InodeState::new(extents * stride * 4096, 12, Default::default());
    for first in (0..extents).step_by(340) {
        let runs: Vec<Run> = (first..(first + 340).min(extents))
            .map(|extent| Run {
                first: (extent * stride) as u32,
                length,
                state: State::Unwritten,
                physical: 1_000_000 + extent * (stride + 3),
            })
            .collect();
        let end = (first + runs.len() as u64) * stride;
        inode.map.lock().add(first * stride, end, &runs).unwrap();
    }
    inode
}

/// Every block that is to be converted, once, in an order that jumps about.
pub fn blocks(extents: u64, length: u64) -> impl Iterator<Item = u64> {
    let all = extents * length;
    // A step that is coprime to every number of blocks used here.
    (0..all).map(move |n| n * 7_368_787 % all).map(move |n| n / length * (length + 1) + n % length)
}

/// Converts the blocks a batch at a time; calls `each` with the number of those done.
pub fn convert(inode: &InodeState, blocks: impl Iterator<Item = u64>, mut each: impl FnMut(u64)) -> u64 {
    let (mut done, mut batch) = (0, Vec::with_capacity(QD));
    let mut blocks = blocks.peekable();
    while blocks.peek().is_some() {
        batch.clear();
        batch.extend(blocks.by_ref().take(QD).map(|block| block..block + 1));
        batch.sort_unstable_by_key(|range| range.start);
        done += batch.len() as u64;
        inode.converted(&mut inode.map.lock(), 7, &batch).unwrap();
        each(done);
    }
    done
}
