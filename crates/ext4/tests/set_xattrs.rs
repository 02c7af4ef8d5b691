//! Extended attributes set and removed: against a model, as the kernel does it, shared blocks, and refusals.

use crate::common;

use common::sample::few_files;
use common::{Image, assert_clean, assert_unchanged, open_ro, open_rw};
use rustix::fs::{CWD, XattrFlags as Flags, lremovexattr, lsetxattr};
use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use uext4::device::Device;
use uext4::{
    Acl, AclEntry, AclTag, Caller, Error, Limit, NodeKind, OpenOptions, Volume, VolumeOptions, XattrFlags,
};
use uext4_testkit::fixture::pattern;
use uext4_testkit::{Need, Rng, Scratch, e2fsck_clean, kernel_manifest, needs, oracle, with_kernel};

const PATHS: [&str; 7] = ["/a", "/b", "/c", "/dir", "/dir/inner", "/link", "/pipe"];

const LAYOUTS: [&[&str]; 7] = [
    &["-b", "4096"],
    &["-b", "1024", "-I", "128", "-O", "^metadata_csum,^64bit"],
    &["-b", "1024", "-I", "256", "-O", "^metadata_csum"],
    &["-b", "4096", "-I", "1024"],
    &["-b", "4096", "-O", "inline_data"],
    &["-b", "4096", "-O", "bigalloc", "-C", "16384"],
    &["-b", "1024", "-O", "^has_journal"],
];

fn image(args: &[&str]) -> Image {
    few_files(args, |tree| {
        symlink("dir/inner", tree.join("link")).unwrap();
        rustix::fs::mknodat(CWD, tree.join("pipe"), rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
    })
}

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut value = vec![0; length];
    pattern(seed, 0, &mut value);
    value
}

/// A change, and the path of what changes.
#[derive(Debug, Clone)]
enum Change {
    Set(Vec<u8>, Vec<u8>, XattrFlags),
    Remove(Vec<u8>),
    Mode(u32),
}

fn any_acl(rng: &mut Rng) -> Vec<u8> {
    let mut entry = |tag| AclEntry { tag, permissions: rng.below(8) as u16 };
    let mut entries = vec![entry(AclTag::Owner), entry(AclTag::OwningGroup), entry(AclTag::Other)];
    match rng.below(5) {
        0 => {}
        1 => entries.insert(2, AclEntry { tag: AclTag::Mask, permissions: 5 }),
        2 => entries.clear(),
        named => {
            entries.insert(1, AclEntry { tag: AclTag::User(1000), permissions: 6 });
            entries.insert(3, AclEntry { tag: AclTag::Group(70_000), permissions: 3 });
            if named > 3 || rng.chance(70) {
                entries.insert(4, AclEntry { tag: AclTag::Mask, permissions: rng.below(8) as u16 });
            }
        }
    }
    Acl { entries }.encode_xattr()
}

/// Few names and values, so that files often have the same.
fn any_change(rng: &mut Rng, most: u64) -> Change {
    if rng.chance(8) {
        return Change::Mode(*rng.pick(&[0o600, 0o644, 0o2755, 0o710, 0o7]));
    }
    let name = match rng.below(12) {
        0 | 1 => b"trusted.of-root".to_vec(),
        2 => b"security.own".to_vec(),
        3 => b"system.posix_acl_access".to_vec(),
        4 => b"system.posix_acl_default".to_vec(),
        5 => [b"user.".to_vec(), vec![b'n'; 240]].concat(),
        6 => "user.caf\u{e9}".as_bytes().to_vec(),
        k => format!("user.{}", "abcdefghijkl".get(..k as usize).unwrap()).into_bytes(),
    };
    if rng.chance(25) {
        return Change::Remove(name);
    }
    let flags = *rng.pick(&[
        XattrFlags::empty(),
        XattrFlags::empty(),
        XattrFlags::empty(),
        XattrFlags::CREATE,
        XattrFlags::REPLACE,
    ]);
    if name.starts_with(b"system.") {
        return Change::Set(name, any_acl(rng), flags);
    }
    let length = match rng.below(8) {
        0 => 0,
        1..=4 => 1 + rng.below(40),
        5 | 6 => rng.below(most / 3),
        _ => rng.below(most + most / 16),
    };
    Change::Set(name, bytes(rng.below(2), length as usize), flags)
}

