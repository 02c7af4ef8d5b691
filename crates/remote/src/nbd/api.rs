//! The functions of libnbd that this engine calls, by the signatures of its header `libnbd.h` (interface `LIBNBD_1.12`
//! and later), and a [`Handle`]: one connection.
//!
//! libnbd guards every handle with a lock of its own, so a handle may be used by several threads. It has no threads: it
//! touches the memory of requests only in calls, and never after the request's completion was called.

use crate::library::{Library, Named};
use parking_lot::Mutex;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;
use uext4_blockdev::{Process, Result, describe};

/// Where libnbd is.
pub(super) const LIBRARY: Named =
    Named { scheme: "nbd", file: "libnbd.so.0", install: "libnbd0 on Debian, libnbd on Fedora" };

/// `LIBNBD_TLS_REQUIRE`.
const TLS_REQUIRE: c_int = 2;
/// `LIBNBD_CMD_FLAG_FUA`.
const FLAG_FUA: u32 = 1;
/// `LIBNBD_CMD_FLAG_NO_HOLE`: the range keeps its space on the server.
const FLAG_NO_HOLE: u32 = 2;
/// `LIBNBD_AIO_DIRECTION_WRITE`.
const DIRECTION_WRITE: c_int = 2;

/// What is said where libnbd says nothing.
const UNKNOWN: &str = "an unknown error";

/// `struct nbd_handle`.
#[repr(C)]
struct Raw {
    _private: [u8; 0],
}

/// `nbd_completion_callback`, passed by value.
#[repr(C)]
struct Completion {
    callback: Option<unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int>,
    user_data: *mut c_void,
    free: Option<unsafe extern "C" fn(*mut c_void)>,
}

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn load(library: &Library) -> Result<Self> {
                // SAFETY: the types are those of libnbd.h.
                unsafe { Ok(Functions { $($name: library.function(concat!("nbd_", stringify!($name)))?,)* }) }
            }
        }
    };
}

functions! {
    create: fn() -> *mut Raw;
    close: fn(*mut Raw);
    get_error: fn() -> *const c_char;
    get_errno: fn() -> c_int;
    set_export_name: fn(*mut Raw, *const c_char) -> c_int;
    set_tls: fn(*mut Raw, c_int) -> c_int;
    set_tls_certificates: fn(*mut Raw, *const c_char) -> c_int;
    set_tls_verify_peer: fn(*mut Raw, bool) -> c_int;
    set_tls_username: fn(*mut Raw, *const c_char) -> c_int;
    set_tls_psk_file: fn(*mut Raw, *const c_char) -> c_int;
    set_request_structured_replies: fn(*mut Raw, bool) -> c_int;
    set_pread_initialize: fn(*mut Raw, bool) -> c_int;
    aio_connect_unix: fn(*mut Raw, *const c_char) -> c_int;
    aio_connect_tcp: fn(*mut Raw, *const c_char, *const c_char) -> c_int;
    poll: fn(*mut Raw, c_int) -> c_int;
    get_size: fn(*mut Raw) -> i64;
    get_block_size: fn(*mut Raw, c_int) -> i64;
    get_protocol: fn(*mut Raw) -> *const c_char;
    get_tls_negotiated: fn(*mut Raw) -> c_int;
    is_read_only: fn(*mut Raw) -> c_int;
    can_flush: fn(*mut Raw) -> c_int;
    can_fua: fn(*mut Raw) -> c_int;
    can_trim: fn(*mut Raw) -> c_int;
    can_zero: fn(*mut Raw) -> c_int;
    can_multi_conn: fn(*mut Raw) -> c_int;
    aio_pread: fn(*mut Raw, *mut c_void, usize, u64, Completion, u32) -> i64;
    aio_pwrite: fn(*mut Raw, *const c_void, usize, u64, Completion, u32) -> i64;
    aio_flush: fn(*mut Raw, Completion, u32) -> i64;
    aio_trim: fn(*mut Raw, u64, u64, Completion, u32) -> i64;
    aio_zero: fn(*mut Raw, u64, u64, Completion, u32) -> i64;
    aio_disconnect: fn(*mut Raw, u32) -> c_int;
    aio_get_fd: fn(*mut Raw) -> c_int;
    aio_get_direction: fn(*mut Raw) -> u32;
    aio_notify_read: fn(*mut Raw) -> c_int;
    aio_notify_write: fn(*mut Raw) -> c_int;
    aio_is_ready: fn(*mut Raw) -> c_int;
    aio_is_dead: fn(*mut Raw) -> c_int;
    aio_is_closed: fn(*mut Raw) -> c_int;
}

/// The loaded library.
pub(super) struct Api {
    functions: Functions,
    /// `nbd_set_tls_hostname`, which libnbd has only since 1.20.
    set_tls_hostname: Option<unsafe extern "C" fn(*mut Raw, *const c_char) -> c_int>,
}

