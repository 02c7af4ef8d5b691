//! A tree of a volume: of the destination itself, or of another one.

use super::inside;
use super::origin::{Item, Origin};
use crate::error::{Cause, Error, Result};
use crate::import::{answer, put};
use crate::options::{Follow, Holes};
use crate::tree::SHARING_MAX;
use std::path::Path;
use std::sync::Arc;
use uext4::{File, Node, OpenOptions, State, Volume};

/// The tree at a path of a volume.
pub struct VolumeTree<'a> {
    pub volume: &'a Volume,
    pub path: &'a Path,
    pub follow: Follow,
    pub holes: Holes,
}

/// Something in a volume.
pub struct VolumeThing {
    node: Node,
    item: Item,
}

impl VolumeTree<'_> {
    /// Whether two volumes are one: they may be open twice.
    pub fn is_on(&self, volume: &Volume) -> bool {
        Arc::ptr_eq(self.volume.device(), volume.device())
    }
}

fn thing(node: Node) -> VolumeThing {
    let found = node.attributes();
    let item = Item {
        kind: found.kind,
        mode: found.mode & 0o7777,
        owner: (found.uid, found.gid),
        links: found.links.into(),
        identity: (0, found.ino.get().into()),
        device: found.rdev,
        accessed: found.accessed,
        modified: found.modified,
    };
    VolumeThing { node, item }
}

impl Origin for VolumeTree<'_> {
    type Thing = VolumeThing;

    fn root(&self) -> Result<VolumeThing> {
        let follow = self.follow != Follow::Never;
        let node = self.volume.node_at(self.path, follow).map_err(|error| Error::source(b"", error))?;
        Ok(thing(node))
    }

    fn child(&self, directory: &VolumeThing, name: &[u8], path: &[u8]) -> Result<VolumeThing> {
        let node = match self.follow {
            Follow::All => self.volume.node_at(inside(self.path, path), true),
            _ => directory.node.look_up(name),
        };
        node.map(thing).map_err(|error| Error::source(path, error))
    }

    fn names_max(&self) -> u64 {
        match self.follow {
            Follow::All => u64::from(self.volume.superblock().geometry.inodes_count()) * SHARING_MAX,
            Follow::Never | Follow::Sources => u64::MAX,
        }
    }

    fn item<'t>(&self, thing: &'t VolumeThing) -> &'t Item {
        &thing.item
    }

    fn names(
        &self,
        directory: &VolumeThing,
        path: &[u8],
        trouble: &mut dyn FnMut(Error),
    ) -> Result<Vec<Vec<u8>>> {
        let at = |error| Error::source(path, error);
        let mut names = Vec::new();
        for entry in directory.node.read_dir().map_err(at)? {
            match entry {
                Ok(entry) if entry.name == b"." || entry.name == b".." => {}
                Ok(entry) => names.push((entry.ino, entry.name)),
                Err(error) => trouble(at(error)),
            }
        }
        names.sort_unstable();
        Ok(names.into_iter().map(|(_, name)| name).collect())
    }

    fn target(&self, link: &VolumeThing, path: &[u8]) -> Result<Vec<u8>> {
        link.node.read_link().map_err(|error| Error::source(path, error))
    }

    fn xattr_names(&self, thing: &VolumeThing, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let names = thing.node.xattrs().map(|name| name.map(|name| name.as_bytes().to_vec()));
        names.collect::<uext4::Result<_>>().map_err(|error| Error::source(path, error))
    }

    fn xattr(&self, thing: &VolumeThing, name: &[u8], path: &[u8]) -> Result<Option<Vec<u8>>> {
        match thing.node.xattr(name) {
            Err(uext4::Error::NoAttribute) => Ok(None),
            value => value.map(Some).map_err(|error| Error::source(path, error).about_attribute(name)),
        }
    }

    fn fill(
        &self,
        thing: &VolumeThing,
        path: &[u8],
        file: &File,
        buffer: &mut [u8],
        advance: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let read = |error| Error::source(path, error);
        let from = thing.node.open(OpenOptions::new().read(true).direct(true)).map_err(read)?;
        let mut done = 0;
        let size = from.size();
        for piece in from.map() {
            let piece = piece.map_err(read)?;
            let end = piece.end().min(size);
            let empty = matches!(piece.state, State::Hole | State::Unwritten);
            if empty && self.holes != Holes::None {
                continue;
            }
            let mut pos = piece.logical;
            while pos < end {
                let wanted = buffer.len().min((end - pos) as usize);
                let got = from.read_any_at(&mut buffer[..wanted], pos).map_err(read)?;
                if got == 0 {
                    let short = Cause::ShortRead { pos, read: 0, length: end - pos };
                    return Err(Error::source(path, short));
                }
                put(file, self.holes, pos, &buffer[..got])?;
                pos += got as u64;
                advance(pos.saturating_sub(done));
                done = pos;
            }
        }
        if file.size() < size {
            file.set_len(size).map_err(answer)?;
        }
        advance(size.saturating_sub(done));
        Ok(())
    }

    fn is_destination(&self, _: &VolumeThing) -> bool {
        false
    }
}
