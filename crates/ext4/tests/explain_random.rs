//! Checks `explain` against reality: seeded requests over all kinds of files, layouts, devices, call types and switch
//! settings are explained, then run, and every field of the plan is compared with the counters and the device requests.
//! A failure prints the seed; `UEXT4_EXPLAIN_SEED` and `UEXT4_EXPLAIN_REQUESTS` (per volume and device) change what is
//! tried. Some requests are also explained on a volume opened for reading, which must give the same answer.

use crate::common;
mod compare;

use common::{Image, aligned, patterned, read_only, read_write};
use compare::{changes_the_map, compare_counters, compare_requests};
use std::fmt::Write;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use uext4::device::{self, Capabilities, Device, Op};
use uext4::device::{CountingDevice, Mask, MaskDevice, TraceEvent, TracePhase, TraceSink};
use uext4::explain::{DeviceRequest, Explanation, Query};
use uext4::plan::{Edges, Finish, Sync};
use uext4::{
    Counter, DeviceSpec, Error, Fallocate, File, FileSlot, IoQueue, QueueOptions, RecoveryState, State,
    Stats, Switches, Volume, VolumeOptions, WriteFlags,
};
use uext4_ondisk::ext4::State as VolumeState;
use uext4_testkit::oracle::{command, text};
use uext4_testkit::{Need, Rng, Scratch, VolumeBuilder, needs};

const SEED: u64 = 20_261_123;
/// Requests per volume and device.
const REQUESTS: u64 = 400;
/// Requests explained before the volume is changed at all, and not run.
const READING: u64 = 40;
const SIZE: u64 = 16 << 20;
const FRAG: usize = 512 << 10;

/// Name, kind, block size and features of a volume.
struct Layout {
    kind: &'static str,
    block: u64,
    features: &'static str,
}

const LAYOUTS: [Layout; 6] = [
    Layout { kind: "ext4", block: 4096, features: "metadata_csum" },
    Layout { kind: "ext4", block: 2048, features: "^has_journal" },
    Layout { kind: "ext4", block: 1024, features: "inline_data" },
    Layout { kind: "ext3", block: 1024, features: "none" },
    Layout { kind: "ext2", block: 4096, features: "none" },
    Layout { kind: "ext4", block: 4096, features: "inline_data,^has_journal" },
];

/// `/frag` and `/holed` have more pieces than one plan covers, `/holed` a hole after them, `/mixed` unwritten blocks if
/// the layout supports them.
const FILES: [&str; 9] =
    ["/data", "/frag", "/holed", "/mixed", "/sparse", "/odd", "/short", "/small", "/empty"];

/// Files with set-user-id and set-group-id until their first write.
const SET_ID: [&str; 8] = ["/set-0", "/set-1", "/set-2", "/set-3", "/set-4", "/set-5", "/set-6", "/set-7"];

impl Layout {
    fn make(&self) -> Image {
        let source = Scratch::new(SIZE);
        let (tree, frag, script) = (source.file("tree"), source.file("frag"), source.file("script"));
        std::fs::create_dir(&tree).unwrap();
        self.fill(&tree);
        std::fs::write(&frag, &*patterned(3, 0, FRAG)).unwrap();
        std::fs::write(&script, self.requests(&frag)).unwrap();
        let block = self.block.to_string();
        let mut args = vec!["-b", &block];
        if self.features != "none" {
            args.extend(["-O", self.features]);
        }
        let volume = VolumeBuilder::new(SIZE).kind(self.kind).args(args).from_dir(&tree).build();
        let output = command("debugfs").arg("-w").arg("-f").arg(&script).arg(volume.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.lines().all(|line| line.starts_with("debugfs 1.")), "{}", text(&output));
        volume.assert_clean();
        Image::load(volume.path())
    }

