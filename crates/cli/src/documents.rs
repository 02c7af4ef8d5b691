//! Completion scripts and manual pages, generated from the arguments.

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::error::CliError;
use crate::out::Out;
use clap::CommandFactory;
use std::ffi::OsStr;
use std::io;
use std::path::Path;

/// `uext4 completions SHELL`.
pub fn completions(args: &CompletionsArgs) -> Result<(), CliError> {
    // The generator panics if a write fails, which memory does not.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "uext4", &mut script);
    let mut out = Out::new();
    out.bytes(&script)?;
    out.finish()
}

/// `uext4 man`.
pub fn man(args: &ManArgs) -> Result<(), CliError> {
    let mut command = Cli::command();
    command.build();
    let Some(dir) = &args.dir else {
        let mut out = Out::new();
        out.bytes(&page(command, OsStr::new("standard output"))?)?;
        return out.finish();
    };
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        let name = format!("uext4-{}", inner.get_name());
        write_page(dir, inner.clone().name(&name).display_name(name))?;
    }
    write_page(dir, command)
}

fn write_page(dir: &Path, command: clap::Command) -> Result<(), CliError> {
    let path = dir.join(format!("{}.1", command.get_name()));
    let text = page(command, path.as_os_str())?;
    std::fs::write(&path, text).map_err(|error| CliError::host(path.as_os_str(), "write", &error))
}

fn page(command: clap::Command, path: &OsStr) -> Result<Vec<u8>, CliError> {
    let mut text = Vec::new();
    let rendered: io::Result<()> = clap_mangen::Man::new(command).render(&mut text);
    rendered.map_err(|error| CliError::host(path, "render", &error))?;
    Ok(text)
}
