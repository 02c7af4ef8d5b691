//! Times what changing maps cost: `cargo run --release -p uext4-iomap --example costs`.
//!
//! What of it can be counted is asserted in `tests/publication.rs` and `tests/gate.rs`.

#[path = "../tests/common/converting.rs"]
mod converting;

use converting::{blocks, convert, inode};
use std::hint::black_box;
use std::time::Instant;

fn main() {
    conversions();
}

/// Nanoseconds of a converted block, a queue's worth at a time.
fn conversions() {
    println!("ns per block: the first tenth, all, the slowest batch / memory before and at most");
    for (extents, length) in [(1, 100_000), (1000, 100), (1_000_000, 1), (1_000_000, 8)] {
        let inode = inode(extents, length);
        let all = (extents * length).min(1_000_000);
        let before = inode.map.lock().resident_bytes();
        let (mut tenth, mut most, mut slowest) = (0, 0, 0);
        let started = Instant::now();
        let mut last = started;
        let done = convert(&inode, blocks(extents, length).take(all as usize), |done| {
            slowest = slowest.max(last.elapsed().as_nanos());
            if done <= all / 10 {
                tenth = started.elapsed().as_nanos() / u128::from(done);
            }
            if done % 4096 == 0 {
                most = most.max(inode.map.lock().resident_bytes());
            }
            last = Instant::now();
        });
        let each = started.elapsed().as_nanos() / u128::from(done);
        println!(
            "{extents:8} extents of {length:6}: {tenth:5} {each:5} {slowest:9} / {before} {most} ({done} blocks)"
        );
        black_box(inode.map.find(1));
    }
}
