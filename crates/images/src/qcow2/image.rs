//! An open image, as its device and all its queues share it.

use super::compressed::inflate;
use super::entry::{COPIED, Kind, PLACE, Shape};
use super::header::{self, Header};
use super::queue::ImageQueue;
use super::table::{Piece, Table, Tables};
use super::write::Writing;
use crate::bytes::Bytes;
use crate::cache::Bounded;
use crate::disk::{Disk, padded_zeros, read_padded};
use crate::fault::fault;
use crate::named::{Chain, OpenBacking};
use crate::order::number;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uext4_blockdev::{Geometry, ImageFault, Process, Queue, QueueOptions, Result, Store};

/// Bytes of decompressed clusters that an image keeps.
const CLUSTERS_BYTES: u64 = 16 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct Image {
    pub(super) path: PathBuf,
    pub(super) header: Header,
    pub(super) shape: Shape,
    /// The file of the tables.
    pub(super) file: Bytes,
    /// The file of the data: the same, or an external one.
    pub(super) data: Bytes,
    /// Bytes that the file of the data has. Nobody else changes it.
    pub(super) length: AtomicU64,
    pub(super) l1: Box<[AtomicU64]>,
    pub(super) tables: Tables,
    /// Decompressed clusters, by their entries.
    clusters: Mutex<Bounded<[u8]>>,
    pub(super) below: Option<Arc<dyn Disk>>,
    pub(super) process: Process,
    /// If it is open for writing.
    pub(super) writing: Option<Writing>,
}

/// Opens the image in `file`, which is at `path`.
pub(crate) fn open(
    path: &Path,
    file: Bytes,
    chain: &Chain,
    write: bool,
    backing: &OpenBacking,
) -> Result<Image> {
    let at = |wrong| fault(path, wrong);
    let header = header::read(&file)?.map_err(at)?;
    let cluster = header.cluster_size();
    if cluster < file.block() {
        let (cluster, block) = (cluster, file.block());
        return Err(at(ImageFault::Unsupported(format!("clusters of {cluster} bytes on blocks of {block}"))));
    }
    if let (true, Some(reason)) = (write, header.refuses_writes()) {
        return Err(at(ImageFault::ReadOnly(reason.to_owned())));
    }
    let shape = Shape {
        cluster_bits: header.cluster_bits,
        l2_bits: header.l2_bits(),
        extended: header.is_extended(),
        external: header.has_data_file(),
        zeros: header.version >= 3,
    };
    let data = match &header.data_file {
        Some(name) if header.has_data_file() => chain.open(path, name, write)?.bytes,
        _ => file.clone(),
    };
    if cluster < data.block() {
        let reason = format!("clusters of {cluster} bytes on blocks of {} in the data file", data.block());
        return Err(at(ImageFault::Unsupported(reason)));
    }
    let below = match &header.backing {
        Some(name) => Some(backing(chain, path, name, header.backing_format.as_deref())?),
        None => None,
    };
    if header.l1_at + header.l1_needed() as u64 * 8 > file.store().length()? {
        return Err(at(ImageFault::Header("its first-level table lies behind the end of the file".into())));
    }
    let mut l1 = vec![0; header.l1_needed() * 8];
    file.read(&mut l1, header.l1_at)?;
    let l1 = l1.as_chunks::<8>().0.iter().map(|word| AtomicU64::new(number(word))).collect();
    let writing = if write { Some(Writing::open(path, &header, &file)?) } else { None };
    Ok(Image {
        path: path.to_owned(),
        length: AtomicU64::new(data.store().length()?),
        clusters: Mutex::new(Bounded::new((CLUSTERS_BYTES / cluster).max(2) as usize)),
        tables: Tables::new(cluster),
        process: Process::current()?,
        header,
        shape,
        file,
        data,
        l1,
        below,
        writing,
    })
}

impl Image {
    pub(super) fn data_store(&self) -> &Arc<dyn Store> {
        self.data.store()
    }

    /// An error about a structure of this image.
    #[cold]
    pub(super) fn damaged(
        &self,
        what: &'static str,
        pos: u64,
        reason: &'static str,
    ) -> uext4_blockdev::Error {
        fault(&self.path, ImageFault::Structure { what, pos, reason })
    }

    /// The second-level table of this number. `None`: there is none, and all of it lies below.
    pub(super) fn table(&self, index: u64) -> Result<Option<Arc<Table>>> {
        loop {
            if let Some(table) = self.tables.get(index) {
                return Ok(Some(table));
            }
            let generation = self.tables.generation();
            let word = self.l1[index as usize].load(Ordering::Acquire);
            let host = self.table_place(index, word)?;
            if host == 0 {
                return Ok(None);
            }
            let mut bytes = vec![0; self.shape.cluster() as usize];
            self.file.read(&mut bytes, host)?;
            // It may have been put elsewhere, or changed and forgotten, while it was read.
            let same = self.l1[index as usize].load(Ordering::Acquire) & PLACE == host;
            let table = Arc::new(Table::new(host, &bytes));
            if let Some(table) = self.tables.add(index, table, generation).filter(|_| same) {
                return Ok(Some(table));
            }
        }
    }

