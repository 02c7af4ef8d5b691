//! Files attached to a queue.

use super::core::Core;
use crate::error::Error;
use crate::fs::{FileSystem, OpenFile};
use crate::gate::Cell;
use crate::snapshot::MapSnapshot;
use crate::switches::Switches;
use crossbeam_utils::CachePadded;
use std::sync::Arc;

/// A file attached to one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileSlot {
    index: u32,
    serial: u32,
}

/// What a request needs of its file, resolved once: this queue's own cell of the gate and the mapping last seen.
pub(crate) struct Attached<F: FileSystem> {
    pub(crate) file: OpenFile<F>,
    pub(crate) all_on: bool,
    pub(crate) cell: Arc<CachePadded<Cell>>,
    pub(crate) map: Arc<MapSnapshot>,
    pub(crate) generation: u64,
    pub(crate) pending: u32,
    serial: u32,
    detached: bool,
}

impl<F: FileSystem> Attached<F> {
    /// Follows the published mapping. Call inside the gate: what is current then stays valid until the gate is left.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        let map = &F::state(&self.file.inode).map;
        if map.generation() != self.generation {
            self.follow();
        }
    }

    #[cold]
    fn follow(&mut self) {
        (self.generation, self.map) = F::state(&self.file.inode).map.current();
    }
}

impl<F: FileSystem> Core<F> {
    pub(super) fn attach(&mut self, file: &OpenFile<F>) -> FileSlot {
        let state = file.state();
        let (generation, map) = state.map.current();
        let index = self.files.iter().position(Option::is_none).unwrap_or_else(|| {
            self.files.push(None);
            self.files.len() - 1
        });
        self.serial = self.serial.wrapping_add(1);
        self.files[index] = Some(Attached {
            file: file.clone(),
            all_on: file.switches == Switches::ON,
            cell: state.gate.register(),
            map,
            generation,
            pending: 0,
            serial: self.serial,
            detached: false,
        });
        FileSlot { index: index as u32, serial: self.serial }
    }

    pub(super) fn detach(&mut self, slot: FileSlot) -> Result<(), Error> {
        let index = self.index(slot)?;
        if let Some(attached) = &mut self.files[index] {
            attached.detached = true;
        }
        self.let_go(index);
        Ok(())
    }

    /// Frees a detached file once nothing of it is pending.
    pub(super) fn let_go(&mut self, index: usize) {
        let gone = self.files[index].as_ref().is_some_and(|file| file.detached && file.pending == 0);
        if gone && let Some(attached) = self.files[index].take() {
            attached.file.state().gate.unregister(&attached.cell);
        }
    }

    #[inline]
    pub(crate) fn index(&self, slot: FileSlot) -> Result<usize, Error> {
        match self.files.get(slot.index as usize) {
            Some(Some(file)) if file.serial == slot.serial && !file.detached => Ok(slot.index as usize),
            _ => Err(Error::BadSlot),
        }
    }

    #[inline]
    pub(super) fn file(&self, slot: FileSlot) -> Result<&Attached<F>, Error> {
        match self.files.get(slot.index as usize) {
            Some(Some(file)) if file.serial == slot.serial && !file.detached => Ok(file),
            _ => Err(Error::BadSlot),
        }
    }
}
