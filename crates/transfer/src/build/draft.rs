//! The tree while it is gathered: entries come in any order, and later ones replace, hide or join earlier ones.
//!
//! Every name remembers the layer that last put something there, so that what a layer hides is what lower layers have,
//! wherever in the layer it says so. What no name leads to any more is freed at once: what an archive repeats takes
//! memory once.

use super::error::GatherCause;
use super::gathered::Place;
use super::owners::Owners;
use std::collections::BTreeMap;
use std::ops::Range;
use uext4::{Timestamp, XATTR_SIZE_MAX};

/// Memory of a name or a file beside its bytes, roughly.
const OVERHEAD: u64 = 128;
/// Bytes of a name of an extended attribute, at most (`XATTR_NAME_MAX`).
const XATTR_NAME_MAX: usize = 255;

/// Names of a directory.
pub type Names = BTreeMap<Box<[u8]>, Link>;
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Attributes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub modified: Timestamp,
    pub xattrs: Xattrs,
}

/// The bytes of a regular file, and where they are.
#[derive(Debug, Default)]
pub struct Bytes {
    pub size: u64,
    /// Ranges with data: in order, apart from each other, not empty.
    pub data: Vec<Range<u64>>,
    pub place: Place,
}

impl Bytes {
    pub fn stored(&self) -> u64 {
        self.data.iter().map(|range| range.end - range.start).sum()
    }
}

/// What a file is.
#[derive(Debug)]
pub enum Body {
    Directory(Names),
    Regular(Bytes),
    Symlink(Box<[u8]>),
    Fifo,
    Socket,
    Char(u32, u32),
    Block(u32, u32),
}

impl Body {
    pub fn directory() -> Body {
        Body::Directory(Names::new())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeId(u32);

/// A name's meaning.
#[derive(Debug, Clone, Copy)]
pub struct Link {
    pub node: NodeId,
    /// The layer that last put something at this name or below it.
    pub layer: u32,
}

#[derive(Debug)]
pub struct Node {
    pub attributes: Attributes,
    pub body: Body,
    /// Names that lead to it.
    links: u32,
    /// The layer that its attributes are from.
    layer: u32,
    /// The last layer that hid everything below it: in that layer there is nothing to hide any more.
    opaque: u32,
}

impl Node {
    fn memory(&self) -> u64 {
        let xattrs = self.attributes.xattrs.iter();
        let xattrs: usize = xattrs.map(|(name, value)| name.len() + value.len() + 64).sum();
        let body = match &self.body {
            Body::Symlink(target) => target.len(),
            // The ranges, and where each is found.
            Body::Regular(bytes) => 32 * bytes.data.len() + bytes.place.memory(),
            _ => 0,
        };
        OVERHEAD + (xattrs + body) as u64
    }
}

/// A name in a directory.
#[derive(Debug)]
pub struct Spot {
    pub directory: NodeId,
    pub name: Box<[u8]>,
}

/// What bounds a draft.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of contents.
    pub data: u64,
    /// Bytes of memory, roughly.
    pub memory: u64,
}

/// The tree so far.
pub struct Draft {
    nodes: Vec<Option<Node>>,
    free: Vec<NodeId>,
    layer: u32,
    pub data: u64,
    memory: u64,
    limits: Limits,
    owners: Owners,
    /// For directories that nothing describes.
    made: Attributes,
}

pub const ROOT: NodeId = NodeId(0);

impl Draft {
    pub fn new(limits: Limits, owners: Owners, time: Timestamp) -> Draft {
        let mut made = Attributes { mode: 0o755, uid: 0, gid: 0, modified: time, xattrs: Xattrs::new() };
        owners.apply(&mut made);
        let root = Node { attributes: made.clone(), body: Body::directory(), links: 1, layer: 0, opaque: 0 };
        let nodes = vec![Some(root)];
        Draft { nodes, free: Vec::new(), layer: 0, data: 0, memory: OVERHEAD, limits, owners, made }
    }

    pub fn begin_layer(&mut self) {
        self.layer += 1;
    }

    /// Whether something may be hidden: this is not the first layer.
    pub fn is_layered(&self) -> bool {
        self.layer > 1
    }

    pub fn layer(&self) -> u32 {
        self.layer
    }

