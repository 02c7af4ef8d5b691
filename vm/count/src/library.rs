//! Files of a volume, through uext4.

use crate::Target;
use crate::shape::Shape;
use crate::system::Page;
use uext4::{
    Ask, Buffer, Counter, File, FileSlot, IoQueue, OpenOptions, QueueOptions, Stats, Switches, Volume,
    VolumeOptions, WriteFlags,
};

/// Opens the volume, and what carries out requests of a shape in its file.
pub fn target(path: &str, switches: &str, shape: &'static Shape) -> Box<dyn Target> {
    let switches: Switches = switches.parse().expect("switches");
    let options = VolumeOptions::read_write().switches(switches);
    let volume = Volume::open(path, options).unwrap_or_else(|error| panic!("{path}: {error}"));
    let options = OpenOptions::new().read(true).write(true);
    let file = volume.open_file("/data", options).expect("the file");
    let route = Route { volume: volume.clone(), before: volume.stats(), switches };
    let flags = if shape.dsync { WriteFlags::DSYNC } else { WriteFlags::empty() };
    if shape.depth == 1 {
        assert_eq!(shape.dax, volume.device().capabilities().dax.is_some());
        return Box::new(Calls { file, flags, memory: Page::new(), shape, route });
    }
    // Kernels before 6.12 refuse NVMe commands with registered memory.
    let registered = if path.starts_with("nvme:") { Ask::Try } else { Ask::Require };
    let mut options = QueueOptions::depth(shape.depth as u32)
        .owner_driven(true)
        .register_buffers(registered)
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
    Box::new(Queue { queue, slot, flags, free, shape, route, _file: file })
}

/// Whether the counters say what was to be measured.
struct Route {
    volume: Volume,
    before: Stats,
    switches: Switches,
}

impl Route {
    fn check(&self, shape: &Shape, done: u64) {
        let (now, on) = (self.volume.stats(), self.switches);
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
        // The first request loads the mapping, by another route.
        assert!(counted + 1 >= done, "another route: {} is {counted}, not {done}", expected.name());
    }
}

struct Calls {
    file: File,
    flags: WriteFlags,
    memory: Box<Page>,
    shape: &'static Shape,
    route: Route,
}

impl Target for Calls {
    fn push(&mut self, _pos: u64) {
        unreachable!("calls are no queue");
    }

    fn submit(&mut self) {}

    fn wait(&mut self, _count: usize) -> usize {
        0
    }

    fn one(&mut self, pos: u64) {
        let memory = &mut self.memory.0[..self.shape.block];
        let done = if self.shape.write {
            self.file.write_at_with(memory, pos, self.flags)
        } else {
            self.file.read_at(memory, pos)
        };
        assert_eq!(done.expect("done"), self.shape.block);
    }

    fn check(&mut self, done: u64) {
        self.route.check(self.shape, done);
    }
}

struct Queue {
    queue: IoQueue,
    slot: FileSlot,
    flags: WriteFlags,
    free: Vec<Buffer>,
    shape: &'static Shape,
    route: Route,
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

    fn check(&mut self, done: u64) {
        self.route.check(self.shape, done);
    }
}
