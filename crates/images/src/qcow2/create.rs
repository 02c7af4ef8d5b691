//! A new, empty image.

use super::header::{CLUSTER_BITS, L1_MAX};
use crate::bytes::Bytes;
use crate::order::{bytes16, bytes32, bytes64};
use crate::recognise::is_named;
use std::path::Path;
use std::sync::Arc;
use uext4_blockdev::spec::{DeviceSpec, Format, Locator, Named};
use uext4_blockdev::{Error, ImageOptions, Result, Store, open_store};

/// What a new image is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qcow2Options {
    /// Bytes of the disk.
    pub size: u64,
    /// Bytes of a cluster, a power of two from 512 to 2 MiB.
    pub cluster_size: u32,
}

impl Qcow2Options {
    /// A disk of `size` bytes in clusters of 64 KiB, as `qemu-img create` makes them.
    pub fn new(size: u64) -> Self {
        Qcow2Options { size, cluster_size: 64 << 10 }
    }
}

/// First bytes of every image.
const MAGIC: u32 = 0x5146_49fb;
/// Bits of a refcount, as a power of two.
const ORDER: u32 = 4;
/// Bytes of the header.
const HEADER: u32 = 112;

/// Where the structures are, in clusters: header, table of refcounts, one block of them, first-level table.
struct Layout {
    bits: u32,
    l1_entries: u64,
    clusters: u64,
}

const REFCOUNTS: u64 = 1;
const BLOCK: u64 = 2;
const L1: u64 = 3;

impl Layout {
    fn of(options: Qcow2Options) -> Result<Layout> {
        let bits = options.cluster_size.trailing_zeros();
        let refused = |what: String| Err(Error::Unsupported(what));
        if !options.cluster_size.is_power_of_two() || !CLUSTER_BITS.contains(&bits) {
            return refused(format!("qcow2 clusters of {} bytes", options.cluster_size));
        }
        let l1_entries = options.size.div_ceil(1 << (2 * bits - 3));
        let clusters = L1 + (l1_entries * 8).div_ceil(1 << bits);
        let counted = (8 << bits) >> ORDER;
        if options.size > i64::MAX as u64 || l1_entries * 8 > L1_MAX || clusters > counted {
            let (size, cluster) = (options.size, options.cluster_size);
            return refused(format!("a qcow2 image of {size} bytes in clusters of {cluster}"));
        }
        Ok(Layout { bits, l1_entries, clusters })
    }

    fn header(&self, size: u64) -> Vec<u8> {
        let halves = |value: u64| [(value >> 32) as u32, value as u32];
        // Bounded by the largest table.
        let l1_entries = self.l1_entries as u32;
        let words = [
            &[MAGIC, 3][..],
            // No backing file.
            &[0; 3],
            &[self.bits],
            &halves(size),
            &[0, l1_entries],
            &halves(L1 << self.bits),
            &halves(REFCOUNTS << self.bits),
            &[1],
            // No snapshots; no features.
            &[0; 9],
            &[ORDER, HEADER],
            // Compression, and the end of extensions.
            &[0; 4],
        ];
        words.concat().into_iter().flat_map(bytes32).collect()
    }
}

/// The format of a file that is made at this device: what `?format=` says, or else the end of its name.
#[must_use]
pub fn format_of_new(spec: &DeviceSpec) -> Format {
    match (&spec.locator, spec.options.format) {
        (_, Some(format)) => format,
        (Locator::Path(path), None) if is_named(path, Format::Qcow2) => Format::Qcow2,
        _ => Format::Raw,
    }
}

/// Makes an empty image in the file at `path`, which is empty. The rest as of [`create`].
///
/// # Errors
/// Those of [`create`] and of [`open_store`].
pub fn create_at(path: &Path, options: Qcow2Options) -> Result<()> {
    let (format, named) = (Some(Format::Raw), Named::No);
    let file = open_store(&ImageOptions { path, write: true, force: false, sync: true, format, named })?;
    create(&file, options)
}

/// Makes an empty image in `file`, which must read as zeros. It is durable when this returns, and no image before.
///
/// # Errors
/// [`Error::Unsupported`] for a size or clusters that the format has not, and write errors.
pub fn create(file: &Arc<dyn Store>, options: Qcow2Options) -> Result<()> {
    let layout = Layout::of(options)?;
    let bytes = Bytes::new(Arc::clone(file));
    if u64::from(options.cluster_size) < bytes.block() {
        let (cluster, block) = (options.cluster_size, bytes.block());
        return Err(Error::Unsupported(format!("qcow2 clusters of {cluster} bytes on blocks of {block}")));
    }
    file.grow(layout.clusters << layout.bits)?;
    bytes.patch(&bytes64(BLOCK << layout.bits), REFCOUNTS << layout.bits)?;
    let used: Vec<u8> = (0..layout.clusters).flat_map(|_| bytes16(1)).collect();
    bytes.patch(&used, BLOCK << layout.bits)?;
    file.flush()?;
    bytes.patch(&layout.header(options.size), 0)?;
    file.flush()
}
