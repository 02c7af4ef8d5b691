//! What several commands take, and what holds for all of them.

use crate::tracer::Tracer;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::sync::Arc;
use uext4::Switches;

/// What holds for every command.
#[derive(Clone, Default)]
pub struct Globals {
    /// The command's name.
    pub command: &'static str,
    /// Data and errors as JSON.
    pub json: bool,
    /// Who watches the devices, below `uext4 trace`.
    pub trace: Option<Arc<Tracer>>,
}

/// In which form.
#[derive(Args, Debug, Clone, Default)]
pub struct JsonArgs {
    /// Data, and errors on standard error, as JSON; the data in FILE instead of on standard output.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub json: Option<PathBuf>,
}

/// How a volume is opened for looking.
#[derive(Args, Debug, Clone, Copy, Default)]
pub struct ForceArgs {
    /// Read although somebody else uses the device: what is read may change meanwhile.
    #[arg(long)]
    pub force: bool,
}

/// Which optimisations are on.
#[derive(Args, Debug, Clone, Copy, Default)]
pub struct SwitchArgs {
    /// Turn optimisations off or on: NAME=on|off,…; `all` names every one. The names:
    /// overwrite-no-transaction, dax-no-dio-count, fua-dsync-overwrite, simple-read,
    /// shared-subblock-overwrite.
    #[arg(long, value_name = "NAME=off,…", default_value_t = Switches::ON, hide_default_value = true)]
    pub switches: Switches,
}
