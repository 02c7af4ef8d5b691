//! Extended attributes written by the kernel, mke2fs and debugfs read the same here.

use crate::common;

use common::{Image, open_ro};
use std::collections::BTreeMap;
use std::path::Path;
use uext4::{Acl, AclKind, Error, Volume, VolumeOptions};
use uext4_testkit::fixture::pattern;
use uext4_testkit::{Need, Rng, Scratch, VolumeBuilder, debugfs, needs, oracle};

/// Attributes by name.
type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut value = vec![0; length];
    pattern(seed, 0, &mut value);
    value
}

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty())
        .unwrap_or_else(|error| panic!("{} {name}: {error}", path.display()));
}

/// All attributes that the library sees, each read by its name.
fn xattrs_of(volume: &Volume, path: &Path) -> Xattrs {
    let names = volume.list_xattrs(path, false).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let read = |name: uext4::Result<uext4::XattrName>| {
        let name = name.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let value =
            volume.xattr(path, &name, false).unwrap_or_else(|e| panic!("{} {name}: {e}", path.display()));
        (name.into_bytes(), value)
    };
    let found: Xattrs = names.map(read).collect();
    // The same in one pass.
    let ino = volume.resolve(path, false).unwrap();
    let all = volume.xattrs_of(ino).unwrap();
    assert!(all.examined() >= found.len() && all.len() == found.len(), "{}", path.display());
    assert!(found.is_empty() || volume.may_have_xattrs(ino).unwrap());
    let pairs = all.map(|xattr| {
        let xattr = xattr.unwrap();
        (xattr.name().clone().into_bytes(), xattr.value().unwrap())
    });
    assert!(pairs.collect::<Xattrs>() == found, "{}", path.display());
    found
}

/// Every path's attributes equal those that the kernel reads.
#[track_caller]
fn assert_like_kernel(volume: &uext4_testkit::Volume) -> usize {
    let here = Volume::open(volume.path().to_str().unwrap(), VolumeOptions::read_only()).unwrap();
    let mut count = 0;
    for (path, entry) in volume.kernel_manifest() {
        let path = std::path::PathBuf::from(String::from_utf8(path).unwrap());
        let found = xattrs_of(&here, &path);
        let short = |xattrs: &Xattrs| -> Vec<(String, usize)> {
            xattrs.iter().map(|(name, value)| (name.escape_ascii().to_string(), value.len())).collect()
        };
        assert!(found == entry.xattrs, "{}: {:?} {:?}", path.display(), short(&found), short(&entry.xattrs));
        count += found.len();
    }
    count
}

