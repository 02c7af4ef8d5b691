//! librados and librbd: their functions with the signatures of `rados/librados.h` and `rbd/librbd.h` (version 16.2),
//! and handles that keep their rules. The only file of this engine that calls C.
//!
//! Both libraries may be called from any thread, and have threads of their own. They do not survive a `fork`: the
//! callers of this file check the process first, and a child leaves its copies of the handles alone.

use super::inbox::Ticket;
use crate::library::{Library, Named};
use libc::{c_char, c_int, c_void, size_t, ssize_t};
use std::ffi::{CStr, CString};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use uext4_blockdev::Result;

/// `rados_t`, `rados_ioctx_t`, `rbd_image_t` and `rbd_completion_t`.
type Handle = *mut c_void;

/// `rbd_callback_t`.
type Callback = unsafe extern "C" fn(Handle, *mut c_void);

/// The callback of `rbd_diff_iterate2`: position, length, whether there is data, argument.
type Extent = unsafe extern "C" fn(u64, size_t, c_int, *mut c_void) -> c_int;

/// The signature of `rbd_write_zeroes`: position, length, flags of zeros, flags of requests.
type WriteZeroes = unsafe extern "C" fn(Handle, u64, size_t, c_int, c_int) -> ssize_t;

/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`: the range keeps its objects, or gets them.
const THICK_PROVISION: c_int = 1;

/// `rbd_image_info_t`.
#[repr(C)]
struct ImageInfo {
    size: u64,
    object_size: u64,
    objects: u64,
    order: c_int,
    block_name_prefix: [c_char; 24],
    parent_pool: i64,
    parent_name: [c_char; 96],
}

/// `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Watcher {
    address: *mut c_char,
    id: i64,
    cookie: u64,
}

/// `rbd_config_option_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ConfigOption {
    name: *mut c_char,
    value: *mut c_char,
    source: c_int,
}

const LOCK_MODE_EXCLUSIVE: c_int = 0;

/// What the C functions say: a negative error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Errno(pub(super) i32);

/// An answer of the C functions.
pub(super) type Answer<T> = std::result::Result<T, Errno>;

fn answer(code: c_int) -> Answer<()> {
    if code < 0 { Err(Errno(-code)) } else { Ok(()) }
}

