//! The prompt: history, and completion of commands and of names inside the volume.

use super::own::NAMES;
use super::words::quoted;
use super::{Ended, OUTSIDE, Shell};
use crate::error::CliError;
use crate::text;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};
use std::cell::RefCell;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;

/// Names that are offered, at most.
const OFFERED_MAX: usize = 1000;

/// Completes a word: the first one to a command, the others to names of the volume.
struct Completion<'s, 'a>(Rc<RefCell<&'s mut Shell<'a>>>);

impl Helper for Completion<'_, '_> {}
impl Hinter for Completion<'_, '_> {
    type Hint = String;
}
impl Highlighter for Completion<'_, '_> {}
impl Validator for Completion<'_, '_> {}

impl Completer for Completion<'_, '_> {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let start = word_start(&line[..at]);
        let word = &line[start..at];
        let Ok(shell) = self.0.try_borrow() else { return Ok((start, Vec::new())) };
        let first = line[..start].trim().is_empty();
        Ok((start, if first { commands(&shell, word) } else { names(&shell, word) }))
    }
}

/// Where the last word of a line begins.
fn word_start(line: &str) -> usize {
    let mut start = 0;
    let mut escaped = false;
    for (at, letter) in line.char_indices() {
        if letter == ' ' && !escaped {
            start = at + 1;
        }
        escaped = letter == '\\' && !escaped;
    }
    start
}

fn commands(shell: &Shell<'_>, word: &str) -> Vec<Pair> {
    let known = shell.commands.get_subcommands().map(clap::Command::get_name);
    let mut names: Vec<&str> = known.filter(|name| !OUTSIDE.contains(name)).chain(NAMES).collect();
    names.sort_unstable();
    let matching = names.into_iter().filter(|name| name.starts_with(word));
    matching.map(|name| Pair { display: name.to_owned(), replacement: format!("{name} ") }).collect()
}

fn names(shell: &Shell<'_>, word: &str) -> Vec<Pair> {
    let plain: String = word.replace('\\', "");
    let cut = plain.rfind('/').map_or(0, |slash| slash + 1);
    let (directory, begun) = plain.split_at(cut);
    let found = shell.names(directory.as_bytes()).unwrap_or_default();
    let matching = found.into_iter().filter(|(name, _)| name.starts_with(begun.as_bytes()));
    let pairs = matching.filter_map(|(name, is_directory)| {
        let end = if is_directory { "/" } else { " " };
        // A line is text: other names can be matched by a pattern.
        let replacement = String::from_utf8(quoted(&[directory.as_bytes(), &name].concat())).ok()?;
        Some(Pair { display: text::visible(&name), replacement: format!("{replacement}{end}") })
    });
    pairs.take(OFFERED_MAX).collect()
}

/// Where the history is kept: `$XDG_STATE_HOME/uext4/history`, or below `~/.local/state`.
fn history() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    let folder = state.or_else(home)?.join("uext4");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join("history"))
}

/// Reads lines until the end of the input.
pub fn run(shell: &mut Shell<'_>) -> Result<(), CliError> {
    let refused = |error: ReadlineError| match error {
        ReadlineError::Io(error) => CliError::host("terminal".as_ref(), "read", &error),
        error => CliError::host("terminal".as_ref(), "read", &io::Error::other(error.to_string())),
    };
    let config = Config::builder().completion_type(CompletionType::List).auto_add_history(true).build();
    let mut editor = Editor::<Completion<'_, '_>, FileHistory>::with_config(config).map_err(refused)?;
    let device = text::visible(shell.args.device.as_bytes());
    let shell = Rc::new(RefCell::new(shell));
    editor.set_helper(Some(Completion(shell.clone())));
    let history = history();
    if let Some(history) = &history {
        // There is none before the first prompt.
        let _none_yet = editor.load_history(history);
    }
    loop {
        let here = text::visible(&shell.borrow().here);
        let line = match editor.readline(&format!("{device}:{here}> ")) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(refused(error)),
        };
        if shell.borrow_mut().line(line.as_bytes()) == Ended::Exit {
            break;
        }
    }
    if let Some(history) = &history {
        // A history that cannot be kept is no reason to fail.
        let _not_kept = editor.save_history(history);
    }
    Ok(())
}
