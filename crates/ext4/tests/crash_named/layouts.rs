//! The volumes of the scenarios.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use crate::common::crash::garbage_volume;
use crate::common::log::{Log, LogKind};
use crate::common::{Image, patterned};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};
use uext4_ondisk::jbd2::LogChecksums;
use uext4_testkit::Scratch;

/// The properties of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    pub mebibytes: u64,
    args: &'static [&'static str],
    /// Size of the log; `None`: mke2fs's choice.
    checksums: Option<u8>,
    /// Whether data is journaled by default.
    journaled: bool,
}

pub const SMALL: Layout = layout(8, &["-b", "1024", "-J", "size=1"]);
pub const NO_SUMS: Layout = layout(8, &["-b", "1024", "-J", "size=1", "-O", "^metadata_csum,^64bit"]);
pub const SUMS_1: Layout = Layout { checksums: Some(1), ..NO_SUMS };
pub const SUMS_2: Layout = Layout { checksums: Some(2), ..NO_SUMS };
pub const QUOTA: Layout = layout(8, &["-b", "1024", "-J", "size=1", "-O", "quota"]);
pub const JOURNALED_QUOTA: Layout = Layout { journaled: true, ..QUOTA };
pub const JOURNALED: Layout = Layout { journaled: true, ..SMALL };
pub const JOURNALED_LARGE: Layout = Layout { journaled: true, ..LARGE };
pub const JOURNALED_CLUSTERS: Layout = Layout { journaled: true, ..CLUSTERS };
pub const CLUSTERS: Layout = layout(12, &["-b", "1024", "-J", "size=1", "-O", "bigalloc", "-C", "8192"]);
pub const MIDDLE: Layout = layout(12, &["-b", "2048", "-J", "size=2", "-O", "^orphan_file"]);
pub const LARGE: Layout = layout(16, &["-b", "4096", "-J", "size=4"]);
pub const INLINE: Layout = layout(8, &["-b", "1024", "-J", "size=1", "-O", "inline_data"]);
pub const INLINE_1024: Layout =
    layout(16, &["-b", "4096", "-J", "size=4", "-O", "inline_data", "-I", "1024"]);
pub const POINTERS: Layout = layout(8, &["-b", "1024", "-J", "size=1", "-O", "^extent,^64bit"]);
pub const FAST: Layout = layout(8, &["-b", "1024", "-J", "size=2", "-O", "fast_commit"]);
/// With large inodes, so that those of files are not in the block of the journal's, which no fast commit changes.
pub const FAST_LARGE: Layout = layout(12, &["-b", "4096", "-J", "size=4", "-I", "1024", "-O", "fast_commit"]);
pub const HUGE: Layout = layout(136, &["-b", "65536", "-J", "size=64"]);

/// Sizes of the files on the volume with block pointers.
pub const OLD_FILES: [usize; 8] = [700, 5000, 12_288, 30_000, 200_000, 290_000, 400_000, 600_000];

/// Layouts that a seed chooses from.
pub const ANY: [Layout; 7] = [SMALL, NO_SUMS, SUMS_1, SUMS_2, CLUSTERS, MIDDLE, LARGE];

const fn layout(mebibytes: u64, args: &'static [&'static str]) -> Layout {
    Layout { mebibytes, args, checksums: None, journaled: false }
}

static IMAGES: LazyLock<Mutex<HashMap<Layout, Image>>> = LazyLock::new(Mutex::default);

impl Layout {
    /// An empty volume with a directory `/d`.
    pub fn image(self) -> Image {
        IMAGES.lock().unwrap().entry(self).or_insert_with(|| self.make()).clone()
    }

    fn make(self) -> Image {
        let tree = Scratch::new(1 << 20);
        std::fs::create_dir(tree.file("d")).unwrap();
        if self == POINTERS {
            // Only mke2fs gives the volume these blocks.
            for (number, size) in OLD_FILES.into_iter().enumerate() {
                std::fs::write(tree.file(format!("d/file-{number}")), &*patterned(number as u64, 0, size))
                    .unwrap();
            }
        }
        let mut image = garbage_volume(self.mebibytes << 20, tree.path(), self.args);
        if let Some(version) = self.checksums {
            let kind = if version == 1 { LogChecksums::Transaction } else { LogChecksums::V2 };
            drop(Log::begin(&mut image, LogKind::new(kind)));
        }
        if self.journaled {
            // s_default_mount_opts
            image.set_bits(0x100, 0x20);
        }
        image
    }

    /// Whether short files live in their inodes.
    pub fn has_inline_data(self) -> bool {
        self.args.contains(&"inline_data")
    }

    /// Bytes of a block, or of a cluster.
    pub fn unit(self) -> u64 {
        let after = |option: &str| {
            let at = self.args.iter().position(|arg| *arg == option)?;
            self.args[at + 1].parse().ok()
        };
        after("-C").or(after("-b")).unwrap()
    }
}
