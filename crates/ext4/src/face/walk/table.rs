//! Attributes of many inodes, read in the order of the inode tables with large read-ahead.
//!
//! This creates no in-memory inodes: it decodes each record (with its checksum) in the cached block of the table. If an
//! inode is already in memory, its attributes come from there.

use crate::ground::error::{Error, Result};
use crate::inode::Ext4State;
use crate::inode::metadata::Metadata;
use crate::inode::refuse_value;
use uext4_buffer::{BufferPin, BufferRef, READ_AHEAD_BYTES};
use uext4_ondisk::{Corrupt, CorruptKind, Group, Ino, Pblk};

/// Two needed blocks are read in one request if at most this many unneeded ones lie between them.
const GAP_BLOCKS: u64 = 8;

/// Where a record is.
#[derive(Clone, Copy)]
struct Position {
    group: Group,
    block: Pblk,
    offset: usize,
}

/// Reads attributes; most efficient in ascending order of inode numbers.
#[derive(Default)]
pub(crate) struct TableReader {
    /// The last group asked for, and where its table begins.
    table: Option<(Group, Pblk)>,
    /// Blocks read ahead, pinned until they are used.
    ahead: Vec<BufferPin>,
    /// Blocks `ahead.0 .. ahead.1` were read ahead.
    window: (u64, u64),
    current: Option<BufferRef>,
}

impl TableReader {
    /// The attributes of `ino`. `upcoming`: the inodes asked for next, ascending.
    pub(crate) fn metadata(
        &mut self,
        state: &Ext4State,
        ino: Ino,
        upcoming: impl Iterator<Item = Ino>,
    ) -> Result<Metadata> {
        if let Some(inode) = state.live_inode(ino) {
            refuse_value(ino, &inode.disk())?;
            return Ok(inode.metadata(state));
        }
        let position = self.position(state, ino)?;
        let number = position.block.get();
        if self.current.as_ref().is_none_or(|current| current.block() != number) {
            self.current = None;
            if number < self.window.0 || number >= self.window.1 {
                self.read_ahead(state, position, upcoming);
            }
            self.current = Some(state.cache.read(number)?);
        }
        let Some(table) = &self.current else { return Err(bad_number(ino)) };
        let (disk, kind) = state.decode_inode(table, position.offset, ino, position.block)?;
        refuse_value(ino, &disk)?;
        Ok(state.metadata_of(ino, &disk, kind))
    }

    /// Drops the read-ahead blocks: later answers are as fresh as the cache.
    pub(crate) fn reset(&mut self) {
        self.ahead.clear();
        self.window = (0, 0);
        self.current = None;
    }

    fn position(&mut self, state: &Ext4State, ino: Ino) -> Result<Position> {
        let geometry = &state.superblock.geometry;
        let (group, index) = geometry.group_of_inode(ino).ok_or_else(|| bad_number(ino))?;
        let start = match self.table {
            Some((known, start)) if known == group => start,
            _ => {
                let start = state.inode_table(group)?;
                self.table = Some((group, start));
                start
            }
        };
        let (block, offset) = geometry.inode_table_position(index);
        let block = start.checked_add(u64::from(block)).ok_or_else(|| bad_number(ino))?;
        Ok(Position { group, block, offset: offset as usize })
    }

    /// Reads ahead from this block on, in one request, while the blocks of the next inodes lie close together.
    fn read_ahead(&mut self, state: &Ext4State, from: Position, upcoming: impl Iterator<Item = Ino>) {
        let geometry = &state.superblock.geometry;
        let first = from.block.get();
        let most = u64::from(READ_AHEAD_BYTES / geometry.block_size());
        let mut end = first + 1;
        for ino in upcoming {
            let Some((group, index)) = geometry.group_of_inode(ino) else { break };
            let Some((_, table)) = self.table.filter(|_| group == from.group) else { break };
            let block = table.get().saturating_add(u64::from(geometry.inode_table_position(index).0));
            // The caller chooses the order, and a damaged descriptor may put the table anywhere.
            if block < first || block >= first + most || block > end + GAP_BLOCKS {
                break;
            }
            end = end.max(block + 1);
        }
        self.ahead.clear();
        self.window = (first, end);
        // The cache reads a single block on demand.
        if let Ok(count @ 2..) = u32::try_from(end - first) {
            self.ahead = state.cache.read_ahead(first, count);
        }
    }
}

fn bad_number(ino: Ino) -> Error {
    Corrupt::from(CorruptKind::InodeNumber).in_inode(ino).into()
}
