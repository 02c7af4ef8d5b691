//! `uext4 cat`.

use crate::args::{CatArgs, Globals};
use crate::error::{CliError, Troubles};
use crate::open::{How, Place};
use crate::progress::Progress;
use crate::pump::{Sink, pour};
use std::ffi::OsStr;
use std::fs::File as HostFile;
use std::io::{self, Write};
use std::os::fd::AsFd;
use uext4::blockdev::spec::Locator;
use uext4::{DeviceSpec, Volume};

/// Zeros shorter than this are read along with the data around them.
const ZEROS_MIN: u64 = 64 << 10;
/// Zeros are written in pieces of this size.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Writes to a descriptor without a buffer of its own: what comes is a mebibyte at a time.
pub struct Stream<'a> {
    /// Where to.
    pub file: &'a HostFile,
    /// Its name in messages.
    pub name: &'a OsStr,
    /// Who is told how far it is.
    pub progress: Progress,
}

impl Sink for Stream<'_> {
    fn data(&mut self, _pos: u64, bytes: &[u8]) -> Result<(), CliError> {
        let mut file = self.file;
        file.write_all(bytes).map_err(|error| CliError::host(self.name, "write", &error))?;
        self.progress.advance(bytes.len() as u64);
        Ok(())
    }

    fn zeros(&mut self, pos: u64, length: u64) -> Result<(), CliError> {
        let mut rest = length;
        while rest > 0 {
            let step = rest.min(ZEROS.len() as u64);
            self.data(pos, &ZEROS[..step as usize])?;
            rest -= step;
        }
        Ok(())
    }
}

/// Runs it.
pub fn run(args: &CatArgs, globals: &Globals) -> Result<(), CliError> {
    let places = args.places.iter().map(|place| Place::parse(place)).collect::<Result<Vec<_>, _>>()?;
    let how = How::reading(globals, args.force.force, args.switches.switches);
    let name = OsStr::new("standard output");
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    let stdout = HostFile::from(stdout.map_err(|error| CliError::host(name, "duplicate", &error))?);
    let to_file = stdout.metadata().is_ok_and(|metadata| metadata.is_file());
    let mut volumes = Volumes::default();
    let mut troubles = Troubles::new("cat", globals.json);
    for place in &places {
        let mut one = || {
            let volume = volumes.get(place, &how)?;
            let file = place.file(&volume)?;
            let progress = Progress::new(crate::text::visible(&place.path), file.size(), to_file);
            pour(place, &volume, &file, ZEROS_MIN, &mut Stream { file: &stdout, name, progress })
        };
        let done = one();
        // What cannot be written for one source cannot be for the next.
        let sources = if done.as_ref().is_err_and(|error| error.is_about(name)) { 1 } else { places.len() };
        troubles.one_of(sources, done)?;
    }
    troubles.finish()
}

/// Volumes that are open: several files of one device share one.
#[derive(Default)]
pub struct Volumes {
    open: Vec<(DeviceSpec, Volume)>,
}

impl Volumes {
    /// The volume of a place.
    pub fn get(&mut self, place: &Place, how: &How<'_>) -> Result<Volume, CliError> {
        self.numbered(place, how).map(|(_, volume)| volume)
    }

    /// The same, and which of the volumes opened here it is.
    pub fn numbered(&mut self, place: &Place, how: &How<'_>) -> Result<(usize, Volume), CliError> {
        let mut spec = place.spec.clone();
        // However it is spelled: what cannot be found is told by the opening below.
        if let Locator::Path(path) = &mut spec.locator
            && let Ok(found) = path.canonicalize()
        {
            *path = found;
        }
        if let Some(number) = self.open.iter().position(|(open, _)| *open == spec) {
            return Ok((number, self.open[number].1.clone()));
        }
        let volume = place.volume(how)?;
        self.open.push((spec, volume.clone()));
        Ok((self.open.len() - 1, volume))
    }
}
