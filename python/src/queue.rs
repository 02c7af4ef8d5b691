//! Queues of asynchronous requests. That of asyncio around them is Python (`package/uext4/_aio.py`).
//!
//! The memory of a request is pinned by a view of its object, which lies in the request's flight until the queue gave
//! its buffer back: whoever forgets the request, its future or the object meanwhile frees nothing.

use crate::buffer::Buffer;
use crate::call::{Fault, Opener, Result, call};
use crate::file::{Core, NativeFile, fallocate_mode, write_flags};
use crate::memory::{Loan, Pinned};
use parking_lot::Mutex;
use pyo3::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4::{Ask, Completion, Fallocate, FileSlot, IoQueue, QueueOptions, Volume, WriteFlags};

/// Longest wait between two looks for signals of the process.
const SLICE: Duration = Duration::from_millis(100);

/// Wishes for a queue, as keyword arguments.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Wishes {
    buffer_bytes: Option<usize>,
    /// `no`, `try` or `require`.
    register_buffers: String,
}

/// A queue, until it is closed.
#[pyclass(frozen, module = "uext4._uext4")]
pub(crate) struct NativeQueue {
    inner: Mutex<Option<Inner>>,
    opener: Opener,
    memory_align: u32,
}

struct Inner {
    queue: IoQueue,
    /// By the address of the file.
    attached: HashMap<usize, (FileSlot, Arc<Core>)>,
    /// By the tags of the queue.
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Over, and not given to the program yet.
    landed: VecDeque<(Flight, Result<usize>)>,
    spare: Vec<uext4::Buffer>,
    event: Option<OwnedFd>,
}

/// A request in flight.
struct Flight {
    tag: Py<PyAny>,
    file: Arc<Core>,
    /// Pins the memory, if the request has any.
    _pinned: Option<Pinned>,
}

/// What a queue held, for who has the interpreter's lock to drop it.
type Rest = (Vec<Option<Flight>>, VecDeque<(Flight, Result<usize>)>);

/// What a request does.
enum Op {
    Read(uext4::Buffer),
    Write(uext4::Buffer, WriteFlags),
    Sync { data_only: bool },
    Fallocate(Fallocate, u64),
}

/// A request, and where it is.
struct Ordered {
    flight: Flight,
    pos: u64,
    op: Op,
}

impl Inner {
    fn slot(&mut self, file: &Arc<Core>) -> Result<FileSlot> {
        let open = file.get()?;
        let key = Arc::as_ptr(file).addr();
        if let Some((slot, _)) = self.attached.get(&key) {
            return Ok(*slot);
        }
        // Nobody can name files that were closed.
        let closed = self.attached.iter().filter(|(_, (_, file))| file.is_closed());
        for key in closed.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.detach(key)?;
        }
        let slot = self.queue.attach(&open).map_err(|error| file.fault(error))?;
        self.attached.insert(key, (slot, Arc::clone(file)));
        Ok(slot)
    }

    fn detach(&mut self, key: usize) -> Result<()> {
        match self.attached.remove(&key) {
            Some((slot, file)) => self.queue.detach(slot).map_err(|error| file.fault(error)),
            None => Ok(()),
        }
    }

    /// Queues a request. One that is refused comes back.
    fn order(&mut self, ordered: Ordered) -> std::result::Result<(), (Fault, Flight)> {
        let Ordered { flight, pos, op } = ordered;
        let slot = match self.slot(&flight.file) {
            Ok(slot) => slot,
            Err(fault) => return Err((fault, flight)),
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        let (queue, tag) = (&mut self.queue, index as u64);
        let begun = match op {
            Op::Read(buffer) => queue.read(slot, pos, buffer, tag),
            Op::Write(buffer, flags) => queue.write(slot, pos, buffer, flags, tag),
            Op::Sync { data_only: true } => queue.sync_data(slot, tag),
            Op::Sync { data_only: false } => queue.sync_all(slot, tag),
            Op::Fallocate(mode, length) => queue.fallocate(slot, mode, pos, length, tag),
        };
        match begun {
            Ok(()) => {
                self.flights[index] = Some(flight);
                Ok(())
            }
            Err(error) => {
                self.free.push(index);
                Err((flight.file.fault(error), flight))
            }
        }
    }

    /// Has `count` requests landed, or all that are in flight, or as many as have by `deadline`. Returns whether there
    /// is nothing more to wait for.
    fn reap(&mut self, count: usize, deadline: Option<Instant>) -> Result<bool> {
        let Inner { queue, flights, free, landed, spare, .. } = self;
        loop {
            let missing = count.saturating_sub(landed.len());
            let done = match deadline {
                Some(deadline) if missing > 0 => {
                    queue.wait_timeout(deadline.saturating_duration_since(Instant::now()))?
                }
                _ => queue.poll()?,
            };
            done.for_each(|done| land(done, flights, free, landed, spare));
            let late = deadline.is_none_or(|deadline| Instant::now() >= deadline);
            let enough = landed.len() >= count || queue.pending() == 0;
            if enough || late {
                return Ok(enough);
            }
        }
    }
}

