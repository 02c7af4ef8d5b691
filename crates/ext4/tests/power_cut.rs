//! Volumes whose power was cut while the virtual machine's kernel worked on them (`scripts/vm-test.sh`): we recover the
//! journal as e2fsck does, and everything that the guest had synced is there.
//!
//! `UEXT4_POWER_CUT` names the directory with `cut-0.img`, …, and `cut-console.log`, on which the guest
//! (`vm/guest/src/power_cut.rs`) reported what was durable; without it these tests are skipped.

use crate::common;

use common::dirty::{by_e2fsck, comparable};
use common::{Image, assert_same_bytes, assert_unchanged, open_ro, read_all, read_only};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use uext4::{Error, RecoveryState, Volume, VolumeOptions};
use uext4_testkit::{Need, Scratch, needs, oracle};

/// The directory; `None` reports and skips the test.
fn left_behind(test: &str) -> Option<PathBuf> {
    let path = std::env::var_os("UEXT4_POWER_CUT");
    if path.is_none() {
        println!("SKIP {test}: needs what the virtual machine left behind (UEXT4_POWER_CUT)");
    }
    path.map(PathBuf::from)
}

/// The guest's reports about one volume.
#[derive(Debug, Default)]
struct Said {
    synced: BTreeSet<u64>,
    /// Removed, or about to be.
    removing: BTreeSet<u64>,
    /// Removed before the last sync.
    removed: BTreeSet<u64>,
}

fn said(console: &str, volume: usize) -> Said {
    let mut said = Said::default();
    // The last line may be incomplete.
    for line in console.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [what, of, n] = words[..] else { continue };
        let (Ok(of), Ok(n)) = (of.parse::<usize>(), n.parse()) else { continue };
        match what {
            "SYNCED" if of == volume => {
                said.synced.insert(n);
                // A sync of the kernel commits everything before it.
                said.removed = said.removing.clone();
            }
            "REMOVING" if of == volume => drop(said.removing.insert(n)),
            _ => {}
        }
    }
    said
}

/// What file `n` of a volume holds.
fn contents(volume: usize, n: u64) -> Vec<u8> {
    let length = 100 + (n * 7919 + volume as u64 * 131) % 9000;
    (0..length).map(|index| (index * 31 + n * 17 + volume as u64) as u8).collect()
}

/// The case-folded volume, with fast commits.
const FOLDED: usize = 3;

fn name(volume: usize, n: u64) -> String {
    match volume {
        FOLDED => format!("/folded/D{}/F{n}", n % 8),
        _ => format!("/d{}/f{n}", n % 8),
    }
}

fn assert_durable(opened: &Volume, volume: usize, said: &Said) {
    for n in said.synced.difference(&said.removing) {
        let path = name(volume, *n);
        let file =
            opened.open_file(&path, read_only()).unwrap_or_else(|e| panic!("volume {volume} {path}: {e}"));
        assert!(read_all(&file) == contents(volume, *n), "volume {volume} {path} holds something else");
    }
    for n in &said.removed {
        let found = opened.metadata(name(volume, *n));
        assert!(matches!(found, Err(Error::NotFound)), "volume {volume}: file {n} came back: {found:?}");
    }
}

fn check(dir: &Path, volume: usize, console: &str) {
    let said = said(console, volume);
    assert!(said.synced.len() > 40, "volume {volume}: {said:?}");
    let image = Image::load(&dir.join(format!("cut-{volume}.img")));
    let device = image.device();
    let opened = open_ro(device.clone());
    let info = opened.info();
    assert_eq!(info.recovery.state, RecoveryState::Overlay, "volume {volume}: the kernel was at work");
    let (log, journal) = (info.recovery.log.clone().unwrap(), info.journal.unwrap().block);
    assert_eq!(log.ended.damage(), None, "volume {volume}");
    assert_durable(&opened, volume, &said);
    assert_eq!(info.recovery.fast_commits_refused, None, "volume {volume}");
    let fast = info.recovery.fast_commits().map_or(0, |found| found.commits);
    assert_eq!(fast > 0, volume == FOLDED, "volume {volume}: {fast} fast commits");
    // e2fsck replays fast commits into other blocks.
    let expected = (volume != FOLDED).then(|| comparable(&by_e2fsck(&image), journal));
    if let Some(expected) = &expected {
        assert_same_bytes(&expected.bytes, &comparable(&Image::of(&**opened.device()), journal).bytes);
    }
    drop(opened);
    assert_unchanged(&image, &*device);
    println!(
        "volume {volume}: {} synced, {} removed, {} transactions, {} blocks, {} revokes, {:?}: {}",
        said.synced.len(),
        said.removed.len(),
        log.transactions,
        log.blocks,
        log.revokes,
        log.fast_commits,
        log.ended
    );
    let written = match Volume::open_device(device.clone(), VolumeOptions::read_write()) {
        Ok(written) => written,
        // The power may go while a file is being removed.
        Err(error) if error.to_string().contains("orphan") => return println!("volume {volume}: {error}"),
        Err(error) => panic!("volume {volume}: {error}"),
    };
    assert_eq!(written.info().recovery.state, RecoveryState::Replayed);
    assert_durable(&written, volume, &said);
    drop(written);
    let recovered = Image::of(&*device);
    if let Some(expected) = &expected {
        assert_same_bytes(&expected.bytes, &comparable(&recovered, journal).bytes);
    }
    let scratch = Scratch::new(2 * image.bytes.len() as u64);
    recovered.save(&scratch.file("recovered.img"));
    oracle::e2fsck_clean(&scratch.file("recovered.img"));
}

#[test]
fn vm_power_cuts_lose_nothing_that_was_synced() {
    needs!(Need::Tool("e2fsck"));
    let Some(dir) = left_behind("vm_power_cuts_lose_nothing_that_was_synced") else { return };
    let console = std::fs::read(dir.join("cut-console.log")).unwrap();
    let console = String::from_utf8_lossy(&console).replace('\r', "");
    (0..4).for_each(|volume| check(&dir, volume, &console));
}