/// What libnbd says about a call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) reason: String,
    /// `EIO` if libnbd knows none.
    pub(super) errno: i32,
}

type Answer<T> = std::result::Result<T, Fault>;

/// What a completion is told to: one request of one mailbox.
pub(super) trait Told: Sync {
    /// Called by whichever thread calls libnbd, with the handle's lock held: it must not call libnbd. `errno` is 0 for
    /// success.
    fn told(&self, errno: i32);
}

/// Memory and place of a transfer, bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) address: NonNull<u8>,
    pub(super) length: usize,
    pub(super) pos: u64,
}

impl Api {
    /// Loads libnbd, once in a process.
    pub(super) fn get() -> Result<&'static Api> {
        static LOADED: Mutex<Option<&'static Api>> = Mutex::new(None);
        let mut loaded = LOADED.lock();
        if let Some(api) = *loaded {
            return Ok(api);
        }
        let library = Library::load(LIBRARY)?;
        let functions = Functions::load(&library)?;
        // SAFETY: the type is that of libnbd.h.
        let set_tls_hostname = unsafe { library.function("nbd_set_tls_hostname") }.ok();
        let api = Box::leak(Box::new(Api { functions, set_tls_hostname }));
        Ok(loaded.insert(api))
    }

    /// Why the last call of this thread failed.
    fn fault(&self) -> Fault {
        // SAFETY: both may be called at any time; the text is the calling thread's, until its next call of libnbd.
        let (reason, errno) = unsafe {
            let text = (self.functions.get_error)();
            let reason = match text.is_null() {
                true => UNKNOWN.to_owned(),
                false => CStr::from_ptr(text).to_string_lossy().into_owned(),
            };
            (reason, (self.functions.get_errno)())
        };
        // "nbd_connect_unix: …": the name of the function says nothing to a user.
        let reason = match reason.split_once(": ") {
            Some((function, rest)) if function.starts_with("nbd_") => rest.to_owned(),
            _ => reason,
        };
        Fault { reason, errno: if errno > 0 { errno } else { libc::EIO } }
    }

    /// Whether [`Handle::set_tls_hostname`] works.
    pub(super) fn has_tls_hostname(&self) -> bool {
        self.set_tls_hostname.is_some()
    }
}

/// A handle of libnbd: at most one connection. A child of the process does not close it.
pub(super) struct Handle {
    raw: NonNull<Raw>,
    api: &'static Api,
    process: Process,
}

// SAFETY: libnbd's handles may be used by any thread: each call takes the handle's lock.
unsafe impl Send for Handle {}
// SAFETY: as above, by several threads at once.
unsafe impl Sync for Handle {}

fn text(text: &[u8]) -> Answer<CString> {
    CString::new(text).map_err(|_nul| Fault { reason: "a NUL byte".into(), errno: libc::EINVAL })
}

/// Calls a function of libnbd on the handle of `$self`.
macro_rules! call {
    ($self:ident, $function:ident $(, $argument:expr)*) => {
        // SAFETY: the handle is live until `self` is dropped. Pointers among the arguments are texts that end with NUL
        // and outlive the call, which copies them.
        unsafe { ($self.api.functions.$function)($self.raw.as_ptr() $(, $argument)*) }
    };
}

impl Handle {
    /// A handle without a connection. Replies are simple ones (each with all of its data), and memory is not cleared
    /// before it is read into: it has been initialised.
    pub(super) fn new(api: &'static Api, process: Process) -> Answer<Self> {
        // SAFETY: it has no arguments, and may be called by any thread.
        let raw = NonNull::new(unsafe { (api.functions.create)() }).ok_or_else(|| api.fault())?;
        let handle = Handle { raw, api, process };
        handle.done(call!(handle, set_request_structured_replies, false))?;
        handle.done(call!(handle, set_pread_initialize, false))?;
        Ok(handle)
    }

    /// Why the last call of this thread failed, or what a request ran into that it sent.
    pub(super) fn fault(&self) -> Fault {
        self.api.fault()
    }

    fn done(&self, result: c_int) -> Answer<()> {
        if result == -1 { Err(self.api.fault()) } else { Ok(()) }
    }

    fn flag(&self, result: c_int) -> Answer<bool> {
        self.done(result).map(|()| result != 0)
    }

    pub(super) fn set_export_name(&self, name: &str) -> Answer<()> {
        self.done(call!(self, set_export_name, text(name.as_bytes())?.as_ptr()))
    }

    /// No connection without TLS.
    pub(super) fn require_tls(&self) -> Answer<()> {
        self.done(call!(self, set_tls, TLS_REQUIRE))
    }

    pub(super) fn set_tls_certificates(&self, directory: &str) -> Answer<()> {
        self.done(call!(self, set_tls_certificates, text(directory.as_bytes())?.as_ptr()))
    }

