//! Properties of the machine that affect the figures.

use serde::{Deserialize, Serialize};
use std::fs;

/// The properties reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor by its own name.
    pub cpu: String,
    /// Processors that this process may use.
    pub cpus: usize,
    /// Bytes of the largest cache, if known.
    pub l3_bytes: Option<u64>,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// When the kernel uses huge pages: `always`, `madvise` or `never`. Large maps are placed on them.
    #[serde(default)]
    pub huge_pages: Option<String>,
    /// Version of this program.
    pub uext4: String,
}

impl Machine {
    /// Reads the properties of this machine.
    pub(crate) fn this() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kib = kib.and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        Machine {
            cpu: cpu.map_or_else(|| "unknown".into(), |(_, name)| name.to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            l3_bytes: l3_bytes(),
            memory_bytes: kib.unwrap_or(0) << 10,
            kernel: kernel_release(),
            huge_pages: huge_pages(),
            uext4: env!("CARGO_PKG_VERSION").into(),
        }
    }
}

fn kernel_release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| "unknown".into(), |release| release.trim().to_owned())
}

fn huge_pages() -> Option<String> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    Some(text.split('[').nth(1)?.split(']').next()?.to_owned())
}

/// Bytes of memory that the user may pin, in all processes together; `None` without a limit. Registered buffers are
/// pinned, and since Linux 6.14 rings count too.
pub fn pinnable() -> Option<u64> {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok());
    if rights.is_some_and(|rights| rights & CAP_IPC_LOCK != 0) {
        return None;
    }
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// Bytes of the third-level cache of the first processor.
pub fn l3_bytes() -> Option<u64> {
    let text = fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").ok()?;
    text.trim().strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024)
}
