//! The queue: requests for what the file has in one piece go to the file's own queue, at the place where it is, and
//! reads of what the backing file has in one piece to the queue of that. A write into clusters that read as zeros gives
//! them places that do so too, and goes there. The rest is done when it is pushed.

use super::entry::Kind;
use super::image::Image;
use super::table::{Near, Table};
use super::uses::{Begun, Counts};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uext4_blockdev::layer::wrap::{Fate, QueueLayer, Slots, Wrapped};
use uext4_blockdev::{DeviceQueue, Error, Geometry, Op, Queue, QueueOptions, Request, Result};

/// See the module.
pub(super) struct ImageQueue {
    image: Arc<Image>,
    geometry: Geometry,
    /// That of the backing file, if it has a queue.
    below: Option<Geometry>,
    near: Near,
    /// Whether the write that is kept has to be durable.
    durable: bool,
    /// If the image is written: requests in the queue of the file. What they use is not given to others.
    sent: Option<Sent>,
}

struct Sent {
    counts: Arc<Counts>,
    /// Their tags above, and how they have begun.
    requests: Slots<(u64, Begun)>,
}

/// Where a range is that a request needs in one piece.
enum Found {
    Here {
        host: u64,
        /// It may be written there.
        copied: bool,
        /// The file has the table that says so.
        settled: bool,
    },
    /// The backing file has it, or else it is zeros.
    Below,
    Zero,
    /// In pieces, compressed, or not known without waiting.
    Other,
}

fn answer(result: Result<()>, bytes: usize) -> i32 {
    match result {
        Ok(()) => i32::try_from(bytes).unwrap_or(i32::MAX),
        Err(error) => -error.errno(),
    }
}

impl ImageQueue {
    /// A queue on the image, over one of its data and one of its backing file.
    pub(super) fn open(image: &Arc<Image>, options: &QueueOptions) -> Result<Queue> {
        let inner = image.data_store().queue(options)?;
        let below = match &image.below {
            Some(below) => Arc::clone(below).queue(options)?,
            None => None,
        };
        let (aside, below) = below.unzip();
        let sent = image
            .writing
            .as_ref()
            .map(|writing| Sent { counts: writing.uses.join(), requests: Slots::new(inner.capacity()) });
        let (geometry, near) = (image.geometry(), Near::new(&image.tables));
        let layer = ImageQueue { image: Arc::clone(image), geometry, below, near, durable: false, sent };
        Ok(Wrapped::queue_with(inner, aside, layer))
    }

    #[inline]
    fn find(&mut self, pos: u64, end: u64, nowait: bool) -> Result<Found> {
        let image = &*self.image;
        let (index, _) = image.shape.split(pos);
        let near = self.near.get(&image.tables, index);
        let learnt;
        let table: &Table = match near {
            Some(table) => table,
            None if nowait && image.tables.get(index).is_none() => return Ok(Found::Other),
            None => match self.near.learn(&image.tables, index, || image.table(index))? {
                Some(table) => {
                    learnt = table;
                    &learnt
                }
                None if end <= (index + 1) << image.shape.table_bits() => return Ok(Found::Below),
                None => return Ok(Found::Other),
            },
        };
        let piece = image.piece_in(table, pos, end)?;
        Ok(match piece.kind {
            _ if piece.end != end => Found::Other,
            Kind::Data { host, copied } if image.has(host, end - pos) => {
                Found::Here { host, copied, settled: !table.unsettled.load(Ordering::Acquire) }
            }
            Kind::Below => Found::Below,
            Kind::Zero => Found::Zero,
            _ => Found::Other,
        })
    }

    fn read(&mut self, request: &Request) -> Result<Fate> {
        let (pos, length) = (request.pos, request.length);
        Ok(match self.find(pos, pos + u64::from(length), request.nowait)? {
            Found::Here { host, .. } => Fate::Pass { pos: host, length, tag: request.tag },
            Found::Below if self.is_read_below(request) => Fate::Aside { pos, length },
            _ if request.nowait => Fate::Answer(-libc::EAGAIN),
            _ => Fate::Fill,
        })
    }