    pub(super) fn set_tls_verify_peer(&self, verify: bool) -> Answer<()> {
        self.done(call!(self, set_tls_verify_peer, verify))
    }

    pub(super) fn set_tls_username(&self, name: &str) -> Answer<()> {
        self.done(call!(self, set_tls_username, text(name.as_bytes())?.as_ptr()))
    }

    pub(super) fn set_tls_psk_file(&self, file: &str) -> Answer<()> {
        self.done(call!(self, set_tls_psk_file, text(file.as_bytes())?.as_ptr()))
    }

    pub(super) fn set_tls_hostname(&self, name: &str) -> Answer<()> {
        let missing =
            || Fault { reason: "`tls-hostname` needs a newer libnbd".into(), errno: libc::EOPNOTSUPP };
        let set = self.api.set_tls_hostname.ok_or_else(missing)?;
        let name = text(name.as_bytes())?;
        // SAFETY: the handle is live, and the text outlives the call, which copies it.
        self.done(unsafe { set(self.raw.as_ptr(), name.as_ptr()) })
    }

    /// Begins to connect and to negotiate. [`Handle::poll`] goes on with it.
    pub(super) fn connect_unix(&self, socket: &[u8]) -> Answer<()> {
        self.done(call!(self, aio_connect_unix, text(socket)?.as_ptr()))
    }

    /// [`Handle::connect_unix`] over TCP.
    pub(super) fn connect_tcp(&self, host: &str, port: u16) -> Answer<()> {
        let (host, port) = (text(host.as_bytes())?, text(port.to_string().as_bytes())?);
        self.done(call!(self, aio_connect_tcp, host.as_ptr(), port.as_ptr()))
    }

