//! Extended attributes: names and values of an inode, from its record, its attribute block and the inodes that hold
//! large values.
//!
//! Look-ups follow the kernel (`fs/ext4/xattr.c`): the record takes precedence over the block, and attributes internal
//! to the file system (`system.data`) are neither listed nor found. Two things go beyond the kernel: every hash of a
//! value is verified, and damage in one place does not hide the other, since no name is in both.

pub(crate) mod acl;
mod known;
mod lists;
pub(crate) mod values;

pub(crate) use acl::InheritedAcl;
pub(crate) use known::{Known, KnownAttributes};
pub(crate) use lists::{Lists, NewValue, decode_block, read_block};

use crate::ground::error::{Error, Result};
use crate::inode::Ext4State;
use crate::inode::Inode;
use crate::inode::core::InodeValue;
use crate::map;
use std::collections::HashSet;
use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;
use uext4_ondisk::ext4::{
    Acl, InodeFlags, XattrArea, XattrBlock, XattrEntry, XattrFormat, XattrIndex, XattrValue,
    verify_xattr_entry_hash, xattr_value_checksum,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino};

/// Largest value that can be read and set: the limit of the system calls (`XATTR_SIZE_MAX`).
pub const XATTR_SIZE_MAX: u32 = 65_536;

bitflags::bitflags! {
    /// Whether an attribute that is set must be a new one, which access control lists ignore, as in Linux; and whether
    /// limits hold.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct XattrFlags: u32 {
        /// It must not exist yet.
        const CREATE = 1;
        /// It must exist.
        const REPLACE = 2;
        /// Limits of quota hold, as for a caller other than root. They always do while the file is open with
        /// [`OpenOptions::limited`](crate::OpenOptions::limited).
        const LIMITED = 1 << 16;
    }
}

/// The full name of an attribute, such as `user.comment`: bytes without NUL, not necessarily UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrName(Vec<u8>);

impl XattrName {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, owned.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// The kind of access control list, if it is one.
    pub fn acl_kind(&self) -> Option<AclKind> {
        [AclKind::Access, AclKind::Default].into_iter().find(|kind| kind.name().as_bytes() == self.0)
    }
}

impl AsRef<[u8]> for XattrName {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for XattrName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escape_ascii().fmt(f)
    }
}

/// The names of an inode's attributes, from [`Volume::list_xattrs`](crate::Volume::list_xattrs): those in its record,
/// then those in its block.
/// A place that is damaged or cannot be read yields an error instead of its names; the other place is still listed.
/// Collecting into a `Result` gives all names or the first error, as the kernel does.
#[derive(Debug, Clone)]
pub struct XattrNames(std::vec::IntoIter<Result<XattrName>>);

impl Iterator for XattrNames {
    type Item = Result<XattrName>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for XattrNames {}

impl FusedIterator for XattrNames {}

/// The attributes of an inode, from [`Volume::xattrs_of`](crate::Volume::xattrs_of), in the order of [`XattrNames`] and
/// with its errors. If a name occurs twice, the first counts, as in a look-up.
pub struct Xattrs<'v> {
    state: &'v Ext4State,
    inode: Arc<Inode>,
    examined: usize,
    found: std::vec::IntoIter<Result<(XattrIndex, XattrName, Stored)>>,
}

impl Xattrs<'_> {
    /// How many entries were examined, including unlisted ones.
    pub fn examined(&self) -> usize {
        self.examined
    }
}

impl<'v> Iterator for Xattrs<'v> {
    type Item = Result<Xattr<'v>>;

    fn next(&mut self) -> Option<Self::Item> {
        let (state, inode) = (self.state, &self.inode);
        let named = |(space, name, stored)| Xattr { state, inode: Arc::clone(inode), space, name, stored };
        self.found.next().map(|found| found.map(named))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.found.size_hint()
    }
}

impl ExactSizeIterator for Xattrs<'_> {}

