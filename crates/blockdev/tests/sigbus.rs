//! The SIGBUS guard of `dax:` beside what the program does with that signal itself.

use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use uext4_blockdev::engine::DaxDevice;
use uext4_blockdev::{Device, Sharing};

/// Set in a child process that is expected to die.
const VICTIM: &str = "UEXT4_TEST_SIGBUS_VICTIM";
const SIZE: u64 = 64 << 10;

static CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    CALLS.fetch_add(1, SeqCst);
}

fn mapped_file() -> (std::fs::File, DaxDevice) {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, SIZE).unwrap();
    let device = DaxDevice::new(file.try_clone().unwrap(), "test".into(), true, Sharing::Private).unwrap();
    (file, device)
}

/// In a process of its own, because the disposition of a signal belongs to the whole process.
#[test]
fn faults_of_others_go_where_they_went_before() {
    uext4_testkit::own_process!();
    if std::env::var_os(VICTIM).is_some() {
        fault_outside_the_copies();
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sigbus::faults_of_others_go_where_they_went_before"])
        .env(VICTIM, "1")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(
        child.signal(),
        Some(libc::SIGBUS),
        "a fault that is not ours must end the process: {child:?}"
    );

    // SAFETY: zeroed memory is a valid `sigaction`; the handler has the signature of SA_SIGINFO and only
    // counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = count;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()), 0);
    }
    let (file, device) = mapped_file();
    file.set_len(4096).unwrap();
    let mut data = vec![0; 4096];
    assert_eq!(device.read_at(&mut data, 8192).unwrap_err().errno(), libc::EIO);
    assert_eq!(CALLS.load(SeqCst), 0, "our own fault was passed on");
    // SAFETY: sends a signal to this thread, which the handler above survives.
    unsafe { libc::raise(libc::SIGBUS) };
    assert_eq!(CALLS.load(SeqCst), 1, "a signal of others did not reach their handler");
    assert_eq!(device.read_at(&mut data, 8192).unwrap_err().errno(), libc::EIO, "the guard works only once");
}

/// Installs the guard, then reads a page that is gone without our routines. Does not return.
fn fault_outside_the_copies() -> ! {
    let (file, _device) = mapped_file();
    let (read, shared) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
    // SAFETY: a new mapping at an address the kernel chooses; the read of a page beyond the end raises
    // SIGBUS, which is the point.
    unsafe {
        let map = rustix::mm::mmap(std::ptr::null_mut(), 8192, read, shared, &file, 0).unwrap();
        file.set_len(0).unwrap();
        std::ptr::read_volatile(map.cast::<u8>());
    }
    std::process::exit(0)
}
