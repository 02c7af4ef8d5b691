//! Loop devices and mounts are given back.

use std::path::{Path, PathBuf};
use uext4_testkit::{
    KernelMount, LoopDevice, LoopOptions, Mount, Need, Scratch, Tmpfs, VolumeBuilder, Zram, needs,
};

/// What the kernel tells about a block device in `file`.
fn sysfs(device: &Path, file: &str) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap()).join(file)
}

#[test]
fn root_attaches_as_asked_and_detaches() {
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    let image = scratch.sparse_file("image", 8 << 20);
    let options = LoopOptions { direct_io: true, read_only: true, sector_size: 4096 };
    let device = LoopDevice::attach(&image, options);
    assert_eq!(device.attribute("size"), ((8 << 20) / 512).to_string());
    assert_eq!(device.attribute("ro"), "1");
    assert_eq!(device.attribute("queue/logical_block_size"), "4096");
    let backing = sysfs(device.path(), "loop/backing_file");
    assert!(backing.exists());
    drop(device);
    assert!(!backing.exists());
}

#[test]
fn root_puts_changed_attributes_back() {
    needs!(Need::Loop);
    let scratch = Scratch::new(1 << 20);
    let image = scratch.sparse_file("image", 1 << 20);
    let mut device = LoopDevice::attach(&image, LoopOptions::default());
    let (file, before) = (sysfs(device.path(), "queue/nr_requests"), device.attribute("queue/nr_requests"));
    device.set_attribute("queue/nr_requests", "16");
    device.set_attribute("queue/nr_requests", "8");
    drop(device);
    assert_eq!(std::fs::read_to_string(file).unwrap().trim(), before);
}

#[test]
fn root_detaches_while_unwinding() {
    needs!(Need::Loop);
    let scratch = Scratch::new(1 << 20);
    let image = scratch.sparse_file("image", 1 << 20);
    let (told, heard) = std::sync::mpsc::channel();
    let result = std::thread::spawn(move || {
        let device = LoopDevice::attach(&image, LoopOptions::default());
        told.send(sysfs(device.path(), "loop/backing_file")).unwrap();
        panic!("planted");
    });
    let backing = heard.recv().unwrap();
    assert!(result.join().is_err());
    assert!(!backing.exists());
}

fn is_mounted(path: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    table.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}

#[test]
fn root_mounts_and_gives_back_on_drop_and_on_panic() {
    needs!(Need::Loop, Need::Tool("mke2fs"));
    let volume = VolumeBuilder::new(16 << 20).build();
    let mounted = KernelMount::image(volume.path(), LoopOptions::default(), "noatime");
    let path = mounted.path().to_owned();
    assert!(is_mounted(&path));
    drop(mounted);
    assert!(!is_mounted(&path) && !path.exists());

    let (told, heard) = std::sync::mpsc::channel();
    let image = volume.path().to_owned();
    let thread = std::thread::spawn(move || {
        let mounted = KernelMount::image(&image, LoopOptions::default(), "");
        told.send((mounted.path().to_owned(), mounted.device().path().to_owned())).unwrap();
        panic!("planted");
    });
    let (path, device) = heard.recv().unwrap();
    assert!(thread.join().is_err());
    assert!(!is_mounted(&path) && !path.exists());
    let backing = sysfs(&device, "loop/backing_file");
    assert!(!backing.exists());
}

#[test]
fn root_a_refused_mount_says_why_and_leaves_nothing() {
    needs!(Need::Loop);
    let scratch = Scratch::new(1 << 20);
    let image = scratch.sparse_file("empty", 1 << 20);
    let device = LoopDevice::attach(&image, LoopOptions::default());
    let error = Mount::try_attach(device.path(), "ext4", "").unwrap_err();
    assert!(error.contains("mount"), "{error}");
}

#[test]
fn root_tmpfs_is_bounded() {
    needs!(Need::Root);
    let tmpfs = Tmpfs::new(1 << 20);
    let error = std::fs::write(tmpfs.path().join("big"), vec![1; 2 << 20]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
}

#[test]
fn root_adds_a_zram_device_and_removes_it() {
    needs!(Need::Zram);
    let first = Zram::new(8 << 20);
    let second = Zram::new(8 << 20);
    assert_ne!(first.path(), second.path());
    std::fs::write(first.path(), [7; 4096]).unwrap();
    assert_eq!(
        std::fs::read_to_string(sysfs(first.path(), "disksize")).unwrap().trim(),
        (8 << 20).to_string()
    );
    let path = first.path().to_owned();
    drop(first);
    assert!(!path.exists());
    assert!(second.path().exists());
}
