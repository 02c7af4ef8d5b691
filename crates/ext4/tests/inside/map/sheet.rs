//! A volume under edit, in memory: changes are layered over it until they are stored, and free blocks come from a pool
//! that is then written to the bitmaps.

use crate::alloc::Space;
use crate::device::{BufferPool, Device, WriteDurability};
use crate::device::{MemoryDevice, MemoryOptions};
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::options::VolumeOptions;
use crate::ground::recovered::RecoveryInfo;
use crate::ground::state::Ground;
use crate::inode::Ext4State;
use crate::inode::draft::Draft;
use crate::opening::external::Devices;
use crate::opening::state::open_state;
use crate::opening::superblock::read_superblock;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uext4_ondisk::{Group, Ino, Pblk};
use uext4_testkit::oracle::{debugfs_script, superblock_field};
use uext4_testkit::{Scratch, VolumeBuilder, debugfs, e2fsck_clean};

/// A volume in memory with an empty file `/f` of inode `ino`.
pub struct Made {
    pub device: Arc<MemoryDevice>,
    pub ino: Ino,
}

/// Makes a volume whose bitmaps have all been written.
pub fn make(kind: &'static str, size: u64, args: &[&str]) -> Made {
    let volume = VolumeBuilder::new(size).kind(kind).args(args.iter().copied()).build();
    // Using every group once initializes its bitmaps.
    let block: u64 = superblock_field(volume.path(), "Block size").parse().unwrap();
    let most = size / block * 13 / 16;
    let fill = format!("write /dev/null f\nwrite /dev/null big\nfallocate big 0 {most}\nrm big\n");
    debugfs_script(volume.path(), &fill);
    let stat = debugfs(volume.path(), "stat /f");
    let number = stat.split_whitespace().nth(1).unwrap().parse().unwrap();
    volume.assert_clean();
    let bytes = std::fs::read(volume.path()).unwrap();
    let device = Arc::new(MemoryDevice::new(MemoryOptions::new(bytes.len() as u64)).unwrap());
    let pool = BufferPool::new(1 << 20).unwrap();
    let mut buffer = pool.take(65_536).unwrap();
    for (at, part) in bytes.chunks(65_536).enumerate().filter(|(_, part)| part.iter().any(|byte| *byte != 0))
    {
        buffer[..part.len()].copy_from_slice(part);
        let part = &buffer[..part.len()];
        device.write_at(part, at as u64 * 65_536, WriteDurability::Cached).unwrap();
    }
    Made { device, ino: Ino(number) }
}

impl Made {
    /// The current volume, with nothing cached.
    pub fn open(&self) -> Ext4State {
        let device: Arc<dyn Device> = self.device.clone();
        let superblock = read_superblock(&*device).unwrap();
        let options = VolumeOptions::read_only();
        open_state(Devices { volume: device, log: None }, superblock, &options, RecoveryInfo::clean())
            .unwrap()
    }

    /// Writes changed blocks.
    pub fn write(&self, changed: &BTreeMap<u64, Vec<u8>>) {
        let pool = BufferPool::new(1 << 20).unwrap();
        let mut buffer = pool.take(65_536).unwrap();
        for (block, bytes) in changed {
            let part = &mut buffer[..bytes.len()];
            part.copy_from_slice(bytes);
            self.device.write_at(part, block * bytes.len() as u64, WriteDurability::Cached).unwrap();
        }
    }

    /// `e2fsck -fn` finds nothing.
    pub fn assert_clean(&self) {
        let size = self.device.geometry().size;
        let scratch = Scratch::new(size);
        let path = scratch.sparse_file("after.img", size);
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let pool = BufferPool::new(1 << 20).unwrap();
        let mut buffer = pool.take(65_536).unwrap();
        for at in (0..size).step_by(65_536) {
            let length = (size - at).min(65_536) as usize;
            self.device.read_at(&mut buffer[..length], at).unwrap();
            if buffer[..length].iter().any(|byte| *byte != 0) {
                std::os::unix::fs::FileExt::write_all_at(&file, &buffer[..length], at).unwrap();
            }
        }
        drop(file);
        e2fsck_clean(&path);
    }
}

