//! The volumes that are measured: made here and removed, or given.

mod build;
pub mod fragment;
pub mod given;
mod janitor;

pub use build::Layout;
pub use janitor::{Loop, MEMORY_DIR, Scratch, Zram};

use super::error::{BenchError, Doing, Result};
use janitor::Leftovers;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4::device::{Device, OpenOptions};
use uext4::{DeviceSpec, Switches, Volume, VolumeOptions};

/// A standard device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standard {
    /// zram as root, an image file in tmpfs otherwise.
    Zram,
    /// A mapped image file in tmpfs.
    Dax,
    /// As root a loop device over a file in tmpfs with 512-byte sectors, that file itself otherwise.
    Loop,
    /// `mem:` with a volatile cache whose flush takes 2 ms, and FUA.
    MemoryFlush,
    /// The same, whose flush takes 500 µs.
    MemoryFsync,
    /// `mem:` with the times of the disk that the FUA patch was measured on: 460 µs a plain write (its 2173 a
    /// second), 2240 µs a flush (with the write, its 370 a second), 2380 µs a FUA write (its 420 a second).
    MemoryDisk,
    /// The same, whose flush takes time for what is cached: 64 MiB a second.
    MemoryCache,
    /// `mem:` where each request takes 740 µs.
    MemoryLatency,
    /// `null:`, whose queued requests transfer no data, so that only the library is measured.
    Null,
    /// A sparse image file in tmpfs with a file of 10⁶ extents beside a contiguous one.
    Extents,
}

/// How the volume is opened.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "one for each measurement")]
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
    leftovers: Option<Leftovers>,
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

    /// Removes the files created on a given volume and checks it with e2fsck. It must not be open.
    pub fn finish(mut self) -> Result<()> {
        drop(self.leftovers.take());
        self.check()
    }

    fn check(&self) -> Result<()> {
        match &self.backing {
            Backing::Spec(spec) => match &spec.locator {
                uext4::device::Locator::Path(path) => fsck(path, &spec.options),
                _ => Ok(()),
            },
            Backing::Kept(device) => {
                let scratch = Scratch::new(device.geometry().size)?;
                let image = scratch.path().join("image");
                build::dump(&**device, &image)?;
                fsck(&image, &uext4::device::SpecOptions::default())
            }
        }
    }
}

/// `e2fsck -fn`. A volume that does not begin at the first byte is given to it by its offset, in the spelling of
/// e2fsprogs (`image?offset=BYTES`), which knows no partitions. It takes the size from the superblock.
fn fsck(path: &Path, options: &uext4::device::SpecOptions) -> Result<()> {
    let offset = match options.partition {
        Some(number) => Some(partition_start(path, number)?),
        None => options.offset,
    };
    let mut target = path.as_os_str().to_owned();
    if let Some(offset) = offset {
        target.push(format!("?offset={offset}"));
    }
    tool(Command::new("e2fsck").arg("-fn").arg(target)).map(drop).map_err(|error| {
        BenchError::failed(format!("the volume is damaged after the measurement, results are void: {error}"))
    })
}

/// First byte of a partition of the image or device at `path`.
fn partition_start(path: &Path, number: u32) -> Result<u64> {
    let whole = uext4::device::open(&DeviceSpec::file(path), OpenOptions::default());
    let whole = whole.doing(|| format!("open {} to find partition {number}", path.display()))?;
    let found = uext4::device::partition::find(&*whole.device, number);
    Ok(found.doing(|| format!("find partition {number} of {}", path.display()))?.start)
}

