//! What a copy creates: its first attributes, those it keeps, and the hard links among what was copied.

use super::ImportOptions;
use super::origin::{Item, Origin};
use crate::error::Error;
use crate::options::Keep;
use std::collections::HashMap;
use std::sync::Arc;
use uext4::device::Device;
use uext4::{Caller, FileKind, Ino, Node, RenameFlags, SetAttributes, Volume, XattrFlags};

/// Access control lists as extended attributes.
const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// What a name leads to, if it exists.
pub fn look_up(directory: &Node, name: &[u8]) -> uext4::Result<Option<Node>> {
    match directory.look_up(name) {
        Err(uext4::Error::NotFound) => Ok(None),
        found => found.map(Some),
    }
}

/// Temporary names tried for a replacement.
const SPARES: u32 = 100;

/// Creates something under a temporary name, which then takes the place of an existing file. If anything fails, that
/// file stays. `told`: an error of the volume as one of `make`.
pub fn replace<T, E>(
    directory: &Node,
    name: &[u8],
    make: impl FnOnce(&[u8]) -> Result<T, E>,
    told: impl Fn(uext4::Error) -> E,
) -> Result<T, E> {
    let spares = (0..SPARES).map(|number| format!(".uext4-cp-{number}"));
    let mut unused = spares.map(String::into_bytes).filter_map(|spare| match look_up(directory, &spare) {
        Ok(Some(_)) => None,
        found => Some(found.map(|_| spare)),
    });
    let spare = unused.next().unwrap_or(Err(uext4::Error::Exists)).map_err(&told)?;
    let new = make(&spare)?;
    if let Err(error) = directory.rename(&spare, directory, name, RenameFlags::empty()) {
        // Report the first error.
        let _already_failing = directory.unlink(&spare);
        return Err(told(error));
    }
    Ok(new)
}

/// Mode and caller to create something with. Attributes that are kept are set once it is complete.
pub fn first(options: &ImportOptions, item: &Item) -> (u32, Caller) {
    let mut caller = options.caller.clone();
    if options.keep.owner {
        (caller.uid, caller.gid) = item.owner;
    }
    if options.keep.mode {
        caller.umask = 0;
    }
    if let Some(owner) = options.owner {
        (caller.uid, caller.gid) = owner;
    }
    // As mkdir: the sticky bit counts.
    let mask = if item.kind == FileKind::Directory { 0o1777 } else { 0o777 };
    let keep = options.keep;
    let mode = if keep.mode { item.mode } else { keep.new_mode_of(item.mode, item.kind) };
    (mode & mask, caller)
}

/// Gives a copy the attributes that are kept. Tells each that fails, and sets the others.
pub fn keep<O: Origin>(
    origin: &O,
    options: &ImportOptions,
    thing: &O::Thing,
    item: &Item,
    node: &Node,
    (source, shown): &(Vec<u8>, Vec<u8>),
    tell: &mut dyn FnMut(Error),
) {
    let kept = options.keep;
    if kept.mode || kept.xattrs || kept.context {
        keep_xattrs(origin, thing, node, kept, source, &mut |error| tell(error.below(shown)));
    }
    if let Err(error) = keep_attributes(options, item, node) {
        tell(Error::destination(shown, error));
    }
}

/// Sets mode, owner and times as far as they are kept, in one transaction.
fn keep_attributes(options: &ImportOptions, item: &Item, node: &Node) -> uext4::Result<()> {
    let mut set = SetAttributes::new().keep_privileges(true);
    let keep = options.keep;
    let owner = options.owner.or(Some(item.owner).filter(|_| keep.owner));
    if let Some((uid, gid)) = owner {
        set = set.uid(uid).gid(gid);
    }
    if keep.times {
        set = set.accessed(item.accessed).modified(item.modified);
    }
    let sets_mode = keep.mode && item.kind != FileKind::Symlink;
    if sets_mode {
        set = set.mode(item.mode);
    }
    match owner.is_some() || keep.times || sets_mode {
        true => node.set_attributes(&set),
        false => Ok(()),
    }
}

/// Sets extended attributes: access control lists with the mode, others if they are kept. Lists that came from the
/// directory of the copy go.
fn keep_xattrs<O: Origin>(
    origin: &O,
    thing: &O::Thing,
    node: &Node,
    keep: Keep,
    path: &[u8],
    tell: &mut dyn FnMut(Error),
) {
    let names = match origin.xattr_names(thing, path) {
        // So that the order in which a host lists them changes nothing.
        Ok(mut names) => {
            names.sort_unstable();
            names
        }
        Err(error) => {
            tell(error);
            return;
        }
    };
    for inherited in node.xattrs().flatten() {
        let inherited = inherited.as_bytes();
        if keep.mode
            && LISTS.contains(&inherited)
            && !names.iter().any(|name| name == inherited)
            && let Err(error) = node.remove_xattr(inherited)
        {
            tell(Error::destination(b"", error).about_attribute(inherited));
        }
    }
    let wanted = |name: &[u8]| if LISTS.contains(&name) { keep.mode } else { keep.has_xattr(name) };
    for name in names.iter().filter(|name| wanted(name)) {
        let value = match origin.xattr(thing, name, path) {
            Ok(Some(value)) => value,
            Ok(None) => continue,
            Err(error) => {
                tell(error);
                continue;
            }
        };
        match node.set_xattr(name, value, XattrFlags::empty()) {
            Ok(()) => {}
            // A name space of another file system.
            Err(uext4::Error::NotSupported(_)) if !keep.xattrs_required => {}
            Err(error) => tell(Error::destination(b"", error).about_attribute(name)),
        }
    }
}

/// The number of the host among what is copied from.
pub const HOST: usize = 0;

/// The first copies of inodes with several names.
#[derive(Default)]
pub struct Links {
    /// The volumes that are copied from. Number [`HOST`] is the host, whose devices are part of an inode's identity.
    volumes: Vec<Arc<dyn Device>>,
    first: HashMap<(usize, (u64, u64)), (Ino, u32)>,
}

impl Links {
    /// The number of a volume. One that is open twice has one.
    pub fn number(&mut self, volume: &Volume) -> usize {
        let device = volume.device();
        let known = self.volumes.iter().position(|known| Arc::ptr_eq(known, device));
        1 + known.unwrap_or_else(|| {
            self.volumes.push(device.clone());
            self.volumes.len() - 1
        })
    }

    /// The first copy, if it is still there.
    pub fn find(&self, volume: &Volume, number: usize, item: &Item) -> Option<Node> {
        let (ino, generation) = self.first.get(&(number, item.identity))?;
        volume.node(*ino, Some(*generation)).ok()
    }

    pub fn add(&mut self, number: usize, item: &Item, copy: &Node) {
        let found = copy.attributes();
        self.first.insert((number, item.identity), (found.ino, found.generation));
    }
}
