//! Power cuts while a script edits a volume: each state is sound, and what is in it is what was there between two
//! transactions. A script that fits one transaction happened wholly or not at all.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use uext4::device::{Device, MemoryDevice, MemoryOptions, WriteDurability};
use uext4::{
    Caller, FileKind, OpenOptions, RenameFlags, Timestamp, Visit, Volume, VolumeOptions, WalkOptions,
    WriteFlags, XattrFlags,
};
use uext4_testkit::crash::{Options, Report, assert_states};
use uext4_testkit::device::{CrashDevice, CrashHandle, CrashOptions};
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs, oracle};
use uext4_transfer::{
    Dest, Devices, Error, Follow, From, Holes, Import, ImportOptions, Keep, Observer, Onto, import,
};

/// States of each scenario, unless the environment sets another number.
const STATES: usize = 400;
/// e2fsck checks one in this many.
const EACH: usize = 16;
const TIME: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };

/// What is seen of a volume: by path, attributes and contents as text.
type Tree = BTreeMap<Vec<u8>, String>;

/// Everything but `lost+found`. `contents`: of files their sizes and bytes, too.
fn tree(volume: &Volume, contents: bool) -> Result<Tree, String> {
    let mut walk = volume.walk("/", WalkOptions::new()).map_err(|error| error.to_string())?;
    let (mut found, mut places) = (Tree::new(), Vec::new());
    while let Some(entry) = walk.advance() {
        let entry = entry.map_err(|error| error.to_string())?;
        if entry.visit == Visit::Found {
            places.push(entry.path.to_vec());
        }
    }
    for path in places {
        if path.starts_with(b"lost+found") {
            continue;
        }
        let whole = [b"/", &path[..]].concat();
        let said = entry(volume, &whole, contents);
        found.insert(path, said.map_err(|error| format!("{}: {error}", String::from_utf8_lossy(&whole)))?);
    }
    Ok(found)
}

fn entry(volume: &Volume, path: &[u8], contents: bool) -> uext4::Result<String> {
    let path = Path::new(std::str::from_utf8(path).unwrap());
    let node = volume.node_at(path, false)?;
    let found = node.attributes();
    let mut said = format!("{:?} {:o} {}:{} {}", found.kind, found.mode, found.uid, found.gid, found.links);
    for name in node.xattrs() {
        let name = name?;
        said += &format!(" {name:?}={:?}", node.xattr(name.as_bytes())?);
    }
    match found.kind {
        FileKind::Symlink => said += &format!(" -> {:?}", node.read_link()?),
        FileKind::Regular if contents => {
            let bytes = volume.read(path)?;
            let sum =
                bytes.iter().fold(7_u64, |sum, &byte| sum.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte));
            said += &format!(" {} bytes, {sum:x}", bytes.len());
        }
        _ => {}
    }
    Ok(said)
}

fn loaded(bytes: &[u8]) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(MemoryOptions::new(bytes.len() as u64)).unwrap());
    let mut part = uext4::BufferPool::new(1 << 16).unwrap().take(1 << 16).unwrap();
    for (at, chunk) in bytes.chunks(1 << 16).enumerate() {
        part[..chunk.len()].copy_from_slice(chunk);
        device.write_at(&part[..chunk.len()], (at << 16) as u64, WriteDurability::Cached).unwrap();
    }
    device
}

/// What the volume holds before the script.
fn first_tree(scratch: &Scratch) -> std::path::PathBuf {
    let tree = scratch.file("first");
    for directory in ["etc", "var/cache/deep/er", "srv"] {
        fs::create_dir_all(tree.join(directory)).unwrap();
    }
    for number in 0..40_usize {
        fs::write(tree.join(format!("var/cache/{number}")), vec![number as u8; number * 700]).unwrap();
        fs::write(tree.join(format!("var/cache/deep/er/{number}")), "deep").unwrap();
    }
    fs::write(tree.join("etc/motd"), vec![b'm'; 9000]).unwrap();
    fs::write(tree.join("etc/hosts"), "hosts").unwrap();
    tree
}

