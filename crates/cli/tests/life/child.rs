//! The process that is killed, and what is known of its work: it tells each acknowledgement through a pipe.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;
use uext4::{Caller, Error, OpenOptions, QueueOptions, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::{Rng, fixture, oracle};

const DEVICE: &str = "UEXT4_LIFE_DEVICE";
const FIRST: &str = "UEXT4_LIFE_FIRST";
/// The file of the blocks, and their number.
const FILE: &str = "/work/blocks";
const BLOCKS: u64 = 512;
const BLOCK: usize = 4096;

/// What was acknowledged.
#[derive(Debug, Default)]
pub struct Known {
    /// The newest version of each block that is durable.
    blocks: BTreeMap<u64, u64>,
    /// Files whose names are durable, and the version of their contents.
    names: BTreeMap<String, u64>,
    /// Versions from here on were not used.
    next: u64,
    told: usize,
}

/// Whether this process is the child.
pub fn is_one() -> bool {
    std::env::var_os(DEVICE).is_some()
}

fn read_write() -> OpenOptions {
    OpenOptions::new().read(true).write(true)
}

/// The place of the contents of named files, which have no block.
const NAMED: u64 = u64::MAX;

/// Contents tell their version, and the block that they belong to: those of another block are wrong too.
fn fill(version: u64, place: u64, buf: &mut [u8]) {
    fixture::pattern(version ^ place << 48, 0, buf);
    buf[..8].copy_from_slice(&version.to_le_bytes());
}

/// Makes the file of blocks: version 0, durable.
pub fn prepare(spec: &str) {
    let volume = Volume::open(spec, VolumeOptions::read_write()).unwrap();
    volume.create_dir("/work", 0o755, &Caller::root()).unwrap();
    let file = volume.open_file(FILE, read_write().create(true)).unwrap();
    let mut bytes = vec![0; BLOCKS as usize * BLOCK];
    bytes.chunks_mut(BLOCK).zip(0..).for_each(|(bytes, block)| fill(0, block, bytes));
    file.write_any_at(&bytes, 0, WriteFlags::empty()).unwrap();
    file.sync_all().unwrap();
    drop(file);
    volume.close().unwrap();
}

/// The volume, recovered. The kernel closes the device of a process that was killed some time after it.
fn opened(spec: &str) -> Volume {
    for _ in 0..4000 {
        match Volume::open(spec, VolumeOptions::read_write()) {
            Err(Error::InUse(_)) => std::thread::sleep(Duration::from_millis(10)),
            opened => return opened.unwrap(),
        }
    }
    panic!("{spec} stays in use");
}

/// What the child does until it is killed.
pub fn work() {
    let spec = std::env::var(DEVICE).unwrap();
    let first: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
    // Its standard input is the end of a pipe that takes what it tells.
    let mut pipe = std::fs::OpenOptions::new().write(true).open("/proc/self/fd/0").unwrap();
    let mut tell = move |line: String| pipe.write_all(line.as_bytes()).unwrap();
    let volume = Volume::open(&*spec, VolumeOptions::read_write()).unwrap();
    let file = volume.open_file(FILE, read_write()).unwrap();
    let mut queue = volume.queue(QueueOptions::depth(16)).unwrap();
    let slot = queue.attach(&file).unwrap();
    let mut rng = Rng::new(first);
    tell("begun\n".into());
    for version in (first..).step_by(16) {
        match rng.below(8) {
            0 => {
                let (draft, name) = (format!("/work/draft-{version}"), format!("/work/name-{version}"));
                let made = volume.open_file(&draft, read_write().create(true)).unwrap();
                let mut bytes = vec![0; 100 + rng.below(9000) as usize];
                fill(version, NAMED, &mut bytes);
                made.write_any_at(&bytes, 0, WriteFlags::empty()).unwrap();
                volume.rename(&draft, &name).unwrap();
                made.sync_all().unwrap();
                tell(format!("name {version} {name}\n"));
            }
            1 | 2 => {
                let block = rng.below(BLOCKS);
                let mut buffer = queue.buffer(BLOCK).unwrap();
                fill(version, block, &mut buffer);
                file.write_at(&buffer, block * BLOCK as u64).unwrap();
                file.sync_data().unwrap();
                tell(format!("block {version} {block}\n"));
            }
            _ => {
                // No block twice in a batch: two writes at once have no order.
                let start = rng.below(BLOCKS);
                for at in 0..16 {
                    let mut buffer = queue.buffer(BLOCK).unwrap();
                    let block = (start + at * 31) % BLOCKS;
                    fill(version + at, block, &mut buffer);
                    queue.write(slot, block * BLOCK as u64, buffer, WriteFlags::DSYNC, at).unwrap();
                }
                let mut left = 16;
                while left > 0 {
                    let done: Vec<_> = queue.wait(1).unwrap().collect();
                    for done in done {
                        assert_eq!(done.result.unwrap(), BLOCK);
                        let block = (start + done.tag * 31) % BLOCKS;
                        tell(format!("block {} {block}\n", version + done.tag));
                        left -= 1;
                    }
                }
            }
        }
    }
}

/// Starts the child that runs a test, kills it at work, and notes what it told.
pub fn killed(test: &str, spec: &str, known: &mut Known, rng: &mut Rng) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let first = known.next.max(16);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", test])
        .env(DEVICE, spec)
        .env(FIRST, first.to_string())
        .stdin(Stdio::from(writer))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (begun, wait) = std::sync::mpsc::channel();
    let listener = std::thread::spawn(move || {
        let mut told = vec![0; 1 << 12];
        let length = reader.read(&mut told).unwrap();
        told.truncate(length);
        let _gone = begun.send(());
        reader.read_to_end(&mut told).unwrap();
        String::from_utf8(told).unwrap()
    });
    wait.recv_timeout(Duration::from_secs(120)).expect("the child works");
    std::thread::sleep(Duration::from_micros(20_000 + rng.below(200_000)));
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let told = listener.join().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGKILL), "it ended itself: {}", oracle::text(&output));
    known.note(&told, first);
}

