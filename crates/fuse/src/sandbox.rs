//! A server that reads hostile volumes needs few rights: it holds its descriptors when it enters the sandbox, and can
//! open nothing afterwards but what is listed here.
//!
//! Four layers, each on its own: `no_new_privs`; no capabilities; Landlock (no files, no TCP, no signals or abstract
//! sockets of others); a list of system calls. They hold for the thread that enters and for those that it starts later.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, RestrictionStatus, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use std::collections::BTreeMap;
use std::io;

use crate::aside::allow_return;
use crate::stats::single;

/// The newest Landlock whose rights are all handled. Older kernels enforce what they know.
const LANDLOCK: ABI = ABI::V6;

/// What holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sandbox {
    /// Programs that are executed get no privileges.
    pub no_new_privs: bool,
    /// Capabilities are gone, but for those that the device needs.
    pub capabilities: bool,
    /// Landlock refuses what is not listed.
    pub landlock: bool,
    /// System calls that are not listed fail.
    pub seccomp: bool,
}

/// What the device of a volume needs besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// Commands to an NVMe namespace need `CAP_SYS_ADMIN`.
    pub nvme: bool,
    /// Threads that answer through io_uring may step aside for their callers. Where the limit for that
    /// (`RLIMIT_NICE`) cannot be raised they need `CAP_SYS_NICE`.
    pub rings: bool,
}

impl Sandbox {
    /// Enters the sandbox with the calling thread. What the kernel does not offer, or refuses, does not hold.
    #[must_use]
    pub fn enter(needs: Needs) -> Sandbox {
        let no_new_privs = rustix::thread::set_no_new_privs(true).is_ok();
        // Landlock needs either no_new_privs or a capability, and opens what it lists.
        let landlock = no_new_privs && restrict_paths().is_ok_and(|status| is_enforced(&status));
        let capabilities = drop_capabilities(needs).is_ok();
        let seccomp = no_new_privs && filter_calls(needs).is_ok();
        if !seccomp && needs.rings {
            // The filter is what bounds that right.
            let _gone = drop_capabilities(Needs { rings: false, ..needs });
        }
        Sandbox { no_new_privs, capabilities, landlock, seccomp }
    }

    /// Whether every layer holds.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.layers().iter().all(|(_, holds)| *holds)
    }

    /// The layers by name, and whether each holds.
    #[must_use]
    pub fn layers(&self) -> [(&'static str, bool); 4] {
        [
            ("no_new_privs", self.no_new_privs),
            ("capabilities", self.capabilities),
            ("landlock", self.landlock),
            ("seccomp", self.seccomp),
        ]
    }

    /// As text for Prometheus, for [`Socket::answer_for`](crate::Socket::answer_for).
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        for (layer, holds) in self.layers() {
            let name = format!("uext4_sandbox_{layer}");
            single(&mut text, &name, "gauge", "Whether this layer of the sandbox holds.", holds.into());
        }
        text
    }
}

