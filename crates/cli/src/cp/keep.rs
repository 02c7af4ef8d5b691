//! What a copy keeps: options of which the last one counts.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use uext4_transfer::{Follow, Keep};

/// What `--preserve` and `--no-preserve` name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attribute {
    Mode,
    Ownership,
    Timestamps,
    Links,
    Context,
    Xattr,
    All,
}

const ATTRIBUTES: [(&str, Attribute); 7] = [
    ("mode", Attribute::Mode),
    ("ownership", Attribute::Ownership),
    ("timestamps", Attribute::Timestamps),
    ("links", Attribute::Links),
    ("context", Attribute::Context),
    ("xattr", Attribute::Xattr),
    ("all", Attribute::All),
];

type List = Vec<Attribute>;

/// A list with commas; words may be shortened, as in cp(1).
fn list(given: &str) -> Result<List, String> {
    let one = |word: &str| {
        let mut meant = ATTRIBUTES.iter().filter(|(name, _)| !word.is_empty() && name.starts_with(word));
        match (meant.next(), meant.next()) {
            (Some((_, attribute)), None) => Ok(*attribute),
            _ => Err(format!("`{word}`: the words are {}", ATTRIBUTES.map(|(name, _)| name).join(", "))),
        }
    };
    given.split(',').map(one).collect()
}

/// What is kept, and which links are followed.
#[derive(Debug, Clone, Copy)]
pub struct Kept {
    pub keep: Keep,
    /// As `-L`, `-P`, `-H`, `-d` or `-a` say.
    pub follow: Option<Follow>,
    /// Whether `-a` is given, which includes `-r`.
    pub archive: bool,
}

impl Kept {
    fn attribute(&mut self, attribute: Attribute, on: bool) {
        let keep = &mut self.keep;
        match attribute {
            Attribute::Mode => (keep.mode, keep.new_mode) = (on, !on),
            Attribute::Ownership => keep.owner = on,
            Attribute::Timestamps => keep.times = on,
            Attribute::Links => keep.links = on,
            Attribute::Context => keep.context = on,
            Attribute::Xattr => (keep.xattrs, keep.xattrs_required) = (on, on),
            Attribute::All => {
                (keep.mode, keep.new_mode) = (on, !on);
                (keep.owner, keep.times, keep.links) = (on, on, on);
                (keep.context, keep.xattrs) = (on, on);
            }
        }
    }

    fn attributes(&mut self, attributes: &[Attribute], on: bool) {
        for &attribute in attributes {
            self.attribute(attribute, on);
        }
    }

    /// What an option without a value means.
    fn flag(&mut self, name: &str) {
        const OF_P: [Attribute; 3] = [Attribute::Mode, Attribute::Ownership, Attribute::Timestamps];
        match name {
            "archive" => {
                self.archive = true;
                self.follow = Some(Follow::Never);
                self.attribute(Attribute::All, true);
            }
            "attributes" => self.attributes(&OF_P, true),
            "links" => {
                self.follow = Some(Follow::Never);
                self.attribute(Attribute::Links, true);
            }
            "dereference" => self.follow = Some(Follow::All),
            "no-dereference" => self.follow = Some(Follow::Never),
            _ => self.follow = Some(Follow::Sources),
        }
    }
}

const FLAGS: [(&str, char, Option<&str>, &str); 6] = [
    ("archive", 'a', Some("archive"), "Same as -r -P --preserve=all"),
    (
        "attributes",
        'p',
        None,
        "Keep times to the nanosecond, all mode bits, access control lists and the owner (on the host, as root)",
    ),
    ("links", 'd', None, "Same as -P --preserve=links"),
    (
        "dereference",
        'L',
        Some("dereference"),
        "Follow all symbolic links; this is so without -r. One that leads back to a directory above it is reported",
    ),
    ("no-dereference", 'P', Some("no-dereference"), "Copy symbolic links as links; this is so with -r"),
    ("sources", 'H', None, "Follow symbolic links among the PATHs, and copy others as links"),
];

const PRESERVE: &str = "Keep these attributes: a list of mode (with access control lists), ownership, timestamps, \
                        links (hard links among what is copied), xattr, context (security.selinux) and all; without \
                        LIST the same as -p. Attributes that cannot be kept are reported if xattr is named. Of \
                        several options that say what is kept, or which links are followed, the last one counts";
const NO_PRESERVE: &str =
    "Do not keep these. Without mode, what is created gets the permissions of a new file";

