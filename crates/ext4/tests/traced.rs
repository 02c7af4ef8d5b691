//! What a listener hears of the handles of operations (`VolumeOptions::trace`).

use crate::common;

use common::{Image, aligned};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use uext4::trace::{Event, Listener, Role};
use uext4::{Caller, Counter, OpenOptions, Switches, Volume, VolumeOptions};
use uext4_testkit::{Need, VolumeBuilder, needs};

/// An operation that was heard: its number, name and path, its handles, whether it ended.
type Heard = Vec<(u64, String, usize, bool)>;

/// A listener, and what it heard, in the order in which operations were first heard of.
fn listener() -> (Listener, Arc<Mutex<Heard>>) {
    let heard: Arc<Mutex<Heard>> = Arc::default();
    let log = heard.clone();
    let hear = move |event: Event<'_>| {
        let (operation, handle) = match event {
            Event::Handle(operation, record) => {
                assert!(record.blocks.iter().all(|block| !block.roles.is_empty()), "{record:?}");
                assert!(record.credits_used.is_none_or(|used| used <= record.credits_asked), "{record:?}");
                assert!(
                    record.blocks.iter().filter(|block| block.first).count() as u32 <= record.credits_asked
                );
                (operation, true)
            }
            Event::End(operation) => (operation, false),
            _ => return,
        };
        let mut log = log.lock().unwrap();
        let path = String::from_utf8(operation.path.clone().unwrap_or_default()).unwrap();
        let told = format!("{} {path}", operation.name);
        let known = log.iter().rposition(|one| operation.number > 0 && one.0 == operation.number);
        let at = known.unwrap_or_else(|| {
            log.push((operation.number, told.clone(), 0, operation.number == 0));
            log.len() - 1
        });
        let one = &mut log[at];
        assert!(one.1 == told && (operation.number == 0 || !one.3), "{one:?}: {operation:?}");
        one.2 += usize::from(handle);
        one.3 |= !handle;
    };
    (Listener::new(hear), heard)
}

fn image(args: &[&str]) -> Image {
    Image::load(VolumeBuilder::new(32 << 20).args(args.iter().copied()).build().path())
}

fn handles(heard: &Heard) -> u64 {
    heard.iter().map(|one| one.2 as u64).sum()
}

#[test]
fn each_handle_of_many_threads_belongs_to_its_operation() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for args in [&[][..], &["-O", "^has_journal"]] {
        let (listener, heard) = listener();
        let device = image(args).device();
        let volume =
            Volume::open_device(device.clone(), VolumeOptions::read_write().trace(listener)).unwrap();
        let last = volume.last_stats();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let volume = &volume;
                scope.spawn(move || {
                    let at = |name: &str| format!("/{thread}/{name}");
                    volume.create_dir(format!("/{thread}"), 0o755, &Caller::root()).unwrap();
                    for round in 0..20 {
                        let options = OpenOptions::new().write(true).create_new(true);
                        let file = volume.open_file(at("file"), options).unwrap();
                        file.write_at(&aligned(4096), 0).unwrap();
                        drop(file);
                        volume.rename(at("file"), at(&format!("old-{round}"))).unwrap();
                    }
                    volume.remove_dir_all(format!("/{thread}")).unwrap();
                });
            }
        });
        volume.close().unwrap();
        let heard = heard.lock().unwrap();
        assert_eq!(handles(&heard), last.get().unwrap().get(Counter::HandlesStarted), "{args:?}");
        assert!(heard.iter().all(|one| one.3), "some did not end");
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        heard.iter().for_each(|one| *counts.entry(&one.1).or_default() += 1);
        for thread in 0..4 {
            let count = |told: String| counts.get(&*told).copied().unwrap_or(0);
            assert_eq!(count(format!("mkdir /{thread}")), 1);
            assert_eq!(count(format!("create /{thread}/file")), 20);
            assert_eq!(count(format!("rename /{thread}/file")), 20);
            assert_eq!((0..20).map(|n| count(format!("unlink /{thread}/old-{n}"))).sum::<usize>(), 20);
            assert_eq!(count(format!("rmdir /{thread}")), 1);
        }
        common::assert_clean(&*device);
    }
}

#[test]
fn directories_that_grow_and_shrink_are_described() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let roles: Arc<Mutex<Vec<Role>>> = Arc::default();
    let seen = roles.clone();
    let listener = Listener::new(move |event| {
        if let Event::Handle(_, record) = event {
            seen.lock().unwrap().extend(record.blocks.iter().flat_map(|block| block.roles.clone()));
            assert!(record.blocks.iter().all(|block| !block.roles.is_empty()), "{record:?}");
        }
    });
    let device = image(&["-b", "1024", "-O", "^extent,^64bit,orphan_file,quota"]).device();
    let volume = Volume::open_device(device.clone(), VolumeOptions::read_write().trace(listener)).unwrap();
    let dir = volume
        .create_dir("/dir", 0o755, &Caller::root())
        .and_then(|_| volume.resolve("/dir", false))
        .unwrap();
    for number in 0..1500 {
        let options = OpenOptions::new().write(true).create_new(true);
        volume.open_file(format!("/dir/a-name-of-some-length-{number}"), options).unwrap();
    }
    volume.remove_dir_all("/dir").unwrap();
    volume.close().unwrap();
    let roles = roles.lock().unwrap();
    let blocks = roles
        .iter()
        .filter(|role| matches!(role, Role::Directory(ino, number) if *ino == dir && number.get() > 20));
    assert!(blocks.count() > 100);
    assert!(roles.contains(&Role::Map(dir)), "its map has nodes");
    assert!(roles.iter().any(|role| matches!(role, Role::Quota(_))));
    common::assert_clean(&*device);
}

#[test]
fn handles_around_overwrites_are_told_and_readers_hear_nothing() {
    needs!(Need::Tool("mke2fs"));
    let device = image(&[]).device();
    let (first, heard) = listener();
    let switches: Switches = "overwrite-no-transaction=off".parse().unwrap();
    let options = VolumeOptions::read_write().switches(switches).trace(first);
    let volume = Volume::open_device(device.clone(), options).unwrap();
    let last = volume.last_stats();
    let file = volume.open_file("/file", OpenOptions::new().write(true).create_new(true)).unwrap();
    (0..3).for_each(|_| assert_eq!(file.write_at(&aligned(4096), 0).unwrap(), 4096));
    drop(file);
    volume.close().unwrap();
    let heard = heard.lock().unwrap();
    assert!(heard.iter().any(|one| one.1.starts_with("map ")), "{heard:?}");
    assert_eq!(handles(&heard), last.get().unwrap().get(Counter::HandlesStarted), "{heard:?}");
    let (second, nothing) = listener();
    let volume = Volume::open_device(device, VolumeOptions::read_only().trace(second)).unwrap();
    assert!(volume.read("/file").is_ok() && nothing.lock().unwrap().is_empty());
}
