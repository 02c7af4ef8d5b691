//! Requests: the same seeded sequence for every arm of a round, made before the clock starts.

use super::error::{BenchError, Doing, Result};
use super::scenario::Order;
use uext4::{File, Piece, State};

/// One request. For the raw arm `pos` is a position on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// First byte.
    pub pos: u64,
    /// Which file.
    pub file: u32,
    /// A write rather than a read.
    pub write: bool,
}

/// splitmix64: a pseudo-random number for each input.
pub fn mix(seed: u64) -> u64 {
    let mut word = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Where the bytes of the files are on the device, from the files' own maps.
#[derive(Debug, Clone)]
pub struct Addresses {
    files: Vec<Vec<Piece>>,
    /// Measured bytes of each file: the size of the shortest.
    span: u64,
}

impl Addresses {
    /// Reads the maps. Refuses holes and unwritten blocks: an overwrite of them would not be one.
    pub fn of(files: &[File], span: u64) -> Result<Self> {
        let mut maps = Vec::with_capacity(files.len());
        let mut shortest = span;
        for file in files {
            shortest = shortest.min(file.size());
            let mut pieces: Vec<Piece> = Vec::new();
            for piece in file.map() {
                let piece = piece.doing(|| format!("map file {}", file.ino()))?;
                if piece.state != State::Written {
                    return Err(BenchError::failed(format!(
                        "inode {}: byte {} is {}: the files must be written from end to end",
                        file.ino(),
                        piece.logical,
                        piece.state.name()
                    )));
                }
                match pieces.last_mut() {
                    Some(last)
                        if last.end() == piece.logical && last.physical + last.length == piece.physical =>
                    {
                        last.length += piece.length;
                    }
                    _ => pieces.push(piece),
                }
            }
            maps.push(pieces);
        }
        Ok(Addresses { files: maps, span: shortest })
    }

    /// For files without blocks yet: nothing is requested from the device past the file system.
    pub fn unknown(files: usize, span: u64) -> Self {
        let all = Piece { logical: 0, physical: 0, length: span, state: State::Hole };
        Addresses { files: vec![vec![all]; files], span }
    }

    /// Addresses that are known already.
    #[cfg(test)]
    pub fn of_pieces(files: Vec<Vec<Piece>>, span: u64) -> Self {
        Addresses { files, span }
    }

    /// The device position of `length` bytes at `pos`, if they lie in one piece.
    pub fn physical(&self, file: usize, pos: u64, length: u64) -> Option<u64> {
        let pieces = self.files.get(file)?;
        let piece = pieces.get(pieces.partition_point(|piece| piece.logical <= pos).checked_sub(1)?)?;
        (pos + length <= piece.end()).then(|| piece.physical + (pos - piece.logical))
    }
}

/// Which blocks of which file lie in one piece, a bit each. Requests are chosen by this small table, since a
/// walk of the addresses (32 MB for 10⁶ extents) would throw the map that is measured out of the caches before
/// each slice, as nothing does between two requests of a program.
#[derive(Debug)]
struct Fitting {
    /// `None`: all blocks of the file do.
    files: Vec<Option<Vec<u64>>>,
}

impl Fitting {
    fn of(addresses: &Addresses, files: usize, block: u64) -> Self {
        let blocks = addresses.span / block;
        let word = |file: usize, word: u64| {
            let fits = |bit: &u64| {
                let number = word * 64 + bit;
                number < blocks && addresses.physical(file, number * block, block).is_some()
            };
            (0..64).filter(fits).fold(0, |bits, bit| bits | 1 << bit)
        };
        // Pieces follow each other without gaps, so a block is cut only by one that begins inside of it.
        let whole = |file: usize| {
            let pieces = &addresses.files[file];
            blocks > 0
                && pieces.iter().all(|piece| piece.logical % block == 0)
                && pieces.last().is_some_and(|last| last.end() >= blocks * block)
        };
        let bits = |file: usize| {
            (!whole(file)).then(|| (0..blocks.div_ceil(64)).map(|number| word(file, number)).collect())
        };
        Fitting { files: (0..files).map(bits).collect() }
    }

    fn fits(&self, file: usize, block: u64) -> bool {
        self.files[file].as_ref().is_none_or(|bits| bits[(block / 64) as usize] >> (block % 64) & 1 == 1)
    }
}

/// The shape of requests.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Bytes of a request.
    pub block: u64,
    /// Writes among the requests, percent.
    pub write_percent: u8,
    /// The order of their positions.
    pub order: Order,
    /// Measured threads.
    pub threads: usize,
    /// Unmeasured writing threads, numbered after them.
    pub beside: usize,
    /// Files that requests go to, counted from the first.
    pub files: usize,
}