/// Takes a request out of the air.
fn land(
    done: Completion,
    flights: &mut [Option<Flight>],
    free: &mut Vec<usize>,
    landed: &mut VecDeque<(Flight, Result<usize>)>,
    spare: &mut Vec<uext4::Buffer>,
) {
    let index = done.tag as usize;
    spare.extend(done.payload.into_buffer());
    let Some(flight) = flights.get_mut(index).and_then(Option::take) else { return };
    free.push(index);
    let result = done.result.map_err(|error| flight.file.fault(*error));
    landed.push_back((flight, result));
}

impl NativeQueue {
    pub(crate) fn new(volume: &Volume, depth: u32, wishes: &Wishes, opener: Opener) -> Result<NativeQueue> {
        let mut options = QueueOptions::depth(depth).register_buffers(match &*wishes.register_buffers {
            "no" => Ask::No,
            "try" => Ask::Try,
            "require" => Ask::Require,
            other => {
                return Err(Fault::Value(format!("register_buffers is no, try or require, not {other}")));
            }
        });
        if let Some(bytes) = wishes.buffer_bytes {
            options = options.buffer_bytes(bytes);
        }
        let inner = Inner {
            queue: volume.queue(options)?,
            attached: HashMap::new(),
            flights: Vec::new(),
            free: Vec::new(),
            landed: VecDeque::new(),
            spare: Vec::new(),
            event: None,
        };
        let memory_align = volume.device().geometry().memory_align;
        Ok(NativeQueue { inner: Mutex::new(Some(inner)), opener, memory_align })
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Inner) -> Result<T> + Send,
    ) -> PyResult<T> {
        call(py, || {
            self.opener.check()?;
            work(self.inner.lock().as_mut().ok_or(Fault::Closed("the queue"))?)
        })
    }

    fn order(&self, py: Python<'_>, ordered: Ordered) -> PyResult<()> {
        // What comes back pins memory, so it is dropped with the interpreter's lock.
        let (fault, _flight) = match self.with(py, |inner| Ok(inner.order(ordered)))? {
            Ok(()) => return Ok(()),
            Err(refused) => refused,
        };
        Err(fault.into())
    }

    /// A request with memory.
    fn transfer(
        &self,
        object: &Bound<'_, PyAny>,
        pinned: Pinned,
        (file, pos, tag): (&Bound<'_, NativeFile>, u64, Py<PyAny>),
        op: impl FnOnce(uext4::Buffer) -> Op + Send,
    ) -> PyResult<()> {
        let py = object.py();
        let spare = self.with(py, |inner| Ok(inner.spare.pop()))?;
        let ours = object.cast::<Buffer>().ok().map(|buffer| buffer.get().home());
        let Some(Loan { buffer, pinned }) = pinned.lend(ours, spare) else {
            return Err(Fault::Value("a request of 4 GiB or more".into()).into());
        };
        let flight = Flight { tag, file: Arc::clone(file.get().core()), _pinned: Some(pinned) };
        self.order(py, Ordered { flight, pos, op: op(buffer) })
    }

    /// What landed, for the program: (tag, bytes, error).
    fn given(&self, py: Python<'_>) -> PyResult<Vec<Given>> {
        let landed = self.with(py, |inner| Ok(std::mem::take(&mut inner.landed)))?;
        Ok(landed
            .into_iter()
            .map(|(flight, result)| match result {
                Ok(bytes) => (flight.tag, Some(bytes), None),
                Err(fault) => (flight.tag, None, Some(fault.into())),
            })
            .collect())
    }
}

/// Ends a queue, after what is in flight, whose memory is pinned until then.
fn end(inner: Option<Inner>) -> Option<Rest> {
    let Inner { queue, flights, landed, .. } = inner?;
    drop(queue);
    Some((flights, landed))
}

/// What became of a request, as Python sees it: its tag, bytes, error.
type Given = (Py<PyAny>, Option<usize>, Option<PyErr>);

#[pymethods]
impl NativeQueue {
    #[pyo3(signature = (file, buffer, pos, tag))]
    fn read(
        &self,
        file: &Bound<'_, NativeFile>,
        buffer: &Bound<'_, PyAny>,
        pos: u64,
        tag: Py<PyAny>,
    ) -> PyResult<()> {
        self.transfer(buffer, Pinned::writable(buffer)?, (file, pos, tag), Op::Read)
    }

