//! A device that fails at any request, once or for good, during every operation on names: errors have types, and the
//! recovered tree is that before or after the step that failed. Each step ends with a sync, so that it is known which
//! steps were acknowledged.

use crate::common;

use common::{Image, open_rw, read_write, within};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uext4::device::MemoryDevice;
use uext4::{
    Caller, Error, FileKind, InodeFlags, Node, NodeKind, RenameFlags, Result, SetAttributes, Timestamp,
    Volume, VolumeOptions, WriteFlags, XattrFlags,
};
use uext4_testkit::device::{Fault, FaultAction, FaultDevice, FaultHandle, FaultOn};
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs, oracle};

/// Arguments of mke2fs, and bytes of the metadata cache: with few, blocks are read again in the middle of changes.
const LAYOUTS: [(&[&str], u64); 4] = [
    (&["-b", "1024"], 64 << 20),
    (&["-b", "1024"], 4 * 1024),
    (&["-b", "1024", "-O", "quota,project,orphan_file,inline_data"], 4 * 1024),
    (&["-b", "4096", "-O", "^dir_index,^metadata_csum,^extent,^64bit"], 4 * 4096),
];
/// Device failures: errno, how often, and at every how manieth request.
const FAULTS: [(i32, u64, usize); 3] = [(libc::EIO, 1, 1), (libc::EIO, u64::MAX, 2), (libc::ENOSPC, 1, 3)];

/// Paths to what is known of each thing.
type Tree = BTreeMap<Vec<u8>, String>;

fn describe(node: &Node) -> String {
    let found = node.attributes();
    let mut said = format!(
        "{:?} {:o} {} {} {} {:?} {:?}",
        found.kind, found.mode, found.uid, found.gid, found.links, found.rdev, found.project
    );
    if found.modified.seconds < 1_000_000_000 {
        said += &format!(" {:?}", found.modified);
    }
    if found.flags.contains(InodeFlags::NODUMP) {
        said += " nodump";
    }
    for name in node.xattrs().map(|name| name.unwrap().as_bytes().to_vec()) {
        said += &format!(" {:?}={:?}", String::from_utf8_lossy(&name), node.xattr(&name).unwrap());
    }
    match found.kind {
        FileKind::Symlink => said += &format!(" {:?}", node.read_link().unwrap()),
        FileKind::Regular => {
            let file = node.open(uext4::OpenOptions::new().read(true)).unwrap();
            let mut bytes = vec![0; file.size() as usize];
            file.read_any_at(&mut bytes, 0).unwrap();
            said += &format!(" {bytes:?}");
        }
        _ => {}
    }
    said
}

fn tree(volume: &Volume) -> Tree {
    let mut tree = Tree::new();
    let mut waiting = vec![(Vec::new(), volume.root().unwrap())];
    while let Some((path, node)) = waiting.pop() {
        if node.kind() == FileKind::Directory {
            for entry in node.read_dir().unwrap().map(|entry| entry.unwrap()) {
                if entry.name != b"." && entry.name != b".." && entry.name != b"probe" {
                    let below = [&path[..], b"/", &entry.name].concat();
                    waiting.push((below, node.look_up(&entry.name).unwrap()));
                }
            }
        }
        let mut said = describe(&node);
        if path.is_empty() {
            // The probe may have added to its links.
            said.clear();
        }
        tree.insert(path, said);
    }
    tree
}

