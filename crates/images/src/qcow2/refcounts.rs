//! How often each cluster of the file is used, and which are free.
//!
//! A block of refcounts is written before anything points to the clusters that it counts, and a block that is new
//! before the table of refcounts points to it (`settle.rs` has the order). So a crash can leave clusters counted that
//! nobody uses, never the reverse.

use super::header::{Header, REFCOUNTS_MAX};
use crate::bytes::Bytes;
use crate::fault::fault;
use crate::order::{bytes32, bytes64, number};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::path::{Path, PathBuf};
use uext4_blockdev::{Error, ImageFault, Result};

/// Bytes of blocks that are kept in memory.
const BLOCKS_BYTES: u64 = 8 << 20;
/// Bits of an entry of the table that have no meaning.
const RESERVED: u64 = 511;

#[derive(Debug)]
struct Block {
    bytes: Box<[u8]>,
    /// Bytes that the file does not have.
    changed: Range<usize>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Refcounts {
    path: PathBuf,
    order: u32,
    cluster_bits: u32,
    /// Where the blocks are.
    table: Vec<u64>,
    table_at: u64,
    /// Entries of the table that the file does not have.
    entries: BTreeSet<usize>,
    /// The table has become longer and lies elsewhere, which the header does not say: the clusters where it was.
    moved: Option<Range<u64>>,
    blocks: HashMap<usize, Block>,
    order_of_use: VecDeque<usize>,
    /// No cluster before this one is free.
    first_free: u64,
}

impl Refcounts {
    pub(super) fn open(path: &Path, header: &Header, file: &Bytes) -> Result<Self> {
        // Bounded by `Header::refuses_writes`.
        let bytes = u64::from(header.refcount_clusters) << header.cluster_bits;
        if header.refcounts_at + bytes > file.store().length()?.next_multiple_of(header.cluster_size()) {
            let fault_of =
                ImageFault::Header("its table of refcounts lies behind the end of the file".into());
            return Err(fault(path, fault_of));
        }
        let mut table = vec![0; bytes as usize];
        file.read(&mut table, header.refcounts_at)?;
        let mut refcounts = Refcounts {
            path: path.to_owned(),
            order: header.refcount_order,
            cluster_bits: header.cluster_bits,
            table: table.as_chunks::<8>().0.iter().map(number).collect(),
            table_at: header.refcounts_at,
            entries: BTreeSet::new(),
            moved: None,
            blocks: HashMap::new(),
            order_of_use: VecDeque::new(),
            // The header is in the first one.
            first_free: 1,
        };
        let clusters =
            |pos: u64, bytes: u64| pos >> header.cluster_bits..(pos + bytes).div_ceil(header.cluster_size());
        let l1 = clusters(header.l1_at, 8 * header.l1_needed() as u64);
        for cluster in (0..1).chain(l1).chain(clusters(header.refcounts_at, bytes)) {
            refcounts.check_used(file, cluster)?;
        }
        Ok(refcounts)
    }

    /// How often a cluster is used, which is in use.
    pub(super) fn check_used(&mut self, file: &Bytes, cluster: u64) -> Result<u64> {
        match self.get(file, cluster)? {
            0 => {
                let reason = "a cluster in use is counted as free";
                Err(self.damaged("refcount of a cluster", cluster << self.cluster_bits, reason))
            }
            uses => Ok(uses),
        }
    }

    fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Clusters that a block counts.
    fn per_block(&self) -> u64 {
        (self.cluster() * 8) >> self.order
    }

    fn damaged(&self, what: &'static str, pos: u64, reason: &'static str) -> Error {
        fault(&self.path, ImageFault::Structure { what, pos, reason })
    }

    fn full(&self) -> Error {
        let path = self.path.display().to_string();
        Error::Open { path, action: "find a free cluster", errno: libc::ENOSPC }
    }

    /// Where block `index` is; 0: there is none, and what it would count is free.
    fn place(&self, index: usize) -> Result<u64> {
        let place = self.table.get(index).copied().unwrap_or(0);
        if place & RESERVED == 0 && place.is_multiple_of(self.cluster()) && place <= i64::MAX as u64 {
            return Ok(place);
        }
        Err(self.damaged("table of refcounts", self.table_at + 8 * index as u64, "an impossible place"))
    }

    fn split(&self, cluster: u64) -> (usize, usize) {
        // A table of refcounts has at most 2^20 entries; more is caught where one is needed.
        let index = usize::try_from(cluster / self.per_block()).unwrap_or(usize::MAX);
        (index, (cluster % self.per_block()) as usize)
    }

