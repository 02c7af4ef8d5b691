//! `explain -- COMMAND`, and the operations that `trace` prints.

use crate::common;

use common::{at, bad, good, json, uext4, volume};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use uext4_testkit::{Need, Scratch, Volume, VolumeBuilder, needs, oracle};

/// A command line: words that begin with `/` are paths of the volume, those with `HOST` files of the host.
fn words(volume: &Volume, host: &Scratch, line: &str) -> Vec<OsString> {
    let word = |word: &str| match word.strip_prefix("HOST") {
        Some(name) => host.file(name).into(),
        None if word.starts_with('/') => at(volume, word),
        None => word.into(),
    };
    line.split(' ').map(word).collect()
}

fn prefixed(first: &[&str], words: &[OsString]) -> Vec<OsString> {
    first.iter().map(OsString::from).chain(words.iter().cloned()).collect()
}

/// What a rehearsal tells: operations, and the totals of each device. Nothing is written.
#[track_caller]
fn rehearse(image: &Path, words: &[OsString]) -> (Vec<Value>, Vec<Value>) {
    let before = std::fs::read(image).unwrap();
    let told = json(prefixed(&["explain", "--json", "--"], words));
    assert!(std::fs::read(image).unwrap() == before, "{words:?} was written");
    let (totals, operations) =
        told.as_array().unwrap().iter().cloned().partition(|one| one["total"].is_object());
    (operations, totals)
}

/// What a trace of the real command tells: operations, and the last line.
#[track_caller]
fn run_traced(host: &Scratch, words: &[OsString]) -> (Vec<Value>, Value) {
    let log = host.file("log");
    let log_word = log.to_str().unwrap();
    good(prefixed(&["trace", "--json", "--output", log_word, "--"], words));
    let lines: Vec<Value> = std::fs::read_to_string(log)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let last = lines.last().unwrap().clone();
    (lines.into_iter().filter(|line| line["operation"].is_string()).collect(), last)
}

fn handles(operations: &[Value]) -> impl Iterator<Item = &Value> {
    operations.iter().flat_map(|operation| operation["handles"].as_array().unwrap())
}

/// The blocks that each transaction has to log.
fn logged(operations: &[Value]) -> BTreeMap<u64, (BTreeSet<u64>, BTreeSet<u64>)> {
    let mut transactions: BTreeMap<u64, (BTreeSet<u64>, BTreeSet<u64>)> = BTreeMap::new();
    for handle in handles(operations) {
        let (changed, revoked) = transactions.entry(handle["transaction"].as_u64().unwrap()).or_default();
        for block in handle["blocks"].as_array().unwrap() {
            let number = block["block"].as_u64().unwrap();
            let first = changed.insert(number) | revoked.remove(&number);
            assert_eq!(block["first"], first, "{block}");
            assert!(!block["roles"].as_array().unwrap().is_empty(), "{block}");
        }
        for block in handle["revoked"].as_array().unwrap() {
            changed.remove(&block.as_u64().unwrap());
            revoked.insert(block.as_u64().unwrap());
        }
    }
    transactions.retain(|_, (changed, revoked)| !changed.is_empty() || !revoked.is_empty());
    transactions
}

/// Compares a rehearsal with the counters of the real command, and with what its trace tells.
#[track_caller]
fn assert_as_rehearsed(volume: &Volume, host: &Scratch, line: &str) -> Vec<Value> {
    let words = words(volume, host, line);
    let (told, totals) = rehearse(volume.path(), &words);
    let (done, last) = run_traced(host, &words);
    assert_eq!(told, done, "{line}");
    assert_eq!(totals.len(), 1, "{line}: {totals:?}");
    let (total, counters) = (&totals[0]["total"], &last["volume"]);
    let names = [
        ("handles", "handles_started"),
        ("commits", "commits"),
        ("log_blocks", "blocks_logged"),
        ("checkpoints", "checkpoints"),
        ("home_blocks", "home_writes"),
    ];
    for (ours, theirs) in names {
        assert_eq!(total[ours], counters[theirs], "{line}: {ours}");
    }
    let sum: u64 = told.iter().map(|operation| operation["handle_count"].as_u64().unwrap()).sum();
    assert_eq!(total["handles"], sum, "{line}: each handle belongs to an operation");
    let flushes = total["flushes"].as_u64().unwrap();
    assert!(flushes <= last["total"]["flushes"].as_u64().unwrap(), "{line}");
    told
}

