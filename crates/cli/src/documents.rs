//! Completion scripts and manual pages, generated from the arguments.

use crate::error::CliError;
use crate::examples::cli;
use crate::out::print;
use clap::{Args, CommandFactory, ValueHint};
use std::ffi::OsStr;
use std::path::PathBuf;

/// `uext4 completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// `uext4 man`.
#[derive(Args)]
pub struct ManArgs {
    /// Write uext4.1 and a page for every command into this directory instead.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

/// `uext4 completions SHELL`.
pub fn completions<P: CommandFactory>(args: &CompletionsArgs) -> Result<(), CliError> {
    // The generator panics if a write fails; a write to memory cannot.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::<P>(), "uext4", &mut script);
    print(&script)
}

/// `uext4 man`.
pub fn man<P: CommandFactory>(args: &ManArgs) -> Result<(), CliError> {
    let command = cli::<P>();
    if let Some(dir) = &args.dir {
        let written = clap_mangen::generate_to(command, dir);
        return written.map_err(|error| CliError::host(dir.as_os_str(), "write", &error));
    }
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(command).render(&mut page);
    rendered.map_err(|error| CliError::host(OsStr::new("standard output"), "render", &error))?;
    print(&page)
}
