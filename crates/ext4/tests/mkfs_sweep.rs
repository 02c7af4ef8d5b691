//! Small volumes by the thousand: sizes, inodes and blocks to their limits, held against mke2fs and judged by e2fsck
//! and dumpe2fs. `UEXT4_E2FSPROGS=DIRECTORY` (`scripts/e2fsprogs.sh` makes one) adds a second version of these judges.

use crate::common;

use common::making::{config, open, options};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use uext4::mkfs::{Defaults, Error, format};
use uext4_testkit::{Need, Scratch, needs, oracle};

/// Threads that make volumes and judge them.
const THREADS: usize = 4;

/// KiB of a volume, and options as words.
type Case = (u64, String);

/// One version of e2fsprogs: a command for each of its programs.
struct Version {
    /// Where its programs are; `None`: those that are installed.
    home: Option<PathBuf>,
}

impl Version {
    fn all() -> Vec<Version> {
        let second = std::env::var_os("UEXT4_E2FSPROGS").map(PathBuf::from);
        let found: Vec<Version> = [None, second.clone()]
            .into_iter()
            .take(1 + usize::from(second.is_some()))
            .map(|home| Version { home })
            .collect();
        for version in &found {
            let output = version.command("mke2fs").arg("-V").output().unwrap();
            println!("judged by {}", oracle::text(&output).lines().next().unwrap_or_default());
        }
        found
    }

    fn command(&self, name: &str) -> Command {
        let Some(home) = &self.home else { return oracle::command(name) };
        let mut command = Command::new(home.join(name));
        command.env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    /// Inodes of the volume that mke2fs makes, or why it makes none.
    fn inodes(&self, path: &Path, config: &Path, words: &str) -> Result<u32, String> {
        let mut command = self.command("mke2fs");
        command.env("MKE2FS_CONFIG", config).args(["-q", "-F", "-t", "ext4", "-E", "nodiscard"]);
        let output = command.args(words.split_whitespace()).arg(path).output().unwrap();
        if !output.status.success() {
            return Err(oracle::text(&output));
        }
        Ok(self.counted(path))
    }

    /// The inodes that dumpe2fs counts.
    fn counted(&self, path: &Path) -> u32 {
        let output = self.command("dumpe2fs").arg("-h").arg(path).output().unwrap();
        let text = oracle::text(&output);
        let count = text.lines().find_map(|line| line.strip_prefix("Inode count:")?.trim().parse().ok());
        count.filter(|_| output.status.success()).unwrap_or_else(|| panic!("{text}"))
    }

    /// What e2fsck says against the volume.
    fn finds(&self, path: &Path) -> Option<String> {
        let output = self.command("e2fsck").args(["-f", "-n"]).arg(path).output().unwrap();
        let told = oracle::Fsck { status: output.status.code().unwrap_or(-1), output: oracle::text(&output) };
        (!told.is_clean()).then_some(told.output)
    }
}

/// Whether there is a volume, and why the case is not as it must be.
fn judge(
    versions: &[Version],
    scratch: &Scratch,
    config: &Path,
    case: &Case,
    number: usize,
) -> (bool, Option<String>) {
    let (kib, words) = case;
    let (ours, theirs) = (scratch.file(format!("ours-{number}")), scratch.file(format!("theirs-{number}")));
    for path in [&ours, &theirs] {
        File::create(path).unwrap().set_len(kib << 10).unwrap();
    }
    let made = format(&*open(&ours), &options(words, "", Defaults::Upstream));
    let wrong = match &made {
        Err(Error::Failed(error) | Error::Device(error)) => Some(format!("device: {error}")),
        Err(error) => versions.iter().find_map(|version| {
            let inodes = version.inodes(&theirs, config, words).ok()?;
            Some(format!("refused ({error}), and mke2fs makes {inodes} inodes"))
        }),
        Ok(made) => {
            let inodes = made.superblock.geometry.inodes_count();
            versions.iter().find_map(|version| {
                if let Some(found) = version.finds(&ours) {
                    return Some(found);
                }
                let counted = version.counted(&ours);
                if counted != inodes {
                    return Some(format!("{inodes} inodes, and dumpe2fs counts {counted}"));
                }
                match version.inodes(&theirs, config, words) {
                    Ok(theirs) if theirs == inodes => None,
                    Ok(theirs) => Some(format!("{inodes} inodes, and mke2fs makes {theirs}")),
                    // mke2fs before 1.47.1 has 8 inodes here, and fails when it needs the next.
                    Err(_) if version.home.is_none() && inodes == 16 => None,
                    Err(why) => Some(format!("{inodes} inodes, and mke2fs refuses: {why}")),
                }
            })
        }
    };
    std::fs::remove_file(&ours).unwrap();
    std::fs::remove_file(&theirs).unwrap();
    (made.is_ok(), wrong.map(|wrong| format!("{kib} KiB {words}: {wrong}")))
}

/// Judges every case, and shows all that are wrong.
fn sweep(cases: &[Case]) {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("dumpe2fs"));
    let scratch = Scratch::new(1 << 30);
    let versions = Version::all();
    let config_file = scratch.file("conf");
    std::fs::write(&config_file, config(Defaults::Upstream)).unwrap();
    let (next, made, wrong) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(number) else { break };
                    let (is_made, found) = judge(&versions, &scratch, &config_file, case, number);
                    made.fetch_add(usize::from(is_made), Ordering::Relaxed);
                    wrong.lock().unwrap().extend(found);
                }
            });
        }
    });
    let (made, wrong) = (made.into_inner(), wrong.into_inner().unwrap());
    println!("{made} of {} made, the rest refused", cases.len());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert!(made > cases.len() / 2 && made < cases.len(), "{made} of {}", cases.len());
}