    pub fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0 as usize].as_ref().expect("a freed node")
    }

    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0 as usize].as_mut().expect("a freed node")
    }

    pub fn is_directory(&self, id: NodeId) -> bool {
        matches!(self.node(id).body, Body::Directory(_))
    }

    pub fn find(&self, directory: NodeId, name: &[u8]) -> Option<Link> {
        match &self.node(directory).body {
            Body::Directory(names) => names.get(name).copied(),
            _ => None,
        }
    }

    fn names(&mut self, directory: NodeId) -> Option<&mut Names> {
        match &mut self.node_mut(directory).body {
            Body::Directory(names) => Some(names),
            _ => None,
        }
    }

    /// Notes that the current layer put something at or below a name.
    pub fn mark(&mut self, directory: NodeId, name: &[u8]) {
        let layer = self.layer;
        if let Some(link) = self.names(directory).and_then(|names| names.get_mut(name)) {
            link.layer = layer;
        }
    }

    /// Fails if more data would exceed the limit.
    pub fn has_room(&self, more: u64) -> Result<(), GatherCause> {
        let fits = self.data.checked_add(more).is_some_and(|sum| sum <= self.limits.data);
        if fits { Ok(()) } else { Err(GatherCause::TooMuchData(self.limits.data)) }
    }

    /// Fails if more memory would exceed the limit.
    pub fn has_memory(&self, more: u64) -> Result<(), GatherCause> {
        let fits = self.memory.saturating_add(more) <= self.limits.memory;
        if fits { Ok(()) } else { Err(GatherCause::TooMuchMemory(self.limits.memory)) }
    }

    /// Removes what is at a spot, unless it is a directory that one will join.
    pub fn vacate(&mut self, spot: &Spot, for_directory: bool) {
        match self.find(spot.directory, &spot.name) {
            Some(link) if for_directory && self.is_directory(link.node) => {}
            Some(_) => self.remove(spot.directory, &spot.name),
            None => {}
        }
    }

    /// Puts a file at a spot, in place of what is there. A directory keeps the names of one that is there.
    pub fn put(
        &mut self,
        spot: &Spot,
        mut attributes: Attributes,
        body: Body,
    ) -> Result<NodeId, GatherCause> {
        check(&attributes, &body)?;
        self.owners.apply(&mut attributes);
        let for_directory = matches!(body, Body::Directory(_));
        self.vacate(spot, for_directory);
        if let Some(link) = self.find(spot.directory, &spot.name) {
            self.describe(link.node, attributes)?;
            self.mark(spot.directory, &spot.name);
            return Ok(link.node);
        }
        let node = Node { attributes, body, links: 0, layer: self.layer, opaque: 0 };
        self.has_memory(node.memory())?;
        self.memory += node.memory();
        if let Body::Regular(bytes) = &node.body {
            let stored = bytes.stored();
            self.has_room(stored)?;
            self.data += stored;
        }
        let id = self.add(node)?;
        self.name(spot, id)?;
        Ok(id)
    }

    /// Sets the attributes of the root directory.
    pub fn put_root(&mut self, mut attributes: Attributes) -> Result<(), GatherCause> {
        check(&attributes, &Body::directory())?;
        self.owners.apply(&mut attributes);
        self.describe(ROOT, attributes)
    }

    /// Another name for a file, in place of what is there.
    pub fn link(&mut self, spot: &Spot, id: NodeId) -> Result<(), GatherCause> {
        if self.find(spot.directory, &spot.name).is_some_and(|link| link.node == id) {
            self.mark(spot.directory, &spot.name);
            return Ok(());
        }
        // What is there may be a directory above the file.
        self.node_mut(id).links += 1;
        self.remove(spot.directory, &spot.name);
        self.node_mut(id).links -= 1;
        self.name(spot, id)
    }

    /// A directory that nothing describes.
    pub fn make(&mut self, directory: NodeId, name: &[u8]) -> Result<NodeId, GatherCause> {
        let spot = Spot { directory, name: name.into() };
        let node = Node {
            attributes: self.made.clone(),
            body: Body::directory(),
            links: 0,
            layer: self.layer,
            opaque: 0,
        };
        self.has_memory(node.memory())?;
        self.memory += node.memory();
        let id = self.add(node)?;
        self.name(&spot, id)?;
        Ok(id)
    }

    fn describe(&mut self, id: NodeId, attributes: Attributes) -> Result<(), GatherCause> {
        let layer = self.layer;
        let node = self.node_mut(id);
        let before = node.memory();
        (node.attributes, node.layer) = (attributes, layer);
        let after = node.memory();
        self.memory = self.memory - before + after;
        self.has_memory(0)
    }

    fn add(&mut self, node: Node) -> Result<NodeId, GatherCause> {
        if let Some(id) = self.free.pop() {
            self.nodes[id.0 as usize] = Some(node);
            return Ok(id);
        }
        let number = u32::try_from(self.nodes.len()).map_err(|_| GatherCause::Name("too many files"))?;
        self.nodes.push(Some(node));
        Ok(NodeId(number))
    }

    fn name(&mut self, spot: &Spot, id: NodeId) -> Result<(), GatherCause> {
        let memory = OVERHEAD + spot.name.len() as u64;
        self.has_memory(memory)?;
        let link = Link { node: id, layer: self.layer };
        let Some(names) = self.names(spot.directory) else {
            return Err(GatherCause::NotDirectory(spot.name.to_vec()));
        };
        names.insert(spot.name.clone(), link);
        self.memory += memory;
        self.node_mut(id).links += 1;
        Ok(())
    }

    /// Removes a name, and everything that only it led to.
    pub fn remove(&mut self, directory: NodeId, name: &[u8]) {
        let Some(link) = self.names(directory).and_then(|names| names.remove(name)) else { return };
        self.memory -= OVERHEAD + name.len() as u64;
        let mut unnamed = vec![link.node];
        while let Some(id) = unnamed.pop() {
            let node = self.node_mut(id);
            node.links -= 1;
            if node.links > 0 {
                continue;
            }
            let Some(node) = self.nodes[id.0 as usize].take() else { continue };
            self.memory -= node.memory();
            self.free.push(id);
            match node.body {
                Body::Regular(bytes) => self.data -= bytes.stored(),
                Body::Directory(names) => {
                    for (name, link) in names {
                        self.memory -= OVERHEAD + name.len() as u64;
                        unnamed.push(link.node);
                    }
                }
                _ => {}
            }
        }
    }

    /// Removes a name that is from lower layers. Of a directory that this layer puts something into, only that stays.
    pub fn white_out(&mut self, spot: &Spot) {
        match self.find(spot.directory, &spot.name) {
            Some(link) if link.layer < self.layer => self.remove(spot.directory, &spot.name),
            Some(link) if self.is_directory(link.node) => {
                self.forget_attributes(link.node);
                self.make_opaque(link.node);
            }
            _ => {}
        }
    }

    /// Makes a directory that only lower layers describe one that nothing describes.
    fn forget_attributes(&mut self, id: NodeId) {
        if self.node(id).layer < self.layer {
            let made = self.made.clone();
            // It has no more attributes than before, so it fits.
            let _fits = self.describe(id, made);
        }
    }

    /// Removes what lower layers have in a directory, at any depth.
    pub fn make_opaque(&mut self, directory: NodeId) {
        let mut directories = vec![directory];
        while let Some(directory) = directories.pop() {
            let layer = self.layer;
            if std::mem::replace(&mut self.node_mut(directory).opaque, layer) == layer {
                continue;
            }
            let Body::Directory(names) = &self.node(directory).body else { continue };
            let (mut lower, below) = (Vec::new(), directories.len());
            for (name, link) in names {
                if link.layer < self.layer {
                    lower.push(name.clone());
                } else if self.is_directory(link.node) {
                    directories.push(link.node);
                }
            }
            for &kept in &directories[below..] {
                self.forget_attributes(kept);
            }
            for name in lower {
                self.remove(directory, &name);
            }
        }
    }

    /// Takes a node away when the tree is complete.
    pub fn take(&mut self, id: NodeId) -> Option<Node> {
        self.nodes[id.0 as usize].take()
    }

    /// One more than the highest number of a node.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
}

impl NodeId {
    pub fn number(self) -> usize {
        self.0 as usize
    }
}

/// Whether a file can have these attributes.
fn check(attributes: &Attributes, body: &Body) -> Result<(), GatherCause> {
    if let Body::Symlink(target) = body
        && (target.is_empty() || target.len() > 4095 || target.contains(&0))
    {
        return Err(GatherCause::Name("a symbolic link's target has 1 to 4095 bytes and no NUL"));
    }
    for (name, value) in &attributes.xattrs {
        if name.is_empty() || name.len() > XATTR_NAME_MAX || name.contains(&0) {
            return Err(GatherCause::Name("an attribute's name has 1 to 255 bytes and no NUL"));
        }
        if value.len() > XATTR_SIZE_MAX as usize {
            return Err(GatherCause::Name("an attribute's value has at most 65536 bytes"));
        }
    }
    Ok(())
}
