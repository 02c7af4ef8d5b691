//! Measuring on a device that somebody names. Nothing is created there without `--mkfs`: this version of the
//! library cannot make files, so they have to exist.

use super::build::{self, file_name};
use super::{Backing, Bed, Layout, Scratch, Standard, open_device};
use crate::error::{BenchError, Doing, Result};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4::blockdev::spec::{Locator, Scheme};
use uext4::{DeviceSpec, Switches, Target, Volume};

/// `--device`.
#[derive(Debug, Clone)]
pub struct Given {
    spec: DeviceSpec,
    dir: PathBuf,
    label: String,
    mkfs: bool,
}

impl Given {
    /// Understands the argument.
    pub fn parse(argument: &OsStr, mkfs: bool) -> Result<Self> {
        let target =
            Target::parse_bytes(argument.as_bytes()).map_err(|error| BenchError::Usage(error.to_string()))?;
        let dir = PathBuf::from(OsString::from_vec(target.path.unwrap_or_else(|| b"/".to_vec())));
        let (spec, label) = (target.spec, argument.to_string_lossy().into_owned());
        let narrowed = spec.options.partition.is_some() || spec.options.offset.is_some();
        let refuse = |why: &str| Err(BenchError::Usage(format!("{label}: {why}")));
        match spec.scheme {
            Scheme::Null => return refuse("`null:` moves no data, so there is nothing to measure"),
            Scheme::Memory if !mkfs => return refuse("`mem:` starts empty: add --mkfs"),
            _ if mkfs && narrowed => {
                return refuse("--mkfs formats whole devices: name the partition's device");
            }
            _ if spec.options.read_only => return refuse("measurements write: take `?ro` away"),
            _ => {}
        }
        Ok(Given { spec, dir, label, mkfs })
    }

    /// Whether the device is mapped memory.
    pub fn is_dax(&self) -> bool {
        self.spec.scheme == Scheme::Dax
    }

    /// The volume with the files that `layout` asks for: found, or with `--mkfs` made.
    pub fn bed(&self, layout: Layout) -> Result<Bed> {
        let files = (0..layout.files).map(|number| self.dir.join(file_name(number))).collect();
        let backing = match &self.spec.locator {
            Locator::Size(size) => self.in_memory(*size, layout)?,
            Locator::Path(path) => {
                if self.mkfs {
                    self.format(path, layout)?;
                }
                Backing::Spec(self.spec.clone())
            }
        };
        let bed = Bed::of(backing, self.label.clone(), files);
        let volume = bed.open(Switches::ON)?;
        self.find_files(&volume, &bed.files)?;
        drop(volume);
        Ok(Bed { block_device: self.block_device(), ..bed })
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
        // Refuses what somebody else uses; mke2fs would not notice every user of an image.
        drop(open_device(&DeviceSpec::file(path))?);
        build::format_filled(path, layout, &self.dir)?;
        let meta = path.metadata().doing(|| format!("look at {}", path.display()))?;
        if self.is_dax() && meta.is_file() { build::allocate_all(path, meta.len()) } else { Ok(()) }
    }

    fn find_files(&self, volume: &Volume, files: &[PathBuf]) -> Result<()> {
        let missing = files.iter().find(|file| volume.metadata(file).is_err());
        let Some(missing) = missing else { return Ok(()) };
        Err(BenchError::failed(format!(
            "{} is not on {}: this version cannot create files. Mount the volume and write {} files there, \
             each with `dd if=/dev/urandom of={}.N bs=1M count=… conv=fsync` (N from 0), or let --mkfs \
             format the device",
            missing.display(),
            self.spec,
            files.len(),
            self.dir.join("uext4-bench").display(),
        )))
    }

    /// What the kernel could mount: a whole block device that is not mapped.
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

    #[test]
    fn what_cannot_be_measured_is_bad_usage() {
        for (text, mkfs) in [
            ("null:disk.img", false),
            ("mem:64M", false),
            ("disk.img?ro", false),
            ("disk.img?offset=4096", true),
            ("disk.img?partition=1", true),
            ("nonsense:disk.img", false),
        ] {
            let error = Given::parse(OsStr::new(text), mkfs).unwrap_err();
            assert!(matches!(error, BenchError::Usage(_)), "{text}: {error}");
        }
        let given = Given::parse(OsStr::new("dax:/mnt/disk.img:/some/dir"), false).unwrap();
        assert!(given.is_dax());
        assert_eq!(given.dir, Path::new("/some/dir"));
    }

    #[test]
    fn memory_is_formatted_and_found_again() {
        let given = Given::parse(OsStr::new("mem:32M:/deep/dir"), true).unwrap();
        let bed = given.bed(Layout { files: 2, file_bytes: 64 << 10 }).unwrap();
        assert!(bed.block_device.is_none());
        let volume = bed.open(Switches::ON).unwrap();
        assert_eq!(volume.metadata("/deep/dir/uext4-bench.1").unwrap().size, 64 << 10);
        drop(volume);
        bed.check().unwrap();
    }
}
