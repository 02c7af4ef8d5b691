//! Measures on a given device. Missing files are created, and removed afterwards; nothing else on the volume changes,
//! unless it is to be formatted.

use super::build::{self, file_name};
use super::janitor::Leftovers;
use super::{Backing, Bed, Layout, Scratch, Standard, open_device};
use crate::error::{BenchError, Doing, Result};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4::device::{Locator, Scheme};
use uext4::{DeviceSpec, Switches, Target, Volume};

/// `--device`.
#[derive(Debug, Clone)]
pub struct Given {
    spec: DeviceSpec,
    dir: PathBuf,
    /// The device as it was named, without the directory.
    device: OsString,
    label: String,
    format: Format,
    program: PathBuf,
}

/// Whether the device is formatted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The volume is used as it is.
    Never,
    /// If it has no recognized contents.
    Empty,
    /// Whatever it contains.
    Always,
}

impl Given {
    /// Understands the argument. `program` is `uext4`, which removes files.
    pub fn parse(argument: &OsStr, format: Format, program: &Path) -> Result<Self> {
        let target =
            Target::parse_bytes(argument.as_bytes()).map_err(|error| BenchError::Usage(error.to_string()))?;
        let mkfs = format != Format::Never;
        let bytes = argument.as_bytes();
        let device = target.path.as_ref().and_then(|path| bytes.strip_suffix(&path[..])?.strip_suffix(b":"));
        let device = OsStr::from_bytes(device.unwrap_or(bytes)).to_owned();
        let dir = PathBuf::from(OsString::from_vec(target.path.unwrap_or_else(|| b"/".to_vec())));
        let (spec, label) = (target.spec, argument.to_string_lossy().into_owned());
        let narrowed = spec.options.partition.is_some() || spec.options.offset.is_some();
        let refuse = |why: &str| Err(BenchError::Usage(format!("{label}: {why}")));
        match spec.scheme {
            Scheme::Null => return refuse("`null:` moves no data, so there is nothing to measure"),
            Scheme::Memory if !mkfs => return refuse("`mem:` starts empty: add --mkfs"),
            scheme if mkfs && scheme.is_remote() => {
                return refuse("--mkfs formats files, block devices and memory: use `uext4 mkfs` first");
            }
            _ if mkfs && narrowed => {
                return refuse("--mkfs formats whole devices: name the partition's device");
            }
            _ if spec.options.read_only => return refuse("measurements write: take `?ro` away"),
            _ => {}
        }
        Ok(Given { spec, dir, device, label, format, program: program.to_owned() })
    }

    /// Whether the device is mapped memory.
    pub fn is_dax(&self) -> bool {
        self.spec.scheme == Scheme::Dax
    }

    /// Refuses to format a device with contents, unless forced. Call it once: a formatted device has contents.
    pub fn spare_contents(&self) -> Result<()> {
        match (&self.spec.locator, self.format) {
            (Locator::Path(path), Format::Empty) => {
                let device = open_device(&DeviceSpec::file(path))?;
                let refused = |error| BenchError::failed(format!("format {}: {error}", self.label));
                uext4::mkfs::refuse_occupied(&*device).map_err(refused)
            }
            _ => Ok(()),
        }
    }

    /// The volume with the files that `layout` asks for. Those that are not there are made; the bed removes them.
    pub fn bed(&self, layout: Layout) -> Result<Bed> {
        let files: Vec<PathBuf> = (0..layout.files).map(|number| self.dir.join(file_name(number))).collect();
        let backing = match &self.spec.locator {
            Locator::Size(size) => self.in_memory(*size, layout)?,
            Locator::Path(path) => {
                if self.format != Format::Never {
                    self.format(path, layout)?;
                }
                Backing::Spec(self.spec.clone())
            }
            Locator::Remote(_) => Backing::Spec(self.spec.clone()),
        };
        let bed = Bed::of(backing, self.label.clone(), files);
        let leftovers = self.make_files(bed.open(Switches::ON)?, &bed.files, layout)?;
        Ok(Bed { block_device: self.block_device(), leftovers, ..bed })
    }