fn ours(volume: &Volume, path: &str, change: &Change) -> Result<(), Error> {
    match change {
        Change::Set(name, value, flags) => volume.set_xattr(path, name, value, *flags, false),
        Change::Remove(name) => volume.remove_xattr(path, name, false),
        Change::Mode(mode) => volume.set_permissions(path, *mode, false),
    }
}

fn kernels(path: &Path, change: &Change) -> i32 {
    let done = match change {
        Change::Set(name, value, flags) => {
            let name = std::ffi::CString::new(name.clone()).unwrap();
            lsetxattr(path, name, value, Flags::from_bits_retain(flags.bits()))
        }
        Change::Remove(name) => lremovexattr(path, std::ffi::CString::new(name.clone()).unwrap()),
        Change::Mode(_) if path.is_symlink() => Err(rustix::io::Errno::OPNOTSUPP),
        Change::Mode(mode) => {
            std::fs::set_permissions(path, PermissionsExt::from_mode(*mode)).unwrap();
            Ok(())
        }
    };
    done.map_or_else(|error| error.raw_os_error(), |()| 0)
}

type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

fn read(volume: &Volume, path: &str) -> Xattrs {
    let node = volume.node_at(path, false).unwrap();
    let read = |name: uext4::Result<uext4::XattrName>| {
        let name = name.unwrap();
        (name.as_bytes().to_vec(), node.xattr(&name).unwrap())
    };
    node.xattrs().map(read).collect()
}

/// What the model says of a change that succeeded.
fn apply(model: &mut Xattrs, change: &Change) {
    match change {
        Change::Set(name, value, _) => drop(model.insert(name.clone(), value.clone())),
        Change::Remove(name) => drop(model.remove(name)),
        Change::Mode(_) => {}
    }
}