    fn fill(&self, tree: &Path) {
        let file = |name: &str, size: usize| {
            std::fs::write(tree.join(name), &*patterned(size as u64, 0, size)).unwrap();
        };
        file("data", 1 << 20);
        file("mixed", 16 << 10);
        file("odd", 5 * 4096 + 777);
        file("short", 700);
        file("small", 50);
        std::fs::write(tree.join("empty"), "").unwrap();
        for name in SET_ID {
            file(&name[1..], 9000);
            std::fs::set_permissions(tree.join(&name[1..]), Permissions::from_mode(0o6755)).unwrap();
        }
        let sparse = std::fs::File::create(tree.join("sparse")).unwrap();
        for pair in 0..120 {
            use std::os::unix::fs::FileExt;
            sparse.write_all_at(&patterned(5, pair * 8192, 4096), pair * 8192).unwrap();
        }
        sparse.set_len(120 * 8192 - 100).unwrap();
        // Remove every second file; the rest fragment the free space.
        std::fs::create_dir(tree.join("spacers")).unwrap();
        (0..200).for_each(|n| file(&format!("spacers/{n}"), 4096));
    }

    fn requests(&self, frag: &Path) -> String {
        let mut script = String::new();
        for (name, spacers) in [("frag", 0..100), ("holed", 100..200)] {
            for n in spacers.step_by(2) {
                writeln!(script, "rm /spacers/{n}").unwrap();
            }
            writeln!(script, "write {} {name}", frag.display()).unwrap();
        }
        let hole = (480 << 10) / self.block;
        writeln!(script, "punch /holed {hole} {}", hole + 4096 / self.block - 1).unwrap();
        if self.kind == "ext4" {
            let (first, last) = ((16 << 10) / self.block, (64 << 10) / self.block - 1);
            writeln!(script, "fallocate /mixed {first} {last}\nsif /mixed size {}", 128 << 10).unwrap();
        }
        script
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Memory { cache: bool, fua: bool, block: u32, align: u32 },
    Masked(&'static str),
    Dax,
    File,
    Synchronous,
}

const DEVICES: [Kind; 8] = [
    Kind::Memory { cache: true, fua: true, block: 512, align: 512 },
    Kind::Memory { cache: true, fua: false, block: 1024, align: 1 },
    Kind::Memory { cache: false, fua: false, block: 512, align: 1 },
    Kind::Masked("cache"),
    Kind::Masked("fua"),
    Kind::Dax,
    Kind::File,
    Kind::Synchronous,
];

type Events = Arc<Mutex<Vec<TraceEvent>>>;

/// An open volume with a traced device.
struct Bed {
    /// The file changed last, not yet committed.
    dirty: Option<&'static str>,
    /// The device below the tracing layer.
    plain: Arc<dyn Device>,
    events: Events,
    volume: Volume,
    has_journal: bool,
    queue: IoQueue,
    /// For a neighbour with a read in flight on the same file.
    neighbour: IoQueue,
    capabilities: Capabilities,
    block: u64,
    sector: u64,
}

impl Bed {
    fn new(device: Arc<dyn Device>, layout: &Layout) -> Bed {
        let events = Events::default();
        let sink: TraceSink = {
            let events = events.clone();
            Arc::new(move |event: &TraceEvent| events.lock().unwrap().push(*event))
        };
        let plain = device.clone();
        let device: Arc<dyn Device> = Arc::new(CountingDevice::with_trace(device, sink));
        let capabilities = device.capabilities();
        let sector = u64::from(device.geometry().logical_block);
        let volume = Volume::open_device(device, VolumeOptions::read_write()).unwrap();
        Bed {
            dirty: None,
            plain,
            queue: volume.queue(QueueOptions::depth(1024)).unwrap(),
            neighbour: volume.queue(QueueOptions::depth(2)).unwrap(),
            capabilities,
            has_journal: volume.superblock().journal_inode().is_some(),
            volume,
            block: layout.block,
            sector,
            events,
        }
    }

    /// The device requests since the last call.
    fn taken(&self) -> Vec<TraceEvent> {
        std::mem::take(&mut *self.events.lock().unwrap())
    }
}

#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    switches: Switches,
    query: Query,
    /// Also explain it on a volume opened for reading.
    on_reading: bool,
    /// Leave its changes uncommitted.
    leaves_dirty: bool,
}

impl Case {
    /// A random request in or around the file.
    fn random(rng: &mut Rng, bed: &Bed) -> Case {
        let names = if rng.chance(5) { &SET_ID[..] } else { &FILES[..] };
        let name = bed.dirty.filter(|_| rng.chance(50)).unwrap_or(*rng.pick(names));
        let size = bed.volume.metadata(name).unwrap().size;
        let queued = rng.chance(45);
        let any = rng.chance(if queued { 5 } else { 40 });
        let unit = if any { 1 } else { *rng.pick(&[bed.sector, bed.block, 4096]) };
        let most = *rng.pick(&[unit, 4 * unit, 16 << 10, 1 << 20]);
        let length = unit * (1 + rng.below((most / unit).max(1)));
        let border = if rng.chance(10) { size + 16_384 } else { size.saturating_sub(length) + unit };
        let pos = match rng.below(12) {
            0 => 0,
            1 => size / unit * unit,
            2 => 1 << 42,
            _ => rng.below(border / unit + 1) * unit,
        };
        let write = rng.chance(55);
        let sync = if write { *rng.pick(&[Sync::None, Sync::Data, Sync::All]) } else { Sync::None };
        let switches = Switches::from_bits(rng.below(32) as u8);
        let (on_reading, leaves_dirty) = (rng.chance(25), rng.chance(30));
        Case { name, switches, query: Query { write, pos, length, sync, queued }, on_reading, leaves_dirty }
    }

