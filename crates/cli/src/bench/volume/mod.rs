//! The volumes that are measured: made here and removed, or given.

mod build;
pub mod fragment;
pub mod given;
mod janitor;

pub use build::Layout;
pub use janitor::{MEMORY_DIR, Scratch, Zram};

use super::error::{BenchError, Doing, Result};
use janitor::Loop;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4::blockdev::{Device, OpenOptions};
use uext4::{DeviceSpec, Switches, Volume, VolumeOptions};

/// A standard device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// zram as root, an image file in tmpfs otherwise.
    Zram,
    /// A mapped image file in tmpfs.
    Dax,
    /// As root a loop device over a file in tmpfs with 512-byte sectors, that file itself otherwise.
    Loop,
    /// `mem:` with a volatile cache whose flush takes 2 ms, and FUA.
    MemoryFlush,
    /// `mem:` where each request takes 740 µs.
    MemoryLatency,
    /// A sparse image file in tmpfs with a file of 10⁶ extents beside a contiguous one.
    Extents,
}

/// Through what the volume is opened.
#[derive(Debug, Clone)]
enum Backing {
    /// Opened anew each time.
    Spec(DeviceSpec),
    /// Memory: kept between openings, or its contents would be gone.
    Kept(Arc<dyn Device>),
}

/// A volume to measure on, with its files.
#[derive(Debug)]
pub struct Bed {
    backing: Backing,
    /// The device as JSON and tables name it.
    pub label: String,
    /// Paths of the files inside the volume.
    pub files: Vec<PathBuf>,
    /// The block device that the kernel can mount.
    pub block_device: Option<PathBuf>,
    // Given back in this order.
    _loop_device: Option<Loop>,
    _zram: Option<Zram>,
    _scratch: Option<Scratch>,
}

impl Bed {
    /// Opens the volume for overwriting.
    pub fn open(&self, switches: Switches) -> Result<Volume> {
        let options = VolumeOptions::read_write().switches(switches);
        match &self.backing {
            Backing::Spec(spec) => Volume::open_spec(spec, options),
            Backing::Kept(device) => Volume::open_device(Arc::clone(device), options),
        }
        .doing(|| format!("open {}", self.label))
    }

    /// Asks e2fsck whether the volume is in order. Nobody may have it open.
    pub fn check(&self) -> Result<()> {
        match &self.backing {
            Backing::Spec(spec) => match &spec.locator {
                uext4::blockdev::spec::Locator::Path(path) => fsck(path, &spec.options),
                uext4::blockdev::spec::Locator::Size(_) => Ok(()),
            },
            Backing::Kept(device) => {
                let scratch = Scratch::new(device.geometry().size)?;
                let image = scratch.path().join("image");
                build::dump(&**device, &image)?;
                fsck(&image, &uext4::blockdev::spec::SpecOptions::default())
            }
        }
    }
}

/// `e2fsck -fn`. A volume that does not begin at the first byte is given to it by its offset.
fn fsck(path: &Path, options: &uext4::blockdev::spec::SpecOptions) -> Result<()> {
    let mut target = path.as_os_str().to_owned();
    if let Some(offset) = options.offset {
        target.push(format!("?offset={offset}"));
    }
    if options.partition.is_some() {
        return Err(BenchError::Usage(
            "e2fsck cannot be told a partition: name the partition's device, or use ?offset=".into(),
        ));
    }
    tool(Command::new("e2fsck").arg("-fn").arg(target)).map(drop).map_err(|error| {
        BenchError::failed(format!("the volume is damaged after the measurement, results are void: {error}"))
    })
}

/// Runs a program to its end and returns what it printed. Anything but success is an error with its words.
pub fn tool(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.env("LC_ALL", "C").stdin(Stdio::null()).output();
    let output = output.doing(|| format!("run {name} (is e2fsprogs or util-linux installed?)"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(BenchError::failed(format!("{name}: {}: {errors} {text}", output.status)))
}

/// Opens a device of the grammar for writing.
fn open_device(spec: &DeviceSpec) -> Result<Arc<dyn Device>> {
    let opened = uext4::blockdev::open(spec, OpenOptions { write: true, force: false });
    Ok(opened.doing(|| format!("open {spec}"))?.device)
}

/// Whether `condition` came true within some seconds.
pub fn wait_until(condition: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}