/// The blocks of a volume, with changes layered over them.
pub struct Sheet<'v> {
    pub state: &'v Ext4State,
    pub changed: BTreeMap<u64, Vec<u8>>,
    /// How often each block was read or changed since the last reset.
    pub touched: RefCell<BTreeSet<u64>>,
    pub calls: Cell<usize>,
    /// Changes of any kind so far.
    pub changes: usize,
    pub freed: BTreeSet<u64>,
}

impl<'v> Sheet<'v> {
    pub fn new(state: &'v Ext4State) -> Sheet<'v> {
        let (touched, freed) = (RefCell::default(), BTreeSet::new());
        Sheet { state, changed: BTreeMap::new(), touched, calls: Cell::new(0), changes: 0, freed }
    }

    fn touch(&self, block: Pblk) {
        self.touched.borrow_mut().insert(block.get());
        self.calls.set(self.calls.get() + 1);
    }

    pub fn read(&self, block: u64) -> Vec<u8> {
        match self.changed.get(&block) {
            Some(bytes) => bytes.clone(),
            None => self.state.cache.read(block).unwrap().to_vec(),
        }
    }
}

impl Blocks for Sheet<'_> {
    fn ground(&self) -> &Ground {
        self.state
    }

    fn look<T>(&self, block: Pblk, look: impl FnOnce(&[u8]) -> T) -> Result<T> {
        self.touch(block);
        match self.changed.get(&block.get()) {
            Some(bytes) => Ok(look(bytes)),
            None => Ok(look(&self.state.cache.read(block.get())?)),
        }
    }

    fn change<T>(&mut self, block: Pblk, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        assert!(self.touched.borrow().contains(&block.get()), "block {block} is changed without a look");
        assert!(!self.freed.contains(&block.get()), "block {block} is changed after it was freed");
        self.touch(block);
        self.changes += 1;
        let home = self.read(block.get());
        Ok(change(self.changed.entry(block.get()).or_insert(home)))
    }

    fn fresh<T>(&mut self, block: Pblk, fill: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        self.touch(block);
        self.changes += 1;
        self.freed.remove(&block.get());
        let zeroes = vec![0; self.state.cache.block_size() as usize];
        let bytes = self.changed.entry(block.get()).or_default();
        *bytes = zeroes;
        Ok(fill(bytes))
    }

    fn freed(&mut self, block: Pblk) -> Result<()> {
        self.touch(block);
        self.changes += 1;
        assert!(self.freed.insert(block.get()), "block {block} is freed twice");
        self.changed.remove(&block.get());
        Ok(())
    }
}

/// Free clusters of a volume, by their first blocks.
pub struct Pool {
    pub free: BTreeSet<u64>,
    managed: BTreeSet<u64>,
    pub cluster: u64,
    cursor: u64,
    /// How many more may be taken as metadata.
    pub allowed: usize,
}

impl Pool {
    /// The pool from the bitmaps of a volume.
    pub fn new(state: &Ext4State) -> Pool {
        let geometry = &state.superblock.geometry;
        let cluster = u64::from(geometry.cluster_blocks());
        let mut free = BTreeSet::new();
        for group in geometry.groups() {
            let descriptor = state.descriptor(group).unwrap();
            if descriptor.blocks_uninitialised(&state.superblock) {
                continue;
            }
            let bitmap = state.cache.read(descriptor.block_bitmap.get()).unwrap();
            let start = geometry.group_first_block(group).unwrap().get();
            let clusters = 0..geometry.group_clusters(group).unwrap() as usize;
            let is_free = |index: &usize| bitmap[index / 8] >> (index % 8) & 1 == 0;
            free.extend(clusters.filter(is_free).map(|index| start + index as u64 * cluster));
        }
        Pool { managed: free.clone(), free, cluster, cursor: 0, allowed: usize::MAX }
    }

    /// Takes up to `count` consecutive clusters for data, somewhere.
    pub fn run(&mut self, from: u64, count: u64) -> Option<(u64, u64)> {
        let first = self.free.range(from..).chain(&self.free).next().copied()?;
        let mut length = 0;
        while length < count && self.free.remove(&(first + length * self.cluster)) {
            length += 1;
        }
        Some((first, length))
    }