    /// Where the entry `word` of the first-level table says that a table is.
    pub(super) fn table_place(&self, index: u64, word: u64) -> Result<u64> {
        let host = word & PLACE;
        if host.is_multiple_of(self.shape.cluster()) && word & !(PLACE | COPIED) == 0 {
            return Ok(host);
        }
        Err(self.damaged("first-level table", self.header.l1_at + 8 * index, "an impossible place"))
    }

    /// The piece of `pos..end` that begins at `pos`, inside the disk.
    pub(super) fn piece(&self, pos: u64, end: u64) -> Result<Piece> {
        let (index, _) = self.shape.split(pos);
        match self.table(index)? {
            Some(table) => self.piece_in(&table, pos, end),
            None => Ok(Piece { kind: Kind::Below, end: end.min((index + 1) << self.shape.table_bits()) }),
        }
    }

    #[inline]
    pub(super) fn piece_in(&self, table: &Table, pos: u64, end: u64) -> Result<Piece> {
        table
            .piece(&self.shape, pos, end)
            .map_err(|(reason, place)| self.damaged("second-level table", place, reason))
    }

    /// Whether the file has all these bytes. Those behind its end read as zeros.
    #[inline]
    pub(super) fn has(&self, host: u64, length: u64) -> bool {
        host + length <= self.length.load(Ordering::Acquire)
    }

    /// The decompressed cluster of an entry.
    fn cluster_of(&self, word: u64) -> Result<Arc<[u8]>> {
        if let Some(cluster) = self.clusters.lock().get(word) {
            return Ok(cluster);
        }
        let (pos, length) = self.shape.compressed(word);
        // At most two clusters: a cluster that is larger when compressed is not compressed.
        let length = length.min(2 * self.shape.cluster());
        let mut bytes = vec![0; length as usize];
        self.file.read(&mut bytes, pos)?;
        let cluster = inflate(self.header.compression, &bytes, self.shape.cluster() as usize);
        let cluster = cluster.map_err(|reason| self.damaged("compressed cluster", pos, reason))?;
        let cluster: Arc<[u8]> = cluster.into();
        self.clusters.lock().insert(word, Arc::clone(&cluster), |_| false);
        Ok(cluster)
    }

    /// Reads bytes of the disk, piece by piece. Nothing that it finds may be used for anything else meanwhile: the
    /// caller has [`Image::in_use`], or the lock of the tables.
    pub(super) fn read_now(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        let end = pos + buf.len() as u64;
        let mut at = pos;
        while at < end {
            let piece = self.piece(at, end)?;
            let part = &mut buf[(at - pos) as usize..(piece.end - pos) as usize];
            match piece.kind {
                Kind::Data { host, .. } => self.data.read(part, host)?,
                Kind::Zero => part.fill(0),
                Kind::Below => match &self.below {
                    Some(below) => read_padded(&**below, part, at)?,
                    None => part.fill(0),
                },
                Kind::Compressed { word } => {
                    let inside = (at & (self.shape.cluster() - 1)) as usize;
                    part.copy_from_slice(&self.cluster_of(word)?[inside..inside + part.len()]);
                }
            }
            at = piece.end;
        }
        Ok(())
    }

    /// Whether these bytes, all inside the disk, are known to be zeros.
    pub(super) fn is_zeros(&self, pos: u64, length: u64) -> bool {
        let end = pos + length;
        let mut at = pos;
        while at < end {
            let Ok(piece) = self.piece(at, end) else { return false };
            let zeros = match piece.kind {
                Kind::Data { host, .. } => {
                    let length = piece.end - at;
                    !self.has(host, 1) || self.data_store().reads_zeros(host, length)
                }
                Kind::Zero => true,
                Kind::Below => {
                    self.below.as_ref().is_none_or(|below| padded_zeros(&**below, at, piece.end - at))
                }
                Kind::Compressed { .. } => false,
            };
            if !zeros {
                return false;
            }
            at = piece.end;
        }
        true
    }

    /// For `info`: the image, then what it names.
    pub(super) fn all_names(&self) -> Vec<String> {
        let cluster = self.shape.cluster() >> 10;
        let size = if cluster == 0 { "512-byte".to_owned() } else { format!("{cluster} KiB") };
        let mut words = vec![format!("qcow2 {} ({size} clusters", self.path.display())];
        words.extend(self.header.features().into_iter().map(str::to_owned));
        let mut names = vec![words.join(", ") + ")"];
        if let Some(name) = self.header.data_file.as_ref().filter(|_| self.shape.external) {
            names.push(format!("data file {name}"));
        }
        let below = self.below.iter().flat_map(|below| below.names());
        names.extend(below.map(|name| format!("over {name}")));
        names
    }
}

impl Disk for Image {
    fn size(&self) -> u64 {
        self.header.size
    }

    fn read(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.process.check()?;
        self.read_now(buf, pos)
    }

    fn reads_zeros(&self, pos: u64, length: u64) -> bool {
        self.is_zeros(pos, length)
    }

    fn settle(&self) -> Result<()> {
        self.file.store().settle()?;
        if self.shape.external {
            self.data_store().settle()?;
        }
        self.below.as_ref().map_or(Ok(()), |below| below.settle())
    }

    fn names(&self) -> Vec<String> {
        self.all_names()
    }

    fn queue(self: Arc<Self>, options: &QueueOptions) -> Result<Option<(Queue, Geometry)>> {
        Ok(Some((ImageQueue::open(&self, options)?, self.geometry())))
    }
}