#[test]
fn a_walk_ends_as_the_model_says() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (seed, args) in LAYOUTS.into_iter().enumerate() {
        let device = image(args).device();
        let mut volume = open_rw(device.clone());
        let free = volume.statfs().unwrap().free;
        let mut rng = common::sample::seeded(seed as u64);
        let mut model: BTreeMap<&str, Xattrs> = BTreeMap::new();
        let most = u64::from(volume.block_size());
        let (mut done, mut full) = (0, 0);
        for step in 0..500 {
            let path = *rng.pick(&PATHS);
            let change = any_change(&mut rng, most);
            // The lists are compared with the kernel's.
            let is_acl = |name: &Vec<u8>| name.starts_with(b"system.");
            if matches!(&change, Change::Set(name, ..) | Change::Remove(name) if is_acl(name)) {
                continue;
            }
            let expected = model.entry(path).or_default();
            match ours(&volume, path, &change) {
                Ok(()) => {
                    done += 1;
                    apply(expected, &change);
                }
                Err(Error::Limit(Limit::Attributes)) => full += 1,
                Err(Error::Exists) => {
                    assert!(matches!(&change, Change::Set(name, ..) if expected.contains_key(name)));
                }
                Err(Error::NoAttribute) => {
                    let name = match &change {
                        Change::Set(name, ..) | Change::Remove(name) => name,
                        Change::Mode(_) => panic!("{change:?}"),
                    };
                    assert!(!expected.contains_key(name), "{args:?} {step}: {path} {change:?}");
                }
                Err(Error::NotPermitted(_)) => assert!(["/link", "/pipe"].contains(&path)),
                Err(Error::NotSupported(_)) => assert!(matches!(change, Change::Mode(_)) && path == "/link"),
                Err(error) => panic!("{args:?} {step}: {path} {change:?}: {error}"),
            }
            assert_eq!(read(&volume, path), *expected, "{args:?} {step}: {path} {change:?}");
            if step % 160 == 159 {
                volume.close().unwrap();
                assert_clean(&*device);
                volume = open_rw(device.clone());
                PATHS
                    .iter()
                    .for_each(|path| assert_eq!(read(&volume, path), model.entry(path).or_default().clone()));
            }
        }
        assert!(done > 150 && full > 2, "{args:?}: {done} {full}");
        assert_eq!(volume.read("/a").unwrap(), [b'o'; 100]);
        // The last one gives the block back.
        for (path, xattrs) in &model {
            xattrs.keys().for_each(|name| volume.remove_xattr(path, name, false).unwrap());
            assert_eq!(read(&volume, path), Xattrs::new());
        }
        volume.sync_all().unwrap();
        assert_eq!(volume.statfs().unwrap().free, free, "{args:?}");
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

/// The same changes here and by the kernel, on two copies of a volume: each has the same errno, and in the end both
/// volumes have the same attributes and modes, as the kernel reads them.
#[test]
fn root_a_walk_ends_as_the_kernel_s() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 << 20);
    for (seed, args) in LAYOUTS.into_iter().enumerate() {
        let image = image(args);
        let (here, there) = (scratch.file("here.img"), scratch.file("there.img"));
        image.save(&here);
        image.save(&there);
        let volume = Volume::open(&here, VolumeOptions::read_write()).unwrap();
        let most = u64::from(volume.block_size());
        let mut rng = common::sample::seeded(50 + seed as u64);
        let changes: Vec<_> = (0..600).map(|_| (*rng.pick(&PATHS), any_change(&mut rng, most))).collect();
        let errno = |(path, change): &(&str, Change)| {
            ours(&volume, path, change).map_or_else(|error| error.errno(), |()| 0)
        };
        let found: Vec<i32> = changes.iter().map(errno).collect();
        for n in 0..6 {
            let (path, mode) = (format!("/dir/new-{n}"), [0o666, 0o640, 0o777, 0o600, 0o020, 0][n]);
            drop(volume.open_file(path, OpenOptions::new().write(true).create_new(true).mode(mode)).unwrap());
        }
        // Everything but links inherits the default lists, and then no umask applies.
        let caller = Caller::root().umask(0o027);
        for parent in ["/dir", ""] {
            volume.create_dir(format!("{parent}/made"), 0o775, &caller).unwrap();
            volume.create_dir(format!("{parent}/made/deep"), 0o1777, &caller).unwrap();
            volume.make_node(format!("{parent}/made/fifo"), NodeKind::Fifo, 0o664, &caller).unwrap();
            volume.symlink("target", format!("{parent}/made/link"), &caller).unwrap();
        }
        volume.close().unwrap();
        e2fsck_clean(&here);
        let expected = with_kernel(&there, "", |root| {
            let at = |path: &str| root.join(path.trim_start_matches('/'));
            let errnos = changes.iter().map(|(path, change)| kernels(&at(path), change)).collect::<Vec<_>>();
            let umask = rustix::process::umask(0.into());
            for n in 0..6 {
                let (path, mode) = (format!("/dir/new-{n}"), [0o666, 0o640, 0o777, 0o600, 0o020, 0][n]);
                std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(at(&path)).unwrap();
            }
            rustix::process::umask(0o027.into());
            for parent in ["dir", ""] {
                let made = root.join(parent).join("made");
                std::fs::DirBuilder::new().mode(0o775).create(&made).unwrap();
                std::fs::DirBuilder::new().mode(0o1777).create(made.join("deep")).unwrap();
                let fifo = made.join("fifo");
                rustix::fs::mknodat(CWD, fifo, rustix::fs::FileType::Fifo, 0o664.into(), 0).unwrap();
                symlink("target", made.join("link")).unwrap();
            }
            rustix::process::umask(umask);
            errnos
        });
        for ((change, found), expected) in changes.iter().zip(found).zip(expected) {
            assert_eq!(found, expected, "{args:?}: {change:?}");
        }
        let (ours, kernels) = (kernel_manifest(&here), kernel_manifest(&there));
        for (path, entry) in &kernels {
            let (found, name) = (&ours[path], path.escape_ascii());
            assert_eq!(format!("{:o}", found.mode), format!("{:o}", entry.mode), "{args:?} {name}");
            assert!(found.xattrs == entry.xattrs, "{args:?} {name}: {:?} {:?}", found.xattrs, entry.xattrs);
        }
    }
}

