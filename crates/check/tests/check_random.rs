//! Volumes changed by random requests to debugfs: what e2fsck calls clean has no error here, and where e2fsck finds
//! errors the check finds something. The requests are a function of a seed; a failure prints both, with what each said.

use crate::common;

use common::Image;
use common::checked::is_newer;
use std::path::Path;
use uext4::VolumeOptions;
use uext4_check::{CheckOptions, Severity, check_device};
use uext4_testkit::oracle::{Fsck, command, text};
use uext4_testkit::requirement::{Need, tool};
use uext4_testkit::rng::Rng;
use uext4_testkit::{Scratch, VolumeBuilder, needs, oracle};

/// Of the requests. Another seed may meet a disagreement that nobody has looked at: `UEXT4_CHECK_SEED`.
const SEED: u64 = 20_261_122;
const SIZE: u64 = 4 << 20;
/// Volumes changed of each base.
const ROUNDS: u64 = 80;
/// Seconds that e2fsck gets: on some volumes it does not end.
const PATIENCE: &str = "2";

/// Names, `-t` and features of the volumes that are changed. (None with MMP: debugfs waits 12 s to open one.)
const BASES: [(&str, &str, &str); 13] = [
    ("ext4", "ext4", "metadata_csum"),
    ("without checksums", "ext4", "^metadata_csum,^64bit"),
    ("group checksums", "ext4", "^metadata_csum,uninit_bg"),
    ("ext3", "ext3", "none"),
    ("ext2", "ext2", "none"),
    ("inline_data", "ext4", "inline_data"),
    ("inline_data without checksums", "ext4", "inline_data,^metadata_csum"),
    ("bigalloc", "ext4", "bigalloc"),
    ("casefold", "ext4", "casefold"),
    ("encrypt", "ext4", "encrypt,^metadata_csum"),
    ("quota", "ext4", "quota,project,encrypt"),
    ("orphan_file", "ext4", "orphan_file,^metadata_csum"),
    ("sparse_super2", "ext4", "sparse_super2,^resize_inode,meta_bg,ea_inode"),
];

const INODES: [&str; 20] = [
    "/", "/d", "/big", "/small", "/sparse", "/link", "/slow", "/pipe", "/d/e", "/hard", "<1>", "<3>", "<4>",
    "<5>", "<7>", "<8>", "<9>", "<10>", "<11>", "<12>",
];
const INODE_FIELDS: [&str; 35] = [
    "mode",
    "uid",
    "gid",
    "size",
    "links_count",
    "blocks",
    "flags",
    "generation",
    "file_acl",
    "size_high",
    "faddr",
    "dtime",
    "atime",
    "ctime",
    "mtime",
    "block[0]",
    "block[1]",
    "block[2]",
    "block[3]",
    "block[4]",
    "block[5]",
    "block[12]",
    "block[IND]",
    "block[DIND]",
    "extra_isize",
    "ctime_extra",
    "crtime_extra",
    "checksum",
    "version",
    "osd1",
    "file_acl_high",
    "blocks_hi",
    "bmap[3]",
    "projid",
    "flags",
];
const SUPER_FIELDS: [&str; 52] = [
    "inodes_count",
    "blocks_count",
    "r_blocks_count",
    "free_blocks_count",
    "free_inodes_count",
    "first_data_block",
    "log_block_size",
    "blocks_per_group",
    "inodes_per_group",
    "mnt_count",
    "state",
    "errors",
    "lastcheck",
    "creator_os",
    "rev_level",
    "first_ino",
    "inode_size",
    "block_group_nr",
    "prealloc_blocks",
    "prealloc_dir_blocks",
    "reserved_gdt_blocks",
    "journal_inum",
    "journal_dev",
    "last_orphan",
    "hash_seed",
    "def_hash_version",
    "jnl_backup_type",
    "desc_size",
    "default_mount_opts",
    "first_meta_bg",
    "mkfs_time",
    "min_extra_isize",
    "want_extra_isize",
    "flags",
    "raid_stride",
    "mmp_interval",
    "mmp_block",
    "log_groups_per_flex",
    "checksum_type",
    "usr_quota_inum",
    "grp_quota_inum",
    "prj_quota_inum",
    "overhead_clusters",
    "backup_bgs[0]",
    "backup_bgs[1]",
    "checksum_seed",
    "encoding",
    "encoding_flags",
    "lpf_ino",
    "log_cluster_size",
    "clusters_per_group",
    "orphan_file_inum",
];
const GROUP_FIELDS: [&str; 12] = [
    "block_bitmap",
    "inode_bitmap",
    "inode_table",
    "free_blocks_count",
    "free_inodes_count",
    "used_dirs_count",
    "flags",
    "itable_unused",
    "exclude_bitmap",
    "block_bitmap_csum",
    "inode_bitmap_csum",
    "checksum",
];
const FEATURES: [&str; 27] = [
    "dir_index",
    "filetype",
    "extents",
    "64bit",
    "flex_bg",
    "ext_attr",
    "resize_inode",
    "large_file",
    "huge_file",
    "dir_nlink",
    "extra_isize",
    "sparse_super",
    "metadata_csum",
    "quota",
    "project",
    "casefold",
    "inline_data",
    "large_dir",
    "has_journal",
    "meta_bg",
    "sparse_super2",
    "orphan_file",
    "bigalloc",
    "uninit_bg",
    "mmp",
    "needs_recovery",
    "encrypt",
];
const VALUES: [u64; 35] = [
    0,
    1,
    2,
    3,
    5,
    7,
    8,
    11,
    12,
    13,
    20,
    64,
    100,
    255,
    1000,
    1023,
    1024,
    1025,
    2048,
    4095,
    4096,
    6144,
    65535,
    0x1000,
    0x800,
    0x8_0000,
    0x8_1000,
    0x1000_0000,
    0x4000_0000,
    0x8000_0000,
    0xffff_ffff,
    0o100_644,
    0o40_755,
    0o120_777,
    0o20_644,
];