/// Generates requests.
#[derive(Debug)]
pub struct OpSource {
    addresses: Addresses,
    fitting: Fitting,
    /// Of what kind.
    pub shape: Shape,
}

impl Shape {
    /// All threads.
    pub fn all_threads(&self) -> usize {
        self.threads + self.beside
    }
}

/// The numbers below a limit in another order, each once.
#[derive(Debug, Clone, Copy)]
struct Permutation {
    limit: u64,
    step: u64,
    start: u64,
}

impl Permutation {
    /// Steps as long as the golden section of the limit: neighbours come far from each other.
    fn new(limit: u64, seed: u64) -> Permutation {
        let divisor = |mut a: u64, mut b: u64| {
            while b != 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        let near = (limit as f64 * 0.618) as u64 | 1;
        let step = (near..).step_by(2).find(|step| divisor(*step, limit) == 1).unwrap_or(1);
        Permutation { limit, step, start: seed % limit.max(1) }
    }

    fn at(&self, number: u64) -> u64 {
        ((u128::from(number) * u128::from(self.step) + u128::from(self.start))
            % u128::from(self.limit.max(1))) as u64
    }
}

/// Requests made for one slice of one thread; it starts over when they are used up, or ends.
const SLICE_OPS: usize = 65536;

impl OpSource {
    /// Requests of `shape` to the files at `addresses`. Refuses files in which no request fits.
    pub fn new(addresses: Addresses, shape: Shape) -> Result<Self> {
        let fitting = Fitting::of(&addresses, shape.files, shape.block);
        if fitting.files.iter().flatten().any(|bits| bits.iter().all(|&word| word == 0)) {
            return Err(BenchError::failed(format!(
                "the files are too small or too fragmented for requests of {} bytes",
                shape.block
            )));
        }
        Ok(OpSource { addresses, fitting, shape })
    }

    /// The requests of one thread in one round. A request that crosses from one piece to the next is left out for
    /// every arm, since it would be two requests to the device.
    pub fn fill(&self, round: u64, thread: usize, ops: &mut Vec<Op>) {
        ops.clear();
        let Shape { block: bytes, write_percent, order, files, .. } = self.shape;
        let threads = self.shape.all_threads();
        let wanted = (SLICE_OPS / threads).max(4096);
        let blocks = self.addresses.span / bytes;
        let wanted = match order {
            Order::Append => wanted.min(blocks as usize),
            Order::Once => wanted.min((blocks as usize * files).saturating_sub(thread).div_ceil(threads)),
            Order::Random | Order::Sequential | Order::Together => wanted,
        };
        let seed = mix(round << 16 ^ thread as u64);
        let once = Permutation::new(blocks * files as u64, mix(round));
        let start = match order {
            Order::Together | Order::Append | Order::Once => 0,
            Order::Random | Order::Sequential => seed % blocks + thread as u64 * (blocks / threads as u64),
        };
        for step in 0.. {
            if ops.len() == wanted {
                break;
            }
            let word = mix(seed.wrapping_add(step));
            let (file, block) = match order {
                Order::Sequential | Order::Together => (thread % files, (start + step) % blocks),
                Order::Append => (thread % files, step),
                Order::Once => {
                    let number = once.at(step * threads as u64 + thread as u64);
                    ((number / blocks) as usize, number % blocks)
                }
                // The upper half picks the block, the lower the file and the direction: 2³² blocks are the
                // most.
                Order::Random => ((word & 0xffff) as usize % files, (word >> 32) % blocks),
            };
            if self.fitting.fits(file, block) {
                let write = (word >> 16 & 0xffff) % 100 < u64::from(write_percent);
                ops.push(Op { pos: block * bytes, file: file as u32, write });
            }
        }
    }