macro_rules! functions {
    ($($library:ident { $(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)* })*) => {
        /// The functions, by their names in C.
        struct Functions {
            $($($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
            /// Since Ceph 16.
            rbd_write_zeroes: Option<WriteZeroes>,
        }

        impl Functions {
            fn load(librados: &Library, librbd: &Library) -> Result<Self> {
                let libraries = Libraries { librados, librbd };
                Ok(Functions {
                    // SAFETY: the signatures below are those of the headers.
                    $($($name: unsafe { libraries.$library.function(stringify!($name)) }?,)*)*
                    // SAFETY: as above.
                    rbd_write_zeroes: unsafe { librbd.function("rbd_write_zeroes") }.ok(),
                })
            }
        }
    };
}

struct Libraries<'a> {
    librados: &'a Library,
    librbd: &'a Library,
}

functions! {
    librados {
        fn rados_create(*mut Handle, *const c_char) -> c_int;
        fn rados_shutdown(Handle);
        fn rados_conf_read_file(Handle, *const c_char) -> c_int;
        fn rados_conf_get(Handle, *const c_char, *mut c_char, size_t) -> c_int;
        fn rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
        fn rados_connect(Handle) -> c_int;
        fn rados_get_instance_id(Handle) -> u64;
        fn rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
        fn rados_ioctx_destroy(Handle);
        fn rados_ioctx_set_namespace(Handle, *const c_char);
    }
    librbd {
        fn rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        fn rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        fn rbd_close(Handle) -> c_int;
        fn rbd_stat(Handle, *mut ImageInfo, size_t) -> c_int;
        fn rbd_get_features(Handle, *mut u64) -> c_int;
        fn rbd_features_to_string(u64, *mut c_char, *mut size_t) -> c_int;
        fn rbd_config_image_list(Handle, *mut ConfigOption, *mut c_int) -> c_int;
        fn rbd_config_image_list_cleanup(*mut ConfigOption, c_int);
        fn rbd_lock_acquire(Handle, c_int) -> c_int;
        fn rbd_lock_get_owners(Handle, *mut c_int, *mut *mut c_char, *mut size_t) -> c_int;
        fn rbd_lock_get_owners_cleanup(*mut *mut c_char, size_t);
        fn rbd_watchers_list(Handle, *mut Watcher, *mut size_t) -> c_int;
        fn rbd_watchers_list_cleanup(*mut Watcher, size_t);
        fn rbd_read(Handle, u64, size_t, *mut c_char) -> ssize_t;
        fn rbd_write(Handle, u64, size_t, *const c_char) -> ssize_t;
        fn rbd_flush(Handle) -> c_int;
        fn rbd_discard(Handle, u64, u64) -> c_int;
        fn rbd_diff_iterate2(Handle, *const c_char, u64, u64, u8, u8, Extent, *mut c_void) -> c_int;
        fn rbd_aio_create_completion(*mut c_void, Option<Callback>, *mut Handle) -> c_int;
        fn rbd_aio_get_return_value(Handle) -> ssize_t;
        fn rbd_aio_release(Handle);
        fn rbd_aio_read(Handle, u64, size_t, *mut c_char, Handle) -> c_int;
        fn rbd_aio_write(Handle, u64, size_t, *const c_char, Handle) -> c_int;
        fn rbd_aio_discard(Handle, u64, u64, Handle) -> c_int;
        fn rbd_aio_flush(Handle, Handle) -> c_int;
    }
}

/// The loaded libraries. They stay loaded until the process ends.
fn functions() -> Result<&'static Functions> {
    static LOADED: OnceLock<Functions> = OnceLock::new();
    if let Some(loaded) = LOADED.get() {
        return Ok(loaded);
    }
    let named = |file| Named { scheme: "rbd", file, install: "packages librbd1 and librados2" };
    let librados = Library::load(named("librados.so.2"))?;
    let librbd = Library::load(named("librbd.so.1"))?;
    let loaded = Functions::load(&librados, &librbd)?;
    Ok(LOADED.get_or_init(|| loaded))
}

/// A client of a cluster, connected or not.
pub(super) struct Cluster {
    functions: &'static Functions,
    handle: Handle,
}

// SAFETY: librados takes a cluster handle on any thread; every call is internally locked.
unsafe impl Send for Cluster {}
// SAFETY: the same.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// A client that is not connected: user `client.ID`, or `client.admin`.
    pub(super) fn new(id: Option<&CStr>) -> Result<Answer<Self>> {
        let functions = functions()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the place of the handle is ours; the name is null or a C string.
        let code = unsafe { (functions.rados_create)(&raw mut handle, pointer(id)) };
        Ok(answer(code).map(|()| Cluster { functions, handle }))
    }

    /// Reads a configuration: this file, or the first that exists of `$CEPH_CONF`, `/etc/ceph/ceph.conf`, ….
    pub(super) fn read_configuration(&self, path: Option<&CStr>) -> Answer<()> {
        // SAFETY: the handle lives as long as `self`; the path is null or a C string.
        answer(unsafe { (self.functions.rados_conf_read_file)(self.handle, pointer(path)) })
    }

    /// The value of an option of the configuration, if it has fewer than 256 bytes.
    pub(super) fn option(&self, name: &CStr) -> Answer<String> {
        let mut text = [0; 256];
        // SAFETY: the handle lives as long as `self`; the function writes a C string of at most this length.
        let code = unsafe {
            (self.functions.rados_conf_get)(self.handle, name.as_ptr(), text.as_mut_ptr().cast(), text.len())
        };
        answer(code)?;
        Ok(until_nul(&text))
    }

    /// Sets an option of the configuration, before connecting.
    pub(super) fn set_option(&self, name: &CStr, value: &CStr) -> Answer<()> {
        // SAFETY: the handle lives as long as `self`; both are C strings, which are copied.
        answer(unsafe { (self.functions.rados_conf_set)(self.handle, name.as_ptr(), value.as_ptr()) })
    }

    /// Connects to the monitors.
    pub(super) fn connect(&self) -> Answer<()> {
        // SAFETY: the handle lives as long as `self`.
        answer(unsafe { (self.functions.rados_connect)(self.handle) })
    }

    /// The number of this client in the cluster. Only after [`Cluster::connect`].
    pub(super) fn client(&self) -> u64 {
        // SAFETY: the handle lives as long as `self`.
        unsafe { (self.functions.rados_get_instance_id)(self.handle) }
    }

    /// A pool, or a namespace of it, of this connected client.
    pub(super) fn pool(self, name: &CStr, namespace: &CStr) -> std::result::Result<Pool, (Cluster, Errno)> {
        let mut handle = ptr::null_mut();
        // SAFETY: the cluster's handle lives as long as `self`; the place of the new one is ours.
        let code =
            unsafe { (self.functions.rados_ioctx_create)(self.handle, name.as_ptr(), &raw mut handle) };
        if let Err(errno) = answer(code) {
            return Err((self, errno));
        }
        // SAFETY: the handle was made above; the name is copied.
        unsafe { (self.functions.rados_ioctx_set_namespace)(handle, namespace.as_ptr()) };
        Ok(Pool { handle, cluster: self })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: made by `rados_create`, and used by nothing after this: what stands on it owns `self`.
        unsafe { (self.functions.rados_shutdown)(self.handle) }
    }
}