    /// Block `index`, which has a place.
    fn block(&mut self, file: &Bytes, index: usize) -> Result<&mut Block> {
        if !self.blocks.contains_key(&index) {
            let place = self.place(index)?;
            let mut bytes = vec![0; self.cluster() as usize].into_boxed_slice();
            file.read(&mut bytes, place)?;
            self.keep(file, index, Block { bytes, changed: 0..0 })?;
        }
        let place = 8 * index as u64;
        let error = self.damaged("table of refcounts", self.table_at + place, "no place");
        self.blocks.get_mut(&index).ok_or(error)
    }

    /// Puts a block into memory. Others go: to write one early does no harm.
    fn keep(&mut self, file: &Bytes, index: usize, block: Block) -> Result<()> {
        let most = (BLOCKS_BYTES / self.cluster()).clamp(4, 4096) as usize;
        while self.blocks.len() >= most {
            let Some(&oldest) = self.order_of_use.front() else { break };
            self.write_block(file, oldest)?;
            self.order_of_use.pop_front();
            self.blocks.remove(&oldest);
        }
        self.order_of_use.push_back(index);
        self.blocks.insert(index, block);
        Ok(())
    }

    fn write_block(&mut self, file: &Bytes, index: usize) -> Result<()> {
        let place = self.place(index)?;
        let Some(block) = self.blocks.get_mut(&index) else { return Ok(()) };
        if !block.changed.is_empty() {
            let unit = file.block() as usize;
            let range = block.changed.start / unit * unit..block.changed.end.next_multiple_of(unit);
            file.write(&block.bytes[range.clone()], place + range.start as u64)?;
            block.changed = 0..0;
        }
        Ok(())
    }

    /// How often a cluster is used.
    pub(super) fn get(&mut self, file: &Bytes, cluster: u64) -> Result<u64> {
        let (index, entry) = self.split(cluster);
        if self.place(index)? == 0 {
            return Ok(0);
        }
        let order = self.order;
        Ok(count(&self.block(file, index)?.bytes, order, entry))
    }

    fn set(&mut self, file: &Bytes, cluster: u64, value: u64) -> Result<()> {
        let (index, entry) = self.split(cluster);
        let order = self.order;
        let block = self.block(file, index)?;
        let bytes = set_count(&mut block.bytes, order, entry, value);
        block.changed = match block.changed.is_empty() {
            true => bytes,
            false => block.changed.start.min(bytes.start)..block.changed.end.max(bytes.end),
        };
        Ok(())
    }

    /// Counts one use less.
    pub(super) fn release(&mut self, file: &Bytes, cluster: u64) -> Result<()> {
        let less = self.check_used(file, cluster)? - 1;
        self.set(file, cluster, less)?;
        if less == 0 && cluster > 0 {
            self.first_free = self.first_free.min(cluster);
        }
        Ok(())
    }

    /// Takes free clusters in one piece: `least` of them, or up to `most`. New blocks lie before a piece that has to be
    /// long, and not where each counts itself: it may be longer than what one counts.
    pub(super) fn allocate(&mut self, file: &Bytes, least: u64, most: u64) -> Result<Range<u64>> {
        let mut at = self.first_free;
        let run = 'search: loop {
            if at >= i64::MAX as u64 >> (self.cluster_bits + 1) {
                return Err(self.full());
            }
            let mut end = at;
            while end < at + most && self.get(file, end)? == 0 {
                end += 1;
            }
            if end < at + least {
                at = end + 1;
                continue;
            }
            let per_block = self.per_block();
            for index in at / per_block..=(end - 1) / per_block {
                if self.place(index as usize)? == 0 {
                    let own = at.max(index * per_block);
                    self.make_block(file, index, if least > 1 { at } else { own })?;
                    // It has taken a cluster.
                    continue 'search;
                }
            }
            break at..end;
        };
        for cluster in run.clone() {
            self.set(file, cluster, 1)?;
        }
        if least == 1 {
            self.first_free = run.end;
        }
        Ok(run)
    }

    /// Makes a block, in a free cluster that it or a block before it counts.
    fn make_block(&mut self, file: &Bytes, index: u64, cluster: u64) -> Result<()> {
        if index >= self.table.len() as u64 {
            self.lengthen(file, index)?;
        }
        let at = index as usize;
        // To lengthen the table may have taken the cluster, and made the block for it.
        if self.place(at)? != 0 {
            return Ok(());
        }
        let bytes = vec![0; self.cluster() as usize].into_boxed_slice();
        let all = 0..bytes.len();
        // What its place has is not a block yet: it gets that when it is in memory.
        self.keep(file, at, Block { bytes, changed: all })?;
        self.table[at] = cluster << self.cluster_bits;
        self.entries.insert(at);
        self.set(file, cluster, 1)
    }