/// What the log holds: a descriptor and a commit block for each transaction beside its blocks.
#[track_caller]
fn assert_log_is_explained(operations: &[Value], total: &Value) {
    let transactions = logged(operations);
    let blocks = transactions.values().map(|(changed, revoked)| {
        u64::from(!changed.is_empty()) + changed.len() as u64 + u64::from(!revoked.is_empty()) + 1
    });
    assert_eq!(total["log_blocks"], blocks.sum::<u64>());
    assert_eq!(total["commits"], transactions.len());
}

const COMMANDS: [&str; 30] = [
    "mkdir -p /a/b/c",
    "mkdir /a/b/c/d /a/b/c/e",
    "cp HOSTfile /a/file",
    "cp HOSTfile /a/file",
    "cp --in-place HOSTfile /a/file",
    "ln /a/file /a/hard",
    "ln -s target /a/soft",
    "ln -s a-target-that-does-not-fit-the-inode-because-it-is-longer-than-sixty-bytes /a/long",
    "chmod 4751 /a/file",
    "chown 5:6 /a/file",
    "touch -d 2026-11-21T05:16:27Z /a/file",
    "touch /a/new",
    "xattr /a/file --set user.small=value",
    "xattr /a/file --set user.large=0123456789012345678901234567890123456789012345678901234567890123456789",
    "xattr /a/hard --remove user.large",
    "chattr +d /a/file",
    "mv /a/file /a/b/moved",
    "mv /a/new /a/b/moved",
    "mv /a/b/c /a/c",
    "truncate -s 100 /a/hard",
    "truncate -s 10m /a/hard",
    "fallocate -l 1m /a/hard",
    "fallocate -p -o 64k -l 64k /a/hard",
    "prepare /a/prepared 1m",
    "rm /a/hard",
    "rm /a/long /a/soft",
    "rmdir /a/c/e",
    "cp -r /a/b /a/copy",
    "rm -r /a",
    "rm -rf /a",
];

#[test]
fn a_rehearsal_tells_what_the_command_does_then() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"), Need::Tool("dumpe2fs"));
    let host = Scratch::new(16 << 20);
    std::fs::write(host.file("file"), common::pattern(300_000)).unwrap();
    let volume = volume();
    for line in COMMANDS {
        let told = assert_as_rehearsed(&volume, &host, line);
        assert_eq!(told.is_empty(), line.starts_with("rm -rf"), "{line}");
        oracle::e2fsck_clean(volume.path());
    }
}

#[test]
fn every_block_of_the_log_is_told() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"), Need::Tool("dumpe2fs"));
    let host = Scratch::new(1 << 20);
    let volume = volume();
    let lines = [
        "mkdir -p /a/b/c",
        "xattr /a --set user.large=0123456789012345678901234567890123456789012345678901234567890123456789",
        "mv /a/b /dir/b",
        "rm -r /dir",
        "truncate -s 1 /sparse",
    ];
    for line in lines {
        let words = words(&volume, &host, line);
        let (told, totals) = rehearse(volume.path(), &words);
        assert_log_is_explained(&told, &totals[0]["total"]);
        good(&words);
        assert_roles_are_true(&volume, &told);
    }
    oracle::e2fsck_clean(volume.path());
}