/// The number of the attribute block of a file, and how many share it.
fn block_of(device: &dyn Device, name: &str) -> u64 {
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    let recovered = Image::of(device).device();
    open_rw(recovered.clone()).close().unwrap();
    Image::of(&*recovered).save(&path);
    let told = oracle::debugfs(&path, &format!("stat {name}"));
    let number = told.split("File ACL: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    number.unwrap().parse().unwrap()
}

#[test]
fn files_with_equal_attributes_share_a_block_until_one_changes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    for args in [LAYOUTS[0], LAYOUTS[1]] {
        let device = image(args).device();
        let volume = open_rw(device.clone());
        let (any, long) = (XattrFlags::empty(), bytes(1, 500));
        let set =
            |path: &str, name: &str, value: &[u8]| volume.set_xattr(path, name, value, any, true).unwrap();
        let before = volume.statfs().unwrap().free;
        ["/a", "/b", "/c"].iter().for_each(|path| set(path, "user.long", &long));
        assert_eq!(before - volume.statfs().unwrap().free, 1, "one block");
        volume.sync_all().unwrap();
        let shared = block_of(&*device, "/a");
        assert!(shared != 0 && ["/b", "/c"].iter().all(|path| block_of(&*device, path) == shared));
        // A change gives one file its own block; undone, it shares again.
        set("/b", "user.more", &bytes(2, 200));
        assert_eq!(volume.xattr("/a", "user.more", true).unwrap_err().errno(), Error::NoAttribute.errno());
        volume.sync_all().unwrap();
        assert!(block_of(&*device, "/b") != shared && block_of(&*device, "/c") == shared);
        volume.remove_xattr("/b", "user.more", true).unwrap();
        volume.sync_all().unwrap();
        assert_eq!(block_of(&*device, "/b"), shared);
        // Files go, the block stays for the last.
        volume.remove_file("/b").unwrap();
        set("/c", "user.long", b"short");
        volume.sync_all().unwrap();
        assert_eq!(block_of(&*device, "/a"), shared);
        assert_eq!(volume.xattr("/a", "user.long", true).unwrap(), long);
        volume.close().unwrap();
        assert_clean(&*device);
        // Found again after a new open, once an edit has seen it.
        let volume = open_rw(device.clone());
        volume.set_xattr("/a", "user.long", &long, any, true).unwrap();
        volume.set_xattr("/dir/inner", "user.long", &long, any, true).unwrap();
        volume.close().unwrap();
        assert_eq!(block_of(&*device, "/dir/inner"), shared);
        assert_clean(&*device);
    }
}