    /// Turns positions in files into positions on the device.
    pub fn translate(&self, ops: &mut [Op]) {
        for op in ops {
            // `fill` leaves out what has no single place.
            if let Some(physical) = self.addresses.physical(op.file as usize, op.pos, self.shape.block) {
                op.pos = physical;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(order: Order, write_percent: u8) -> OpSource {
        let piece = |logical, physical, length| Piece { logical, physical, length, state: State::Written };
        let files =
            vec![vec![piece(0, 1 << 20, 6144), piece(6144, 1 << 22, 10240)], vec![piece(0, 1 << 24, 16384)]];
        let addresses = Addresses::of_pieces(files, 16384);
        let shape = Shape { block: 4096, write_percent, order, threads: 2, beside: 0, files: 2 };
        OpSource::new(addresses, shape).unwrap()
    }

    #[test]
    fn every_request_has_one_place_and_all_places_are_hit() {
        let source = source(Order::Random, 50);
        let mut ops = Vec::new();
        source.fill(7, 0, &mut ops);
        let writes = ops.iter().filter(|op| op.write).count();
        assert!((ops.len() * 45 / 100..ops.len() * 55 / 100).contains(&writes));
        let mut seen: Vec<_> = ops.iter().map(|op| (op.file, op.pos)).collect();
        seen.sort_unstable();
        seen.dedup();
        // Block 1 of file 0 lies in two pieces.
        assert_eq!(seen, [(0, 0), (0, 8192), (0, 12288), (1, 0), (1, 4096), (1, 8192), (1, 12288)]);
        let mut raw = ops.clone();
        source.translate(&mut raw);
        for (op, raw) in ops.iter().zip(&raw) {
            assert_eq!(source.addresses.physical(op.file as usize, op.pos, 4096), Some(raw.pos));
        }
    }

    #[test]
    fn rounds_and_threads_differ_and_repeat() {
        let source = source(Order::Random, 0);
        let ops = |round, thread| {
            let mut ops = Vec::new();
            source.fill(round, thread, &mut ops);
            ops
        };
        assert_eq!(ops(1, 1), ops(1, 1));
        assert_ne!(ops(1, 1), ops(2, 1));
        assert_ne!(ops(1, 0), ops(1, 1));
        assert!(ops(1, 1).iter().all(|op| !op.write));
    }

    #[test]
    fn sequential_means_one_after_another() {
        let source = source(Order::Sequential, 100);
        let mut ops = Vec::new();
        source.fill(3, 1, &mut ops);
        assert!(ops.iter().all(|op| op.file == 1 && op.write));
        assert!(ops.windows(2).all(|pair| pair[1].pos == (pair[0].pos + 4096) % 16384));
    }

    #[test]
    fn together_means_that_all_threads_meet() {
        let one_file = |order| {
            let OpSource { addresses, shape, .. } = source(order, 100);
            let shape = Shape { block: 2048, order, threads: 1, beside: 1, files: 1, ..shape };
            let source = OpSource::new(addresses, shape).unwrap();
            [0, 1].map(|thread| {
                let mut ops = Vec::new();
                source.fill(3, thread, &mut ops);
                ops
            })
        };
        let [first, second] = one_file(Order::Together);
        assert_eq!(first, second);
        assert_eq!(first[..3].iter().map(|op| op.pos).collect::<Vec<_>>(), [0, 2048, 4096]);
        let [first, second] = one_file(Order::Sequential);
        assert_ne!(first, second);
    }

    #[test]
    fn once_means_every_block_of_every_file_once() {
        let addresses = Addresses::unknown(3, 40960);
        let shape =
            Shape { block: 4096, write_percent: 100, order: Order::Once, threads: 4, beside: 0, files: 3 };
        let source = OpSource::new(addresses, shape).unwrap();
        let (mut seen, mut ops) = (Vec::new(), Vec::new());
        for thread in 0..4 {
            source.fill(9, thread, &mut ops);
            seen.extend(ops.iter().map(|op| (op.file, op.pos / 4096)));
        }
        assert_ne!(seen[0], (0, 0), "rounds begin somewhere else");
        seen.sort_unstable();
        assert_eq!(seen, (0..3).flat_map(|file| (0..10).map(move |block| (file, block))).collect::<Vec<_>>());
    }

    #[test]
    fn appends_go_from_the_first_byte_on_and_end() {
        let shape =
            Shape { block: 4096, write_percent: 100, order: Order::Append, threads: 2, beside: 0, files: 2 };
        let source = OpSource::new(Addresses::unknown(2, 12288), shape).unwrap();
        let mut ops = Vec::new();
        source.fill(3, 1, &mut ops);
        assert_eq!(
            ops.iter().map(|op| (op.file, op.pos)).collect::<Vec<_>>(),
            [(1, 0), (1, 4096), (1, 8192)]
        );
    }

    #[test]
    fn nothing_fits_is_refused() {
        let OpSource { addresses, shape, .. } = source(Order::Random, 0);
        let refused = |block| OpSource::new(addresses.clone(), Shape { block, ..shape }).is_err();
        assert!(refused(16384), "file 0 has no piece of 16 KiB");
        assert!(refused(32768));
    }
}
