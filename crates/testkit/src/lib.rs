//! Test volumes, scarce devices, oracles and seeded generators.
//!
//! Reading path: [`requirement`] decides whether a test can run here; [`scratch`] gives it a place;
//! [`VolumeBuilder`] makes a volume; [`guard`] owns kernel objects (loop devices, mounts, zram) and gives
//! them back even when the test panics; [`oracle`] asks e2fsprogs; [`fixture`] fills a tree and
//! [`mod@manifest`] describes one so that two views of a volume can be compared; [`mutate`] damages volumes;
//! [`device`] fails, lags and remembers; [`mod@conformance`] is what every device must do.
//!
//! Everything here panics with the full tool output when the *environment* misbehaves: a test kit that
//! returned errors would only make every test unwrap them.
#![deny(missing_docs)]

pub mod conformance;
pub mod crash;
pub mod device;
pub mod digest;
pub mod fixture;
mod flight;
pub mod guard;
pub mod manifest;
pub mod mutate;
pub mod oracle;
pub mod process;
pub mod requirement;
pub mod rng;
pub mod scratch;
mod volume;

pub use digest::SparseDigest;
pub use flight::Flight;
pub use guard::{
    Ceph, CephWithKeys, CuttingRelay, KernelMount, LoopDevice, LoopOptions, Mount, NbdServer, RbdImage,
    Tmpfs, Zram,
};
pub use manifest::{Entry, Kind, Manifest, manifest};
pub use oracle::{debugfs, dumpe2fs, e2fsck_clean, mke2fs};
pub use requirement::Need;
pub use rng::Rng;
pub use scratch::Scratch;
pub use volume::{Volume, VolumeBuilder, kernel_manifest, with_kernel};
