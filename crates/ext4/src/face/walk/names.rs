//! Directory entries packed tightly, so that a million fit into a few tens of megabytes.

use crate::inode::metadata::FileKind;
use uext4_ondisk::Ino;

/// A window ends when its names take this many bytes.
const NAMES_BYTES: usize = 16 << 20;
/// Most entries of a window (12 MiB).
const ENTRIES: usize = 1 << 20;

/// One entry; its name lies in the arena.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    pub(super) ino: Ino,
    start: u32,
    length: u8,
    /// The type as the directory stores it; 0 if it stores none.
    kind: u8,
}

impl Item {
    pub(super) fn kind(&self) -> Option<FileKind> {
        FileKind::from_dir_entry(self.kind)
    }
}

/// A list of entries that is consumed from the front.
#[derive(Debug, Default)]
pub(super) struct Names {
    arena: Vec<u8>,
    items: Vec<Item>,
    next: usize,
}

impl Names {
    /// Adds an entry. Names are 1 to 255 bytes.
    pub(super) fn push(&mut self, name: &[u8], ino: Ino, kind: Option<FileKind>) {
        // A window is bounded long before an offset outgrows 32 bits, and a name by the format.
        let (Ok(start), Ok(length)) = (u32::try_from(self.arena.len()), u8::try_from(name.len())) else {
            return;
        };
        self.arena.extend_from_slice(name);
        self.items.push(Item { ino, start, length, kind: kind.map_or(0, FileKind::dir_entry_value) });
    }

    /// Removes the entry added last.
    pub(super) fn pop_last(&mut self) {
        if let Some(item) = self.items.pop() {
            self.arena.truncate(item.start as usize);
        }
    }

    /// Whether to consume the list before adding more.
    pub(super) fn is_full(&self) -> bool {
        self.arena.len() >= NAMES_BYTES || self.items.len() >= ENTRIES
    }

    /// Sorts by inode number, which is the order of the inode tables.
    pub(super) fn sort_by_inode(&mut self) {
        self.items.sort_unstable_by_key(|item| (item.ino, item.start));
    }

    /// Takes the next entry.
    pub(super) fn take_next(&mut self) -> Option<Item> {
        let item = *self.items.get(self.next)?;
        self.next += 1;
        Some(item)
    }

    /// The entries not yet taken by [`Names::take_next`].
    pub(super) fn rest(&self) -> &[Item] {
        self.items.get(self.next..).unwrap_or_default()
    }

    /// The name of an entry of this list.
    pub(super) fn name(&self, item: &Item) -> &[u8] {
        let start = item.start as usize;
        self.arena.get(start..start + usize::from(item.length)).unwrap_or_default()
    }

    /// Empties the list but keeps its memory.
    pub(super) fn clear(&mut self) {
        self.arena.clear();
        self.items.clear();
        self.next = 0;
    }
}
