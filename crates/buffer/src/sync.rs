//! The synchronisation primitives of the cache, in one place so that a model checker's can replace them.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
