//! The journal: what a check says of one that is damaged, and of changes that cannot be replayed.

use crate::common;

use common::checked::{check, told};
use common::fast::{ROOT, Records, plant, volume_with};
use common::journal::{base, clear_recover, damaged_needed, damaged_unneeded, flip, transaction};
use common::log::{Log, LogKind, places};
use common::open_ro;
use uext4_ondisk::jbd2::LogChecksums;
use uext4_testkit::{Need, Scratch, needs, oracle};

#[test]
fn a_damaged_journal_is_found_whether_needed_or_not() {
    needs!(Need::Tool("mke2fs"));
    for (what, image) in damaged_unneeded() {
        assert!(!check(&image).is_clean(), "{what}");
    }
    for image in damaged_needed() {
        let report = check(&image);
        assert!(!report.is_clean() && report.totals.contains_key("journal.log"), "{:?}", report.findings);
    }
}

/// A superblock of the first version whose fields tell of checksums: whoever needs the log is refused.
#[test]
fn a_bit_of_checksums_in_a_first_version_counts_only_where_the_log_is_needed() {
    needs!(Need::Tool("mke2fs"));
    let mut image = base(1);
    transaction(&mut Log::begin(&mut image, LogKind::new(LogChecksums::None)), 1);
    let start = places(&image)[0] as usize * 1024;
    image.bytes[start + 7] = 3;
    image.bytes[start + 0x28 + 3] = 0x10;
    image.bytes[start + 0x24 + 3] = 1;
    assert!(check(&image).totals.contains_key("journal.log"));
    clear_recover(&mut image);
    let report = check(&image);
    assert!(report.is_clean() && report.findings.is_empty(), "{:?}", report.findings);
}

/// Neither the superblock of the journal nor its inode says it by itself. e2fsck finds it; the kernel never looks.
#[test]
fn a_check_finds_a_journal_that_cannot_be_used() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for users in [0, 1, 2] {
        let mut image = base(1);
        Log::begin(&mut image, LogKind::new(LogChecksums::V3)).superblock(|superblock| {
            superblock.start = 0;
            superblock.users = users;
        });
        clear_recover(&mut image);
        let report = check(&image);
        let codes: Vec<_> = report.findings.iter().map(|finding| finding.kind.code).collect();
        let expected: &[&str] = if users > 1 { &["journal.superblock"] } else { &[] };
        assert_eq!(codes, expected, "{users} users: {:?}", report.findings);
        let scratch = Scratch::new(32 << 20);
        let path = scratch.file("volume.img");
        image.save(&path);
        assert_eq!(oracle::e2fsck(&path, &["-n"]).is_clean(), users <= 1, "{users} users");
    }
}

/// The older state fits together, and yet it is not the volume that was written last. What was never committed is no
/// loss.
#[test]
fn a_check_names_the_transaction_that_cannot_be_replayed() {
    needs!(Need::Tool("mke2fs"));
    for (damaged, async_commit) in [(false, false), (true, false), (true, true)] {
        let mut image = base(1);
        let kind = LogKind { async_commit, ..LogKind::new(LogChecksums::V3) };
        let mut log = Log::begin(&mut image, kind);
        transaction(&mut log, 1);
        let second = transaction(&mut log, 2);
        if damaged {
            flip(&mut log, second.descriptors[0], 600);
        }
        let place = places(&image)[second.descriptors[0] as usize];
        let report = check(&image);
        let told: Vec<_> = report.findings.iter().map(|finding| finding.to_string()).collect();
        let lost = damaged && !async_commit;
        assert_eq!((told.len(), report.is_clean()), (usize::from(lost), !lost), "{told:?}");
        let replayed = format!("replayed in memory ({} transactions", if damaged { 1 } else { 2 });
        assert!(report.notes.iter().any(|note| note.contains(&replayed)), "{:?}", report.notes);
        if lost {
            assert!(told[0].starts_with("journal.log: ") && told[0].contains("transaction 8, "), "{told:?}");
            assert_eq!(report.findings[0].place.block.map(|block| block.get()), Some(place));
        }
    }
}

/// Those before the refused one are seen, and those behind it are lost.
#[test]
fn a_fast_commit_that_is_refused_is_one_finding() {
    needs!(Need::Tool("mke2fs"));
    let mut image = volume_with("metadata_csum,64bit,^orphan_file,fast_commit");
    let hello = open_ro(image.device()).metadata("/hello").unwrap().ino.get();
    let good = Records::default().link(ROOT, hello, b"good");
    plant(&mut image, &[good, Records::default().link(ROOT, 1 << 20, b"bad")]);
    let volume = open_ro(image.device());
    let why = volume.recovery().fast_commits_refused.clone().expect("the second one is refused");
    let report = check(&image);
    let told = told(&report);
    assert!(told.len() == 1 && told[0].contains(&why) && !report.is_clean(), "{told:?}");
    assert_eq!(report.totals["journal.fast_commits"], 1);
}