    /// Whether the queue of the backing file takes this read.
    fn is_read_below(&self, request: &Request) -> bool {
        self.below.is_some_and(|below| {
            below.check(request.pos, u64::from(request.length)).is_ok()
                && below.check_memory(request.memory.address.as_ptr().addr()).is_ok()
        })
    }

    fn write(&mut self, request: &Request) -> Result<Fate> {
        self.image.check_writable()?;
        let (pos, length) = (request.pos, request.length);
        let end = pos + u64::from(length);
        let place = match self.find(pos, end, request.nowait)? {
            Found::Here { host, copied: true, settled }
                if self.image.has_begun() && (settled || !request.fua) =>
            {
                Some(host)
            }
            Found::Below | Found::Zero if !request.fua && !request.nowait => {
                self.image.place_zeros(pos, end)?
            }
            _ => None,
        };
        Ok(match place {
            Some(pos) => Fate::Pass { pos, length, tag: request.tag },
            None if request.nowait => Fate::Answer(-libc::EAGAIN),
            None => {
                self.durable = request.fua;
                Fate::Keep
            }
        })
    }

    fn decide(&mut self, request: &Request) -> Result<Fate> {
        let (pos, length) = (request.pos, u64::from(request.length));
        if request.op != Op::Flush {
            self.geometry.check(pos, length)?;
        }
        match request.op {
            Op::Read => self.read(request),
            Op::Write => self.write(request),
            Op::Flush if self.image.writing.is_none() => Ok(Fate::Answer(0)),
            Op::Flush if self.image.is_settled() => Ok(Fate::pass(request)),
            Op::Flush => self.image.flush().map(|()| Fate::Answer(0)),
            Op::Discard => {
                self.image.check_writable()?;
                self.image.discard(pos, length).map(|()| Fate::Answer(0))
            }
        }
    }

    /// The file's queue refuses what a child of the process pushes.
    fn fate(&mut self, request: &Request) -> Fate {
        self.decide(request).unwrap_or_else(|error: Error| Fate::Answer(-error.errno()))
    }
}

impl QueueLayer for ImageQueue {
    fn meet(&mut self, request: &Request) -> Fate {
        let begun = match (&self.sent, &self.image.writing) {
            (Some(sent), Some(writing)) => writing.uses.begin(&sent.counts),
            _ => return self.fate(request),
        };
        let fate = self.fate(request);
        let Some(sent) = &mut self.sent else { return fate };
        if let Fate::Pass { pos, length, tag } = fate
            && let Some(tag) = sent.requests.insert((tag, begun))
        {
            return Fate::Pass { pos, length, tag };
        }
        sent.counts.end(begun);
        if matches!(fate, Fate::Pass { .. }) { Fate::Full } else { fate }
    }

    fn met(&mut self, _: &Request, fate: Fate, taken: bool) {
        if let (Fate::Pass { tag, .. }, false, Some(sent)) = (fate, taken, &mut self.sent)
            && let Some((_, begun)) = sent.requests.remove(tag)
        {
            sent.counts.end(begun);
        }
    }

    fn done(&mut self, done: &mut uext4_blockdev::Done) {
        if let Some(sent) = &mut self.sent
            && let Some((tag, begun)) = sent.requests.remove(done.tag)
        {
            sent.counts.end(begun);
            done.tag = tag;
        }
    }

    fn fill(&mut self, memory: &mut [u8], pos: u64) -> i32 {
        let checked = self.image.process.check();
        let _in_use = self.image.in_use();
        let read = checked.and_then(|()| self.image.read_now(memory, pos));
        answer(read, memory.len())
    }

    fn keep(&mut self, memory: &[u8], pos: u64) -> i32 {
        answer(self.image.write(memory, pos, self.durable), memory.len())
    }
}

impl Drop for ImageQueue {
    /// The file's queue has gone before, with all that was in flight.
    fn drop(&mut self) {
        if let (Some(sent), Some(writing)) = (&self.sent, &self.image.writing) {
            writing.uses.leave(&sent.counts);
        }
    }
}
