//! IOCTL: flags and projects of files, generation numbers; the volume's label, and FITRIM.

use super::{Answer, Served};
use crate::reply::{Errno, Outcome};
use crate::request::{Request, cut};
use crate::wire::{IoctlIn, IoctlOut};
use uext4::{InodeFlags, Node, SetAttributes};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_GETVERSION: u32 = 0x8008_7601;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
const FS_IOC_GETFSLABEL: u32 = 0x8100_9431;
const FITRIM: u32 = 0xc018_5879;
/// Bytes of the answer to `FS_IOC_GETFSLABEL`.
const LABEL_MAX: usize = 256;

/// `struct fstrim_range` of Linux.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct TrimRange {
    start: u64,
    length: u64,
    minimum: u64,
}

/// `struct fsxattr` of Linux.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct FsXattr {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// Flags of inodes and of `struct fsxattr`.
const FLAGS: [(InodeFlags, u32); 7] = [
    (InodeFlags::IMMUTABLE, 0x8),
    (InodeFlags::APPEND, 0x10),
    (InodeFlags::SYNC, 0x20),
    (InodeFlags::NOATIME, 0x40),
    (InodeFlags::NODUMP, 0x80),
    (InodeFlags::PROJECT_INHERIT, 0x200),
    (InodeFlags::DAX, 0x8000),
];

/// Flags that users see (`EXT4_FL_USER_VISIBLE`): others are the file system's own.
const VISIBLE: u32 = 0x725b_dfff;

fn done(value: &[u8]) -> Answer {
    Answer::bytes([IoctlOut::default().as_bytes(), value].concat())
}

fn fsxattr(node: &Node) -> FsXattr {
    let found = node.attributes();
    let flags =
        FLAGS.iter().filter(|(flag, _)| found.flags.contains(*flag)).fold(0, |all, (_, bit)| all | bit);
    FsXattr { flags, project: found.project, ..FsXattr::default() }
}

impl Served {
    /// IOCTL.
    pub(super) fn ioctl(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, input) = request.arguments::<IoctlIn>()?;
        let input = input.get(..asked.in_size as usize).ok_or(Errno::INVALID)?;
        let node = self.nodes.get(request.header.node)?;
        self.behind.wait_for(request.header.node);
        match asked.command {
            FS_IOC_GETFLAGS => Ok(done((node.attributes().flags.bits() & VISIBLE).as_bytes())),
            FS_IOC_GETVERSION => Ok(done(node.attributes().generation.as_bytes())),
            FS_IOC_FSGETXATTR => Ok(done(fsxattr(&node).as_bytes())),
            FS_IOC_SETFLAGS => {
                let (flags, _): (u32, _) = cut(input)?;
                let before = node.attributes().flags;
                let own = before.bits() & !VISIBLE;
                let wanted = InodeFlags::from_bits_retain(flags | own);
                // As in Linux the other flags change also if the map is not converted.
                let converts = (wanted ^ before) & InodeFlags::EXTENTS;
                node.set_attributes(&SetAttributes::new().flags(wanted ^ converts))?;
                self.attributes_changed(request.header.node);
                if converts.is_empty() { Ok(done(&[])) } else { Err(Errno::NOT_SUPPORTED) }
            }
            FS_IOC_FSSETXATTR => {
                let (asked, _): (FsXattr, _) = cut(input)?;
                set_fsxattr(&node, &asked)?;
                self.attributes_changed(request.header.node);
                Ok(done(&[]))
            }
            FS_IOC_GETFSLABEL => {
                let mut label = self.volume.superblock().label().to_vec();
                label.resize(LABEL_MAX, 0);
                Ok(done(&label))
            }
            FITRIM => self.trim(request, input),
            _ => Err(Errno(libc::ENOTTY)),
        }
    }

    /// As of ext4: for root only, who is told how much it was.
    fn trim(&self, request: &Request<'_>, input: &[u8]) -> Outcome<Answer> {
        if !request.is_root() {
            return Err(Errno(libc::EPERM));
        }
        let (asked, _): (TrimRange, _) = cut(input)?;
        let end = asked.start.saturating_add(asked.length);
        let geometry = &self.volume.superblock().geometry;
        let block = u64::from(geometry.block_size());
        if asked.start / block >= geometry.blocks_count() || asked.length < block {
            return Err(Errno::INVALID);
        }
        let length = self.volume.trim(asked.start..end, asked.minimum)?;
        Ok(done(TrimRange { length, ..asked }.as_bytes()))
    }
}

fn set_fsxattr(node: &Node, asked: &FsXattr) -> Outcome<()> {
    let known = FLAGS.iter().fold(0, |all, (_, bit)| all | bit);
    if asked.flags & !known != 0 || asked.extent_size != 0 || asked.cow_extent_size != 0 {
        return Err(Errno::NOT_SUPPORTED);
    }
    let found = node.attributes();
    let mut flags = found.flags;
    for (flag, bit) in FLAGS {
        flags.set(flag, asked.flags & bit != 0);
    }
    let set = SetAttributes::new().flags(flags);
    node.set_attributes(&if asked.project == found.project { set } else { set.project(asked.project) })?;
    Ok(())
}
