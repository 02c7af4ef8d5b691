//! What a queued request holds of its file.

use crate::fs::FileSystem;
use crate::gate::{Busy, Cell};
use crossbeam_utils::CachePadded;
use std::sync::Arc;

/// A file held by one queue: its inode, and the queue's own cell of the gate. Only this queue clones it.
pub(crate) struct Hold<F: FileSystem> {
    pub(crate) inode: Arc<F::Inode>,
    pub(crate) cell: Arc<CachePadded<Cell>>,
}

/// A request inside the gate and in flight. Dropping it ends both, so code that refuses a request just returns.
pub(crate) struct Ticket<F: FileSystem> {
    hold: Arc<Hold<F>>,
    inside: bool,
}

impl<F: FileSystem> Ticket<F> {
    /// Enters the gate, unless it is held exclusively.
    pub(crate) fn enter(hold: &Arc<Hold<F>>) -> Result<Self, Busy> {
        F::state(&hold.inode).gate.enter(&hold.cell)?;
        Ok(Ticket { hold: hold.clone(), inside: true })
    }

    /// A request in flight only, for a caller that holds the gate exclusively.
    pub(crate) fn raise(hold: &Arc<Hold<F>>) -> Self {
        F::state(&hold.inode).gate.raise(&hold.cell);
        Ticket { hold: hold.clone(), inside: false }
    }

    /// Leaves the gate after submission; the request stays in flight.
    pub(crate) fn leave_gate(&mut self) {
        if std::mem::take(&mut self.inside) {
            F::state(&self.hold.inode).gate.leave(&self.hold.cell);
        }
    }
}

impl<F: FileSystem> Drop for Ticket<F> {
    fn drop(&mut self) {
        self.leave_gate();
        F::state(&self.hold.inode).gate.complete(&self.hold.cell);
    }
}
