//! Operations on the names of two directories and on several inodes, by threads that name them in all orders: nobody
//! waits for ever, and e2fsck finds nothing. What renames of files do not wait for.

use super::{device, image, open_device};
use crate::change::Files;
use crate::device::MemoryDevice;
use crate::dir;
use crate::ground::error::Result;
use crate::inode::metadata::FileKind;
use crate::inode::{Ext4State, Inode};
use crate::operations::directories::{Directories, Moves};
use crate::operations::entry::{self, EntryScope};
use crate::{Error, OpenOptions, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use uext4_testkit::{Need, Rng, Scratch, needs, oracle};

const THREADS: u64 = 6;
const STEPS: u64 = 5000;
/// Far more than all threads need, one after the other.
const PATIENCE: Duration = Duration::from_secs(100);
/// Directories that stay where they are …
const STAY: [&str; 5] = ["/a", "/b", "/a/c", "/a/c/d", "/b/e"];
/// … and those that move between them.
const MOVE: [&str; 4] = ["m0", "m1", "m2", "m3"];
const FILES: u64 = 40;

/// How often each of the kinds of work must have changed something.
const LEAST: u64 = 300;

struct House {
    /// Changes made so far, by kind of work.
    done: [AtomicU64; 4],
    volume: Volume,
    /// `STAY`, then `MOVE`.
    directories: Vec<Arc<Inode>>,
}

/// A name, and what it leads to.
type Found = Option<Arc<Inode>>;

impl House {
    fn new(volume: Volume) -> House {
        let inode = |path: &str| volume.state().inode(volume.resolve(path, true).unwrap()).unwrap();
        let moving = MOVE.iter().map(|name| format!("/a/{name}"));
        let directories = STAY.iter().map(|path| (*path).to_owned()).chain(moving).map(|path| inode(&path));
        House { done: Default::default(), directories: directories.collect(), volume }
    }

    fn state(&self) -> &Ext4State {
        self.volume.state()
    }

    fn files(&self) -> Files<'_> {
        self.volume.engine().fs().files()
    }

    fn any(&self, rng: &mut Rng) -> &Arc<Inode> {
        rng.pick(&self.directories)
    }

    /// What a name leads to. The names are taken.
    fn look_up(&self, directory: &Inode, name: &str) -> Found {
        let found = dir::look_up(self.state(), directory, name.as_bytes()).unwrap()?;
        Some(self.state().inode(found.ino).unwrap())
    }

    /// Moves, links, replaces or exchanges a file between two directories, named in any order.
    fn file(&self, rng: &mut Rng) -> bool {
        let (from, to) = match rng.below(4) {
            0 => (rng.pick(&self.directories[..STAY.len()]), rng.pick(&self.directories[STAY.len()..])),
            1 => (rng.pick(&self.directories[STAY.len()..]), rng.pick(&self.directories[..STAY.len()])),
            _ => (self.any(rng), self.any(rng)),
        };
        let names = Directories::several([&**from, &**to]);
        self.between(rng, &names, from, to)
    }

    /// As when a directory is removed: found by its name, and looked up again once it is locked with its parent.
    fn child(&self, rng: &mut Rng) -> bool {
        let parent = rng.pick(&self.directories[..STAY.len()]);
        let first = rng.below(4) as usize;
        let look = |name| {
            let _names = parent.steady_names();
            self.look_up(parent, name).map(|child| (name, child))
        };
        let found = (0..MOVE.len()).find_map(|n| look(MOVE[(first + n) % MOVE.len()]));
        let Some((name, child)) = found else { return false };
        let known = self.directories.iter().find(|known| known.ino() == child.ino()).unwrap();
        let names = Directories::several([&**parent, &**known]);
        if !self.look_up(parent, name).is_some_and(|child| Arc::ptr_eq(&child, known)) {
            return false;
        }
        let (from, to) = if rng.below(2) == 0 { (parent, known) } else { (known, parent) };
        self.between(rng, &names, from, to)
    }

    fn between(&self, rng: &mut Rng, names: &Directories<'_>, from: &Arc<Inode>, to: &Arc<Inode>) -> bool {
        let [old, new] = [(); 2].map(|()| format!("file-{}", rng.below(FILES)));
        let Some(inode) = self.look_up(from, &old) else { return false };
        let there = self.look_up(to, &new);
        let files = self.files();
        let kind = FileKind::Regular;
        let Some(there) = there else {
            let links = rng.below(3) == 0 && inode.disk().links < 20;
            let plan = EntryScope { names: &[to, from], inodes: &[&inode], makes: 0 };
            entry::change(&files, names, &plan, |step| {
                step.insert(to, new.as_bytes(), inode.ino(), kind)?;
                if links {
                    step.link(&inode)?;
                } else {
                    step.remove(from, old.as_bytes(), inode.ino())?;
                }
                Ok(Ok(()))
            })
            .unwrap();
            return true;
        };
        if there.ino() == inode.ino() {
            return false;
        }
        let both = if rng.below(2) == 0 { [&inode, &there] } else { [&there, &inode] };
        let plan = EntryScope { names: &[from, to], inodes: &both, makes: 0 };
        let replaces = rng.below(4) == 0;
        entry::change(&files, names, &plan, |step| {
            if replaces {
                step.unlink(&there)?;
                step.remove(from, old.as_bytes(), inode.ino())?;
            } else {
                step.lead(from, old.as_bytes(), there.ino(), kind)?;
            }
            step.lead(to, new.as_bytes(), inode.ino(), kind)?;
            Ok(Ok(()))
        })
        .unwrap();
        true
    }

    /// Moves a directory between two of those that stay.
    fn directory(&self, rng: &mut Rng) -> bool {
        let stay = &self.directories[..STAY.len()];
        let (from, to) = (rng.pick(stay), rng.pick(stay));
        let name = *rng.pick(&MOVE);
        if Arc::ptr_eq(from, to) {
            return false;
        }
        let _moves = Moves::exclude(self.state());
        let found = {
            let _names = from.steady_names();
            self.look_up(from, name)
        };
        // It stays there while moves are excluded.
        let Some(moved) = found else { return false };
        let moved = self.directories.iter().find(|known| known.ino() == moved.ino()).unwrap();
        let names = Directories::several([&**from, &**to, &**moved]);
        let plan = EntryScope { names: &[from, moved, to], inodes: &[], makes: 0 };
        entry::change(&self.files(), &names, &plan, |step| {
            step.insert(to, name.as_bytes(), moved.ino(), FileKind::Directory)?;
            step.remove(from, name.as_bytes(), moved.ino())?;
            step.lead_parent(moved, to.ino())?;
            step.count_subdirectory(from, false)?;
            step.count_subdirectory(to, true)?;
            Ok(Ok(()))
        })
        .unwrap();
        true
    }

    /// Edits several inodes, files and directories, named in any order.
    fn several(&self, rng: &mut Rng) -> bool {
        let mut inodes: Vec<Arc<Inode>> = (0..3).map(|_| self.any(rng).clone()).collect();
        for _ in 0..3 {
            let directory = self.any(rng);
            let _names = directory.steady_names();
            inodes.extend(self.look_up(directory, &format!("file-{}", rng.below(FILES))));
        }
        for at in (1..inodes.len()).rev() {
            inodes.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let inodes: Vec<&Arc<Inode>> = inodes.iter().collect();
        // No name of it changes.
        let names = Directories::one(&self.directories[0]);
        let plan = EntryScope { names: &[], inodes: &inodes, makes: 0 };
        entry::change(&self.files(), &names, &plan, |step| {
            let now = step.now();
            inodes.iter().try_for_each(|inode| step.draft(inode).map(|draft| draft.stamp(now, false)))?;
            Ok(Ok(()))
        })
        .unwrap();
        true
    }

    /// What others do with names meanwhile.
    fn others(&self, rng: &mut Rng, thread: u64) {
        let place = *rng.pick(&STAY);
        let name = format!("{place}/own-{thread}");
        let options = OpenOptions::new().read(true).write(true).create(true);
        drop(self.volume.open_file(&name, options).unwrap());
        assert!(self.volume.read_dir(place).unwrap().all(|entry| entry.is_ok()));
        let _may_be_moved: Result<_> = self.volume.metadata(format!("{place}/m0/file-1"));
        self.volume.remove_file(&name).unwrap();
    }

    fn work(&self, thread: u64) {
        let mut rng = Rng::new(27).fork(thread);
        for _ in 0..STEPS {
            let (kind, done) = match rng.below(20) {
                0..6 => (0, self.file(&mut rng)),
                6..11 => (1, self.child(&mut rng)),
                11..14 => (2, self.directory(&mut rng)),
                14..19 => (3, self.several(&mut rng)),
                _ => {
                    self.others(&mut rng, thread);
                    continue;
                }
            };
            self.done[kind].fetch_add(u64::from(done), Ordering::Relaxed);
        }
        let _freed_by_the_next = self.files().free_left();
    }
}

fn house(features: &str) -> (Arc<MemoryDevice>, House) {
    let tree = tempfile::tempdir().unwrap();
    let moving = MOVE.iter().map(|name| format!("/a/{name}"));
    for (number, path) in STAY.iter().map(|path| (*path).to_owned()).chain(moving).enumerate() {
        let path = tree.path().join(&path[1..]);
        std::fs::create_dir_all(&path).unwrap();
        for file in (number as u64 % 3..FILES).step_by(3) {
            std::fs::write(path.join(format!("file-{file}")), "").unwrap();
        }
    }
    let from = tree.path().to_str().unwrap();
    let device = device(&image(16, &["-b", "1024", "-O", features, "-d", from]));
    let volume = open_device(device.clone()).unwrap();
    (device, House::new(volume))
}

#[test]
fn threads_that_name_two_directories_and_several_inodes_in_any_order_end() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for features in ["has_journal", "^has_journal"] {
        let (device, house) = house(features);
        let house = Arc::new(house);
        let (tell, told) = channel();
        for thread in 0..THREADS {
            let (house, tell) = (house.clone(), tell.clone());
            std::thread::spawn(move || {
                house.work(thread);
                drop(house);
                tell.send(thread).unwrap();
            });
        }
        drop(tell);
        for ended in 0..THREADS {
            match told.recv_timeout(PATIENCE) {
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{} of {THREADS} threads wait for ever", THREADS - ended)
                }
                Err(RecvTimeoutError::Disconnected) => panic!("a thread failed"),
            }
        }
        let House { volume, directories, done } = Arc::into_inner(house).unwrap();
        let done = done.map(AtomicU64::into_inner);
        println!("{features}: {done:?}");
        assert!(done.iter().all(|done| *done >= LEAST), "{done:?}");
        drop(directories);
        volume.close().unwrap();
        let scratch = Scratch::new(32 << 20);
        let path = scratch.file("volume.img");
        super::save_device(&device, &path);
        oracle::e2fsck_clean(&path);
    }
}

