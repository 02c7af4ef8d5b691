//! Making volumes, empty or with the files of trees, and checking them.

use crate::call::{DeviceName, Fault, Name, Result, call};
use crate::report::{self, uuid};
use crate::volume::with_journals;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::fs::File;
use std::io;
use std::path::Path;
use uext4::device::{self as devices, Geometry, Locator};
use uext4::mkfs::{self, Defaults, Free, Image, Kind, Made, Options};
use uext4::{DeviceSpec, Timestamp, VolumeOptions};
use uext4_check::check_device;
use uext4_transfer::{ArchiveInput, Devices, GatherOptions, Gathered, Gathering};

/// Bytes of a sector of an image file that does not exist yet.
const SECTOR: u32 = 512;

/// Options of a new volume, as keyword arguments.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct MakeHow {
    size: Option<u64>,
    /// The size is the smallest one for the files.
    fit: bool,
    /// Free space besides, in bytes or in percent.
    free: Option<u64>,
    free_percent: Option<f64>,
    /// Directories and archives, or (folder, tag) of images of containers.
    sources: Vec<Source>,
    owner: Option<(u32, u32)>,
    kind: String,
    debian12: bool,
    usage: Option<String>,
    block_size: Option<u32>,
    cluster_size: Option<u32>,
    inode_size: Option<u16>,
    bytes_per_inode: Option<u32>,
    inodes: Option<u32>,
    label: Name,
    uuid: Option<[u8; 16]>,
    features: Vec<String>,
    extended: Vec<String>,
    journal: Vec<String>,
    reserved_percent: Option<f64>,
    time: Option<u64>,
    read_only: bool,
    force: bool,
    dry_run: bool,
}

/// Files of a new volume.
#[derive(FromPyObject)]
enum Source {
    /// A directory or an archive of the host.
    Path(Name),
    /// An image of a container in an OCI layout.
    Image(Name, Option<String>),
}

impl MakeHow {
    fn options(&self) -> mkfs::Result<Options> {
        let mut options = Options::new(if self.debian12 { Defaults::Debian12 } else { Defaults::Upstream });
        options.kind = match &*self.kind {
            "ext2" => Kind::Ext2,
            "ext3" => Kind::Ext3,
            "ext4" => Kind::Ext4,
            other => return Err(mkfs::Error::Option(format!("type is ext2, ext3 or ext4, not {other}"))),
        };
        options.size = self.size;
        options.block_size = self.block_size;
        options.cluster_size = self.cluster_size;
        options.inode_size = self.inode_size;
        options.inode_ratio = self.bytes_per_inode;
        options.inodes = self.inodes;
        options.label.clone_from(&self.label.0);
        options.uuid = self.uuid;
        options.reserved_percent = self.reserved_percent;
        options.time = self.time;
        options.force = self.force;
        if self.read_only {
            options = options.for_reading();
        }
        if let Some(usage) = &self.usage {
            options = options.usage(usage)?;
        }
        options = self.features.iter().try_fold(options, |options, list| options.features(list))?;
        options = self.extended.iter().try_fold(options, |options, list| options.extended(list))?;
        self.journal.iter().try_fold(options, |options, list| options.journal(list))
    }

    /// The files, in the order of their sources.
    fn gather(&self, spec: &DeviceSpec, room: Option<u64>) -> Result<Option<Gathered>> {
        if self.sources.is_empty() {
            return Ok(None);
        }
        let mut how = GatherOptions {
            owner: self.owner,
            bytes_max: room,
            devices: Devices::of(std::slice::from_ref(spec)),
            ..GatherOptions::default()
        };
        if let Some(seconds) = self.time {
            let seconds = i64::try_from(seconds).map_err(|_| Fault::Value("time is too late".into()))?;
            how.latest = Some(seconds);
            how.time = Timestamp { seconds, nanoseconds: 0 };
        }
        let mut gathering = Gathering::new(how);
        self.sources.iter().try_for_each(|source| add(&mut gathering, source))?;
        gathering.finish().map(Some).map_err(|failures| refused(&failures))
    }