/// What is copied in.
fn new_tree(scratch: &Scratch) -> std::path::PathBuf {
    let tree = scratch.file("new");
    fs::create_dir_all(tree.join("app/lib")).unwrap();
    for number in 0..30_usize {
        fs::write(tree.join(format!("app/lib/{number}")), vec![0x40 + number as u8; number * 900]).unwrap();
    }
    fs::write(tree.join("app/program"), vec![b'p'; 150_000]).unwrap();
    fs::set_permissions(tree.join("app/program"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::hard_link(tree.join("app/program"), tree.join("app/same")).unwrap();
    symlink("program", tree.join("app/link")).unwrap();
    tree
}

/// A volume with the first tree, that records what is written to it.
fn volume(scratch: &Scratch, args: &[&str]) -> (CrashHandle, Volume) {
    let builder = VolumeBuilder::new(12 << 20).args(args.iter().copied());
    let image = builder.from_dir(&first_tree(scratch)).build();
    if args.iter().any(|arg| arg.contains("quota")) {
        // mke2fs counts before it copies the tree.
        assert!(oracle::e2fsck(image.path(), &["-fy"]).status < 2);
    }
    let crash = CrashDevice::new(loaded(&fs::read(image.path()).unwrap()), CrashOptions::default()).unwrap();
    let handle = crash.handle();
    // Deterministic, so that a state can be replayed.
    let options = VolumeOptions::read_write().deterministic(TIME);
    (handle, Volume::open_device(Arc::new(crash), options).unwrap())
}

struct Silent;

impl Observer for Silent {
    fn begin(&mut self, _: Option<u64>) {}
    fn advance(&mut self, _: u64) {}
    fn trouble(&mut self, error: Error) {
        panic!("{error:?}");
    }
}

/// `cp -a SOURCE VOLUME:/srv`.
fn copy_in(volume: &Volume, source: &Path) {
    let options = ImportOptions {
        recursive: true,
        follow: Follow::Never,
        holes: Holes::Source,
        plain: false,
        keep: Keep::EVERYTHING,
        caller: Caller::new(0, 0),
        owner: Some((0, 0)),
        onto: Onto::Replaced,
        no_clobber: false,
    };
    let mut import = Import::new(volume, Path::new("/srv"), false, Devices::default(), options).unwrap();
    import.copy(From::Host(source), &mut Silent).unwrap();
}

/// The script: what `cp -a`, `cp`, `rm -r`, `mv`, `chmod`, `ln`, `xattr`, `mkdir`, `truncate` and `chown` do.
fn script(volume: &Volume, scratch: &Scratch) {
    let root = Caller::new(0, 0);
    copy_in(volume, &new_tree(scratch).join("app"));
    let motd = scratch.file("motd");
    fs::write(&motd, "hello").unwrap();
    let path = Path::new("/etc/motd");
    let dest = Dest { volume, path, owner: (0, 0), umask: 0o022, onto: Onto::Replaced, holes: Holes::Source };
    import(&motd, &dest, &mut |_| {}).unwrap();
    volume.remove_dir_all("/var/cache/deep").unwrap();
    (0..20).for_each(|number| volume.remove_file(format!("/var/cache/{number}")).unwrap());
    volume.rename("/srv/app/lib", "/var/lib").unwrap();
    volume.rename_with("/etc/hosts", "/etc/motd", RenameFlags::EXCHANGE).unwrap();
    volume.set_permissions("/srv/app", 0o2750, true).unwrap();
    volume.symlink("../srv/app/program", "/etc/program", &root).unwrap();
    volume.hard_link("/var/cache/30", "/etc/thirty").unwrap();
    volume.set_xattr("/etc/motd", "user.note", [7; 900], XattrFlags::empty(), true).unwrap();
    volume.create_dir("/etc/new", 0o700, &root).unwrap();
    let cut = volume.open_file("/var/cache/39", OpenOptions::new().write(true)).unwrap();
    // To a whole block: the tail of one is zeroed before the commit, as in Linux.
    cut.set_len(4096).unwrap();
    drop(cut);
    volume.set_owner("/var/cache/39", Some(1000), Some(100), true).unwrap();
}

/// Passes the states to `check`, each recovered by us and closed; some are recovered by e2fsck as well.
#[track_caller]
fn enumerate(
    handle: &CrashHandle,
    name: &str,
    scratch: &Scratch,
    mut check: impl FnMut(&Volume) -> Result<(), String>,
) -> Report {
    let path = scratch.file("state");
    let mut shown = 0;
    let report = assert_states(&handle.log().unwrap(), &Options::new(name, 1).at_most(STATES), |state| {
        shown += 1;
        let device = state.device();
        let open = |device: Arc<dyn Device>| Volume::open_device(device, VolumeOptions::read_write());
        let volume = open(device.clone()).map_err(|error| error.to_string())?;
        check(&volume)?;
        volume.close().map_err(|error| error.to_string())?;
        if shown % EACH != 1 {
            return Ok(());
        }
        uext4_testkit::crash::Image::of(&*device).save(&path);
        let judged = oracle::e2fsck(&path, &["-fn"]);
        if judged.status != 0 {
            return Err(format!("e2fsck -fn after our recovery: {judged:?}"));
        }
        state.save(&path);
        let repaired = oracle::e2fsck(&path, &["-fy"]);
        if repaired.status > 1 {
            return Err(format!("e2fsck -fy: {repaired:?}"));
        }
        oracle::e2fsck_clean(&path);
        let volume = open(loaded(&fs::read(&path).unwrap())).map_err(|error| error.to_string())?;
        check(&volume).map_err(|wrong| format!("recovered by e2fsck: {wrong}"))?;
        volume.close().map_err(|error| error.to_string())
    });
    println!("{name}: {report}");
    report
}

/// All or nothing.
fn whole(name: &'static str, args: &[&str]) {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 << 20);
    let (handle, volume) = volume(&scratch, args);
    let before = tree(&volume, true).unwrap();
    script(&volume, &scratch);
    let after = tree(&volume, true).unwrap();
    assert!(before != after && after.contains_key(&b"var/lib/7"[..]));
    let commits = volume.stats().get(uext4::Counter::Commits);
    assert_eq!(commits, 0, "the script is one transaction");
    volume.close().unwrap();
    let (mut old, mut new) = (0, 0);
    let report = enumerate(&handle, name, &scratch, |volume| match tree(volume, true)? {
        found if found == before => {
            old += 1;
            Ok(())
        }
        found if found == after => {
            new += 1;
            Ok(())
        }
        found => Err(format!("{} names: neither {} nor {}", found.len(), before.len(), after.len())),
    });
    if report.states > 50 {
        assert!(report.images > 30 && old > 10 && new > 10, "{report}: {old} old, {new} new");
    }
}

#[test]
fn power_cut_while_a_script_edits() {
    whole("edits", &["-b", "4096", "-J", "size=4"]);
}

#[test]
fn power_cut_while_a_script_edits_small_blocks_without_checksums() {
    whole("edits_without_checksums", &["-b", "1024", "-O", "^metadata_csum,^64bit", "-J", "size=4"]);
}

#[test]
fn power_cut_while_a_script_edits_files_inside_inodes() {
    whole("edits_inside_inodes", &["-b", "4096", "-J", "size=4", "-O", "inline_data,quota"]);
}

/// The log is too small for the script: it becomes several transactions, and each state is one between two of its
/// steps, none older than one before it.
#[test]
fn power_cut_while_a_long_script_edits() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 << 20);
    let (handle, volume) = volume(&scratch, &["-b", "1024", "-J", "size=1", "-N", "4000"]);
    let root = Caller::new(0, 0);
    let mut trees = vec![tree(&volume, false).unwrap()];
    let mut step = |act: &dyn Fn(&Volume) -> uext4::Result<()>| {
        act(&volume).unwrap();
        trees.push(tree(&volume, false).unwrap());
        handle.mark(trees.len());
    };
    for number in 0..800_u32 {
        let (directory, name) = (format!("/srv/d{}", number / 25), format!("{number:0100}"));
        if number % 25 == 0 {
            step(&|volume| volume.create_dir(&directory, 0o755, &root));
        }
        let path = format!("{directory}/{name}");
        match number % 5 {
            0 => step(&|volume| volume.symlink("t".repeat(600), &path, &root)),
            1 => step(&|volume| volume.create_dir(&path, 0o711, &root)),
            _ => step(&|volume| {
                let how = OpenOptions::new().write(true).create_new(true).owner(number, 0);
                let file = volume.open_file(&path, how)?;
                file.write_any_at(&[number as u8; 3000], 0, WriteFlags::empty()).map(drop)
            }),
        }
        if number % 7 == 3 {
            step(&|volume| {
                volume.set_xattr(&path, "trusted.note", [number as u8; 500], XattrFlags::empty(), false)
            });
            step(&|volume| volume.rename(&path, format!("/srv/moved {number}")));
        }
        if number >= 50 && number % 25 == 24 {
            let old = format!("/srv/d{}", number / 25 - 2);
            step(&|volume| volume.set_permissions(&old, 0o700, true));
            let names: Vec<_> = volume.read_dir(&old).unwrap().map(|entry| entry.unwrap()).collect();
            for entry in names.iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
                let path = format!("{old}/{}", std::str::from_utf8(&entry.name).unwrap());
                match entry.kind {
                    Some(FileKind::Directory) => step(&|volume| volume.remove_dir(&path)),
                    _ => step(&|volume| volume.remove_file(&path)),
                }
            }
            step(&|volume| volume.remove_dir(&old));
        }
    }
    let commits = volume.stats().get(uext4::Counter::Commits);
    assert!((2..60).contains(&commits), "few transactions: {commits}");
    volume.close().unwrap();
    let places: BTreeMap<&Tree, usize> = trees.iter().zip(0..).collect();
    let mut between = std::collections::BTreeSet::new();
    let report = enumerate(&handle, "long_edits", &scratch, |volume| {
        let found = tree(volume, false)?;
        let place = places.get(&found).ok_or_else(|| format!("{} names: no step left this", found.len()))?;
        between.insert(*place);
        Ok(())
    });
    println!("{commits} commits, {} states between steps", between.len());
    if report.states > 50 {
        assert!(between.len() as u64 > commits && between.contains(&0), "{between:?}");
    }
}
