//! `uext4 serve` with other people's clients: the tools of QEMU and libnbd, and fio.

use super::{SIZE, Serving, bytes_of, contents, image};
use crate::common;
use std::process::Command;
use uext4_testkit::{Need, Scratch, e2fsck_clean, needs, oracle};

/// Runs a client, which must succeed; what it says.
fn run(program: &str, words: &[&str]) -> String {
    let mut command = Command::new("timeout");
    oracle::run(command.arg("120").arg(program).args(words))
}

#[test]
fn programs_of_qemu() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let (image, scratch) = (image(), Scratch::new(64 << 20));
    let raw = scratch.file("raw");
    let mut expected = contents();
    expected.resize(SIZE as usize, 0);
    std::fs::write(&raw, &expected).unwrap();
    let serving = Serving::file(&image, &scratch);
    let (uri, raw) = (serving.uri(), raw.to_str().unwrap());
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", raw, &uri]);
    let map = run("qemu-img", &["map", "-f", "raw", "--output=json", &uri]);
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    let kinds = |map: &serde_json::Value| -> Vec<(u64, u64, bool, bool)> {
        let number = |value: &serde_json::Value| value.as_u64().unwrap();
        let all = map.as_array().unwrap().iter();
        all.map(|e| (number(&e["start"]), number(&e["length"]), e["data"] == true, e["zero"] == true))
            .collect()
    };
    assert_eq!(kinds(&map), [(0, 2 << 20, true, false), (2 << 20, SIZE - (2 << 20), false, true)]);
    let qcow2 = scratch.file("disk.qcow2");
    let qcow2 = qcow2.to_str().unwrap();
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, qcow2]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", raw, qcow2]);
    // Writes of every kind, and back into the volume.
    let commands = [
        "write -P 7 1M 64k",
        "write -f -P 8 4M 64k",
        "write -P 9 12345 777",
        "write -z 3M 1M",
        "write -z -u 5M 1M",
        "discard 0 1M",
        "flush",
        "read -P 7 1M 64k",
        "read -P 8 4M 64k",
        "read -P 9 12345 777",
        "read -P 0 3M 1M",
    ];
    let reads = ["read -P 0 0 4k"];
    let words: Vec<&str> = commands.iter().take(5).chain(&commands[6..]).flat_map(|c| ["-c", *c]).collect();
    let said = run("qemu-io", &[&["-f", "raw", &uri][..], &words].concat());
    assert!(!said.contains("failed"), "{said}");
    run("qemu-io", &["-f", "raw", "-d", "unmap", &uri, "-c", commands[5], "-c", reads[0]]);
    run("qemu-img", &["convert", "-n", "-f", "qcow2", "-O", "raw", qcow2, &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", raw, &uri]);
    serving.end();
    e2fsck_clean(image.path());
    assert!(common::content(&image, "/disk") == expected);
}

#[test]
fn programs_of_libnbd() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("nbdinfo"), Need::Tool("nbdcopy"));
    let (image, scratch) = (image(), Scratch::new(64 << 20));
    let serving = Serving::file(&image, &scratch);
    let uri = serving.uri();
    let info: serde_json::Value = serde_json::from_str(&run("nbdinfo", &["--json", &uri])).unwrap();
    let export = &info["exports"][0];
    assert_eq!(info["structured"], true);
    assert_eq!(export["export-size"], SIZE);
    for can in ["can_df", "can_fast_zero", "can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"] {
        assert_eq!(export[can], true, "{can}: {info}");
    }
    for not in ["is_read_only", "is_rotational", "can_cache"] {
        assert_eq!(export[not], false, "{not}: {info}");
    }
    assert_eq!(export["block_size_preferred"], 4096);
    let map = run("nbdinfo", &["--map", "--totals", &uri]);
    assert!(map.contains("data") && map.contains("hole,zero"), "{map}");
    let (copy, other) = (scratch.file("copy"), scratch.file("other"));
    run("nbdcopy", &["--connections=4", &uri, copy.to_str().unwrap()]);
    let mut expected = contents();
    expected.resize(SIZE as usize, 0);
    assert!(bytes_of(&copy) == expected);
    expected.rotate_right(5 << 20);
    std::fs::write(&other, &expected).unwrap();
    run("nbdcopy", &["--connections=4", "--flush", other.to_str().unwrap(), &uri]);
    serving.end();
    e2fsck_clean(image.path());
    assert!(common::content(&image, "/disk") == expected);
}

