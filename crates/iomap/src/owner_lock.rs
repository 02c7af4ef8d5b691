//! A lock with one owner and occasional guests: the owner takes it without an atomic read-modify-write.
//!
//! A queue belongs to one handle, which takes the lock for every call; a drainer only ever *tries* it, rarely. So the
//! owner sets `inside` with a plain store and checks for a guest, and the guest executes a heavy fence for both
//! (`sync.rs`): the same protocol as the inode gate, also explored by `tests/loom.rs`. The gain is not the two
//! instructions saved: a locked instruction waits until all earlier stores, such as a copied block, have drained from
//! the store buffer.

use crate::sync::{AtomicBool, Ordering, UnsafeCell, heavy_fence, pause, prepare_fences, store_then_fence};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

struct Shared<T> {
    inside: AtomicBool,
    guest: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through `OwnerGuard` and `GuestGuard`, of which the protocol lets one
// exist at a time (see `Owner::lock` and `Guest::try_lock`), so sharing the lock is sending the value back
// and forth.
unsafe impl<T: Send> Sync for Shared<T> {}

/// The owner's end. There is one, and locking needs it exclusively.
pub struct Owner<T>(Arc<Shared<T>>);

/// A guest's end.
pub struct Guest<T>(Arc<Shared<T>>);

/// A new lock around `value`.
pub fn owner_lock<T>(value: T) -> (Owner<T>, Guest<T>) {
    prepare_fences();
    let shared = Arc::new(Shared {
        inside: AtomicBool::new(false),
        guest: AtomicBool::new(false),
        value: UnsafeCell::new(value),
    });
    (Owner(shared.clone()), Guest(shared))
}

impl<T> Owner<T> {
    /// Takes the lock, waiting while a guest is inside.
    #[inline(always)]
    pub fn lock(&mut self) -> OwnerGuard<'_, T> {
        store_then_fence(|order| self.0.inside.store(true, order));
        if self.0.guest.load(Ordering::Acquire) {
            self.wait();
        }
        OwnerGuard(&self.0, PhantomData)
    }

    #[cold]
    fn wait(&mut self) {
        loop {
            self.0.inside.store(false, Ordering::Release);
            while self.0.guest.load(Ordering::Acquire) {
                pause();
            }
            store_then_fence(|order| self.0.inside.store(true, order));
            if !self.0.guest.load(Ordering::Acquire) {
                return;
            }
        }
    }
}

impl<T> Guest<T> {
    /// Takes the lock if neither the owner nor another guest is inside.
    pub fn try_lock(&self) -> Option<GuestGuard<'_, T>> {
        let shared = &self.0;
        // Check first: the fence is expensive.
        if shared.inside.load(Ordering::Relaxed) {
            return None;
        }
        shared.guest.compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        heavy_fence();
        if shared.inside.load(Ordering::Acquire) {
            shared.guest.store(false, Ordering::Release);
            return None;
        }
        Some(GuestGuard(shared, PhantomData))
    }
}

/// Access to the value for the owner.
///
/// The marker gives it the `Send` and `Sync` bounds of a mutable borrow: sharing the guard shares the value.
pub struct OwnerGuard<'a, T>(&'a Shared<T>, PhantomData<&'a mut T>);

/// Access to the value for a guest.
pub struct GuestGuard<'a, T>(&'a Shared<T>, PhantomData<&'a mut T>);

impl<T> Deref for OwnerGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: `Owner::lock` saw no guest after it had raised `inside` (ordered by the fence pair), a
        // guest that comes later sees `inside` and leaves, and `lock` borrows the only `Owner` mutably: no
        // other guard exists.
        self.0.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for OwnerGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and the guard is borrowed mutably.
        self.0.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for OwnerGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.inside.store(false, Ordering::Release);
    }
}

impl<T> Deref for GuestGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: `Guest::try_lock` raised `guest` by compare-and-exchange, so there is one guest, and then
        // saw the owner outside; an owner that comes later sees `guest` and waits.
        self.0.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for GuestGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and the guard is borrowed mutably.
        self.0.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for GuestGuard<'_, T> {
    fn drop(&mut self) {
        self.0.guest.store(false, Ordering::Release);
    }
}
