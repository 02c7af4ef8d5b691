//! Copies to and from memory that may disappear: guarded routines in assembly and their SIGBUS handler.
//!
//! A mapped file can shrink under the mapping, and reading one of its pages can fail. The kernel then raises SIGBUS in
//! the middle of a copy. All copies run inside one range of code that touches neither stack nor callee-saved registers.
//! If the faulting program counter lies in that range, the handler jumps to the common fault exit, and the copy returns
//! an error. Any other SIGBUS goes to the handler installed before.
//!
//! The routines also make racing transfers legal: only assembly accesses the bytes, never a reference or a Rust load or
//! store, so that two requests on the same range give mixed contents, as on any device, and nothing worse.

use crate::{Error, Result};
use std::sync::OnceLock;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("uext4 needs guarded copy routines for this architecture (x86-64 and aarch64 exist)");

/// A copy ended early because memory on either side is gone. The number of bytes copied is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault;

/// Alignment of destination and length for durable copies: one cache line.
pub(crate) const LINE: usize = 64;

type CopyFn = unsafe extern "C" fn(*mut u8, *const u8, usize) -> usize;

/// The routines that suit this machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copier {
    plain: CopyFn,
}

impl Copier {
    /// Picks the routines by processor features.
    pub(crate) fn get() -> Self {
        Copier { plain: arch::plain() }
    }

    /// Copies `length` bytes; the destination is visible to other processors as after any store.
    ///
    /// # Safety
    /// Both ranges must be mapped (pages that raise SIGBUS are allowed once [`install_guard`] succeeded),
    /// must not overlap, and no Rust reference to the destination may be alive except the caller's own
    /// `&mut`. Other copies by these routines may race.
    #[inline]
    pub(crate) unsafe fn copy(
        self,
        to: *mut u8,
        from: *const u8,
        length: usize,
    ) -> std::result::Result<(), Fault> {
        // SAFETY: the caller's promise.
        match unsafe { (self.plain)(to, from, length) } {
            0 => Ok(()),
            _ => Err(Fault),
        }
    }

    /// Copies, and returns once the bytes are in the persistence domain (past the processor's caches), which makes them
    /// durable on a `MAP_SYNC` mapping. Tears at 8 bytes.
    ///
    /// # Safety
    /// As [`Copier::copy`].
    ///
    /// # Panics
    /// If destination or length is not a multiple of [`LINE`]; [`crate::Geometry::check`] guarantees both.
    #[inline]
    pub(crate) unsafe fn copy_durable(
        self,
        to: *mut u8,
        from: *const u8,
        length: usize,
    ) -> std::result::Result<(), Fault> {
        assert!((to as usize | length).is_multiple_of(LINE), "durable copies move whole cache lines");
        // SAFETY: the caller's promise; alignment was checked above.
        match unsafe { arch::uext4_blockdev_copy_durable(to, from, length) } {
            0 => Ok(()),
            _ => Err(Fault),
        }
    }
}

/// Whether [`Copier::copy_durable`] reaches the persistence domain on this processor.
pub(crate) fn durable_copies_work() -> bool {
    arch::durable_copies_work()
}