/// Compares the places of blocks with what dumpe2fs and debugfs say.
fn assert_roles_are_true(volume: &Volume, told: &[Value]) {
    let groups = oracle::dumpe2fs(volume.path(), &[]);
    let place = |group: &Value, what: &str| -> u64 {
        let from = groups.find(&format!("Group {group}: ")).unwrap();
        let at = from + groups[from..].find(what).unwrap() + what.len();
        groups[at..].split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    let mut kinds = BTreeSet::new();
    for block in handles(told).flat_map(|handle| handle["blocks"].as_array().unwrap()) {
        let number = block["block"].as_u64().unwrap();
        for role in block["roles"].as_array().unwrap() {
            let kind = role["role"].as_str().unwrap();
            match kind {
                "superblock" | "orphan-list" => assert_eq!(number, 0),
                "group-descriptor" => assert_eq!(number, 1),
                "block-bitmap" => assert_eq!(number, place(&role["group"], "Block bitmap at "), "{role}"),
                "inode-bitmap" => assert_eq!(number, place(&role["group"], "Inode bitmap at "), "{role}"),
                "inode" => {
                    let said = oracle::debugfs(volume.path(), &format!("imap <{}>", role["inode"]));
                    assert!(said.contains(&format!("located at block {number},")), "{role}: {said}");
                }
                "directory" => {
                    let query = format!("bmap <{}> {}", role["inode"], role["number"]);
                    let said = oracle::debugfs(volume.path(), &query);
                    // A removed directory has no blocks any longer.
                    assert!([number, 0].contains(&said.trim().parse().unwrap()), "{role}: {said}");
                }
                _ => {}
            }
            kinds.insert(kind);
        }
    }
    assert!(kinds.contains("inode"), "{kinds:?}");
}

#[test]
fn operations_are_told_with_their_paths() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let host = Scratch::new(1 << 20);
    let volume = volume();
    let named = |line: &str| -> Vec<String> {
        let (told, _) = rehearse(volume.path(), &words(&volume, &host, line));
        let path = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let told = told.iter().map(|one| {
            format!("{} {} {}", path(&one["operation"]), path(&one["path"]), path(&one["new_path"]))
        });
        told.collect()
    };
    assert_eq!(named("mkdir -p /x/y"), ["mkdir /x -", "mkdir /x/y -"]);
    assert_eq!(named("mv /hello /dir/inner/there"), ["rename /hello /dir/inner/there"]);
    assert_eq!(named("ln /hello /dirlink/hard"), ["link /dir/hard -"]);
    assert_eq!(named("chmod 600 /dirlink/inner/deep"), ["set attributes /dir/inner/deep -"]);
    assert_eq!(
        named("touch /hello /new"),
        ["set attributes /hello -", "create /new -", "set attributes /new -"]
    );
    let removed = named("rm -r /dir");
    assert!(removed.contains(&"unlink /dir/inner/deep -".into()), "{removed:?}");
    assert_eq!(removed.last().unwrap(), "rmdir /dir -");
    // Names that are not UTF-8.
    let (told, _) = rehearse(volume.path(), &words(&volume, &host, "rm -r /dir"));
    assert!(told.iter().any(|one| one["path_b64"].is_string()), "{told:?}");
}

#[test]
fn volumes_without_a_journal_are_rehearsed() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let host = Scratch::new(1 << 20);
    let volume = VolumeBuilder::new(16 << 20).args(["-O", "^has_journal"]).build();
    for line in ["mkdir -p /a/b", "touch /a/b/c", "mv /a/b /c", "rm -r /c /a"] {
        let told = assert_as_rehearsed(&volume, &host, line);
        assert!(handles(&told).all(|handle| handle["credits_used"].is_null()), "{told:?}");
        oracle::e2fsck_clean(volume.path());
    }
}