impl FusedIterator for Xattrs<'_> {}

/// One attribute of an inode, from [`Xattrs`].
pub struct Xattr<'v> {
    state: &'v Ext4State,
    inode: Arc<Inode>,
    space: XattrIndex,
    name: XattrName,
    stored: Stored,
}

impl Xattr<'_> {
    /// The name.
    pub fn name(&self) -> &XattrName {
        &self.name
    }

    /// Bytes of the stored value, according to its entry.
    pub fn stored_size(&self) -> u64 {
        match &self.stored {
            Stored::Here { size, .. } | Stored::Elsewhere { size, .. } => (*size).into(),
        }
    }

    /// The value, as returned by [`Volume::xattr_of`](crate::Volume::xattr_of). A value in an inode of its own is read
    /// now.
    ///
    /// # Errors
    /// As [`Volume::xattr_of`](crate::Volume::xattr_of); [`Error::NoAttribute`] for an access control list without
    /// entries.
    pub fn value(self) -> Result<Vec<u8>> {
        let name = XattrIndex::split(self.name.as_bytes()).map(|(_, name)| name).unwrap_or_default();
        let value = match self.stored {
            here @ Stored::Here { .. } => read_stored(self.state, &self.inode, name, here)?,
            // It may have moved since it was listed.
            Stored::Elsewhere { .. } => {
                value_of(self.state, &self.inode, self.space, name)?.ok_or(Error::NoAttribute)?
            }
        };
        as_called(self.inode.ino(), self.space, value)
    }
}

/// One of the two access control lists that a file can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AclKind {
    /// Access rights to the file.
    Access,
    /// The list that new files in the directory inherit.
    Default,
}

impl AclKind {
    /// The name of the attribute that stores it.
    pub fn name(self) -> &'static str {
        match self {
            AclKind::Access => "system.posix_acl_access",
            AclKind::Default => "system.posix_acl_default",
        }
    }
}

/// The names of all attributes of an inode.
pub(crate) fn names(state: &Ext4State, inode: &Inode) -> XattrNames {
    let _changes_wait = inode.attributes.read();
    let mut found = Vec::new();
    let mut list = |entry: XattrEntry<'_>| {
        if entry.index().is_some_and(XattrIndex::is_listed) {
            found.extend(entry.full_name().map(|name| Ok(XattrName(name))));
        }
        None::<()>
    };
    let record = visit_record(state, inode, &mut list);
    let block = visit_block(state, inode, &mut list);
    // A place is checked as a whole before its first entry is visited, so a damaged one has no names here.
    found.extend([record, block].into_iter().filter_map(|place| place.err().map(Err)));
    XattrNames(found.into_iter())
}

/// All attributes of an inode with their values, in one pass.
pub(crate) fn all(state: &Ext4State, inode: Arc<Inode>) -> Xattrs<'_> {
    let (mut found, mut names, mut examined) = (Vec::new(), HashSet::new(), 0);
    let mut take = |entry: XattrEntry<'_>| {
        examined += 1;
        let space = entry.index().filter(|space| space.is_listed())?;
        let name = XattrName(entry.full_name()?);
        if names.insert(name.clone()) {
            found.push(Ok((space, name, Stored::of(&entry))));
        }
        None::<()>
    };
    let (record, block) = {
        let _changes_wait = inode.attributes.read();
        (visit_record(state, &inode, &mut take), visit_block(state, &inode, &mut take))
    };
    found.extend([record, block].into_iter().filter_map(|place| place.err().map(Err)));
    Xattrs { state, inode, examined, found: found.into_iter() }
}

/// Whether an inode may have attributes. Looks at its record, but not at its attribute block.
pub(crate) fn may_have(state: &Ext4State, ino: Ino) -> Result<bool> {
    let inode = state.inode(ino)?;
    Ok(inode.disk().xattr_block.get() != 0 || !matches!(in_record(state, &inode.disk()), Ok(None)))
}

