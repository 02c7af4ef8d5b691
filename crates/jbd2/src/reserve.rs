//! Log space reserved for handles that must not wait.

use crate::journal::{Journal, Reserved};
use crate::{Error, Result};
use std::sync::Arc;

/// Log blocks reserved before a handle is started: [`Journal::reserve`], [`Journal::start_reserved`].
#[derive(Debug)]
#[must_use = "what is reserved is given back as soon as this is dropped"]
pub struct Reservation {
    credits: u32,
    blocks: u32,
    reserved: Arc<Reserved>,
}

impl Reservation {
    /// Credits that the handle will have.
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.credits
    }

    /// Log blocks reserved: the credits, plus the other blocks that a transaction of this handle alone would need.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.reserved.give_back(self.blocks);
    }
}

impl Journal {
    /// Reserves log blocks for a handle of `credits` credits that is started later ([`Journal::start_reserved`]) and
    /// must then neither wait for log space nor fail for lack of it. Waits for space now; the caller holds no handle
    /// and no lock that comes after handles.
    ///
    /// # Errors
    /// [`Error::ReservesFull`] immediately if too much is reserved already: release some first. It does not wait for
    /// other reservations, since these could be the caller's own. [`Error::TooManyCredits`]; [`Error::Aborted`].
    pub fn reserve(&self, credits: u32) -> Result<Reservation> {
        let maximum = self.limits.handle();
        if credits > maximum {
            return Err(Error::TooManyCredits { wanted: credits, maximum });
        }
        let blocks = self.limits.reservation(credits);
        loop {
            self.check_alive()?;
            let taken = {
                // Shared: free space can only grow while the lock is held.
                let state = self.state.read();
                self.reserved.take(blocks, state.space.reservable(&self.limits))
            };
            let Err(reserved) = taken else {
                return Ok(Reservation { credits, blocks, reserved: Arc::clone(&self.reserved) });
            };
            let maximum = self.limits.reservable();
            if reserved.saturating_add(blocks) > maximum {
                return Err(Error::ReservesFull { wanted: blocks, reserved, maximum });
            }
            self.make_room(blocks)?;
        }
    }
}
