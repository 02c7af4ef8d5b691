//! Layers that wrap a device.
mod slice;
pub use slice::SliceDevice;
mod counting;
mod latency;
mod mask;
mod overlay;
mod overlay_file;
mod pair;
mod slots;
mod wake;
pub mod wrap;
pub use counting::{Counters, CountingDevice, Counts, TraceEvent, TracePhase, TraceSink};
pub use latency::LatencyDevice;
pub use mask::{Mask, MaskDevice};
pub use overlay::OverlayDevice;
pub use overlay_file::{BaseFacts, OverlayFile, OverlayFileDevice};
