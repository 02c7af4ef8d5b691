//! `uext4 chown`: the owners of chown(1).

use super::{Changer, Missing, Reach, Reference, ReportArgs, first, operands};
use crate::args::{Globals, JsonArgs};
use crate::error::CliError;
use clap::{ArgAction, Args, ValueHint};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use uext4::SetAttributes;

const USAGE: &str = "\
uext4 chown [OPTIONS] [OWNER][:[GROUP]] DEVICE:/path...
       uext4 chown [OPTIONS] --reference OTHER DEVICE:/path...";

/// `uext4 chown`.
#[derive(Args)]
#[command(override_usage = USAGE, disable_help_flag = true)]
#[command(after_long_help = "\
OWNER and GROUP are numbers, or names of the host's /etc/passwd and /etc/group. `OWNER:` also sets the owner's login
group. A new owner strips set-user-id, set-group-id and capabilities of files. With -R, symbolic links are changed
themselves.")]
pub struct ChownArgs {
    /// The owner, then the files.
    #[arg(value_name = "OWNER:GROUP DEVICE:/path", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// Change everything below directories too.
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Change a symbolic link instead of its target.
    #[arg(short = 'h', long = "no-dereference")]
    pub no_dereference: bool,
    /// Only where the owner and the group are these.
    #[arg(long, value_name = "OWNER:GROUP")]
    pub from: Option<String>,
    /// Give the owner and group of this file instead: DEVICE:/path, or a file of the host.
    #[arg(long, value_name = "OTHER")]
    pub reference: Option<OsString>,
    /// What is printed.
    #[command(flatten)]
    pub report: ReportArgs,
    /// The output format: with JSON, the attributes afterwards.
    #[command(flatten)]
    pub form: JsonArgs,
    /// Print help.
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
}

/// A user and a group, each if given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Owner {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Owner {
    /// `OWNER`, `OWNER:GROUP`, `OWNER:`, `:GROUP`.
    fn parse(text: &str, users: &str, groups: &str) -> Result<Owner, String> {
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        let uid = if user.is_empty() { None } else { Some(number(user, users, "user")?) };
        let gid = match group {
            None => None,
            Some("") if user.is_empty() => None,
            Some("") => Some(login_group(user, users)?),
            Some(group) => Some(number(group, groups, "group")?),
        };
        Ok(Owner { uid, gid })
    }

    fn holds(self, uid: u32, gid: u32) -> bool {
        self.uid.is_none_or(|wanted| wanted == uid) && self.gid.is_none_or(|wanted| wanted == gid)
    }
}

/// The fields of the line of a name in a file like `/etc/passwd`.
fn fields<'t>(name: &str, table: &'t str) -> Option<Vec<&'t str>> {
    let lines = table.lines().map(|line| line.split(':').collect::<Vec<_>>());
    lines.into_iter().find(|fields| fields[0] == name)
}

fn number(name: &str, table: &str, what: &str) -> Result<u32, String> {
    let known = fields(name, table).and_then(|fields| fields.get(2)?.parse().ok());
    let number = known.or_else(|| name.strip_prefix('+').unwrap_or(name).parse().ok());
    number.filter(|id| *id != u32::MAX).ok_or_else(|| format!("invalid {what}: `{name}`"))
}

fn login_group(user: &str, users: &str) -> Result<u32, String> {
    let known = fields(user, users).and_then(|fields| fields.get(3)?.parse().ok());
    known.ok_or_else(|| format!("the login group of `{user}` is not known: name a group after the colon"))
}

fn parse(text: &str) -> Result<Owner, CliError> {
    // A host without them has no names.
    let table = |path| std::fs::read_to_string(path).unwrap_or_default();
    Owner::parse(text, &table("/etc/passwd"), &table("/etc/group")).map_err(CliError::usage)
}

/// User and group of `OWNER:GROUP` or `OWNER:`.
pub fn both(text: &str) -> Result<(u32, u32), CliError> {
    let Owner { uid, gid } = parse(text)?;
    uid.zip(gid).ok_or_else(|| CliError::usage(format!("`{text}` does not name a user and a group: UID:GID")))
}

/// Runs it.
pub fn run(args: &ChownArgs, globals: &Globals) -> Result<(), CliError> {
    let (owner, paths) = match &args.reference {
        Some(_) => (Owner::default(), &args.operands[..]),
        None => {
            let (owner, paths) = first(&args.operands, "OWNER")?;
            (parse(&owner.to_string_lossy())?, paths)
        }
    };
    let from = args.from.as_deref().map_or(Ok(Owner::default()), parse)?;
    let operands = operands(paths)?;
    let follow = !args.no_dereference && !args.recursive;
    let reach = Reach { recursive: args.recursive, follow, silent: args.report.silent };
    let mut changer = Changer::new(globals, reach, operands.len());
    let owner = match &args.reference {
        None => owner,
        Some(reference) => {
            let (uid, gid) = match changer.reference(reference)? {
                Reference::Volume(found) => (found.uid, found.gid),
                Reference::Host(found) => (found.uid(), found.gid()),
            };
            Owner { uid: Some(uid), gid: Some(gid) }
        }
    };
    let set = SetAttributes::new();
    let set = owner.uid.into_iter().fold(set, SetAttributes::uid);
    let set = owner.gid.into_iter().fold(set, SetAttributes::gid);
    changer.run(
        &operands,
        |_, _| Ok(Missing::Change),
        |changer, found| {
            let (uid, gid) = (found.before.uid, found.before.gid);
            if !from.holds(uid, gid) {
                return Ok(());
            }
            let after = changer.set(found, &set)?;
            let changed = (uid, gid) != (after.uid, after.gid);
            if !args.report.tells(changed) {
                return Ok(());
            }
            match changed {
                true => {
                    let text = format!("from {uid}:{gid} to {}:{}", after.uid, after.gid);
                    changer.line("changed ownership of", found, &text)
                }
                false => changer.line("ownership of", found, &format!("retained as {uid}:{gid}")),
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_those_of_chown() {
        let users = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:100::/home/ann:/bin/sh\n7:x:70:70::/:\n";
        let groups = "root:x:0:\nstaff:x:50:ann\n";
        for (text, uid, gid) in [
            ("ann", Some(1000), None),
            ("ann:staff", Some(1000), Some(50)),
            ("ann:", Some(1000), Some(100)),
            (":staff", None, Some(50)),
            (":", None, None),
            ("", None, None),
            ("12:34", Some(12), Some(34)),
            ("7", Some(70), None),
            ("+7", Some(7), None),
        ] {
            assert_eq!(Owner::parse(text, users, groups), Ok(Owner { uid, gid }), "{text}");
        }
        for bad in ["bob", "ann:bob", "-1", "4294967295", "12:", "1:2:3"] {
            assert!(Owner::parse(bad, users, groups).is_err(), "{bad}");
        }
    }
}
