//! `cp -r` and `cp -a`: files with several names, and names in the destination that are not the copy's to take.

use crate::common;

use common::{at, good, unprivileged, volume};
use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use uext4_testkit::{
    KernelMount, LoopDevice, LoopOptions, Need, Scratch, Volume, VolumeBuilder, needs, oracle,
};

fn copy(flags: &str, sources: &[OsString], out: &Path) -> Vec<OsString> {
    [&["cp".into(), flags.into()], sources, &[out.into()]].concat()
}

fn inode(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().ino()
}

/// A volume with `/d/xxxx`, `/d/yyyy` and `/g`, names of one file.
fn linked(scratch: &Scratch) -> Volume {
    let tree = scratch.file("tree");
    std::fs::create_dir_all(tree.join("d")).unwrap();
    std::fs::write(tree.join("d/xxxx"), "A").unwrap();
    for other in ["d/yyyy", "g"] {
        std::fs::hard_link(tree.join("d/xxxx"), tree.join(other)).unwrap();
    }
    VolumeBuilder::new(8 << 20).args(["-O", "^metadata_csum"]).from_dir(&tree).build()
}

/// As with cp(1), names of one file stay that when they come from several sources; what has the same number on
/// another volume is another file.
#[test]
fn hard_links_between_several_sources() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let source = Scratch::new(1 << 20);
    let volumes = ["one", "two"].map(|which| {
        let tree = source.file(which);
        let names = [format!("{which}-d/f"), format!("{which}-g"), format!("{which}-h")];
        std::fs::create_dir_all(tree.join(format!("{which}-d"))).unwrap();
        std::fs::write(tree.join(&names[0]), format!("the contents of {which}")).unwrap();
        for other in &names[1..] {
            std::fs::hard_link(tree.join(&names[0]), tree.join(other)).unwrap();
        }
        (VolumeBuilder::new(8 << 20).from_dir(&tree).build(), which, names)
    });
    let out = source.file("out");
    std::fs::create_dir(&out).unwrap();
    let mut args: Vec<OsString> = vec!["cp".into(), "-a".into()];
    // Names of the two volumes in turn.
    for name in ["g", "d", "h"] {
        args.extend(volumes.iter().map(|(volume, which, _)| at(volume, format!("/{which}-{name}"))));
    }
    good(args.into_iter().chain([out.clone().into()]));
    let made = volumes.each_ref().map(|(_, which, names)| {
        let found = names.each_ref().map(|name| std::fs::metadata(out.join(name)).unwrap());
        let inodes = found.each_ref().map(MetadataExt::ino);
        assert_eq!(inodes, [inodes[0]; 3], "{which}");
        assert_eq!(found[0].nlink(), 3, "{which}");
        assert_eq!(
            std::fs::read(out.join(&names[0])).unwrap(),
            format!("the contents of {which}").as_bytes()
        );
        inodes[0]
    });
    assert_ne!(made[0], made[1]);
    let inodes = volumes
        .each_ref()
        .map(|(volume, which, _)| oracle::debugfs(volume.path(), &format!("ls /{which}-d")));
    assert_eq!(inodes[0], inodes[1], "the files have the same number");
}

/// A name that comes twice, alone and with its directory, is no reason to forget the others.
#[test]
fn hard_links_between_sources_within_each_other() {
    needs!(Need::Tool("mke2fs"));
    let source = Scratch::new(1 << 20);
    let volume = linked(&source);
    let out = source.file("out");
    std::fs::create_dir(&out).unwrap();
    good(copy("-a", &["/d/xxxx", "/g", "/d"].map(|path| at(&volume, path)), &out));
    let inodes = ["xxxx", "g", "d/xxxx", "d/yyyy"].map(|name| inode(&out.join(name)));
    assert_eq!(inodes, [inodes[0]; 4]);
}

/// What lies in the destination may be the volume itself, or that of another source.
#[test]
fn no_source_loses_its_device() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let (one, other) = (volume(), volume());
    oracle::debugfs_script(one.path(), "ln /hello /again\nset_inode_field /hello links_count 2\n");
    let out = one.scratch().file("out");
    std::fs::create_dir(&out).unwrap();
    for (name, volume) in [("again", &one), ("link", &one), ("fifo", &one), ("hello", &other)] {
        std::fs::hard_link(volume.path(), out.join(name)).unwrap();
    }
    let before = [&one, &other].map(|volume| std::fs::read(volume.path()).unwrap());
    let sources =
        [at(&one, "/empty"), at(&one, "/again"), at(&one, "/link"), at(&one, "/fifo"), at(&other, "/hello")];
    for flags in ["-r", "-a"] {
        let said = bad_lines(copy(flags, &sources, &out), 4);
        assert!(said.contains("again: create: ") && said.contains("hello: create: "), "{said}");
        assert!(said.contains("link: make link: ") && said.contains("fifo: make node: "), "{said}");
    }
    // As another name of what was copied just now; and without -r.
    std::fs::remove_file(out.join("hello")).unwrap();
    let said = bad_lines(copy("-a", &["/hello", "/again"].map(|path| at(&one, path)), &out), 1);
    assert!(said.contains("again: link: "), "{said}");
    std::fs::remove_file(out.join("hello")).unwrap();
    std::fs::hard_link(other.path(), out.join("hello")).unwrap();
    let said = bad_lines(copy("-p", &[at(&one, "/hello"), at(&other, "/empty")], &out), 1);
    assert!(said.contains("hello: is the device of a source"), "{said}");
    for (volume, name) in [(&one, "again"), (&one, "link"), (&one, "fifo"), (&other, "hello")] {
        assert_eq!(inode(volume.path()), inode(&out.join(name)), "{name}");
    }
    assert!(before == [&one, &other].map(|volume| std::fs::read(volume.path()).unwrap()));
}

