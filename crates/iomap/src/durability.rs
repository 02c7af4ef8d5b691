//! Room 3, `fua-dsync-overwrite`: how a write reaches the durability asked for.
//!
//! Fast route: every device write of the request carries FUA (or needs nothing, if the device has no volatile
//! cache) and nothing follows. Plain route: plain writes, then datasync at completion (commit if the inode is
//! datasync-dirty, flush the device).
//!
//! Safe because *all* pieces are already written and the inode is not datasync-dirty, so no metadata has to follow the
//! data. FUA over an unwritten extent would lose the write, since the conversion must be durable too. `O_SYNC` never
//! takes the shortcut.

use crate::plan::{Durability, Sync, View};
use crate::switches::Routing;
use uext4_blockdev::Capabilities;

/// Decides the durability work of a write. `overwrite`: all pieces written, inside the size.
#[inline(always)]
pub fn write_durability<R: Routing>(
    sync: Sync,
    overwrite: bool,
    view: &View,
    device: &Capabilities,
    routing: R,
) -> Durability {
    match sync {
        Sync::None => Durability::None,
        Sync::All => Durability::Fsync,
        Sync::Data => {
            let pure = overwrite && !view.datasync_dirty && device.durable_without_flush();
            match (routing.switches().fua_dsync_overwrite && pure, device.fua) {
                (false, _) => Durability::Datasync,
                (true, true) => Durability::Fua,
                (true, false) => Durability::WriteThrough,
            }
        }
    }
}
