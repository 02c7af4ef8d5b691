//! dm-verity: a hash tree over a whole volume, with a superblock before it, as `veritysetup format` makes it.

use super::error::{Error, Result};
use super::write::REQUEST;
use crate::ground::error::Error as VolumeError;
use crate::verity::hash::{DIGEST_MAX, Hasher, raise};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uext4_blockdev::{BufferPool, Device, WriteDurability};
use uext4_ondisk::ext4::{Geometry, HashAlgorithm, Superblock};
use uext4_ondisk::{DM_VERITY_SALT_MAX, DmVeritySuperblock, HashTree};

/// Bytes of a block of the tree, and of a data block unless the volume has smaller ones: what every Linux takes.
const BLOCK: u32 = 4096;
/// Blocks of the lowest level that a thread makes at once.
const UNIT: u64 = 64;
/// Threads. Reading and hashing overlap.
const THREADS: usize = 4;
/// Bytes of a salt that follows from the UUID.
const SALT: usize = 32;

/// How dm-verity is to hash a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DmVerity {
    /// The hash function.
    pub algorithm: HashAlgorithm,
    /// Comes before each block that is hashed, at most 256 bytes; by default 32 bytes that follow from the volume's
    /// UUID.
    pub salt: Option<Vec<u8>>,
}

/// A volume that dm-verity can check.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HashedDevice {
    /// What is before the tree.
    pub superblock: DmVeritySuperblock,
    /// The hash that the device is opened with: whoever knows it knows every byte of the volume.
    pub root_hash: Vec<u8>,
}

fn failed(error: impl Into<VolumeError>) -> Error {
    Error::HashTree(error.into())
}

/// A UUID or a salt that follows from a volume's UUID.
fn derived(purpose: &str, uuid: [u8; 16]) -> [u8; SALT] {
    Sha256::new().chain_update(purpose).chain_update(uuid).finalize().into()
}

/// Volumes of this geometry as a number of data blocks and their size.
fn data_blocks(geometry: &Geometry) -> (u64, u32) {
    let (blocks, block) = (geometry.blocks_count(), geometry.block_size());
    let data_block = block.min(BLOCK);
    (blocks.saturating_mul(u64::from(block / data_block)), data_block)
}

impl DmVerity {
    /// Where the tree of a volume of this geometry begins, if it lies behind the volume on the same device.
    pub fn offset(geometry: &Geometry) -> u64 {
        let (blocks, block) = data_blocks(geometry);
        blocks.saturating_mul(u64::from(block)).next_multiple_of(u64::from(BLOCK))
    }

    /// Bytes of superblock and tree of a volume of this geometry.
    pub fn size(&self, geometry: &Geometry) -> u64 {
        let blocks = self.tree(geometry).map_or(0, |tree| tree.blocks());
        blocks.saturating_add(1).saturating_mul(u64::from(BLOCK))
    }

    fn tree(&self, geometry: &Geometry) -> Option<HashTree> {
        HashTree::new(data_blocks(geometry).0, self.algorithm.per_block(BLOCK))
    }

    /// Refuses what cannot be done, before anything is written.
    ///
    /// # Errors
    /// [`Error::Option`]: a salt that is too long.
    pub fn check(&self) -> Result<()> {
        match self.salt.as_ref().is_some_and(|salt| salt.len() > DM_VERITY_SALT_MAX) {
            true => Err(Error::Option("a salt of dm-verity has at most 256 bytes".into())),
            false => Ok(()),
        }
    }

    /// Reads a whole volume that was made, and writes its hash tree to a device (or, `None`, to the volume's own) from
    /// byte `at` on. The same volume and salt make the same bytes. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Option`] as from [`DmVerity::check`]; [`Error::TooSmall`] if the device ends before the tree does;
    /// [`Error::HashTree`] if a device fails: the volume is made then, and its tree is not.
    pub fn format(
        &self,
        volume: &dyn Device,
        superblock: &Superblock,
        hashes: Option<&dyn Device>,
        at: u64,
    ) -> Result<HashedDevice> {
        self.check()?;
        let (geometry, hashes) = (&superblock.geometry, hashes.unwrap_or(volume));
        let (wanted, have) = (self.size(geometry), hashes.geometry().size);
        if at.checked_add(wanted).is_none_or(|end| end > have) {
            let reason = format!("the hash tree needs {wanted} from byte {at} on");
            return Err(Error::TooSmall { have: format!("the device's {have} bytes"), reason });
        }
        let (data_blocks, data_block_size) = data_blocks(geometry);
        let salt = || derived("dm-verity salt", superblock.uuid).to_vec();
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&derived("dm-verity uuid", superblock.uuid)[..16]);
        // A UUID of its own kind (version 8).
        uuid[6] = uuid[6] & 0x0F | 0x80;
        uuid[8] = uuid[8] & 0x3F | 0x80;
        let made = DmVeritySuperblock {
            uuid,
            algorithm: self.algorithm,
            data_block_size,
            hash_block_size: BLOCK,
            data_blocks,
            salt: self.salt.clone().unwrap_or_else(salt),
        };
        let tree = self.tree(geometry).filter(|tree| tree.levels() > 0);
        let tree = tree.ok_or_else(|| Error::Option("dm-verity: a volume of one block".into()))?;
        let root_hash = Course::new(volume, hashes, at, &made, &tree)?.run()?;
        Ok(HashedDevice { superblock: made, root_hash })
    }
}