    fn make(&self, spec: &DeviceSpec) -> Result<Made> {
        let mut options = self.options()?;
        if options.is_journal() || options.take_journal_device().is_some() || options.take_offset().is_some()
        {
            return Err(Fault::Value(
                "journals on devices of their own and offset= are for uext4 mkfs".into(),
            ));
        }
        let geometry = geometry(spec)?;
        let room = self.size.or(Some(geometry.size)).filter(|size| *size > 0 && !self.fit);
        let files = self.gather(spec, room)?;
        if let Some(files) = files.as_ref().filter(|_| self.fit) {
            let free = match (self.free, self.free_percent) {
                (Some(bytes), _) => Free::Bytes(bytes),
                (None, Some(percent)) => Free::Percent(percent),
                (None, None) => Free::Bytes(0),
            };
            options = mkfs::smallest(geometry, &options, &files.tree, free)?;
        }
        if self.dry_run {
            let geometry = Image::would_be(spec, options.size)?.unwrap_or(geometry);
            return Ok(match &files {
                Some(files) => mkfs::dry_run_tree(geometry, &options, &files.tree)?,
                None => mkfs::dry_run(geometry, &options)?,
            });
        }
        let image = Image::create(spec, options.size)?;
        let opened = devices::open(spec, devices::OpenOptions { write: true, force: false })?;
        let made = match &files {
            Some(files) => mkfs::format_tree(&*opened.device, &options, &files.tree, files)?,
            None => mkfs::format(&*opened.device, &options)?,
        };
        image.keep();
        Ok(made)
    }
}

fn refused(failures: &uext4_transfer::Failures) -> Fault {
    Fault::with_errno(failures.errno(), failures.to_string())
}

/// Adds a layer of files.
fn add(gathering: &mut Gathering, source: &Source) -> Result<()> {
    let name = match source {
        Source::Image(folder, tag) => {
            let added = gathering.oci(folder.path(), tag.as_deref());
            return added.map_err(|failures| refused(&failures));
        }
        Source::Path(name) => name,
    };
    let host = |error: io::Error| {
        let errno = error.raw_os_error().unwrap_or_default();
        Fault::with_errno(errno, error.to_string()).at(&name.0)
    };
    let path: &Path = name.path();
    let added = if std::fs::metadata(path).map_err(host)?.is_dir() {
        gathering.host(path)
    } else {
        gathering.archive(path, ArchiveInput::File(File::open(path).map_err(host)?))
    };
    added.map_err(|failures| refused(&failures))
}

/// The geometry of the device, even if it is in use; that of a usual one if it does not exist yet.
fn geometry(spec: &DeviceSpec) -> Result<Geometry> {
    if matches!(&spec.locator, Locator::Path(path) if !path.exists()) {
        return Ok(Geometry { size: 0, logical_block: SECTOR, memory_align: SECTOR });
    }
    Ok(devices::open(spec, devices::OpenOptions { write: false, force: true })?.device.geometry())
}

/// Makes a volume. Returns the fields of `uext4.Made`.
#[pyfunction]
#[pyo3(name = "mkfs")]
pub(crate) fn make_volume<'py>(
    py: Python<'py>,
    name: DeviceName,
    how: MakeHow,
) -> PyResult<Bound<'py, PyDict>> {
    let made = call(py, || how.make(&name.spec()?).map_err(|fault| fault.about(name.bytes())))?;
    let (superblock, dict) = (&made.superblock, PyDict::new(py));
    let geometry = &superblock.geometry;
    let features: Vec<_> = superblock.features.names().into_iter().map(|name| name.into_owned()).collect();
    dict.set_item("uuid", uuid(&superblock.uuid))?;
    dict.set_item("size", geometry.blocks_count() * u64::from(geometry.block_size()))?;
    dict.set_item("block_size", geometry.block_size())?;
    dict.set_item("blocks", geometry.blocks_count())?;
    dict.set_item("reserved_blocks", superblock.reserved_blocks)?;
    dict.set_item("free_blocks", superblock.free_blocks)?;
    dict.set_item("inodes", geometry.inodes_count())?;
    dict.set_item("free_inodes", superblock.free_inodes)?;
    dict.set_item("inode_size", geometry.inode_size())?;
    dict.set_item("groups", geometry.group_count())?;
    dict.set_item("journal_blocks", made.journal_blocks)?;
    dict.set_item("too_small_for_journal", made.without_journal)?;
    dict.set_item("backups", made.backups())?;
    dict.set_item("features", features)?;
    Ok(dict)
}

/// Looks for damage on a device, also if the volume cannot be opened. Writes nothing.
#[pyfunction]
pub(crate) fn check<'py>(
    py: Python<'py>,
    name: DeviceName,
    threads: Option<u32>,
    per_kind: usize,
    force: bool,
    journals: Vec<DeviceName>,
) -> PyResult<Bound<'py, PyDict>> {
    let options = report::check_options(threads, per_kind);
    let found = call(py, || {
        let how = devices::OpenOptions { write: false, force };
        let spec = name.spec()?;
        let opened = devices::open(&spec, how).map_err(|error| Fault::from(error).at(name.bytes()))?;
        let volume = with_journals(VolumeOptions::read_only().force(force), &journals)?;
        let found = check_device(opened.device, volume, &options, &mut |_| {});
        found.map_err(|error| Fault::from(error).at(name.bytes()))
    })?;
    report::checked(py, &found)
}
