//! What the kernel asks for, done by the library: one function per operation. Permissions are checked by the kernel
//! (`default_permissions`).

mod attributes;
mod control;
mod data;
mod directories;
mod files;
mod flags;
mod names;
mod xattrs;

pub(crate) use control::{Negotiated, negotiate};

use crate::behind::Behind;
use crate::options::ServeOptions;
use crate::owners::{Ids, Owners};
use crate::reply::{Errno, Outcome};
use crate::request::Request;
use crate::stats::{head, single, write_volume};
use crate::table::{Handles, Nodes};
use crate::transport::Channel;
use crate::wire::{self, OutHeader, op};
use directories::OpenDirectory;
use files::OpenFile;
use std::io::IoSlice;
use std::sync::Arc;
use uext4::Volume;
use zerocopy::{Immutable, IntoBytes};

/// How many of what the kernel knows are tried to find a regular file among them.
const SOME: usize = 32;

/// A volume that is mounted, and what the kernel knows of it.
pub(crate) struct Served {
    // Nodes and files before the volume, which their drop needs.
    files: Handles<OpenFile>,
    directories: Handles<OpenDirectory>,
    behind: Behind,
    nodes: Nodes,
    volume: Volume,
    channel: Arc<dyn Channel>,
    options: ServeOptions,
    /// Whether quota may refuse a write.
    has_limits: bool,
    owners: Owners,
}

