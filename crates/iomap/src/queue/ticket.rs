//! What a request of a queue holds of its file.

use crate::fs::FileSystem;
use crate::gate::{Busy, Cell};
use crossbeam_utils::CachePadded;
use std::sync::Arc;

/// A file as one queue holds it: its inode, and the queue's own cell of the gate. Only this queue clones it.
pub(crate) struct Hold<F: FileSystem> {
    pub(crate) inode: Arc<F::Inode>,
    pub(crate) cell: Arc<CachePadded<Cell>>,
}

/// A request inside the gate and in flight. It goes with whatever became of the request: dropped, it is neither any
/// more. So who refuses a request just returns.
pub(crate) struct Ticket<F: FileSystem> {
    hold: Arc<Hold<F>>,
    inside: bool,
}

impl<F: FileSystem> Ticket<F> {
    /// Enters, if nobody holds the gate alone.
    pub(crate) fn enter(hold: &Arc<Hold<F>>) -> Result<Self, Busy> {
        F::state(&hold.inode).gate.enter(&hold.cell)?;
        Ok(Ticket { hold: hold.clone(), inside: true })
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