    fn flags(&self) -> WriteFlags {
        match self.query.sync {
            Sync::None => WriteFlags::empty(),
            Sync::Data => WriteFlags::DSYNC,
            Sync::All => WriteFlags::SYNC,
        }
    }

    fn is_misaligned(&self, bed: &Bed) -> bool {
        !(self.query.pos | self.query.length).is_multiple_of(bed.sector)
    }
}

/// What a request actually did.
struct Done {
    result: Result<usize, Error>,
    events: Vec<TraceEvent>,
    /// How many of `events` had happened when the submitting call returned.
    at_return: usize,
    stats: Stats,
    /// Whether `stat` shows another change time than before.
    stamped: bool,
}

fn carry_out(bed: &mut Bed, case: &Case, file: &File) -> Done {
    let Query { write, pos, length, queued, .. } = case.query;
    let modified = file.metadata().modified;
    let before = bed.volume.stats();
    bed.taken();
    let mut at_return = None;
    let result = if queued {
        let slot = bed.queue.attach(file).unwrap();
        let result = submit(bed, case, slot).and_then(|()| {
            at_return = Some(bed.events.lock().unwrap().len());
            bed.queue.wait(1)?.next().unwrap().result.map_err(|error| *error)
        });
        bed.queue.detach(slot).unwrap();
        result
    } else if write {
        let bytes = patterned(pos, pos, length as usize);
        if case.is_misaligned(bed) {
            file.write_any_at(&bytes, pos, case.flags())
        } else {
            file.write_at_with(&bytes, pos, case.flags())
        }
    } else {
        let mut bytes = aligned(length as usize);
        if case.is_misaligned(bed) {
            file.read_any_at(&mut bytes, pos)
        } else {
            file.read_at(&mut bytes, pos)
        }
    };
    let events = bed.taken();
    let at_return = at_return.unwrap_or(events.len());
    let stats = bed.volume.stats().since(&before);
    Done { result, at_return, events, stats, stamped: file.metadata().modified != modified }
}

fn submit(bed: &mut Bed, case: &Case, slot: FileSlot) -> Result<(), Error> {
    let mut buffer = bed.queue.buffer(case.query.length as usize)?;
    if case.query.write {
        buffer.copy_from_slice(&patterned(case.query.pos, case.query.pos, case.query.length as usize));
        return bed.queue.write(slot, case.query.pos, buffer, case.flags(), 1);
    }
    bed.queue.read(slot, case.query.pos, buffer, 1)
}

/// Leaves a read of the file's first sector in flight, if there are bytes to read.
fn neighbour(bed: &mut Bed, file: &File, name: &str, written: bool) -> Option<FileSlot> {
    if bed.capabilities.dax.is_some() || !written || file.size() < bed.sector {
        return None;
    }
    let other = bed.volume.open_file(name, read_only()).unwrap();
    let slot = bed.neighbour.attach(&other).unwrap();
    let buffer = bed.neighbour.buffer(bed.sector as usize).unwrap();
    bed.neighbour.read(slot, 0, buffer, 9).unwrap();
    Some(slot)
}

/// The device requests, in the form that `explain` uses.
fn requests(events: &[TraceEvent]) -> Vec<DeviceRequest> {
    let op = |op| match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::Discard => "discard",
    };
    let made = events.iter().filter(|event| event.phase == TracePhase::Submit);
    made.map(|event| DeviceRequest {
        op: op(event.op),
        pos: event.pos,
        length: event.length,
        fua: event.fua,
        cost: event.cost,
    })
    .collect()
}

