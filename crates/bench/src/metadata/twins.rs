//! Volumes that are formatted alike, one for each arm.

use super::names::Tree;
use crate::error::{Doing, Result};
use crate::volume::{Scratch, tool};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The same name and the same hash of names for all: their directories have the same shape.
const UUID: &str = "5f2c3a60-6f0e-4b1a-9a57-2c1d7e3b9a10";

/// The device as JSON and tables name it.
pub const LABEL: &str = "tmpfs file";

/// The volumes.
#[derive(Debug)]
pub struct Twins {
    /// Images in tmpfs.
    pub images: Vec<PathBuf>,
    _scratch: Scratch,
}

impl Twins {
    /// `count` empty volumes with room for the files of `tree`, each with `file_bytes` bytes.
    pub fn new(count: usize, tree: &Tree, file_bytes: u32) -> Result<Twins> {
        let inodes = (tree.files + tree.directories + 1000) * 5 / 4;
        // A directory has two blocks at least, and a name takes less than 64 bytes of a half full one.
        let contents = tree.files * (u64::from(file_bytes) + 64) + tree.directories * 8192 + inodes * 256;
        let bytes = (contents * 5 / 4 + (128 << 20)).next_multiple_of(1 << 20);
        let scratch = Scratch::new(count as u64 * bytes)?;
        let mut images = Vec::new();
        for number in 0..count {
            let image = scratch.path().join(format!("twin.{number}"));
            let file = fs::File::create_new(&image).doing(|| format!("create {}", image.display()))?;
            file.set_len(bytes).doing(|| format!("extend {}", image.display()))?;
            let mut command = Command::new("mke2fs");
            command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-U", UUID, "-N"]).arg(inodes.to_string());
            let extended = format!("lazy_itable_init=0,lazy_journal_init=0,hash_seed={UUID}");
            tool(command.args(["-E", &extended]).arg(&image))?;
            images.push(image);
        }
        Ok(Twins { images, _scratch: scratch })
    }

    /// The only one of them, or the first.
    pub fn path(&self) -> &Path {
        self.images.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// `e2fsck -fn` of each. None may be in use.
    pub fn check(&self) -> Result<()> {
        self.images.iter().try_for_each(|image| {
            let checked = tool(Command::new("e2fsck").arg("-fn").arg(image));
            checked.map(drop).map_err(|error| {
                crate::error::BenchError::failed(format!(
                    "the volume is damaged after the measurement, results are void: {error}"
                ))
            })
        })
    }
}