/// A pool of a cluster.
pub(super) struct Pool {
    handle: Handle,
    cluster: Cluster,
}

// SAFETY: as for `Cluster`: an I/O context is locked internally, and its namespace does not change.
unsafe impl Send for Pool {}
// SAFETY: the same.
unsafe impl Sync for Pool {}

impl Pool {
    /// The client.
    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Opens an image, or a snapshot of it.
    pub(super) fn image(
        self,
        name: &CStr,
        snapshot: Option<&CStr>,
        write: bool,
    ) -> std::result::Result<Image, (Pool, Errno)> {
        let functions = self.cluster.functions;
        let open = if write { functions.rbd_open } else { functions.rbd_open_read_only };
        let mut handle = ptr::null_mut();
        // SAFETY: the pool's handle lives as long as `self`, which the image keeps; the place of the new one is ours.
        let code = unsafe { open(self.handle, name.as_ptr(), &raw mut handle, pointer(snapshot)) };
        match answer(code) {
            Ok(()) => Ok(Image { handle, pool: self }),
            Err(errno) => Err((self, errno)),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: made by `rados_ioctx_create`, and used by nothing after this; the cluster is shut down later.
        unsafe { (self.cluster.functions.rados_ioctx_destroy)(self.handle) }
    }
}

/// Sizes of an image, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Of the image.
    pub(super) image: u64,
    /// Of its objects.
    pub(super) object: u64,
}

/// A client that watches an image.
#[derive(Debug, Clone)]
pub(super) struct Client {
    /// Its number in the cluster.
    pub(super) id: u64,
    /// The cookie of its watch. A client that was forgotten gets another one with its next watch.
    pub(super) cookie: u64,
    pub(super) address: String,
}

/// What a writer has in the cluster.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) watch: Client,
    /// Who had the exclusive lock when it was taken, as [`Image::lock_owners`] calls this client. Empty without a lock.
    pub(super) owners: Vec<String>,
}

/// An open image. No request may be under way when it is dropped: a queue keeps it until its requests are done.
pub(super) struct Image {
    handle: Handle,
    pool: Pool,
}

// SAFETY: librbd takes an image handle on any thread; every call is internally locked.
unsafe impl Send for Image {}
// SAFETY: the same.
unsafe impl Sync for Image {}