    /// Waits until the socket is ready, and goes on. `None`: as long as it takes.
    pub(super) fn poll(&self, limit: Option<Duration>) -> Answer<()> {
        let limit = limit.map_or(-1, |limit| c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX));
        self.done(call!(self, poll, limit))
    }

    /// Bytes of the export.
    pub(super) fn size(&self) -> Answer<u64> {
        match call!(self, get_size) {
            // libnbd passes on whatever the server says, so that -1 may be a size, too: then it has no error.
            size @ ..0 => Err(match self.api.fault() {
                fault if size == -1 && fault.reason != UNKNOWN => fault,
                _ => Fault { reason: "an export of 8 EiB or more".into(), errno: libc::EFBIG },
            }),
            size => Ok(size.cast_unsigned()),
        }
    }

    /// Bytes; 0 if the server does not tell.
    pub(super) fn block_size(&self, which: BlockSize) -> Answer<u64> {
        u64::try_from(call!(self, get_block_size, which as c_int)).map_err(|_negative| self.api.fault())
    }

    /// As libnbd calls it: `newstyle-fixed`.
    pub(super) fn protocol(&self) -> Answer<String> {
        let name = call!(self, get_protocol);
        match name.is_null() {
            true => Err(self.api.fault()),
            // SAFETY: a text of the library that is never freed.
            false => Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()),
        }
    }

    pub(super) fn has_tls(&self) -> Answer<bool> {
        self.flag(call!(self, get_tls_negotiated))
    }

    pub(super) fn is_read_only(&self) -> Answer<bool> {
        self.flag(call!(self, is_read_only))
    }

    pub(super) fn can_flush(&self) -> Answer<bool> {
        self.flag(call!(self, can_flush))
    }

    pub(super) fn can_fua(&self) -> Answer<bool> {
        self.flag(call!(self, can_fua))
    }

    pub(super) fn can_trim(&self) -> Answer<bool> {
        self.flag(call!(self, can_trim))
    }

    pub(super) fn can_zero(&self) -> Answer<bool> {
        self.flag(call!(self, can_zero))
    }

    pub(super) fn can_multi_conn(&self) -> Answer<bool> {
        self.flag(call!(self, can_multi_conn))
    }

    /// A duplicate of the socket's descriptor: libnbd closes its own as soon as the connection is over, and another
    /// file may get its number.
    pub(super) fn socket(&self) -> Answer<OwnedFd> {
        let socket = call!(self, aio_get_fd);
        self.done(socket)?;
        // SAFETY: libnbd keeps the descriptor open while this thread is not in another call, and no other thread has
        // the handle yet.
        let socket = unsafe { BorrowedFd::borrow_raw(socket) };
        socket.try_clone_to_owned().map_err(|error| Fault {
            reason: describe(&error),
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        })
    }

    /// Whether requests wait until the socket can be written to.
    #[inline]
    pub(super) fn wants_write(&self) -> bool {
        call!(self, aio_get_direction) as c_int & DIRECTION_WRITE != 0
    }

    /// Takes what the socket has. Completions are called.
    #[inline]
    pub(super) fn notify_read(&self) -> Answer<()> {
        self.done(call!(self, aio_notify_read))
    }

    /// Goes on with what waits until the socket can be written to.
    #[inline]
    pub(super) fn notify_write(&self) -> Answer<()> {
        self.done(call!(self, aio_notify_write))
    }

    /// Whether it is between replies, with nothing waiting to be sent.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        call!(self, aio_is_ready) == 1
    }

    /// Whether the connection is over, so that no request is in flight and none can be sent.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        call!(self, aio_is_dead) == 1 || call!(self, aio_is_closed) == 1
    }

    /// Tells the server that the client goes. Waits for nothing.
    pub(super) fn disconnect(&self) {
        // The connection is closed next, whatever the answer.
        let _ = call!(self, aio_disconnect, 0);
    }

    /// Reads into the piece.
    ///
    /// # Errors
    /// [`Fault`] if libnbd refuses it. Then `told` is not called.
    ///
    /// # Safety
    /// The memory is writable and nobody else's, and `told` stays where it is, until `told` is called. It is called
    /// exactly once, perhaps during this call: at the latest when the connection is over ([`Handle::is_over`]).
    #[inline]
    pub(super) unsafe fn read<T: Told>(&self, piece: Piece, told: *const T) -> Answer<()> {
        let Piece { address, length, pos } = piece;
        self.sent(call!(self, aio_pread, address.as_ptr().cast(), length, pos, completion(told), 0))
    }

    /// Writes the piece.
    ///
    /// # Errors
    /// As of [`Handle::read`].
    ///
    /// # Safety
    /// As of [`Handle::read`]; the memory is readable and not changed.
    #[inline]
    pub(super) unsafe fn write<T: Told>(&self, piece: Piece, fua: bool, told: *const T) -> Answer<()> {
        let Piece { address, length, pos } = piece;
        let (from, flags) = (address.as_ptr().cast_const().cast(), if fua { FLAG_FUA } else { 0 });
        self.sent(call!(self, aio_pwrite, from, length, pos, completion(told), flags))
    }

    /// Makes completed writes durable.
    ///
    /// # Errors
    /// As of [`Handle::read`].
    ///
    /// # Safety
    /// As of [`Handle::read`], about `told`.
    pub(super) unsafe fn flush<T: Told>(&self, told: *const T) -> Answer<()> {
        self.sent(call!(self, aio_flush, completion(told), 0))
    }

    /// Tells that a range of less than 4 GiB is unused.
    ///
    /// # Errors
    /// As of [`Handle::read`].
    ///
    /// # Safety
    /// As of [`Handle::read`], about `told`.
    pub(super) unsafe fn trim<T: Told>(&self, pos: u64, length: u64, told: *const T) -> Answer<()> {
        self.sent(call!(self, aio_trim, length, pos, completion(told), 0))
    }

    /// Makes a range of less than 4 GiB zeros, as a write of them would.
    ///
    /// # Errors
    /// As of [`Handle::read`].
    ///
    /// # Safety
    /// As of [`Handle::read`], about `told`.
    pub(super) unsafe fn zero<T: Told>(
        &self,
        pos: u64,
        length: u64,
        fua: bool,
        told: *const T,
    ) -> Answer<()> {
        let flags = FLAG_NO_HOLE | if fua { FLAG_FUA } else { 0 };
        self.sent(call!(self, aio_zero, length, pos, completion(told), flags))
    }

    #[inline]
    fn sent(&self, cookie: i64) -> Answer<()> {
        if cookie == -1 { Err(self.api.fault()) } else { Ok(()) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.process.is_here() {
            call!(self, close);
        }
    }
}

/// Which block size a server tells: `LIBNBD_SIZE_MINIMUM` and so on.
#[derive(Debug, Clone, Copy)]
pub(super) enum BlockSize {
    Minimum = 0,
    Preferred = 1,
    Maximum = 2,
}

fn completion<T: Told>(told: *const T) -> Completion {
    Completion { callback: Some(completed::<T>), user_data: told.cast_mut().cast(), free: None }
}

/// Called by libnbd when a request has ended. 1: libnbd forgets the request by itself. 0: when the handle is closed,
/// which is soon for a request that the end of the connection has ended (`ENOTCONN`, which no server can answer). One
/// that was just being sent must not be forgotten earlier: libnbd 1.14 looks at it once more.
unsafe extern "C" fn completed<T: Told>(told: *mut c_void, errno: *mut c_int) -> c_int {
    // SAFETY: libnbd's pointer to the error number is valid during the call.
    let errno = unsafe { *errno };
    // SAFETY: the pointer of `completion`, which is valid until this call by the promise of whoever sent the request.
    unsafe { (*told.cast::<T>().cast_const()).told(errno) };
    c_int::from(errno != libc::ENOTCONN)
}
