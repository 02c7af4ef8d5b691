//! The kernel and we change one volume in turns, each by the model.
//!
//! `UEXT4_TURNS_SECONDS` (12), `UEXT4_TURNS_SEED` and `UEXT4_TURNS_TOTALS`, a file for the counts: `make turns`.

use super::model::{Id, Kind, ROOT, Thing};
use super::{SIZE, Walk, compare_mounted, mounted};
use crate::common::{Image, open_rw};
use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags as Flags};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uext4::{OpenOptions, RenameFlags, State};
use uext4_testkit::{KernelMount, LoopOptions, Need, Scratch, needs, oracle};

/// Steps of a turn.
const STEPS: u64 = 120;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

impl Walk {
    /// The path of a directory of the model in a mounted volume.
    fn mounted(&self, top: &Path, id: Id) -> PathBuf {
        if id == ROOT {
            return top.to_owned();
        }
        let Kind::Directory { parent, .. } = self.model.things[&id].kind else { panic!("no directory") };
        let name = self.model.names(parent).iter().find(|(_, named)| **named == id).unwrap().0;
        self.mounted(top, parent).join(OsStr::from_bytes(name))
    }

    fn place(&mut self, top: &Path) -> (Id, Vec<u8>, PathBuf) {
        let directory = self.directory();
        let name = self.name(directory);
        let path = self.mounted(top, directory).join(OsStr::from_bytes(&name));
        (directory, name, path)
    }

    /// A path of something, and what it is.
    fn named(&mut self, top: &Path, wanted: impl Fn(&Thing) -> bool) -> Option<(Id, PathBuf)> {
        let id = self.pick(|thing| wanted(thing))?;
        let names = self.model.things.iter().filter_map(|(directory, thing)| match &thing.kind {
            Kind::Directory { names, .. } => Some((*directory, names)),
            _ => None,
        });
        let (directory, name) = names
            .flat_map(|(directory, names)| names.iter().map(move |(name, id)| (directory, name, id)))
            .find(|(.., named)| **named == id)
            .map(|(directory, name, _)| (directory, name.clone()))?;
        Some((id, self.mounted(top, directory).join(OsStr::from_bytes(&name))))
    }

    #[track_caller]
    fn agree<U>(&self, said: &str, kernel: rustix::io::Result<()>, model: Result<U, i32>) {
        let (kernel, model) = (kernel.err().map(|error| error.raw_os_error()), model.err());
        assert_eq!(kernel, model, "{}, step {}: the kernel's {said}", self.what, self.steps);
    }

    fn kernel_step(&mut self, top: &Path) {
        self.steps += 1;
        match self.rng.below(16) {
            // As in our turns, the tree stays within some hundred things.
            0..=4 if self.model.things.len() <= 350 => self.kernel_makes(top),
            0..=7 => {
                let (directory, name, path) = self.place(top);
                let done = rustix::fs::unlinkat(CWD, &path, AtFlags::empty());
                let model = self.model.unlink(directory, &name);
                self.agree("unlink", done, model);
            }
            8 => {
                let (directory, name, path) = self.place(top);
                let done = rustix::fs::unlinkat(CWD, &path, AtFlags::REMOVEDIR);
                let model = self.model.remove_dir(directory, &name);
                self.agree("rmdir", done, model);
            }
            9..=11 => self.kernel_renames(top),
            12 => {
                let (directory, name, path) = self.place(top);
                let Some((id, old)) = self.named(top, |thing| !thing.is_directory()) else { return };
                let done = rustix::fs::linkat(CWD, &old, CWD, &path, AtFlags::empty());
                let model = self.model.link(directory, &name, id);
                self.agree("link", done, model);
            }
            13 => self.kernel_sets(top),
            _ => self.kernel_writes(top),
        }
    }