// The code range has the same layout on both architectures: begin, routines, fault exit, end. Hidden symbols: they are
// not part of any library's interface. Weak: the unit tests of this crate link it twice, once through the testkit, and
// the linker keeps one of the two.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.uext4_blockdev_copy, \"ax\", @progbits",
    ".weak uext4_blockdev_copy_begin, uext4_blockdev_copy_fault, uext4_blockdev_copy_end",
    ".weak uext4_blockdev_copy_string, uext4_blockdev_copy_sse, uext4_blockdev_copy_durable",
    ".hidden uext4_blockdev_copy_begin, uext4_blockdev_copy_fault, uext4_blockdev_copy_end",
    ".hidden uext4_blockdev_copy_string, uext4_blockdev_copy_sse, uext4_blockdev_copy_durable",
    ".p2align 6",
    "uext4_blockdev_copy_begin:",
    // System V: rdi destination, rsi source, rdx length. Only caller-saved registers are used.
    ".type uext4_blockdev_copy_string, @function",
    "uext4_blockdev_copy_string:",
    ".cfi_startproc",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".p2align 6",
    ".type uext4_blockdev_copy_sse, @function",
    "uext4_blockdev_copy_sse:",
    ".cfi_startproc",
    "mov rcx, rdx",
    "shr rdx, 6",
    "jz 3f",
    "2:",
    "movdqu xmm0, [rsi]",
    "movdqu xmm1, [rsi + 16]",
    "movdqu xmm2, [rsi + 32]",
    "movdqu xmm3, [rsi + 48]",
    "movdqu [rdi], xmm0",
    "movdqu [rdi + 16], xmm1",
    "movdqu [rdi + 32], xmm2",
    "movdqu [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "dec rdx",
    "jnz 2b",
    "3:",
    "and ecx, 63",
    "rep movsb",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".p2align 6",
    // Non-temporal stores bypass the caches; the fence orders them before the return. A fence by another thread at
    // flush time would not suffice: it orders only the stores of its own processor.
    ".type uext4_blockdev_copy_durable, @function",
    "uext4_blockdev_copy_durable:",
    ".cfi_startproc",
    "shr rdx, 6",
    "jz 3f",
    "2:",
    "movdqu xmm0, [rsi]",
    "movdqu xmm1, [rsi + 16]",
    "movdqu xmm2, [rsi + 32]",
    "movdqu xmm3, [rsi + 48]",
    "movntdq [rdi], xmm0",
    "movntdq [rdi + 16], xmm1",
    "movntdq [rdi + 32], xmm2",
    "movntdq [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "dec rdx",
    "jnz 2b",
    "3:",
    "sfence",
    "xor eax, eax",
    "ret",
    "uext4_blockdev_copy_fault:",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    "uext4_blockdev_copy_end:",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .text.uext4_blockdev_copy, \"ax\", @progbits",
    ".weak uext4_blockdev_copy_begin, uext4_blockdev_copy_fault, uext4_blockdev_copy_end",
    ".weak uext4_blockdev_copy_simd, uext4_blockdev_copy_durable",
    ".hidden uext4_blockdev_copy_begin, uext4_blockdev_copy_fault, uext4_blockdev_copy_end",
    ".hidden uext4_blockdev_copy_simd, uext4_blockdev_copy_durable",
    ".p2align 6",
    "uext4_blockdev_copy_begin:",
    // AAPCS64: x0 destination, x1 source, x2 length. Only caller-saved registers are used.
    ".type uext4_blockdev_copy_simd, @function",
    "uext4_blockdev_copy_simd:",
    ".cfi_startproc",
    "and x3, x2, #63",
    "lsr x2, x2, #6",
    "cbz x2, 3f",
    "2:",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x1, #32]",
    "add x1, x1, #64",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x0, #32]",
    "add x0, x0, #64",
    "subs x2, x2, #1",
    "b.ne 2b",
    "3:",
    "cbz x3, 5f",
    "4:",
    "ldrb w4, [x1], #1",
    "strb w4, [x0], #1",
    "subs x3, x3, #1",
    "b.ne 4b",
    "5:",
    "mov x0, #0",
    "ret",
    ".cfi_endproc",
    ".p2align 6",
    // `dc cvap` cleans a line to the point of persistence. 64 bytes are at most one line on every
    // implementation with that instruction; a line is cleaned twice where it is longer. `sys` spelling: the
    // assembler need not know ARMv8.2.
    ".type uext4_blockdev_copy_durable, @function",
    "uext4_blockdev_copy_durable:",
    ".cfi_startproc",
    "lsr x2, x2, #6",
    "cbz x2, 3f",
    "2:",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x1, #32]",
    "add x1, x1, #64",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x0, #32]",
    "sys #3, c7, c12, #1, x0",
    "add x0, x0, #64",
    "subs x2, x2, #1",
    "b.ne 2b",
    "3:",
    "dsb sy",
    "mov x0, #0",
    "ret",
    "uext4_blockdev_copy_fault:",
    "mov x0, #1",
    "ret",
    ".cfi_endproc",
    "uext4_blockdev_copy_end:",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
mod arch {
    use super::CopyFn;

    unsafe extern "C" {
        fn uext4_blockdev_copy_string(to: *mut u8, from: *const u8, length: usize) -> usize;
        fn uext4_blockdev_copy_sse(to: *mut u8, from: *const u8, length: usize) -> usize;
        pub(super) fn uext4_blockdev_copy_durable(to: *mut u8, from: *const u8, length: usize) -> usize;
    }

    /// String copy where the processor reports it as fast (ERMS, CPUID leaf 7 EBX bit 9): it moves whole lines without
    /// reading the destination first, and beats vector loops once the destination is not in the cache.
    pub(super) fn plain() -> CopyFn {
        let highest_leaf = std::arch::x86_64::__cpuid(0).eax;
        let fast = highest_leaf >= 7 && std::arch::x86_64::__cpuid_count(7, 0).ebx & (1 << 9) != 0;
        if fast { uext4_blockdev_copy_string } else { uext4_blockdev_copy_sse }
    }

    #[cfg(test)]
    pub(super) fn all_plain() -> Vec<CopyFn> {
        vec![uext4_blockdev_copy_string, uext4_blockdev_copy_sse]
    }

    /// SSE2 non-temporal stores are part of x86-64.
    pub(super) fn durable_copies_work() -> bool {
        true
    }

