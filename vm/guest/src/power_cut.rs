//! The load of a run that ends with a power cut: names made, filled, synced and removed on several volumes, and said
//! on the console once they are durable. It never ends by itself.
//!
//! `crates/ext4/tests/power_cut.rs` knows the same names and contents, and looks for them afterwards.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::volumes::run;

/// Mount options of the namespaces of the one NVMe controller, as `scripts/vm-test.sh` formats them.
const OPTIONS: [&str; 4] = ["defaults", "defaults", "journal_async_commit,data=writeback", "commit=300"];
/// The volume whose names fold, and go to the journal as fast commits.
const FOLDED: usize = 3;
/// How many steps a file lives.
const LIFE: u64 = 40;

/// Runs until the power is cut.
pub fn load() -> ! {
    let roots: Vec<PathBuf> =
        (1..).zip(OPTIONS).map(|(namespace, options)| mount(namespace, options)).collect();
    for n in 0.. {
        for (volume, root) in roots.iter().enumerate() {
            step(volume, root, n).unwrap_or_else(|error| panic!("step {n} on volume {volume}: {error}"));
        }
    }
    unreachable!("more steps than numbers");
}

fn mount(namespace: u32, options: &str) -> PathBuf {
    let (device, dir) = (format!("/dev/nvme0n{namespace}"), format!("/mnt/{namespace}"));
    fs::create_dir_all(&dir).expect("a mount point");
    run("mount", &["-t", "ext4", "-o", options, &device, &dir]);
    if namespace as usize != FOLDED + 1 {
        return dir.into();
    }
    let folded = format!("{dir}/folded");
    fs::create_dir(&folded).expect("a directory");
    run("/sbin/chattr", &["+F", &folded]);
    folded.into()
}

fn name(root: &Path, n: u64) -> PathBuf {
    root.join(format!("d{}", n % 8)).join(format!("f{n}"))
}

/// What file `n` of a volume holds.
fn contents(volume: usize, n: u64) -> Vec<u8> {
    let length = 100 + (n * 7919 + volume as u64 * 131) % 9000;
    (0..length).map(|index| (index * 31 + n * 17 + volume as u64) as u8).collect()
}

fn step(volume: usize, root: &Path, n: u64) -> std::io::Result<()> {
    // Work that nobody waits for, so that transactions hold more than what is synced: directories come and go, and
    // their blocks are used again.
    let scratch = root.join(format!("x{n}"));
    fs::create_dir(&scratch)?;
    for inner in 0..4 {
        fs::write(scratch.join(format!("inner-{inner}")), vec![n as u8; 700 * inner])?;
    }
    if let Some(old) = n.checked_sub(3) {
        fs::remove_dir_all(root.join(format!("x{old}")))?;
    }
    if let Some(old) = n.checked_sub(LIFE) {
        println!("REMOVING {volume} {old}");
        let path = name(root, old);
        // Where names fold, by another spelling.
        let other = path.with_file_name(format!("F{old}"));
        fs::remove_file(if volume == FOLDED { other } else { path })?;
    }
    let path = name(root, n);
    fs::create_dir_all(path.parent().unwrap_or(root))?;
    let mut file = File::create(&path)?;
    file.write_all(&contents(volume, n))?;
    file.sync_all()?;
    println!("SYNCED {volume} {n}");
    Ok(())
}