    fn kernel_makes(&mut self, top: &Path) {
        let (directory, name, path) = self.place(top);
        // What the usual mask leaves.
        let mode = self.rng.below(0o1000) as u32 & 0o755;
        let bits = Mode::from_raw_mode(mode);
        let (done, kind, mode) = match self.rng.below(5) {
            0 | 1 => {
                let kind = Kind::Directory { names: BTreeMap::new(), parent: directory };
                (rustix::fs::mkdirat(CWD, &path, bits), kind, mode)
            }
            2 => {
                let target = vec![b't'; [1, 59, 60, 61, 800][self.rng.below(5) as usize]];
                (rustix::fs::symlinkat(&target[..], CWD, &path), Kind::Symlink(target), 0o777)
            }
            3 => (rustix::fs::mknodat(CWD, &path, FileType::Fifo, bits, 0), Kind::Fifo, mode),
            _ => {
                let done = rustix::fs::mknodat(CWD, &path, FileType::RegularFile, bits, 0);
                (done, Kind::File(Vec::new()), mode)
            }
        };
        let model = self.model.add(directory, &name, Thing::new(kind, mode, (0, 0)));
        self.agree("make", done, model);
    }

    fn kernel_renames(&mut self, top: &Path) {
        let ((from, old, old_path), (to, new, new_path)) = (self.place(top), self.place(top));
        let (flags, kernel) = [
            (RenameFlags::empty(), Flags::empty()),
            (RenameFlags::NOREPLACE, Flags::NOREPLACE),
            (RenameFlags::EXCHANGE, Flags::EXCHANGE),
            (RenameFlags::WHITEOUT, Flags::WHITEOUT),
        ][self.rng.below(4) as usize];
        let done = rustix::fs::renameat_with(CWD, &old_path, CWD, &new_path, kernel);
        let model = self.model.rename((from, &old), (to, &new), flags);
        self.agree(&format!("rename of {from} to {to}, {flags:?}"), done, model);
    }

    fn kernel_sets(&mut self, top: &Path) {
        let Some((id, path)) = self.named(top, |thing| !matches!(thing.kind, Kind::Symlink(_))) else {
            return;
        };
        let (mode, name) = (self.rng.below(0o1000) as u32, b"user.a".as_slice());
        rustix::fs::chmodat(CWD, &path, Mode::from_raw_mode(mode), AtFlags::empty()).unwrap();
        let thing = self.model.things.get_mut(&id).unwrap();
        thing.set_mode(mode);
        if thing.is_directory() || matches!(thing.kind, Kind::File(_)) {
            let value = vec![b'v'; [0, 3, 90, 200][self.rng.below(4) as usize]];
            rustix::fs::setxattr(&path, name, &value, rustix::fs::XattrFlags::empty()).unwrap();
            thing.attributes.insert(name.to_vec(), value);
        }
    }

    fn kernel_writes(&mut self, top: &Path) {
        // Root keeps set-group-id where the library strips it.
        let wanted = |thing: &Thing| matches!(thing.kind, Kind::File(_)) && thing.mode & 0o6000 == 0;
        let Some((id, path)) = self.named(top, wanted) else { return };
        let (pos, length) = self.part();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let thing = self.model.things.get_mut(&id).unwrap();
        thing.modified = None;
        let Kind::File(bytes) = &mut thing.kind else { return };
        // Some versions of Linux crash when they truncate an inline file.
        if self.rng.below(3) == 0 && !self.inline {
            bytes.resize(pos as usize, 0);
            file.set_len(pos).unwrap();
        } else {
            bytes.resize(bytes.len().max(pos as usize + length), 0);
            bytes[pos as usize..][..length].fill(b'K');
            file.write_all_at(&vec![b'K'; length], pos).unwrap();
        }
    }

    /// The inodes of what the kernel made.
    fn relearn(&mut self) {
        let mut waiting = vec![(ROOT, self.volume().root().unwrap())];
        self.inodes.clear();
        while let Some((id, node)) = waiting.pop() {
            self.know(id, &node);
            if let Kind::Directory { names, .. } = &self.model.things[&id].kind {
                let below = |(name, id): (&Vec<u8>, &Id)| (*id, node.look_up(name).unwrap());
                waiting.extend(names.iter().map(below));
            }
        }
    }