    /// Makes the table long enough for entry `index`, elsewhere.
    fn lengthen(&mut self, file: &Bytes, index: u64) -> Result<()> {
        let wanted = (index + 1).saturating_mul(8).saturating_mul(3) / 2 + 1024;
        let bytes = wanted.next_multiple_of(self.cluster());
        if bytes > REFCOUNTS_MAX {
            return Err(self.full());
        }
        let entries = self.table.len();
        let old = self.table_at >> self.cluster_bits;
        let old = old..old + (8 * entries as u64).div_ceil(self.cluster());
        self.table.resize((bytes / 8) as usize, 0);
        let count = bytes / self.cluster();
        let new = match self.allocate(file, count, count) {
            Ok(new) => new,
            Err(error) => {
                // The file has no room for these entries, nor for blocks that were made for them.
                self.table.truncate(entries);
                self.entries.retain(|index| *index < entries);
                self.blocks.retain(|index, _| *index < entries);
                self.order_of_use.retain(|index| *index < entries);
                return Err(error);
            }
        };
        self.table_at = new.start << self.cluster_bits;
        match &self.moved {
            // The file never pointed to the place in between.
            Some(_) => old.into_iter().try_for_each(|cluster| self.release(file, cluster))?,
            None => self.moved = Some(old),
        }
        Ok(())
    }

    /// The byte behind the last cluster that a new structure may have taken.
    pub(super) fn end(&self) -> u64 {
        let blocks = self.entries.iter().map(|index| self.table[*index] + self.cluster());
        let table = self.table_at + 8 * self.table.len() as u64;
        blocks.fold(if self.moved.is_some() { table } else { 0 }, u64::max)
    }

    /// Writes the blocks that were changed, and a table that lies elsewhere.
    pub(super) fn write_blocks(&mut self, file: &Bytes) -> Result<()> {
        let mut changed: Vec<_> = self.blocks.keys().copied().collect();
        changed.sort_unstable();
        changed.into_iter().try_for_each(|index| self.write_block(file, index))?;
        if self.moved.is_some() {
            let bytes: Vec<u8> = self.table.iter().flat_map(|place| bytes64(*place)).collect();
            file.write(&bytes, self.table_at)?;
        }
        Ok(())
    }

    /// Whether [`Refcounts::write_table`] has something to do.
    pub(super) fn has_new_blocks(&self) -> bool {
        self.moved.is_some() || !self.entries.is_empty()
    }

    /// Writes where new blocks are, which were made durable before. Returns clusters that are free once this is
    /// durable.
    pub(super) fn write_table(&mut self, file: &Bytes) -> Result<Range<u64>> {
        let entries = std::mem::take(&mut self.entries);
        if let Some(old) = self.moved.take() {
            let clusters = (8 * self.table.len() as u64) >> self.cluster_bits;
            let mut bytes = bytes64(self.table_at).to_vec();
            // At most 8 MiB of 512 bytes.
            bytes.extend_from_slice(&bytes32(clusters as u32));
            file.patch(&bytes, super::header::REFCOUNTS_AT)?;
            return Ok(old);
        }
        for index in entries {
            file.patch(&bytes64(self.table[index]), self.table_at + 8 * index as u64)?;
        }
        Ok(0..0)
    }
}

/// Entry `entry` of a block whose entries have `1 << order` bits.
fn count(bytes: &[u8], order: u32, entry: usize) -> u64 {
    if order < 3 {
        let (per_byte, bits) = (8 >> order, 1 << order);
        let shift = entry % per_byte * bits;
        return u64::from(bytes[entry / per_byte] >> shift) & ((1 << bits) - 1);
    }
    let width = 1 << (order - 3);
    bytes[entry * width..(entry + 1) * width].iter().fold(0, |count, byte| count << 8 | u64::from(*byte))
}

