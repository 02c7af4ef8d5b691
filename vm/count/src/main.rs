//! Counts the instructions of the whole system for each request, on a machine whose time-stamp counter counts them
//! (`scripts/vm-count.sh`).
//!
//!     count SHAPE ARM KIND PATH [SWITCHES]
//!
//! SHAPE is one of `shape::SHAPES`, ARM a word for the output. KIND says who carries the requests out: `ring` a
//! minimal ring on PATH, `region` one whose memory is registered in one piece, `call` system calls, `map` a copy of
//! mapped memory, `names` system calls in the directory PATH, `changes` system calls or a ring below the directory
//! PATH, `uext4` the library on the volume PATH with SWITCHES, in its file `/data` or its directory `/names` or
//! `/made`. COUNT_SLICES slices (7) after one that does not count. COUNT_THREADS threads (1), each on a processor of
//! its own, with a descriptor and a ring or queue of its own, on the same file; uext4's threads share the volume.
//!
//! Prints `PROGRAM,shape,arm` first, then `COUNT,shape,arm,requests,slices,median,least,most,clock`: instructions for
//! each request, and at last what the guest's clock says, nanoseconds.

mod changes;
mod library;
mod names;
mod ring;
mod shape;
mod system;

use shape::Shape;
use std::arch::asm;
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::Instant;

/// In a slice, of each of several threads.
const REQUESTS_EACH: usize = 1024;

/// Who carries out the requests of one thread. What is no queue has `one` only.
pub trait Target {
    /// Prepares a request at byte `pos`; there is room.
    fn push(&mut self, _pos: u64) {
        unreachable!("no queue");
    }
    /// Sends what was prepared.
    fn submit(&mut self) {
        unreachable!("no queue");
    }
    /// Sends what was prepared, and waits for `count` requests; how many are done, at least `count`.
    fn wait(&mut self, _count: usize) -> usize {
        unreachable!("no queue");
    }
    /// Before slice `number`, and not counted: makes what its requests need.
    fn prepare(&mut self, _number: usize) {}
    /// At the end of a slice, and counted.
    fn finish(&mut self) {}
    /// Carries out one request.
    fn one(&mut self, pos: u64) {
        self.push(pos);
        self.wait(1);
    }
}

/// What threads have in common.
pub trait Source: Sync {
    /// For the calling thread.
    fn target(&self) -> Box<dyn Target>;
    /// Panics unless the `done` requests of the threads took the route that is to be measured.
    fn check(&self, _done: u64, _threads: usize) {}
}

/// Threads share a path.
struct Plain<'a> {
    kind: &'a str,
    path: &'a str,
    shape: &'static Shape,
}

impl Source for Plain<'_> {
    fn target(&self) -> Box<dyn Target> {
        let Plain { kind, path, shape } = *self;
        match kind {
            "ring" => Box::new(ring::Ring::new(path, shape, false)),
            "region" => Box::new(ring::Ring::new(path, shape, true)),
            "call" => Box::new(system::Calls::new(path, shape)),
            "names" => Box::new(names::Names::new(names::Kernel::new(path), shape)),
            "changes" => changes::of_kernel(path, shape),
            "map" => Box::new(system::Mapped::new(path, shape)),
            _ => panic!("{kind}: no such kind"),
        }
    }
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
    target.finish();
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

/// Positions of a thread anywhere in the file, the same in every arm. Changes are each somewhere else.
fn positions(shape: &Shape, thread: usize, count: usize) -> Vec<u64> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64.wrapping_add((thread as u64) << 17);
    let mut below = |end: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % end
    };
    let places = shape.span() / shape.stride();
    if shape.change.is_none() {
        return std::iter::repeat_with(|| below(places) * shape.stride()).take(count).collect();
    }
    let mut all: Vec<u64> = (0..places).map(|place| place * shape.stride()).collect();
    (0..all.len()).for_each(|at| all.swap(at, at + below((places as usize - at) as u64) as usize));
    all.truncate(count);
    all
}

/// Instructions and nanoseconds of each slice, for one request, and how many requests a slice has.
fn measure(shape: &Shape, source: &dyn Source, slices: usize, threads: usize) -> (Vec<f64>, Vec<f64>, usize) {
    let mine = if threads == 1 { shape.requests() } else { REQUESTS_EACH };
    let requests = threads * mine;
    let together = Barrier::new(threads);
    let meet = || {
        if threads > 1 {
            together.wait();
        }
    };
    let each = |sum: u64| sum as f64 / requests as f64;
    let mut sums = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        for thread in 1..threads {
            scope.spawn(move || {
                system::pin(thread);
                let (mut target, positions) = (source.target(), positions(shape, thread, mine));
                for number in 0..=slices {
                    target.prepare(number);
                    meet();
                    slice(&mut *target, shape, &positions);
                    meet();
                }
            });
        }
        system::pin(0);
        let (mut target, positions) = (source.target(), positions(shape, 0, mine));
        for number in 0..=slices {
            target.prepare(number);
            let (count, clock) = (instructions(), Instant::now());
            if number > 0 {
                mark::<BEGIN>();
            }
            meet();
            slice(&mut *target, shape, &positions);
            meet();
            if number > 0 {
                mark::<END>();
                sums.0.push(each(instructions() - count));
                sums.1.push(each(clock.elapsed().as_nanos() as u64));
            }
        }
    });
    source.check(((slices + 1) * requests) as u64, threads);
    sums.0.sort_by(f64::total_cmp);
    sums.1.sort_by(f64::total_cmp);
    (sums.0, sums.1, requests)
}

/// A number from the environment.
fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |number| number.parse().expect("a number"))
}

fn main() -> ExitCode {
    // A thread that fails ends all: the others would wait for it.
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        told(panic);
        std::process::exit(101);
    }));
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (name, arm, kind, path, switches) = match words[..] {
        [name, arm, kind, path] => (name, arm, kind, path, ""),
        [name, arm, kind, path, switches] => (name, arm, kind, path, switches),
        _ => {
            eprintln!("count SHAPE ARM ring|region|call|map|names|changes|uext4 PATH [SWITCHES]");
            return ExitCode::from(2);
        }
    };
    println!("PROGRAM,{name},{arm}");
    mark::<PROGRAM>();
    let shape = shape::named(name).expect("a shape");
    let source: Box<dyn Source> = match kind {
        "uext4" => Box::new(library::Opened::new(path, switches, shape)),
        _ => Box::new(Plain { kind, path, shape }),
    };
    let slices = number("COUNT_SLICES", 7);
    let (counts, clocks, requests) = measure(shape, &*source, slices, number("COUNT_THREADS", 1));
    let middle = slices / 2;
    // Where the program is, for a list of addresses.
    println!("BASE,{name},{arm},{:x}", main as fn() -> ExitCode as usize);
    println!(
        "COUNT,{name},{arm},{requests},{slices},{:.1},{:.1},{:.1},{:.1}",
        counts[middle],
        counts[0],
        counts[slices - 1],
        clocks[middle]
    );
    ExitCode::SUCCESS
}
