//! Names: LOOKUP, FORGET, and what makes, moves and removes them.

use super::attributes::{STALE, VALID, device_parts, entry};
use super::{Answer, Served};
use crate::reply::{Errno, Outcome};
use crate::request::{Request, cut};
use crate::table::id_of;
use crate::wire::{
    BatchForgetIn, EntryOut, ForgetIn, ForgetOne, LinkIn, MkdirIn, MknodIn, Rename2In, RenameIn,
};
use uext4::{FileKind, Node, NodeKind, RenameFlags};

impl Served {
    /// Counts a look-up of a node.
    pub(super) fn known(&self, node: Node) -> EntryOut {
        let (found, valid) = self.shown(&node);
        let id = id_of(&found);
        self.nodes.add(id, node);
        entry(id, &found, valid)
    }

    /// The answer that gives the kernel a node.
    fn entered(&self, node: Node) -> Answer {
        let entry = self.known(node);
        Answer { lookups: vec![entry.node], ..Answer::of(&entry) }
    }

    /// LOOKUP. `.` and `..` come from file handles: of a node that the kernel may have forgotten.
    pub(super) fn look_up(&self, request: &Request<'_>) -> Outcome<Answer> {
        let name = request.name()?;
        let node = self.nodes.get(request.header.node)?;
        if name == b"." {
            return Ok(self.entered(node));
        }
        match node.look_up(name) {
            Ok(found) => Ok(self.entered(found)),
            // The kernel keeps that there is none.
            Err(uext4::Error::NotFound) if name != b".." => {
                Ok(Answer::of(&EntryOut { entry_valid: VALID, ..EntryOut::default() }))
            }
            Err(uext4::Error::NotFound) => Err(STALE),
            Err(error) => Err(error.into()),
        }
    }

    /// FORGET.
    pub(super) fn forget(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (forget, _): (ForgetIn, _) = request.arguments()?;
        self.nodes.forget(request.header.node, forget.lookups);
        Ok(Answer::DONE)
    }

    /// BATCH_FORGET.
    pub(super) fn forget_several(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (batch, mut rest): (BatchForgetIn, _) = request.arguments()?;
        for _ in 0..batch.count {
            let (one, others): (ForgetOne, _) = cut(rest)?;
            self.nodes.forget(one.node, one.lookups);
            rest = others;
        }
        Ok(Answer::DONE)
    }

    /// READLINK.
    pub(super) fn read_link(&self, request: &Request<'_>) -> Outcome<Answer> {
        Ok(Answer::bytes(self.nodes.get(request.header.node)?.read_link()?))
    }

    /// SYMLINK.
    pub(super) fn make_symlink(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (name, target) = request.name_and_text()?;
        let directory = self.nodes.get(request.header.node)?;
        Ok(self.entered(directory.make_symlink(name, target, &request.caller(0)?)?))
    }

    /// MKNOD.
    pub(super) fn make_node(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, name) = request.with_name::<MknodIn>()?;
        let (major, minor) = device_parts(asked.rdev);
        let kind = match asked.mode & libc::S_IFMT {
            libc::S_IFREG | 0 => NodeKind::Regular,
            libc::S_IFIFO => NodeKind::Fifo,
            libc::S_IFSOCK => NodeKind::Socket,
            libc::S_IFCHR => NodeKind::Char { major, minor },
            libc::S_IFBLK => NodeKind::Block { major, minor },
            _ => return Err(Errno::INVALID),
        };
        let (directory, caller) = (self.nodes.get(request.header.node)?, request.caller(asked.umask)?);
        Ok(self.entered(directory.make_node(name, kind, asked.mode & 0o7777, &caller)?))
    }

    /// MKDIR.
    pub(super) fn make_directory(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, name) = request.with_name::<MkdirIn>()?;
        let (directory, caller) = (self.nodes.get(request.header.node)?, request.caller(asked.umask)?);
        Ok(self.entered(directory.make_dir(name, asked.mode & 0o7777, &caller)?))
    }

    /// UNLINK.
    pub(super) fn unlink(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (directory, name) = (self.nodes.get(request.header.node)?, request.name()?);
        self.removing(&directory, name, || directory.unlink(name))
    }

    /// RMDIR.
    pub(super) fn remove_directory(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (directory, name) = (self.nodes.get(request.header.node)?, request.name()?);
        self.removing(&directory, name, || directory.remove_dir(name))
    }

    /// Does what takes a name away, and keeps what it led to if the kernel knows that. The kernel changes no other name
    /// of the directory meanwhile.
    fn removing(
        &self,
        directory: &Node,
        name: &[u8],
        change: impl FnOnce() -> Result<(), uext4::Error>,
    ) -> Outcome<Answer> {
        let found = match directory.look_up(name) {
            Ok(found) => Some(found),
            Err(uext4::Error::NotFound) => None,
            Err(error) => return Err(error.into()),
        };
        let changed = change();
        // After a failure, too: the name may be gone, and only the inode not freed.
        if let Some(found) = found {
            self.nodes.name_removed(found);
        }
        changed?;
        Ok(Answer::DONE)
    }

    /// RENAME.
    pub(super) fn rename(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, from, to) = request.with_names::<RenameIn>()?;
        self.rename_to(request, from, asked.new_directory, to, 0)
    }

    /// RENAME2.
    pub(super) fn rename_with_flags(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, from, to) = request.with_names::<Rename2In>()?;
        self.rename_to(request, from, asked.new_directory, to, asked.flags)
    }

    fn rename_to(
        &self,
        request: &Request<'_>,
        from: &[u8],
        directory: u64,
        to: &[u8],
        flags: u32,
    ) -> Outcome<Answer> {
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVALID)?;
        let (old, new) = (self.nodes.get(request.header.node)?, self.nodes.get(directory)?);
        // A file that replaces another has its contents then, also after a crash: programs count on it.
        let named =
            |directory: &Node, name| directory.look_up(name).ok().map(|node| id_of(&node.attributes()));
        self.behind.wait_for_named(|| named(&old, from));
        if flags.contains(RenameFlags::EXCHANGE) {
            self.behind.wait_for_named(|| named(&new, to));
        }
        self.removing(&new, to, || old.rename(from, &new, to, flags))
    }

    /// LINK.
    pub(super) fn link(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, name) = request.with_name::<LinkIn>()?;
        let (directory, node) = (self.nodes.get(request.header.node)?, self.nodes.get(asked.node)?);
        if node.kind() == FileKind::Directory {
            return Err(Errno(libc::EPERM));
        }
        self.behind.wait_for(asked.node);
        directory.link(name, &node)?;
        Ok(self.entered(node))
    }
}