fn value(rng: &mut Rng) -> u64 {
    match rng.below(10) {
        0 => rng.below(1 << 32),
        1 => rng.below(5000),
        2 => 1 << rng.below(32),
        _ => *rng.pick(&VALUES),
    }
}

/// One change: often one request, sometimes with what makes its checksum right.
fn requests(rng: &mut Rng) -> Vec<String> {
    let inode = *rng.pick(&INODES);
    vec![match rng.below(16) {
        0..6 => format!("set_inode_field {inode} {} {:#x}", rng.pick(&INODE_FIELDS), value(rng)),
        6..8 => format!("set_super_value {} {:#x}", rng.pick(&SUPER_FIELDS), value(rng)),
        8 => {
            let set = format!("set_block_group 0 {} {:#x}", rng.pick(&GROUP_FIELDS), value(rng));
            return vec![set, "set_block_group 0 checksum calc".into()];
        }
        9 => format!("freeb {} {}", rng.range(1..4095), rng.pick(&[1, 2, 9])),
        10 => format!("setb {} {}", rng.range(1..4095), rng.pick(&[1, 2, 9])),
        11 => format!("clri {inode}"),
        12 => format!("{} {}", rng.pick(&["freei", "seti"]), rng.pick(&[inode, "<50>", "<60>"])),
        13 => format!("unlink {}", rng.pick(&INODES[1..10])),
        14 => format!("ln {inode} {}", rng.pick(&["/new", "/d/new", "/d/e/new", "/big/new"])),
        _ => format!("feature {}{}", rng.pick(&["", "-"]), rng.pick(&FEATURES)),
    }]
}

/// A file of each kind, in a directory that is not the root.
fn tree(dir: &Path) {
    std::fs::create_dir_all(dir.join("d/e")).unwrap();
    for number in 0..30 {
        std::fs::write(dir.join(format!("d/a name with the number {number}")), "").unwrap();
    }
    std::fs::write(dir.join("big"), [1; 70_000]).unwrap();
    std::fs::write(dir.join("small"), "hi").unwrap();
    std::fs::hard_link(dir.join("small"), dir.join("hard")).unwrap();
    let sparse = std::fs::File::create(dir.join("sparse")).unwrap();
    for part in 0..8 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[2; 1024], part * 20_000).unwrap();
    }
    std::os::unix::fs::symlink("small", dir.join("link")).unwrap();
    std::os::unix::fs::symlink("s".repeat(200), dir.join("slow")).unwrap();
    oracle::run(command("mkfifo").arg(dir.join("pipe")));
}