fn submitted(events: &[TraceEvent]) -> usize {
    events.iter().filter(|event| event.phase == TracePhase::Submit).count()
}

/// Makes all changes of the file durable before the next request.
fn commit(bed: &Bed, file: &File) {
    file.sync_all().unwrap();
    bed.taken();
}

fn nothing_is_left_to_commit(bed: &Bed, file: &File) {
    let before = bed.volume.stats();
    file.sync_all().unwrap();
    let left = bed.volume.stats().since(&before).get(Counter::Commits);
    assert_eq!(left, 0, "the write was done before all of its metadata was durable");
    bed.taken();
}

/// Explains a request, runs it and compares. Returns the outcome, including a refusal.
fn try_one(bed: &mut Bed, case: &Case) -> (Explanation, Done) {
    let options = read_write().switches(case.switches);
    let file = bed.volume.open_file(case.name, options).unwrap();
    if case.on_reading {
        // A reader does not see uncommitted changes.
        bed.volume.sync_all().unwrap();
        bed.taken();
    }
    let told = file.explain(&case.query).unwrap();
    if case.on_reading {
        compare_on_reading(bed, case, &told);
    }
    // Load the mapping now, so that the neighbour loads nothing.
    let written = file.map().next().is_some_and(|piece| piece.unwrap().state == State::Written);
    let before = bed.volume.stats();
    let beside = neighbour(bed, &file, case.name, written);
    let mut done = carry_out(bed, case, &file);
    if let Some(slot) = beside {
        assert_eq!(bed.neighbour.wait(1).unwrap().count(), 1);
        bed.neighbour.detach(slot).unwrap();
    }
    done.stats = bed.volume.stats().since(&before);
    let drained = done.events.first().is_some_and(|event| event.phase != TracePhase::Submit);
    if drained {
        done.events.remove(0);
        done.at_return = done.at_return.saturating_sub(1);
    }
    let sent = requests(&done.events);
    match (&told.refused, &done.result) {
        (Some(why), Err(error)) => {
            assert_eq!(*why, error.to_string());
            assert!(sent.is_empty() && told.requests.is_empty(), "{sent:?}");
        }
        (None, Ok(done)) if changes_the_map(&told) => assert_eq!(*done as u64, case.query.length),
        (None, Ok(done)) if told.journal.commits > 0 => {
            assert_eq!(*done as u64, case.query.length);
            // The first commit also marks the volume as in use.
            if !told.reasons.iter().any(|line| line.starts_with("commit: the first")) {
                compare_requests(&told, &sent);
            }
        }
        // `explain` does not predict whether there is room.
        (None, Err(Error::NoSpace)) if changes_the_map(&told) => {
            commit(bed, &file);
            return (told, done);
        }
        (None, Ok(_)) => {
            compare_requests(&told, &sent);
            assert_eq!(told.plan.zero_edges, Edges::default());
            if beside.is_some() && !sent.is_empty() {
                assert_eq!(told.plan.drain, drained, "drained");
            }
            let transfers = &done.events[..done.at_return];
            if case.query.queued && submitted(transfers) > 0 {
                let complete = submitted(transfers) * 2 == transfers.len();
                assert_eq!(told.plan.finish == Finish::Synchronous, complete, "complete at return");
            } else if !case.query.queued {
                assert_eq!(told.plan.finish, Finish::Synchronous);
            }
        }
        (told, done) => panic!("told {told:?}, but {done:?}"),
    }
    compare_counters(bed, case, &told, &done, beside.is_some());
    if case.query.sync == Sync::All && done.result.is_ok() {
        nothing_is_left_to_commit(bed, &file);
    }
    bed.dirty = (changes_the_map(&told) && case.leaves_dirty).then_some(case.name);
    if changes_the_map(&told) && !case.leaves_dirty {
        commit(bed, &file);
    }
    (told, done)
}

