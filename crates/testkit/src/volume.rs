//! Volumes made by mke2fs, filled by mke2fs, debugfs or the kernel.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::guard::{KernelMount, LoopOptions};
use crate::manifest::{Manifest, manifest};
use crate::oracle;
use crate::scratch::Scratch;

/// How to make a volume. Without further calls: `mke2fs -t ext4` defaults of this machine, but with a fixed
/// UUID and hash seed so that two builds differ only in their time stamps.
#[derive(Debug, Clone)]
pub struct VolumeBuilder {
    size: u64,
    kind: &'static str,
    args: Vec<OsString>,
    extended: Vec<String>,
}

/// An image file in a scratch directory of its own.
#[derive(Debug)]
pub struct Volume {
    scratch: Scratch,
    path: PathBuf,
}

impl VolumeBuilder {
    /// A volume of `size` bytes.
    pub fn new(size: u64) -> VolumeBuilder {
        VolumeBuilder {
            size,
            kind: "ext4",
            args: ["-U", "6e7f3c51-2b0a-4d1e-9c57-0f1a2b3c4d5e"].map(OsString::from).to_vec(),
            extended: vec!["hash_seed=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0".into()],
        }
    }

    /// What mke2fs's `-t` names: `ext2`, `ext3`, `ext4` (unless set).
    pub fn kind(mut self, kind: &'static str) -> VolumeBuilder {
        self.kind = kind;
        self
    }

    /// Further arguments for mke2fs, such as `["-b", "1024", "-O", "^has_journal"]`.
    ///
    /// # Panics
    /// On `-E` and `-U`: mke2fs keeps only the last of each, see [`VolumeBuilder::extended`].
    #[track_caller]
    pub fn args<S: Into<OsString>>(mut self, args: impl IntoIterator<Item = S>) -> VolumeBuilder {
        let given = self.args.len();
        self.args.extend(args.into_iter().map(Into::into));
        assert!(!self.args[given..].iter().any(|arg| arg == "-E" || arg == "-U"), "-E and -U are set here");
        self
    }

    /// One more extended option (`-E`), such as `stride=4`.
    pub fn extended(mut self, option: impl Into<String>) -> VolumeBuilder {
        self.extended.push(option.into());
        self
    }

    /// Takes the tree under `dir` into the volume (`mke2fs -d`): no root needed.
    pub fn from_dir(self, dir: &Path) -> VolumeBuilder {
        self.args([OsString::from("-d"), dir.into()])
    }

    /// Makes it in a scratch directory of its own.
    #[track_caller]
    pub fn build(&self) -> Volume {
        let scratch = Scratch::new(self.size);
        let path = scratch.sparse_file("volume.img", self.size);
        self.format(&path);
        Volume { scratch, path }
    }

    /// Formats an existing file or device over its whole length.
    #[track_caller]
    pub fn format(&self, path: &Path) {
        let extended = ["-E", &self.extended.join(",")].map(OsString::from);
        oracle::mke2fs_kind(path, self.kind, &[&self.args, &extended[..]].concat());
    }
}

impl Volume {
    /// The image file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The scratch directory around it, for further files of the test.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Mounts it with the kernel (root), hands the mount point to `work`, unmounts, and asserts that e2fsck
    /// finds nothing.
    #[track_caller]
    pub fn with_kernel<T>(&self, work: impl FnOnce(&Path) -> T) -> T {
        with_kernel(&self.path, "", work)
    }

    /// The tree as the kernel sees it, mounted read-only (root).
    #[track_caller]
    pub fn kernel_manifest(&self) -> Manifest {
        kernel_manifest(&self.path)
    }

    /// Asserts that `e2fsck -fn` finds nothing.
    #[track_caller]
    pub fn assert_clean(&self) {
        oracle::e2fsck_clean(&self.path);
    }
}

/// Mounts the image or device at `path` with the kernel and `mount_options`, hands the mount point to `work`,
/// unmounts, and asserts that e2fsck finds nothing.
#[track_caller]
pub fn with_kernel<T>(path: &Path, mount_options: &str, work: impl FnOnce(&Path) -> T) -> T {
    let mounted = KernelMount::image(path, LoopOptions::default(), mount_options);
    let result = work(mounted.path());
    mounted.unmount();
    oracle::e2fsck_clean(path);
    result
}

/// The tree on the image at `path` as the kernel sees it, mounted read-only over a read-only loop device: the
/// image does not change, and one whose journal needs recovery is refused by the kernel (replay it first).
#[track_caller]
pub fn kernel_manifest(path: &Path) -> Manifest {
    let options = LoopOptions { read_only: true, ..LoopOptions::default() };
    let mounted = KernelMount::image(path, options, "ro");
    let tree = manifest(mounted.path());
    mounted.unmount();
    tree
}
