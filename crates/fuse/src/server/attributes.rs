//! GETATTR, STATX, SETATTR.

use super::{Answer, Served};
use crate::owners::{Ids, Owners};
use crate::reply::{Errno, Outcome};
use crate::request::Request;
use crate::table::id_of;
use crate::wire::{
    Attr, AttrOut, EntryOut, GetattrIn, SetattrIn, Statx, StatxIn, StatxOut, StatxTime, fattr,
};
use uext4::{FileKind, InodeFlags, Metadata, Node, SetAttributes, Time, Timestamp};

/// How long the kernel may keep names and attributes, in seconds. All changes go through it.
pub(super) const VALID: u64 = 3600;

/// The type of a file as in `st_mode`.
pub(super) fn type_bits(kind: FileKind) -> u32 {
    u32::from(kind.mode_bits())
}

/// A device number as the kernel passes it in 32 bits.
fn device_word((major, minor): (u32, u32)) -> u32 {
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// Major and minor number of such a word.
pub(super) fn device_parts(word: u32) -> (u32, u32) {
    (word >> 8 & 0xfff, word & 0xff | word >> 12 & 0xf_ff00)
}

/// Attributes as the kernel takes them.
fn attr(found: &Metadata) -> Attr {
    Attr {
        ino: found.ino.get().into(),
        size: found.size,
        blocks: found.blocks,
        atime: found.accessed.seconds as u64,
        mtime: found.modified.seconds as u64,
        ctime: found.changed.seconds as u64,
        atime_nsec: found.accessed.nanoseconds,
        mtime_nsec: found.modified.nanoseconds,
        ctime_nsec: found.changed.nanoseconds,
        mode: type_bits(found.kind) | found.mode,
        nlink: found.links,
        uid: found.uid,
        gid: found.gid,
        rdev: device_word(found.rdev),
        blksize: found.block_size,
        flags: 0,
    }
}

/// A name's node, with its attributes.
pub(super) fn entry(id: u64, found: &Metadata, attr_valid: u64) -> EntryOut {
    EntryOut {
        node: id,
        generation: found.generation.into(),
        entry_valid: VALID,
        attr_valid,
        attr: attr(found),
        ..EntryOut::default()
    }
}

fn statx_time(time: Timestamp) -> StatxTime {
    StatxTime { seconds: time.seconds, nanoseconds: time.nanoseconds, reserved: 0 }
}

/// Attributes of STATX that are flags of an inode.
const STATX_FLAGS: [(InodeFlags, i32); 3] = [
    (InodeFlags::IMMUTABLE, libc::STATX_ATTR_IMMUTABLE),
    (InodeFlags::APPEND, libc::STATX_ATTR_APPEND),
    (InodeFlags::NODUMP, libc::STATX_ATTR_NODUMP),
];

fn statx(found: &Metadata) -> Statx {
    let birth = found.created.map_or(0, |_| libc::STATX_BTIME);
    let shown = STATX_FLAGS.iter().filter(|(flag, _)| found.flags.contains(*flag));
    Statx {
        mask: libc::STATX_BASIC_STATS | birth,
        blksize: found.block_size,
        attributes: shown.fold(0, |all, (_, bit)| all | *bit as u64),
        attributes_mask: STATX_FLAGS.iter().fold(0, |all, (_, bit)| all | *bit as u64),
        nlink: found.links,
        uid: found.uid,
        gid: found.gid,
        mode: (type_bits(found.kind) | found.mode) as u16,
        ino: found.ino.get().into(),
        size: found.size,
        blocks: found.blocks,
        atime: statx_time(found.accessed),
        btime: found.created.map(statx_time).unwrap_or_default(),
        ctime: statx_time(found.changed),
        mtime: statx_time(found.modified),
        rdev_major: found.rdev.0,
        rdev_minor: found.rdev.1,
        ..Statx::default()
    }
}

/// The times to set: a given one, or now.
fn time(valid: u32, set: u32, now: u32, seconds: u64, nanoseconds: u32) -> Option<Time> {
    if valid & set == 0 {
        return None;
    }
    let given = Timestamp { seconds: seconds as i64, nanoseconds };
    Some(if valid & now != 0 { Time::Now } else { Time::At(given) })
}

/// The mode without the bits that a change of the contents strips. Set-group-id of a file that its group may not
/// execute (once a sign for locks) stays if the caller is in the group, as in Linux.
fn without_set_id(request: &Request<'_>, mode: u32, gid: u32) -> u32 {
    let kept = mode & !libc::S_ISUID;
    let keeps_group = mode & libc::S_ISGID == 0 || mode & libc::S_IXGRP == 0 && request.is_in(gid);
    if keeps_group { kept } else { kept & !libc::S_ISGID }
}

impl Served {
    /// Attributes as users see them, and how long they hold, in seconds. Bytes that wait to be written count as if
    /// they were there, and as if they needed no blocks before the old end: the kernel asks again.
    pub(super) fn shown(&self, node: &Node) -> (Metadata, u64) {
        let id = id_of(&node.attributes());
        // Before the attributes: afterwards it may be written, and they older than that.
        let late = self.behind.range_of(id);
        let found = self.owned(node.attributes());
        let Some(late) = late else { return (found, VALID) };
        let block = u64::from(found.block_size).max(1);
        let begin = found.size.next_multiple_of(block).max(late.start / block * block);
        let more = late.end.next_multiple_of(block).saturating_sub(begin) / 512;
        (Metadata { size: found.size.max(late.end), blocks: found.blocks + more, ..found }, 0)
    }

    /// With the owner that users see.
    fn owned(&self, found: Metadata) -> Metadata {
        let Owners { users, groups } = self.owners;
        Metadata { uid: users.shown(found.uid), gid: groups.shown(found.gid), ..found }
    }

    /// GETATTR.
    pub(super) fn attributes(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (_, _): (GetattrIn, _) = request.arguments()?;
        let (found, attr_valid) = self.shown(&self.nodes.get(request.header.node)?);
        Ok(Answer::of(&AttrOut { attr_valid, attr: attr(&found), ..AttrOut::default() }))
    }

    /// STATX: the time of creation besides.
    pub(super) fn statx(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (_, _): (StatxIn, _) = request.arguments()?;
        let (found, attr_valid) = self.shown(&self.nodes.get(request.header.node)?);
        Ok(Answer::of(&StatxOut { attr_valid, stat: statx(&found), ..StatxOut::default() }))
    }

    /// SETATTR.
    pub(super) fn set_attributes(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, _): (SetattrIn, _) = request.arguments()?;
        let node = self.nodes.get(request.header.node)?;
        if asked.valid & fattr::SIZE != 0 {
            self.behind.wait_for(request.header.node);
            self.resize(request, &node, &asked)?;
        }
        let mut set = SetAttributes::new().limited(!request.is_root());
        if asked.valid & fattr::MODE != 0 {
            set = set.mode(asked.mode & 0o7777);
        }
        // What everything seems to have cannot be given to one.
        let changed = |valid: u32, ids: Ids, to: u32| match asked.valid & valid {
            0 => Ok(None),
            _ => ids.changed_to(to).ok_or(Errno(libc::EPERM)),
        };
        let uid = changed(fattr::UID, self.owners.users, asked.uid)?;
        let gid = changed(fattr::GID, self.owners.groups, asked.gid)?;
        if let Some(uid) = uid {
            set = set.uid(uid);
        }
        if let Some(gid) = gid {
            set = set.gid(gid);
        }
        let accessed = time(asked.valid, fattr::ATIME, fattr::ATIME_NOW, asked.atime, asked.atime_nsec);
        let modified = time(asked.valid, fattr::MTIME, fattr::MTIME_NOW, asked.mtime, asked.mtime_nsec);
        if let Some(time) = accessed {
            set = set.accessed(time);
        }
        if let Some(time) = modified {
            set = set.modified(time);
        }
        let others = fattr::MODE | fattr::UID | fattr::GID | fattr::ATIME | fattr::MTIME;
        match asked.valid & (fattr::SIZE | others) {
            // `chown` that names nobody strips set-id bits, too, as one to the same owner does.
            0 => node.set_attributes(&set.uid(node.attributes().uid))?,
            fattr::SIZE => {}
            _ => node.set_attributes(&set)?,
        }
        let (found, attr_valid) = self.shown(&node);
        Ok(Answer::of(&AttrOut { attr_valid, attr: attr(&found), ..AttrOut::default() }))
    }

    /// Truncates. A descriptor that was opened for writing may do so whatever the file's flags say since.
    fn resize(&self, request: &Request<'_>, node: &Node, asked: &SetattrIn) -> Outcome<()> {
        let open = if asked.valid & fattr::FH != 0 { Some(self.files.get(asked.fh)?) } else { None };
        match open {
            Some(open) if open.is_of(request.header.node) && open.takes_positions() => {
                open.file.set_len(asked.size)?;
            }
            _ => node.set_attributes(&SetAttributes::new().size(asked.size))?,
        }
        if asked.valid & fattr::KILL_SUIDGID != 0 {
            strip_set_id(request, node)?;
        }
        Ok(())
    }

    /// Strips set-id bits before a change of the contents that the kernel does not see as one of the attributes.
    pub(super) fn strip_and_tell(&self, request: &Request<'_>, node: &Node) -> Outcome<()> {
        if strip_set_id(request, node)? {
            self.attributes_changed(id_of(&node.attributes()));
        }
        Ok(())
    }
}

/// Strips set-id bits of a regular file. Returns whether there were any.
fn strip_set_id(request: &Request<'_>, node: &Node) -> Outcome<bool> {
    let found = node.attributes();
    let mode = without_set_id(request, found.mode, found.gid);
    if found.kind != FileKind::Regular || mode == found.mode {
        return Ok(false);
    }
    node.set_attributes(&SetAttributes::new().mode(mode))?;
    Ok(true)
}

/// Strips set-group-id. The kernel asks for it if the caller who set an access control list is not in the group.
pub(super) fn strip_set_group(node: &Node) -> Outcome<()> {
    let mode = node.attributes().mode;
    if mode & libc::S_ISGID != 0 {
        node.set_attributes(&SetAttributes::new().mode(mode & !libc::S_ISGID))?;
    }
    Ok(())
}

/// `ESTALE` for what is no longer there.
pub(super) const STALE: Errno = Errno(libc::ESTALE);
