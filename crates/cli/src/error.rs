//! Why a command failed, and how that is reported.

use crate::text;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use uext4::device::{closest_scheme, describe};
use uext4_transfer::{Cause, Subject};

/// How a command failed.
#[derive(Debug)]
pub enum CliError {
    /// Bad usage: exit 2.
    Usage(String),
    /// It failed: exit 1.
    Failed(Box<Failure>),
    /// It failed, and each failure was already reported: exit 1.
    Told,
    /// The reader closed standard output: stop quietly.
    ClosedPipe,
}

/// What failed, where.
#[derive(Debug)]
pub struct Failure {
    /// The argument or file concerned. Empty if the message names it.
    pub path: OsString,
    /// The reason, one sentence.
    pub message: String,
    /// The error number.
    pub errno: i32,
    /// The block of the volume concerned.
    pub block: Option<u64>,
    /// The inode concerned.
    pub inode: Option<u32>,
}

impl CliError {
    /// Bad usage.
    pub fn usage(message: impl Into<String>) -> Self {
        CliError::Usage(message.into())
    }

    /// The library's error for `path`. A malformed device is bad usage.
    pub fn at(path: &OsStr, error: impl Into<uext4::Error>) -> Self {
        let error = error.into();
        if error.is_usage() {
            return CliError::Usage(error.to_string());
        }
        let message = error.to_string();
        // The argument already names the device.
        let named = match &error {
            uext4::Error::Io(failed) => match &**failed {
                uext4::device::Error::Open { path: device, .. }
                | uext4::device::Error::Remote { device, .. } => Some(format!("{device}: ")),
                _ => None,
            },
            _ => None,
        };
        let opened = named.is_some();
        let shown = path.to_string_lossy();
        let told = named.filter(|named| shown.contains(named.trim_end_matches(": ")));
        let message = told.and_then(|named| message.strip_prefix(&named)).unwrap_or(&message).to_owned();
        let meant = if opened && error.errno() == libc::ENOENT { meant(path) } else { None };
        let message = match meant {
            Some(meant) => format!("{message} (did you mean {}?)", text::visible(&meant)),
            None => message,
        };
        CliError::Failed(Box::new(Failure {
            path: path.to_owned(),
            message,
            errno: error.errno(),
            block: error.block(),
            inode: error.inode(),
        }))
    }

    /// The system's error for a path of the host.
    pub fn host(path: &OsStr, action: &str, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return CliError::ClosedPipe;
        }
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        CliError::failed(path, format!("{action}: {}", describe(error)), errno)
    }

    /// A failure with its own message.
    pub fn failed(path: &OsStr, message: impl Into<String>, errno: i32) -> Self {
        CliError::Failed(Box::new(Failure {
            path: path.to_owned(),
            message: message.into(),
            errno,
            block: None,
            inode: None,
        }))
    }

    /// A failure whose message names everything concerned.
    pub fn said(message: impl Into<String>, errno: i32) -> Self {
        CliError::failed(OsStr::new(""), message, errno)
    }

    /// Same, for one attribute.
    pub fn about_attribute(mut self, name: &[u8]) -> Self {
        if let CliError::Failed(failure) = &mut self {
            failure.message = format!("attribute {}: {}", text::visible(name), failure.message);
        }
        self
    }

    /// Same, with `more` appended to the message.
    pub fn with(mut self, more: &str) -> Self {
        if let CliError::Failed(failure) = &mut self {
            failure.message = format!("{}; {more}", failure.message);
        }
        self
    }

    /// Same, after part of the work: appends that `bytes` bytes were `done`, unless there are none.
    pub fn after(mut self, done: &str, bytes: u64, of: u64) -> Self {
        if let CliError::Failed(failure) = &mut self
            && bytes > 0
        {
            failure.message = format!("{}; {bytes} of {of} bytes were {done} before", failure.message);
        }
        self
    }

    /// An unsupported operation.
    pub fn unsupported(path: &OsStr, message: impl Into<String>) -> Self {
        CliError::failed(path, message, libc::EOPNOTSUPP)
    }

    /// Whether it concerns this path.
    pub fn is_about(&self, path: &OsStr) -> bool {
        matches!(self, CliError::Failed(failure) if failure.path == path)
    }

    /// Whether the other sources of the command must fail too: the usage is wrong, the output was closed, or the
    /// destination directory has moved away.
    pub fn ends_all(&self) -> bool {
        match self {
            CliError::Usage(_) | CliError::ClosedPipe => true,
            CliError::Failed(failure) => failure.errno == libc::ESTALE,
            CliError::Told => false,
        }
    }

    /// Reports it; returns the exit status.
    pub fn end(&self, command: Option<&str>, json: bool) -> ExitCode {
        self.report(command, json);
        match self {
            CliError::Usage(_) => ExitCode::from(2),
            CliError::Failed(_) | CliError::Told => ExitCode::FAILURE,
            CliError::ClosedPipe => ExitCode::SUCCESS,
        }
    }

    /// `PATH: reason` on one line.
    pub fn line(&self) -> String {
        match self {
            CliError::Usage(message) => text::one_line(message),
            CliError::Failed(failure) if failure.path.is_empty() => text::one_line(&failure.message),
            CliError::Failed(failure) => {
                format!("{}: {}", text::visible(failure.path.as_bytes()), text::one_line(&failure.message))
            }
            CliError::Told => "failures were already reported".into(),
            CliError::ClosedPipe => "standard output was closed".into(),
        }
    }

    /// Reports it on standard error: one line, or one JSON object.
    pub fn report(&self, command: Option<&str>, json: bool) {
        if matches!(self, CliError::ClosedPipe | CliError::Told) {
            return;
        }
        let program = command.map_or_else(|| "uext4".into(), |command| format!("uext4 {command}"));
        tell(&if json { self.to_json() } else { format!("{program}: {}", self.line()) });
    }

    fn to_json(&self) -> String {
        text::json_line(&match self {
            CliError::Failed(failure) => {
                let (path, path_b64) = text::utf8_or_base64(failure.path.as_bytes());
                let path = path.filter(|path| !path.is_empty());
                let &Failure { errno, block, inode, .. } = &**failure;
                JsonError { error: &failure.message, errno, path, path_b64, block, inode }
            }
            CliError::Usage(error) => JsonError { error, errno: libc::EINVAL, ..JsonError::default() },
            CliError::ClosedPipe | CliError::Told => JsonError { errno: libc::EPIPE, ..JsonError::default() },
        })
    }
}