impl Image {
    fn functions(&self) -> &'static Functions {
        self.pool.cluster.functions
    }

    /// The pool.
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Its sizes now.
    pub(super) fn sizes(&self) -> Answer<Sizes> {
        let mut info = ImageInfo {
            size: 0,
            object_size: 0,
            objects: 0,
            order: 0,
            block_name_prefix: [0; 24],
            parent_pool: 0,
            parent_name: [0; 96],
        };
        // SAFETY: the structure is laid out as in the header, and its size is passed.
        answer(unsafe { (self.functions().rbd_stat)(self.handle, &raw mut info, size_of::<ImageInfo>()) })?;
        Ok(Sizes { image: info.size, object: info.object_size })
    }

    /// Its features, a bit each.
    pub(super) fn features(&self) -> Answer<u64> {
        let mut features = 0;
        // SAFETY: the place of the answer is ours.
        answer(unsafe { (self.functions().rbd_get_features)(self.handle, &raw mut features) })?;
        Ok(features)
    }

    /// The names of features.
    pub(super) fn names_of(&self, features: u64) -> Answer<String> {
        let mut text = [0; 512];
        let mut length = text.len();
        // SAFETY: the function writes a C string of at most `length` bytes.
        let code = unsafe {
            (self.functions().rbd_features_to_string)(features, text.as_mut_ptr().cast(), &raw mut length)
        };
        answer(code)?;
        Ok(until_nul(&text).replace(',', ", "))
    }

    /// The value of an option as this image has it, after what the pool and the image say; `None` for unknown ones.
    pub(super) fn options(&self, names: &[&str]) -> Answer<Vec<Option<String>>> {
        let mut list = vec![ConfigOption { name: ptr::null_mut(), value: ptr::null_mut(), source: 0 }; 512];
        let mut count = list.len() as c_int;
        // SAFETY: the list has room for `count` entries, of which the function fills some and says how many.
        answer(unsafe {
            (self.functions().rbd_config_image_list)(self.handle, list.as_mut_ptr(), &raw mut count)
        })?;
        let filled = &list[..usize::try_from(count).unwrap_or(0).min(list.len())];
        let found = names.iter().map(|wanted| {
            // SAFETY: the entries that were filled hold C strings, which live until they are cleaned up below.
            let named = |entry: &&ConfigOption| unsafe { text_of(entry.name) }.as_deref() == Some(*wanted);
            // SAFETY: the same.
            filled.iter().find(named).and_then(|entry| unsafe { text_of(entry.value) })
        });
        let found = found.collect();
        // SAFETY: the entries that were filled, once.
        unsafe { (self.functions().rbd_config_image_list_cleanup)(list.as_mut_ptr(), count) };
        Ok(found)
    }

    /// Takes the exclusive lock and keeps it: requests of others for it are refused from now on.
    pub(super) fn lock(&self) -> Answer<()> {
        // SAFETY: the handle lives as long as `self`.
        answer(unsafe { (self.functions().rbd_lock_acquire)(self.handle, LOCK_MODE_EXCLUSIVE) })
    }

    /// The address of the client that has the exclusive lock, if one has it.
    pub(super) fn lock_owners(&self) -> Answer<Vec<String>> {
        let (mut mode, mut count) = (0, 8);
        let mut list = [ptr::null_mut(); 8];
        // SAFETY: the list has room for `count` pointers; the function says how many it has filled.
        let code = unsafe {
            (self.functions().rbd_lock_get_owners)(
                self.handle,
                &raw mut mode,
                list.as_mut_ptr(),
                &raw mut count,
            )
        };
        match answer(code) {
            Err(Errno(libc::ENOENT)) => return Ok(Vec::new()),
            other => other?,
        }
        // SAFETY: the entries that were filled hold C strings, which live until they are cleaned up below.
        let owners = list[..count.min(8)].iter().filter_map(|&owner| unsafe { text_of(owner) }).collect();
        // SAFETY: the entries that were filled, once.
        unsafe { (self.functions().rbd_lock_get_owners_cleanup)(list.as_mut_ptr(), count) };
        Ok(owners)
    }

    /// The clients that have the image open for writing.
    pub(super) fn watchers(&self) -> Answer<Vec<Client>> {
        let mut list = vec![Watcher { address: ptr::null_mut(), id: 0, cookie: 0 }; 256];
        let mut count = list.len();
        // SAFETY: the list has room for `count` entries; the function says how many it has filled.
        answer(unsafe {
            (self.functions().rbd_watchers_list)(self.handle, list.as_mut_ptr(), &raw mut count)
        })?;
        let filled = &list[..count.min(256)];
        let named = filled.iter().map(|watcher| {
            // SAFETY: the entries that were filled hold C strings, which live until they are cleaned up below.
            let address = unsafe { text_of(watcher.address) };
            Client { id: watcher.id as u64, cookie: watcher.cookie, address: address.unwrap_or_default() }
        });
        let named = named.collect();
        // SAFETY: the entries that were filled, once.
        unsafe { (self.functions().rbd_watchers_list_cleanup)(list.as_mut_ptr(), count) };
        Ok(named)
    }

    /// Whether the cluster still knows all this.
    pub(super) fn holds(&self, held: &Held) -> Answer<bool> {
        let Client { id, cookie, .. } = &held.watch;
        let watches = self.watchers()?.iter().any(|client| (client.id, client.cookie) == (*id, *cookie));
        Ok(watches && (held.owners.is_empty() || self.lock_owners()? == held.owners))
    }

    /// Fills `buf` from byte `pos`, and returns how many bytes it was.
    pub(super) fn read(&self, buf: &mut [u8], pos: u64) -> Answer<usize> {
        // SAFETY: the memory is ours for the call, which waits for the end of the request.
        let read =
            unsafe { (self.functions().rbd_read)(self.handle, pos, buf.len(), buf.as_mut_ptr().cast()) };
        usize::try_from(read).map_err(|_| Errno(negated(read)))
    }

    /// Writes `buf` at byte `pos`.
    pub(super) fn write(&self, buf: &[u8], pos: u64) -> Answer<usize> {
        // SAFETY: the memory does not change during the call, which waits for the end of the request.
        let written =
            unsafe { (self.functions().rbd_write)(self.handle, pos, buf.len(), buf.as_ptr().cast()) };
        usize::try_from(written).map_err(|_| Errno(negated(written)))
    }

    /// Waits until what was written before is durable.
    pub(super) fn flush(&self) -> Answer<()> {
        // SAFETY: the handle lives as long as `self`.
        answer(unsafe { (self.functions().rbd_flush)(self.handle) })
    }

    /// Whether [`Image::write_zeros`] is there.
    pub(super) fn can_zero(&self) -> bool {
        self.functions().rbd_write_zeroes.is_some()
    }

    /// Makes the range zeros, as a write of them would, and returns how many bytes it was.
    pub(super) fn write_zeros(&self, pos: u64, length: usize) -> Answer<usize> {
        let function = self.functions().rbd_write_zeroes.ok_or(Errno(libc::EOPNOTSUPP))?;
        // SAFETY: the handle lives as long as `self`.
        let written = unsafe { function(self.handle, pos, length, THICK_PROVISION, 0) };
        usize::try_from(written).map_err(|_| Errno(negated(written)))
    }

    /// Tells that the range is unused.
    pub(super) fn discard(&self, pos: u64, length: u64) -> Answer<()> {
        // SAFETY: the handle lives as long as `self`.
        answer(unsafe { (self.functions().rbd_discard)(self.handle, pos, length) })
    }

    /// Whether the range was never written, neither here nor in an image that this one was cloned from, or was
    /// discarded: a request for each object of it.
    pub(super) fn is_hole(&self, pos: u64, length: u64) -> Answer<bool> {
        let (include_parent, whole_object) = (1, 0);
        // SAFETY: the callback takes a null argument; no earlier snapshot: everything written counts.
        let code = unsafe {
            (self.functions().rbd_diff_iterate2)(
                self.handle,
                ptr::null(),
                pos,
                length,
                include_parent,
                whole_object,
                on_extent,
                ptr::null_mut(),
            )
        };
        match code {
            HAS_DATA => Ok(false),
            code => answer(code).map(|()| true),
        }
    }

    /// Starts a request. `ticket` gets its result, unless this fails.
    ///
    /// # Safety
    /// Image and ticket stay where they are until the ticket has its result, and so does the memory of a transfer:
    /// readable and unchanged for a write, writable and untouched by others for a read.
    pub(super) unsafe fn start(&self, transfer: Transfer, ticket: &Ticket) -> Answer<()> {
        let functions = self.functions();
        let argument = ptr::from_ref(ticket).cast_mut().cast();
        let mut completion = ptr::null_mut();
        // SAFETY: the place of the handle is ours; the callback gets the ticket, which stays.
        answer(unsafe {
            (functions.rbd_aio_create_completion)(argument, Some(on_completion), &raw mut completion)
        })?;
        // SAFETY: the image's handle lives, and the caller promises the memory.
        let code = unsafe {
            match transfer {
                Transfer::Read { pos, length, memory } => {
                    (functions.rbd_aio_read)(self.handle, pos, length, memory.as_ptr().cast(), completion)
                }
                Transfer::Write { pos, length, memory } => {
                    (functions.rbd_aio_write)(self.handle, pos, length, memory.as_ptr().cast(), completion)
                }
                Transfer::Discard { pos, length } => {
                    (functions.rbd_aio_discard)(self.handle, pos, length, completion)
                }
                Transfer::Flush => (functions.rbd_aio_flush)(self.handle, completion),
            }
        };
        if code < 0 {
            // SAFETY: a request that was refused does not call back; nothing else has this completion.
            unsafe { (functions.rbd_aio_release)(completion) };
        }
        answer(code)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: made by an open above; no request is under way. It gives the lock back. That it failed changes
        // nothing: the handle is gone in any case.
        let _failed = unsafe { (self.functions().rbd_close)(self.handle) };
    }
}