#[test]
fn what_is_refused_changes_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    image(&["-b", "1024"]).save(&path);
    oracle::debugfs_script(&path, "sif /a flags 0x80010\nsif /b flags 0x80020\nea_set /c user.there yes\n");
    let sealed = Image::load(&path);
    let device = sealed.device();
    let volume = open_rw(device.clone());
    let any = XattrFlags::empty();
    let set = |path: &str, name: &str, value: &[u8], flags| {
        volume.set_xattr(path, name, value, flags, false).unwrap_err().errno()
    };
    let long = format!("user.{}", "x".repeat(251));
    let acl = |tags: &[AclTag]| {
        let entries = tags.iter().map(|tag| AclEntry { tag: *tag, permissions: 7 }).collect();
        Acl { entries }.encode_xattr()
    };
    let whole = acl(&[AclTag::Owner, AclTag::OwningGroup, AclTag::Other]);
    let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
    for (path, name, value, errno) in [
        ("/a", "user.x", &b"v"[..], libc::EPERM),
        ("/b", access, &whole, libc::EPERM),
        ("/pipe", "user.x", b"v", libc::EPERM),
        ("/link", "user.x", b"v", libc::EPERM),
        ("/link", access, &whole, libc::EOPNOTSUPP),
        ("/c", default, &whole, libc::EACCES),
        ("/c", access, &acl(&[AclTag::Owner, AclTag::Other]), libc::EINVAL),
        ("/c", access, b"", libc::EINVAL),
        ("/c", "", b"v", libc::ERANGE),
        ("/c", &long, b"v", libc::ERANGE),
        ("/c", "user.", b"v", libc::EINVAL),
        ("/c", "user.a\0b", b"v", libc::EINVAL),
        ("/c", "system.data", b"v", libc::EOPNOTSUPP),
        ("/c", "other.x", b"v", libc::EOPNOTSUPP),
        ("/c", "user.x", &[0; 65_537], libc::E2BIG),
        ("/c", "user.x", &[0; 1024], libc::ENOSPC),
    ] {
        assert_eq!(set(path, name, value, any), errno, "{path} {name}");
    }
    assert_eq!(set("/c", "user.there", b"v", XattrFlags::CREATE), libc::EEXIST);
    assert_eq!(set("/c", "user.x", b"v", XattrFlags::REPLACE), libc::ENODATA);
    assert_eq!(set("/c", "user.x", b"v", XattrFlags::all()), libc::EINVAL);
    assert_eq!(volume.remove_xattr("/c", "user.x", true).unwrap_err().errno(), libc::ENODATA);
    volume.remove_xattr("/c", access, true).unwrap();
    // The value it has already.
    volume.set_xattr("/c", "user.there", "yes", any, true).unwrap();
    let journal = volume.node(uext4::Ino(8), None).unwrap();
    assert!(matches!(journal.set_xattr("user.x", "v", any), Err(Error::NotPermitted(_))));
    drop((journal, volume));
    assert_unchanged(&sealed, &*device);
    let read_only = open_ro(device);
    assert!(matches!(read_only.set_xattr("/c", "user.x", "v", any, true), Err(Error::ReadOnly(_))));
}

#[test]
fn without_a_free_block_nothing_changes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(&["-b", "1024"]).device();
    let volume = common::open_to_the_last(device.clone());
    let any = XattrFlags::empty();
    volume.set_xattr("/a", "user.long", bytes(1, 500), any, true).unwrap();
    let filler = volume.open_file("/c", common::read_write()).unwrap();
    let mut size = 32 << 20;
    while size >= 1024 {
        let end = filler.size();
        if filler.fallocate(uext4::Fallocate::Allocate, end, size).is_err() {
            size /= 2;
        }
    }
    let refused = volume.set_xattr("/b", "user.long", bytes(2, 500), any, true);
    assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
    assert_eq!(read(&volume, "/b"), Xattrs::new());
    // What needs no block of its own succeeds.
    volume.set_xattr("/b", "user.long", bytes(1, 500), any, true).unwrap();
    volume.set_xattr("/b", "user.short", "v", any, true).unwrap();
    drop(filler);
    volume.close().unwrap();
    assert_clean(&*device);
}

/// A capability that is set while the file is open for writing is stripped by the next write.
#[test]
fn the_next_write_strips_a_capability() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(LAYOUTS[0]).device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/b", common::read_write()).unwrap();
    let capability: Vec<u8> = [1, 0, 0, 2, 0, 32].into_iter().chain([0; 14]).collect();
    volume.set_xattr("/b", "security.capability", &capability, XattrFlags::empty(), true).unwrap();
    file.write_any_at(b"new", 0, uext4::WriteFlags::empty()).unwrap();
    assert_eq!(read(&volume, "/b"), Xattrs::new());
    drop(file);
    volume.close().unwrap();
    assert_clean(&*device);
}