/// Sets it, and returns which bytes that changed.
fn set_count(bytes: &mut [u8], order: u32, entry: usize, value: u64) -> Range<usize> {
    if order < 3 {
        let (per_byte, bits) = (8 >> order, 1 << order);
        let (at, shift) = (entry / per_byte, entry % per_byte * bits);
        let mask = ((1u16 << bits) - 1) as u8;
        bytes[at] = bytes[at] & !(mask << shift) | (value as u8 & mask) << shift;
        return at..at + 1;
    }
    let width = 1 << (order - 3);
    let range = entry * width..(entry + 1) * width;
    bytes[range.clone()].copy_from_slice(&bytes64(value)[8 - width..]);
    range
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qcow2::create::{Qcow2Options, create};
    use crate::qcow2::header::read;
    use std::sync::Arc;
    use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
    use uext4_blockdev::{Op, Store};
    use uext4_testkit::device::{DeviceFile, Fault, FaultDevice, FaultHandle, FaultOn};

    #[test]
    fn counts_of_every_width_leave_their_neighbours() {
        for order in 0..=6 {
            let mut bytes = vec![0; 64];
            let (entries, most) = ((64 * 8) >> order, if order == 0 { 1 } else { 2 });
            for entry in (0..entries).step_by(3) {
                set_count(&mut bytes, order, entry, most);
            }
            for entry in 0..entries {
                let wanted = if entry % 3 == 0 { most } else { 0 };
                assert_eq!(count(&bytes, order, entry), wanted, "order {order}, entry {entry}");
            }
            set_count(&mut bytes, order, 3, 0);
            assert_eq!((count(&bytes, order, 3), count(&bytes, order, 0)), (0, most));
        }
        // 16 bits, the usual: in the order of the network.
        let mut bytes = vec![0; 8];
        assert_eq!(set_count(&mut bytes, 4, 1, 0x102), 2..4);
        assert_eq!(bytes, [0, 0, 1, 2, 0, 0, 0, 0]);
    }

    /// The refcounts of a new image in clusters of 512 bytes, in a file whose requests fail when they should.
    fn opened() -> (Refcounts, Bytes, FaultHandle) {
        let memory = MemoryDevice::new(MemoryOptions::new(1 << 20)).unwrap();
        let faulty = FaultDevice::new(Arc::new(memory));
        let faults = faulty.handle();
        let file: Arc<dyn Store> = DeviceFile::new(Arc::new(faulty));
        create(&file, Qcow2Options { size: 64 << 10, cluster_size: 512 }).unwrap();
        let bytes = Bytes::new(file);
        let header = read(&bytes).unwrap().unwrap();
        (Refcounts::open(Path::new("disk.qcow2"), &header, &bytes).unwrap(), bytes, faults)
    }

    #[test]
    fn a_table_that_cannot_become_longer_stays_as_it_is() {
        let (mut refcounts, file, faults) = opened();
        // Blocks 0 to 2, and then only the first of them in memory.
        while refcounts.allocate(&file, 1, 600).unwrap().end < 600 {}
        refcounts.write_blocks(&file).unwrap();
        refcounts.write_table(&file).unwrap();
        refcounts.blocks.retain(|index, _| *index == 0);
        let (entries, at) = (refcounts.table.len(), refcounts.table_at);
        faults.arm(Fault::nth(FaultOn::Op(Op::Read), 1));
        refcounts.lengthen(&file, entries as u64).unwrap_err();
        assert_eq!((refcounts.table.len(), refcounts.table_at), (entries, at));
        assert!(!refcounts.has_new_blocks() && refcounts.blocks.keys().all(|index| *index < entries));
        refcounts.lengthen(&file, entries as u64).unwrap();
        assert!(refcounts.table.len() > entries && refcounts.table_at != at && refcounts.has_new_blocks());
    }

    #[test]
    fn pieces_are_longer_than_what_a_block_counts() {
        let (mut refcounts, file, _) = opened();
        let mut taken = Vec::new();
        for length in [4, 256, 257, 1000, 1] {
            let run = refcounts.allocate(&file, length, length).unwrap();
            assert_eq!(run.end - run.start, length);
            taken.extend(run);
        }
        let blocks: Vec<u64> =
            refcounts.table.iter().filter(|place| **place != 0).map(|place| place >> 9).collect();
        // Not more blocks than what is there needs, and each cluster counted once.
        assert!(blocks.len() < 10, "{blocks:?}");
        taken.extend(&blocks);
        taken.extend(0..4);
        taken.sort_unstable();
        taken.dedup();
        let end = blocks.len() as u64 * 256;
        let counted: Vec<u64> = (0..end).filter(|at| refcounts.get(&file, *at).unwrap() == 1).collect();
        assert_eq!(counted, taken);
    }

    #[test]
    fn a_block_that_finds_no_room_in_memory_gets_no_place() {
        let (mut refcounts, file, faults) = opened();
        // The oldest one has to be written before it goes.
        refcounts.set(&file, 100, 1).unwrap();
        for index in 1..4096 {
            let bytes = vec![0; 512].into_boxed_slice();
            refcounts.keep(&file, 1000 + index, Block { bytes, changed: 0..0 }).unwrap();
        }
        for _ in 0..2 {
            faults.arm(Fault::nth(FaultOn::Op(Op::Write), 1));
            refcounts.make_block(&file, 5, 5 * 256).unwrap_err();
            assert_eq!(refcounts.place(5).unwrap(), 0);
            assert!(!refcounts.has_new_blocks());
        }
        refcounts.make_block(&file, 5, 5 * 256).unwrap();
        assert_eq!(refcounts.get(&file, 5 * 256).unwrap(), 1);
        assert_eq!((refcounts.get(&file, 100).unwrap(), refcounts.blocks.len()), (1, 4096));
    }
}