/// An access control list in the form of the system calls: user 1000 has `permissions`.
fn acl(permissions: u8) -> Vec<u8> {
    let entry = |tag: u16, permissions: u8, id: u32| {
        [&tag.to_le_bytes()[..], &u16::from(permissions).to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [
        entry(1, 7, none),
        entry(2, permissions, 1000),
        entry(4, 5, none),
        entry(8, 1, 70_000),
        entry(16, 7, none),
        entry(32, 4, none),
    ];
    [&2u32.to_le_bytes()[..], &entries.concat()].concat()
}

/// Files, directories, links and nodes with attributes in the record, in a block of their own, in a shared
/// one, and in all name spaces.
fn fill(root: &Path, large: &[usize]) {
    for n in 0..12u64 {
        let path = root.join(format!("file-{n}"));
        std::fs::write(&path, "contents\n").unwrap();
        let mut rng = Rng::new(n);
        for k in 0..n {
            set(
                &path,
                &format!("user.name-{k}-{}", "x".repeat(rng.below(20) as usize)),
                &bytes(k, 5 * k as usize),
            );
        }
        set(&path, "trusted.of-root", &bytes(n, 7));
        set(&path, "security.own", b"");
        set(&path, "user.caf\u{e9}", &bytes(n, 30));
    }
    // The kernel finds equal blocks and shares them.
    for n in 0..8 {
        let path = root.join(format!("shared-{n}"));
        std::fs::write(&path, "").unwrap();
        set(&path, "user.shared", &bytes(77, 700));
    }
    for (n, &length) in large.iter().enumerate() {
        let path = root.join(format!("large-{n}"));
        std::fs::write(&path, "").unwrap();
        set(&path, "user.large", &bytes(n as u64, length));
        set(&path, "user.second", &bytes(1 + n as u64, length.min(20)));
    }
    std::fs::create_dir(root.join("dir")).unwrap();
    set(&root.join("dir"), AclKind::Access.name(), &acl(6));
    set(&root.join("dir"), AclKind::Default.name(), &acl(3));
    std::fs::write(root.join("dir/inherits"), "").unwrap();
    std::os::unix::fs::symlink("file-1", root.join("link")).unwrap();
    set(&root.join("link"), "trusted.link", b"of the link");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    set(&root.join("fifo"), "trusted.fifo", &bytes(3, 100));
    set(root, "user.root", b"of the root directory");
}

#[test]
fn root_what_the_kernel_wrote_reads_the_same() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let cases: [(&[&str], &[usize]); 6] = [
        (&["-b", "4096"], &[1000, 3900]),
        (&["-b", "1024", "-I", "512"], &[100, 600]),
        (&["-b", "4096", "-I", "128", "-O", "^extra_isize"], &[2000]),
        (&["-b", "2048", "-O", "^metadata_csum,^64bit"], &[1000]),
        (&["-b", "4096", "-I", "1024", "-O", "ea_inode,metadata_csum_seed"], &[5000, 60_000, 65_536]),
        (&["-b", "1024", "-O", "ea_inode,^metadata_csum"], &[900, 4096, 60_000]),
    ];
    for (args, large) in cases {
        println!("{args:?}");
        let volume = VolumeBuilder::new(32 << 20).args(args.iter().copied()).build();
        volume.with_kernel(|root| fill(root, large));
        let count = assert_like_kernel(&volume);
        assert!(count > 100, "{count}");
        let shared = debugfs(volume.path(), "stat /shared-3");
        // Large inodes have room for all of them.
        let roomy = args.windows(2).any(|pair| pair == ["-I", "1024"]);
        assert_eq!(shared.contains("File ACL: 0\n"), roomy, "{shared}");
        let here = Volume::open(volume.path().to_str().unwrap(), VolumeOptions::read_only()).unwrap();
        let decoded = here.acl("/dir", AclKind::Access, true).unwrap().unwrap();
        assert_eq!(decoded.encode_xattr(), acl(6));
        assert!(decoded.to_string().contains("user:1000:rw-"), "{decoded}");
        assert_eq!(here.acl("/file-1", AclKind::Access, true).unwrap(), None);
        let inherited = here.acl("/dir/inherits", AclKind::Access, true).unwrap().unwrap();
        assert!(inherited.to_string().contains("user:1000:-wx"), "{inherited}");
        // Through the link, and of the link.
        assert_eq!(here.xattr("/link", "trusted.of-root", true).unwrap(), bytes(1, 7));
        assert_eq!(here.xattr("/link", "trusted.link", false).unwrap(), b"of the link");
        for name in ["user.none", "system.data", "nothing", "", "user.", "system.posix_acl_access"] {
            let error = here.xattr("/file-1", name, true).unwrap_err();
            assert!(matches!(error, Error::NoAttribute), "{name}: {error}");
            assert_eq!(error.errno(), 61);
        }
    }
}

/// `mke2fs -d` copies attributes; debugfs sets and shows them: an oracle without root.
#[test]
fn what_mke2fs_and_debugfs_wrote_reads_the_same() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for args in [&["-b", "4096"][..], &["-b", "1024", "-I", "512"], &["-b", "1024", "-O", "ea_inode"]] {
        let source = Scratch::new(1 << 20);
        std::fs::write(source.file("a"), "").unwrap();
        std::fs::write(source.file("b"), "").unwrap();
        let volume = VolumeBuilder::new(16 << 20).args(args.iter().copied()).from_dir(source.path()).build();
        // debugfs reads one block of a value, which is more than an attribute block can hold.
        let most = if args.contains(&"ea_inode") { 1024 } else { 700 };
        let values = [("user.tiny", 3), ("user.empty-not", 1), ("user.mid", 200), ("trusted.large", most)];
        for (n, (name, length)) in values.into_iter().enumerate() {
            let value = volume.scratch().file("value");
            std::fs::write(&value, bytes(n as u64, length)).unwrap();
            oracle::debugfs_write(volume.path(), &format!("ea_set -f {} /a {name}", value.display()));
        }
        // No e2fsck: debugfs does not count the block that it allocates.
        let here = open_ro(Image::load(volume.path()).device());
        let found = xattrs_of(&here, Path::new("/a"));
        let listed = debugfs(volume.path(), "ea_list /a");
        assert_eq!(found.len(), values.len(), "{listed}");
        for (n, (name, length)) in values.into_iter().enumerate() {
            assert!(found[name.as_bytes()] == bytes(n as u64, length), "{name}");
            assert!(listed.contains(&format!("{name} ({length})")), "{listed}");
            let out = volume.scratch().file("out");
            debugfs(volume.path(), &format!("ea_get -f {} /a {name}", out.display()));
            assert!(std::fs::read(out).unwrap() == found[name.as_bytes()], "{name}");
        }
        assert_eq!(xattrs_of(&here, Path::new("/b")), Xattrs::new());
    }
}

#[test]
fn lists_decode_from_their_bytes() {
    let decoded = Acl::decode_xattr(&acl(5)).unwrap();
    assert_eq!(decoded.encode_xattr(), acl(5));
}
