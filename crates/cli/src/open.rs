//! Parses arguments to targets and opens every volume and file.

use crate::args::{DETERMINISTIC, FIXED_TIME, Globals, JOURNAL, OVERLAY, Watchers};
use crate::error::{self, CliError};
use crate::moment;
use crate::out::Out;
use crate::session::Session;
use clap::ArgMatches;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4::device::{self, Device};
use uext4::{DeviceSpec, File, OpenOptions, Switches, Target, Time, Timestamp, Volume, VolumeOptions};

/// A parsed `DEVICE:/path` argument.
#[derive(Debug, Clone)]
pub struct Operand {
    /// The argument as typed, for messages.
    pub argument: OsString,
    /// The device.
    pub spec: DeviceSpec,
    /// The path inside the volume, bytes with the leading `/`.
    pub path: Vec<u8>,
    /// The argument as a prefix of names: with `:/` appended if no path was typed.
    named: Vec<u8>,
}

impl Operand {
    /// An argument that must name something inside a volume.
    pub fn parse(argument: &OsStr) -> Result<Self, CliError> {
        let target = target(argument)?;
        let Some(path) = target.path else {
            return Err(CliError::usage(format!(
                "`{}` names no file: write DEVICE:/path",
                crate::text::visible(argument.as_bytes())
            )));
        };
        Ok(Operand {
            argument: argument.to_owned(),
            spec: target.spec,
            path,
            named: argument.as_bytes().to_vec(),
        })
    }

    /// Arguments that need no path inside: see [`Operand::parse_or_root`].
    pub fn all(arguments: &[OsString]) -> Result<Vec<Self>, CliError> {
        arguments.iter().map(|argument| Self::parse_or_root(argument)).collect()
    }

    /// An argument without a path means the root directory.
    pub fn parse_or_root(argument: &OsStr) -> Result<Self, CliError> {
        let target = target(argument)?;
        let mut named = argument.as_bytes().to_vec();
        let path = target.path.unwrap_or_else(|| {
            named.extend_from_slice(b":/");
            b"/".to_vec()
        });
        Ok(Operand { argument: argument.to_owned(), spec: target.spec, path, named })
    }

    /// The inner path for the library.
    pub fn inner(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }

    /// The path in the volume of something below the operand.
    pub fn inside(&self, relative: &[u8]) -> Vec<u8> {
        let start = self.path.len() - self.path.iter().rev().take_while(|&&byte| byte == b'/').count();
        let mut path = self.path[..start].to_vec();
        if !relative.is_empty() || path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(relative);
        path
    }

    /// The name of something below the operand, usable as an argument: the argument followed by the relative path.
    pub fn below(&self, relative: &[u8]) -> OsString {
        OsString::from_vec([&self.named, self.separator(relative), relative].concat())
    }

    /// The name of another path of the same volume, usable as an argument.
    pub fn beside(&self, path: &[u8]) -> OsString {
        let typed = self.argument.as_bytes();
        let device = typed.strip_suffix(&self.path[..]).unwrap_or(typed);
        OsString::from_vec([device, path].concat())
    }

    /// Prints that name.
    pub fn print_below(&self, out: &mut Out, relative: &[u8]) -> Result<(), CliError> {
        out.name(&self.named)?;
        out.name(self.separator(relative))?;
        out.name(relative)
    }

    /// Same, as raw bytes for a program.
    pub fn print_below_raw(&self, out: &mut Out, relative: &[u8]) -> Result<(), CliError> {
        out.bytes(&self.named)?;
        out.bytes(self.separator(relative))?;
        out.bytes(relative)
    }

    /// The separator between the argument and a path below it.
    fn separator(&self, relative: &[u8]) -> &'static [u8] {
        if relative.is_empty() || self.named.ends_with(b"/") { b"" } else { b"/" }
    }

    /// The library's error for this operand.
    pub fn error(&self, error: impl Into<uext4::Error>) -> CliError {
        CliError::at(&self.argument, error)
    }

    /// Opens the volume.
    pub fn volume(&self, how: &OpenHow<'_>) -> Result<Volume, CliError> {
        how.open_volume(&self.spec).map_err(|error| self.error(error))
    }

    /// Opens the file for reading.
    pub fn file(&self, volume: &Volume) -> Result<File, CliError> {
        volume
            .open_file(self.inner(), OpenOptions::new().read(true).direct(true))
            .map_err(|error| self.error(error))
    }
}

/// Attributes of a created file: owned by the user who runs this, with the mode that a shell would give.
pub fn creating(globals: &Globals, options: OpenOptions) -> OpenOptions {
    let (uid, gid) = owner(globals);
    options.create(true).mode(0o666 & !umask(globals)).owner(uid, gid)
}

