//! NBD: exports of servers, by libnbd.
//!
//! One connection for each queue and call where the server allows several, otherwise one for all. Requests are sent by
//! the thread that makes them, and completions taken by the thread that waits for them: there are no threads here.
//! A connection that has ended stays so: every request fails with `EIO` from then on, nothing is sent again.

mod api;
mod connection;
mod device;
mod facts;
mod lane;
mod pool;
mod queue;
mod target;

use std::sync::Arc;
use uext4_blockdev::spec::{DeviceSpec, Scheme};
use uext4_blockdev::{Device, Engine, OpenOptions, Result};

/// The engine of `nbd://`, `nbds://`, `nbd+unix://` and `nbds+unix://`.
#[derive(Debug)]
pub(crate) struct Nbd;

impl Engine for Nbd {
    fn schemes(&self) -> &'static [Scheme] {
        &[Scheme::Nbd, Scheme::NbdUnix, Scheme::Nbds, Scheme::NbdsUnix]
    }

    fn open(&self, spec: &DeviceSpec, options: OpenOptions) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(device::NbdDevice::open(spec, options)?))
    }
}
