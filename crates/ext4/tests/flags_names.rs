//! Names of immutable and append-only files and directories change as in the kernel.

use crate::common;

use common::read_write;
use rustix::fs::{IFlags, Mode, OFlags, ioctl_getflags, ioctl_setflags};
use std::path::Path;
use uext4::{Caller, InodeFlags, RenameFlags, Volume, VolumeOptions};
use uext4_testkit::{Need, Scratch, VolumeBuilder, e2fsck_clean, needs, with_kernel};

/// Operations on the names of a case, which has `dir/inner`, `dir/sub` and `other/file`.
const OPERATIONS: [&str; 15] = [
    "create",
    "make a directory",
    "make a link",
    "link into",
    "link out of",
    "unlink",
    "remove the directory",
    "move out",
    "move into",
    "rename",
    "replace in",
    "replace by",
    "exchange",
    "move the directory",
    "make unnamed",
];

/// How an operation ends: 0, or an errno.
fn names_by_kernel(case: &Path, operation: &str) -> i32 {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let at = |name: &str| case.join(name);
    let (dir, inner, sub, file) = (at("dir"), at("dir/inner"), at("dir/sub"), at("other/file"));
    let (inside, outside) = (at("dir/new"), at("other/new"));
    let rename = |from: &Path, to: &Path| std::fs::rename(from, to);
    let done = match operation {
        "create" => std::fs::File::create_new(inside).map(drop),
        "make a directory" => std::fs::create_dir(inside),
        "make a link" => std::os::unix::fs::symlink("target", inside),
        "link into" => std::fs::hard_link(file, inside),
        "link out of" => std::fs::hard_link(inner, outside),
        "unlink" => std::fs::remove_file(inner),
        "remove the directory" => std::fs::remove_dir(sub),
        "move out" => rename(&inner, &outside),
        "move into" => rename(&file, &inside),
        "rename" => rename(&inner, &inside),
        "replace in" => rename(&file, &inner),
        "replace by" => rename(&inner, &file),
        "exchange" => renameat_with(CWD, inner, CWD, file, RenameFlags::EXCHANGE).map_err(Into::into),
        "move the directory" => rename(&sub, &outside),
        _ => rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).map(drop).map_err(Into::into),
    };
    done.err().map_or(0, |error| error.raw_os_error().unwrap())
}

fn names_by_us(volume: &Volume, case: &str, operation: &str) -> i32 {
    let at = |name: &str| format!("/{case}/{name}");
    let (dir, inner, sub, file) = (at("dir"), at("dir/inner"), at("dir/sub"), at("other/file"));
    let (inside, outside) = (at("dir/new"), at("other/new"));
    let root = Caller::root();
    let done = match operation {
        "create" => volume.open_file(inside, read_write().create_new(true)).map(drop),
        "make a directory" => volume.create_dir(inside, 0o777, &root),
        "make a link" => volume.symlink("target", inside, &root),
        "link into" => volume.hard_link(file, inside),
        "link out of" => volume.hard_link(inner, outside),
        "unlink" => volume.remove_file(inner),
        "remove the directory" => volume.remove_dir(sub),
        "move out" => volume.rename(inner, outside),
        "move into" => volume.rename(file, inside),
        "rename" => volume.rename(inner, inside),
        "replace in" => volume.rename(file, inner),
        "replace by" => volume.rename(inner, file),
        "exchange" => volume.rename_with(inner, file, RenameFlags::EXCHANGE),
        "move the directory" => volume.rename(sub, outside),
        _ => volume.node_at(dir, true).unwrap().make_unnamed(0o600, &root).map(drop),
    };
    done.err().map_or(0, |error| error.errno())
}

#[test]
fn root_names_of_protected_files_change_as_in_the_kernel() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let mut cases = Vec::new();
    for operation in OPERATIONS {
        for protected in ["dir", "dir/inner", "dir/sub", "other/file"] {
            for flag in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
                cases.push((cases.len().to_string(), operation, protected, flag));
            }
        }
    }
    let scratch = Scratch::new(128 << 20);
    let tree = scratch.file("tree");
    for (case, ..) in &cases {
        for dir in ["dir/sub", "other"] {
            std::fs::create_dir_all(tree.join(case).join(dir)).unwrap();
        }
        for file in ["dir/inner", "other/file"] {
            std::fs::write(tree.join(case).join(file), file).unwrap();
        }
    }
    let (ours, theirs) = (scratch.file("ours.img"), scratch.file("theirs.img"));
    let made = VolumeBuilder::new(32 << 20).from_dir(&tree).build();
    std::fs::copy(made.path(), &ours).unwrap();
    std::fs::copy(made.path(), &theirs).unwrap();
    let expected = with_kernel(&theirs, "noatime", |root| {
        let one = |(case, operation, protected, flag): &(String, &str, &str, InodeFlags)| {
            let path = root.join(case).join(protected);
            let file = rustix::fs::open(path, OFlags::RDONLY, Mode::empty()).unwrap();
            let flag = IFlags::from_bits_retain(flag.bits());
            ioctl_setflags(&file, ioctl_getflags(&file).unwrap() | flag).unwrap();
            names_by_kernel(&root.join(case), operation)
        };
        cases.iter().map(one).collect::<Vec<_>>()
    });
    let volume = Volume::open(&ours, VolumeOptions::read_write()).unwrap();
    let mut wrong = Vec::new();
    for ((case, operation, protected, flag), expected) in cases.iter().zip(&expected) {
        let path = format!("/{case}/{protected}");
        let flags = volume.metadata(&path).unwrap().flags | *flag;
        volume.set_flags(&path, flags, true).unwrap();
        let found = names_by_us(&volume, case, operation);
        if found != *expected {
            wrong.push(format!("{operation}, {protected} is {flag:?}: {found}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let refused = expected.iter().filter(|errno| **errno == 1).count();
    assert!((30..90).contains(&refused), "{refused} of {} are refused", expected.len());
    volume.close().unwrap();
    e2fsck_clean(&ours);
}
