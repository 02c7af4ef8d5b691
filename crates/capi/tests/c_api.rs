//! C programs against the archive and the header.

use crate::common;

use common::{Language, archive, compile};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs, oracle};

#[test]
fn every_call_from_c() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("cc"));
    let source = Scratch::new(1 << 20);
    symlink("target", source.file("link")).unwrap();
    let image = VolumeBuilder::new(32 << 20).args(["-b", "4096"]).from_dir(source.path()).build();
    let program = compile("api.c", Language::C, &[]);
    let output = Command::new(&program.path).arg(image.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"ok\n", "{:?}: {said}", output.status);
    oracle::e2fsck_clean(image.path());
    let image = VolumeBuilder::new(32 << 20)
        .args(["-b", "4096", "-O", "quota"])
        .extended("quotatype=usrquota")
        .build();
    let output = Command::new(&program.path).arg(image.path()).arg("quota").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"ok\n", "{:?}: {said}", output.status);
    oracle::e2fsck_clean(image.path());
}

/// The same calls, into a volume in a qcow2 image.
#[test]
fn every_call_from_c_into_an_image() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("cc"), Need::Tool("qemu-img"));
    let source = Scratch::new(1 << 20);
    symlink("target", source.file("link")).unwrap();
    let made = VolumeBuilder::new(32 << 20).args(["-b", "4096"]).from_dir(source.path()).build();
    let (raw, image) = (made.path(), made.scratch().file("disk.qcow2"));
    let convert = |from: &Path, to: &Path, format| {
        let mut qemu = oracle::command("qemu-img");
        // Without locks: the kernel tears a ring down some time after the program has ended.
        oracle::run(qemu.args(["convert", "-U", "-O", format]).arg(from).arg(to));
    };
    convert(raw, &image, "qcow2");
    let program = compile("api.c", Language::C, &[]);
    let output = Command::new(&program.path).arg(&image).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"ok\n", "{:?}: {said}", output.status);
    oracle::run(oracle::command("qemu-img").args(["check", "-U", "-q"]).arg(&image));
    convert(&image, raw, "raw");
    oracle::e2fsck_clean(raw);
}

#[test]
fn the_header_is_one_of_cplusplus_too() {
    needs!(Need::Tool("c++"));
    compile("header.cpp", Language::Cpp, &[]);
}

#[test]
fn what_pkg_config_says_links_statically() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("cc"), Need::Tool("pkg-config"));
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let prefix = Scratch::new(64 << 20);
    let lib = prefix.file("lib");
    fs::create_dir_all(lib.join("pkgconfig")).unwrap();
    symlink(archive(), lib.join("libuext4.a")).unwrap();
    symlink(home.join("include"), prefix.file("include")).unwrap();
    let mut printed = Command::new(home.join("../../scripts/capi.sh"));
    let printed = printed.arg("pc").env("PREFIX", prefix.path()).env_remove("LIBDIR").output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    fs::write(lib.join("pkgconfig/uext4.pc"), printed.stdout).unwrap();

    let flags = Command::new("pkg-config")
        .args(["--static", "--cflags", "--libs", "uext4"])
        .env("PKG_CONFIG_LIBDIR", lib.join("pkgconfig"))
        .output()
        .unwrap();
    assert!(flags.status.success(), "{}", String::from_utf8_lossy(&flags.stderr));
    let flags = String::from_utf8(flags.stdout).unwrap();
    // Wholly static, and with the C library shared: without libuext4.so there is only the archive.
    for how in [&["-static"][..], &[]] {
        let program = prefix.file("program");
        let mut linking = Command::new("cc");
        linking.args(how).arg("-o").arg(&program).arg(home.join("../../scripts/deb-test.c"));
        let linked = linking.args(flags.split_whitespace()).output().unwrap();
        assert!(linked.status.success(), "{how:?} {flags}: {}", String::from_utf8_lossy(&linked.stderr));
        let image = VolumeBuilder::new(32 << 20).args(["-b", "4096"]).build();
        let ran = Command::new(&program).arg(image.path()).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.starts_with("libuext4 "), "{how:?}: {said}");
        oracle::e2fsck_clean(image.path());
    }
}
