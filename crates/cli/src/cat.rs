//! `uext4 cat`.

use crate::args::{ForceArgs, Globals, JsonArgs, SwitchArgs};
use crate::error::{CliError, Troubles, told};
use crate::open::{How, Place};
use crate::progress::Progress;
use clap::{Args, ValueHint};
use std::ffi::{OsStr, OsString};
use std::fs::File as HostFile;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use uext4::blockdev::spec::Locator;
use uext4::{DeviceSpec, Volume};

/// `uext4 cat`.
#[derive(Args)]
pub struct CatArgs {
    /// The files.
    #[arg(value_name = "DEVICE:/path", required = true, value_hint = ValueHint::FilePath)]
    pub places: Vec<OsString>,
    /// How to open.
    #[command(flatten)]
    pub force: ForceArgs,
    /// How to read.
    #[command(flatten)]
    pub switches: SwitchArgs,
    /// In which form.
    #[command(flatten)]
    pub form: JsonArgs,
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
            let mut progress = Progress::new(crate::text::visible(&place.path), file.size(), to_file);
            let advance = &mut |bytes| progress.advance(bytes);
            let done = uext4_transfer::stream(&volume, &file, &stdout, Path::new(name), advance);
            done.map_err(|error| told(error, |path| place.below(path)))
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
