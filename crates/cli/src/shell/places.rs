//! Which words of a command are paths of the volume: those that name a device and a path outside the shell.

use super::words::Word;
use clap::{Arg, ArgAction, Command};

/// Arguments that are paths of the volume.
const PATHS: [&str; 7] = ["operand", "operands", "paths", "words", "diff", "reference", "target_directory"];
/// Arguments that are the device alone.
const DEVICES: [&str; 2] = ["device", "devices"];
/// Commands whose first word is what is to be set, unless it is taken from another file.
const SETTERS: [&str; 3] = ["chattr", "chmod", "chown"];
/// Commands that are about the present directory if no path is given.
const HERE: [&str; 3] = ["du", "find", "ls"];

/// What a word is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Anything else.
    Other,
    /// A path of the volume.
    Path,
}

/// What a line lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lacks {
    /// Nothing.
    Nothing,
    /// The device, as the first word.
    Device,
    /// The present directory, as the last word.
    Here,
}

fn text(word: &Word) -> &str {
    std::str::from_utf8(&word.text).unwrap_or_default()
}

fn takes_value(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Set | ArgAction::Append)
}

/// What each word after a command's name is, as clap will take it, and what is to be added.
pub fn places(command: &Command, words: &[Word]) -> (Vec<Place>, Lacks) {
    let name = command.get_name();
    let positionals: Vec<&Arg> = command.get_positionals().collect();
    let mut places = Vec::with_capacity(words.len());
    let (mut number, mut only_positionals, mut value_of) = (0, false, None);
    let mut given: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    for word in words {
        let text = text(word);
        if let Some(option) = value_of.take() {
            places.push(of(option));
            continue;
        }
        if !only_positionals && text == "--" {
            only_positionals = true;
            places.push(Place::Other);
            continue;
        }
        if !only_positionals && text.len() > 1 && text.starts_with('-') {
            let (option, open) = option(command, text);
            given.extend(option.map(|option| option.get_id().as_str()));
            value_of = option.filter(|option| open && takes_value(option) && !option.is_require_equals_set());
            places.push(Place::Other);
            continue;
        }
        let positional = positionals.get(number.min(positionals.len().saturating_sub(1)));
        places.push(positional.map_or(Place::Other, |positional| of(positional)));
        found.push(places.len() - 1);
        if positional
            .is_some_and(|positional| positional.get_num_args().is_none_or(|range| range.max_values() == 1))
        {
            number += 1;
        }
    }
    let symbolic = name == "ln" && given.contains(&"symbolic");
    let setter = SETTERS.contains(&name) && !given.contains(&"reference");
    if let Some((last, targets)) = found.split_last().filter(|_| symbolic) {
        targets.iter().for_each(|&at| places[at] = Place::Other);
        places[*last] = Place::Path;
    }
    if let Some(&first) = found.first().filter(|_| setter) {
        places[first] = Place::Other;
    }
    let first = positionals.first().map_or("", |first| first.get_id().as_str());
    let lacks = if DEVICES.contains(&first) {
        Lacks::Device
    } else if HERE.contains(&name) && found.is_empty() {
        Lacks::Here
    } else {
        Lacks::Nothing
    };
    (places, lacks)
}

fn of(argument: &Arg) -> Place {
    if PATHS.contains(&argument.get_id().as_str()) { Place::Path } else { Place::Other }
}

/// The option that a word ends with, and whether its value would be in the next word.
fn option<'c>(command: &'c Command, text: &str) -> (Option<&'c Arg>, bool) {
    let long = |name: &str| {
        let named = |argument: &&Arg| argument.get_long() == Some(name);
        command.get_arguments().find(named)
    };
    if let Some(name) = text.strip_prefix("--") {
        return match name.split_once('=') {
            Some((name, _)) => (long(name), false),
            None => (long(name), true),
        };
    }
    let mut letters = text.chars().skip(1).peekable();
    let mut last = None;
    while let Some(letter) = letters.next() {
        last = command.get_arguments().find(|argument| argument.get_short() == Some(letter));
        if last.is_some_and(takes_value) {
            return (last, letters.peek().is_none());
        }
    }
    (last, false)
}

#[cfg(test)]
mod tests {
    use super::super::words::split;
    use super::*;
    use crate::command::Cli;
    use crate::examples::cli;

    fn marked(line: &str) -> (String, Lacks) {
        let command = cli::<Cli>();
        let words = split(line.as_bytes()).unwrap();
        let command = command.find_subcommand(text(&words[0])).unwrap();
        let (places, lacks) = places(command, &words[1..]);
        let letters = places.iter().map(|place| if *place == Place::Path { 'p' } else { '.' });
        (letters.collect(), lacks)
    }

    #[test]
    fn paths_are_known_among_the_words() {
        let line = |line: &str| marked(line).0;
        assert_eq!(line("ls -l a b"), ".pp");
        assert_eq!(line("find a --name a b"), "p..p");
        assert_eq!(line("find --name=a a"), ".p");
        assert_eq!(line("du -d 1 a"), "..p");
        assert_eq!(line("du -d1 a"), ".p");
        assert_eq!(line("du -hd 1 a"), "..p");
        assert_eq!(line("cp -rt dir a b"), ".ppp");
        assert_eq!(line("chmod -R 755 a b"), "..pp");
        assert_eq!(line("chmod --reference x a"), ".pp");
        assert_eq!(line("ln -s a b"), "..p");
        assert_eq!(line("ln a b"), "pp");
        assert_eq!(line("rm -- -a"), ".p");
        assert_eq!(line("export a out.tar --diff b"), "p..p");
        assert_eq!(line("truncate -s 0 a"), "..p");
        assert_eq!(line("prepare a 1m"), "p.");
        assert_eq!(line("xattr a --set user.x=y"), "p..");
        assert_eq!(line("fallocate -o 1m -l 4m a"), "....p");
    }

    #[test]
    fn devices_and_directories_are_added() {
        let lacks = |line: &str| marked(line).1;
        assert_eq!([lacks("info"), lacks("df -h"), lacks("quota -u 5")], [Lacks::Device; 3]);
        assert_eq!([lacks("ls"), lacks("find --name x"), lacks("du -h")], [Lacks::Here; 3]);
        assert_eq!([lacks("ls a"), lacks("cat a"), lacks("stat a")], [Lacks::Nothing; 3]);
    }
}
