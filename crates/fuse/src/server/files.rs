//! Opening, creating and closing files.

use super::{Answer, Served};
use crate::behind::LateFile;
use crate::reply::{Errno, Outcome};
use crate::request::Request;
use crate::table::id_of;
use crate::wire::{self, CreateIn, OpenIn, OpenOut, ReleaseIn};
use std::sync::Arc;
use uext4::{File, InodeFlags, Node, OpenOptions};
use zerocopy::IntoBytes;

/// An open file.
pub(super) struct OpenFile {
    pub(super) file: File,
    pub(super) node: Node,
    id: u64,
    /// Where its late writes go.
    pub(super) late: Arc<LateFile>,
    /// Whether its writes may be late.
    pub(super) takes_late: bool,
    writes: bool,
    /// It can only grow: each write goes to its end.
    pub(super) appends: bool,
}

impl OpenFile {
    /// The number of its node.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Whether it is of this node.
    pub(super) fn is_of(&self, id: u64) -> bool {
        self.id == id
    }

    /// Whether any byte of it may be changed.
    pub(super) fn takes_positions(&self) -> bool {
        self.writes && !self.appends
    }
}

impl Served {
    /// OPEN.
    pub(super) fn open(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, _): (OpenIn, _) = request.arguments()?;
        let node = self.nodes.get(request.header.node)?;
        let strips = asked.open_flags & wire::OPEN_KILL_SUIDGID != 0;
        let (fh, out) = self.opened(request, node, asked.flags, strips)?;
        Ok(Answer { file: Some(fh), ..Answer::of(&out) })
    }

    /// Opens a file, and truncates it if the flags say so.
    fn opened(&self, request: &Request<'_>, node: Node, flags: u32, strips: bool) -> Outcome<(u64, OpenOut)> {
        let flags = flags as i32;
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let truncates = flags & libc::O_TRUNC != 0;
        let found = node.attributes();
        if truncates {
            self.behind.wait_for(id_of(&found));
        }
        let only_grows = found.flags.contains(InodeFlags::APPEND);
        if only_grows && (truncates || writes && flags & libc::O_APPEND == 0) {
            return Err(Errno(libc::EPERM));
        }
        let appends = writes && only_grows;
        // The kernel reads through any open file.
        let options = OpenOptions::new().read(true).direct(true).limited(writes && !request.is_root());
        let options = options.write(writes && !appends).append(appends);
        let file = match truncates {
            true if writes => node.open(options.truncate(true))?,
            true => {
                node.open(OpenOptions::new().write(true).direct(true).truncate(true))?;
                node.open(options)?
            }
            false => node.open(options)?,
        };
        if truncates && strips {
            self.strip_and_tell(request, &node)?;
        }
        let open_flags = match flags & libc::O_DIRECT {
            0 => wire::FOPEN_KEEP_CACHE,
            _ => wire::FOPEN_DIRECT_IO | wire::FOPEN_PARALLEL_DIRECT_WRITES,
        };
        let id = id_of(&found);
        // A direct writer waits for the device, a limited one for its limits.
        let limited = !request.is_root() && self.has_limits;
        let takes_late = writes && !appends && !limited && flags & libc::O_DIRECT == 0 && !self.options.sync;
        let late = LateFile::new(id, file.clone(), &self.behind);
        let fh = self.files.add(OpenFile { file, node, id, late, takes_late, writes, appends });
        Ok((fh, OpenOut { fh, open_flags, padding: 0 }))
    }

    /// CREATE: a new file, or one that was created meanwhile.
    pub(super) fn create(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, name) = request.with_name::<CreateIn>()?;
        let (directory, caller) = (self.nodes.get(request.header.node)?, request.caller(asked.umask)?);
        let (node, flags) = match directory.create(name, asked.mode & 0o7777, &caller) {
            Ok(made) => (made, asked.flags & !(libc::O_TRUNC as u32)),
            Err(uext4::Error::Exists) if asked.flags as i32 & libc::O_EXCL == 0 => {
                (directory.look_up(name)?, asked.flags)
            }
            Err(error) => return Err(error.into()),
        };
        self.created(request, node, flags)
    }

    /// TMPFILE: a file without a name.
    pub(super) fn make_unnamed(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, _): (CreateIn, _) = request.arguments()?;
        let (directory, caller) = (self.nodes.get(request.header.node)?, request.caller(asked.umask)?);
        let node = directory.make_unnamed(asked.mode & 0o7777, &caller)?;
        self.created(request, node, asked.flags & !(libc::O_TRUNC as u32))
    }

    fn created(&self, request: &Request<'_>, node: Node, flags: u32) -> Outcome<Answer> {
        let (fh, out) = self.opened(request, node.clone(), flags, true)?;
        let entry = self.known(node);
        let bytes = [entry.as_bytes(), out.as_bytes()].concat();
        Ok(Answer { lookups: vec![entry.node], file: Some(fh), ..Answer::bytes(bytes) })
    }

    /// RELEASE.
    pub(super) fn release(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, _): (ReleaseIn, _) = request.arguments()?;
        drop(self.files.remove(asked.fh));
        Ok(Answer::DONE)
    }
}
