//! Counts the instructions of the whole system for each request, on a machine whose time-stamp counter counts them
//! (`scripts/vm-count.sh`).
//!
//!     count SHAPE ARM KIND PATH [SWITCHES]
//!
//! SHAPE is one of `shape::SHAPES`, ARM a word for the output. KIND says who carries the requests out: `ring` a
//! minimal ring on PATH, `region` one whose memory is registered in one piece, `call` system calls, `map` a copy of
//! mapped memory, `uext4` the library on the volume PATH with SWITCHES, in its file `/data`. COUNT_SLICES slices
//! (7) after one that does not count.
//!
//! Prints `PROGRAM,shape,arm` first, then `COUNT,shape,arm,requests,slices,median,least,most,clock`: instructions for
//! each request, and at last what the guest's clock says, nanoseconds.

mod library;
mod ring;
mod shape;
mod system;

use shape::{SPAN, Shape};
use std::arch::asm;
use std::process::ExitCode;
use std::time::Instant;

/// In a slice.
const REQUESTS: usize = 4096;

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

/// What a mark says to the plugin of the translator (`vm/plugin/count.c`).
const BEGIN: u8 = 0x34;
const END: u8 = 0x35;
const PROGRAM: u8 = 0x36;

/// Without the plugin this is nothing.
#[inline(always)]
fn mark<const WHAT: u8>() {
    // SAFETY: a long nop with a number in it.
    unsafe {
        asm!(".byte 0x0f, 0x1f, 0x80, {}, 0x74, 0x78, 0x65", const WHAT, options(nostack, preserves_flags))
    }
}

/// Positions anywhere in the file, the same in every arm.
fn positions(shape: &Shape) -> Vec<u64> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let position = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % (SPAN / shape.stride()) * shape.stride()
    };
    std::iter::repeat_with(position).take(REQUESTS).collect()
}

/// Instructions and nanoseconds of each slice, for one request.
fn measure(shape: &Shape, target: &mut dyn Target, slices: usize) -> (Vec<f64>, Vec<f64>) {
    let positions = positions(shape);
    let each = |sum: u64| sum as f64 / REQUESTS as f64;
    slice(target, shape, &positions);
    let sums = (0..slices).map(|_| {
        let (count, clock) = (instructions(), Instant::now());
        mark::<BEGIN>();
        slice(target, shape, &positions);
        mark::<END>();
        (each(instructions() - count), each(clock.elapsed().as_nanos() as u64))
    });
    let mut sums: (Vec<f64>, Vec<f64>) = sums.unzip();
    target.check(((slices + 1) * REQUESTS) as u64);
    sums.0.sort_by(f64::total_cmp);
    sums.1.sort_by(f64::total_cmp);
    sums
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
    println!("PROGRAM,{name},{arm}");
    mark::<PROGRAM>();
    let shape = shape::named(name).expect("a shape");
    let mut target: Box<dyn Target> = match kind {
        "ring" => Box::new(ring::Ring::new(path, shape, false)),
        "region" => Box::new(ring::Ring::new(path, shape, true)),
        "call" => Box::new(system::Calls::new(path, shape)),
        "map" => Box::new(system::Mapped::new(path, shape)),
        "uext4" => library::target(path, switches, shape),
        _ => panic!("{kind}: no such kind"),
    };
    let slices = std::env::var("COUNT_SLICES").map_or(7, |slices| slices.parse().expect("a number"));
    let (counts, clocks) = measure(shape, &mut *target, slices);
    let middle = slices / 2;
    // Where the program is, for a list of addresses.
    println!("BASE,{name},{arm},{:x}", main as fn() -> ExitCode as usize);
    println!(
        "COUNT,{name},{arm},{REQUESTS},{slices},{:.1},{:.1},{:.1},{:.1}",
        counts[middle],
        counts[0],
        counts[slices - 1],
        clocks[middle]
    );
    ExitCode::SUCCESS
}
