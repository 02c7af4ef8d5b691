//! NVMe commands that block the calling thread: ioctls of an NVMe device node, each a small function.

use super::nvme_command::{Command, Data, Status};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `NVME_IOCTL_ID` of `linux/nvme_ioctl.h`: `_IO('N', 0x40)`.
const NVME_IOCTL_ID: libc::c_ulong = 0x4E40;
/// `NVME_IOCTL_ADMIN_CMD`: `_IOWR('N', 0x41, struct nvme_passthru_cmd)`, 72 bytes.
const NVME_IOCTL_ADMIN_CMD: libc::c_ulong = 0xC048_4E41;
/// `NVME_IOCTL_IO64_CMD`: `_IOWR('N', 0x48, struct nvme_passthru_cmd64)`, 80 bytes.
const NVME_IOCTL_IO64_CMD: libc::c_ulong = 0xC050_4E48;

/// Why a command failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// The device answered with this status.
    Status(Status),
    /// The kernel did not send it, or cancelled it: EINTR after a controller reset.
    System(io::Error),
}

/// A structure of `linux/nvme_ioctl.h`, aligned as its 64-bit fields are.
#[repr(C, align(8))]
struct Passed<const N: usize>([u8; N]);

/// The namespace of a node.
pub(super) fn namespace_id(node: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: the descriptor is open for the borrow; this ioctl takes no argument, and other drivers reject its number.
    let result = unsafe { libc::ioctl(node.as_raw_fd(), NVME_IOCTL_ID as _) };
    u32::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Runs an Identify that fills `out`; `command` builds it from the address.
pub(super) fn identify(
    node: BorrowedFd<'_>,
    out: &mut [u8; 4096],
    command: impl FnOnce(u64) -> Command,
) -> Result<(), Failed> {
    let mut passed = Passed::<72>(command(out.as_mut_ptr().expose_provenance() as u64).encode());
    // SAFETY: the descriptor is open for the borrow. The ioctl reads and writes one `struct nvme_passthru_cmd` of 72
    // bytes, which `passed` is. The kernel writes to the data of the command, at most the 4096 bytes of an Identify,
    // which are exclusively borrowed; the call returns when the device is done with them.
    let result = unsafe { libc::ioctl(node.as_raw_fd(), NVME_IOCTL_ADMIN_CMD as _, passed.0.as_mut_ptr()) };
    outcome(result)
}

/// Runs a read that fills `out`.
pub(super) fn read(
    node: BorrowedFd<'_>,
    out: &mut [u8],
    command: impl FnOnce(Data) -> Command,
) -> Result<(), Failed> {
    let data = Data { address: out.as_mut_ptr().expose_provenance() as u64, length: out.len() as u32 };
    // SAFETY: the kernel writes to the data of the command only, which is exclusively borrowed memory of this length;
    // the call returns when the device is done with it.
    unsafe { run(node, command(data)) }
}

/// Runs a command that reads `data`, or nothing.
pub(super) fn write(
    node: BorrowedFd<'_>,
    data: &[u8],
    command: impl FnOnce(Data) -> Command,
) -> Result<(), Failed> {
    let data = Data { address: data.as_ptr().expose_provenance() as u64, length: data.len() as u32 };
    // SAFETY: `command` is one whose data the device reads (a write, a range to deallocate) or that has none; the
    // memory is borrowed for the call.
    unsafe { run(node, command(data)) }
}

/// # Safety
/// The memory that the command names must be valid, and writable and unshared for a read, until this returns.
unsafe fn run(node: BorrowedFd<'_>, command: Command) -> Result<(), Failed> {
    let mut passed = Passed::<80>(command.encode());
    // SAFETY: the descriptor is open for the borrow. The ioctl reads and writes one `struct nvme_passthru_cmd64` of 80
    // bytes, which `passed` is. The caller promises that the command's data is valid; the call returns when the device
    // is done with it.
    let result = unsafe { libc::ioctl(node.as_raw_fd(), NVME_IOCTL_IO64_CMD as _, passed.0.as_mut_ptr()) };
    outcome(result)
}

/// Zero, a status of the device, or -1.
fn outcome(result: libc::c_int) -> Result<(), Failed> {
    match result {
        0 => Ok(()),
        status if status > 0 => Err(Failed::Status(Status::of(status))),
        _ => Err(Failed::System(io::Error::last_os_error())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn numbers_are_what_the_header_computes() {
        let number =
            |direction: u64, size: u64, nr: u64| direction << 30 | size << 16 | u64::from(b'N') << 8 | nr;
        assert_eq!(NVME_IOCTL_ID, number(0, 0, 0x40));
        assert_eq!(NVME_IOCTL_ADMIN_CMD, number(3, 72, 0x41));
        assert_eq!(NVME_IOCTL_IO64_CMD, number(3, 80, 0x48));
    }

    #[test]
    fn a_result_is_never_taken_for_bytes() {
        assert!(outcome(0).is_ok());
        assert!(matches!(outcome(0x4080), Err(Failed::Status(Status(0x4080)))));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(namespace_id(file.as_fd()).is_err());
        let failed = read(file.as_fd(), &mut [0; 512], |_| Command::flush(1));
        assert!(matches!(failed, Err(Failed::System(_))), "{failed:?}");
    }
}