/// A boot sector that reads the second sector, writes it to the third, prints it on the first serial line, and ends the
/// machine with status 1; with 3 if a request of the disk fails.
fn boot_sector() -> [u8; 512] {
    let begin = [0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0]; // xor ax, ax; mov ds, ax; mov es, ax
    // mov ax, call; mov bx, 0x7e00; mov cx, sector; mov dh, 0; int 0x13
    let disk = |call, sector| [0xb8, 1, call, 0xbb, 0, 0x7e, 0xb9, sector, 0, 0xb6, 0, 0xcd, 0x13];
    // mov si, 0x7e00; mov dx, 0x3f8; next: lodsb; test al, al; jz end; out dx, al; jmp next; end: mov al, 0
    let print = [0xbe, 0, 0x7e, 0xba, 0xf8, 3, 0xac, 0x84, 0xc0, 0x74, 3, 0xee, 0xeb, 0xf8, 0xb0, 0];
    let leave = [0xe6, 0xf4, 0xf4]; // out 0xf4, al; hlt
    let fail = [0xb0, 1]; // mov al, 1
    let tail = [&print[..], &leave].concat();
    let write = [&disk(3, 3)[..], &[0x72, tail.len() as u8], &tail].concat(); // jc fail
    let code = [&begin[..], &disk(2, 2), &[0x72, write.len() as u8], &write, &fail, &leave].concat();
    let mut sector = [0; 512];
    sector[..code.len()].copy_from_slice(&code);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

#[test]
fn a_machine_boots_from_it() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("qemu-system-x86_64"));
    let (image, scratch) = (image(), Scratch::new(1 << 20));
    let serving = Serving::file(&image, &scratch);
    let mut second = [0; 512];
    second[..7].copy_from_slice(b"SERVED\n");
    let mut client = serving.client();
    assert_eq!(client.write(0, 0, &[boot_sector(), second].concat()), 0);
    let drive = format!("file={},format=raw,if=ide,cache=none", serving.uri());
    let mut qemu = Command::new("timeout");
    qemu.args(["120", "qemu-system-x86_64", "-accel", "tcg", "-m", "64", "-nodefaults", "-display", "none"]);
    qemu.args(["-serial", "stdio", "-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-drive", &drive]);
    let output = qemu.stdin(std::process::Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", oracle::text(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "SERVED\n");
    assert_eq!(client.read(1024, 512), Ok(second.to_vec()));
    serving.end();
    e2fsck_clean(image.path());
}

#[test]
fn fio_writes_and_verifies() {
    needs!(
        Need::Tool("mke2fs"),
        Need::Tool("e2fsck"),
        Need::Tool("fio"),
        Need::Runs(&["sh", "-c", "fio --enghelp | grep -qw nbd"]),
    );
    let (image, scratch) = (image(), Scratch::new(64 << 20));
    let serving = Serving::file(&image, &scratch);
    let uri = format!("--uri={}", serving.uri());
    let common = [
        "--name=v",
        "--ioengine=nbd",
        &uri,
        "--size=16m",
        "--iodepth=32",
        "--verify=crc32c",
        "--verify_fatal=1",
    ];
    let state = format!("--aux-path={}", scratch.path().display());
    for more in [
        &["--rw=randwrite", "--bs=4k", "--fsync=64"][..],
        &["--rw=randwrite", "--bsrange=512-64k", "--bs_unaligned=0", "--blockalign=512"],
        &["--rw=write", "--bs=1m"],
    ] {
        run("fio", &[&common[..], &[&state, "--output-format=terse"], more].concat());
    }
    serving.end();
    e2fsck_clean(image.path());
}