impl Known {
    fn note(&mut self, told: &str, first: u64) {
        // The last line may be cut.
        let whole = told.rfind('\n').map_or("", |end| &told[..end]);
        for line in whole.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["block", version, block] => {
                    self.blocks.insert(block.parse().unwrap(), version.parse().unwrap());
                }
                ["name", version, name] => {
                    self.names.insert(name.to_owned(), version.parse().unwrap());
                }
                _ => assert_eq!(line, "begun"),
            }
            self.told += 1;
        }
        // Far beyond what it can have used.
        self.next = first + (1 << 32);
    }

    /// Acknowledgements in all.
    pub fn acknowledged(&self) -> usize {
        self.told
    }

    /// Recovers the volume, and looks for everything: each block has the version that was acknowledged or a later one,
    /// whole, and each name its file. If the back end `tears`, a block may be mixed from the version that was there and
    /// one that was being written; it is written again then.
    pub fn assert_there(&mut self, spec: &str, tears: bool, what: &str) {
        let volume = opened(spec);
        let file = volume.open_file(FILE, read_write()).unwrap();
        assert_eq!(file.size(), BLOCKS * BLOCK as u64, "{what}");
        let (mut found, mut whole) = ([0; BLOCK], [0; BLOCK]);
        for block in 0..BLOCKS {
            file.read_any_at(&mut found, block * BLOCK as u64).unwrap();
            let version = u64::from_le_bytes(found[..8].try_into().unwrap());
            let least = self.blocks.get(&block).copied().unwrap_or(0);
            fill(version, block, &mut whole);
            if tears && found != whole && self.is_mixed(&found, block, least) {
                fill(least, block, &mut whole);
                file.write_any_at(&whole, block * BLOCK as u64, WriteFlags::DSYNC).unwrap();
                continue;
            }
            let first = (0..BLOCK).find(|at| found[*at] != whole[*at]);
            assert_eq!(first, None, "{what}: block {block}, version {version}, has other bytes");
            assert!(
                version >= least && version < self.next,
                "{what}: block {block}: {version}, after {least}"
            );
            // From now on this one is durable: the volume is closed below.
            self.blocks.insert(block, version);
        }
        for (name, version) in &self.names {
            let file = volume.open_file(name, OpenOptions::new().read(true)).unwrap();
            let mut found = vec![0; file.size() as usize];
            file.read_any_at(&mut found, 0).unwrap();
            let mut whole = vec![0; found.len()];
            fill(*version, NAMED, &mut whole);
            assert!(found.len() >= 100 && found == whole, "{what}: {name}");
        }
        drop(file);
        volume.close().unwrap();
    }

    /// Whether each word is that of the version that was there, or of one version that was not acknowledged.
    fn is_mixed(&self, found: &[u8], block: u64, least: u64) -> bool {
        let (mut old, mut new) = ([0; BLOCK], [0; BLOCK]);
        fill(least, block, &mut old);
        let newest = self.blocks.values().max().copied().unwrap_or(0);
        (newest.saturating_sub(32)..newest + 48).any(|version| {
            fill(version, block, &mut new);
            let mut words = found.chunks(8).zip(old.chunks(8).zip(new.chunks(8)));
            words.all(|(word, (old, new))| word == old || word == new)
        })
    }
}
