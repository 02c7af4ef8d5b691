//! Layers that wrap a device.
mod slice;
pub use slice::SliceDevice;
mod counting;
mod crash;
mod fault;
mod late;
mod latency;
mod mask;
mod overlay;
mod slots;
mod wake;
mod wrap;
pub use counting::{Counters, CountingDevice, Counts, TraceEvent, TracePhase, TraceSink};
pub use crash::{
    CrashDevice, CrashEvent, CrashHandle, CrashLog, CrashMark, CrashOperation, CrashOptions, CrashOutcome,
};
pub use fault::{Fault, FaultAction, FaultDevice, FaultHandle, FaultId, FaultOn};
pub use late::{LateDevice, LateHandle};
pub use latency::LatencyDevice;
pub use mask::{Mask, MaskDevice};
pub use overlay::OverlayDevice;
