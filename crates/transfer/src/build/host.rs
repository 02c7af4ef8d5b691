//! A directory of the host. Only attributes and names are read now; contents when the volume is written.

use super::draft::{Attributes, Body, Bytes, Draft, NodeId, ROOT, Spot, Xattrs};
use super::error::{Failures, GatherCause, GatherError};
use super::fakeroot::Fakeroot;
use super::gathered::{Place, Print, Store, StoreKind};
use crate::devices::Devices;
use crate::error::{Cause, Error};
use crate::import::next_data;
use crate::into::host_tree::{HostThing, HostTree};
use crate::into::origin::{Item, Origin};
use crate::options::{Follow, Holes};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uext4::FileKind;

/// A walk through a directory.
pub struct HostWalk<'a> {
    tree: HostTree<'a>,
    draft: &'a mut Draft,
    /// Number of the directory among the stores.
    store: u32,
    /// Files with several names.
    linked: HashMap<(u64, u64), NodeId>,
    fakeroot: Option<&'a Fakeroot>,
    failures: &'a mut Failures,
}

/// A directory being read.
struct Level {
    thing: HostThing,
    node: NodeId,
    names: std::vec::IntoIter<Vec<u8>>,
    /// Length of its path.
    length: usize,
}

impl<'a> HostWalk<'a> {
    pub fn new(
        base: &'a Path,
        (devices, fakeroot): (&'a Devices, Option<&'a Fakeroot>),
        draft: &'a mut Draft,
        store: u32,
        failures: &'a mut Failures,
    ) -> Self {
        let tree = HostTree { base, devices, how: (true, Follow::Sources, Holes::Source), in_turn: false };
        HostWalk { tree, draft, store, linked: HashMap::new(), fakeroot, failures }
    }

    /// Adds everything in the directory to the draft. What cannot be read is noted. Returns what the contents are read
    /// from.
    pub fn run(mut self) -> Result<Store, GatherError> {
        let base = self.tree.base;
        let fail = |cause| GatherError::new(base, cause);
        let root = self.tree.root().map_err(|error| fail(error.into()))?;
        if self.tree.item(&root).kind != FileKind::Directory {
            return Err(fail(Error::host(base, Cause::NotDirectory).into()));
        }
        let open = root.fd().ok_or_else(|| fail(GatherCause::Changed))?;
        let directory = open.try_clone().map_err(|error| fail(GatherCause::io("duplicate")(error)))?;
        let attributes = self.attributes(&root, &self.item(&root), b"")?;
        self.draft.put_root(attributes).map_err(fail)?;
        self.walk(root)?;
        Ok(Store { name: base.to_owned(), kind: StoreKind::Directory(directory) })
    }

    fn walk(&mut self, root: HostThing) -> Result<(), GatherError> {
        let mut path = Vec::new();
        let mut levels = vec![self.level(root, ROOT, &path)];
        while let Some(level) = levels.last_mut() {
            path.truncate(level.length);
            let Some(name) = level.names.next() else {
                levels.pop();
                continue;
            };
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            match self.child(level, &name, &path) {
                Ok(Some((thing, node))) => levels.push(self.level(thing, node, &path)),
                Ok(None) => {}
                Err(cause) => self.note(&path, cause)?,
            }
        }
        Ok(())
    }

    fn level(&mut self, thing: HostThing, node: NodeId, path: &[u8]) -> Level {
        let (base, failures) = (self.tree.base, &mut *self.failures);
        let mut trouble = |error: Error| failures.push(GatherError::new(base, error));
        let names = self.tree.names(&thing, path, &mut trouble).unwrap_or_else(|error| {
            trouble(error);
            Vec::new()
        });
        Level { thing, node, names: names.into_iter(), length: path.len() }
    }

