//! Processes that are killed while they change a volume. Everything acknowledged is there afterwards, recovered by us
//! and by e2fsck, and the next process goes on with it. `make kill` runs other seeds. Names and attributes:
//! `tree_walk/kills.rs`.

use crate::common;
use crate::crash_named::layouts;

use common::ledger::{Ledger, Mark};
use common::scene::{Scene, Teller};
use common::{Image, open_ro, open_rw, read_all, read_only, within};
use layouts::{CLUSTERS, LARGE, Layout, SMALL};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use uext4::device::OpenOptions;
use uext4::{DeviceSpec, Fallocate, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::{NbdServer, Need, Rng, Scratch, needs, oracle};

/// The child's image, the device by which it opens that (the image itself if there is none), and the source of its
/// random choices.
pub const IMAGE: &str = "UEXT4_KILL_IMAGE";
pub const DEVICE: &str = "UEXT4_KILL_DEVICE";
pub const DRAWN: &str = "UEXT4_KILL_DRAWN";
/// Kills of each layout, unless `UEXT4_KILL_ROUNDS` says how many.
const ROUNDS: u64 = 14;
/// Bytes of a file, and files of a thread.
const MOST: u64 = 60_000;
const FILES: usize = 6;
const THREADS: u64 = 2;
const DSYNC: WriteFlags = WriteFlags::DSYNC;

/// Serializes a mark for a pipe.
fn encode(mark: &Mark) -> Vec<u8> {
    let (kind, path, numbers, bytes) = match mark {
        Mark::Begun { path, bytes: None, .. } => (0_u8, path, [0, 0], None),
        Mark::Begun { path, bytes: Some(bytes), moves } => (1, path, [u64::from(*moves), 0], Some(bytes)),
        Mark::Durable { path, range } => (2, path, [range.start, range.end], None),
        Mark::Named { path } => (3, path, [0, 0], None),
        Mark::Replaced { path, bytes } => (4, path, [0, 0], Some(bytes)),
    };
    let bytes = bytes.map_or(&[][..], |bytes| bytes);
    let mut told = vec![kind];
    for number in [path.len() as u64, bytes.len() as u64].iter().chain(&numbers) {
        told.extend_from_slice(&number.to_le_bytes());
    }
    told.extend_from_slice(path.as_bytes());
    told.extend_from_slice(bytes);
    told
}

/// The first mark, and the bytes after it; `None` if it is incomplete.
fn decode(told: &[u8]) -> Option<(Mark, &[u8])> {
    let (kind, mut rest) = told.split_first()?;
    let mut numbers = [0; 4];
    for number in &mut numbers {
        let (bytes, behind) = rest.split_first_chunk()?;
        (*number, rest) = (u64::from_le_bytes(*bytes), behind);
    }
    let [name, length, start, end] = numbers;
    let (path, rest) = rest.split_at_checked(name as usize)?;
    let (bytes, rest) = rest.split_at_checked(length as usize)?;
    let path = String::from_utf8(path.to_vec()).unwrap();
    let mark = match kind {
        0 => Mark::Begun { path, bytes: None, moves: false },
        1 => Mark::Begun { path, bytes: Some(Arc::new(bytes.to_vec())), moves: start == 1 },
        2 => Mark::Durable { path, range: start..end },
        3 => Mark::Named { path },
        _ => Mark::Replaced { path, bytes: Arc::new(bytes.to_vec()) },
    };
    Some((mark, rest))
}

/// The work of a child until it is killed.
fn child(image: &Path) {
    let drawn: u64 = number(DRAWN).unwrap();
    // Its standard input is the end of a pipe that takes marks.
    let pipe = Mutex::new(std::fs::OpenOptions::new().write(true).open("/proc/self/fd/0").unwrap());
    let teller: Teller = Arc::new(move |mark| pipe.lock().unwrap().write_all(&encode(&mark)).unwrap());
    let spec = match std::env::var(DEVICE) {
        Ok(device) => DeviceSpec::parse(&device).unwrap(),
        Err(_) => DeviceSpec::file(image),
    };
    let device = uext4::device::open(&spec, OpenOptions { write: true, force: false }).unwrap().device;
    let volume = Volume::open_device(device, VolumeOptions::read_write()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (volume, teller) = (volume.clone(), teller.clone());
            scope.spawn(move || or_end(|| work(Scene::new(volume, Some(teller), drawn + thread), thread)));
        }
    });
}

/// The work of a thread of a child. If it fails, the child ends at once, which its parent sees.
pub fn or_end(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        std::process::exit(1);
    }
}

/// One thread's files are in `/`, the other's in `/d`.
fn work(mut scene: Scene, thread: u64) {
    let directory = ["/", "/d/"][thread as usize];
    for path in paths(&scene.volume).iter().filter(|path| is_in(path, directory) && *path != "/beacon") {
        scene.adopt(path);
    }
    let fresh = scene.rng.below(1 << 40);
    for step in fresh.. {
        one(&mut scene, directory, step);
    }
}

