//! How the process's threads share memory.

/// Has threads allocate from as many heaps as there are processors. The C library gives each its own, up to eight
/// for a processor, and what one thread allocates and another frees stays in a heap that the second does not use, so a
/// server with many threads holds more memory.
///
/// This changes the whole process: call it only in a program that does nothing but serve. With C libraries other than
/// glibc it does nothing.
pub fn share_heaps() {
    #[cfg(target_env = "gnu")]
    {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // SAFETY: it takes numbers, and locks what it changes.
        let _refused = unsafe { libc::mallopt(libc::M_ARENA_MAX, processors.try_into().unwrap_or(i32::MAX)) };
    }
}
