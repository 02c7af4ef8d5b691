//! The queue: requests for what the file has in one piece go to the file's own queue, at the place where it is. The
//! rest is done when it is pushed.

use super::entry::Kind;
use super::image::Image;
use super::table::Near;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uext4_blockdev::layer::wrap::{Fate, QueueLayer};
use uext4_blockdev::{Error, Geometry, Op, Request, Result};

/// See the module.
pub(super) struct ImageQueue {
    image: Arc<Image>,
    geometry: Geometry,
    near: Near,
    /// Whether the write that is kept has to be durable.
    durable: bool,
}

fn answer(result: Result<()>, bytes: usize) -> i32 {
    match result {
        Ok(()) => i32::try_from(bytes).unwrap_or(i32::MAX),
        Err(error) => -error.errno(),
    }
}

impl ImageQueue {
    pub(super) fn new(image: Arc<Image>) -> Self {
        let (geometry, near) = (image.geometry(), Near::new(&image.tables));
        ImageQueue { image, geometry, near, durable: false }
    }

    /// Where `pos..end` is, if the file has it in one piece: the place, whether it may be written there, and whether
    /// the file has the tables that say so.
    #[inline]
    fn find(&mut self, pos: u64, end: u64, nowait: bool) -> Result<Option<(u64, bool, bool)>> {
        let image = &*self.image;
        let (index, _) = image.shape.split(pos);
        let near = self.near.get(&image.tables, index);
        let learnt;
        let table = match near {
            Some(table) => table,
            None if nowait && image.tables.get(index).is_none() => return Ok(None),
            None => match self.near.learn(&image.tables, index, || image.table(index))? {
                Some(table) => {
                    learnt = table;
                    &learnt
                }
                None => return Ok(None),
            },
        };
        let piece = image.piece_in(table, pos, end)?;
        Ok(match piece.kind {
            Kind::Data { host, copied } if piece.end == end && image.has(host, end - pos) => {
                Some((host, copied, !table.unsettled.load(Ordering::Acquire)))
            }
            _ => None,
        })
    }

    fn read(&mut self, request: &Request) -> Result<Fate> {
        let (pos, length) = (request.pos, request.length);
        Ok(match self.find(pos, pos + u64::from(length), request.nowait)? {
            Some((pos, _, _)) => Fate::Pass { pos, length, tag: request.tag },
            None if request.nowait => Fate::Answer(-libc::EAGAIN),
            None => Fate::Fill,
        })
    }

    fn write(&mut self, request: &Request) -> Result<Fate> {
        self.image.check_writable()?;
        let (pos, length) = (request.pos, request.length);
        let found = self.find(pos, pos + u64::from(length), request.nowait)?;
        Ok(match found {
            Some((pos, true, settled)) if self.image.has_begun() && (settled || !request.fua) => {
                Fate::Pass { pos, length, tag: request.tag }
            }
            _ if request.nowait => Fate::Answer(-libc::EAGAIN),
            _ => {
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
}

impl QueueLayer for ImageQueue {
    fn meet(&mut self, request: &Request) -> Fate {
        // The file's queue refuses what a child of the process pushes.
        self.decide(request).unwrap_or_else(|error: Error| Fate::Answer(-error.errno()))
    }

    fn fill(&mut self, memory: &mut [u8], pos: u64) -> i32 {
        let checked = self.image.process.check();
        let read = checked.and_then(|()| self.image.read_now(memory, pos));
        answer(read, memory.len())
    }

    fn keep(&mut self, memory: &[u8], pos: u64) -> i32 {
        answer(self.image.write(memory, pos, self.durable), memory.len())
    }
}