    /// Blocks are zero past the end of each file: whoever extends it relies on that.
    fn check_tails(&self) {
        let block = u64::from(self.volume().superblock().geometry.block_size());
        for (id, thing) in &self.model.things {
            let Kind::File(bytes) = &thing.kind else { continue };
            let size = bytes.len() as u64;
            let node = self.node(*id);
            let file = node.open(OpenOptions::new().read(true)).unwrap();
            if file.is_inline() || size.is_multiple_of(block) {
                continue;
            }
            let last = size - size % block;
            for piece in file.map().map(|piece| piece.unwrap()) {
                if piece.state == State::Written && (piece.logical..piece.end()).contains(&last) {
                    let mut held = crate::common::aligned(block as usize);
                    self.device.read_at(&mut held, piece.physical + (last - piece.logical)).unwrap();
                    let rest = &held[(size % block) as usize..];
                    let at = rest.iter().position(|byte| *byte != 0);
                    assert_eq!(at, None, "{}, step {}: thing {id} of {size} bytes", self.what, self.steps);
                }
            }
        }
    }

    /// The kernel's turn.
    fn kernel_turn(&mut self, scratch: &Scratch) {
        let path = scratch.file("mounted.img");
        self.check_tails();
        self.volume.take().unwrap().close().unwrap();
        Image::of(&*self.device).save(&path);
        let mounted = KernelMount::image(&path, LoopOptions::default(), "");
        compare_mounted(self, mounted.path());
        let top = mounted.path().to_owned();
        for _ in 0..STEPS {
            self.kernel_step(&top);
        }
        mounted.unmount();
        repair_types(&path);
        oracle::e2fsck_clean(&path);
        self.device = Image::load(&path).device();
        self.volume = Some(open_rw(self.device.clone()));
        self.relearn();
        self.compare();
    }
}

/// Without the feature `filetype` Linux (6.18) leaves the type in the `.` and `..` of a new directory as the block has
/// it. It has stale bytes if the block held a symbolic link since the mount: e2fsck finds a type there. Nothing else is
/// repaired.
fn repair_types(path: &Path) {
    let told = oracle::e2fsck(path, &["-fn"]);
    let types = told.output.matches("has filetype set").count();
    if types > 0 && told.output.matches("? no").count() == types {
        let has_place = || oracle::debugfs(path, "ls -p /").contains("/lost+found/");
        let had_place = has_place();
        let repaired = oracle::e2fsck(path, &["-fy"]);
        assert!(repaired.status < 2, "{}", repaired.output);
        // It makes the directory for what it finds, whether it finds something or not.
        if !had_place && has_place() {
            oracle::debugfs_write(path, "rmdir /lost+found");
        }
    }
}

#[test]
fn root_the_kernel_and_we_take_turns() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(2 * SIZE);
    let (start, seed) = (Instant::now(), number("UEXT4_TURNS_SEED", 1));
    let length = Duration::from_secs(number("UEXT4_TURNS_SECONDS", 12));
    let mut walks: Vec<Walk> = mounted().map(|args| Walk::new(args, seed)).collect();
    let mut turns = 0;
    while start.elapsed() < length {
        for walk in &mut walks {
            (0..STEPS).for_each(|_| walk.step());
            walk.check(&scratch);
            walk.kernel_turn(&scratch);
            turns += 2;
        }
    }
    let (steps, seconds) = (turns * STEPS, start.elapsed().as_secs());
    println!("{turns} turns, {steps} steps, {seconds} s");
    if let Ok(totals) = std::env::var("UEXT4_TURNS_TOTALS") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(totals).unwrap();
        writeln!(file, "turns {turns} {steps} {seconds}").unwrap();
    }
}
