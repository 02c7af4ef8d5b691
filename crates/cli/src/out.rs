//! Standard output, with every write checked: a full disk is a failure, a closed pipe is the end.

use crate::error::CliError;
use serde::Serialize;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::path::Path;

/// Buffer in front of standard output, bytes.
const BUFFER: usize = 64 * 1024;

/// Buffered standard output. Call [`Out::finish`]: the write on drop is not checked.
pub struct Out {
    writer: BufWriter<StdoutLock<'static>>,
    terminal: bool,
}

impl Out {
    /// Standard output of this process.
    pub fn new() -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        Out { writer: BufWriter::with_capacity(BUFFER, stdout.lock()), terminal }
    }

    /// For `write!` and `writeln!`.
    pub fn write_fmt(&mut self, text: fmt::Arguments<'_>) -> Result<(), CliError> {
        self.writer.write_fmt(text).map_err(|error| refused(&error))
    }

    /// Writes raw bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.writer.write_all(bytes).map_err(|error| refused(&error))
    }

    /// Writes a name: raw for programs, escaped for a person.
    pub fn name(&mut self, name: &[u8]) -> Result<(), CliError> {
        if self.terminal { self.bytes(crate::text::visible(name).as_bytes()) } else { self.bytes(name) }
    }

    /// Writes one value as indented JSON with a line end.
    pub fn json<T: Serialize>(&mut self, value: &T) -> Result<(), CliError> {
        let written = serde_json::to_writer_pretty(&mut self.writer, value);
        written.map_err(|error| refused(&error.into()))?;
        self.bytes(b"\n")
    }

    /// Writes one value as JSON on a single line, without a line end.
    pub fn json_compact<T: Serialize>(&mut self, value: &T) -> Result<(), CliError> {
        serde_json::to_writer(&mut self.writer, value).map_err(|error| refused(&error.into()))
    }

    /// Flushes the buffer.
    pub fn flush(&mut self) -> Result<(), CliError> {
        self.writer.flush().map_err(|error| refused(&error))
    }

    /// Ends a line, and flushes it in case a person is waiting for it.
    pub fn line_end(&mut self) -> Result<(), CliError> {
        self.bytes(b"\n")?;
        if self.terminal { self.flush() } else { Ok(()) }
    }

    /// Flushes the rest and reports errors.
    pub fn finish(mut self) -> Result<(), CliError> {
        self.flush()
    }
}

/// Writes only these raw bytes to standard output.
pub fn print(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = Out::new();
    out.bytes(bytes)?;
    out.finish()
}

/// Redirects standard output to `file`, which is created or truncated: `--json=FILE`.
pub fn redirect(file: &Path) -> Result<(), CliError> {
    let opened = File::create(file).map_err(|error| CliError::host(file.as_os_str(), "create", &error))?;
    rustix::stdio::dup2_stdout(opened).map_err(|error| refused(&error.into()))
}

/// Writes values as JSON: a single value indented, several as an array with one per line. Not used for text.
pub struct Elements {
    several: bool,
    any: bool,
}

impl Elements {
    /// An array, or at most one value.
    pub fn new(several: bool) -> Self {
        Elements { several, any: false }
    }

    /// Writes the next value.
    pub fn element<T: Serialize>(&mut self, out: &mut Out, value: &T) -> Result<(), CliError> {
        if !self.several {
            return out.json(value);
        }
        out.bytes(if self.any { b",\n" } else { b"[\n" })?;
        self.any = true;
        out.json_compact(value)
    }

    /// Closes the array, if it is one.
    pub fn end(self, out: &mut Out) -> Result<(), CliError> {
        match (self.several, self.any) {
            (false, _) => Ok(()),
            (true, true) => out.bytes(b"\n]\n"),
            (true, false) => out.bytes(b"[]\n"),
        }
    }
}

fn refused(error: &io::Error) -> CliError {
    CliError::host(OsStr::new("standard output"), "write", error)
}