/// One line on standard error.
fn tell(line: &str) {
    // If standard error is closed, the exit status still tells.
    let _nobody_listens = writeln!(io::stderr(), "{line}");
}

/// Prints a warning about `path` on standard error: one line, or one JSON object.
pub fn warn(command: &str, json: bool, path: &str, message: &str) {
    let warning = &text::one_line(message);
    tell(&if json {
        text::json_line(&JsonWarning { warning, path })
    } else {
        format!("uext4 {command}: warning: {}: {warning}", text::visible(path.as_bytes()))
    });
}

/// Failures that do not end the command: each is reported when it happens, and sets the exit status.
pub struct Failures<'g> {
    command: &'g str,
    json: bool,
    any: bool,
}

impl<'g> Failures<'g> {
    /// For this command.
    pub fn new(command: &'g str, json: bool) -> Self {
        Failures { command, json, any: false }
    }

    /// Reports one.
    pub fn tell(&mut self, error: &CliError) {
        self.any = true;
        error.report(Some(self.command), self.json);
    }

    /// The result for one of `sources` sources. With several, a failure is reported and returns `None` so that the
    /// others go on, unless it ends them all.
    pub fn one_of<T>(&mut self, sources: usize, done: Result<T, CliError>) -> Result<Option<T>, CliError> {
        match done {
            Err(error) if sources > 1 && !error.ends_all() => {
                self.tell(&error);
                Ok(None)
            }
            done => done.map(Some),
        }
    }

    /// The end of the command.
    pub fn finish(self) -> Result<(), CliError> {
        if self.any { Err(CliError::Told) } else { Ok(()) }
    }
}

#[derive(Serialize, Default)]
struct JsonError<'a> {
    error: &'a str,
    errno: i32,
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    block: Option<u64>,
    inode: Option<u32>,
}

#[derive(Serialize)]
struct JsonWarning<'a> {
    warning: &'a str,
    path: &'a str,
}

/// A failure as this program reports it. `named` names a path below the source, or the destination in a volume.
pub fn told(error: uext4_transfer::Error, named: impl Fn(&[u8]) -> OsString) -> CliError {
    told_of(error, &named, &named)
}

/// The same where both may be in a volume.
pub fn told_of(
    error: uext4_transfer::Error,
    source: impl Fn(&[u8]) -> OsString,
    destination: impl Fn(&[u8]) -> OsString,
) -> CliError {
    let path = match &error.subject {
        Subject::Source(path) | Subject::Before(path) => source(path),
        Subject::Destination(path) => destination(path),
        Subject::Host(path) => path.clone().into(),
    };
    let errno = error.errno();
    let told = match error.cause {
        Cause::Volume(error) => CliError::at(&path, error),
        Cause::Host { action, error } => CliError::host(&path, action, &error),
        other => CliError::failed(&path, other.to_string(), errno),
    };
    match error.attribute {
        Some(name) => told.about_attribute(&name),
        None => told,
    }
}

/// A suggestion for an argument whose device does not exist.
fn meant(argument: &OsStr) -> Option<Vec<u8>> {
    slash_forgotten(argument).or_else(|| scheme_misspelt(argument))
}

/// `dax:/disk.img` for `dxa:/disk.img`, if there is no file `dxa`.
pub fn scheme_misspelt(argument: &OsStr) -> Option<Vec<u8>> {
    let (name, rest) =
        argument.as_bytes().split_at(argument.as_bytes().iter().position(|&byte| byte == b':')?);
    let name = std::str::from_utf8(name).ok().filter(|name| !Path::new(name).exists())?;
    let meant = closest_scheme(name).filter(|known| *known != name)?;
    Some([meant.as_bytes(), rest].concat())
}

/// `disk.img:/bash` for `disk.img:bash`, if there is a `disk.img`.
pub fn slash_forgotten(argument: &OsStr) -> Option<Vec<u8>> {
    let bytes = argument.as_bytes();
    let schemes = [&b"file:"[..], b"sync:", b"dax:", b"nvme:", b"null:"];
    let scheme = schemes.into_iter().find(|&scheme| bytes.starts_with(scheme)).map_or(0, <[u8]>::len);
    let mut colons = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':').map(|(at, _)| at);
    let at = colons.find(|&at| {
        let device =
            bytes.get(scheme..at).unwrap_or_default().split(|&byte| byte == b'?').next().unwrap_or_default();
        at + 1 < bytes.len() && Path::new(OsStr::from_bytes(device)).exists()
    })?;
    Some([&bytes[..at], b":/", &bytes[at + 1..]].concat())
}
