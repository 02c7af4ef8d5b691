//! An overlay file by itself: what is in it, and the merge into its base.

use super::format::BaseFacts;
use super::store::Store;
use crate::scratch::Scratch;
use crate::{Device, Error, Result, WriteDurability};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that a merge copies at once.
const COPY: u64 = 1 << 20;

/// An overlay file that is looked at or merged, rather than used as a device.
#[derive(Debug)]
pub struct OverlayFile {
    store: Store,
}

impl OverlayFile {
    /// Opens the overlay file on `device`. `name`: its path, for messages.
    ///
    /// # Errors
    /// [`Error::Overlay`] for what is not an overlay file or is damaged, and read errors.
    pub fn open(device: Arc<dyn Device>, name: String) -> Result<Self> {
        Ok(OverlayFile { store: Store::open(device, name)? })
    }

    /// What is known of its base.
    pub fn base(&self) -> BaseFacts {
        self.store.base()
    }

    /// How its base was named, in the spelling of the device grammar.
    pub fn base_name(&self) -> &[u8] {
        self.store.spelling()
    }

    /// Whether a merge has begun to write to the base, and did not end.
    pub fn is_merging(&self) -> bool {
        self.store.is_merging()
    }

    /// Bytes of a granule, the unit in which changes are kept.
    pub fn granule(&self) -> u64 {
        self.store.granule()
    }

    /// Bytes of the base that it holds other contents of.
    pub fn changed_bytes(&self) -> u64 {
        self.store.map.count() * self.store.granule()
    }

    /// The first range of bytes that it holds at `pos` or after it.
    pub fn next_change(&self, pos: u64) -> Option<Range<u64>> {
        let granule = self.store.granule();
        let run = self.store.map.next_present(pos.div_ceil(granule))?;
        Some(run.start * granule..run.end * granule)
    }

    /// Writes the changes to `base`, of which `facts` tells, and makes them durable. The file stays as it is, and a
    /// merge that was cut can be run again: before it first writes, it stores that it has begun. Calls `progress` with
    /// the bytes that each step has merged.
    ///
    /// # Errors
    /// [`Error::Overlay`] for another base or one that was changed, and read and write errors: after one the base has
    /// some of the changes.
    pub fn merge(
        &mut self,
        base: &dyn Device,
        facts: &BaseFacts,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let (granule, geometry) = (self.store.granule(), base.geometry());
        if self.store.is_merging() {
            self.store.check_half_merged(base)?;
        } else {
            self.store.check_base(facts)?;
        }
        if u64::from(geometry.logical_block) > granule {
            let block = geometry.logical_block;
            return Err(Error::Unsupported(format!("changes of {granule} bytes on blocks of {block} bytes")));
        }
        self.store.begin_merge(base)?;
        let mut bytes = Scratch::new(COPY as usize);
        let mut at = 0;
        while let Some(run) = self.next_change(at) {
            at = run.end.min(run.start + COPY);
            let part = &mut bytes[..(at - run.start) as usize];
            self.store.read(part, run.start)?;
            base.write_at(part, run.start, WriteDurability::Cached)?;
            progress(part.len() as u64);
        }
        base.settle()
    }
}
