//! Volumes inside qcow2 and VMDK images.

use crate::common;
use common::{bad, good, json, text, uext4, volume};
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use uext4_testkit::manifest::differences;
use uext4_testkit::oracle::{self, command, e2fsck_clean};
use uext4_testkit::{Kind, Need, Scratch, manifest, needs, with_kernel};

/// The kernel tears a ring down some time after its process ended, and the image's lock with it: so what is locked is
/// tried again.
fn img(args: &[&str]) -> String {
    for _ in 0..100 {
        let output = command("qemu-img").args(args).output().unwrap();
        if output.status.success() || !oracle::text(&output).contains("Failed to lock") {
            assert!(output.status.success(), "{args:?}: {}", oracle::text(&output));
            return oracle::text(&output);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{args:?}: the image stays locked");
}

/// The disk is sound to `qemu-img check`, and its volume to e2fsck.
#[track_caller]
fn judge(image: &Path) {
    img(&["check", "-q", image.to_str().unwrap()]);
    let raw = image.with_extension("judged");
    img(&["convert", "-O", "raw", image.to_str().unwrap(), raw.to_str().unwrap()]);
    e2fsck_clean(&raw);
    fs::remove_file(raw).unwrap();
}

/// The volume of the tests as another image.
fn converted(scratch: &Scratch, name: &str, args: &[&str]) -> PathBuf {
    let (volume, image) = (volume(), scratch.file(name));
    let names = [volume.path().to_str().unwrap(), image.to_str().unwrap()];
    img(&[&["convert", "-f", "raw"], args, &names].concat());
    image
}

#[test]
fn a_volume_is_made_in_a_new_qcow2_image_and_lives_there() {
    needs!(Need::Tool("qemu-img"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 << 20);
    let image = scratch.file("disk.qcow2");
    let device = image.to_str().unwrap();
    good(["mkfs", device, "10G"]);
    let info = img(&["info", device]);
    assert!(info.contains("file format: qcow2") && info.contains("10737418240 bytes"), "{info}");
    let length = fs::metadata(&image).unwrap().len();
    assert!(length < 24 << 20, "{length}");
    judge(&image);
    let source = scratch.file("source");
    fs::create_dir(&source).unwrap();
    for number in 0..40 {
        fs::write(source.join(number.to_string()), common::pattern(number * 5000)).unwrap();
    }
    let inside = |path: &str| format!("{device}:{path}");
    good(["cp", "-r", source.to_str().unwrap(), &inside("/tree")]);
    judge(&image);
    good(["mv", &inside("/tree/7"), &inside("/seven")]);
    good(["rm", "-r", &inside("/tree")]);
    good([
        "io",
        "-f",
        &inside("/file"),
        "-c",
        "pwrite -S 0x5a 3000 300k",
        "-c",
        "fsync",
        "-c",
        "fpunch 8k 64k",
    ]);
    assert_eq!(good(["cat", &inside("/seven")]), common::pattern(35000));
    let file = good(["cat", &inside("/file")]);
    assert!(file[3000..8192].iter().chain(&file[73728..310_200]).all(|byte| *byte == 0x5a));
    good(["trim", device]);
    judge(&image);
    assert!(text(["check", device]).contains(": clean:"));
    let said = json(["info", "--json", device]);
    let layers = said["device"]["layers"].as_array().unwrap();
    assert!(
        layers[0].as_str().unwrap().starts_with("qcow2 ") && said["device"]["engine"] == "file",
        "{said}"
    );
    assert!(text(["info", device]).contains("64 KiB clusters"));
    let raw = bad(1, ["ls", &format!("{device}?format=raw:/")]);
    assert!(raw.contains("qcow2") || raw.contains("QEMU"), "{raw}");
    // The option says so too, and the other way round.
    let other = scratch.file("other.img");
    good(["mkfs", &format!("{}?format=qcow2", other.display()), "64M"]);
    judge(&other);
    let plain = scratch.file("plain.qcow2");
    good(["mkfs", &format!("{}?format=raw", plain.display()), "64M"]);
    e2fsck_clean(&plain);
    let refused = bad(1, ["mkfs", &format!("{}?format=vmdk", scratch.file("new.vmdk").display()), "64M"]);
    assert!(refused.contains("VMDK") && !scratch.file("new.vmdk").exists(), "{refused}");
}

#[test]
fn a_new_image_holds_the_files_of_a_tree() {
    needs!(Need::Tool("qemu-img"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 << 20);
    let source = scratch.file("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), common::pattern(100_000)).unwrap();
    for (name, size) in [("fixed.qcow2", "64M"), ("fitted.qcow2", "auto")] {
        let image = scratch.file(name);
        let device = image.to_str().unwrap();
        good(["mkfs", device, size, "-d", source.to_str().unwrap()]);
        judge(&image);
        assert_eq!(good(["cat", &format!("{device}:/a")]), common::pattern(100_000));
        // An image that is there keeps the size of its disk.
        let before = json(["info", "--json", device])["device"]["size"].clone();
        let again = uext4(["mkfs", device, "-d", source.to_str().unwrap(), "--force"]);
        assert!(again.status.success() || size == "auto", "{again:?}");
        assert_eq!(json(["info", "--json", device])["device"]["size"], before);
    }
}

#[test]
fn images_of_every_kind_are_read_as_the_raw_one() {
    needs!(Need::Tool("qemu-img"), Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let scratch = Scratch::new(256 << 20);
    let raw = scratch.file("raw.img");
    fs::copy(volume().path(), &raw).unwrap();
    let listing = |device: &Path| {
        let root: OsString = format!("{}:/", device.display()).into();
        let walked = good([OsString::from("ls"), "-lR".into(), root]);
        String::from_utf8_lossy(&walked).replace(device.to_str().unwrap(), "IMAGE")
    };
    let wanted = listing(&raw);
    let content = good(["cat", &format!("{}:/big", raw.display())]);
    for (name, args) in [
        ("plain.qcow2", &["-O", "qcow2"][..]),
        ("compressed.qcow2", &["-O", "qcow2", "-c"]),
        ("small.qcow2", &["-O", "qcow2", "-o", "cluster_size=512"]),
        ("extended.qcow2", &["-O", "qcow2", "-o", "extended_l2=on"]),
        ("sparse.vmdk", &["-O", "vmdk"]),
        ("stream.vmdk", &["-O", "vmdk", "-o", "subformat=streamOptimized"]),
        ("flat.vmdk", &["-O", "vmdk", "-o", "subformat=monolithicFlat"]),
        ("split.vmdk", &["-O", "vmdk", "-o", "subformat=twoGbMaxExtentSparse"]),
    ] {
        let image = scratch.file(name);
        img(&[&["convert", "-f", "raw"], args, &[raw.to_str().unwrap(), image.to_str().unwrap()]].concat());
        assert_eq!(listing(&image), wanted, "{name}");
        assert!(good(["cat", &format!("{}:/big", image.display())]) == content, "{name}");
        assert!(text(["check", image.to_str().unwrap()]).contains(": clean:"), "{name}");
        let written = uext4(["mkdir", &format!("{}:/new", image.display())]);
        assert_eq!(written.status.success(), !name.ends_with("vmdk"), "{name}: {written:?}");
        if name.ends_with("vmdk") {
            assert!(String::from_utf8_lossy(&written.stderr).contains("VMDK images are only read"));
        } else {
            judge(&image);
        }
    }
}

/// The kernel sees what was written into an image, and we what the kernel has written: through `qemu-img convert`.
#[test]
fn root_the_kernel_reads_what_an_image_holds() {
    needs!(Need::Loop, Need::Tool("qemu-img"));
    let scratch = Scratch::new(512 << 20);
    let source = scratch.file("source");
    fs::create_dir_all(source.join("deep/er")).unwrap();
    for number in 0..60 {
        fs::write(source.join(format!("deep/{number}")), common::pattern(number * 3100)).unwrap();
    }
    fs::write(source.join("deep/er/large"), common::pattern(5 << 20)).unwrap();
    std::os::unix::fs::symlink("deep/er", source.join("link")).unwrap();
    // How long a directory is belongs to its file system.
    let tree = |root: &Path| {
        let mut tree = manifest(root);
        let directories = tree.values_mut().filter(|entry| entry.kind == Kind::Directory);
        directories.for_each(|entry| entry.size = 0);
        tree
    };
    let wanted = tree(&source);
    for options in ["cluster_size=65536", "cluster_size=4096", "extended_l2=on,cluster_size=16384"] {
        let (image, raw) = (scratch.file("disk.qcow2"), scratch.file("disk.raw"));
        let names = [image.to_str().unwrap(), raw.to_str().unwrap()];
        img(&["create", "-q", "-f", "qcow2", "-o", options, names[0], "128M"]);
        good(["mkfs", names[0]]);
        let inside = |path: &str| format!("{}:{path}", names[0]);
        // What was there first is freed, and its clusters serve the second.
        good(["cp", "-r", source.to_str().unwrap(), &inside("/first")]);
        good(["rm", "-r", &inside("/first")]);
        good(["trim", names[0]]);
        good(["cp", "-a", source.to_str().unwrap(), &inside("/second")]);
        judge(&image);
        img(&["convert", "-f", "qcow2", "-O", "raw", names[0], names[1]]);
        with_kernel(&raw, "", |root| {
            let seen = tree(&root.join("second"));
            assert!(seen == wanted, "{options}: {:?}", differences(&wanted, &seen));
            fs::rename(root.join("second/deep/7"), root.join("seven")).unwrap();
            fs::write(root.join("second/deep/8"), common::pattern(77_000)).unwrap();
        });
        img(&["convert", "-f", "raw", "-O", "qcow2", "-o", options, names[1], names[0]]);
        assert_eq!(good(["cat", &inside("/seven")]), common::pattern(7 * 3100));
        assert_eq!(good(["cat", &inside("/second/deep/8")]), common::pattern(77_000));
        fs::remove_file(&image).unwrap();
    }
}

/// Which format it is, and what a request costs there.
#[test]
fn explain_and_trace_tell_what_an_image_costs() {
    needs!(Need::Tool("qemu-img"), Need::Tool("mke2fs"));
    let scratch = Scratch::new(256 << 20);
    let image = converted(&scratch, "disk.qcow2", &["-O", "qcow2"]);
    let file = format!("{}:/big", image.display());
    let said = text(["explain", &file, "--read", "0", "4k"]);
    assert!(said.contains("(qcow2: mapped, host offset "), "{said}");
    let said = json(["explain", &file, "--write", "0", "4k", "--json"]);
    let cost = said["requests"][0]["cost"].as_str().unwrap();
    assert!(cost.starts_with("qcow2: mapped, host offset "), "{said}");
    let plain = volume();
    let raw = json(["explain", &format!("{}:/big", plain.path().display()), "--read", "0", "4k", "--json"]);
    assert!(raw["requests"][0].get("cost").is_none(), "{raw}");
    // The cluster belongs to a snapshot as well, so a write goes to a new one.
    img(&["snapshot", "-c", "one", image.to_str().unwrap()]);
    let said = text(["explain", &file, "--write", "0", "4k"]);
    assert!(said.contains("(qcow2: allocates a cluster, copies what is not written)"), "{said}");
    let log = scratch.file("trace");
    let words = ["io", "-f", &file, "-c", "pwrite -S 1 0 4k", "-c", "fsync"];
    good([&["trace", "--output", log.to_str().unwrap(), "--"][..], &words].concat());
    let trace = fs::read_to_string(log).unwrap();
    assert!(
        trace.contains("(qcow2: allocates a cluster") && trace.contains("F (qcow2: writes tables first)"),
        "{trace}"
    );
    judge(&image);
}

#[test]
fn partitions_lie_inside_of_images() {
    needs!(Need::Tool("qemu-img"), Need::Tool("mke2fs"), Need::Tool("sfdisk"));
    let scratch = Scratch::new(256 << 20);
    let volume = volume();
    let disk = scratch.sparse_file("disk.raw", 70 << 20);
    let mut sfdisk =
        command("sfdisk").args(["-q".as_ref(), disk.as_os_str()]).stdin(Stdio::piped()).spawn().unwrap();
    sfdisk.stdin.take().unwrap().write_all(b"label: gpt\nstart=2048, size=131072\n").unwrap();
    assert!(sfdisk.wait().unwrap().success());
    let bytes = fs::read(volume.path()).unwrap();
    let file = fs::File::options().write(true).open(&disk).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 1 << 20).unwrap();
    let image = scratch.file("disk.qcow2");
    img(&["convert", "-f", "raw", "-O", "qcow2", disk.to_str().unwrap(), image.to_str().unwrap()]);
    let device = format!("{}?partition=1", image.display());
    assert_eq!(good(["cat", &format!("{device}:/hello")]), b"world\n");
    good(["mkdir", &format!("{device}:/new")]);
    assert!(text(["ls", &format!("{device}:/")]).contains("new"));
    img(&["check", "-q", image.to_str().unwrap()]);
}

#[test]
fn changes_over_a_backing_file_leave_it_as_it_is() {
    needs!(Need::Tool("qemu-img"), Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 << 20);
    let base = converted(&scratch, "base.qcow2", &["-O", "qcow2", "-c"]);
    let top = scratch.file("top.qcow2");
    img(&["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", "base.qcow2", top.to_str().unwrap()]);
    let before = fs::read(&base).unwrap();
    let inside = |path: &str| format!("{}:{path}", top.display());
    good(["rm", &inside("/big")]);
    good(["io", "-f", &inside("/new"), "-c", "pwrite -S 7 0 1m", "-c", "fsync"]);
    assert_eq!(good(["cat", &inside("/hello")]), b"world\n");
    assert!(fs::read(&base).unwrap() == before);
    judge(&top);
    assert!(text(["info", top.to_str().unwrap()]).contains("base.qcow2"));
    let refused = bad(1, ["ls", &format!("{}?backing=no:/", top.display())]);
    assert!(refused.contains("base.qcow2") && refused.contains("backing=no"), "{refused}");
    // An overlay of our own over it, merged into it.
    let overlay = scratch.file("changes");
    let overlay = overlay.to_str().unwrap();
    good(["mkdir", &inside("/kept"), "--overlay", overlay]);
    good(["overlay", "merge", overlay]);
    assert!(text(["ls", &inside("/")]).contains("kept"));
    judge(&top);
}