    pub(super) fn program_counter(context: &mut libc::ucontext_t) -> &mut libc::greg_t {
        &mut context.uc_mcontext.gregs[libc::REG_RIP as usize]
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use super::CopyFn;

    unsafe extern "C" {
        fn uext4_blockdev_copy_simd(to: *mut u8, from: *const u8, length: usize) -> usize;
        pub(super) fn uext4_blockdev_copy_durable(to: *mut u8, from: *const u8, length: usize) -> usize;
    }

    pub(super) fn plain() -> CopyFn {
        uext4_blockdev_copy_simd
    }

    #[cfg(test)]
    pub(super) fn all_plain() -> Vec<CopyFn> {
        vec![uext4_blockdev_copy_simd]
    }

    /// `dc cvap` exists (HWCAP_DCPOP).
    pub(super) fn durable_copies_work() -> bool {
        const HWCAP_DCPOP: usize = 1 << 16;
        rustix::param::linux_hwcap().0 & HWCAP_DCPOP != 0
    }

    pub(super) fn program_counter(context: &mut libc::ucontext_t) -> &mut u64 {
        &mut context.uc_mcontext.pc
    }
}

unsafe extern "C" {
    static uext4_blockdev_copy_begin: u8;
    static uext4_blockdev_copy_fault: u8;
    static uext4_blockdev_copy_end: u8;
}

/// The handler installed before ours; set before ours is installed.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the SIGBUS handler, once per process. A handler that the program installs later without calling ours
/// removes the guard; one installed before is called for every fault that is not ours.
pub(crate) fn install_guard() -> Result<()> {
    static INSTALLED: OnceLock<std::result::Result<(), i32>> = OnceLock::new();
    let outcome = INSTALLED.get_or_init(|| {
        let mut previous = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: only reads the current action, into memory of the right type.
        if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), previous.as_mut_ptr()) } != 0 {
            return Err(last_errno());
        }
        // SAFETY: zeroed memory is a valid `sigaction`, and the call filled it.
        PREVIOUS.get_or_init(|| unsafe { previous.assume_init() });
        // SAFETY: zeroed memory is a valid `sigaction` (empty mask, no flags).
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler has the signature that SA_SIGINFO requires and is async-signal-safe.
        if unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) } != 0 {
            return Err(last_errno());
        }
        Ok(())
    });
    outcome.map_err(|errno| Error::Open { path: "SIGBUS".into(), action: "install the handler", errno })
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a `ucontext_t` of the interrupted thread as third argument of a SA_SIGINFO
    // handler; nobody else refers to it while the handler runs.
    let context_ref = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let counter = arch::program_counter(context_ref);
    let (begin, end, exit) = (
        &raw const uext4_blockdev_copy_begin,
        &raw const uext4_blockdev_copy_end,
        &raw const uext4_blockdev_copy_fault,
    );
    if (begin as usize..end as usize).contains(&(*counter as usize)) {
        // The routines keep nothing on the stack, so the fault exit returns straight to their caller.
        *counter = exit as usize as _;
        return;
    }
    pass_on(signal, info, context);
}

/// Does what would have happened without our handler.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`. A positive code is a fault of this thread; other signals were
    // sent.
    let sent = unsafe { (*info).si_code } <= 0;
    let previous = PREVIOUS.get();
    match previous.map_or(libc::SIG_DFL, |action| action.sa_sigaction) {
        libc::SIG_IGN if sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: zeroed memory is a valid `sigaction`: the default action. The faulting instruction runs
            // again after the return and ends the process with the right signal; a sent signal is raised
            // again.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &default, std::ptr::null_mut());
                if sent {
                    libc::raise(signal);
                }
            }
        }
        handler if previous.is_some_and(|action| action.sa_flags & libc::SA_SIGINFO != 0) => {
            // SAFETY: the action was installed with SA_SIGINFO, so its handler has this signature.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: the action was installed without SA_SIGINFO, so its handler has this signature.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    #[test]
    fn every_plain_routine_copies_every_length_and_nothing_else() {
        for copy in arch::all_plain() {
            for length in (0..200).chain([512, 4096, 4097, 12288]) {
                let from = pattern(length);
                let mut to = vec![0xEE; length + 2];
                // SAFETY: `to` has `length + 2` bytes; the two vectors do not overlap.
                let outcome = unsafe { copy(to.as_mut_ptr().add(1), from.as_ptr(), length) };
                assert_eq!(outcome, 0);
                assert_eq!(&to[1..=length], &from[..]);
                assert_eq!((to[0], to[length + 1]), (0xEE, 0xEE));
            }
        }
    }

    #[test]
    fn durable_copies_move_the_same_bytes() {
        let mut pool = crate::BufferPool::new(64 << 10).unwrap().take(16384).unwrap();
        let from = pattern(8193);
        for length in [0, 64, 512, 4096, 8192] {
            pool.fill(0);
            // SAFETY: the buffer has 16384 bytes, page-aligned; the source is odd on purpose and has 8193.
            unsafe {
                Copier::get().copy_durable(pool.memory(64).address.as_ptr(), from.as_ptr().add(1), length)
            }
            .unwrap();
            assert_eq!(&pool[64..64 + length], &from[1..=length]);
            assert!(pool[..64].iter().chain(&pool[64 + length..]).all(|&byte| byte == 0));
        }
    }

    #[test]
    fn the_guard_can_be_asked_for_again() {
        install_guard().unwrap();
        install_guard().unwrap();
    }
}
