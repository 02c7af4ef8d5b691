//! Files of a volume, through uext4.

use crate::changes::{self, Changes};
use crate::names;
use crate::shape::{Change, Shape};
use crate::system::Page;
use crate::{Source, Target};
use uext4::{
    Ask, Buffer, Counter, File, FileSlot, IoQueue, OpenOptions, QueueOptions, Stats, Switches, Volume,
    VolumeOptions, WriteFlags,
};

/// An open volume, for requests of a shape in its file.
pub struct Opened {
    volume: Volume,
    before: Stats,
    switches: Switches,
    shape: &'static Shape,
    /// Kernels before 6.12 take no part of a registered region for NVMe commands, and refuse to promise more.
    registered: Ask,
}

impl Opened {
    /// Opens the volume.
    pub fn new(path: &str, switches: &str, shape: &'static Shape) -> Self {
        let switches: Switches = switches.parse().expect("switches");
        let options = VolumeOptions::read_write().switches(switches);
        let volume = Volume::open(path, options).unwrap_or_else(|error| panic!("{path}: {error}"));
        let registered = if path.starts_with("nvme:") { Ask::Try } else { Ask::Require };
        Opened { before: volume.stats(), volume, switches, shape, registered }
    }

    /// For requests in the file.
    fn on_file(&self) -> Box<dyn Target> {
        let (volume, shape) = (&self.volume, self.shape);
        let options = OpenOptions::new().read(true).write(true);
        let file = volume.open_file("/data", options).expect("the file");
        let flags = if shape.dsync { WriteFlags::DSYNC } else { WriteFlags::empty() };
        if shape.depth == 1 {
            assert_eq!(shape.dax, volume.device().capabilities().dax.is_some());
            return Box::new(Calls { file, flags, memory: Page::new(), shape });
        }
        let mut options = QueueOptions::depth(shape.depth as u32)
            .owner_driven(true)
            .register_buffers(self.registered)
            .register_file(Ask::Require)
            .register_ring(Ask::Try);
        if shape.polled {
            options = options.iopoll(Ask::Require);
        }
        let mut queue = volume.queue(options).expect("a queue");
        let slot = queue.attach(&file).expect("attached");
        let free = (0..shape.depth).map(|_| {
            let mut buffer = queue.buffer(shape.block).expect("memory");
            buffer.fill(0x5A);
            buffer
        });
        let free = free.collect();
        Box::new(Queue { queue, slot, flags, free, shape, _file: file })
    }
}

impl Source for Opened {
    fn target(&self) -> Box<dyn Target> {
        let (volume, shape) = (&self.volume, self.shape);
        if shape.names.is_some() {
            return Box::new(names::Names::new(names::Library::new(volume), shape));
        }
        if shape.change.is_some() && shape.depth == 1 {
            return Box::new(Changes::new(changes::Library::new(volume), shape));
        }
        if shape.change.is_some() {
            let side = changes::Library::new(volume);
            let queue = self.on_file();
            return Box::new(changes::Queued::new(side, shape, queue));
        }
        self.on_file()
    }

    /// The counters say which route was taken.
    fn check(&self, done: u64, threads: usize) {
        let (now, on, shape) = (self.volume.stats(), self.switches, self.shape);
        if matches!(shape.change, Some(Change::Append | Change::Create)) {
            let made = self.volume.commits();
            // Besides, the area is full from time to time.
            assert!(made.fast * 100 >= done * 98, "{made:?}: in full, not fast, for {done} requests");
        }
        if shape.names.is_some() || shape.change.is_some() {
            return;
        }
        let subblock = shape.block < 4096 && !shape.dax;
        let expected = match (shape.write, shape.dax) {
            (_, true) => Counter::DaxCopies,
            (false, _) if on.simple_read => Counter::SimpleReads,
            (false, _) => Counter::GeneralReads,
            _ if subblock && on.shared_subblock_overwrite => Counter::SharedSubblockWrites,
            _ if subblock => Counter::ExclusiveWrites,
            _ if shape.dsync && on.fua_dsync_overwrite => Counter::FuaWrites,
            _ if on.overwrite_no_transaction => Counter::OverwritesWithoutHandle,
            _ => Counter::HandlesStarted,
        };
        let counted = now.get(expected) - self.before.get(expected);
        // The first requests load the mapping, by another route: one of each thread at most.
        assert!(
            counted + threads as u64 >= done,
            "another route: {} is {counted}, not {done}",
            expected.name()
        );
    }
}

struct Calls {
    file: File,
    flags: WriteFlags,
    memory: Box<Page>,
    shape: &'static Shape,
}

impl Target for Calls {
    fn one(&mut self, pos: u64) {
        let memory = &mut self.memory.0[..self.shape.block];
        let done = if self.shape.write {
            self.file.write_at_with(memory, pos, self.flags)
        } else {
            self.file.read_at(memory, pos)
        };
        assert_eq!(done.expect("done"), self.shape.block);
    }
}

struct Queue {
    queue: IoQueue,
    slot: FileSlot,
    flags: WriteFlags,
    free: Vec<Buffer>,
    shape: &'static Shape,
    _file: File,
}

impl Target for Queue {
    #[inline]
    fn push(&mut self, pos: u64) {
        let buffer = self.free.pop().expect("room");
        let pushed = if self.shape.write {
            self.queue.write(self.slot, pos, buffer, self.flags, pos)
        } else {
            self.queue.read(self.slot, pos, buffer, pos)
        };
        pushed.expect("queued");
    }

    fn submit(&mut self) {
        self.queue.submit().expect("submitted");
    }

    fn wait(&mut self, count: usize) -> usize {
        let mut done = 0;
        for completion in self.queue.wait(count).expect("waited") {
            assert_eq!(completion.result.expect("done"), self.shape.block);
            self.free.push(completion.payload.into_buffer().expect("the buffer"));
            done += 1;
        }
        done
    }
}