fn base(dir: &Path, kind: &'static str, features: &str) -> Image {
    let mut args = vec!["-b", "1024", "-N", "64", "-I", "256"];
    if features != "none" {
        args.extend(["-O", features]);
    }
    let volume = VolumeBuilder::new(SIZE).kind(kind).args(args).from_dir(dir).build();
    oracle::e2fsck(volume.path(), &["-y", "-D"]);
    volume.assert_clean();
    Image::load(volume.path())
}

/// Without what debugfs changes by itself: the superblock's time of writing (in two parts) and its checksum.
fn timeless(image: &Image) -> Image {
    let mut image = image.clone();
    image.patch_superblock(|superblock| {
        superblock[0x30..0x34].fill(0);
        superblock[0x274] = 0;
        superblock[0x3fc..].fill(0);
    });
    image
}

/// What e2fsck says; `None` if it did not end or was killed by a signal.
fn judged(path: &Path) -> Option<Fsck> {
    let mut fsck = command("timeout");
    fsck.args([PATIENCE])
        .arg(tool("e2fsck").unwrap())
        .args(["-f", "-n", "-E", "no_optimize_extents"])
        .arg(path);
    let output = fsck.output().unwrap();
    let status = output.status.code().filter(|status| *status < 124)?;
    Some(Fsck { status, output: text(&output) })
}

/// What became of the comparisons.
#[derive(Debug, Default)]
struct Tally {
    compared: u32,
    changed: u32,
    clean: u32,
    damaged: u32,
    /// The volume is refused here for another reason than damage.
    refused: u32,
    /// e2fsck asks something, but takes "no" for an answer and ends with 0.
    lenient: u32,
    undecided: u32,
    excepted: u32,
}

/// One volume and what both said.
struct Case<'c> {
    requests: &'c str,
    ours: &'c str,
    theirs: &'c str,
}

impl Case<'_> {
    fn asks(&self, fields: &[&str]) -> bool {
        fields.iter().any(|field| self.requests.contains(field))
    }

    fn hears(&self, texts: &[&str]) -> bool {
        texts.iter().any(|text| self.theirs.contains(text))
    }
}

