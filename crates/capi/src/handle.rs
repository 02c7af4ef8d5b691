//! Handles that C holds. A handle is a number in the clothes of a pointer, never an address, so a closed or a foreign
//! one is found out without touching memory. It names a place in a table and the generation of what lies there.
//!
//! A look-up takes no lock and writes to no line that threads share (`arc_swap`): threads that use one file do not meet
//! here. What is closed while other calls use it goes with the last of them.

use crate::call::{Fault, Result};
use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// Places in a chunk, and chunks.
const CHUNK: usize = 256;
const CHUNKS: usize = 4096;

// A handle, from the top: four bits that no address of a process has, what it is, generation, place.
const MARK: u64 = 0x6 << 60;
const KIND_SHIFT: u32 = 56;
const GENERATION_SHIFT: u32 = 20;
const _: () = assert!(CHUNK * CHUNKS == 1 << GENERATION_SHIFT && size_of::<usize>() == 8);

/// What a handle may name.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Volume = 1,
    File = 2,
    Queue = 3,
    Dir = 4,
    Replacement = 5,
}

/// Something with a handle.
pub(crate) struct Named<T> {
    handle: u64,
    pub(crate) object: T,
}

type Place<T> = ArcSwapOption<Named<T>>;

/// Everything of one kind that is open.
pub(crate) struct Table<T> {
    kind: Kind,
    chunks: [OnceLock<Box<[Place<T>]>>; CHUNKS],
    free: Mutex<Free>,
}

struct Free {
    places: Vec<u32>,
    /// Places that were ever used.
    used: u32,
    /// Handles that were ever given: each has a generation of its own.
    given: u64,
}

/// What a look-up found, kept open while it is held.
pub(crate) struct Open<T>(Guard<Option<Arc<Named<T>>>>);

impl<T> std::ops::Deref for Open<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self.0.as_ref() {
            Some(named) => &named.object,
            None => unreachable!("looked at when it was found"),
        }
    }
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: Kind) -> Self {
        Table {
            kind,
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(Free { places: Vec::new(), used: 0, given: 0 }),
        }
    }

    fn head(&self) -> u64 {
        MARK | (self.kind as u64) << KIND_SHIFT
    }

    /// The place that a handle names, if it is one of this table.
    fn place(&self, handle: u64) -> Result<&Place<T>> {
        if handle == 0 {
            return Err(Fault::invalid("a handle is NULL"));
        }
        let index = (handle & ((1 << GENERATION_SHIFT) - 1)) as usize;
        let found = match handle >> KIND_SHIFT << KIND_SHIFT == self.head() {
            true => self.chunks[index / CHUNK].get().map(|chunk| &chunk[index % CHUNK]),
            false => None,
        };
        found.ok_or_else(closed)
    }

    /// What a handle names.
    pub(crate) fn get<H>(&self, handle: *mut H) -> Result<Open<T>> {
        let handle = handle.addr() as u64;
        let open = self.place(handle)?.load();
        match open.as_ref().is_some_and(|named| named.handle == handle) {
            true => Ok(Open(open)),
            false => Err(closed()),
        }
    }

    /// A handle for something.
    pub(crate) fn insert<H>(&self, object: T) -> Result<*mut H> {
        let mut free = self.free.lock();
        let index = match free.places.pop() {
            Some(index) => index,
            None if (free.used as usize) < CHUNK * CHUNKS => {
                free.used += 1;
                free.used - 1
            }
            None => return Err(Fault::new(libc::EMFILE, "too many handles")),
        };
        free.given += 1;
        let generations = 1 << (KIND_SHIFT - GENERATION_SHIFT);
        let handle = self.head() | (free.given % generations) << GENERATION_SHIFT | u64::from(index);
        drop(free);
        let chunk =
            self.chunks[index as usize / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Place::empty()).collect());
        chunk[index as usize % CHUNK].store(Some(Arc::new(Named { handle, object })));
        Ok(std::ptr::without_provenance_mut(handle as usize))
    }

    /// Ends a handle. Of several threads that close one at once, one gets what it named.
    pub(crate) fn remove<H>(&self, handle: *mut H) -> Result<Arc<Named<T>>> {
        let handle = handle.addr() as u64;
        let place = self.place(handle)?;
        let current = place.load_full().filter(|named| named.handle == handle).ok_or_else(closed)?;
        let before = place.compare_and_swap(&current, None);
        if !before.as_ref().is_some_and(|before| Arc::ptr_eq(before, &current)) {
            return Err(closed());
        }
        drop(before);
        self.free.lock().places.push((handle & ((1 << GENERATION_SHIFT) - 1)) as u32);
        Ok(current)
    }
}

#[cold]
pub(crate) fn closed() -> Fault {
    Fault::new(libc::EBADF, "the handle is closed, or of another kind")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_handle_is_an_error() {
        let table: Table<u32> = Table::new(Kind::File);
        let other: Table<u32> = Table::new(Kind::Queue);
        let first: *mut u8 = table.insert(7).unwrap_or_else(|_| panic!());
        assert_eq!(*table.get(first).unwrap_or_else(|_| panic!()), 7);
        let errno = |result: Result<Open<u32>>| match result {
            Ok(_) => 0,
            Err(fault) => -crate::call::call_int(|| Err(fault)),
        };
        assert_eq!(errno(table.get(std::ptr::null_mut::<u8>())), libc::EINVAL);
        assert_eq!(errno(other.get(first)), libc::EBADF);
        let mut local = 0u8;
        assert_eq!(errno(table.get(&raw mut local)), libc::EBADF);
        assert_eq!(errno(table.get(first.wrapping_add(1))), libc::EBADF);
        assert!(table.remove(first).is_ok_and(|named| named.object == 7));
        assert!(table.remove(first).is_err());
        // The place has another tenant: the old handle does not name it.
        let second: *mut u8 = table.insert(8).unwrap_or_else(|_| panic!());
        assert_ne!(first, second);
        assert_eq!(errno(table.get(first)), libc::EBADF);
        assert_eq!(*table.get(second).unwrap_or_else(|_| panic!()), 8);
    }

    #[test]
    fn one_of_many_threads_closes_a_handle() {
        let table: Table<u32> = Table::new(Kind::File);
        for round in 0..200 {
            let handle =
                table.insert(round).map(|handle: *mut u8| handle.addr()).unwrap_or_else(|_| panic!());
            let closed = std::thread::scope(|scope| {
                let threads = [(); 4].map(|()| {
                    scope.spawn(|| table.remove(std::ptr::without_provenance_mut::<u8>(handle)).is_ok())
                });
                threads
                    .into_iter()
                    .filter(|_| true)
                    .map(|thread| thread.join().unwrap())
                    .filter(|&ok| ok)
                    .count()
            });
            assert_eq!(closed, 1);
        }
    }
}
