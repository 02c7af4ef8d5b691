//! The files of a new volume: directories, archives and images of containers, one layer over the other.

use super::{MkfsArgs, Sparse};
use crate::args::Globals;
use crate::attributes::chown;
use crate::error::{CliError, Failures};
use crate::progress::{BYTES, OPEN_ENDED, Progress};
use crate::text;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use uext4::DeviceSpec;
use uext4::Timestamp;
use uext4::device::Geometry;
use uext4::mkfs::{self, Free, Options, Source, SourceError, Tree};
use uext4_transfer::{ArchiveInput, Devices, Fakeroot, GatherOptions, Gathered, Gathering};

/// Standard input as a source.
const STDIN: &str = "-";

/// Bytes of a block of zeros that becomes a hole, unless the volume's are larger.
const BLOCK: u32 = 4096;

/// Before a folder with a container's image.
const OCI: &[u8] = b"oci:";

/// The size of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// As small as its files allow.
    Auto,
    /// In bytes.
    Bytes(u64),
}

/// `auto`, or a size with its unit.
pub fn size(text: &str) -> Result<Size, String> {
    if text == "auto" { Ok(Size::Auto) } else { super::size(text).map(Size::Bytes) }
}

/// Free space besides: a size, or percent of the volume.
pub fn free(text: &str) -> Result<Free, String> {
    let Some(percent) = text.strip_suffix('%') else { return text::parse_size(text).map(Free::Bytes) };
    let number = percent.parse().ok().filter(|percent| (0.0..100.0).contains(percent));
    number.map(Free::Percent).ok_or_else(|| format!("`{text}`: 0% to less than 100%"))
}

/// The files that a volume is to have, and their contents.
pub struct Files {
    gathered: Gathered,
    progress: Mutex<Progress>,
}

impl Files {
    /// Gathers those that `-d` names; `None` if it names none.
    ///
    /// # Errors
    /// Everything that cannot be read or is refused, each reported.
    pub fn gather(
        args: &MkfsArgs,
        spec: &DeviceSpec,
        (options, room): (&Options, Option<u64>),
        globals: &Globals,
    ) -> Result<Option<Files>, CliError> {
        if args.from.is_empty() {
            return Ok(None);
        }
        let mut how = GatherOptions {
            owner: args.owner.as_deref().map(chown::both).transpose()?,
            bytes_max: room,
            devices: Devices::of(std::slice::from_ref(spec)),
            ..GatherOptions::default()
        };
        if let Some(time) = options.time {
            how.latest = Some(time as i64);
            how.time = Timestamp { seconds: time as i64, nanoseconds: 0 };
        }
        if let Some(directory) = &args.spool {
            how.spool.clone_from(directory);
        }
        let spooling = Mutex::new(Progress::new(OPEN_ENDED, "unpacking".into(), 0, true));
        let spooled = move |bytes| spooling.lock().unwrap_or_else(PoisonError::into_inner).advance(bytes);
        how.spooled = Some(Arc::new(spooled));
        how.users.clone_from(&args.user_map);
        how.groups.clone_from(&args.group_map);
        how.platform.clone_from(&args.platform);
        if let Some(state) = &args.fakeroot {
            let read = Fakeroot::read(state).map_err(|error| Refused::Inputs(error).told(globals))?;
            how.fakeroot = Some(read);
        }
        let mut gathering = Gathering::new(how);
        let mut gather = || {
            args.from.iter().try_for_each(|source| layer(&mut gathering, source))?;
            args.manifest.iter().try_for_each(|manifest| gathering.mtree(manifest)).map_err(Refused::Inputs)
        };
        let done: Result<(), Refused> = gather();
        let gathered = done.and_then(|()| gathering.finish().map_err(Refused::Inputs));
        let mut gathered = gathered.map_err(|refused| refused.told(globals))?;
        if args.sparse == Some(Sparse::Always) {
            let block = options.block_size.unwrap_or(BLOCK).max(BLOCK);
            gathered.make_holes(block.into()).map_err(|refused| Refused::Inputs(refused).told(globals))?;
        }
        let label = text::visible(args.device.as_bytes());
        let progress = Progress::new(BYTES, label, gathered.data, true);
        Ok(Some(Files { gathered, progress: Mutex::new(progress) }))
    }

    /// The tree.
    pub fn tree(&self) -> &Tree {
        &self.gathered.tree
    }

    /// The same, to be changed.
    pub fn tree_mut(&mut self) -> &mut Tree {
        &mut self.gathered.tree
    }

    /// The options with the size of the smallest volume, if that is asked for.
    pub fn sized(&self, args: &MkfsArgs, device: Geometry, options: Options) -> mkfs::Result<Options> {
        if !args.is_auto() {
            return Ok(options);
        }
        mkfs::smallest(device, &options, self.tree(), args.free.unwrap_or(Free::Bytes(0)))
    }
}

impl Source for Files {
    fn read(&self, key: u64, pos: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        self.gathered.read(key, pos, buffer)
    }

    fn advance(&self, bytes: u64) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).advance(bytes);
    }
}

/// Why there are no files.
enum Refused {
    Usage(CliError),
    Inputs(uext4_transfer::Failures),
}

impl Refused {
    /// Reports all reasons.
    fn told(self, globals: &Globals) -> CliError {
        let inputs = match self {
            Refused::Usage(error) => return error,
            Refused::Inputs(inputs) => inputs,
        };
        let mut failures: Failures<'_> = globals.failures();
        let tell = |error: &uext4_transfer::GatherError| {
            failures.tell(&CliError::failed(OsStr::new(""), error.to_string(), error.errno()));
        };
        inputs.errors.iter().for_each(tell);
        if inputs.more > 0 {
            let more = format!("{} more files cannot be used", inputs.more);
            failures.tell(&CliError::failed(OsStr::new(""), more, inputs.errno()));
        }
        CliError::Told
    }
}

/// Adds what one `-d` names.
fn layer(gathering: &mut Gathering, source: &OsString) -> Result<(), Refused> {
    let host = |action, error: io::Error| Refused::Usage(CliError::host(source, action, &error));
    let path = Path::new(source);
    if source == STDIN {
        let stdin = io::stdin().as_fd().try_clone_to_owned();
        let stdin = File::from(stdin.map_err(|error| host("duplicate", error))?);
        let name = Path::new("standard input");
        return gathering.archive(name, ArchiveInput::File(stdin)).map_err(Refused::Inputs);
    }
    if let Some(image) = source.as_bytes().strip_prefix(OCI) {
        // A folder's name may have a colon: the last one is before the tag.
        let cut = image
            .iter()
            .rposition(|&byte| byte == b':')
            .filter(|_| !Path::new(OsStr::from_bytes(image)).is_dir());
        let (folder, tag) = cut.map_or((image, None), |cut| (&image[..cut], Some(&image[cut + 1..])));
        let tag = tag.map(std::str::from_utf8).transpose();
        let tag = tag.map_err(|_| Refused::Usage(CliError::usage("an image's tag is text")))?;
        return gathering.oci(Path::new(OsStr::from_bytes(folder)), tag).map_err(Refused::Inputs);
    }
    if std::fs::metadata(path).map_err(|error| host("open", error))?.is_dir() {
        return gathering.host(path).map_err(Refused::Inputs);
    }
    let file = File::open(path).map_err(|error| host("open", error))?;
    gathering.archive(path, ArchiveInput::File(file)).map_err(Refused::Inputs)
}