/// User and group of what a command creates: those of this process, or root's if it must not matter who runs it.
pub fn owner(globals: &Globals) -> (u32, u32) {
    match globals.fixed {
        Some(_) => (0, 0),
        None => (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
    }
}

/// The permission bits that what a command creates does not get.
pub fn umask(globals: &Globals) -> u32 {
    if globals.fixed.is_some() { 0o022 } else { process_umask() }
}

/// Where the clock of the volumes stands that a command changes: `None` unless it is deterministic.
pub fn fixed_time(matches: &ArgMatches, session: Option<&Session>) -> Result<Option<Timestamp>, CliError> {
    let asked = matches.try_get_one::<bool>(DETERMINISTIC).ok().flatten().copied().unwrap_or_default();
    match session {
        Some(_) if asked => {
            Err(CliError::usage("--deterministic holds for a whole shell: give it to `shell`"))
        }
        Some(session) => Ok(session.open().fixed_time()),
        None if asked => {
            let time = matches.try_get_one::<Time>(FIXED_TIME).ok().flatten().copied();
            moment::fixed(time).map(Some).map_err(CliError::usage)
        }
        None => Ok(None),
    }
}

/// The permission bits that this process does not give.
pub fn process_umask() -> u32 {
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    umask.bits()
}

/// Parses a device without a path inside.
pub fn device(argument: &OsStr) -> Result<DeviceSpec, CliError> {
    let target = target(argument)?;
    match target.path {
        None => Ok(target.spec),
        Some(_) => {
            let hint = error::scheme_misspelt(argument).map_or_else(String::new, |meant| {
                format!(" (did you mean {}?)", crate::text::visible(&meant))
            });
            Err(CliError::usage(format!(
                "`{}`: expected a device, without `:/path`{hint}",
                crate::text::visible(argument.as_bytes())
            )))
        }
    }
}

/// The devices that `--journal` names.
pub fn journals(matches: &ArgMatches) -> Result<Vec<DeviceSpec>, CliError> {
    let given = matches.try_get_many::<OsString>(JOURNAL).ok().flatten();
    given.into_iter().flatten().map(|given| self::device(given)).collect()
}

/// The absolute path of the file that `--overlay` names. `specs`: the devices of the command.
pub fn overlay(matches: &ArgMatches, specs: &[DeviceSpec]) -> Result<Option<PathBuf>, CliError> {
    let given = matches.try_get_one::<PathBuf>(OVERLAY).ok().flatten();
    let Some(file) = given else { return Ok(None) };
    if specs.iter().any(|spec| spec.options.overlay.is_some()) {
        return Err(CliError::usage("--overlay, and a device with ?overlay=: one of them"));
    }
    if specs.iter().any(|spec| *spec != specs[0]) {
        let hint = "--overlay is about one device: write DEVICE?overlay=FILE for each of several";
        return Err(CliError::usage(hint));
    }
    let absolute = std::path::absolute(file);
    absolute.map(Some).map_err(|error| CliError::host(file.as_os_str(), "resolve", &error))
}

fn target(argument: &OsStr) -> Result<Target, CliError> {
    Target::parse_bytes(argument.as_bytes()).map_err(|error| match error::slash_forgotten(argument) {
        Some(meant) => CliError::usage(format!(
            "`{}` names no file: paths inside a volume begin with a slash (did you mean {}?)",
            crate::text::visible(argument.as_bytes()),
            crate::text::visible(&meant)
        )),
        None => CliError::at(argument, error),
    })
}

/// How this command opens volumes.
#[derive(Clone, Copy)]
pub struct OpenHow<'g> {
    /// Open for writing.
    pub write: bool,
    /// Read even if another process uses the device.
    pub force: bool,
    /// The optimisations that are on.
    pub switches: Switches,
    /// The command's globals: the tracer of its devices, and how it warns.
    pub globals: &'g Globals,
    /// Maximum bytes of metadata cached; by default the library decides.
    pub metadata_budget: Option<u64>,
    /// Whether a thread of the volume writes home what buffered writes left.
    pub background: bool,
}

/// Enough for a walk, which reads no block twice.
const WALK_BUDGET: u64 = 16 << 20;

impl<'g> OpenHow<'g> {
    /// Read only.
    pub fn reading(globals: &'g Globals, force: bool, switches: Switches) -> Self {
        OpenHow { write: false, force, switches, globals, metadata_budget: None, background: false }
    }