/// The journal is on a device of its own, which is not written either.
#[test]
fn outer_journals_are_rehearsed() {
    needs!(Need::Tool("e2fsck"));
    let host = Scratch::new(64 << 20);
    let (image, journal) = (host.file("volume.img"), host.file("journal.img"));
    good([OsStr::new("mkfs"), "-O".as_ref(), "journal_dev".as_ref(), journal.as_os_str(), "8M".as_ref()]);
    let named = format!("device={}", journal.display());
    good([OsStr::new("mkfs"), "-J".as_ref(), named.as_ref(), image.as_os_str(), "16M".as_ref()]);
    let (before, logged) = (std::fs::read(&image).unwrap(), std::fs::read(&journal).unwrap());
    let place = format!("{}:/made", image.display());
    let words: Vec<OsString> = vec!["mkdir".into(), "--journal".into(), journal.clone().into(), place.into()];
    let (told, totals) = rehearse(&image, &words);
    assert_eq!((told.len(), &totals[0]["total"]["commits"]), (1, &1.into()), "{totals:?}");
    assert!(std::fs::read(&image).unwrap() == before && std::fs::read(&journal).unwrap() == logged);
    let (done, last) = run_traced(&host, &words);
    assert_eq!((told, &last["volume"]["blocks_logged"]), (done, &totals[0]["total"]["log_blocks"]));
    let misplaced = prefixed(&["explain", "--journal", "j.img", "--"], &words);
    assert!(bad(2, misplaced).contains("belongs to the rehearsed command"));
}

#[test]
fn quota_files_are_told() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let host = Scratch::new(1 << 20);
    let volume = VolumeBuilder::new(16 << 20).args(["-O", "quota,project"]).build();
    let mut kinds = BTreeSet::new();
    for line in ["mkdir /a", "chown 7:8 /a", "chattr -p 9 /a", "rmdir /a"] {
        let told = assert_as_rehearsed(&volume, &host, line);
        let blocks = handles(&told).flat_map(|handle| handle["blocks"].as_array().unwrap());
        kinds.extend(
            blocks.flat_map(|block| block["roles"].as_array().unwrap()).map(|role| role["role"].to_string()),
        );
        oracle::e2fsck_clean(volume.path());
    }
    for kind in ["\"user-quota\"", "\"group-quota\"", "\"project-quota\""] {
        assert!(kinds.contains(kind), "{kinds:?}");
    }
}

/// A command that names several volumes: each operation says on which device it was.
#[test]
fn devices_are_told_apart() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let (one, other) = (volume(), volume());
    let before = (std::fs::read(one.path()).unwrap(), std::fs::read(other.path()).unwrap());
    let name = |volume: &Volume| volume.path().to_str().unwrap().to_owned();
    let told = json([
        OsStr::new("explain"),
        "--json".as_ref(),
        "--".as_ref(),
        "mkdir".as_ref(),
        &at(&one, "/x"),
        &at(&other, "/y"),
    ]);
    let devices: Vec<&str> =
        told.as_array().unwrap().iter().filter_map(|line| line["device"].as_str()).collect();
    assert_eq!(devices, [name(&one), name(&other)]);
    let totals: Vec<&Value> =
        told.as_array().unwrap().iter().filter(|line| line["total"].is_object()).collect();
    assert_eq!(totals.len(), 2);
    assert!(totals.iter().all(|total| total["total"]["handles"] == 1), "{totals:?}");
    // Only one of them is written.
    let told = json([
        OsStr::new("explain"),
        "--json".as_ref(),
        "--".as_ref(),
        "cp".as_ref(),
        &at(&one, "/big"),
        &at(&other, "/copied"),
    ]);
    let told = told.as_array().unwrap();
    assert!(told.iter().filter_map(|line| line["device"].as_str()).all(|device| device == name(&other)));
    assert!(told.iter().any(|line| line["operation"] == "append" && line["path"] == "/copied"), "{told:?}");
    assert!(before == (std::fs::read(one.path()).unwrap(), std::fs::read(other.path()).unwrap()));
}

