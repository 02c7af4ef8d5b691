//! A tree that the library wrote and one that the kernel wrote, both read by the kernel from a fresh mount: what the
//! placement of inodes and blocks is worth to a reader.

use super::FILE_BYTES;
use super::names::Tree;
use super::sides::{Kernel, Library, Side};
use super::turns::{Operation, Turns};
use super::twins::Twins;
use crate::arm::Arm;
use crate::error::{BenchError, Doing, Result};
use crate::runner::{Slice, cpu_time};
use crate::work::Tally;
use rustix::fs::{Dir, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::time::Instant;
use uext4::Switches;

/// Writes both trees, and reads them in slices of directories that take turns.
pub fn run(tree: &Tree, switches: Switches, step: &mut dyn FnMut()) -> Result<Vec<Slice>> {
    let twins = Twins::new(2, tree, FILE_BYTES)?;
    let [ours, theirs] = &twins.images[..] else { return Err(BenchError::failed("two volumes are needed")) };
    let writers: [(Arm, Box<dyn Side>); 2] = [
        (Arm::On, Box::new(Library::open(ours, switches)?)),
        (Arm::Kernel, Box::new(Kernel::mount(theirs)?)),
    ];
    for (arm, side) in writers {
        tree.directory_names().try_for_each(|name| side.make_dir(&name))?;
        Turns { tree, sides: vec![(arm, 1, &*side)], durable: false }.run(Operation::Create, &mut || ())?;
        side.close()?;
    }
    let readers = [(Arm::On, Kernel::mount(ours)?), (Arm::Kernel, Kernel::mount(theirs)?)];
    let names: Vec<String> = tree.directory_names().collect();
    let mut slices = Vec::new();
    for number in 0..tree.slices {
        let start = |number| (number * tree.directories / tree.slices) as usize;
        for turn in 0..readers.len() {
            let (arm, reader) = &readers[(turn + number as usize) % readers.len()];
            slices.push(slice(*arm, reader, number, &names[start(number)..start(number + 1)])?);
            step();
        }
    }
    for (arm, reader) in readers {
        let own = slices.iter().filter(|slice| slice.arm == arm);
        let read: u64 = own.map(|slice| slice.tally.reads).sum();
        if read != tree.files {
            return Err(BenchError::failed(format!("{read} files were read, not {}", tree.files)));
        }
        Box::new(reader).close()?;
    }
    twins.check()?;
    Ok(slices)
}

fn slice(arm: Arm, reader: &Kernel, number: u64, directories: &[String]) -> Result<Slice> {
    let (cpu, start) = (cpu_time(), Instant::now());
    let mut files = 0;
    for path in directories {
        files += read_directory(reader.root(), path).doing(|| format!("read {path}"))?;
    }
    let (wall, cpu) = (start.elapsed(), cpu_time().saturating_sub(cpu));
    let tally = Tally { reads: files, ..Tally::default() };
    Ok(Slice { arm, round: number as u32, tally, wall, cpu, counters: None })
}

/// Reads every file of a directory in the order in which it lists them. Returns how many there are.
fn read_directory(root: &OwnedFd, path: &str) -> rustix::io::Result<u64> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let path = path.trim_start_matches('/');
    let directory = rustix::fs::openat(root, path, flags | OFlags::DIRECTORY, Mode::empty())?;
    let mut bytes = [0; FILE_BYTES as usize];
    let mut files = 0;
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        let file = rustix::fs::openat(&directory, entry.file_name(), flags, Mode::empty())?;
        if rustix::io::read(&file, &mut bytes)? != bytes.len() {
            return Err(rustix::io::Errno::IO);
        }
        files += 1;
    }
    Ok(files)
}