/// Directories of system administration programs, missing from an ordinary user's `PATH`.
const ADMINISTRATION: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Runs a program to its end and returns what it printed. Anything but success is an error with its words. It is looked
/// for in `PATH` first, then in [`ADMINISTRATION`].
pub fn tool(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let own = std::env::var_os("PATH");
    let dirs = own.iter().flat_map(std::env::split_paths).chain(ADMINISTRATION.map(PathBuf::from));
    let path = std::env::join_paths(dirs).map_err(|error| BenchError::failed(format!("PATH: {error}")))?;
    let output = command.env("PATH", path).env("LC_ALL", "C").stdin(Stdio::null()).output();
    let output = output.doing(|| format!("run {name} (is e2fsprogs or util-linux installed?)"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(BenchError::failed(format!("{name}: {}: {errors} {text}", output.status)))
}

/// Opens a device of the grammar for writing.
pub fn open_device(spec: &DeviceSpec) -> Result<Arc<dyn Device>> {
    let opened = uext4::device::open(spec, OpenOptions { write: true, force: false });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arm::Arm;
    use crate::measure::{Case, measure};
    use crate::scenario;
    use crate::settings::Timing;
    use std::os::unix::fs::FileExt;
    use std::sync::Mutex;
    use uext4::device::Op;
    use uext4::device::SpecOptions;
    use uext4::device::{CountingDevice, TraceEvent, TracePhase};

    const START: u64 = 1 << 20;

    /// The flush that the first durable write of an opening may have to wait for is over before any slice, and what
    /// an arm leaves in the cache is not written out on the next one's account.
    #[test]
    fn a_flush_goes_before_every_slice_of_durable_writes() {
        let scenario = scenario::find("dsync-overwrite", Some(scenario::ALONE)).unwrap();
        let layout = Layout { files: 1, file_bytes: 64 << 10 };
        let scratch = Scratch::new(32 << 20).unwrap();
        let image = scratch.path().join("image");
        build::sparse_file(&image, 32 << 20).unwrap();
        build::format_filled(&image, layout, Path::new("/")).unwrap();
        let device = open_device(&DeviceSpec::parse("mem:32M?cache=volatile&fua=on").unwrap()).unwrap();
        build::load(&*device, &image).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        let volume = Volume::open_device(Arc::clone(&device), VolumeOptions::read_only()).unwrap();
        let file = volume
            .open_file(Path::new("/").join(build::file_name(0)), uext4::OpenOptions::new().read(true))
            .unwrap();
        let place = file.map().next().unwrap().unwrap();
        drop((file, volume));
        // The times of the file go to other places.
        let data = place.physical..place.physical + place.length;
        let note = move |event: &TraceEvent| {
            let counts = event.op == Op::Flush || event.op == Op::Write && data.contains(&event.pos);
            if event.phase == TracePhase::Submit && counts {
                sink.lock().unwrap().push((event.op, event.fua));
            }
        };
        let device = Arc::new(CountingDevice::with_trace(device, Arc::new(note)));
        let files = vec![PathBuf::from("/").join(build::file_name(0))];
        let bed = Bed::of(Backing::Kept(device), "traced".into(), files);
        let case = Case {
            scenario,
            threads: 1,
            depth: 1,
            span: layout.file_bytes,
            arms: vec![Arm::On, Arm::Raw],
            kernel: false,
            switches: Switches::ON,
            timing: Timing { rounds: 2, slice: 0.001 },
        };
        measure(&case, &bed, &mut || ()).unwrap();
        let seen = seen.lock().unwrap();
        assert_eq!(seen.first(), Some(&(Op::Flush, false)), "the first of {} requests", seen.len());
        // Between two flushes are the writes of one slice of one arm: three arms, a warm-up and two rounds each.
        let slices: Vec<_> =
            seen.split(|(op, _)| *op == Op::Flush).filter(|slice| !slice.is_empty()).collect();
        assert_eq!(slices.len(), 9, "slices of {} requests", seen.len());
        for slice in slices {
            assert!(slice.iter().all(|request| *request == slice[0]), "durable and plain in one slice");
        }
        assert!(seen.contains(&(Op::Write, true)) && seen.contains(&(Op::Write, false)));
    }

    #[test]
    fn the_check_looks_into_the_partition_and_nowhere_else() {
        let scratch = Scratch::new(32 << 20).unwrap();
        let image = scratch.path().join("disk");
        build::sparse_file(&image, 24 << 20).unwrap();
        let offset = format!("offset={START}");
        tool(Command::new("mke2fs").args(["-q", "-t", "ext4", "-E", &offset]).arg(&image).arg("16M"))
            .unwrap();
        let file = std::fs::File::options().write(true).open(&image).unwrap();
        let mut table = [0x5a; 512];
        table[446..].fill(0);
        table[450] = 0x83;
        table[454..458].copy_from_slice(&(START as u32 / 512).to_le_bytes());
        table[458..462].copy_from_slice(&(16u32 << 11).to_le_bytes());
        table[510..].copy_from_slice(&[0x55, 0xaa]);
        file.write_all_at(&table, 0).unwrap();
        let first = SpecOptions { partition: Some(1), ..SpecOptions::default() };
        let by_offset = SpecOptions { offset: Some(START), ..SpecOptions::default() };
        fsck(&image, &first).unwrap();
        fsck(&image, &by_offset).unwrap();
        // The whole disk is no volume, and there is no second partition.
        fsck(&image, &SpecOptions::default()).unwrap_err();
        let second = SpecOptions { partition: Some(2), ..SpecOptions::default() };
        let error = fsck(&image, &second).unwrap_err().to_string();
        assert!(error.contains("find partition 2"), "{error}");
        // Free blocks that are not: damage in the volume is found.
        file.write_all_at(&[0xff, 0xff], START + 1024 + 12).unwrap();
        for options in [&first, &by_offset] {
            let error = fsck(&image, options).unwrap_err().to_string();
            assert!(error.contains("damaged"), "{error}");
        }
    }
}
