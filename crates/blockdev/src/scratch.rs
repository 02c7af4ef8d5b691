//! Aligned memory for transfers that are not worth a pool.

/// Largest memory alignment that [`Scratch`] provides, in bytes.
const ALIGN: usize = 4096;

/// Zeroed memory whose first byte is aligned to 4096.
#[derive(Debug)]
pub struct Scratch {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Scratch {
    /// `length` bytes.
    pub fn new(length: usize) -> Self {
        let bytes = vec![0; length + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN);
        // `align_offset` may give up (usize::MAX); the device then refuses the address with a typed error.
        Scratch { start: if start > ALIGN { 0 } else { start }, bytes, length }
    }
}

impl std::ops::Deref for Scratch {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

impl std::ops::DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}