/// A request of a queue.
#[derive(Debug, Clone, Copy)]
pub(super) enum Transfer {
    /// Image to memory.
    Read { pos: u64, length: usize, memory: NonNull<u8> },
    /// Memory to image.
    Write { pos: u64, length: usize, memory: NonNull<u8> },
    /// The range is unused.
    Discard { pos: u64, length: u64 },
    /// What was written before becomes durable.
    Flush,
}

/// Called on a thread of librbd when a request is done.
unsafe extern "C" fn on_completion(completion: Handle, argument: *mut c_void) {
    // The functions are loaded: one of them has called this.
    let Ok(functions) = functions() else { return };
    // SAFETY: librbd passes a completed completion, which is not used after its release.
    let result = unsafe { (functions.rbd_aio_get_return_value)(completion) };
    // SAFETY: the same. librbd keeps a reference of its own during the callback.
    unsafe { (functions.rbd_aio_release)(completion) };
    // SAFETY: the ticket passed to `start`, which stays until it has its result.
    let ticket = unsafe { &*argument.cast::<Ticket>() };
    // After this call the ticket may be gone.
    ticket.done(i64::try_from(result).unwrap_or(i64::from(-libc::EIO)));
}

/// Ends the look for data at the first that is found. An error number that no failure has.
const HAS_DATA: c_int = -libc::EEXIST;

/// Called for each range that is data or was made a hole.
unsafe extern "C" fn on_extent(_: u64, _: size_t, data: c_int, _: *mut c_void) -> c_int {
    if data != 0 { HAS_DATA } else { 0 }
}

fn pointer(text: Option<&CStr>) -> *const c_char {
    text.map_or(ptr::null(), CStr::as_ptr)
}

fn negated(code: ssize_t) -> i32 {
    i32::try_from(-code).unwrap_or(libc::EIO)
}

/// # Safety
/// A null pointer or a C string.
unsafe fn text_of(text: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// The text in front of the first NUL byte.
fn until_nul(text: &[u8]) -> String {
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    String::from_utf8_lossy(&text[..end]).into_owned()
}

/// Text as C takes it. The names of devices have no NUL bytes.
pub(super) fn c_text(text: impl Into<Vec<u8>>) -> Answer<CString> {
    CString::new(text).map_err(|_| Errno(libc::EINVAL))
}
