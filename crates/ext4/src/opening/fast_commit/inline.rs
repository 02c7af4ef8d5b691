//! Contents inside an inode's record: the 60 bytes of the mapping and the value of the attribute `system.data`
//! (`crate::inline` reads them).

use super::chain::{self, Entry};
use super::inode::Node;
use crate::ground::canvas::Canvas;
use crate::ground::error::{Error, Result};
use std::ops::Range;
use uext4_ondisk::ext4::{DirFormat, XattrArea, XattrFormat, XattrIndex, XattrValue};
use uext4_ondisk::{Corrupt, CorruptKind, Ino};

const ATTRIBUTE: &[u8] = b"data";
/// Bytes of the parent's number, before the entries of a directory.
const PARENT_SIZE: usize = 4;
/// Bytes of the magic number before the attributes, and of an attribute's head.
const MAGIC_SIZE: usize = 4;
const HEAD_SIZE: usize = 16;

/// Where an attribute's entry and its value are in the record.
struct Attribute {
    entry: Range<usize>,
    value: Range<usize>,
    /// End of all entries.
    end: usize,
}

/// Finds the attribute with the contents.
fn find(canvas: &Canvas<'_>, node: &Node) -> Result<Option<Attribute>> {
    let superblock = &canvas.ground.superblock;
    let place = |corrupt: Corrupt| Error::from(corrupt.in_inode(node.draft.ino));
    let range = node.draft.disk.xattr_range(superblock);
    let (Some(bytes), true) = (node.draft.raw.get(range.clone()), node.draft.disk.extra_isize > 0) else {
        return Ok(None);
    };
    let area = XattrArea::in_inode(bytes, &XattrFormat::new(superblock)).map_err(place)?;
    let wanted = area.and_then(|area| area.find(XattrIndex::System, ATTRIBUTE));
    let Some(wanted) = wanted else { return Ok(None) };
    let XattrValue::Here(value) = wanted.value else {
        let what = CorruptKind::InlineData("the attribute `system.data` lies in another inode");
        return Err(place(what.into()));
    };
    // The area was checked: its entries end with four zero bytes, and every one lies inside.
    let base = range.start + MAGIC_SIZE;
    let mut at = base;
    let mut found = None;
    while let Some(head) = node.draft.raw.get(at..at + HEAD_SIZE).filter(|head| head[..4] != [0; 4]) {
        let next = at + (HEAD_SIZE + usize::from(head[0])).next_multiple_of(4);
        let is_it = head[1] == XattrIndex::System.to_disk()
            && node.draft.raw.get(at + HEAD_SIZE..at + HEAD_SIZE + usize::from(head[0])) == Some(ATTRIBUTE);
        if is_it {
            let offset = usize::from(u16::from_le_bytes([head[2], head[3]]));
            let start = if value.is_empty() { base } else { base + offset };
            found = Some((at..next, start..start + value.len()));
        }
        at = next;
    }
    Ok(found.map(|(entry, value)| Attribute { entry, value, end: at }))
}

/// Refuses an inode that says that its contents are inside, but has none.
pub(super) fn check(canvas: &Canvas<'_>, node: &Node) -> Result<()> {
    value(canvas, node).map(drop)
}

fn value(canvas: &Canvas<'_>, node: &Node) -> Result<Range<usize>> {
    let missing = CorruptKind::InlineData("the attribute `system.data` is missing");
    let found =
        find(canvas, node)?.ok_or_else(|| Error::from(Corrupt::from(missing).in_inode(node.draft.ino)))?;
    match node.draft.raw.get(found.value.clone()) {
        Some(_) => Ok(found.value),
        None => Err(Corrupt::from(missing).in_inode(node.draft.ino).into()),
    }
}

/// Takes the attribute away: the contents go elsewhere.
pub(super) fn remove(canvas: &Canvas<'_>, node: &mut Node) -> Result<()> {
    let Some(found) = find(canvas, node)? else { return Ok(()) };
    let raw = &mut node.draft.raw;
    if let Some(bytes) = raw.get_mut(found.value) {
        bytes.fill(0);
    }
    if found.end > raw.len() || found.entry.end > found.end {
        return Ok(());
    }
    let length = found.entry.len();
    raw.copy_within(found.entry.end..found.end, found.entry.start);
    raw[found.end - length..found.end].fill(0);
    Ok(())
}

/// Runs `each` over the two rows of a directory's entries until it answers.
pub(super) fn rows<T>(
    canvas: &Canvas<'_>,
    node: &mut Node,
    mut each: impl FnMut(&mut [u8]) -> Result<Option<T>>,
) -> Result<Option<T>> {
    // The attributes and both rows are gone through.
    canvas.work(2 * node.draft.raw.len())?;
    let second = value(canvas, node)?;
    if let Some(answer) = each(&mut node.draft.disk.i_block[PARENT_SIZE..])? {
        return Ok(Some(answer));
    }
    each(&mut node.draft.raw[second])
}

/// The parent of a directory.
pub(super) fn parent(node: &Node) -> Option<Ino> {
    node.draft.disk.i_block.first_chunk().and_then(|bytes| Ino::nonzero(u32::from_le_bytes(*bytes)))
}

/// Makes an empty directory of it.
pub(super) fn start(canvas: &Canvas<'_>, node: &mut Node, parent: Ino, format: &DirFormat) -> Result<()> {
    node.draft.disk.i_block.fill(0);
    node.draft.disk.i_block[..PARENT_SIZE].copy_from_slice(&parent.get().to_le_bytes());
    rows(canvas, node, |row| {
        row.fill(0);
        if !row.is_empty() {
            chain::free(row, 0, row.len() as u32, format)?;
        }
        Ok(None::<()>)
    })?;
    node.changed = true;
    Ok(())
}

/// All entries of a directory.
pub(super) fn entries(canvas: &Canvas<'_>, node: &mut Node, format: &DirFormat) -> Result<Vec<Entry>> {
    let mut all = Vec::new();
    rows(canvas, node, |row| {
        all.extend(chain::entries(row, format)?);
        Ok(None::<()>)
    })?;
    Ok(all)
}