/// A volume opened for reading must give the same answer, word for word.
fn compare_on_reading(bed: &Bed, case: &Case, told: &Explanation) {
    let volume = Volume::open_device(bed.plain.clone(), VolumeOptions::read_only()).unwrap();
    if !bed.has_journal && !volume.superblock().state.contains(VolumeState::CLEAN) {
        // Without a journal, a volume reopened now would take no changes until this one is closed.
        return;
    }
    if !case.query.write && volume.recovery().state == RecoveryState::Overlay {
        // It reads through the recovery overlay, and reports that.
        return;
    }
    let file = volume.open_file(case.name, read_only().switches(case.switches)).unwrap();
    let reading = file.explain(&case.query).unwrap();
    assert_eq!(format!("{reading:#?}"), format!("{told:#?}"), "open for reading and for writing");
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: {text}")))
}

fn try_many(bed: &mut Bed, rng: &mut Rng, what: &str, seen: &mut Seen) {
    for count in 0..READING {
        let case = Case::random(rng, bed);
        println!("explained only, {count} on {what}: {case:?}");
        let file = bed.volume.open_file(case.name, read_write().switches(case.switches)).unwrap();
        compare_on_reading(bed, &case, &file.explain(&case.query).unwrap());
    }
    for count in 0..number("UEXT4_EXPLAIN_REQUESTS", REQUESTS) {
        let case = Case::random(rng, bed);
        let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| try_one(bed, &case)));
        let (told, done) = tried.unwrap_or_else(|_| {
            let file = bed.volume.open_file(case.name, read_write().switches(case.switches)).unwrap();
            panic!("request {count} on {what}: {case:?}\n{:#?}", file.explain(&case.query));
        });
        seen.note(&told, &done);
    }
}

/// Which cases occurred, to notice when a change of the generator tries fewer.
#[derive(Default)]
struct Seen {
    kinds: std::collections::BTreeSet<String>,
}

impl Seen {
    fn note(&mut self, told: &Explanation, done: &Done) {
        let plan = &told.plan;
        if told.reasons.iter().any(|line| line.contains("are listed, the others")) {
            self.kinds.insert("cut".into());
        }
        for op in ["log", "home"] {
            if told.requests.iter().any(|request| request.op == op) {
                self.kinds.insert(op.into());
            }
        }
        if told.plan.drops_privileges && done.result.is_ok() {
            self.kinds.insert("privileges".into());
        }
        if told.plan.zero_edges.old_tail > 0 && done.result.is_ok() {
            self.kinds.insert("old tail".into());
        }
        if done.result.is_ok() {
            self.kinds.insert(format!("{:?}", plan.journal));
        }
        self.kinds.insert(match &done.result {
            Ok(_) => format!("{:?} {:?} {:?}", plan.route, plan.gate, plan.durability),
            Err(error) => {
                error.to_string().chars().filter(|letter| letter.is_alphabetic()).take(12).collect()
            }
        });
    }
}

fn watched(kind: Kind, layout: &Layout, image: &Image, path: &Path) -> Arc<dyn Device> {
    let spec = match kind {
        Kind::Memory { cache, fua, block, align } => {
            return image.device_with(|options| {
                (options.volatile_cache, options.fua) = (cache, fua);
                (options.logical_block, options.memory_align) = (block.min(layout.block as u32), align);
            });
        }
        Kind::Masked(what) => {
            let device = image.device_with(|options| options.volatile_cache = what == "fua");
            let mask = Mask { volatile_cache: what == "cache", no_fua: what == "fua", ..Mask::default() };
            return Arc::new(MaskDevice::new(device, mask));
        }
        Kind::Dax => "dax",
        Kind::File => "file",
        Kind::Synchronous => "sync",
    };
    image.save(path);
    let spec = DeviceSpec::parse(&format!("{spec}:{}", path.display())).unwrap();
    device::open(&spec, device::OpenOptions { write: true, force: false }).unwrap().device
}

