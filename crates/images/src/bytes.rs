//! Stores read and written at any alignment.

use std::sync::Arc;
use uext4_blockdev::{Geometry, Result, Scratch, Store, WriteDurability};

/// Bytes that are read at once where the caller's memory or place is not aligned.
const CHUNK: u64 = 1 << 20;

/// A store that is read at any byte, and as zeros behind its end.
#[derive(Debug, Clone)]
pub(crate) struct Bytes {
    store: Arc<dyn Store>,
    geometry: Geometry,
}

impl Bytes {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let geometry = store.geometry();
        Bytes { store, geometry }
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// What transfers of the store are multiples of.
    pub(crate) fn block(&self) -> u64 {
        u64::from(self.geometry.logical_block)
    }

    fn is_aligned(&self, buf: &[u8], pos: u64) -> bool {
        (pos | buf.len() as u64).is_multiple_of(self.block())
            && self.geometry.check_memory(buf.as_ptr().addr()).is_ok()
    }

    pub(crate) fn read(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        if self.is_aligned(buf, pos) {
            let count = self.store.read_upto(buf, pos)?;
            buf[count..].fill(0);
            return Ok(());
        }
        let (block, end) = (self.block(), pos + buf.len() as u64);
        let mut at = pos;
        while at < end {
            let start = at - at % block;
            let upto = end.next_multiple_of(block).min(start + CHUNK.max(block));
            let mut scratch = Scratch::new((upto - start) as usize);
            // What is not read stays zero.
            self.store.read_upto(&mut scratch, start)?;
            let next = upto.min(end);
            buf[(at - pos) as usize..(next - pos) as usize]
                .copy_from_slice(&scratch[(at - start) as usize..(next - start) as usize]);
            at = next;
        }
        Ok(())
    }

    /// Writes whole blocks from any memory.
    pub(crate) fn write(&self, buf: &[u8], pos: u64) -> Result<()> {
        if self.geometry.check_memory(buf.as_ptr().addr()).is_ok() {
            return self.store.write_at(buf, pos, WriteDurability::Cached);
        }
        let mut at = pos;
        for part in buf.chunks(CHUNK as usize) {
            let mut scratch = Scratch::new(part.len());
            scratch.copy_from_slice(part);
            self.store.write_at(&scratch, at, WriteDurability::Cached)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Changes bytes that need not be whole blocks. Nobody else may write to those blocks meanwhile.
    pub(crate) fn patch(&self, bytes: &[u8], pos: u64) -> Result<()> {
        let block = self.block();
        let start = pos - pos % block;
        let end = (pos + bytes.len() as u64).next_multiple_of(block);
        let mut scratch = Scratch::new((end - start) as usize);
        self.store.read_upto(&mut scratch, start)?;
        scratch[(pos - start) as usize..][..bytes.len()].copy_from_slice(bytes);
        self.store.write_at(&scratch, start, WriteDurability::Cached)
    }

    /// Fills whole blocks with zeros, if they are not known to be.
    pub(crate) fn zero(&self, pos: u64, length: u64) -> Result<()> {
        if length == 0 || self.store.reads_zeros(pos, length) {
            return Ok(());
        }
        let zeros = Scratch::new(length.min(CHUNK) as usize);
        let mut at = pos;
        while at < pos + length {
            let part = (pos + length - at).min(CHUNK);
            self.store.write_at(&zeros[..part as usize], at, WriteDurability::Cached)?;
            at += part;
        }
        Ok(())
    }
}
