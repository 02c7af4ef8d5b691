//! The inputs that the long runs found worth keeping (`fuzz/corpus/*.tar.zst`): each reaches something that the others
//! do not. Each goes through the target that it was found for.

use std::path::PathBuf;
use uext4_hostile::targets::TARGETS;
use uext4_hostile::{budget, disk_image, gather, images, nbd_client};
use uext4_testkit::{Need, Scratch, needs, oracle};

#[test]
fn kept_inputs_are_survived() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"), Need::Tool("tar"));
    let mut failures = Vec::new();
    for target in TARGETS {
        failures.extend(each(target.name(), |input| {
            let (_, mutated) = target.image_of(input);
            budget::run(target, &mutated.image).map(drop)
        }));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Archives and images of containers that become volumes, or are refused.
#[test]
fn kept_archives_are_volumes_or_refused() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"), Need::Tool("tar"));
    let mut volumes = 0;
    let failures = each("gather", |input| {
        volumes += usize::from(budget::within(|| gather::run(input))?.found > 0);
        Ok(())
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(volumes > 100, "{volumes} volumes");
}

/// Images of disks with changed headers and tables.
#[test]
fn kept_disk_images_are_read_or_refused() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"), Need::Tool("tar"));
    let (mut opened, mut changed) = (0, 0);
    let failures = each("disk_image", |input| {
        let mut outcome = disk_image::Outcome::default();
        budget::within(|| {
            outcome = disk_image::run(input);
            outcome.read
        })?;
        opened += usize::from(outcome.opened);
        changed += usize::from(outcome.changed > 0);
        Ok(())
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(opened > 100 && changed > 50, "{opened} opened, {changed} changed");
}

/// Clients that say anything to a server.
#[test]
fn kept_clients_are_answered_or_left() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"), Need::Tool("tar"), Need::Tool("mke2fs"));
    let (mut requests, mut answered) = (0, 0);
    let failures = each("nbd_client", |input| {
        let outcome = nbd_client::run(input);
        requests += outcome.requests;
        answered += usize::from(outcome.answered > 1000);
        Ok(())
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(requests > 100 && answered > 50, "{requests} requests, {answered} clients with many answers");
}

/// Without a patch each is read and, if it is qcow2, changed.
#[test]
fn base_disk_images_are_sound() {
    needs!(Need::Tool("zstd"));
    for (number, name) in disk_image::NAMES.iter().enumerate() {
        for seed in 0..20 {
            let outcome = disk_image::run(&[number as u8, seed]);
            let (text, qcow2) = (*name == "vmdk-text", name.starts_with("qcow2"));
            // The text names files, and none is opened.
            assert_eq!(outcome.opened, !text, "{name}");
            assert_eq!(outcome.read, if text { 0 } else { 24 }, "{name}");
            // Where clusters are large, the last ones find no room.
            assert!(if qcow2 { outcome.changed >= 12 } else { outcome.changed == 0 }, "{name}: {outcome:?}");
        }
    }
}

/// Passes the inputs of a target to `run`. What failed.
fn each(target: &str, mut run: impl FnMut(&[u8]) -> Result<(), String>) -> Vec<String> {
    let packed: PathBuf = images::fuzz_dir().join(format!("corpus/{target}.tar.zst"));
    let scratch = Scratch::new(64 << 20);
    oracle::run(oracle::command("tar").arg("--zstd").arg("-xf").arg(packed).arg("-C").arg(scratch.path()));
    let (mut failures, mut count) = (Vec::new(), 0);
    for path in std::fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().path()) {
        if let Err(what) = run(&std::fs::read(&path).unwrap()) {
            failures.push(format!("{target}: {}: {what}", path.display()));
        }
        count += 1;
    }
    println!("{target}: {count} inputs");
    assert!(count > 100, "{target}: {count} inputs");
    failures
}