/// The stored value of a listed attribute, and its name space.
pub(crate) fn stored(state: &Ext4State, inode: &Inode, name: &[u8]) -> Result<(XattrIndex, Vec<u8>)> {
    let listed = XattrIndex::split(name).filter(|(space, _)| space.is_listed());
    let (space, name) = listed.ok_or(Error::NoAttribute)?;
    Ok((space, value_of(state, inode, space, name)?.ok_or(Error::NoAttribute)?))
}

/// Whether an inode has such an attribute. Searches both places, including unlisted attributes.
pub(crate) fn any(
    state: &Ext4State,
    inode: &Inode,
    mut is_it: impl FnMut(&XattrEntry<'_>) -> bool,
) -> Result<bool> {
    let _changes_wait = inode.attributes.read();
    Ok(visit(state, inode, |entry| is_it(&entry).then_some(()))?.is_some())
}

/// The attributes inside the inode's record.
pub(crate) fn in_record<'a>(state: &Ext4State, core: &'a InodeValue) -> Result<Option<XattrArea<'a>>> {
    let area = XattrArea::in_inode(core.record_xattrs(), &XattrFormat::new(&state.superblock));
    Ok(area.map_err(|corrupt| corrupt.in_inode(core.ino()))?)
}

/// Calls `each` for the attributes in the record until it returns `Some`.
fn visit_record<T>(
    state: &Ext4State,
    inode: &Inode,
    each: impl FnMut(XattrEntry<'_>) -> Option<T>,
) -> Result<Option<T>> {
    Ok(in_record(state, &inode.disk())?.and_then(|area| area.entries().find_map(each)))
}

/// Calls `each` for the attributes in the block until it returns `Some`.
fn visit_block<T>(
    state: &Ext4State,
    inode: &Inode,
    each: impl FnMut(XattrEntry<'_>) -> Option<T>,
) -> Result<Option<T>> {
    let block = inode.disk().xattr_block;
    if block.get() == 0 {
        return Ok(None);
    }
    if !state.zones.allows(block.get(), 1) {
        return Err(state.corrupt_inode(inode.ino(), format!("attributes in metadata block {block}")));
    }
    let buffer = state.cache.read(block.get())?;
    // Verify the shared buffer on every read: the checksum is cheap compared with the rest.
    let decoded = XattrBlock::decode(&buffer, block, &state.superblock)
        .map_err(|corrupt| corrupt.in_inode(inode.ino()))?;
    Ok(decoded.area.entries().find_map(each))
}

/// Calls `each` for all attributes until it returns `Some`, those in the record first. If the record cannot be read,
/// the block is searched all the same, and the record's error is returned if nothing is found there.
fn visit<T>(
    state: &Ext4State,
    inode: &Inode,
    mut each: impl FnMut(XattrEntry<'_>) -> Option<T>,
) -> Result<Option<T>> {
    let record = visit_record(state, inode, &mut each);
    if let Ok(Some(_)) = record {
        return record;
    }
    match visit_block(state, inode, each) {
        Ok(Some(answer)) => Ok(Some(answer)),
        block => record.and(block),
    }
}

/// The value as the system calls return it.
pub(crate) fn as_called(ino: Ino, space: XattrIndex, value: Vec<u8>) -> Result<Vec<u8>> {
    if !matches!(space, XattrIndex::AclAccess | XattrIndex::AclDefault) {
        return Ok(value);
    }
    let acl = Acl::decode(&value).map_err(|corrupt| corrupt.in_inode(ino))?;
    // A list without entries counts as none, as in the kernel.
    if acl.entries.is_empty() { Err(Error::NoAttribute) } else { Ok(acl.encode_xattr()) }
}

/// Where a value was found.
enum Stored {
    /// In the entry's own place; an error if the hash is wrong.
    Here {
        size: u32,
        value: std::result::Result<Vec<u8>, Corrupt>,
    },
    Elsewhere {
        inode: Ino,
        size: u32,
        entry_hash: u32,
    },
}

impl Stored {
    fn of(entry: &XattrEntry<'_>) -> Stored {
        match entry.value {
            XattrValue::Here(bytes) => Stored::Here {
                // A value is shorter than its block or record.
                size: bytes.len() as u32,
                value: entry.verify_hash().map(|()| bytes.to_vec()),
            },
            XattrValue::Inode { inode, size } => Stored::Elsewhere { inode, size, entry_hash: entry.hash },
        }
    }
}

/// The stored value of an attribute.
pub(crate) fn value_of(
    state: &Ext4State,
    inode: &Inode,
    space: XattrIndex,
    name: &[u8],
) -> Result<Option<Vec<u8>>> {
    let _changes_wait = inode.attributes.read();
    let found = visit(state, inode, |entry| {
        (entry.name_index == space.to_disk() && entry.name == name).then(|| Stored::of(&entry))
    })?;
    found.map(|stored| read_stored(state, inode, name, stored)).transpose()
}

/// Reads the value found under the stored name `name`.
fn read_stored(state: &Ext4State, owner: &Inode, name: &[u8], stored: Stored) -> Result<Vec<u8>> {
    match stored {
        Stored::Here { value, .. } => Ok(value.map_err(|corrupt| corrupt.in_inode(owner.ino()))?),
        Stored::Elsewhere { inode, size, entry_hash } => {
            value_in_inode(state, owner, inode, size, name, entry_hash)
        }
    }
}

/// The value in an inode of its own, checked against the hashes there and in the entry.
fn value_in_inode(
    state: &Ext4State,
    owner: &Inode,
    holder: Ino,
    size: u32,
    name: &[u8],
    entry_hash: u32,
) -> Result<Vec<u8>> {
    let refuse = |what| Error::from(Corrupt::from(CorruptKind::XattrValueInode(what)).in_inode(holder));
    if size > XATTR_SIZE_MAX {
        return Err(Error::TooLarge { size: u64::from(size), most: u64::from(XATTR_SIZE_MAX) });
    }
    if holder == owner.ino() {
        return Err(refuse("the file itself"));
    }
    let inode = state.any_inode(holder)?;
    let disk = inode.disk();
    if !disk.flags.contains(InodeFlags::EA_INODE) {
        return Err(refuse("no ea_inode flag"));
    }
    if disk.xattr_block.get() != 0 || in_record(state, &disk)?.is_some() {
        return Err(refuse("attributes of its own"));
    }
    if disk.size != u64::from(size) {
        return Err(refuse("another size"));
    }
    let mut value = Vec::with_capacity(size as usize);
    let block_size = state.superblock.geometry.block_size();
    for block in 0..size.div_ceil(block_size) {
        let physical = map::metadata_block(state, &inode, block)?.ok_or_else(|| refuse("a hole"))?;
        let buffer = state.cache.read(physical)?;
        let left = (size as usize - value.len()).min(block_size as usize);
        value.extend_from_slice(&buffer[..left]);
    }
    // Such an inode uses its times for other data. The access time is the value's checksum. Lustre's old form has no
    // checksum; its modification time is the owner.
    let stored = disk.accessed.seconds as u32;
    let of_lustre = stored != entry_hash
        && disk.modified.seconds as u32 == owner.ino().get()
        && disk.generation == owner.disk().generation;
    if of_lustre {
        return Ok(value);
    }
    let checksum = xattr_value_checksum(state.superblock.checksum_seed(), &value);
    if checksum != stored {
        return Err(refuse("the checksum is wrong"));
    }
    verify_xattr_entry_hash(entry_hash, name, &checksum.to_le_bytes())
        .map_err(|corrupt| corrupt.in_inode(owner.ino()))?;
    Ok(value)
}
