//! Creates the volumes of bench with mke2fs, filled from a directory, so that every block of every file is
//! written.
//!
//! Each 4 KiB of a file repeats one word of eight bytes, never zero: mke2fs makes holes of zeros, and zram
//! keeps a page of one repeated word without compressing it, so that it stays nearly free, as with zeros.

use super::{Backing, Bed, Loop, Scratch, Standard, Zram, fragment, open_device, tool};
use crate::error::{Doing, Result};
use crate::ops::mix;
use std::fs;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use uext4::device::Scheme;
use uext4::device::{Device, WriteDurability};
use uext4::{BufferPool, DeviceSpec, Fallocate, OpenOptions, Volume, WriteFlags};

/// Bytes copied at once.
const CHUNK: usize = 4 << 20;
/// Bytes of a file that are written at once.
const STEP: usize = 1 << 20;
/// See [`Standard::MemoryDisk`].
const DISK: &str = "cache=volatile&fua=on&latency=460us&flush_latency=2240us&fua_latency=2380us";
/// Unit in which contents repeat a word.
const PAGE: usize = 4096;

/// The files of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// How many.
    pub files: usize,
    /// Bytes of each, a multiple of 4096.
    pub file_bytes: u64,
}

impl Layout {
    fn bytes(&self) -> u64 {
        self.files as u64 * self.file_bytes
    }

    /// The volume around them: an eighth more for metadata, and a journal of the default size.
    fn volume_bytes(&self) -> u64 {
        (self.bytes() + self.bytes() / 8 + (64 << 20)).next_multiple_of(1 << 20)
    }
}

/// Name of file number `number`.
pub fn file_name(number: usize) -> String {
    format!("uext4-bench.{number}")
}

/// The word that fills page `page` of file `file`.
fn word(file: usize, page: u64) -> [u8; 8] {
    (mix(page ^ (file as u64) << 40) | 1).to_le_bytes()
}

/// Makes file number `number` of `layout` on an open volume, with its blocks together and all of them written.
pub fn make_file(volume: &Volume, path: &Path, number: usize, layout: Layout) -> Result<()> {
    let pool = BufferPool::new(STEP).doing(|| "reserve memory".into())?;
    let mut buffer = pool.take(STEP).doing(|| "reserve memory".into())?;
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let options = OpenOptions::new().write(true).direct(true).create_new(true).owner(owner.0, owner.1);
    let mut make = || -> uext4::Result<()> {
        let file = volume.open_file(path, options.clone())?;
        file.fallocate(Fallocate::Allocate, 0, layout.file_bytes)?;
        for pos in (0..layout.file_bytes).step_by(STEP) {
            let part = &mut buffer[..(layout.file_bytes - pos).min(STEP as u64) as usize];
            for (bytes, page) in part.chunks_mut(PAGE).zip(pos / PAGE as u64..) {
                bytes
                    .chunks_mut(8)
                    .for_each(|bytes| bytes.copy_from_slice(&word(number, page)[..bytes.len()]));
            }
            file.write_any_at(part, pos, WriteFlags::empty())?;
        }
        Ok(())
    };
    make()
        .doing(|| format!("make {} of {} bytes (--size makes it smaller)", path.display(), layout.file_bytes))
}