    /// Read only, for walking over a whole tree.
    pub fn walking(globals: &'g Globals, force: bool, switches: Switches) -> Self {
        OpenHow { metadata_budget: Some(WALK_BUDGET), ..Self::reading(globals, force, switches) }
    }

    /// Opens the volume on `spec`: every command uses this. A tracer sits between the volume and the device, and so
    /// sees metadata, data and flushes alike. Warns if the journal could not be fully replayed, so that an older state
    /// is shown, and if group descriptors are damaged.
    pub fn open_volume(&self, spec: &DeviceSpec) -> Result<Volume, uext4::Error> {
        if let Some(session) = self.session(spec) {
            return session.volume(self.write);
        }
        let volume = self.open_named(self.open_device(spec)?, &spec.to_string())?;
        let info = volume.info();
        let loss = info.recovery.loss().map(|loss| format!("an older state is seen: {loss}"));
        for message in loss.into_iter().chain(info.descriptors.map(|damage| damage.to_string())) {
            let Globals { command, json, .. } = self.globals;
            error::warn(command, *json, &spec.to_string(), &message);
        }
        Ok(volume)
    }

    /// Closes a volume that [`OpenHow::open_volume`] opened, which makes all changes durable. That of a shell stays
    /// open.
    pub fn close_volume(&self, spec: &DeviceSpec, volume: Volume) -> Result<(), uext4::Error> {
        if self.is_lent(spec) { Ok(()) } else { volume.close() }
    }

    /// Whether the volume on this device is that of a shell.
    pub fn is_lent(&self, spec: &DeviceSpec) -> bool {
        self.session(spec).is_some()
    }

    /// The shell with this volume. A command with an overlay of its own does not change it.
    fn session(&self, spec: &DeviceSpec) -> Option<&Session> {
        let session = self.globals.watchers.session.as_deref();
        session.filter(|session| session.has(spec) && self.globals.overlay.is_none())
    }

    /// Opens a device, to look at it before the volume on it.
    pub fn open_device(&self, spec: &DeviceSpec) -> Result<Arc<dyn Device>, uext4::Error> {
        let Watchers { trace, rehearsal, .. } = &self.globals.watchers;
        let how = device::OpenOptions { write: self.write && rehearsal.is_none(), force: self.force };
        let spec = &self.globals.overlaid(spec);
        if how.write {
            self.globals.with_journals(VolumeOptions::read_write()).check_overlay(spec)?;
        }
        let device = device::open(spec, how)?.device;
        match (trace, rehearsal) {
            (_, Some(rehearsal)) if self.write => rehearsal.wrap(device),
            (Some(tracer), _) => Ok(tracer.wrap(device)),
            _ => Ok(device),
        }
    }

    /// Opens the volume on an open device without warnings: the caller reports what it finds.
    pub fn open_on(&self, device: Arc<dyn Device>) -> Result<Volume, uext4::Error> {
        self.open_named(device, "")
    }

    /// Journals on devices of their own. In a rehearsal, writes to them stay in memory too.
    fn with_journals(&self, options: VolumeOptions) -> Result<VolumeOptions, uext4::Error> {
        match &self.globals.watchers.rehearsal {
            Some(rehearsal) if self.write => {
                self.globals.journals.iter().try_fold(options, |options, spec| {
                    let how = device::OpenOptions { write: false, force: self.force };
                    Ok(options.journal_device(rehearsal.wrap(device::open(spec, how)?.device)?))
                })
            }
            _ => Ok(self.globals.with_journals(options)),
        }
    }

    fn open_named(&self, device: Arc<dyn Device>, name: &str) -> Result<Volume, uext4::Error> {
        let options = if self.write { VolumeOptions::read_write() } else { VolumeOptions::read_only() };
        let mut options = self.with_journals(options)?;
        options = options.force(self.force).switches(self.switches);
        options = options.background(self.background);
        if let Some(time) = self.globals.fixed {
            options = options.deterministic(time);
        }
        if let Some(bytes) = self.metadata_budget {
            options = options.metadata_budget(bytes);
        }
        let Watchers { trace, rehearsal, .. } = &self.globals.watchers;
        options = match (trace, rehearsal) {
            _ if !self.write => options,
            (_, Some(rehearsal)) => options.trace(rehearsal.listener(name.to_owned())),
            (Some(tracer), _) => options.trace(tracer.listener(name.to_owned())),
            _ => options,
        };
        let volume = Volume::open_device(device, options)?;
        if let Some(tracer) = trace {
            tracer.watch(volume.last_stats());
        }
        if let Some(rehearsal) = rehearsal.as_ref().filter(|_| self.write) {
            rehearsal.watch(name.to_owned(), volume.last_stats());
        }
        Ok(volume)
    }
}
