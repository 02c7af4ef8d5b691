//! Fits help to the terminal: rewraps the texts beside the options, and breaks lines wider than the terminal.

use clap::builder::StyledStr;
use std::io;

/// Columns if the width is unknown.
const COLUMNS: usize = 80;
/// Narrower terminals are treated as this wide.
const COLUMNS_MIN: usize = 40;
/// Adjacent lines indented at least this far form one paragraph.
const DEEP: usize = 6;

/// Columns for help: `COLUMNS`, or the width of the output terminal; otherwise 80.
pub fn columns() -> usize {
    let told = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok());
    let told = told.filter(|&columns| columns > 0);
    // Fails if the output is not a terminal.
    let terminal = || rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    let columns = told.or_else(terminal).filter(|&columns| columns > 0);
    columns.unwrap_or(COLUMNS).max(COLUMNS_MIN)
}

/// `command` and its subcommands, laid out for this many columns.
pub fn laid_out(command: clap::Command, columns: usize) -> clap::Command {
    let again = |text: Option<&StyledStr>| text.map(|text| lay_out(&text.to_string(), columns));
    let (short, long) = (again(command.get_after_help()), again(command.get_after_long_help()));
    let command = command.term_width(columns);
    let command = if let Some(text) = short { command.after_help(text) } else { command };
    let command = if let Some(text) = long { command.after_long_help(text) } else { command };
    command.mut_subcommands(|inner| laid_out(inner, columns))
}

/// Breaks lines that are too long: the rest goes below, indented a little further.
pub fn fit(text: &str, columns: usize) -> String {
    let mut fitted = String::with_capacity(text.len() + text.len() / 16);
    for line in text.lines() {
        let line = line.trim_end();
        if width(line) <= columns {
            push_line(&mut fitted, line);
        } else {
            wrap(&mut fitted, line, hanging(line), columns);
        }
    }
    fitted
}

/// Rewraps each paragraph of `text`. An indented line is its own paragraph, or joins the lines above it with the same
/// indentation.
fn lay_out(text: &str, columns: usize) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 16);
    let mut paragraph = String::new();
    for line in text.lines() {
        let (depth, above) = (indentation(line), indentation(&paragraph));
        let goes_on = !line.is_empty() && !paragraph.is_empty() && depth == above;
        if goes_on && (depth == 0 || depth >= DEEP) {
            paragraph.push(' ');
            paragraph.push_str(line.trim());
            continue;
        }
        end_paragraph(&mut out, &mut paragraph, columns);
        if line.is_empty() {
            out.push('\n');
        }
        paragraph.push_str(line);
    }
    end_paragraph(&mut out, &mut paragraph, columns);
    out.truncate(out.trim_end().len());
    out
}

fn end_paragraph(out: &mut String, paragraph: &mut String, columns: usize) {
    if !paragraph.is_empty() {
        wrap(out, paragraph, hanging(paragraph), columns);
        paragraph.clear();
    }
}

/// Where the second line of a paragraph begins: below the second column of a table, or a little further in.
fn hanging(line: &str) -> usize {
    let depth = indentation(line);
    let rest = &line[depth..];
    match rest.find("  ").map(|at| (at, rest[at..].len() - rest[at..].trim_start().len())) {
        Some((at, blanks)) => depth + width(&rest[..at]) + blanks,
        None if depth == 0 || depth >= DEEP => depth,
        None => depth + 4,
    }
}

/// Wraps the words of `line` at this many columns; lines after the first begin at `hanging`. The blanks between words
/// stay.
fn wrap(out: &mut String, line: &str, hanging: usize, columns: usize) {
    // Ignore a column that leaves no room.
    let hanging = if hanging * 2 > columns { indentation(line).min(columns / 4) + 2 } else { hanging };
    let depth = indentation(line).min(columns / 2);
    let mut current = " ".repeat(depth);
    let mut blanks = 0;
    let mut empty = true;
    for word in line.trim_start().split(' ') {
        if word.is_empty() {
            blanks += 1;
            continue;
        }
        if !empty && width(&current) + blanks + width(word) > columns {
            push_line(out, &current);
            current = " ".repeat(hanging);
            empty = true;
        }
        if !empty {
            current.push_str(&" ".repeat(blanks));
        }
        current.push_str(word);
        (empty, blanks) = (false, 1);
    }
    push_line(out, &current);
}

fn push_line(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_and_tables_are_laid_out_again() {
        let text =
            "One two three four\nfive six.\n\nTable:\n  a      the first of them\n  b      the second\n";
        let narrow = "One two three four\nfive six.\n\nTable:\n  a      the first\n         of them\n  b      \
                      the\n         second";
        assert_eq!(lay_out(text, 18), narrow);
        let wide = "One two three four five six.\n\nTable:\n  a      the first of them\n  b      the second";
        assert_eq!(lay_out(text, 80), wide);
        let deep = "  word\n      says\n      more\n";
        assert_eq!(lay_out(deep, 80), "  word\n      says more");
    }

    #[test]
    fn long_lines_are_broken_at_words() {
        assert_eq!(fit("short\n  one two three four\n", 12), "short\n  one two\n      three\n      four\n");
        assert_eq!(fit("unbreakable-word\n", 8), "unbreakable-word\n");
    }
}
