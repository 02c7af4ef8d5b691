//! Hides capabilities of a device. It never claims one that the device lacks; it only adds work: a pretended volatile
//! cache makes callers flush.

use super::wrap::{DeviceLayer, Fate, Nowait, QueueLayer, What, Wrapped, inner_cost, inner_reads_zeros};
use crate::{Capabilities, Cost, Device, Error, Op, Queue, QueueOptions, Request, Result};
use std::sync::Arc;

/// What to hide. Everything off by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mask {
    /// Report a volatile cache (`cache=volatile`).
    pub volatile_cache: bool,
    /// Report no FUA, and refuse FUA writes (`fua=off`).
    pub no_fua: bool,
    /// Report no DAX.
    pub no_dax: bool,
    /// Report that submission may punt to workers.
    pub no_nowait: bool,
    /// Report no discard support, and refuse discards.
    pub no_discard: bool,
    /// Refuse writes and discards (`ro`).
    pub read_only: bool,
}

/// A device with fewer capabilities.
#[derive(Debug)]
pub struct MaskDevice {
    inner: Arc<dyn Device>,
    mask: Mask,
}

impl Mask {
    fn names(&self) -> Vec<String> {
        [
            (self.volatile_cache, "cache=volatile"),
            (self.no_fua, "fua=off"),
            (self.no_dax, "dax=off"),
            (self.no_nowait, "nowait=off"),
            (self.no_discard, "discard=off"),
            (self.read_only, "ro"),
        ]
        .into_iter()
        .filter(|(set, _)| *set)
        .map(|(_, name)| name.into())
        .collect()
    }

    /// Why a request must not reach the device.
    fn refusal(&self, op: Op, fua: bool) -> Option<Error> {
        let writes = matches!(op, Op::Write | Op::Discard);
        if self.read_only && writes {
            Some(Error::ReadOnly)
        } else if self.no_fua && fua && op == Op::Write {
            Some(Error::Unsupported("FUA write (fua=off)".into()))
        } else if self.no_discard && op == Op::Discard {
            Some(Error::Unsupported("discard (discard=off)".into()))
        } else {
            None
        }
    }
}

impl MaskDevice {
    /// Hides the capabilities of `inner` that `mask` names.
    pub fn new(inner: Arc<dyn Device>, mask: Mask) -> Self {
        MaskDevice { inner, mask }
    }
}

impl DeviceLayer for MaskDevice {
    const ATOMIC: bool = true;
    const ZEROS: bool = true;
    const NOWAIT: Nowait = Nowait::Passes;

    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn reads_zeros(&self, pos: u64, length: u64) -> bool {
        inner_reads_zeros(self, pos, length)
    }

    fn cost(&self, op: Op, pos: u64, length: u64) -> Option<Cost> {
        inner_cost(self, op, pos, length)
    }

    fn names(&self) -> Vec<String> {
        self.mask.names()
    }

    fn capabilities(&self) -> Capabilities {
        let (inner, mask) = (self.inner.capabilities(), &self.mask);
        Capabilities {
            volatile_cache: inner.volatile_cache || mask.volatile_cache,
            fua: inner.fua && !mask.no_fua,
            nowait: inner.nowait && !mask.no_nowait,
            discard: inner.discard && !mask.no_discard,
            read_only: inner.read_only || mask.read_only,
            dax: inner.dax.filter(|_| !mask.no_dax),
        }
    }

    fn run(&self, what: What, call: impl FnOnce(&dyn Device) -> Result<()>) -> Result<()> {
        self.mask.refusal(what.op, what.fua).map_or_else(|| call(&*self.inner), Err)
    }

    /// The device's own queue, unless some requests must be refused.
    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let inner = self.inner.queue(options)?;
        if !(self.mask.no_fua || self.mask.no_discard || self.mask.read_only) {
            return Ok(inner);
        }
        Ok(Wrapped::queue(inner, self.mask))
    }
}

impl QueueLayer for Mask {
    const VECTORS: bool = true;

    fn meet(&mut self, request: &Request) -> Fate {
        let refusal = self.refusal(request.op, request.fua);
        refusal.map_or(Fate::pass(request), |error| Fate::Answer(-error.errno()))
    }
}
