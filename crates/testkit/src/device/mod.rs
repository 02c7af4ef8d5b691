//! Devices that do what real ones do at the worst moment: they record what a power cut leaves, move bytes late, fail.
//!
//! They wrap any device, as the layers of `uext4_blockdev` do, and are programmed through handles.

mod crash;
mod fault;
mod file;
mod late;
mod part;

pub use crash::{
    CrashDevice, CrashEvent, CrashHandle, CrashLog, CrashMark, CrashOperation, CrashOptions, CrashOutcome,
};
pub use fault::{Fault, FaultAction, FaultDevice, FaultHandle, FaultId, FaultOn};
pub use file::DeviceFile;
pub use late::{Held, LateDevice, LateHandle};
pub use part::CrashPart;