    /// Adds what a name in a directory leads to. Returns a directory that is to be entered.
    fn child(
        &mut self,
        level: &Level,
        name: &[u8],
        path: &[u8],
    ) -> Result<Option<(HostThing, NodeId)>, GatherCause> {
        let thing = self.tree.child(&level.thing, name, path)?;
        let item = self.item(&thing);
        if self.tree.is_destination(&thing) {
            return Err(self.host_error(path, Cause::DestinationDevice).into());
        }
        let spot = Spot { directory: level.node, name: name.into() };
        if let Some(&node) = self.linked.get(&item.identity) {
            self.draft.link(&spot, node)?;
            return Ok(None);
        }
        let attributes = self.attributes(&thing, &item, path).map_err(|error| error.cause)?;
        let body = self.body(&thing, &item, path)?;
        let node = self.draft.put(&spot, attributes, body)?;
        if item.kind == FileKind::Directory {
            return Ok(Some((thing, node)));
        }
        if item.links > 1 {
            self.linked.insert(item.identity, node);
        }
        Ok(None)
    }

    /// What it is, or what fakeroot takes it for.
    fn item(&self, thing: &HostThing) -> Item {
        let mut item = self.tree.item(thing).clone();
        if let Some(fakeroot) = self.fakeroot {
            fakeroot.apply(&mut item);
        }
        item
    }

    fn attributes(&self, thing: &HostThing, item: &Item, path: &[u8]) -> Result<Attributes, GatherError> {
        let fail = |error: Error| GatherError::new(self.tree.base, error);
        let mut xattrs = Xattrs::new();
        for name in self.tree.xattr_names(thing, path).map_err(fail)? {
            if let Some(value) = self.tree.xattr(thing, &name, path).map_err(fail)? {
                xattrs.insert(name, value);
            }
        }
        let (uid, gid) = item.owner;
        Ok(Attributes { mode: (item.mode & 0o7777) as u16, uid, gid, modified: item.modified, xattrs })
    }

    fn body(&self, thing: &HostThing, item: &Item, path: &[u8]) -> Result<Body, GatherCause> {
        let (major, minor) = item.device;
        Ok(match item.kind {
            FileKind::Directory => Body::directory(),
            FileKind::Symlink => Body::Symlink(self.tree.target(thing, path)?.into_boxed_slice()),
            FileKind::Regular => Body::Regular(self.bytes(thing, path)?),
            FileKind::Fifo => Body::Fifo,
            FileKind::Socket => Body::Socket,
            FileKind::CharDevice => Body::Char(major, minor),
            FileKind::BlockDevice => Body::Block(major, minor),
        })
    }

    fn bytes(&self, thing: &HostThing, path: &[u8]) -> Result<Bytes, GatherCause> {
        let refused = |action, error: Errno| {
            GatherCause::from(self.host_error(path, Cause::Host { action, error: error.into() }))
        };
        let open = thing.fd().ok_or(GatherCause::Changed)?;
        let stat = rustix::fs::fstat(open).map_err(|error| refused("stat", error))?;
        let copy = open.try_clone().map_err(GatherCause::io("duplicate"))?;
        let (file, size) = (File::from(copy), stat.st_size as u64);
        let mut data: Vec<std::ops::Range<u64>> = Vec::new();
        let mut pos = 0;
        // Without holes there is nothing to ask.
        let dense = (stat.st_blocks as u64).saturating_mul(512) >= size;
        while let Some((start, end)) = if dense { whole(pos, size) } else { next_data(&file, pos, size) } {
            match data.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => data.push(start..end),
            }
            pos = end;
        }
        if data.is_empty() {
            return Ok(Bytes { size, data, place: Place::Nowhere });
        }
        let place = Place::Host { store: self.store, path: path.into(), print: Print::of(&stat) };
        Ok(Bytes { size, data, place })
    }

    fn host_error(&self, path: &[u8], cause: Cause) -> Error {
        Error::host(self.tree.base.join(OsStr::from_bytes(path)), cause)
    }

    /// Notes what cannot be read, and fails with what ends everything.
    fn note(&mut self, path: &[u8], cause: GatherCause) -> Result<(), GatherError> {
        let goes_on = cause.is_refusal();
        let error =
            GatherError { input: self.tree.base.to_owned(), entry: Some(path.to_vec()), offset: None, cause };
        if goes_on {
            self.failures.push(error);
            return Ok(());
        }
        Err(error)
    }
}

fn whole(pos: u64, size: u64) -> Option<(u64, u64)> {
    (pos < size).then_some((pos, size))
}
