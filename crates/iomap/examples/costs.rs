//! Times what changing maps cost: `cargo run --release -p uext4-iomap --example costs`.
//!
//! What of it can be counted is asserted in `tests/publication.rs` and `tests/gate.rs`.

#[path = "../tests/common/converting.rs"]
mod converting;

use converting::{blocks, convert, inode};
use std::hint::black_box;
use std::time::Instant;
use uext4_iomap::InodeState;
use uext4_iomap::gate::InodeGate;

fn main() {
    exclusive_gate();
    conversions();
}

/// Nanoseconds of one turn.
fn timed(turns: u64, mut turn: impl FnMut()) -> f64 {
    (0..turns / 10).for_each(|_| turn());
    let started = Instant::now();
    (0..turns).for_each(|_| turn());
    started.elapsed().as_nanos() as f64 / turns as f64
}

/// What it costs to take a gate exclusively and to let it go, by who has used it before.
fn exclusive_gate() {
    let exclusive = |gate: &InodeGate| drop(black_box(gate.lock_exclusive(true, &mut || {})));
    let shared = |gate: &InodeGate| drop(black_box(gate.lock_shared(true, &mut || {})));
    let inode = InodeState::new(0, 12, Default::default());
    println!("an inode takes {} bytes and its map's", size_of::<InodeState>());
    println!("ns per exclusive hold");
    println!("  by the only thread           {:7.1}", timed(1_000_000, || exclusive(&inode.gate)));
    let both = timed(1_000_000, || {
        shared(&inode.gate);
        exclusive(&inode.gate);
    });
    println!("  after each shared hold of it {:7.1}", both - timed(1_000_000, || shared(&inode.gate)));
    let mut fresh: Vec<_> = (0..110_000).map(|_| InodeGate::new()).collect();
    let first = timed(100_000, || fresh.pop().iter().for_each(exclusive));
    println!("  the first of a gate          {first:7.1} (with its end)");
    std::thread::scope(|scope| scope.spawn(|| shared(&inode.gate)).join().expect("a thread"));
    println!("  after two threads            {:7.1}", timed(100_000, || exclusive(&inode.gate)));
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
