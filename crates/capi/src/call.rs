//! What a call returns, and what is remembered of its failure.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call fails.
pub(crate) struct Fault {
    errno: i32,
    text: String,
    block: u64,
    inode: u32,
}

pub(crate) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    pub(crate) fn new(errno: i32, text: impl Into<String>) -> Self {
        Fault { errno, text: text.into(), block: u64::MAX, inode: 0 }
    }

    /// An argument that makes no sense.
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Fault::new(libc::EINVAL, text)
    }

    /// With what it is about in front.
    pub(crate) fn about(mut self, what: impl Display) -> Self {
        self.text = format!("{what}: {}", self.text);
        self
    }
}

impl From<uext4::Error> for Fault {
    fn from(error: uext4::Error) -> Self {
        Fault {
            errno: error.errno(),
            text: error.to_string(),
            block: error.block().unwrap_or(u64::MAX),
            inode: error.inode().unwrap_or(0),
        }
    }
}

/// The last failure of a thread.
struct Last {
    text: CString,
    block: u64,
    inode: u32,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::new(Last { text: CString::default(), block: u64::MAX, inode: 0 });
}

/// Remembers a failure for this thread. Returns its negative errno.
fn remember(fault: Fault) -> i64 {
    let errno = if fault.errno > 0 { fault.errno } else { libc::EIO };
    let mut text = fault.text.into_bytes();
    text.retain(|&byte| byte != 0);
    // A thread that ends has no memory of it any more, and nobody who asks.
    let _ends = LAST.try_with(|last| {
        let text = CString::new(text).unwrap_or_default();
        *last.borrow_mut() = Last { text, block: fault.block, inode: fault.inode };
    });
    -i64::from(errno)
}

/// Runs the work of a call: its result, or the negative errno of its failure. A panic is one (`EIO`): it must not
/// unwind into C.
pub(crate) fn call(work: impl FnOnce() -> Result<i64>) -> i64 {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => value,
        Ok(Err(fault)) => remember(fault),
        Err(panic) => {
            let what = panic.downcast_ref::<String>().map(String::as_str);
            let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
            remember(Fault::new(libc::EIO, format!("libuext4 panicked: {what}")))
        }
    }
}

/// [`call`] for those that return an `int`.
pub(crate) fn call_int(work: impl FnOnce() -> Result<i64>) -> i32 {
    call(work) as i32
}

/// What the last failed call of this thread says of its failure: a line of text, empty if none failed. It stays valid
/// until the next call of this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The block of the volume that the last failure of this thread is about; `UINT64_MAX` if it is about none.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_last_error_block() -> u64 {
    LAST.try_with(|last| last.borrow().block).unwrap_or(u64::MAX)
}

/// The inode that the last failure of this thread is about; 0 if it is about none.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_last_error_inode() -> u32 {
    LAST.try_with(|last| last.borrow().inode).unwrap_or(0)
}