    /// Makes the files that are not there; what removes them is there before.
    fn make_files(&self, volume: Volume, files: &[PathBuf], layout: Layout) -> Result<Option<Leftovers>> {
        let mut missing = Vec::new();
        for (number, file) in files.iter().enumerate() {
            match volume.metadata(file) {
                Ok(_) => {}
                Err(uext4::Error::NotFound) => missing.push((number, file)),
                Err(error) => return Err(error).doing(|| format!("look at {}", file.display())),
            }
        }
        if missing.is_empty() {
            return Ok(None);
        }
        volume.metadata(&self.dir).doing(|| format!("look at {}", self.dir.display()))?;
        let argument = |file: &Path| [self.device.as_bytes(), b":", file.as_os_str().as_bytes()].concat();
        let arguments: Vec<OsString> =
            missing.iter().map(|(_, file)| OsString::from_vec(argument(file))).collect();
        let leftovers = Leftovers::of(&self.program, &arguments)?;
        let mut made = missing.iter();
        let made = made.try_for_each(|&(number, file)| build::make_file(&volume, file, number, layout));
        // They cannot go while the volume is open.
        let closed = volume.close().doing(|| format!("close {}", self.label));
        made.and(closed).map(|()| Some(leftovers))
    }

    fn in_memory(&self, size: u64, layout: Layout) -> Result<Backing> {
        let scratch = Scratch::new(size)?;
        let image = scratch.path().join("image");
        build::sparse_file(&image, size)?;
        build::format_filled(&image, layout, &self.dir)?;
        let device = open_device(&self.spec)?;
        build::load(&*device, &image)?;
        Ok(Backing::Kept(device))
    }

    fn format(&self, path: &Path, layout: Layout) -> Result<()> {
        // Refuses a device in use; mke2fs would not notice every user of an image.
        drop(open_device(&DeviceSpec::file(path))?);
        build::format_filled(path, layout, &self.dir)?;
        let meta = path.metadata().doing(|| format!("look at {}", path.display()))?;
        if self.is_dax() && meta.is_file() { build::allocate_all(path, meta.len()) } else { Ok(()) }
    }

    /// The device that the kernel could mount: a whole block device that is not mapped.
    fn block_device(&self) -> Option<PathBuf> {
        let Locator::Path(path) = &self.spec.locator else { return None };
        let whole = self.spec.options.partition.is_none() && self.spec.options.offset.is_none();
        let plain = matches!(self.spec.scheme, Scheme::File | Scheme::Sync | Scheme::Nvme);
        let block = path.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
        (whole && plain && block).then(|| path.clone())
    }
}

/// Where a scenario runs.
#[derive(Debug, Clone)]
pub enum Source {
    /// On a volume made for it.
    Standard(Standard),
    /// On the device of `--device`.
    Given(Arc<Given>),
}

impl Source {
    /// Makes or finds the volume.
    pub fn bed(&self, layout: Layout) -> Result<Bed> {
        match self {
            Source::Standard(standard) => Bed::standard(*standard, layout),
            Source::Given(given) => given.bed(layout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str, format: Format) -> Result<Given> {
        Given::parse(OsStr::new(text), format, Path::new("uext4"))
    }

    #[test]
    fn what_cannot_be_measured_is_bad_usage() {
        for (text, format) in [
            ("null:disk.img", Format::Never),
            ("mem:64M", Format::Never),
            ("disk.img?ro", Format::Never),
            ("disk.img?offset=4096", Format::Empty),
            ("disk.img?partition=1", Format::Always),
            ("nonsense:disk.img", Format::Never),
        ] {
            let error = parsed(text, format).unwrap_err();
            assert!(matches!(error, BenchError::Usage(_)), "{text}: {error}");
        }
        let given = parsed("dax:/mnt/disk.img:/some/dir", Format::Never).unwrap();
        assert!(given.is_dax());
        assert_eq!(given.device, "dax:/mnt/disk.img");
        assert_eq!(parsed("disk.img?partition=1", Format::Never).unwrap().device, "disk.img?partition=1");
        assert_eq!(given.dir, Path::new("/some/dir"));
    }

    #[test]
    fn memory_is_formatted_and_found_again() {
        let given = parsed("mem:32M:/deep/dir", Format::Empty).unwrap();
        let bed = given.bed(Layout { files: 2, file_bytes: 64 << 10 }).unwrap();
        assert!(bed.block_device.is_none());
        let volume = bed.open(Switches::ON).unwrap();
        assert_eq!(volume.metadata("/deep/dir/uext4-bench.1").unwrap().size, 64 << 10);
        drop(volume);
        bed.finish().unwrap();
    }
}
