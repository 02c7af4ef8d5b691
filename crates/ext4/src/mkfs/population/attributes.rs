//! Extended attributes of the files of a new volume: in their records, in blocks that files with the same attributes
//! share, and in inodes that hold large values.

use crate::change::set_xattr::split;
use crate::ground::error::{AttributeError, Error, Result};
use crate::mkfs::tree::{Item, ItemKind};
use crate::xattr::{AclKind, Lists, XATTR_SIZE_MAX, acl};
use std::collections::{BTreeMap, HashMap};
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::{ListedValue, Superblock, XattrIndex, XattrList};

/// Inodes that share an attribute block, at most (`EXT4_XATTR_REFCOUNT_MAX`).
const SHARING_MAX: u32 = 1024;

/// An attribute block, and how many inodes have it.
pub(super) struct SharedBlock {
    pub(super) list: XattrList,
    pub(super) references: u32,
}

/// An inode that holds a value, and how many lists refer to it.
pub(super) struct Value {
    pub(super) ino: Ino,
    pub(super) checksum: u32,
    pub(super) references: u32,
}

/// The attributes of one file.
pub(super) struct Kept {
    pub(super) record: XattrList,
    /// Which of [`Attributes::blocks`] it has.
    pub(super) block: Option<usize>,
    /// Its permissions, of which access control lists are a part.
    pub(super) mode: u16,
}

/// The attributes of all files.
pub(super) struct Attributes {
    pub(super) blocks: Vec<SharedBlock>,
    /// By their contents.
    pub(super) values: BTreeMap<Vec<u8>, Value>,
    /// Blocks by the hash of their lists: the last one that is not full.
    open: HashMap<u32, usize>,
    /// The inode of the next value.
    next: Ino,
}

impl Attributes {
    /// Values get inodes from `next` on.
    pub(super) fn new(next: Ino) -> Attributes {
        Attributes { blocks: Vec::new(), values: BTreeMap::new(), open: HashMap::new(), next }
    }

    /// Adds those of a file whose record has `room` bytes for them.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for an unknown name space, [`Error::Invalid`] for an access control list that is none,
    /// [`Error::Limit`] if they do not fit.
    pub(super) fn add(&mut self, item: &Item, superblock: &Superblock, room: usize) -> Result<Kept> {
        let mut mode = item.mode & 0o7777;
        if item.xattrs.is_empty() {
            return Ok(Kept { record: XattrList::default(), block: None, mode });
        }
        let mut lists = Lists::empty(superblock, room);
        for (name, value) in &item.xattrs {
            let (space, rest) = split(name)?;
            let kind = match space {
                XattrIndex::AclAccess => Some(AclKind::Access),
                XattrIndex::AclDefault => Some(AclKind::Default),
                _ => None,
            };
            match kind {
                Some(AclKind::Default) if !matches!(item.kind, ItemKind::Directory(_)) => {
                    return Err(Error::Attribute(AttributeError::DefaultAcl));
                }
                Some(kind) => {
                    let acl = acl::from_call(value)?;
                    acl.iter().try_for_each(acl::check)?;
                    acl::set_in(&mut lists, &mut mode, kind, acl.as_ref())?;
                }
                None if value.len() > XATTR_SIZE_MAX as usize => {
                    let most = u64::from(XATTR_SIZE_MAX);
                    return Err(Error::TooLarge { size: value.len() as u64, most });
                }
                None => lists.set(space, rest, value)?,
            }
        }
        let (values, next) = (&mut self.values, &mut self.next);
        lists.place_values(|new| {
            let value = values.entry(new.bytes.clone()).or_insert_with(|| {
                let ino = *next;
                next.0 += 1;
                Value { ino, checksum: new.checksum, references: 0 }
            });
            Ok(Some(value.ino))
        })?;
        let block = (!lists.block.entries.is_empty()).then(|| self.share(lists.block));
        self.refer(&lists.record);
        Ok(Kept { record: lists.record, block, mode })
    }

    /// A block with this list.
    fn share(&mut self, list: XattrList) -> usize {
        let hash = list.block_hash();
        let open = self.open.get(&hash).and_then(|&at| Some((at, self.blocks.get_mut(at)?)));
        if let Some((at, block)) =
            open.filter(|(_, block)| block.references < SHARING_MAX && block.list == list)
        {
            block.references += 1;
            return at;
        }
        self.refer(&list);
        self.blocks.push(SharedBlock { list, references: 1 });
        let at = self.blocks.len() - 1;
        if hash != 0 {
            self.open.insert(hash, at);
        }
        at
    }

    /// Counts the references of a list to values.
    fn refer(&mut self, list: &XattrList) {
        let held = |entry: &ListedValue| match *entry {
            ListedValue::Inode { inode, .. } => Some(inode),
            ListedValue::Here { .. } => None,
        };
        for ino in list.entries.iter().filter_map(|entry| held(&entry.value)) {
            if let Some(value) = self.values.values_mut().find(|value| value.ino == ino) {
                value.references += 1;
            }
        }
    }
}
