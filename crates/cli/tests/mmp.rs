//! What commands say about a volume with multi-mount protection.

use crate::common;

use common::{bad, good, json, text, uext4};
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use uext4_ondisk::ext4::{MmpBlock, Superblock};
use uext4_testkit::{Need, Volume, VolumeBuilder, needs};

/// Writes what another node would have left.
fn plant(volume: &Volume, sequence: u32) {
    let file = std::fs::File::options().read(true).write(true).open(volume.path()).unwrap();
    let mut bytes = [0; 1024];
    file.read_exact_at(&mut bytes, 1024).unwrap();
    let superblock = Superblock::decode(&bytes).unwrap();
    let at = superblock.mmp.block.get() * u64::from(superblock.geometry.block_size());
    file.read_exact_at(&mut bytes, at).unwrap();
    let mut mmp = MmpBlock::decode(&bytes, &superblock).unwrap();
    mmp.sequence = sequence;
    mmp.node_name[..9].copy_from_slice(b"far-away\0");
    mmp.device_name[..5].copy_from_slice(b"sdx7\0");
    mmp.encode(&mut bytes, &superblock).unwrap();
    file.write_all_at(&bytes, at).unwrap();
}

#[test]
fn info_tells_the_state_whether_the_volume_opens_or_not() {
    needs!(Need::Tool("mke2fs"));
    let volume = VolumeBuilder::new(16 << 20).args(["-O", "mmp"]).build();
    let image = volume.path().as_os_str();
    let usable = |info: &serde_json::Value| info["recovery"]["usable"].as_bool().unwrap();
    let plain = || json([OsStr::new("info"), OsStr::new("--json"), image]);
    let forced = || json([OsStr::new("info"), OsStr::new("--json"), OsStr::new("--force"), image]);
    let told = plain();
    assert_eq!((told["mmp"]["state"].as_str(), usable(&told)), (Some("clean"), true));
    let line = |wanted: &str| {
        let all = text([OsStr::new("info"), image]);
        let line = all.lines().find(|line| line.starts_with("mount protection:")).expect("a line").to_owned();
        assert!(line.contains(wanted), "{line}");
        all
    };
    line("not in use");
    good([OsStr::new("ls"), image]);

    for (sequence, state, words) in
        [(4711, "in_use", "in use"), (0xe24d_4d50, "fsck", "check is at work"), (0, "unknown", "unknown")]
    {
        plant(&volume, sequence);
        let told = plain();
        assert_eq!((told["mmp"]["state"].as_str(), usable(&told)), (Some(state), false));
        assert_eq!(told["mmp"]["node"], "far-away");
        assert_eq!(told["mmp"]["device"], "sdx7");
        assert_eq!(told["mmp"]["sequence"], sequence);
        assert!(told["recovery"]["reason"].as_str().unwrap().contains("far-away"), "{told}");
        // The rest of it is known too: looking needed force only.
        assert!(told["journal"]["blocks"].is_u64(), "{told}");
        let all = line(words);
        assert!(
            all.lines().any(|line| line.starts_with("not usable:") && line.contains("far-away")),
            "{all}"
        );
        assert!(usable(&forced()));
        // Everything else refuses, and reads with force.
        let refused = bad(1, [OsStr::new("ls"), image]);
        assert!(refused.contains("in use by") && refused.contains("far-away"), "{refused}");
        good([OsStr::new("ls"), OsStr::new("--force"), image]);
    }
    // Without the feature there is nothing to tell.
    let without = VolumeBuilder::new(16 << 20).build();
    assert!(json([OsStr::new("info"), "--json".as_ref(), without.path().as_os_str()])["mmp"].is_null());
    let all = text([OsStr::new("info"), without.path().as_os_str()]);
    assert!(!all.contains("mount protection"), "{all}");
}

#[test]
fn a_damaged_block_is_refused_by_every_command_and_info_says_why() {
    needs!(Need::Tool("mke2fs"));
    let volume = VolumeBuilder::new(16 << 20).args(["-O", "mmp"]).build();
    let file = std::fs::File::options().read(true).write(true).open(volume.path()).unwrap();
    let mut bytes = [0; 1024];
    file.read_exact_at(&mut bytes, 1024).unwrap();
    let superblock = Superblock::decode(&bytes).unwrap();
    let at = superblock.mmp.block.get() * u64::from(superblock.geometry.block_size());
    file.write_all_at(&[1], at + 20).unwrap();
    for force in [&[][..], &["--force"]] {
        // The superblock can be shown all the same.
        for (command, status) in [("info", 0), ("ls", 1)] {
            let mut args = vec![OsStr::new(command)];
            args.extend(force.iter().map(OsStr::new));
            args.push(volume.path().as_os_str());
            let output = uext4(&args);
            let said = uext4_testkit::oracle::text(&output);
            assert_eq!(output.status.code(), Some(status), "{said}");
            assert!(said.contains("multi-mount protection checksum is wrong"), "{said}");
        }
    }
}