type Step = (&'static str, fn(&Volume) -> Result<()>);

fn user() -> Caller {
    Caller::new(1000, 100)
}

fn at(volume: &Volume, path: &str) -> Result<Node> {
    volume.node_at(path, false)
}

fn long(number: u32) -> String {
    format!("{number:03}{}", "n".repeat(180))
}

/// The names that fill blocks of a directory, so that it gets a tree and its leaves split.
fn many(volume: &Volume, numbers: std::ops::Range<u32>) -> Result<()> {
    let many = at(volume, "/many")?;
    for number in numbers {
        many.create(long(number), 0o600, &user())?;
    }
    Ok(())
}

const STEPS: [Step; 32] = [
    ("mkdir", |volume| volume.create_dir("/one", 0o755, &user())),
    ("mkdir inside", |volume| volume.create_dir("/one/two", 0o2775, &user())),
    ("create", |volume| at(volume, "/one")?.create("file", 0o640, &user()).map(drop)),
    ("write", |volume| {
        let file = volume.open_file("/one/file", read_write())?;
        file.write_any_at(b"contents", 0, WriteFlags::empty()).map(drop)
    }),
    ("fifo", |volume| volume.make_node("/pipe", NodeKind::Fifo, 0o600, &user())),
    ("device", |volume| volume.make_node("/null", NodeKind::Char { major: 1, minor: 3 }, 0o666, &user())),
    ("symlink", |volume| volume.symlink("one/file", "/link", &user())),
    ("long symlink", |volume| volume.symlink("x".repeat(700), "/one/far", &user())),
    ("link", |volume| volume.hard_link("/one/file", "/one/two/same")),
    ("rename", |volume| volume.rename("/one/file", "/one/renamed")),
    ("rename over", |volume| volume.rename_with("/link", "/one/two/same", RenameFlags::empty())),
    ("rename without replacing", |volume| volume.rename_with("/pipe", "/one/pipe", RenameFlags::NOREPLACE)),
    ("exchange", |volume| volume.rename_with("/one/two", "/null", RenameFlags::EXCHANGE)),
    ("whiteout", |volume| volume.rename_with("/one/renamed", "/null/moved", RenameFlags::WHITEOUT)),
    ("move a directory", |volume| volume.rename("/null", "/one/three")),
    ("no name", |volume| {
        let made = at(volume, "/one")?.make_unnamed(0o644, &user())?;
        at(volume, "/")?.link("named", &made)
    }),
    ("no name for good", |volume| at(volume, "/one")?.make_unnamed(0o644, &user()).map(drop)),
    ("chmod", |volume| volume.set_permissions("/named", 0o4711, true)),
    ("chown", |volume| volume.set_owner("/named", Some(7), Some(8), true)),
    ("times", |volume| {
        let time = Timestamp { seconds: 77, nanoseconds: 5 };
        at(volume, "/named")?.set_attributes(&SetAttributes::new().modified(time))
    }),
    ("flags", |volume| {
        let node = at(volume, "/named")?;
        let flags = node.attributes().flags | InodeFlags::NODUMP;
        node.set_attributes(&SetAttributes::new().flags(flags))
    }),
    ("attribute", |volume| at(volume, "/named")?.set_xattr("user.small", b"value", XattrFlags::empty())),
    ("attribute in a block", |volume| {
        at(volume, "/named")?.set_xattr("user.large", [7; 500], XattrFlags::CREATE)
    }),
    ("the same block", |volume| at(volume, "/one")?.set_xattr("user.large", [7; 500], XattrFlags::empty())),
    ("another value", |volume| at(volume, "/named")?.set_xattr("user.large", [8; 300], XattrFlags::REPLACE)),
    ("access list", |volume| {
        let list = [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 42, 0, 0, 0]
            .into_iter()
            .chain([4, 0, 4, 0, 255, 255, 255, 255, 16, 0, 4, 0, 255, 255, 255, 255])
            .chain([32, 0, 0, 0, 255, 255, 255, 255]);
        let list: Vec<u8> = list.collect();
        at(volume, "/one/pipe")?.set_xattr("system.posix_acl_access", &list, XattrFlags::empty())
    }),
    ("remove an attribute", |volume| at(volume, "/named")?.remove_xattr("user.large")),
    ("many names", |volume| volume.create_dir("/many", 0o700, &user()).and_then(|()| many(volume, 0..4))),
    ("a tree", |volume| many(volume, 4..18)),
    ("unlink", |volume| volume.remove_file("/one/three/moved")),
    ("rmdir", |volume| {
        volume.remove_file("/one/three/same")?;
        volume.remove_dir("/one/three")
    }),
    ("remove a tree", |volume| volume.remove_dir_all("/many")),
];

/// Runs the steps. On a failure, the number of the step.
fn run(volume: &Volume, mut after: impl FnMut(&Volume)) -> std::result::Result<(), (usize, Error)> {
    for (number, (_, step)) in STEPS.iter().enumerate() {
        step(volume).and_then(|()| volume.sync_all()).map_err(|error| (number, error))?;
        after(volume);
    }
    Ok(())
}

/// Of a step with several changes, each of which may be done or not: what is not compared.
fn compared(tree: &Tree, step: usize) -> Tree {
    let partial: &[&str] = match STEPS[step].0 {
        "many names" | "a tree" | "remove a tree" => &["/many"],
        "rmdir" => &["/one"],
        "no name" => &["/named"],
        _ => &[],
    };
    let kept =
        tree.iter().filter(|(path, _)| !partial.iter().any(|prefix| path.starts_with(prefix.as_bytes())));
    kept.map(|(path, said)| (path.clone(), said.clone())).collect()
}

fn volume_on(memory: &Arc<MemoryDevice>, budget: u64) -> (Volume, FaultHandle) {
    let device = Arc::new(FaultDevice::new(memory.clone()));
    let handle = device.handle();
    (Volume::open_device(device, VolumeOptions::read_write().metadata_budget(budget)).unwrap(), handle)
}

fn is_typed(error: &Error) -> bool {
    matches!(
        error,
        Error::Io(_) | Error::MetadataIo { .. } | Error::Aborted(_) | Error::Journal(_) | Error::NoSpace
    )
}

fn a_fault_at_any_request((args, budget): (&[&str], u64)) {
    let builder = VolumeBuilder::new(16 << 20).args(args.iter().copied());
    let image = Image::load(builder.build().path());
    let memory = || image.device_with(|options| (options.volatile_cache, options.fua) = (true, true));
    let (volume, handle) = volume_on(&memory(), budget);
    let (mut trees, before) = (vec![tree(&volume)], handle.requests());
    run(&volume, |volume| trees.push(tree(volume))).unwrap_or_else(|failed| panic!("{args:?}: {failed:?}"));
    volume.close().unwrap();
    let all = handle.requests() - before;
    let scratch = Scratch::new(32 << 20);
    let path = scratch.file("after.img");
    let (mut shown, mut failed) = (0, 0);
    for (errno, times, every) in FAULTS {
        for n in (1..=all).step_by(every) {
            let memory = memory();
            let (volume, handle) = volume_on(&memory, budget);
            let action = FaultAction::Errno(errno);
            handle.arm(Fault { times, action, ..Fault::nth(FaultOn::Any, n) });
            let outcome = run(&volume, |_| ());
            let probed = volume.create_dir("/probe", 0o700, &user()).and_then(|()| volume.sync_all());
            let closed = volume.close();
            let what =
                format!("{args:?}, request {n}, {times} times {errno}: {outcome:?} {probed:?} {closed:?}");
            for error in
                [outcome.as_ref().err().map(|(_, error)| error), probed.as_ref().err(), closed.as_ref().err()]
                    .into_iter()
                    .flatten()
            {
                assert!(is_typed(error), "{what}");
            }
            // A flush or a write home that fails aborts the volume, and no change is acknowledged after that.
            if matches!(&outcome, Err((_, Error::Aborted(_)))) {
                assert!(matches!(probed, Err(Error::Aborted(_))), "{what}");
            }
            let volume = open_rw(memory.clone());
            let found = tree(&volume);
            let step = outcome.as_ref().err().map_or(STEPS.len(), |(step, _)| *step);
            match trees.get(step + 1) {
                Some(after) => {
                    let found = compared(&found, step);
                    let either = found == compared(&trees[step], step) || found == compared(after, step);
                    assert!(either, "{what}: step `{}`: {found:#?}", STEPS[step].0);
                }
                None => assert!(found == trees[step], "{what}"),
            }
            let probe = volume.symlink_metadata("/probe");
            assert!(probed.is_err() || probe.is_ok(), "{what}: the probe is gone");
            volume.close().unwrap();
            failed += u64::from(outcome.is_err());
            shown += 1;
            if shown % 3 == 0 {
                Image::of(&*memory).save(&path);
                oracle::e2fsck_clean(&path);
            }
        }
    }
    println!("{args:?}, {budget}: {all} requests, {shown} faults, {failed} failures");
    assert!(failed > shown / 4, "{failed} of {shown}");
}

#[test]
fn a_fault_leaves_the_tree_before_or_after_the_step() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    within(Duration::from_secs(500), || LAYOUTS.into_iter().for_each(a_fault_at_any_request));
}
