//! `metadata`: many small files made, looked at and removed, by the library and by the kernel's ext4.
//!
//! Each side has a volume of its own; `twins` formats them alike. A side does a fixed share of the files in a slice,
//! the same share in each round, and a slice that changes the volume ends with a sync of it. The sides alternate, and a
//! ratio pairs their slices, as in the other scenarios.
//!
//! Reading path: `names` (which files a slice has) → `sides` (who makes them) → `turns` (threads and clocks).

mod cold;
mod memory;
mod names;
mod sides;
mod turns;
mod twins;

use crate::arm::Arm;
use crate::error::Result;
use crate::load::{Load, Meter};
use crate::measure::{measured_arm, ratios_of};
use crate::report::model::{self, Measured};
use crate::run::Event;
use crate::runner::Slice;
use crate::settings::Settings;
use crate::work::Latencies;
pub use memory::{image as image_for_memory, make as make_files};
use names::{Spread, Tree};
use sides::{Kernel, Library, Side};
use turns::{Operation, Turns};
use twins::Twins;

/// Name on the command line.
pub const METADATA: &str = "metadata";
/// Files that each shape makes, by default.
pub const FILES: u64 = 100_000;
/// Bytes of each.
const FILE_BYTES: u32 = 4096;

/// What `on` is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rival {
    /// The kernel's ext4.
    Kernel,
    /// The same with one thread.
    OneThread,
}

/// One way to make files.
#[derive(Debug)]
struct Shape {
    /// Where, in the names of its measurements: `create-WHERE`.
    place: &'static str,
    directories: u64,
    spread: Spread,
    threads: usize,
    /// Each file is synced before it is closed.
    durable: bool,
    operations: &'static [Operation],
    rival: Rival,
}

/// The measurement of reading, which needs the kernel.
pub const READ_COLD: &str = "read-cold-1000-directories";

const ALL: &[Operation] = &[Operation::Create, Operation::Stat, Operation::Unlink];

const ONE: Shape = Shape {
    place: "1-directory",
    directories: 1,
    spread: Spread::Filled,
    threads: 1,
    durable: false,
    operations: ALL,
    rival: Rival::Kernel,
};
const MANY: Shape = Shape { place: "1000-directories", directories: 1000, ..ONE };
const DURABLE: Shape = Shape { threads: 8, durable: true, operations: &[Operation::Create], ..ONE };

const SHAPES: [Shape; 5] = [
    ONE,
    MANY,
    DURABLE,
    Shape { place: MANY.place, directories: MANY.directories, ..DURABLE },
    Shape {
        place: "8-threads",
        directories: 8,
        spread: Spread::InTurn,
        threads: 8,
        rival: Rival::OneThread,
        ..ONE
    },
];

impl Shape {
    fn name(&self, operation: Operation) -> String {
        let durable = if self.durable { "durable-" } else { "" };
        format!("{durable}{}-{}", operation.name(), self.place)
    }

    /// Arms and the threads of each.
    fn arms(&self, kernel: bool) -> Vec<(Arm, usize)> {
        let on = (Arm::On, self.threads);
        match self.rival {
            Rival::OneThread => vec![on, (Arm::OneThread, 1)],
            Rival::Kernel if kernel => vec![on, (Arm::Kernel, self.threads)],
            Rival::Kernel => vec![on],
        }
    }
}

/// Names of its measurements, which JSON has as `shape`.
#[cfg(test)]
pub fn names() -> Vec<String> {
    let shapes = SHAPES.iter().flat_map(|shape| shape.operations.iter().map(|&one| shape.name(one)));
    shapes.chain([READ_COLD.to_owned()]).collect()
}

/// Why `metadata` cannot follow these settings.
pub fn unsuited(asked: &Settings) -> Option<&'static str> {
    if asked.device.is_some() {
        return Some("it makes volumes of its own");
    }
    asked.size.is_some().then_some("its files have a fixed size, --files tells how many")
}

/// Measures every shape.
pub fn run(asked: &Settings, tell: &mut dyn FnMut(Event)) -> Result<Vec<Measured>> {
    let mut all = Vec::new();
    for shape in &SHAPES {
        let files = asked.files.unwrap_or(FILES);
        let slices = u64::from(asked.timing.rounds).min(files / shape.threads as u64).max(1);
        let tree = Tree { files, directories: shape.directories, spread: shape.spread, slices };
        all.extend(measure(shape, tree, asked, tell)?);
    }
    if asked.kernel {
        all.push(read_cold(asked, tell)?);
    }
    let missing = "the kernel's ext4 was not measured: it is with --kernel, which needs root";
    if let Some(first) = all.first_mut().filter(|_| !asked.kernel) {
        first.notes.push(missing.into());
    }
    Ok(all)
}