/// Rights on a path that a server keeps.
fn kept() -> [(&'static str, BitFlags<AccessFs>); 4] {
    let reads = AccessFs::ReadFile | AccessFs::ReadDir;
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    [
        // Groups of callers, this process's memory.
        ("/proc", reads),
        // Limits of block devices.
        ("/sys", reads),
        ("/dev/null", AccessFs::ReadFile | AccessFs::WriteFile),
        // More descriptors of the own mount; others need its number, and a right to it.
        ("/dev/fuse", device),
    ]
}

fn restrict_paths() -> Result<RestrictionStatus, RulesetError> {
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?;
    let mut rules = rules.create()?;
    for (path, rights) in kept() {
        // What does not exist need not be opened.
        if let Ok(path) = PathFd::new(path) {
            rules = rules.add_rule(PathBeneath::new(path, rights))?;
        }
    }
    rules.restrict_self()
}

fn is_enforced(status: &RestrictionStatus) -> bool {
    // In part: an older kernel, which still refuses to open files.
    matches!(status.ruleset, RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced)
}

fn drop_capabilities(needs: Needs) -> io::Result<()> {
    let had = rustix::thread::capabilities(None)?;
    // Memory of rings and registered buffers is locked.
    let mut kept = CapabilitySet::IPC_LOCK;
    kept.set(CapabilitySet::SYS_ADMIN, needs.nvme);
    kept.set(CapabilitySet::SYS_NICE, needs.rings && !allow_return());
    for capability in CapabilitySet::all().iter() {
        // Without the right to do so, there is nothing to gain either.
        let _refused = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    let _none = rustix::thread::clear_ambient_capability_set();
    let sets = CapabilitySets {
        effective: had.permitted & kept,
        permitted: had.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Operation of `io_uring_register`: `IORING_REGISTER_ENABLE_RINGS`.
const ENABLE_RINGS: i32 = 12;

/// System calls that a server makes, or the libraries below it.
const CALLS: &[i64] = &[
    // Data and descriptors.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_splice,
    libc::SYS_vmsplice,
    libc::SYS_lseek,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_fadvise64,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_io_uring_enter,
    // Names, which Landlock limits.
    libc::SYS_openat,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    libc::SYS_syncfs,
    // Sockets that are there.
    libc::SYS_socketpair,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_msync,
    libc::SYS_membarrier,
    // Threads, time and signals.
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getscheduler,
    libc::SYS_capget,
    libc::SYS_getpriority,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getcpu,
    libc::SYS_prctl,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrusage,
    libc::SYS_prlimit64,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Calls that only this architecture has.
#[cfg(target_arch = "x86_64")]
const OWN_CALLS: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_readlink,
    libc::SYS_dup2,
    libc::SYS_poll,
    libc::SYS_accept,
    libc::SYS_epoll_wait,
    libc::SYS_time,
    libc::SYS_arch_prctl,
];
/// Calls that only this architecture has.
#[cfg(not(target_arch = "x86_64"))]
const OWN_CALLS: &[i64] = &[];

fn filter_calls(needs: Needs) -> Result<(), Box<dyn std::error::Error>> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let calls = CALLS.iter().chain(OWN_CALLS);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = calls.map(|&call| (call, Vec::new())).collect();
    // Any of a descriptor that is held, but for words put into a terminal.
    let is_not = |request: u64| SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, request);
    let harmless = SeccompRule::new(vec![is_not(libc::TIOCSTI)?, is_not(libc::TIOCLINUX)?])?;
    rules.insert(libc::SYS_ioctl, vec![harmless]);
    let is = |argument: u8, value: i32| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value as u64)
    };
    // The calling thread steps aside; any gets the usual policy.
    let aside = SeccompRule::new(vec![is(0, 0)?, is(1, libc::SCHED_IDLE)?])?;
    let usual = SeccompRule::new(vec![is(1, libc::SCHED_OTHER)?])?;
    rules.insert(libc::SYS_sched_setscheduler, vec![aside, usual]);
    rules.insert(libc::SYS_sched_setaffinity, vec![SeccompRule::new(vec![is(0, 0)?])?]);
    // The rings of the mount exist already, and threads only enable them. Those for NVMe namespaces are made inside.
    let enables = SeccompRule::new(vec![is(1, ENABLE_RINGS)?])?;
    rules.insert(libc::SYS_io_uring_register, if needs.nvme { Vec::new() } else { vec![enables] });
    if needs.nvme {
        rules.insert(libc::SYS_io_uring_setup, Vec::new());
    }
    // As if the kernel did not have them: libraries fall back to older calls.
    let missing = SeccompAction::Errno(libc::ENOSYS as u32);
    let filter = SeccompFilter::new(rules, missing, SeccompAction::Allow, architecture)?;
    let program: seccompiler::BpfProgram = filter.try_into()?;
    Ok(seccompiler::apply_filter(&program)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::Command;

    /// What a thread in the sandbox can do: the layers hold for it and what it starts, so the test itself goes on.
    #[test]
    fn a_thread_in_the_sandbox_opens_nothing_of_others() {
        let mut held = std::fs::File::open("/etc/passwd").unwrap();
        let inside = move || {
            let sandbox = Sandbox::enter(Needs::default());
            let open = |path: &str| std::fs::File::open(path).map_err(|error| error.raw_os_error());
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
            let opened =
                ["/etc/passwd", "/proc/self/status", "/dev/null", "/root"].map(|path| open(path).err());
            let made = std::fs::write("/tmp/uext4-sandbox-test", "x").map_err(|error| error.kind());
            let ran = Command::new("/bin/true").status().map_err(|error| error.raw_os_error());
            let ring = io_uring::IoUring::new(1).map_err(|error| error.raw_os_error());
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").map_err(|error| error.raw_os_error());
            let mut text = String::new();
            held.read_to_string(&mut text).unwrap();
            let thread = std::thread::spawn(move || open("/etc/passwd").err()).join().unwrap();
            (sandbox, status, opened, made, [ran.err(), socket.err(), ring.err()], text.len(), thread)
        };
        let (sandbox, status, opened, made, refused, held, thread) =
            std::thread::spawn(inside).join().unwrap();
        let has = |line: &str| status.lines().any(|found| found.split_whitespace().eq(line.split(' ')));
        assert!(sandbox.no_new_privs && sandbox.capabilities, "{sandbox:?}");
        assert!(has("NoNewPrivs: 1"), "{status}");
        assert!(
            status
                .lines()
                .any(|line| line == "CapPrm:\t0000000000000000" || line == "CapPrm:\t0000000000004000")
        );
        assert!(held > 0);
        if sandbox.landlock {
            let refused = Some(Some(libc::EACCES));
            assert_eq!(opened, [refused, None, None, refused]);
            assert_eq!(thread, refused);
            assert_eq!(made, Err(io::ErrorKind::PermissionDenied));
        }
        if sandbox.seccomp {
            assert!(has("Seccomp: 2"), "{status}");
            assert_eq!(refused, [Some(Some(libc::ENOSYS)); 3]);
        }
        // The thread that started it is free.
        assert!(std::fs::File::open("/etc/passwd").is_ok());
    }
}