fn bad_lines(args: Vec<OsString>, lines: usize) -> String {
    let said = String::from_utf8(common::uext4(args).stderr).unwrap();
    assert_eq!(said.lines().count(), lines, "{said}");
    said
}

/// A damaged directory has a name twice: the second file takes the place of the first copy, of which others were to
/// be links.
#[test]
fn what_took_the_place_of_a_first_copy_is_not_linked() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    for second in ["write", "symlink"] {
        let source = Scratch::new(1 << 20);
        let volume = linked(&source);
        let content = source.file("content");
        std::fs::write(&content, "B").unwrap();
        let make = match second {
            "write" => {
                format!("write {} /b\nln /b /d/QQQQ\nset_inode_field /b links_count 1\n", content.display())
            }
            _ => "symlink /b nowhere\nln /b /d/QQQQ\n".to_owned(),
        };
        oracle::debugfs_script(volume.path(), &(make + "unlink /b\nunlink /d/yyyy\n"));
        let mut bytes = std::fs::read(volume.path()).unwrap();
        let name = bytes.windows(4).position(|bytes| bytes == b"QQQQ").unwrap();
        bytes[name..name + 4].copy_from_slice(b"xxxx");
        std::fs::write(volume.path(), &bytes).unwrap();
        let out = source.file("out");
        std::fs::create_dir(&out).unwrap();
        let args = copy("-a", &["/d", "/g"].map(|path| at(&volume, path)), &out);
        bad_lines(args, 0);
        assert_eq!(std::fs::read(out.join("g")).unwrap(), b"A", "{second}");
        if second == "write" {
            assert_eq!(std::fs::read(out.join("d/xxxx")).unwrap(), b"B");
        } else {
            assert_eq!(std::fs::read_link(out.join("d/xxxx")).unwrap(), Path::new("nowhere"));
        }
    }
}

/// From a directory that nobody may search nothing can be linked: what has a name there gets a file of its own
/// elsewhere, which is told, as long as such files come to no more than the volume; and nothing that is there is
/// emptied for what then does not come.
#[test]
fn what_cannot_be_linked_is_copied() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let source = Scratch::new(64 << 20);
    let tree = source.file("tree");
    let names = ["d/x", "e/y", "f/z"];
    for (number, name) in names.iter().enumerate() {
        std::fs::create_dir_all(tree.join(name).parent().unwrap()).unwrap();
        match number {
            0 => std::fs::write(tree.join(name), vec![7; 9 << 20]).unwrap(),
            _ => std::fs::hard_link(tree.join(names[0]), tree.join(name)).unwrap(),
        }
    }
    let volume = VolumeBuilder::new(16 << 20).from_dir(&tree).build();
    let modes = ["d", "e", "f"].map(|name| format!("set_inode_field /{name} mode 040600\n")).concat();
    oracle::debugfs_script(volume.path(), &modes);
    let out = volume.scratch().file("out");
    std::fs::create_dir_all(out.join("f")).unwrap();
    std::fs::write(out.join("f/z"), "before").unwrap();
    for made in ["", "f", "f/z"] {
        std::fs::set_permissions(out.join(made), PermissionsExt::from_mode(0o777)).unwrap();
    }
    let output = unprivileged(&volume, &copy("-a", &[at(&volume, "/")], &out));
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    let told =
        ["out/e/y: becomes a separate file: link: Permission denied", "out/f/z: link: Permission denied"];
    for told in told {
        assert!(said.contains(told), "{said}");
    }
    for made in ["d", "e", "f"] {
        std::fs::set_permissions(out.join(made), PermissionsExt::from_mode(0o700)).unwrap();
    }
    for name in &names[..2] {
        assert!(std::fs::read(out.join(name)).unwrap() == vec![7; 9 << 20], "{name}");
    }
    assert_eq!(std::fs::read(out.join("f/z")).unwrap(), b"before");
}

/// A loop device stands on an image that may lie where the copy goes.
#[test]
fn root_the_image_of_a_loop_device_is_kept() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let out = volume.scratch().file("out");
    std::fs::create_dir(&out).unwrap();
    let options = LoopOptions { read_only: true, ..LoopOptions::default() };
    let device = LoopDevice::attach(volume.path(), options);
    std::fs::hard_link(volume.path(), out.join("hello")).unwrap();
    let source: OsString = format!("{}:/hello", device.path().display()).into();
    for flags in ["-a", "-p"] {
        let said = bad_lines(copy(flags, std::slice::from_ref(&source), &out), 1);
        assert!(said.contains("busy") || said.contains("is the device of a source"), "{said}");
    }
    assert_eq!(inode(volume.path()), inode(&out.join("hello")));
    // Another loop device on the same image is no other place.
    let options = LoopOptions { read_only: true, ..LoopOptions::default() };
    let other = LoopDevice::attach(volume.path(), options);
    let said = bad_lines(copy("-p", std::slice::from_ref(&source), other.path()), 1);
    assert!(said.contains("is the device of a source"), "{said}");
    drop((device, other));
    volume.assert_clean();
    // A volume in a file of a mounted volume stands on that one's image.
    let outer = VolumeBuilder::new(256 << 20).build();
    let mounted = KernelMount::image(outer.path(), LoopOptions::default(), "");
    std::fs::copy(volume.path(), mounted.path().join("inner")).unwrap();
    let out = outer.scratch().file("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::hard_link(outer.path(), out.join("hello")).unwrap();
    let source = [mounted.path().join("inner:/hello").into_os_string()];
    let said = bad_lines(copy("-a", &source, &out), 1);
    assert!(said.contains("busy"), "{said}");
    mounted.unmount();
    outer.assert_clean();
}
