//! A content digest that is cheap on sparse files and independent of where the holes are.

use sha2::{Digest, Sha256};

/// Granularity of the digest, bytes. Independent of any file-system block size.
pub const CHUNK: usize = 4096;

static ZEROS: [u8; CHUNK] = [0; CHUNK];

/// SHA-256 over `(chunk number, 4096 bytes)` of every chunk that is not all zero, in order, then the file
/// size. Chunk number and size are little-endian 64-bit; the last chunk is padded with zeros. A hole, an
/// unwritten extent and written zeros digest alike, so two readers agree whether or not they skip holes.
pub struct SparseDigest {
    sha: Sha256,
    chunk: u64,
    buf: Box<[u8; CHUNK]>,
    end: u64,
}

impl Default for SparseDigest {
    fn default() -> Self {
        SparseDigest::new()
    }
}

impl SparseDigest {
    /// Nothing fed yet.
    pub fn new() -> SparseDigest {
        SparseDigest { sha: Sha256::new(), chunk: 0, buf: Box::new([0; CHUNK]), end: 0 }
    }

    /// Feeds `data` that stands at byte `offset`. Pieces come in ascending order without overlap; what is
    /// left out counts as zeros.
    ///
    /// # Panics
    /// If `offset` lies before the end of the previous piece.
    pub fn update(&mut self, mut offset: u64, mut data: &[u8]) {
        assert!(offset >= self.end, "pieces must ascend: {offset} after {}", self.end);
        while !data.is_empty() {
            let chunk = offset / CHUNK as u64;
            if chunk != self.chunk {
                self.flush();
                self.chunk = chunk;
            }
            let at = (offset % CHUNK as u64) as usize;
            let take = data.len().min(CHUNK - at);
            self.buf[at..at + take].copy_from_slice(&data[..take]);
            data = &data[take..];
            offset += take as u64;
        }
        self.end = offset;
    }

    fn flush(&mut self) {
        if *self.buf != ZEROS {
            self.sha.update(self.chunk.to_le_bytes());
            self.sha.update(self.buf.as_slice());
            self.buf.fill(0);
        }
    }

    /// The digest of a file of `size` bytes.
    ///
    /// # Panics
    /// If bytes beyond `size` were fed.
    pub fn finish(mut self, size: u64) -> [u8; 32] {
        assert!(self.end <= size, "fed {} bytes of a file of {size}", self.end);
        self.flush();
        self.sha.update(size.to_le_bytes());
        self.sha.finalize().into()
    }
}
