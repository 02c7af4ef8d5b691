//! VMDK images, for reading: a text that names extents, or one sparse extent with its text inside.

mod descriptor;
mod sparse;

use crate::bytes::Bytes;
use crate::disk::{Disk, padded_zeros, read_padded};
use crate::fault::fault;
use crate::named::Chain;
use crate::read_device::FileDisk;
use crate::recognise;
use descriptor::{Descriptor, ExtentKind};
use sparse::{Share, Sparse};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4_blockdev::{ImageFault, Result, Store};

/// Bytes of a sector, the unit of all numbers of the format.
const SECTOR: u64 = 512;
/// Most bytes of a text.
const TEXT_MAX: u64 = 64 << 10;

/// What an extent is kept in.
#[derive(Debug)]
enum Contents {
    /// Bytes of a file, from this one on.
    Flat(Bytes, u64),
    Sparse(Box<Sparse>),
    Zeros,
}

/// A run of the disk.
#[derive(Debug)]
struct Extent {
    start: u64,
    end: u64,
    contents: Contents,
}

/// The disk in a VMDK image.
#[derive(Debug)]
pub(crate) struct Vmdk {
    path: PathBuf,
    kind: String,
    first: Bytes,
    extents: Vec<Extent>,
    files: Vec<String>,
}

/// Opens the image in `file`, which is at `path`.
pub(crate) fn open(path: &Path, file: Bytes, chain: &Chain) -> Result<Vmdk> {
    let mut first = [0; 4];
    file.read(&mut first, 0)?;
    if first == recognise::VMDK {
        let (sparse, text) = Sparse::open(path, file.clone(), &mut Share::among(1))?;
        let kind = match text {
            Some((at, length)) => {
                let mut text = vec![0; length.min(TEXT_MAX) as usize];
                file.read(&mut text, at)?;
                Descriptor::parse(&text).map_err(|wrong| fault(path, wrong))?.kind
            }
            None => "sparse".to_owned(),
        };
        let extent = Extent { start: 0, end: sparse.size(), contents: Contents::Sparse(Box::new(sparse)) };
        return Ok(Vmdk {
            path: path.to_owned(),
            kind,
            first: file,
            extents: vec![extent],
            files: Vec::new(),
        });
    }
    let mut text = vec![0; file.store().length()?.min(TEXT_MAX) as usize];
    file.read(&mut text, 0)?;
    let text = Descriptor::parse(&text).map_err(|wrong| fault(path, wrong))?;
    let mut disk =
        Vmdk { path: path.to_owned(), kind: text.kind, first: file, extents: Vec::new(), files: Vec::new() };
    let sparse =
        text.extents.iter().filter(|extent| matches!(extent.kind, ExtentKind::Sparse { .. })).count();
    let mut share = Share::among(sparse);
    for extent in text.extents {
        disk.add(extent, chain, &mut share)?;
    }
    Ok(disk)
}

impl Vmdk {
    fn add(&mut self, extent: descriptor::Extent, chain: &Chain, share: &mut Share) -> Result<()> {
        let start = self.size();
        let end = extent.sectors.checked_mul(SECTOR).and_then(|length| start.checked_add(length));
        let end = end.filter(|end| *end <= i64::MAX as u64);
        let large = || fault(&self.path, ImageFault::Header("its extents are too large".into()));
        let end = end.ok_or_else(large)?;
        let contents = match extent.kind {
            ExtentKind::Zeros => Contents::Zeros,
            ExtentKind::Flat { name, offset } => {
                let at =
                    offset.checked_mul(SECTOR).filter(|at| *at <= i64::MAX as u64 - end).ok_or_else(large)?;
                let opened = chain.open(&self.path, &name, false)?;
                self.files.push(name);
                Contents::Flat(opened.bytes, at)
            }
            ExtentKind::Sparse { name } => {
                let opened = chain.open(&self.path, &name, false)?;
                let (sparse, _) = Sparse::open(&opened.path, opened.bytes, share)?;
                self.files.push(name);
                Contents::Sparse(Box::new(sparse))
            }
        };
        self.extents.push(Extent { start, end, contents });
        Ok(())
    }

    /// The extent that has byte `pos`, which is inside the disk.
    fn at(&self, pos: u64) -> &Extent {
        let index = self.extents.partition_point(|extent| extent.end <= pos);
        &self.extents[index]
    }
}

impl FileDisk for Vmdk {
    fn format(&self) -> &'static str {
        "vmdk"
    }

    fn store(&self) -> &Arc<dyn Store> {
        self.first.store()
    }
}

impl Disk for Vmdk {
    fn size(&self) -> u64 {
        self.extents.last().map_or(0, |extent| extent.end)
    }

    fn read(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        let end = pos + buf.len() as u64;
        let mut at = pos;
        while at < end {
            let extent = self.at(at);
            let upto = extent.end.min(end);
            let part = &mut buf[(at - pos) as usize..(upto - pos) as usize];
            match &extent.contents {
                Contents::Flat(bytes, first) => bytes.read(part, first + (at - extent.start))?,
                Contents::Sparse(sparse) => read_padded(&**sparse, part, at - extent.start)?,
                Contents::Zeros => part.fill(0),
            }
            at = upto;
        }
        Ok(())
    }

    fn reads_zeros(&self, pos: u64, length: u64) -> bool {
        let extent = self.at(pos);
        let inside = pos - extent.start;
        match &extent.contents {
            _ if pos + length > extent.end => false,
            Contents::Flat(bytes, first) => bytes.store().reads_zeros(first + inside, length),
            Contents::Sparse(sparse) => padded_zeros(&**sparse, inside, length),
            Contents::Zeros => true,
        }
    }

    fn settle(&self) -> Result<()> {
        self.first.store().settle()?;
        self.extents.iter().try_for_each(|extent| match &extent.contents {
            Contents::Flat(bytes, _) => bytes.store().settle(),
            Contents::Sparse(sparse) => sparse.settle(),
            Contents::Zeros => Ok(()),
        })
    }

    fn names(&self) -> Vec<String> {
        let mut names = vec![format!("vmdk {} ({})", self.path.display(), self.kind)];
        names.extend(self.files.iter().map(|name| format!("extent {name}")));
        names
    }
}