impl Args for Kept {
    fn augment_args(command: Command) -> Command {
        let flags = FLAGS.map(|(id, short, long, help)| {
            let flag = Arg::new(id).short(short).action(ArgAction::SetTrue).help(help);
            long.into_iter().fold(flag, |flag, long| flag.long(long))
        });
        let lists = [("preserve", PRESERVE), ("no-preserve", NO_PRESERVE)].map(|(id, help)| {
            let arg = Arg::new(id).long(id).value_name("LIST").help(help);
            arg.action(ArgAction::Append).value_parser(list)
        });
        let [preserve, no_preserve] = lists;
        let preserve = preserve.num_args(0..=1).require_equals(true);
        let preserve = preserve.default_missing_value("mode,ownership,timestamps");
        command.args(flags).arg(preserve).arg(no_preserve)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Kept {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        // Each option with its place; a flag that is given twice has its last one.
        let mut flags: Vec<(usize, &str)> = FLAGS
            .iter()
            .filter(|(id, ..)| matches.get_flag(id))
            .flat_map(|(id, ..)| matches.indices_of(id).into_iter().flatten().map(|place| (place, *id)))
            .collect();
        flags.sort_unstable();
        let lists = [("preserve", true), ("no-preserve", false)].into_iter().flat_map(|(id, on)| {
            let places = matches.indices_of(id).into_iter().flatten();
            let given = matches.get_many::<List>(id).into_iter().flatten();
            places.zip(given).map(move |(place, list)| (place, list, on))
        });
        let mut lists: Vec<_> = lists.collect();
        lists.sort_unstable_by_key(|(place, ..)| *place);
        let mut kept = Kept { keep: Keep::NOTHING, follow: None, archive: false };
        let mut lists = lists.into_iter().peekable();
        for (place, flag) in flags {
            while let Some((_, list, on)) = lists.next_if(|(at, ..)| *at < place) {
                kept.attributes(list, on);
            }
            kept.flag(flag);
        }
        lists.for_each(|(_, list, on)| kept.attributes(list, on));
        Ok(kept)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(words: &str) -> Kept {
        let command = Kept::augment_args(Command::new("cp").args_override_self(true));
        let matches = command.try_get_matches_from(["cp"].into_iter().chain(words.split_whitespace()));
        Kept::from_arg_matches(&matches.unwrap()).unwrap()
    }

    #[test]
    fn the_last_one_counts() {
        let nothing = Keep { new_mode: true, ..Keep::NOTHING };
        for (words, keep, follow) in [
            ("", Keep::NOTHING, None),
            ("-p", Keep::ATTRIBUTES, None),
            ("--preserve", Keep::ATTRIBUTES, None),
            ("-a", Keep::EVERYTHING, Some(Follow::Never)),
            ("--preserve=all", Keep::EVERYTHING, None),
            ("-a --no-preserve=all", nothing, Some(Follow::Never)),
            ("--no-preserve=all -a", Keep::EVERYTHING, Some(Follow::Never)),
            ("-d", Keep { links: true, ..Keep::NOTHING }, Some(Follow::Never)),
            ("-d --no-preserve=links", Keep::NOTHING, Some(Follow::Never)),
            ("-d --no-preserve=links -d", Keep { links: true, ..Keep::NOTHING }, Some(Follow::Never)),
            ("-L -P", Keep::NOTHING, Some(Follow::Never)),
            ("-L -P -L", Keep::NOTHING, Some(Follow::All)),
            ("-PH", Keep::NOTHING, Some(Follow::Sources)),
            ("-aL", Keep::EVERYTHING, Some(Follow::All)),
            ("-p --no-preserve=mode,own", Keep { times: true, ..nothing }, None),
            ("--no-preserve=mode --preserve=time", Keep { times: true, ..nothing }, None),
            ("--preserve=links --preserve=mode", Keep { links: true, mode: true, ..Keep::NOTHING }, None),
            ("--preserve=x", Keep { xattrs: true, xattrs_required: true, ..Keep::NOTHING }, None),
            ("--preserve=xattr --no-preserve=x --preserve=c", Keep { context: true, ..Keep::NOTHING }, None),
        ] {
            let found = kept(words);
            assert_eq!((found.keep, found.follow), (keep, follow), "{words}");
            assert_eq!(found.archive, words.contains("-a"), "{words}");
        }
    }

    #[test]
    fn only_known_words() {
        for wrong in ["", "modes", "mode,", "mode,,links", "mode,owner,x y"] {
            let told = list(wrong).unwrap_err();
            assert!(told.contains("the words are mode, ownership"), "{told}");
        }
        assert_eq!(list("m,l").unwrap(), [Attribute::Mode, Attribute::Links]);
    }
}
