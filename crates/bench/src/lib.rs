//! What each optimisation is worth, and what the file system costs over the bare device.
//!
//! [`run()`] measures what [`Settings`] ask for and returns a [`Report`]; [`floors()`] measures the promised ratios and
//! judges them. Nothing is printed: the caller receives each [`Event`], and a report renders itself as
//! text, JSON or a page.
//!
//! Reading path: `scenario` (what is requested) → `volume` (on what) → `measure` (sessions, rounds, ratios) →
//! `runner` (threads and slices) → `work` (the measured loops). Around them: `ops` makes the requests, `routes` voids a
//! measurement that took another route, `statistics` computes intervals, `report` prints, `floors` checks the
//! promises; `metadata` measures names; promises of no scenario are in `changing` and, where a process of its own
//! measures, in `probes`.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod arm;
mod changing;
mod error;
mod floors;
mod load;
mod machine;
mod measure;
mod metadata;
mod ops;
mod probes;
mod report;
mod routes;
mod run;
mod runner;
mod scenario;
mod session;
mod settings;
mod statistics;
mod volume;
mod work;

pub use arm::Arm;
pub use error::{BenchError, Result};
pub use floors::{Floors, Process, floor_parts, floors};
pub use load::Load;
pub use machine::Machine;
pub use probes::Probe;
pub use report::model::{Interval, Measured, MeasuredArm, Report};
pub use run::{Event, run};
pub use scenario::names as scenario_names;
pub use settings::{ROUNDS, SECONDS, Settings, Timing};