#[test]
fn text_names_blocks_and_sums() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let place = volume.path().display();
    let told = common::text(["explain", "--", "mkdir", &format!("{place}?ro:/new")]);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], format!("mkdir {place}?ro:/new: 1 handle"));
    assert!(lines[1].starts_with("  names: transaction ") && lines[1].contains(" credits, "), "{told}");
    for part in ["inode 2", "block bitmap of group 0", "inode bitmap of group 0", "block 0 of directory 2"] {
        assert!(
            lines[2..].iter().any(|line| line.starts_with("    block ") && line.ends_with(part)),
            "{part}: {told}"
        );
    }
    let last = lines.last().unwrap();
    assert!(last.starts_with(&format!("total of {place}?ro: 1 operation, 1 handle, ")), "{last}");
    assert!(last.contains("; 1 commit of ") && last.ends_with(" flushes. Nothing was written."), "{last}");
    // The same lines are in a trace, among its requests.
    let output = uext4(["trace", "--", "mkdir", &format!("{place}:/new")]);
    let trace = String::from_utf8(output.stderr).unwrap();
    assert!(
        trace.contains(&format!("    mkdir {place}:/new: 1 handle\n      names: transaction ")),
        "{trace}"
    );
    // And in a file.
    let file = volume.scratch().file("told");
    good([
        OsString::from("explain"),
        format!("--json={}", file.display()).into(),
        "--".into(),
        "rmdir".into(),
        at(&volume, "/new"),
    ]);
    let told: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(told[0]["operation"], "rmdir");
}

#[test]
fn what_cannot_be_rehearsed_is_refused() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let host = Scratch::new(16 << 20);
    std::fs::write(host.file("file"), common::pattern(300_000)).unwrap();
    let volume = volume();
    let before = std::fs::read(volume.path()).unwrap();
    let refused = [
        (2, "cat /hello", "explain rehearses commands that change volumes"),
        (2, "explain -- mkdir /x", "explain rehearses commands that change volumes"),
        (2, "trace -- mkdir /x", "explain rehearses commands that change volumes"),
        (2, "cp /hello HOSTcopied", "copies into volumes only"),
        (2, "mkdir -v --json=told.json /x", "--json=FILE of a rehearsed command"),
        (2, "mkdir --none /x", "--none"),
        (1, "mkdir /hello", "exists"),
    ];
    for (status, line, part) in refused {
        let output = uext4(prefixed(&["explain", "--"], &words(&volume, &host, line)));
        assert_eq!(output.status.code(), Some(status), "{line}: {}", oracle::text(&output));
        assert!(String::from_utf8_lossy(&output.stderr).contains(part), "{line}: {}", oracle::text(&output));
    }
    assert!(!host.file("copied").exists());
    let little =
        uext4(prefixed(&["explain", "--memory", "64k", "--"], &words(&volume, &host, "cp HOSTfile /x")));
    let said = String::from_utf8_lossy(&little.stderr).into_owned();
    assert!(
        little.status.code() == Some(1) && said.contains("kept in memory would exceed 65536 bytes"),
        "{said}"
    );
    bad(2, ["explain", "--memory", "64k", "disk.img:/x", "--read", "0", "1"]);
    bad(2, ["explain", "disk.img:/x", "0", "1"]);
    bad(2, ["explain", "disk.img:/x", "--read", "0", "1", "--", "mkdir", "disk.img:/y"]);
    bad(2, ["explain", "--"]);
    let traced = uext4(prefixed(&["trace", "--", "explain", "--"], &words(&volume, &host, "mkdir /x")));
    assert_eq!(traced.status.code(), Some(2));
    assert!(std::fs::read(volume.path()).unwrap() == before);
    // Nothing is damaged by what failed.
    let said = bad(1, [OsStr::new("stat"), &at(&volume, "/x")]);
    assert!(said.contains("no such file"), "{said}");
}