/// A volume that is being hashed.
struct Course<'c> {
    volume: &'c dyn Device,
    hashes: &'c dyn Device,
    /// First byte of the superblock of dm-verity.
    at: u64,
    made: &'c DmVeritySuperblock,
    tree: &'c HashTree,
    hasher: Hasher,
    digest: usize,
    /// Digest of a block of zeros.
    hole: [u8; DIGEST_MAX],
    /// Digests of the blocks of the lowest level, one after the other.
    above: Mutex<Vec<u8>>,
}

impl<'c> Course<'c> {
    fn new(
        volume: &'c dyn Device,
        hashes: &'c dyn Device,
        at: u64,
        made: &'c DmVeritySuperblock,
        tree: &'c HashTree,
    ) -> Result<Self> {
        let (hasher, digest) = (Hasher::salted(made.algorithm, &made.salt), made.algorithm.digest_size());
        let mut hole = [0; DIGEST_MAX];
        hasher.block(&vec![0; made.data_block_size as usize], &mut hole[..digest]);
        let above = vec![0; tree.blocks_of(0) as usize * digest];
        Ok(Course { volume, hashes, at, made, tree, hasher, digest, hole, above: Mutex::new(above) })
    }

    /// First byte of a block of the tree.
    fn place(&self, block: u64) -> u64 {
        self.at + (1 + block) * u64::from(BLOCK)
    }

    fn run(self) -> Result<Vec<u8>> {
        let units = self.tree.blocks_of(0).div_ceil(UNIT);
        let (next, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let work = || -> Result<()> {
            while !ended.load(Ordering::Relaxed) {
                let unit = next.fetch_add(1, Ordering::Relaxed);
                if unit >= units {
                    break;
                }
                self.unit(unit).inspect_err(|_| ended.store(true, Ordering::Relaxed))?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (1..THREADS.min(units as usize)).map(|_| scope.spawn(work)).collect();
            let mine = work();
            let died = || failed(VolumeError::Invalid("a thread that hashes died".into()));
            let ends = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(died())));
            ends.fold(mine, |first, end| first.and(end))
        })?;
        self.finish()
    }

    /// Makes and writes some blocks of the lowest level.
    fn unit(&self, unit: u64) -> Result<()> {
        let first = unit * UNIT;
        let count = UNIT.min(self.tree.blocks_of(0) - first);
        let block = BLOCK as usize;
        let pool = BufferPool::new(REQUEST + UNIT as usize * block).map_err(failed)?;
        let mut data = pool.take(REQUEST).map_err(failed)?;
        let mut out = pool.take(count as usize * block).map_err(failed)?;
        out.fill(0);
        let per_block = (block / self.digest) as u64;
        let blocks = (count * per_block).min(self.made.data_blocks - first * per_block);
        let size = u64::from(self.made.data_block_size);
        let (start, length) = (first * per_block * size, blocks * size);
        let mut digests = out.chunks_exact_mut(self.digest);
        for pos in (start..start + length).step_by(REQUEST) {
            let length = (start + length - pos).min(REQUEST as u64);
            let known = self.volume.reads_zeros(pos, length);
            let piece = &mut data[..length as usize];
            if !known {
                self.volume.read_at(piece, pos).map_err(failed)?;
            }
            for (block, digest) in piece.chunks_exact(size as usize).zip(&mut digests) {
                match known {
                    true => digest.copy_from_slice(&self.hole[..self.digest]),
                    false => self.hasher.block(block, digest),
                }
            }
        }
        self.write(&out, self.place(self.tree.first_of(0) + first))?;
        let mut of_blocks = vec![0; count as usize * self.digest];
        let places = of_blocks.chunks_exact_mut(self.digest);
        out.chunks_exact(block).zip(places).for_each(|(block, digest)| self.hasher.block(block, digest));
        let at = first as usize * self.digest;
        self.above.lock()[at..at + of_blocks.len()].copy_from_slice(&of_blocks);
        Ok(())
    }

    fn write(&self, bytes: &[u8], pos: u64) -> Result<()> {
        self.hashes.write_at(bytes, pos, WriteDurability::Cached).map_err(failed)
    }

    /// Makes and writes the levels above and the superblock. Returns the hash of the root.
    fn finish(&self) -> Result<Vec<u8>> {
        let block = BLOCK as usize;
        let above = std::mem::take(&mut *self.above.lock());
        let mut root = vec![0; self.digest];
        // The superblock's block, then all levels but the lowest.
        let length = block + self.tree.first_of(0) as usize * block;
        let mut out: Vec<u8> = Vec::new();
        let no_memory = |_| failed(VolumeError::OutOfMemory { bytes: length as u64 });
        out.try_reserve_exact(length).map_err(no_memory)?;
        out.resize(length, 0);
        let superblock = self.made.encode()?;
        out[..superblock.len()].copy_from_slice(&superblock);
        if self.tree.levels() == 1 {
            root.copy_from_slice(&above);
        } else {
            let start = block + self.tree.first_of(1) as usize * block;
            out[start..start + above.len()].copy_from_slice(&above);
            raise(self.tree, &self.hasher, (block, self.digest), 1, &mut out[block..], &mut root);
        }
        let mut buffer = BufferPool::new(REQUEST).and_then(|pool| pool.take(REQUEST)).map_err(failed)?;
        for (piece, pos) in out.chunks(REQUEST).zip((self.at..).step_by(REQUEST)) {
            buffer[..piece.len()].copy_from_slice(piece);
            self.write(&buffer[..piece.len()], pos)?;
        }
        self.hashes.flush().map_err(failed)?;
        Ok(root)
    }
}
