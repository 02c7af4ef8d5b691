//! Splits full blocks of entries, and grows the hash tree above them. Only makes a plan, and changes nothing.

use super::edit::{DirEdit, Sheet};
use super::htree::{self, Path, dots, hash_of, with_index};
use super::row::{self, Entry};
use super::rows::Rows;
use crate::ground::error::{Error, Limit, Result};
use uext4_ondisk::ext4::{
    CaseFolder, Compat, DirBlockKind, HashVersion, HtreeEntry, encode_htree_entries, encode_htree_root_info,
    set_htree_levels,
};
use uext4_ondisk::{Corrupt, CorruptKind, Lblk, Pblk};

/// An entry's bytes, and its hash.
struct Record {
    hash: u32,
    bytes: Vec<u8>,
}

/// Plans room for a name that fits into no gap.
pub(super) fn plan<R: Rows>(rows: &R, entry: &Entry<'_>, hashed: &[u8]) -> Result<DirEdit> {
    if rows.shape().indexed {
        return divide(rows, entry, htree::descend(rows, hashed)?);
    }
    let record = entry.bytes(&rows.shape().format)?;
    if rows.shape().blocks > 1 || !may_index(rows) {
        let fresh = vec![leaf(rows, [record.as_slice()])?];
        return Ok(DirEdit { changed: Vec::new(), fresh });
    }
    let (place, old) = sheet(rows, 0)?;
    let mut records = rows.block(0, |block| {
        dots(block, false)?;
        row::records(block.row()?, &old.bytes).map_err(|corrupt| block.corrupt(corrupt))
    })?;
    records.push(record);
    let rest = records.split_off(2);
    let mut fresh = lay_out(rows, &records, rest)?;
    Ok(DirEdit { changed: vec![(place, fresh.remove(0))], fresh })
}

/// A copy of a block, with its location.
pub(super) fn sheet<R: Rows>(rows: &R, number: u32) -> Result<(Pblk, Sheet)> {
    rows.block(number, |block| {
        Ok((block.physical, Sheet { kind: block.kind, bytes: block.bytes.to_vec(), sealed: false }))
    })
}

fn may_index<R: Rows>(rows: &R) -> bool {
    rows.superblock().features.compat.contains(Compat::DIR_INDEX)
}

/// A new block of entries.
fn leaf<'r, R: Rows>(rows: &R, records: impl IntoIterator<Item = &'r [u8]>) -> Result<Sheet> {
    let (format, kind) = (&rows.shape().format, DirBlockKind::Linear);
    let mut bytes = vec![0; format.block_size as usize];
    row::fill(&mut bytes[..format.row_length(kind) as usize], records, format)?;
    Ok(Sheet { kind, bytes, sealed: false })
}

/// The blocks of a directory: one if everything fits, otherwise a hash tree, or two blocks without one.
pub(super) fn lay_out<R: Rows>(rows: &R, dots: &[Vec<u8>], records: Vec<Vec<u8>>) -> Result<Vec<Sheet>> {
    let all = || dots.iter().chain(&records).map(Vec::as_slice);
    let area = rows.shape().format.row_length(DirBlockKind::Linear) as usize;
    let mut end = 0;
    let fitting = all().take_while(|record| {
        end += record.len();
        end <= area
    });
    let fitting = fitting.count();
    if fitting == all().count() {
        return Ok(vec![leaf(rows, all())?]);
    }
    if !may_index(rows) {
        return Ok(vec![leaf(rows, all().take(fitting))?, leaf(rows, all().skip(fitting))?]);
    }
    let superblock = rows.superblock();
    let version = HashVersion::from_disk(superblock.hash.default_version, superblock.hash_unsigned());
    let field = || Error::from(Corrupt::from(CorruptKind::SuperblockField("def_hash_version")));
    let version = version.filter(|version| *version != HashVersion::SipHash).ok_or_else(field)?;
    let (first, second) = halves(rows, hashed(rows, records, version)?)?;
    let mut children = vec![HtreeEntry { hash: 0, child: Lblk(1) }];
    children.extend(second.as_ref().map(|(border, _)| HtreeEntry { hash: *border, child: Lblk(2) }));
    let root = root(rows, dots, version, &children)?;
    Ok([root, first].into_iter().chain(second.map(|(_, second)| second)).collect())
}

fn root<R: Rows>(rows: &R, dots: &[Vec<u8>], version: HashVersion, children: &[HtreeEntry]) -> Result<Sheet> {
    let (format, kind) = (&rows.shape().format, DirBlockKind::HtreeRoot);
    let mut bytes = vec![0; format.block_size as usize];
    row::fill(&mut bytes, dots.iter().map(Vec::as_slice), format)?;
    encode_htree_root_info(&mut bytes, version, 0)?;
    encode_htree_entries(&mut bytes, kind, children, format)?;
    Ok(Sheet { kind, bytes, sealed: false })
}

