//! Attributes of an inode, as `os.stat_result` names them.

use pyo3::prelude::*;
use uext4::{FileKind, Metadata, Timestamp, Volume};

/// Attributes of an inode: the fields of `os.stat_result`, and those that only ext4 has.
#[pyclass(frozen, module = "uext4")]
#[derive(Clone)]
pub(crate) struct Stat {
    metadata: Metadata,
    /// The same for all inodes of a volume.
    device: u64,
}

/// What stands for the volume in `st_dev`: the first half of its UUID, without the sign.
pub(crate) fn device_of(volume: &Volume) -> u64 {
    let half = volume.superblock().uuid.first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(half) >> 1
}

impl Stat {
    pub(crate) fn new(metadata: Metadata, volume: &Volume) -> Stat {
        Stat::on(metadata, device_of(volume))
    }

    pub(crate) fn on(metadata: Metadata, device: u64) -> Stat {
        Stat { metadata, device }
    }
}

/// The bits of a mode that say the type.
pub(crate) fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => 0o100_000,
        FileKind::Directory => 0o040_000,
        FileKind::CharDevice => 0o020_000,
        FileKind::BlockDevice => 0o060_000,
        FileKind::Fifo => 0o010_000,
        FileKind::Socket => 0o140_000,
        FileKind::Symlink => 0o120_000,
    }
}

fn nanoseconds(time: Timestamp) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
}

fn seconds(time: Timestamp) -> f64 {
    time.seconds as f64 + f64::from(time.nanoseconds) * 1e-9
}

/// As `os.makedev` of glibc.
fn device_number((major, minor): (u32, u32)) -> u64 {
    let (major, minor) = (u64::from(major), u64::from(minor));
    (major & 0xffff_f000) << 32 | (major & 0xfff) << 8 | (minor & 0xffff_ff00) << 12 | minor & 0xff
}

#[pymethods]
impl Stat {
    #[getter]
    fn st_mode(&self) -> u32 {
        type_bits(self.metadata.kind) | self.metadata.mode
    }

    #[getter]
    fn st_ino(&self) -> u32 {
        self.metadata.ino.get()
    }

    #[getter]
    fn st_dev(&self) -> u64 {
        self.device
    }

    #[getter]
    fn st_nlink(&self) -> u32 {
        self.metadata.links
    }

    #[getter]
    fn st_uid(&self) -> u32 {
        self.metadata.uid
    }

    #[getter]
    fn st_gid(&self) -> u32 {
        self.metadata.gid
    }

    #[getter]
    fn st_size(&self) -> u64 {
        self.metadata.size
    }

    #[getter]
    fn st_blocks(&self) -> u64 {
        self.metadata.blocks
    }

    #[getter]
    fn st_blksize(&self) -> u32 {
        self.metadata.block_size
    }

    #[getter]
    fn st_rdev(&self) -> u64 {
        device_number(self.metadata.rdev)
    }

    #[getter]
    fn st_atime(&self) -> f64 {
        seconds(self.metadata.accessed)
    }

    #[getter]
    fn st_mtime(&self) -> f64 {
        seconds(self.metadata.modified)
    }

    #[getter]
    fn st_ctime(&self) -> f64 {
        seconds(self.metadata.changed)
    }

    #[getter]
    fn st_birthtime(&self) -> Option<f64> {
        self.metadata.created.map(seconds)
    }

    #[getter]
    fn st_atime_ns(&self) -> i128 {
        nanoseconds(self.metadata.accessed)
    }

    #[getter]
    fn st_mtime_ns(&self) -> i128 {
        nanoseconds(self.metadata.modified)
    }

    #[getter]
    fn st_ctime_ns(&self) -> i128 {
        nanoseconds(self.metadata.changed)
    }

    #[getter]
    fn st_birthtime_ns(&self) -> Option<i128> {
        self.metadata.created.map(nanoseconds)
    }

    /// The flags of the inode, as `chattr` sets them.
    #[getter]
    fn st_flags(&self) -> u32 {
        self.metadata.flags.bits()
    }

    #[getter]
    fn st_gen(&self) -> u32 {
        self.metadata.generation
    }

    #[getter]
    fn st_project(&self) -> u32 {
        self.metadata.project
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Stat>().is_ok_and(|other| {
            let other = other.get();
            self.metadata == other.metadata && self.device == other.device
        })
    }

    fn __repr__(&self) -> String {
        let Metadata { ino, uid, gid, size, links, .. } = &self.metadata;
        let mode = self.st_mode();
        format!("<uext4.Stat ino={ino} mode={mode:#o} links={links} uid={uid} gid={gid} size={size}>")
    }
}
