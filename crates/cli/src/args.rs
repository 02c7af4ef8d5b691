//! What several commands take, and what holds for all of them.

use crate::error::Failures;
use crate::tracer::Tracer;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::sync::Arc;
use uext4::Switches;

/// What holds for every command.
#[derive(Clone, Default)]
pub struct Globals {
    /// The command's name.
    pub command: String,
    /// Data and errors as JSON.
    pub json: bool,
    /// Who watches the devices, below `uext4 trace`.
    pub trace: Option<Arc<Tracer>>,
}

impl Globals {
    /// Nothing has failed yet.
    pub fn failures(&self) -> Failures<'_> {
        Failures::new(&self.command, self.json)
    }
}

/// In which form.
#[derive(Args, Debug, Clone, Default)]
pub struct JsonArgs {
    /// Data, and errors on standard error, as JSON; the data in FILE instead of on standard output.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub json: Option<PathBuf>,
}

/// How a volume is opened for looking, and in which form its data are told.
#[derive(Args, Debug, Clone, Default)]
pub struct CommonArgs {
    /// Read although somebody else uses the device: what is read may change meanwhile.
    #[arg(long)]
    pub force: bool,
    /// [`Globals`] say it.
    #[command(flatten)]
    _form: JsonArgs,
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

/// Parses one of some words: each with what it means, and its help.
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
