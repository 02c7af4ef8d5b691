//! Calls with several vectors (`-V N`): one queued request, with a separate buffer for each vector.

use super::language::Span;
use uext4::{Buffer, Error, File, FileSlot, IoQueue, Payload, QueueOptions, Result, Volume, WriteFlags};

/// A queue with the file attached, and the buffers of the last call.
pub struct Vectors {
    queue: IoQueue,
    slot: FileSlot,
    buffers: Vec<Buffer>,
}

impl Vectors {
    /// Set up for the calls of `span`.
    pub fn new(volume: &Volume, file: &File, span: &Span) -> Result<Self> {
        // On a device without vectors each one is a separate request.
        let depth = u32::try_from(span.vectors()).unwrap_or(u32::MAX);
        let mut queue = volume.queue(QueueOptions::depth(depth))?;
        let slot = queue.attach(file)?;
        Ok(Vectors { queue, slot, buffers: Vec::new() })
    }

    /// Buffers for a call of `want` bytes: full vectors, then the rest in a shorter one, as xfs_io trims its last one.
    /// `fill` fills new ones.
    fn split(&mut self, want: u64, vector: u64, fill: Option<u8>) -> Result<Vec<Buffer>> {
        let lengths = (0..want.div_ceil(vector)).map(|index| vector.min(want - index * vector) as usize);
        if lengths.clone().eq(self.buffers.iter().map(|buffer| buffer.len())) {
            return Ok(std::mem::take(&mut self.buffers));
        }
        self.buffers.clear();
        lengths
            .map(|length| {
                let mut buffer = self.queue.buffer(length)?;
                fill.into_iter().for_each(|byte| buffer.fill(byte));
                Ok(buffer)
            })
            .collect()
    }

    /// Waits for the one request and takes its buffers back.
    fn finish(&mut self) -> Result<usize> {
        let done = self.queue.wait(1)?.next().ok_or(Error::Invalid("the queue forgot a request".into()))?;
        self.buffers = match done.payload {
            Payload::Many(buffers) => *buffers,
            Payload::One(buffer) => vec![buffer],
            Payload::None => Vec::new(),
        };
        done.result.map_err(|error| *error)
    }

    /// Reads `want` bytes at `pos` in one call; [`Vectors::bytes`] gives them.
    pub fn read(&mut self, pos: u64, want: u64, vector: u64) -> Result<usize> {
        let buffers = self.split(want, vector, None)?;
        self.queue.readv(self.slot, pos, buffers, 0)?;
        self.finish()
    }

    /// Writes `want` bytes of `seed` at `pos` in one call.
    pub fn write(&mut self, pos: u64, want: u64, vector: u64, seed: u8, flags: WriteFlags) -> Result<usize> {
        let buffers = self.split(want, vector, Some(seed))?;
        self.queue.writev(self.slot, pos, buffers, flags, 0)?;
        self.finish()
    }

    /// The bytes of the last read, including zeros past the end of the file.
    pub fn bytes(&self) -> Vec<u8> {
        self.buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect()
    }
}
