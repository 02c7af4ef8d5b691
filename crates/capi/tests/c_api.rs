//! C programs against the archive and the header.

use crate::common;

use common::{Language, compile};
use std::os::unix::fs::symlink;
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
}

#[test]
fn the_header_is_one_of_cplusplus_too() {
    needs!(Need::Tool("c++"));
    compile("header.cpp", Language::Cpp, &[]);
}
