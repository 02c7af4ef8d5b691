//! What publishing costs, as far as it can be counted. `examples/costs.rs` times it.

use crate::common::converting;
use converting::{blocks, convert, inode};
use uext4_iomap::{Found, Run, State};

/// However many blocks are converted, memory is that of the extents and of a bounded number of changes, and what is
/// written in the end is one run for each extent.
#[test]
fn conversions_do_not_pile_up() {
    for (extents, length) in [(1, 4096), (1000, 16), (200_000, 1)] {
        let inode = inode(extents, length);
        let before = inode.map.lock().resident_bytes();
        let (mut most, mut noted) = (0, 0);
        convert(&inode, blocks(extents, length), |_| {
            let map = inode.map.lock();
            (most, noted) = (most.max(map.resident_bytes()), noted.max(map.noted()));
        });
        assert!(noted <= 16 * 1024, "{extents} of {length}: {noted} changes beside the snapshot");
        // Every second block converted: so many runs there are at most, 24 bytes each in the wide lines of few.
        let runs = extents * length.min(2) * length.div_ceil(2);
        let bound = before as u64 + runs * 24 + 16 * 1024 * 40;
        assert!((most as u64) < bound, "{extents} of {length}: {most} bytes, at first {before}");
        let runs: Vec<Run> = inode.map.runs().into_iter().filter(|run| run.state == State::Written).collect();
        assert_eq!(runs.len() as u64, extents);
        assert!(runs.iter().all(|run| run.length == length));
        for block in blocks(extents, length).step_by(97) {
            let found = inode.map.find(block as u32);
            assert!(matches!(found, Found::Known { state: State::Written, .. }), "{block}");
        }
        let bytes = inode.map.lock().resident_bytes();
        assert!(bytes <= before + 16 * 1024 * 40, "{extents} of {length}: {bytes} bytes, at first {before}");
    }
}
