//! Counts the instructions of the whole system for each request, on a machine whose time-stamp counter counts them
//! (`scripts/vm-count.sh`).
//!
//!     count SHAPE ARM KIND PATH [SWITCHES]
//!
//! SHAPE is one of `shape::SHAPES`, ARM a word for the output. KIND says who carries the requests out: `ring` a minimal
//! ring on PATH, `region` one whose memory is registered in one piece, `call` system calls on PATH, `map` a copy from or
//! to mapped memory, `uext4` the library on the volume PATH with SWITCHES, in its file `/data`. COUNT_THREADS threads do
//! the same beside each other (1), COUNT_OPS requests in a slice (4096), COUNT_SLICES slices (7) after one that does
//! not count.
//!
//! Prints `COUNT,shape,arm,threads,requests,slices,median,least,most,clock`: instructions for each request, and at
//! last what the guest's clock says, nanoseconds.

mod library;
mod ring;
mod shape;
mod system;

use shape::{SPAN, Shape};
use std::arch::asm;
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::Instant;

/// Who carries requests out.
pub trait Target {
    /// Prepares a request at byte `pos`; there is room.
    fn push(&mut self, pos: u64);
    /// Sends what was prepared.
    fn submit(&mut self);
    /// Sends what was prepared, and waits for `count` requests; how many are done, at least `count`.
    fn wait(&mut self, count: usize) -> usize;
    /// Carries out one request.
    fn one(&mut self, pos: u64) {
        self.push(pos);
        self.wait(1);
    }
    /// Panics unless the `done` requests took the route that is to be measured.
    fn check(&mut self, done: u64);
}

/// The loop of queues: full, in batches.
fn queued(target: &mut dyn Target, shape: &Shape, positions: &[u64]) {
    let (mut rest, mut in_flight, mut unsent) = (positions.iter(), 0, 0);
    loop {
        while in_flight < shape.depth
            && let Some(&pos) = rest.next()
        {
            // The last batch is sent by the call that waits.
            if unsent == shape.batch {
                target.submit();
                unsent = 0;
            }
            target.push(pos);
            in_flight += 1;
            unsent += 1;
        }
        if in_flight == 0 {
            return;
        }
        in_flight -= target.wait(shape.batch.min(in_flight));
        unsent = 0;
    }
}

fn slice(target: &mut dyn Target, shape: &Shape, positions: &[u64]) {
    if shape.depth == 1 {
        for &pos in positions {
            target.one(pos);
        }
    } else {
        queued(target, shape, positions);
    }
}

/// Instructions of all processors since the start.
fn instructions() -> u64 {
    // SAFETY: every x86-64 processor has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Begins and ends what the plugin of the translator counts (`vm/plugin/count.c`); otherwise nothing.
#[inline(always)]
fn mark<const END: bool>() {
    // SAFETY: long nops.
    unsafe {
        if END {
            asm!(".byte 0x0f, 0x1f, 0x80, 0x35, 0x74, 0x78, 0x65", options(nostack, preserves_flags));
        } else {
            asm!(".byte 0x0f, 0x1f, 0x80, 0x34, 0x74, 0x78, 0x65", options(nostack, preserves_flags));
        }
    }
}

/// Positions anywhere in the file, the same in every arm.
fn positions(shape: &Shape, count: usize, thread: usize) -> Vec<u64> {
    let mut state = 0x9E37_79B9_7F4A_7C15 ^ (thread as u64 + 1);
    let position = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % (SPAN / shape.stride()) * shape.stride()
    };
    std::iter::repeat_with(position).take(count).collect()
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().map_or(default, |value| value.parse().expect("a number"))
}

/// What one slice cost, over all its requests.
struct Slice {
    instructions: u64,
    nanoseconds: u64,
}

/// One thread's part: its target is its own, and made by itself.
fn thread_of(shape: &Shape, make: &(dyn Fn() -> Box<dyn Target> + Sync), number: usize, bars: &[Barrier; 2]) {
    let ops = setting("COUNT_OPS", 4096);
    let positions = positions(shape, ops, number);
    let mut target = make();
    for _ in 0..=setting("COUNT_SLICES", 7) {
        bars[0].wait();
        slice(&mut *target, shape, &positions);
        bars[1].wait();
    }
    target.check(((setting("COUNT_SLICES", 7) + 1) * ops) as u64);
}

fn measure(shape: &Shape, make: &(dyn Fn() -> Box<dyn Target> + Sync), threads: usize) -> Vec<Slice> {
    let slices = setting("COUNT_SLICES", 7);
    let begin = || (instructions(), Instant::now());
    let end = |(count, clock): (u64, Instant)| Slice {
        instructions: instructions() - count,
        nanoseconds: clock.elapsed().as_nanos() as u64,
    };
    // One thread needs no others to be woken.
    if threads == 1 {
        let ops = setting("COUNT_OPS", 4096);
        let positions = positions(shape, ops, 0);
        let mut target = make();
        slice(&mut *target, shape, &positions);
        let sums = (0..slices).map(|_| {
            let started = begin();
            mark::<false>();
            slice(&mut *target, shape, &positions);
            mark::<true>();
            end(started)
        });
        let sums = sums.collect();
        target.check(((slices + 1) * ops) as u64);
        return sums;
    }
    let bars = [Barrier::new(threads + 1), Barrier::new(threads + 1)];
    std::thread::scope(|scope| {
        for number in 0..threads {
            let bars = &bars;
            scope.spawn(move || thread_of(shape, make, number, bars));
        }
        let sums = (0..=slices).map(|_| {
            let started = begin();
            bars[0].wait();
            bars[1].wait();
            end(started)
        });
        sums.skip(1).collect()
    })
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (name, arm, kind, path, switches) = match words[..] {
        [name, arm, kind, path] => (name, arm, kind, path, ""),
        [name, arm, kind, path, switches] => (name, arm, kind, path, switches),
        _ => {
            eprintln!("count SHAPE ARM ring|region|call|map|uext4 PATH [SWITCHES]");
            return ExitCode::from(2);
        }
    };
    let shape = shape::named(name).expect("a shape");
    let volume = (kind == "uext4").then(|| library::open(path, switches));
    let make = || -> Box<dyn Target> {
        match kind {
            "ring" => Box::new(ring::Ring::new(path, shape, false)),
            "region" => Box::new(ring::Ring::new(path, shape, true)),
            "call" => Box::new(system::Calls::new(path, shape)),
            "map" => Box::new(system::Mapped::new(path, shape)),
            "uext4" => library::target(volume.as_ref().expect("opened"), shape),
            _ => panic!("{kind}: no such kind"),
        }
    };
    let threads = setting("COUNT_THREADS", 1);
    let slices = measure(shape, &make, threads);
    let requests = setting("COUNT_OPS", 4096) * threads;
    let each = |sum: u64| sum as f64 / requests as f64;
    let mut counts: Vec<f64> = slices.iter().map(|slice| each(slice.instructions)).collect();
    let mut clocks: Vec<f64> = slices.iter().map(|slice| each(slice.nanoseconds)).collect();
    counts.sort_by(f64::total_cmp);
    clocks.sort_by(f64::total_cmp);
    let middle = counts.len() / 2;
    // Where the program is, for a list of addresses.
    println!("BASE,{name},{arm},{:x}", main as fn() -> ExitCode as usize);
    println!(
        "COUNT,{name},{arm},{threads},{requests},{},{:.1},{:.1},{:.1},{:.1}",
        counts.len(),
        counts[middle],
        counts[0],
        counts[counts.len() - 1],
        clocks[middle]
    );
    ExitCode::SUCCESS
}