fn is_in(path: &str, directory: &str) -> bool {
    path.rfind('/').is_some_and(|at| path[..=at] == *directory)
}

fn one(scene: &mut Scene, directory: &str, step: u64) {
    let flags = *scene.rng.pick(&[DSYNC, DSYNC, WriteFlags::SYNC, WriteFlags::empty()]);
    let kind = scene.rng.below(20);
    if scene.files.is_empty() || (kind < 3 && scene.files.len() < FILES) {
        let path = format!("{directory}{step}-{}", "n".repeat(*scene.rng.pick(&[0, 100])));
        scene.create(&path);
        return scene.append(&path, 1000, flags);
    }
    let at = scene.rng.below(scene.files.len() as u64) as usize;
    let path = scene.files.keys().nth(at).cloned().unwrap();
    let size = scene.size(&path);
    let (pos, length) = (scene.rng.below(size + 2000).min(MOST), 1 + scene.rng.below(6000));
    match kind {
        0 | 1 => {
            let keep = scene.nameless.len() < 2;
            scene.remove(&path, keep);
        }
        2 => scene.nameless.clear(),
        3 => scene.set_len(&path, pos),
        4 => scene.fallocate(&path, Fallocate::Punch, pos, length),
        5 => scene.fallocate(&path, Fallocate::ZeroKeepSize, pos, length),
        6 => scene.sync(&path),
        7 if pos < MOST / 2 => {
            let start = pos / 512 * 512;
            scene.queued(&path, &[(start, 1024), (start + 4096, 512), (start + 8192, 2048)], flags);
        }
        8..14 if size < MOST => scene.append(&path, length, flags),
        _ => scene.write(&path, pos, length, flags),
    }
}

/// All files of a volume.
fn paths(volume: &Volume) -> Vec<String> {
    let mut paths = Vec::new();
    for directory in ["/", "/d/"] {
        let names = volume.read_dir(directory).unwrap();
        let names = names.map(|entry| String::from_utf8(entry.unwrap().name).unwrap());
        let kept = names.filter(|name| ![".", "..", "d", "lost+found"].contains(&&**name));
        paths.extend(kept.map(|name| format!("{directory}{name}")));
    }
    paths
}

/// Starts a child that runs a test, kills it after a while, and returns the seed it had and the bytes it sent.
pub fn killed(test: &str, image: &Path, rng: &mut Rng) -> (u64, Vec<u8>) {
    killed_on(test, image, None, rng)
}

/// The same of a child that opens `device`.
fn killed_on(test: &str, image: &Path, device: Option<&str>, rng: &mut Rng) -> (u64, Vec<u8>) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let drawn = rng.next_u64() >> 40;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", test])
        .envs(device.map(|device| (DEVICE, device)))
        .env(IMAGE, image)
        .env(DRAWN, drawn.to_string())
        .stdin(Stdio::from(writer))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (begun, wait) = mpsc::channel();
    let listener = std::thread::spawn(move || {
        let mut told = vec![0; 1 << 16];
        let first = reader.read(&mut told).unwrap();
        told.truncate(first);
        let _too_late = begun.send(());
        reader.read_to_end(&mut told).unwrap();
        told
    });
    // Most are killed at work, some during the open.
    match rng.below(5) {
        0 => std::thread::sleep(Duration::from_micros(rng.below(25_000))),
        _ => {
            wait.recv_timeout(Duration::from_secs(60)).expect("the child works");
            std::thread::sleep(Duration::from_micros(rng.below(120_000)));
        }
    }
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let told = listener.join().unwrap();
    assert_eq!(
        output.status.signal(),
        Some(libc::SIGKILL),
        "the child ended itself: {}",
        oracle::text(&output)
    );
    (drawn, told)
}

fn decoded(told: &[u8]) -> Vec<Mark> {
    let (mut marks, mut rest) = (Vec::new(), told);
    while let Some((mark, behind)) = decode(rest) {
        marks.push(mark);
        rest = behind;
    }
    marks
}

/// The files of the volume, all durable.
fn base(volume: &Volume) -> Vec<Mark> {
    let marks = |path: String| {
        let bytes = Some(Arc::new(read_all(&volume.open_file(&path, read_only()).unwrap())));
        let begun = Mark::Begun { path: path.clone(), bytes, moves: false };
        [begun, Mark::Durable { path, range: 0..u64::MAX }]
    };
    paths(volume).into_iter().flat_map(marks).collect()
}

pub fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// Long runs add up kills, and changes or syncs that were acknowledged.
pub fn note(name: &str, kills: u64, acknowledged: usize) {
    let Some(path) = std::env::var_os("UEXT4_KILL_TOTALS") else { return };
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(format!("{name} {kills} {acknowledged}\n").as_bytes()).unwrap();
}

