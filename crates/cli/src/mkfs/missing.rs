//! Options of mke2fs that `uext4 mkfs` refuses by name, so that a script written for mke2fs shows what is missing.

use crate::error::CliError;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// The option, whether a value follows, and what to do instead.
const OPTIONS: [(&str, bool, &str); 13] = [
    ("-c", false, "no block is tested; `e2fsck -c` can do that later"),
    ("-e", true, "the volume continues after errors, the default; `tune2fs -e` changes that"),
    ("-l", true, "no list of bad blocks is read; `e2fsck -l` can read one later"),
    ("-o", true, "the creator OS is always Linux"),
    ("-r", true, "the revision is always 1"),
    ("-v", false, "everything is printed without it"),
    ("-z", true, "no undo file is written"),
    ("-D", false, "all I/O is direct anyway"),
    ("-K", false, "nothing is discarded without -E discard"),
    ("-M", true, "a new volume has no last mount point"),
    ("-R", true, "use -E instead"),
    ("-S", false, "superblock and descriptors cannot be written alone"),
    ("-V", false, "`uext4 --version` prints the version"),
];

/// The first of them that was given.
#[derive(Debug, Clone, Default)]
pub struct Missing(Option<&'static str>);

impl Missing {
    /// Refuses it.
    pub fn refuse(&self) -> Result<(), CliError> {
        let Some((name, _, instead)) = OPTIONS.iter().find(|(name, ..)| Some(*name) == self.0) else {
            return Ok(());
        };
        Err(CliError::usage(format!("{name} of mke2fs is not supported: {instead}")))
    }
}

impl FromArgMatches for Missing {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |name: &str, value: bool| match value {
            true => matches.contains_id(name),
            false => matches.get_count(name) > 0,
        };
        Ok(Missing(OPTIONS.iter().find(|(name, value, _)| given(name, *value)).map(|option| option.0)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Missing::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Missing {
    fn augment_args(command: Command) -> Command {
        command.args(OPTIONS.map(|(name, value, _)| {
            let letter = name.chars().next_back().unwrap_or_default();
            let action = if value { ArgAction::Set } else { ArgAction::Count };
            let argument = Arg::new(name).short(letter).hide(true).action(action);
            if value { argument.value_parser(clap::value_parser!(std::ffi::OsString)) } else { argument }
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Missing::augment_args(command)
    }
}
