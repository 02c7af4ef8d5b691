//! Which process owns an object: anything opened before a `fork` belongs to the parent.
//!
//! A child has copies of the parent's objects, but the rings and mapped devices behind them are shared: a completion
//! that the child reaps is lost to the parent. So every access to such memory checks the owner first. The check reads a
//! word in a page that the kernel zeroes in each child (`MADV_WIPEONFORK`), however the child was created; it costs two
//! loads and no system call. Objects that a child creates use a page of the child's own.

use crate::{Error, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The process that created an object.
#[derive(Debug, Clone, Copy)]
pub struct Process {
    /// Nonzero in that process, zero in every child.
    alive: &'static AtomicU32,
}

/// The word of this process or, right after a fork, of the parent.
static CURRENT: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

impl Process {
    /// The calling process.
    ///
    /// # Errors
    /// [`Error::Open`] if the system refuses to map a page or to zero it in children.
    pub fn current() -> Result<Process> {
        loop {
            let known = CURRENT.load(Ordering::Acquire);
            // SAFETY: a pointer that is not null came from `mark`, whose page is never unmapped.
            if let Some(alive) = unsafe { known.as_ref() }
                && alive.load(Ordering::Relaxed) != 0
            {
                return Ok(Process { alive });
            }
            let alive = mark()?;
            // No lock: one that another thread held at the fork is never released in the child. The loser of a race
            // leaves its page unused.
            let _known_by_now = CURRENT.compare_exchange(
                known,
                std::ptr::from_ref(alive).cast_mut(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
    }

    /// Whether this is the calling process.
    #[inline(always)]
    pub fn is_here(self) -> bool {
        self.alive.load(Ordering::Relaxed) != 0
    }

    /// [`Error::Forked`] in a child of the process.
    #[inline(always)]
    pub fn check(self) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(Error::Forked) }
    }
}

/// A word that is one here and zero in every child. Its page stays mapped for the life of the process.
fn mark() -> Result<&'static AtomicU32> {
    let failed = |action| {
        move |errno: rustix::io::Errno| Error::Open {
            path: "memory".into(),
            action,
            errno: errno.raw_os_error(),
        }
    };
    let length = rustix::param::page_size();
    // SAFETY: a new anonymous mapping at an address the kernel chooses touches no existing memory.
    let page = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            length,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }
    .map_err(failed("map"))?;
    // SAFETY: exactly the mapping made above; nothing in it has a value yet.
    let advised = unsafe { rustix::mm::madvise(page, length, Advice::LinuxWipeOnFork) };
    if let Err(errno) = advised {
        // SAFETY: the mapping made above, to which there is no other pointer. Failure would only leak.
        let _ = unsafe { rustix::mm::munmap(page, length) };
        return Err(failed("set wipe on fork")(errno));
    }
    let word =
        NonNull::new(page.cast::<AtomicU32>()).ok_or_else(|| failed("map")(rustix::io::Errno::NOMEM))?;
    // SAFETY: the page is zeroed, aligned, and never unmapped; it is only accessed as this atomic.
    let word = unsafe { word.as_ref() };
    word.store(1, Ordering::Relaxed);
    Ok(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_agree_on_their_process() {
        let here = Process::current().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    assert!(here.is_here() && here.check().is_ok());
                    assert!(std::ptr::eq(here.alive, Process::current().unwrap().alive));
                });
            }
        });
    }
}