    #[pyo3(signature = (file, data, pos, tag, *, dsync=false, sync=false))]
    fn write(
        &self,
        file: &Bound<'_, NativeFile>,
        data: &Bound<'_, PyAny>,
        pos: u64,
        tag: Py<PyAny>,
        dsync: bool,
        sync: bool,
    ) -> PyResult<()> {
        let flags = write_flags(dsync, sync, false, false);
        self.transfer(data, Pinned::readable(data)?, (file, pos, tag), |buffer| Op::Write(buffer, flags))
    }

    fn sync(
        &self,
        py: Python<'_>,
        file: &Bound<'_, NativeFile>,
        tag: Py<PyAny>,
        data_only: bool,
    ) -> PyResult<()> {
        let flight = Flight { tag, file: Arc::clone(file.get().core()), _pinned: None };
        self.order(py, Ordered { flight, pos: 0, op: Op::Sync { data_only } })
    }

    fn fallocate(
        &self,
        py: Python<'_>,
        file: &Bound<'_, NativeFile>,
        mode: &str,
        range: (u64, u64),
        tag: Py<PyAny>,
    ) -> PyResult<()> {
        let flight = Flight { tag, file: Arc::clone(file.get().core()), _pinned: None };
        let op = Op::Fallocate(fallocate_mode(mode)?, range.1);
        self.order(py, Ordered { flight, pos: range.0, op })
    }

    /// Ends the use of a file here; its requests finish first.
    fn detach(&self, py: Python<'_>, file: &Bound<'_, NativeFile>) -> PyResult<()> {
        let key = Arc::as_ptr(file.get().core()).addr();
        self.with(py, |inner| inner.detach(key))
    }

    /// Memory that the kernel may have registered for this queue.
    fn buffer(&self, py: Python<'_>, length: usize) -> PyResult<Buffer> {
        self.with(py, |inner| Ok(Buffer::new(inner.queue.buffer(length)?, length)))
    }

    /// Whether the device takes this memory as it is.
    fn is_aligned(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(Pinned::readable(object)?.is_aligned(self.memory_align))
    }

    fn submit(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |inner| {
            inner.queue.submit()?;
            Ok(())
        })
    }

    fn poll(&self, py: Python<'_>) -> PyResult<Vec<Given>> {
        self.with(py, |inner| inner.reap(0, None))?;
        self.given(py)
    }

    fn wait(&self, py: Python<'_>, count: usize, timeout: Option<f64>) -> PyResult<Vec<Given>> {
        let timeout = timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)));
        let timeout = timeout.transpose().map_err(|_| Fault::Value("a time-out in seconds".into()))?;
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let slice = Instant::now() + SLICE;
            let until = end.map_or(slice, |end| end.min(slice));
            let enough = self.with(py, |inner| inner.reap(count, Some(until)))?;
            if enough || end.is_some_and(|end| Instant::now() >= end) {
                return self.given(py);
            }
            py.check_signals()?;
        }
    }

    /// Requests that were taken and not given back yet.
    #[getter]
    fn pending(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |inner| Ok(inner.queue.pending() + inner.landed.len()))
    }

    /// A descriptor to poll, never to read; none if this device completes without one.
    fn event(&self, py: Python<'_>) -> PyResult<Option<i32>> {
        self.with(py, |inner| {
            let now = inner.queue.eventfd()?;
            if inner.event.is_none() {
                inner.event = now;
            }
            Ok(inner.event.as_ref().map(AsRawFd::as_raw_fd))
        })
    }

    /// Which wishes were granted: (registered buffers, fallbacks).
    #[getter]
    fn facts(&self, py: Python<'_>) -> PyResult<(bool, Vec<String>)> {
        self.with(py, |inner| {
            let facts = inner.queue.facts();
            Ok((facts.registered_buffers, facts.fallbacks))
        })
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.opener.is_here() && py.detach(|| self.inner.lock().is_none())
    }

    /// Ends it, after what is in flight. What was not given yet is lost, but not what it did. In a child process it
    /// does nothing.
    fn close(&self, py: Python<'_>) {
        if self.opener.is_here() {
            let _rest = py.detach(|| end(self.inner.lock().take()));
        }
    }
}

impl Drop for NativeQueue {
    fn drop(&mut self) {
        // In a child process this is a copy, which holds nothing and ends nothing.
        let inner = self.inner.get_mut().take();
        let _rest = Python::attach(|py| py.detach(|| end(inner)));
    }
}
