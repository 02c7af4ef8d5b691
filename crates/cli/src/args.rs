//! Arguments that several commands share, and state common to all of them.

use crate::error::Failures;
use crate::moment;
use crate::rehearsal::Rehearsal;
use crate::session::Session;
use crate::tracer::Tracer;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgAction, Args, Command, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use uext4::{DeviceSpec, Switches, Timestamp, VolumeOptions};

/// What watches a command that another command runs.
#[derive(Clone, Default)]
pub struct Watchers {
    /// Prints requests and operations under `uext4 trace`.
    pub trace: Option<Arc<Tracer>>,
    /// Keeps writes in memory under `uext4 explain -- COMMAND`.
    pub rehearsal: Option<Arc<Rehearsal>>,
    /// The volume that is open under `uext4 shell`.
    pub session: Option<Arc<Session>>,
}

/// State common to every command.
#[derive(Clone, Default)]
pub struct Globals {
    /// The command's name.
    pub command: String,
    /// Data and errors as JSON.
    pub json: bool,
    /// Devices among which a volume that has its journal outside finds it.
    pub journals: Vec<DeviceSpec>,
    /// An absolute path: where the changes of the command's device are kept.
    pub overlay: Option<PathBuf>,
    /// Where the clock of changed volumes stands, if the command is deterministic.
    pub fixed: Option<Timestamp>,
    /// What watches the devices and volumes.
    pub watchers: Watchers,
}

impl Globals {
    /// Options with the journals in which a volume finds its own.
    pub fn with_journals(&self, options: VolumeOptions) -> VolumeOptions {
        self.journals.iter().cloned().fold(options, VolumeOptions::journal)
    }

    /// The device, with the overlay file of the command.
    pub fn overlaid(&self, spec: &DeviceSpec) -> DeviceSpec {
        let mut spec = spec.clone();
        spec.options.overlay = spec.options.overlay.or_else(|| self.overlay.clone());
        spec
    }

    /// Nothing has failed yet.
    pub fn failures(&self) -> Failures<'_> {
        Failures::new(&self.command, self.json)
    }
}

/// The argument of every command that opens volumes.
pub const JOURNAL: &str = "journal";
/// Commands that open none, or take a command line of their own.
const WITHOUT_JOURNAL: [&str; 8] =
    ["mkfs", "umount", "stats", "bench", "trace", "overlay", "completions", "man"];
/// The other one.
pub const OVERLAY: &str = "overlay";

/// Adds `--journal` and `--overlay` to a command that opens volumes.
pub fn with_journal(command: Command) -> Command {
    if WITHOUT_JOURNAL.contains(&command.get_name()) {
        return command;
    }
    let help = "The journal of a volume that has it on a device of its own; once for each such volume, in any order.";
    let argument = Arg::new(JOURNAL).long(JOURNAL).value_name("DEVICE").help(help);
    let argument = argument.value_hint(ValueHint::FilePath).action(ArgAction::Append);
    let command = command.arg(argument.value_parser(clap::value_parser!(OsString)));
    let help = "Keep all changes in FILE, made if there is none, and only read the device.";
    let argument = Arg::new(OVERLAY).long(OVERLAY).value_name("FILE").help(help);
    command.arg(argument.value_hint(ValueHint::FilePath).value_parser(clap::value_parser!(PathBuf)))
}

/// Whether a command makes the same bytes whenever and by whomever it is run.
pub const DETERMINISTIC: &str = "deterministic";
/// The time of its changes.
pub const FIXED_TIME: &str = "fixed_time";
/// Commands that change volumes.
const CHANGING: [&str; 17] = [
    "chattr",
    "chmod",
    "chown",
    "cp",
    "fallocate",
    "io",
    "ln",
    "mkdir",
    "mv",
    "prepare",
    "quota",
    "rm",
    "rmdir",
    "shell",
    "touch",
    "truncate",
    "xattr",
];

/// Adds `--deterministic` and `--time` to a command that changes volumes.
pub fn with_determinism(command: Command) -> Command {
    if !CHANGING.contains(&command.get_name()) {
        return command;
    }
    let help = "Change the volume so that the same volume and the same commands give the same bytes, whenever and by \
                whomever they are run: all times are --time, and what is created belongs to root.";
    let argument = Arg::new(DETERMINISTIC).long(DETERMINISTIC).help(help).action(ArgAction::SetTrue);
    let help = "The time of all changes, and the latest that copies keep; by default SOURCE_DATE_EPOCH in the \
                environment, seconds since 1970.";
    let time = Arg::new(FIXED_TIME).long("time").value_name("TIME").help(help).requires(DETERMINISTIC);
    let time = time.value_parser(clap::builder::ValueParser::new(moment::parse_date));
    command.arg(argument).arg(time)
}

/// The output format.
#[derive(Args, Debug, Clone, Default)]
pub struct JsonArgs {
    /// Print data, and errors on standard error, as JSON; with FILE, write the data there, not to standard output.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub json: Option<PathBuf>,
}

/// How to open a volume for reading, and the output format.
#[derive(Args, Debug, Clone, Default)]
pub struct CommonArgs {
    /// Read even if another process uses the device: the data may change meanwhile.
    #[arg(long)]
    pub force: bool,
    /// [`Globals`] say it.
    #[command(flatten)]
    _form: JsonArgs,
}

/// The optimisations that are on.
#[derive(Args, Debug, Clone, Copy, Default)]
pub struct SwitchArgs {
    /// Turn optimisations off or on: NAME=on|off,…; `all` means every one. The names:
    /// overwrite-no-transaction, dax-no-dio-count, fua-dsync-overwrite, simple-read,
    /// shared-subblock-overwrite.
    #[arg(long, value_name = "NAME=off,…", default_value_t = Switches::ON, hide_default_value = true)]
    pub switches: Switches,
}

/// Parses one of a fixed set of words, each with its value and help.
pub fn choice<T, const N: usize>(
    words: [(&'static str, T, &'static str); N],
) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let values = PossibleValuesParser::new(words.map(|(word, _, help)| PossibleValue::new(word).help(help)));
    values.try_map(move |given| {
        let meant = words.iter().find(|(word, ..)| *word == given);
        meant.map(|(_, meaning, _)| *meaning).ok_or("no such word")
    })
}