    pub fn put(&mut self, first: u64, blocks: u64) {
        assert!(first.is_multiple_of(self.cluster) || self.cluster == 1);
        for block in (first..first + blocks).step_by(self.cluster as usize) {
            assert!(self.managed.contains(&block), "block {block} was never given away");
            assert!(self.free.insert(block), "block {block} is returned twice");
        }
    }

    /// Writes bitmaps and descriptors.
    pub fn store(&self, sheet: &mut Sheet<'_>) {
        let state = sheet.state;
        let (geometry, mut all) = (&state.superblock.geometry, 0);
        for group in geometry.groups() {
            let mut descriptor = state.descriptor(group).unwrap();
            all += u64::from(descriptor.free_clusters);
            if descriptor.blocks_uninitialised(&state.superblock) {
                continue;
            }
            all -= u64::from(descriptor.free_clusters);
            let mut bitmap = sheet.read(descriptor.block_bitmap.get());
            let start = geometry.group_first_block(group).unwrap().get();
            let mut free = 0;
            for index in 0..geometry.group_clusters(group).unwrap() as usize {
                let block = start + index as u64 * self.cluster;
                if self.managed.contains(&block) {
                    bitmap[index / 8] &= !(1 << (index % 8));
                    bitmap[index / 8] |= u8::from(!self.free.contains(&block)) << (index % 8);
                }
                free += u32::from(bitmap[index / 8] >> (index % 8) & 1 == 0);
            }
            all += u64::from(free);
            descriptor.free_clusters = free;
            descriptor.set_block_bitmap_csum(&bitmap, &state.superblock).unwrap();
            sheet.changed.insert(descriptor.block_bitmap.get(), bitmap);
            store_descriptor(sheet, group, &descriptor);
        }
        store_count(sheet, (all * self.cluster) as u32);
    }
}

/// Writes the number of free blocks into the superblock.
fn store_count(sheet: &mut Sheet<'_>, free: u32) {
    let superblock = &sheet.state.superblock;
    let (block, offset) = superblock.geometry.superblock_position();
    let mut bytes = sheet.read(block.get());
    let place = &mut bytes[offset as usize..][..1024];
    place[0x0c..0x10].copy_from_slice(&free.to_le_bytes());
    if superblock.features.metadata_csum() {
        let sum = uext4_ondisk::checksum::csum(!0, &place[..0x3fc]);
        place[0x3fc..].copy_from_slice(&sum.to_le_bytes());
    }
    sheet.changed.insert(block.get(), bytes);
}

fn store_descriptor(sheet: &mut Sheet<'_>, group: Group, descriptor: &uext4_ondisk::ext4::GroupDescriptor) {
    let superblock = &sheet.state.superblock;
    let (block, offset) = superblock.geometry.descriptor_position(group).unwrap();
    let mut bytes = sheet.read(block.get());
    descriptor.encode(&mut bytes[offset as usize..], group, superblock).unwrap();
    sheet.changed.insert(block.get(), bytes);
}

impl Space for Pool {
    fn take(&mut self, _: &mut impl Blocks, _: Ino, count: usize, limit: u64) -> Result<Vec<Pblk>> {
        self.allowed = self.allowed.checked_sub(count).ok_or(Error::NoSpace)?;
        let mut taken = Vec::new();
        for _ in 0..count {
            // Not in order, so that nodes lie between data.
            self.cursor = (self.cursor + 7919) % self.managed.last().copied().unwrap_or(1);
            match self.run(self.cursor, 1).filter(|run| run.0 < limit) {
                Some((block, _)) => taken.push(Pblk(block)),
                None => {
                    self.free.extend(taken.iter().map(|block| block.get()));
                    return Err(Error::NoSpace);
                }
            }
        }
        Ok(taken)
    }

    fn give_back(&mut self, _: &mut impl Blocks, _: Ino, runs: &[(Pblk, u64)]) -> Result<()> {
        runs.iter().for_each(|(first, count)| self.put(first.get(), *count));
        Ok(())
    }
}

/// Writes everything to the volume, including the inode.
pub fn store(made: &Made, sheet: &mut Sheet<'_>, pool: &Pool, draft: &mut Draft) {
    pool.store(sheet);
    let (block, _) = crate::inode::draft::place_of(sheet.state, draft.ino).unwrap();
    sheet.look(block, |_| ()).unwrap();
    draft.store(sheet).unwrap();
    made.write(&sheet.changed);
}
