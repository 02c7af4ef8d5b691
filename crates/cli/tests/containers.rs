//! Images of containers: what umoci makes becomes a volume, and what changed in the volume a layer for umoci.

use crate::common;

use common::good;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use uext4_testkit::manifest::assert_same;
use uext4_testkit::{Kind, Manifest, Need, Scratch, e2fsck_clean, kernel_manifest, manifest, needs, oracle};

/// Runs a script of bash that must succeed.
#[track_caller]
fn shell(scratch: &Scratch, script: &str) {
    let mut bash = Command::new("bash");
    bash.args(["-ec", script]).current_dir(scratch.path()).stdin(Stdio::null());
    let output = bash.output().unwrap();
    assert!(output.status.success(), "{script}: {}", oracle::text(&output));
}

fn run(scratch: &Scratch, line: &[&str]) {
    let paths = line.iter().map(|word| match word.strip_prefix("./") {
        Some(name) => scratch.file(name).into_os_string(),
        None => OsString::from(word),
    });
    good(paths);
}

/// Without what the volume adds, and without sizes and link counts of directories.
fn comparable(mut found: Manifest) -> Manifest {
    found.remove(&b"/lost+found"[..]);
    for entry in found.values_mut().filter(|entry| entry.kind == Kind::Directory) {
        (entry.size, entry.nlink) = (0, 0);
    }
    found
}

#[track_caller]
fn holds(image: &Path, tree: &Path) {
    e2fsck_clean(image);
    assert_same(&comparable(manifest(tree)), &comparable(kernel_manifest(image)));
}

#[test]
fn root_an_image_of_umoci_becomes_a_volume_and_its_changes_a_layer() {
    needs!(Need::Root, Need::Loop, Need::Tool("umoci"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(512 << 20);
    shell(
        &scratch,
        "umoci init --layout L; umoci new --image L:t; umoci unpack --image L:t A; cd A/rootfs
        mkdir -p usr/lib/many etc/deep var/opaque; ln -s usr/lib lib; echo one > usr/lib/one; echo gone > etc/deep/gone
        for n in $(seq 300); do echo $n > usr/lib/many/$n; done; echo hidden > var/opaque/hidden
        ln usr/lib/one etc/hard; mkfifo var/pipe; mknod var/null c 1 3; chown 7:8 etc/hard; chmod 4755 usr/lib/one
        head -c 3000000 /dev/urandom > var/random; setfattr -n user.x -v y var/random; cd ../..
        umoci repack --refresh-bundle --image L:t A; umoci unpack --image L:t B; cd B/rootfs
        rm -r etc/deep var/pipe usr/lib/many/1*; echo two > usr/lib/two; rm lib; mkdir lib; echo new > lib/new
        chmod 700 var; mkdir etc/deep; echo back > etc/deep/back; cd ../..
        umoci repack --image L:t B; umoci unpack --image L:t C; cd C/rootfs
        rm -r var/opaque; mkdir var/opaque; echo seen > var/opaque/seen; truncate -s 5M var/holes; cd ../..
        umoci repack --image L:t C; umoci unpack --image L:t D",
    );
    let (base, next) = (scratch.file("base.img"), scratch.file("next.img"));
    run(&scratch, &["mkfs", "-q", "--size", "auto", "--free", "8M", "-d", &oci(&scratch, "t"), "./base.img"]);
    holds(&base, &scratch.file("D/rootfs"));
    std::fs::copy(&base, &next).unwrap();
    std::fs::write(scratch.file("added"), vec![b'a'; 70_000]).unwrap();
    let script = "rm -r /usr/lib/many\nmkdir /usr/lib/many /srv\nput added /usr/lib/many\nmv /var/random /srv/moved
        chmod 750 /etc\nln -s /srv/moved /etc/link\nxattr --set user.z=1 /etc/hard\nrm /var/null\ntouch /usr/lib/two";
    std::fs::write(scratch.file("script"), script.replace("added", scratch.file("added").to_str().unwrap()))
        .unwrap();
    run(&scratch, &["shell", "./next.img", "-f", "./script"]);
    run(&scratch, &["export", "./next.img", "--diff", "./base.img", "./layer.tar"]);
    shell(
        &scratch,
        "umoci raw add-layer --image L:t --tag edited layer.tar; umoci unpack --image L:edited E",
    );
    holds(&next, &scratch.file("E/rootfs"));
    // And the image that umoci made of it is the same volume again.
    run(&scratch, &["mkfs", "-q", "--size", "auto", "-d", &oci(&scratch, "edited"), "./again.img"]);
    e2fsck_clean(&scratch.file("again.img"));
    run(&scratch, &["export", "./next.img", "./next.tar"]);
    run(&scratch, &["export", "./again.img", "./again.tar"]);
    shell(&scratch, "cmp next.tar again.tar");
}

/// `oci:LAYOUT:TAG`.
fn oci(scratch: &Scratch, tag: &str) -> String {
    format!("oci:{}:{tag}", scratch.file("L").display())
}