/// While a directory is being moved, files are renamed between directories, and directories within one.
#[test]
fn only_directories_that_move_to_another_parent_wait_for_each_other() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let (device, house) = house("has_journal");
    let volume = &house.volume;
    std::thread::scope(|scope| {
        let moves = Moves::exclude(house.state());
        let (tell, told) = channel();
        scope.spawn(move || {
            volume.rename("/a/file-0", "/b/file-0").unwrap();
            volume.rename("/b/e/file-1", "/a/c/d/new").unwrap();
            volume.rename("/a/m0", "/a/n0").unwrap();
            tell.send("files").unwrap();
        });
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "files");
        let (tell, told) = channel();
        scope.spawn(move || {
            volume.rename("/a/n0", "/b/n0").unwrap();
            tell.send("a directory").unwrap();
        });
        assert_eq!(told.recv_timeout(Duration::from_millis(100)), Err(RecvTimeoutError::Timeout));
        drop(moves);
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "a directory");
    });
    assert!(matches!(volume.metadata("/a/n0"), Err(Error::NotFound)));
    let House { volume, directories, .. } = house;
    drop(directories);
    volume.close().unwrap();
    let scratch = Scratch::new(32 << 20);
    let path = scratch.file("volume.img");
    super::save_device(&device, &path);
    oracle::e2fsck_clean(&path);
}