fn measure(
    shape: &Shape,
    tree: Tree,
    asked: &Settings,
    tell: &mut dyn FnMut(Event),
) -> Result<Vec<Measured>> {
    let arms = shape.arms(asked.kernel);
    let turns = tree.slices * arms.len() as u64 * shape.operations.len() as u64;
    let begin = |turns| Event::Begin { title: format!("{METADATA}, {}", shape.place), turns };
    let twins = Twins::new(arms.len(), &tree, FILE_BYTES)?;
    let mut sides: Vec<Box<dyn Side>> = Vec::new();
    for (&(arm, _), image) in arms.iter().zip(&twins.images) {
        sides.push(match arm {
            Arm::Kernel => Box::new(Kernel::mount(image)?),
            _ => Box::new(Library::open(image, asked.switches)?),
        });
    }
    for side in &sides {
        tree.directory_names().try_for_each(|name| side.make_dir(&name))?;
        side.sync()?;
    }
    tell(begin(turns));
    let mut all = Vec::new();
    for &operation in shape.operations {
        let meter = Meter::start();
        let sides = arms.iter().zip(&sides).map(|(&(arm, threads), side)| (arm, threads, &**side)).collect();
        let turns = Turns { tree: &tree, sides, durable: shape.durable };
        let slices = turns.run(operation, &mut || tell(Event::Turn))?;
        all.push(measured(shape.name(operation), operation.bytes(), &arms, &slices, meter.load())?);
    }
    sides.into_iter().try_for_each(Side::close)?;
    twins.check()?;
    Ok(all)
}

/// A measurement of these slices. `arms`: with the threads of each.
fn measured(
    name: String,
    bytes: u32,
    arms: &[(Arm, usize)],
    slices: &[Slice],
    load: Option<Load>,
) -> Result<Measured> {
    let of = |&(arm, threads): &(Arm, usize)| {
        let own: Vec<_> = slices.iter().filter(|slice| slice.arm == arm).collect();
        measured_arm(arm, (threads, 1), bytes, &own, &Latencies::new()?)
    };
    let (ratios, cpu_ratios) = ratios_of(slices);
    let on = || slices.iter().filter(|slice| slice.arm == Arm::On);
    Ok(Measured {
        scenario: METADATA.into(),
        shape: Some(name),
        switch: None,
        device: twins::LABEL.into(),
        engine: "file".into(),
        polled: false,
        seconds: on().map(|slice| slice.wall.as_secs_f64()).sum(),
        rounds: on().count() as u32,
        arms: arms.iter().map(of).collect::<Result<_>>()?,
        ratios: model::medians(&ratios),
        ratio_intervals: model::intervals(&ratios),
        cpu_ratios: model::medians(&cpu_ratios),
        cpu_ratio_intervals: model::intervals(&cpu_ratios),
        load,
        e2fsck: "clean".into(),
        notes: load.and_then(|load| load.warning()).into_iter().collect(),
    })
}

/// The kernel reads a tree of the library, and one of its own.
fn read_cold(asked: &Settings, tell: &mut dyn FnMut(Event)) -> Result<Measured> {
    let files = asked.files.unwrap_or(FILES);
    let slices = u64::from(asked.timing.rounds).min(MANY.directories);
    let tree = Tree { files, directories: MANY.directories, spread: MANY.spread, slices };
    tell(Event::Begin { title: format!("{METADATA}, {READ_COLD}"), turns: 2 * slices });
    let meter = Meter::start();
    let slices = cold::run(&tree, asked.switches, &mut || tell(Event::Turn))?;
    let arms = [(Arm::On, 1), (Arm::Kernel, 1)];
    let mut measured = measured(READ_COLD.into(), FILE_BYTES, &arms, &slices, meter.load())?;
    measured.notes.push("the kernel reads both: the arm is who wrote the tree".into());
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_measurement_has_a_name_of_its_own() {
        let names = names();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        assert_eq!(names.len(), 12);
        assert_eq!(names[0], "create-1-directory");
        assert!(names.iter().any(|name| name == "durable-create-1000-directories"));
    }

    #[test]
    fn a_device_and_a_size_do_not_suit() {
        let asked = Settings::default;
        assert!(unsuited(&asked()).is_none());
        assert!(unsuited(&Settings { device: Some("image".into()), ..asked() }).is_some());
        assert!(unsuited(&Settings { size: Some(1 << 20), ..asked() }).is_some());
    }
}
