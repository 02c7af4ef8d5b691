//! Contents that cannot be read later where they are: in one temporary file that has no name.

use super::error::GatherCause;
use super::input::Input;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

/// Bytes written at once.
const STEP: usize = 1 << 20;

pub struct Spool {
    file: Arc<File>,
    /// Written, with what is still in memory.
    end: u64,
    pending: Vec<u8>,
    /// Called with bytes that were written.
    advance: Option<Advance>,
}

/// Hears of bytes as they are done.
pub type Advance = Arc<dyn Fn(u64) + Send + Sync>;

impl Spool {
    pub fn new(directory: &Path, advance: Option<Advance>) -> Result<Spool, GatherCause> {
        let file = unnamed(directory).map_err(GatherCause::io("make a temporary file"))?;
        Ok(Spool { file: Arc::new(file), end: 0, pending: Vec::with_capacity(STEP), advance })
    }

    pub fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    /// Adds the next bytes of an input. Returns where they are.
    pub fn add(&mut self, input: &mut Input<'_>, bytes: u64) -> Result<u64, GatherCause> {
        let at = self.end;
        let mut left = bytes;
        while left > 0 {
            let next = input.next(left)?;
            self.pending.extend_from_slice(next);
            left -= next.len() as u64;
            self.end += next.len() as u64;
            if self.pending.len() >= STEP {
                self.flush()?;
            }
        }
        Ok(at)
    }

    pub fn flush(&mut self) -> Result<(), GatherCause> {
        let written = (&*self.file).write_all(&self.pending);
        if let Some(advance) = &self.advance {
            advance(self.pending.len() as u64);
        }
        self.pending.clear();
        written.map_err(GatherCause::io("write to the temporary file"))
    }
}

/// A file that disappears with its descriptor.
fn unnamed(directory: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC | OFlags::EXCL;
    match rustix::fs::openat(CWD, directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => return Ok(file.into()),
        // Not on all file systems.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    for number in 0..1000 {
        let name = directory.join(format!(".uext4-{}-{number}", std::process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).open(&name) {
            Ok(file) => return std::fs::remove_file(&name).map(|()| file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
