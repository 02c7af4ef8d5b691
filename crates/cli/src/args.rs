//! Arguments that several commands share, and state common to all of them.

use crate::error::Failures;
use crate::tracer::Tracer;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::sync::Arc;
use uext4::Switches;

/// State common to every command.
#[derive(Clone, Default)]
pub struct Globals {
    /// The command's name.
    pub command: String,
    /// Data and errors as JSON.
    pub json: bool,
    /// Watches the devices under `uext4 trace`.
    pub trace: Option<Arc<Tracer>>,
}

impl Globals {
    /// Nothing has failed yet.
    pub fn failures(&self) -> Failures<'_> {
        Failures::new(&self.command, self.json)
    }
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