#[test]
fn what_explain_says_is_what_happens() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let seed = number("UEXT4_EXPLAIN_SEED", SEED);
    println!("UEXT4_EXPLAIN_SEED={seed}");
    let (mut rng, mut seen) = (Rng::new(seed), Seen::default());
    for layout in &LAYOUTS {
        let image = layout.make();
        for kind in DEVICES {
            let scratch = Scratch::new(2 * SIZE);
            let path = scratch.file("volume.img");
            let device = watched(kind, layout, &image, &path);
            let what = format!("{kind:?}, {} of {} {}", layout.kind, layout.block, layout.features);
            let mut bed = Bed::new(device.clone(), layout);
            try_many(&mut bed, &mut rng, &what, &mut seen);
            drop(bed);
            let after = Image::of(&*device);
            drop(device);
            after.save(&path);
            uext4_testkit::e2fsck_clean(&path);
        }
    }
    println!("{:#?}", seen.kinds);
    for route in
        ["SimpleRead", "GeneralRead", "PastEnd", "InlineRead", "InlineWrite", "DaxRead", "BouncedRead", "cut"]
    {
        assert!(seen.kinds.iter().any(|kind| kind.starts_with(route)), "{route}: {:#?}", seen.kinds);
    }
    for kind in ["log", "home", "privileges", "old tail"] {
        assert!(seen.kinds.contains(kind), "{kind}: {:#?}", seen.kinds);
    }
    for journal in ["Allocate", "AllocateConvert", "Convert", "Extend"] {
        assert!(seen.kinds.contains(journal), "{journal}: {:#?}", seen.kinds);
    }
    for route in ["Overwrite", "DaxOverwrite", "BouncedOverwrite"] {
        for durability in ["None", "Fua", "WriteThrough", "Datasync", "Fsync"] {
            let known = |kind: &&String| kind.starts_with(route) && kind.ends_with(durability);
            let mapped = route == "DaxOverwrite" && durability == "WriteThrough";
            assert!(mapped || seen.kinds.iter().any(|kind| known(&kind)), "{route} {durability}");
        }
    }
}

/// Zeros past the old end are written only if the last block is written, and explain says how many.
#[test]
fn zeros_behind_the_old_end_are_told_as_they_are_written() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let layout = &LAYOUTS[0];
    let device = layout.make().device();
    let bed = Bed::new(device.clone(), layout);
    let unwritten = bed.volume.open_file("/unwritten", read_write().create_new(true)).unwrap();
    unwritten.fallocate(Fallocate::KeepSize, 0, 4096).unwrap();
    unwritten.set_len(777).unwrap();
    unwritten.sync_all().unwrap();
    let odd = bed.volume.open_file("/odd", read_write()).unwrap();
    for (file, zeros) in [(odd, 4096 - 777), (unwritten, 0)] {
        let last = file.map().last().unwrap().unwrap();
        let block = last.physical + last.length - 4096..last.physical + last.length;
        let pos = file.size().next_multiple_of(4096) + 4096;
        let query = Query { write: true, pos, length: 4096, sync: Sync::None, queued: false };
        let told = file.explain(&query).unwrap();
        assert_eq!(told.plan.zero_edges, Edges { head: 0, tail: 0, old_tail: zeros });
        let line = format!("{zeros} bytes past the old end of the file");
        assert_eq!(told.reasons.iter().any(|reason| reason.contains(&line)), zeros > 0, "{told:#?}");
        bed.taken();
        file.write_at(&patterned(1, pos, 4096), pos).unwrap();
        let sent = requests(&bed.taken());
        let in_block = sent.iter().filter(|request| request.op == "write" && block.contains(&request.pos));
        let written: u64 = in_block.map(|request| request.length).sum();
        assert_eq!(written, zeros.next_multiple_of(bed.sector), "{sent:?}");
    }
    drop(bed);
    let scratch = Scratch::new(2 * SIZE);
    let path = scratch.file("volume.img");
    Image::of(&*device).save(&path);
    uext4_testkit::e2fsck_clean(&path);
}