fn write_files(dir: &Path, layout: Layout) -> Result<()> {
    fs::create_dir_all(dir).doing(|| format!("create {}", dir.display()))?;
    for number in 0..layout.files {
        let path = dir.join(file_name(number));
        let write = || -> std::io::Result<()> {
            let mut writer = BufWriter::with_capacity(1 << 20, fs::File::create_new(&path)?);
            for page in 0..layout.file_bytes / PAGE as u64 {
                writer.write_all(&word(number, page).repeat(PAGE / 8))?;
            }
            writer.flush()
        };
        write().doing(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Formats `target` as ext4 with the defaults of e2fsprogs and 4 KiB blocks, and fills it from `from`.
/// Nothing is left to be initialised in the background: the kernel would do it while it is measured.
pub fn format(target: &Path, from: &Path) -> Result<()> {
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-F", "-t", "ext4", "-b", "4096"]);
    command.args(["-E", "lazy_itable_init=0,lazy_journal_init=0", "-d"]);
    tool(command.arg(from).arg(target)).map(drop)
}

/// Formats `target` with the files of `layout` in directory `dir` of the volume.
pub fn format_filled(target: &Path, layout: Layout, dir: &Path) -> Result<()> {
    let scratch = Scratch::new(layout.bytes())?;
    let root = scratch.path().join("root");
    write_files(&root.join(dir.strip_prefix("/").unwrap_or(dir)), layout)?;
    format(target, &root)
}

pub(super) fn sparse_file(path: &Path, bytes: u64) -> Result<()> {
    let file = fs::File::create_new(path).doing(|| format!("create {}", path.display()))?;
    file.set_len(bytes).doing(|| format!("extend {}", path.display()))
}

/// Allocates the whole file: a writable mapping needs it.
pub(super) fn allocate_all(path: &Path, bytes: u64) -> Result<()> {
    let file = fs::File::options().write(true).open(path).doing(|| format!("open {}", path.display()))?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)
        .doing(|| format!("allocate {}", path.display()))
}

impl Bed {
    /// Makes the standard volume of a place. `Standard::Extents` ignores `layout`.
    pub fn standard(standard: Standard, layout: Layout) -> Result<Bed> {
        match standard {
            Standard::Zram if Zram::available() => Bed::on_zram(layout),
            Standard::Zram => Bed::on_tmpfs(layout, |path| DeviceSpec::file(path)),
            Standard::Dax => Bed::on_mapping(layout),
            Standard::Loop if rustix::process::geteuid().is_root() => Bed::on_loop(layout),
            Standard::Loop => Bed::on_tmpfs(layout, |path| DeviceSpec::file(path)),
            Standard::MemoryFlush => Bed::in_memory(layout, "cache=volatile&fua=on&flush_latency=2ms"),
            Standard::MemoryFsync => Bed::in_memory(layout, "cache=volatile&fua=on&flush_latency=500us"),
            Standard::MemoryDisk => Bed::in_memory(layout, DISK),
            Standard::MemoryCache => Bed::in_memory(layout, &format!("{DISK}&flush_rate=64M")),
            Standard::MemoryLatency => Bed::in_memory(layout, "latency=740us"),
            Standard::Null => Bed::on_null(layout),
            Standard::Extents => fragment::bed(),
        }
    }

    pub(super) fn of(backing: Backing, label: String, files: Vec<PathBuf>) -> Bed {
        let (block_device, leftovers) = (None, None);
        Bed {
            backing,
            label,
            files,
            block_device,
            leftovers,
            _loop_device: None,
            _zram: None,
            _scratch: None,
        }
    }

    pub(super) fn keeping(self, scratch: Scratch) -> Bed {
        Bed { _scratch: Some(scratch), ..self }
    }

    fn on_zram(layout: Layout) -> Result<Bed> {
        let zram = Zram::new(layout.volume_bytes())?;
        format_filled(zram.path(), layout, Path::new("/"))?;
        let path = zram.path().to_owned();
        let bed = Bed::of(Backing::Spec(DeviceSpec::file(&path)), "zram".into(), names(layout));
        Ok(Bed { block_device: Some(path), _zram: Some(zram), ..bed })
    }

    /// An image in tmpfs and where it lies.
    fn image(layout: Layout) -> Result<(Scratch, PathBuf)> {
        let scratch = Scratch::new(layout.volume_bytes() + layout.bytes())?;
        let image = scratch.path().join("image");
        sparse_file(&image, layout.volume_bytes())?;
        format_filled(&image, layout, Path::new("/"))?;
        Ok((scratch, image))
    }

    fn on_tmpfs(layout: Layout, spec: impl Fn(&Path) -> DeviceSpec) -> Result<Bed> {
        let (scratch, image) = Bed::image(layout)?;
        Ok(Bed::of(Backing::Spec(spec(&image)), "tmpfs file".into(), names(layout)).keeping(scratch))
    }

    fn on_mapping(layout: Layout) -> Result<Bed> {
        let (scratch, image) = Bed::image(layout)?;
        allocate_all(&image, layout.volume_bytes())?;
        let spec = DeviceSpec { scheme: Scheme::Dax, ..DeviceSpec::file(&image) };
        Ok(Bed::of(Backing::Spec(spec), "dax: tmpfs file".into(), names(layout)).keeping(scratch))
    }

    fn on_loop(layout: Layout) -> Result<Bed> {
        let (scratch, image) = Bed::image(layout)?;
        let device = Loop::attach(&image)?;
        let path = device.path().to_owned();
        let label = "loop over tmpfs".into();
        let bed = Bed::of(Backing::Spec(DeviceSpec::file(&path)), label, names(layout)).keeping(scratch);
        Ok(Bed { block_device: Some(path), _loop_device: Some(device), ..bed })
    }

    fn on_null(layout: Layout) -> Result<Bed> {
        let (_scratch, image) = Bed::image(layout)?;
        let device = open_device(&DeviceSpec { scheme: Scheme::Null, ..DeviceSpec::file(&image) })?;
        Ok(Bed::of(Backing::Kept(device), "null: image".into(), names(layout)))
    }

    fn in_memory(layout: Layout, options: &str) -> Result<Bed> {
        let (_scratch, image) = Bed::image(layout)?;
        let label = format!("mem:{}M?{options}", layout.volume_bytes() >> 20);
        let spec = DeviceSpec::parse(&label).doing(|| format!("open {label}"))?;
        let device = open_device(&spec)?;
        load(&*device, &image)?;
        Ok(Bed::of(Backing::Kept(device), label, names(layout)))
    }
}

fn names(layout: Layout) -> Vec<PathBuf> {
    (0..layout.files).map(|number| Path::new("/").join(file_name(number))).collect()
}

/// Copies an image onto a device that holds zeros, and leaves its zeros out.
pub(super) fn load(device: &dyn Device, image: &Path) -> Result<()> {
    let file = fs::File::open(image).doing(|| format!("open {}", image.display()))?;
    let read =
        |chunk: &mut [u8], pos| file.read_exact_at(chunk, pos).doing(|| format!("read {}", image.display()));
    let write = |chunk: &[u8], pos| {
        let written = device.write_at(chunk, pos, WriteDurability::Cached);
        written.doing(|| "load the volume into memory".into())
    };
    copy(device.geometry().size, read, write)
}

/// Copies a device into a file.
pub(super) fn dump(device: &dyn Device, image: &Path) -> Result<()> {
    let size = device.geometry().size;
    sparse_file(image, size)?;
    let file = fs::File::options().write(true).open(image).doing(|| format!("open {}", image.display()))?;
    let read = |chunk: &mut [u8], pos| {
        device.read_at(chunk, pos).doing(|| "read the volume back from memory".into())
    };
    let write =
        |chunk: &[u8], pos| file.write_all_at(chunk, pos).doing(|| format!("write {}", image.display()));
    copy(size, read, write)
}

/// Reads `size` bytes in chunks, and writes those chunks that are not all zeros.
fn copy(
    size: u64,
    read: impl Fn(&mut [u8], u64) -> Result<()>,
    write: impl Fn(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let pool = BufferPool::new(CHUNK).doing(|| "reserve memory".into())?;
    let mut buffer = pool.take(CHUNK).doing(|| "reserve memory".into())?;
    for pos in (0..size).step_by(CHUNK) {
        let chunk = &mut buffer[..(size - pos).min(CHUNK as u64) as usize];
        read(chunk, pos)?;
        if chunk.iter().any(|&byte| byte != 0) {
            write(chunk, pos)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use uext4::device::{MemoryDevice, MemoryOptions};

    #[test]
    fn no_page_of_a_file_is_zero_or_like_its_neighbour() {
        for page in 0..1000 {
            assert_ne!(word(3, page), [0; 8]);
            assert_ne!(word(3, page), word(3, page + 1));
            assert_ne!(word(3, page), word(4, page));
        }
    }

    #[test]
    fn memory_takes_an_image_and_gives_it_back() {
        let dir = tempfile::tempdir().unwrap();
        let (image, back) = (dir.path().join("image"), dir.path().join("back"));
        let mut bytes = vec![0; 3 * CHUNK - 4096];
        bytes[CHUNK + 5] = 7;
        *bytes.last_mut().unwrap() = 9;
        fs::write(&image, &bytes).unwrap();
        let device: Arc<dyn Device> =
            Arc::new(MemoryDevice::new(MemoryOptions::new(bytes.len() as u64)).unwrap());
        load(&*device, &image).unwrap();
        dump(&*device, &back).unwrap();
        assert_eq!(fs::read(&back).unwrap(), bytes);
    }
}