/// Entries with their hashes, sorted by hash.
fn hashed<R: Rows>(rows: &R, records: Vec<Vec<u8>>, version: HashVersion) -> Result<Vec<Record>> {
    let mut folder = rows.shape().folds.then(CaseFolder::new);
    let hash = |bytes: Vec<u8>| {
        let name = row::name(&bytes);
        let form = folder.as_mut().and_then(|folder| folder.fold(name)).unwrap_or(name);
        Ok(Record { hash: hash_of(rows, form, version)?, bytes })
    };
    let mut hashed = records.into_iter().map(hash).collect::<Result<Vec<_>>>()?;
    hashed.sort_by_key(|record| record.hash);
    Ok(hashed)
}

/// Fills one block with entries, or two if they do not fit into one. The second comes with its first hash, in which bit
/// 0 says that names of this hash are in both.
fn halves<R: Rows>(rows: &R, records: Vec<Record>) -> Result<(Sheet, Option<(u32, Sheet)>)> {
    let bytes = |records: &[Record]| records.iter().map(|record| record.bytes.len()).sum::<usize>();
    let block = |records: &[Record]| leaf(rows, records.iter().map(|record| record.bytes.as_slice()));
    let total = bytes(&records);
    if total <= rows.shape().format.row_length(DirBlockKind::Linear) as usize {
        return Ok((block(&records)?, None));
    }
    // Split by bytes rather than by names, which differ in length. An entry has at most 264 bytes, so neither half is
    // empty, and both fit.
    let mut end = 0;
    let passes = |record: &Record| {
        end += record.bytes.len();
        end > total / 2
    };
    let middle = records.iter().position(passes).unwrap_or(0).max(1);
    let (first, second) = records.split_at(middle);
    let border = second.first().map_or(0, |record| record.hash);
    let goes_on = first.last().is_some_and(|last| last.hash == border);
    Ok((block(first)?, Some((border | u32::from(goes_on), block(second)?))))
}

/// Adds a name to the full block of its hash: splits the block, and the full nodes above it. If all of these are full,
/// the tree gets another level.
fn divide<R: Rows>(rows: &R, entry: &Entry<'_>, path: Path) -> Result<DirEdit> {
    let format = &rows.shape().format;
    let (place, old) = sheet(rows, path.leaf)?;
    let names = rows.block(path.leaf, |block| {
        let mut records = row::records(block.row()?, &old.bytes).map_err(|corrupt| block.corrupt(corrupt))?;
        records.push(entry.bytes(format)?);
        let mut records = hashed(rows, records, path.version)?;
        for record in records.iter_mut().filter(|record| !path.hashes.contain(record.hash)) {
            if !rows.may_be_misplaced() {
                return Err(block.corrupt(CorruptKind::HtreeHash));
            }
            // A look-up for it scans all blocks. The hash limits of the tree belong to the other names.
            record.hash = path.hashes.first();
        }
        records.sort_by_key(|record| record.hash);
        Ok(records)
    })?;
    let (first, second) = halves(rows, names)?;
    let mut plan = DirEdit { changed: vec![(place, first)], fresh: Vec::new() };
    let Some((border, second)) = second else { return Ok(plan) };
    let fresh = |plan: &DirEdit| Lblk(rows.shape().blocks.saturating_add(plan.fresh.len() as u32));
    let mut added = HtreeEntry { hash: border, child: fresh(&plan) };
    plan.fresh.push(second);
    for (level, frame) in path.frames.iter().enumerate().rev() {
        let (mut all, limit) = with_index(rows, frame.block, |_, index| {
            Ok((index.entries().collect::<Vec<_>>(), usize::from(index.limit())))
        })?;
        let (place, mut node) = sheet(rows, frame.block)?;
        let full = all.len() >= limit;
        all.insert(frame.position + 1, added);
        let mut upper = Vec::new();
        if full && level == 0 {
            // The tree grows at its root: the root's entries move to a new node.
            let levels = path.frames.len() as u8;
            if levels > format.htree_levels_max() {
                return Err(Error::Limit(Limit::Directory));
            }
            set_htree_levels(&mut node.bytes, levels)?;
            upper = std::mem::replace(&mut all, vec![HtreeEntry { hash: 0, child: fresh(&plan) }]);
        } else if full {
            upper = all.split_off(all.len() / 2);
            added = HtreeEntry { hash: upper.first().map_or(0, |entry| entry.hash), child: fresh(&plan) };
        }
        encode_htree_entries(&mut node.bytes, node.kind, &all, format)?;
        plan.changed.push((place, node));
        if upper.is_empty() {
            break;
        }
        let (kind, mut bytes) = (DirBlockKind::HtreeNode, vec![0; format.block_size as usize]);
        encode_htree_entries(&mut bytes, kind, &upper, format)?;
        plan.fresh.push(Sheet { kind, bytes, sealed: false });
    }
    Ok(plan)
}