/// What does the requests of a mount, from any thread.
pub(crate) trait Serve: Send + Sync {
    /// Does what a request asks for, durably if the options say so. `memory` is for data of the reply.
    fn serve(&self, request: &Request<'_>, memory: &mut [u8]) -> Outcome<Answer>;

    /// Undoes what the kernel did not take.
    fn undo(&self, _answer: Answer) {}

    /// Files that the kernel has open, and then other nodes that it knows; a few of both.
    fn some_known(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Appends what is known and open, and what the library counts, as Prometheus text.
    fn write_stats(&self, _out: &mut String) {}

    /// Writes what is late, lets go of all files and nodes, and closes the volume.
    ///
    /// # Errors
    /// As of [`Volume::close`]; a failure of a late write that nobody was told of.
    fn close(self: Box<Self>) -> Result<(), uext4::Error> {
        Ok(())
    }
}

/// What a reply holds besides its header.
pub(crate) enum Payload {
    /// Nothing.
    Nothing,
    /// These bytes.
    Bytes(Vec<u8>),
    /// So many bytes of the thread's memory.
    Memory(usize),
}

/// What an operation gives, and what has to be undone if the kernel does not take it.
pub(crate) struct Answer {
    pub(crate) payload: Payload,
    /// Nodes whose look-ups were counted.
    lookups: Vec<u64>,
    file: Option<u64>,
    directory: Option<u64>,
}

impl Answer {
    /// Done, nothing to say.
    pub(crate) const DONE: Answer =
        Answer { payload: Payload::Nothing, lookups: Vec::new(), file: None, directory: None };

    pub(crate) fn of(value: &(impl IntoBytes + Immutable)) -> Answer {
        Answer::bytes(value.as_bytes().to_vec())
    }

    pub(crate) fn bytes(bytes: Vec<u8>) -> Answer {
        Answer { payload: Payload::Bytes(bytes), ..Answer::DONE }
    }

    pub(crate) fn memory(length: usize) -> Answer {
        Answer { payload: Payload::Memory(length), ..Answer::DONE }
    }
}

impl Served {
    /// A volume of which the kernel knows nothing but the root.
    ///
    /// # Errors
    /// Those of reading the root.
    pub(crate) fn new(
        volume: Volume,
        channel: Arc<dyn Channel>,
        options: ServeOptions,
    ) -> std::io::Result<Served> {
        let nodes = Nodes::new(&volume).map_err(std::io::Error::other)?;
        let behind = Behind::new(&volume)?;
        let has_limits = !volume.quota_kinds().map_err(std::io::Error::other)?.is_empty();
        let owners = owners(&volume, &options).map_err(std::io::Error::other)?;
        Ok(Served {
            files: Handles::default(),
            directories: Handles::default(),
            behind,
            nodes,
            volume,
            channel,
            options,
            has_limits,
            owners,
        })
    }

    /// Whether the operation may wait for a device, which may hang. What the kernel forgets may have lost its name
    /// before, and is freed then.
    pub(crate) fn waits(opcode: u32) -> bool {
        let frees = matches!(opcode, op::FORGET | op::BATCH_FORGET);
        let data = matches!(opcode, op::READ | op::WRITE | op::FALLOCATE | op::COPY_FILE_RANGE);
        Self::is_sync(opcode) || data || frees
    }

    /// Whether the operation waits for what was written before: its caller can be let go.
    pub(crate) fn is_sync(opcode: u32) -> bool {
        matches!(opcode, op::FSYNC | op::FSYNCDIR | op::SYNCFS)
    }

    fn dispatch(&self, request: &Request<'_>, memory: &mut [u8]) -> Outcome<Answer> {
        match request.header.opcode {
            op::LOOKUP => self.look_up(request),
            op::FORGET => self.forget(request),
            op::BATCH_FORGET => self.forget_several(request),
            op::GETATTR => self.attributes(request),
            op::STATX => self.statx(request),
            op::SETATTR => self.set_attributes(request),
            op::READLINK => self.read_link(request),
            op::SYMLINK => self.make_symlink(request),
            op::MKNOD => self.make_node(request),
            op::MKDIR => self.make_directory(request),
            op::UNLINK => self.unlink(request),
            op::RMDIR => self.remove_directory(request),
            op::RENAME => self.rename(request),
            op::RENAME2 => self.rename_with_flags(request),
            op::LINK => self.link(request),
            op::OPEN => self.open(request),
            op::CREATE => self.create(request),
            op::TMPFILE => self.make_unnamed(request),
            op::READ => self.read(request, memory),
            op::WRITE => self.write(request),
            op::RELEASE => self.release(request),
            op::FSYNC => self.sync_file(request),
            op::FALLOCATE => self.fallocate(request),
            op::LSEEK => self.seek(request),
            op::COPY_FILE_RANGE => self.copy_range(request, memory),
            op::OPENDIR => self.open_directory(request),
            op::READDIR => self.read_directory(request, false),
            op::READDIRPLUS => self.read_directory(request, true),
            op::RELEASEDIR => self.release_directory(request),
            op::FSYNCDIR | op::SYNCFS => self.sync_volume(),
            op::STATFS => self.statfs(),
            op::GETXATTR => self.xattr(request),
            op::LISTXATTR => self.list_xattrs(request),
            op::SETXATTR => self.set_xattr(request),
            op::REMOVEXATTR => self.remove_xattr(request),
            op::IOCTL => self.ioctl(request),
            op::DESTROY => Ok(Answer::DONE),
            // FLUSH too: a write has reached the device when it returns. Locks and polls are the kernel's.
            _ => Err(Errno::NO_OPERATION),
        }
    }

    /// Has the kernel ask for the attributes of an inode again.
    fn attributes_changed(&self, id: u64) {
        let told = wire::InvalInodeOut { node: id, offset: -1, length: 0 };
        let len = (size_of::<OutHeader>() + size_of_val(&told)) as u32;
        let header = OutHeader { len, error: wire::NOTIFY_INVAL_INODE, unique: 0 };
        // It fails if the kernel does not know the inode any more.
        let _forgotten = self.channel.send(&[IoSlice::new(header.as_bytes()), IoSlice::new(told.as_bytes())]);
    }
}

impl Serve for Served {
    fn serve(&self, request: &Request<'_>, memory: &mut [u8]) -> Outcome<Answer> {
        let request = &request.with_owners(self.owners);
        let answer = self.dispatch(request, memory)?;
        let opcode = request.header.opcode;
        if changes_names(opcode) || opcode == op::SETXATTR {
            self.behind.count(0);
        }
        if self.options.sync && changes(opcode) || self.options.dirsync && changes_names(opcode) {
            self.volume.sync_all()?;
        }
        Ok(answer)
    }

    fn undo(&self, answer: Answer) {
        for id in answer.lookups {
            self.nodes.forget(id, 1);
        }
        drop(answer.file.and_then(|fh| self.files.remove(fh)));
        drop(answer.directory.and_then(|fh| self.directories.remove(fh)));
    }

    fn some_known(&self) -> Vec<u64> {
        let open = self.files.some(SOME, OpenFile::id);
        open.into_iter().chain(self.nodes.some(16 * SOME)).collect()
    }

    fn write_stats(&self, out: &mut String) {
        let nodes = self.nodes.known() as u64;
        single(out, "uext4_nodes", "gauge", "Files that the kernel knows.", nodes);
        let (files, directories) = (self.files.count() as u64, self.directories.count() as u64);
        single(out, "uext4_open_files", "gauge", "Open files.", files);
        single(out, "uext4_open_directories", "gauge", "Open directories.", directories);
        head(out, "uext4_volume_total", "counter", "What the library counts, by Volume::stats().");
        for (name, value) in self.volume.stats().iter() {
            out.push_str(&format!("uext4_volume_total{{counter=\"{name}\"}} {value}\n"));
        }
        let late = self.behind.waiting_bytes() as u64;
        single(out, "uext4_late_write_bytes", "gauge", "Memory of acknowledged writes that wait.", late);
        write_volume(&self.volume, out);
    }

    fn close(self: Box<Self>) -> Result<(), uext4::Error> {
        let Served { files, directories, behind, nodes, volume, .. } = *self;
        let late = behind.close();
        drop((files, directories, nodes));
        volume.close().and(late)
    }
}

/// How owners appear.
fn owners(volume: &Volume, options: &ServeOptions) -> Result<Owners, uext4::Error> {
    let root = volume.root()?.attributes();
    let ids = |all: Option<u32>, stored: u32, shown: Option<u32>| match (all, shown) {
        (Some(all), _) => Ids::All(all),
        (None, Some(shown)) => Ids::One { stored, shown },
        (None, None) => Ids::Same,
    };
    Ok(Owners {
        users: ids(options.uid, root.uid, options.owner.map(|(uid, _)| uid)),
        groups: ids(options.gid, root.gid, options.owner.map(|(_, gid)| gid)),
    })
}

/// Whether an operation changes names.
fn changes_names(opcode: u32) -> bool {
    matches!(
        opcode,
        op::SYMLINK
            | op::MKNOD
            | op::MKDIR
            | op::UNLINK
            | op::RMDIR
            | op::RENAME
            | op::RENAME2
            | op::LINK
            | op::CREATE
    )
}

/// Whether an operation changes anything, besides a WRITE, which has durability of its own.
fn changes(opcode: u32) -> bool {
    let others = matches!(
        opcode,
        op::SETATTR | op::SETXATTR | op::REMOVEXATTR | op::FALLOCATE | op::COPY_FILE_RANGE | op::TMPFILE
    );
    // They may truncate, and set flags.
    others || changes_names(opcode) || matches!(opcode, op::OPEN | op::IOCTL)
}