/// Whether a reason is that of a case.
type Tells = fn(&Case<'_>) -> bool;

/// Why the two disagree where they may: each reason with what tells it.
const EXCEPTIONS: [(&str, Tells); 8] = [
    ("e2fsck has a limit for the revision", |case| case.theirs.contains("revision is apparently too high")),
    ("e2fsck has a limit for the size of descriptors without 64bit", |case| {
        let fields = ["desc_size"];
        let refused = ["superblock is corrupt", "Corruption found in superblock"];
        case.asks(&fields) && case.hears(&refused)
    }),
    ("the blocks of a group need not be a multiple of 8 here, nor for the kernel", |case| {
        case.asks(&["blocks_per_group"]) && case.hears(&["superblock is corrupt"])
    }),
    ("numbers of inodes do not count here without the features that use them", |case| {
        case.asks(&["journal_inum", "quota_inum", "orphan_file_inum"])
            && case.hears(&["invalid journal", "not in use, but contains data", "has invalid inode #"])
    }),
    ("nobody can read such an inode but e2fsck, which does if it is the file system's own", |case| {
        let own = case.ours.lines().filter(|line| line.starts_with("inode.field: ")).all(is_own);
        let field = ["`extra_isize` is invalid", "`xattr_block` is invalid"];
        own && field.iter().any(|field| case.ours.contains(field))
    }),
    ("e2fsck looks at where inodes for values are named since 1.47.1, the kernel always", |case| {
        !case.ours.is_empty() && case.ours.lines().all(is_newer)
    }),
    ("nobody could write to such a journal", |case| {
        let mut lines = case.ours.lines();
        !case.ours.is_empty()
            && lines.all(|line| line.starts_with("journal.superblock: inode 8: it cannot be used"))
    }),
    ("usage of quotas is not examined", |case| {
        let mut asked = case.theirs.lines().filter(|line| line.contains("? no")).peekable();
        asked.peek().is_some() && asked.all(|line| line.contains("Update quota info"))
    }),
];

/// Whether a finding is about one of the first inodes, up to that of orphans.
fn is_own(finding: &str) -> bool {
    let number = finding.split_once(": inode ").and_then(|(_, rest)| rest.split_once(','));
    number.and_then(|(number, _)| number.parse().ok()).is_some_and(|number: u32| number < 13)
}

/// Compares the two about one volume. Returns what they disagree in.
fn compare(tally: &mut Tally, what: &str, requests: &str, image: &Image, judged: &Fsck) -> Option<String> {
    let mut shown = String::new();
    let (errors, silent) =
        match check_device(image.device(), VolumeOptions::read_only(), &CheckOptions::new(), &mut |_| {}) {
            Ok(report) => {
                shown.extend(report.findings.iter().map(|finding| format!("{finding}\n")));
                let error = |finding: &&_| {
                    let finding: &uext4_check::Finding = finding;
                    // e2fsck does not look for what fs-verity stores.
                    finding.kind.severity == Severity::Error && finding.kind.structure() != "verity"
                };
                (report.findings.iter().filter(error).count(), report.findings.is_empty())
            }
            Err(error) => {
                tally.refused += 1;
                shown = format!("refused: {error}\n");
                (0, false)
            }
        };
    let wrong = if judged.is_clean() {
        tally.clean += 1;
        errors > 0
    } else if judged.status != 0 {
        tally.damaged += 1;
        silent
    } else {
        tally.lenient += 1;
        false
    };
    if !wrong {
        return None;
    }
    let case = Case { requests, ours: &shown, theirs: &judged.output };
    if let Some((why, _)) = EXCEPTIONS.iter().find(|(_, tells)| tells(&case)) {
        println!("{what}: {why}");
        tally.excepted += 1;
        return None;
    }
    let theirs: Vec<_> = judged.findings().into_iter().take(12).collect();
    Some(format!("{what}\n{requests}ours:\n{shown}e2fsck, {}: {}", judged.status, theirs.join(" / ")))
}

#[test]
fn randomly_changed_volumes_are_judged_as_e2fsck_judges_them() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"), Need::Tool("timeout"));
    let seed = std::env::var("UEXT4_CHECK_SEED").map_or(SEED, |seed| seed.parse().unwrap());
    let rounds = std::env::var("UEXT4_CHECK_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let scratch = Scratch::new(16 << 20);
    let dir = scratch.file("tree");
    tree(&dir);
    let (path, script) = (scratch.file("volume.img"), scratch.file("requests"));
    let (mut tally, mut disagreements) = (Tally::default(), Vec::new());
    for (number, (what, kind, features)) in BASES.into_iter().enumerate() {
        let image = base(&dir, kind, features);
        for round in 0..rounds {
            let mut rng = Rng::new(seed).fork(number as u64).fork(round);
            let changes = *rng.pick(&[1, 1, 1, 2]);
            let lines: Vec<_> = (0..changes).flat_map(|_| requests(&mut rng)).collect();
            let requests = format!("{}\n", lines.join("\n"));
            image.save(&path);
            std::fs::write(&script, &requests).unwrap();
            // Requests that make no sense on this volume are refused, which is as good as not made.
            command("debugfs").arg("-w").arg("-f").arg(&script).arg(&path).output().unwrap();
            // Told of blocks far away, debugfs writes there.
            std::fs::File::options().write(true).open(&path).unwrap().set_len(SIZE).unwrap();
            let changed = Image::load(&path);
            tally.changed += u32::from(timeless(&changed) != timeless(&image));
            let Some(judged) = judged(&path) else {
                tally.undecided += 1;
                continue;
            };
            tally.compared += 1;
            let what = format!("seed {seed}, {what}, round {round}");
            disagreements.extend(compare(&mut tally, &what, &requests, &changed, &judged));
        }
    }
    println!("{tally:?}");
    assert!(disagreements.is_empty(), "{} of {tally:?}:\n{}", disagreements.len(), disagreements.join("\n"));
    let asked = rounds * BASES.len() as u64;
    assert!(u64::from(tally.compared) * 10 > asked * 9, "{tally:?}");
    // Reasons that excuse more than a few volumes excuse too much.
    assert!(tally.excepted * 20 < tally.compared && tally.refused * 20 < tally.compared, "{tally:?}");
    assert!(u64::from(tally.changed) * 10 > asked * 6 && tally.clean > 0 && tally.damaged > 0, "{tally:?}");
}