/// Has e2fsck recover a copy, and us the image itself: both pass `check`, which is told who it was, and are clean.
/// Returns whether there was something to recover.
pub fn recovered_by_both(image: &Path, copy: &Path, what: &str, check: impl Fn(&Volume, &str)) -> bool {
    Image::load(image).save(copy);
    let repaired = oracle::e2fsck(copy, &["-fy"]);
    assert!(repaired.status < 2, "{what}: {repaired:?}");
    oracle::e2fsck_clean(copy);
    // e2fsck takes the attribute block from a file that it truncates (release_inode_blocks), and does not count that.
    let robs = ["Truncating orphaned inode", "i_blocks is"].iter().all(|text| repaired.output.contains(text));
    if !robs {
        check(&open_rw(Image::load(copy).device()), "e2fsck");
    }
    let volume = Volume::open(image, VolumeOptions::read_write()).unwrap();
    let in_use = volume.recovery().needed || volume.recovery().log.is_some();
    check(&volume, "us");
    volume.close().unwrap();
    oracle::e2fsck_clean(image);
    in_use
}

/// How the processes that are killed reach the image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    File,
    /// A server of NBD has it, which is killed behind them.
    Nbd,
}

/// A test, and the work of the processes that it starts.
fn kills(name: &str, layout: Layout, reach: Reach) {
    if let Some(image) = std::env::var_os(IMAGE) {
        return child(Path::new(&image));
    }
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    if reach == Reach::Nbd {
        needs!(Need::Tool("nbdkit"));
    }
    let (seed, name) = (number("UEXT4_KILL_SEED").unwrap_or(1), name.to_owned());
    let rounds = number("UEXT4_KILL_ROUNDS").unwrap_or(ROUNDS);
    within(Duration::from_secs(60 + 5 * rounds), move || {
        let scratch = Scratch::new(4 * (layout.mebibytes << 20));
        let (image, copy) = (scratch.file("volume.img"), scratch.file("copy.img"));
        layout.image().save(&image);
        let mut rng = Rng::new(seed);
        let (mut known, mut acknowledged, mut again) = (Vec::new(), 0, 0);
        for round in 0..rounds {
            let what = format!("{name}, UEXT4_KILL_SEED={seed}, kill {round}");
            let test = format!("kill::{name}");
            let told = match reach {
                Reach::File => killed(&test, &image, &mut rng),
                Reach::Nbd => {
                    // Ended before the image is looked at: it may still be writing.
                    let server = NbdServer::nbdkit(&["file", &image.display().to_string()]);
                    killed_on(&test, &image, Some(&server.device("")), &mut rng)
                }
            };
            let marks = decoded(&told.1);
            acknowledged += marks
                .iter()
                .filter(|mark| !matches!(mark, Mark::Begun { .. } | Mark::Replaced { .. }))
                .count();
            let ledger = Ledger::new(known.iter().chain(&marks), layout == CLUSTERS);
            let check = |volume: &Volume, by: &str| {
                ledger.check(volume).unwrap_or_else(|wrong| panic!("{what}, recovered by {by}: {wrong}"));
            };
            again += u64::from(recovered_by_both(&image, &copy, &what, check));
            known = base(&open_ro(Image::load(&image).device()));
        }
        println!("{name}: {rounds} kills, {again} logs in use, {acknowledged} acknowledged");
        // If there are few kills, all may come before the work.
        let worked = again > rounds / 4 && acknowledged as u64 > 5 * rounds;
        assert!(worked || rounds < 10, "{again} {acknowledged}");
        note(&name, rounds, acknowledged);
    });
}

#[test]
fn killed_on_small_blocks() {
    kills("killed_on_small_blocks", SMALL, Reach::File);
}

#[test]
fn killed_on_large_blocks() {
    kills("killed_on_large_blocks", LARGE, Reach::File);
}

#[test]
fn killed_on_clusters() {
    kills("killed_on_clusters", CLUSTERS, Reach::File);
}

#[test]
fn killed_over_nbd() {
    kills("killed_over_nbd", LARGE, Reach::Nbd);
}

#[test]
fn marks_come_through_the_pipe() {
    let begun = Mark::Begun { path: "/a".into(), bytes: Some(Arc::new(vec![1, 2, 3])), moves: true };
    for mark in [begun, Mark::Durable { path: "/b".into(), range: 5..u64::MAX }] {
        let told = encode(&mark);
        let (again, rest) = decode(&told).unwrap();
        assert_eq!((format!("{again:?}"), rest.len()), (format!("{mark:?}"), 0));
        assert!((0..told.len()).all(|length| decode(&told[..length]).is_none()));
    }
}