fn product(sizes: &[u64], words: &[String]) -> Vec<Case> {
    sizes.iter().flat_map(|&kib| words.iter().map(move |words| (kib, words.clone()))).collect()
}

/// KiB: below the smallest volume there is, around it, and around one and two groups of 1 KiB blocks.
const SIZES: [u64; 30] = [
    16, 32, 48, 56, 60, 61, 64, 68, 72, 80, 88, 96, 100, 104, 128, 160, 200, 256, 300, 512, 700, 1024, 2048,
    3000, 4096, 6000, 8192, 8300, 16_400, 17_000,
];

#[test]
fn few_inodes_make_a_sound_volume_or_none() {
    let numbers = (1..=13).chain([15, 16, 17, 20, 24, 25, 32, 40, 48, 64, 100, 128, 200, 500, 1000, 3000]);
    let words: Vec<String> = numbers
        .flat_map(|number| ["-b 1024", "-b 2048", "-b 4096"].map(|block| format!("{block} -N {number}")))
        .collect();
    sweep(&product(&SIZES, &words));
}

#[test]
fn every_ratio_makes_a_sound_volume_or_none() {
    let ratios = ["1024", "2048", "4096", "8192", "16384", "65536", "1048576", "67108864"];
    let words: Vec<String> = ratios
        .into_iter()
        .flat_map(|ratio| ["", "-b 2048", "-b 4096"].map(|block| format!("{block} -i {ratio}")))
        .collect();
    sweep(&product(&SIZES, &words));
}

#[test]
fn features_of_small_volumes_are_sound() {
    let features = [
        "",
        "-O ^resize_inode",
        "-O ^has_journal",
        "-O ^flex_bg",
        "-O ^flex_bg,^resize_inode",
        "-O ^64bit",
        "-O ^extent,^64bit",
        "-O ^metadata_csum",
        "-O ^metadata_csum,uninit_bg",
        "-O meta_bg,^resize_inode",
        "-O sparse_super2",
        "-O inline_data",
        "-O bigalloc",
        "-I 128",
        "-I 512",
        "-I 1024",
        "-m 0",
        "-m 50",
        "-O none",
        "-O mmp",
        "-b 8192",
        "-b 65536",
    ];
    let words: Vec<String> = features
        .into_iter()
        .flat_map(|words| ["", "-N 8", "-N 30"].map(|inodes| format!("{words} {inodes}")))
        .collect();
    sweep(&product(&SIZES, &words));
}
