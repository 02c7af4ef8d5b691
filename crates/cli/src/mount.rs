//! `uext4 mount`.

pub mod helper;
mod keeper;
mod options;

use crate::args::Globals;
use crate::error::{self, CliError};
use crate::open::{OpenHow, device};
use crate::text;
use clap::{Args, ValueHint};
use keeper::Keeper;
use options::{Confine, Options};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use uext4::device::{Device, Locator, Scheme};
use uext4::{Switches, Target, Volume, VolumeOptions};
use uext4_fuse::{
    Answering, Connection, Ended, MountEntry, Needs, Sandbox, Session, Socket, Stopper, Transport,
};

/// Set in the process that serves a mount in the background.
const DAEMON: &str = "UEXT4_MOUNT_DAEMON";
/// What that process says on standard output when the mount stands.
const READY: &[u8] = b"mounted\n";
/// How long the kernel may take to end a mount that nobody uses.
const END: Duration = Duration::from_secs(10);

/// `uext4 mount`.
#[derive(Args)]
#[command(after_long_help = "\
The command returns when the mount stands; a process in the background serves it. `umount DIR` (or `fusermount3 -u
DIR` as an ordinary user) ends it, and so does SIGTERM or SIGINT: all is written home then, and the volume is clean. If
the process is killed, the next use of the volume recovers it.

Options of -o, separated by commas:
  ro, rw                       read-only (nothing is written, not even by recovery), or not (the default)
  allow_other                  other users may use it, too; fusermount3 asks for user_allow_other in /etc/fuse.conf
  default_permissions          always the case: the kernel checks permissions
  noatime, relatime, strictatime
                               when reads set the time of access (default: noatime)
  commit=SECONDS               how long a change may be in memory only, without a sync (default: 5)
  threads=N                    threads that serve requests
  suid, nosuid, dev, nodev, exec, noexec
                               as of mount(8) (default: nosuid,nodev,exec)
  uid=N, gid=N                 everything seems to belong to this user, this group; owners on the volume stay
  uidmap=owner                 what belongs to the owner or the group of the volume's root directory seems to belong
                               to you, and what you make is stored as theirs
  offset=BYTES, partition=N    the part of the device that holds the volume
  sandbox=auto|require|off     the server can open no other files, run no programs and has no rights (auto: as far as
                               the kernel allows; require: it fails otherwise)
  transport=auto|dev|uring     how requests come from the kernel: through io_uring (uring), /dev/fuse (dev), or io_uring
                               if the kernel offers it (auto; `uext4 stats DIR` tells which)
  stats=SOCKET                 tell what the server counts on this socket too, for Prometheus
  sync, dirsync                every change, every change of names is durable when it returns
  errors=remount-ro, lazytime  always the case: after an error nothing is written; times alone cause no commit
  defaults, auto, noauto, user, users, nouser, group, owner, _netdev, nofail, x-..., comment=...
                               for readers of fstab
  fsname=NAME, subtype=NAME    what /proc/mounts shows: NAME instead of DEVICE, and fuse.NAME instead of fuse.uext4

syncfs(2) and sync(1) do not reach a FUSE server: what they do not make durable becomes so after commit=SECONDS.
fsync(2) does.")]
pub struct MountArgs {
    /// The device.
    #[arg(value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub device: OsString,
    /// The mount point, a directory.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    /// Serve the mount in this process, until it is unmounted.
    #[arg(short, long)]
    pub foreground: bool,
    /// The same as -o sandbox=off.
    #[arg(long)]
    pub no_sandbox: bool,
    /// The same as -o transport=.
    #[arg(long, value_name = "auto|dev|uring")]
    pub transport: Option<String>,
    /// Options, separated by commas.
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
}

/// Runs it.
pub fn run(args: &MountArgs, globals: &Globals) -> Result<(), CliError> {
    if keeper::is_one() {
        let ended = keeper::serve(&args.directory);
        return ended.map_err(|error| CliError::host(args.directory.as_os_str(), "unmount", &error));
    }
    let transport = args.transport.iter().map(|transport| format!("transport={transport}"));
    let lists: Vec<_> = transport.chain(args.options.iter().cloned()).collect();
    let mut options = Options::parse(&lists, globals.overlaid(&device(&args.device)?))?;
    if args.no_sandbox {
        options.sandbox = Confine::Off;
    }
    if globals.watchers.trace.is_some() {
        return Err(CliError::usage("mount cannot be traced"));
    }
    let daemon = std::env::var_os(DAEMON).is_some();
    if !args.foreground && !daemon {
        return in_background();
    }
    if daemon {
        // It leads a group already only if somebody else has started it so.
        let _leads = rustix::process::setsid();
    }
    let host = |path: &Path, action, error: &io::Error| CliError::host(path.as_os_str(), action, error);
    let directory = std::fs::canonicalize(&args.directory);
    let directory = directory.map_err(|error| host(&args.directory, "mount", &error))?;
    let how = OpenHow { write: options.write, ..OpenHow::reading(globals, false, Switches::ON) };
    let at = |error| CliError::at(&args.device, error);
    // A silent server may block the open for ever: until then this process ends with the command that waits for it.
    let end_with_parent = |signal| match daemon {
        true => rustix::process::set_parent_process_death_signal(signal)
            .map_err(|error| host(&directory, "mount", &error.into())),
        false => Ok(()),
    };
    end_with_parent(Some(Signal::TERM))?;
    let opened = how.open_device(&options.spec).map_err(|error| held(at(error), &options))?;
    let opened = Opened { device: opened, journals: journals(options.write, globals)?, name: &args.device };
    end_with_parent(None)?;
    let signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|error| host(&directory, "mount", &error))?;
    let keeper = if options.sandbox == Confine::Off { Ok(Keeper::Server) } else { Keeper::start(&directory) };
    let mut keeper = keeper.map_err(|error| host(&directory, "mount", &error))?;
    let connection = uext4_fuse::mount(&directory, &options.mount)
        .map_err(|error| CliError::failed(directory.as_os_str(), format!("mount: {error}"), error.errno()))?;
    let (answering, session) =
        begin(&directory, connection, opened, &options, globals).inspect_err(|_| {
            // Nobody serves it.
            let _gone = keeper.unmount(&directory, true);
        })?;
    stop_on(signals, session.stopper()).map_err(|error| host(&directory, "serve", &error))?;
    if daemon {
        detach().map_err(|error| host(&directory, "serve", &error))?;
    }
    let served = serve(&directory, &session, &mut keeper);
    let waiting = answering.stop();
    let closed = session.close();
    waiting.tell(&closed);
    closed.map_err(at)?;
    served.map_err(|error| host(&directory, "answer through io_uring", &error))
}

/// Devices that are open, before the sandbox.
struct Opened<'a> {
    device: Arc<dyn Device>,
    journals: Vec<Arc<dyn Device>>,
    /// What the volume is called.
    name: &'a OsStr,
}

/// Opens the devices among which a volume finds its journal.
fn journals(write: bool, globals: &Globals) -> Result<Vec<Arc<dyn Device>>, CliError> {
    let how = uext4::device::OpenOptions { write, force: false };
    let open = |spec: &uext4::DeviceSpec| {
        let opened = uext4::device::open(spec, how).map(|opened| opened.device);
        opened.map_err(|error| CliError::at(OsStr::new(&spec.to_string()), error))
    };
    globals.journals.iter().map(open).collect()
}

/// Enters the sandbox, opens the volume, and serves it: no thread has been started before.
fn begin(
    directory: &Path,
    connection: Connection,
    opened: Opened<'_>,
    options: &Options,
    globals: &Globals,
) -> Result<(Answering, Session), CliError> {
    let host = |error: io::Error| CliError::host(directory.as_os_str(), "serve", &error);
    let warn = |message: &str| {
        error::warn(&globals.command, globals.json, &options.spec.to_string(), message);
    };
    let mount = MountEntry::at(directory).map_err(host)?;
    let socket = Socket::bind(&mount, options.stats.as_deref()).map_err(host)?;
    let connection = connection.with_rings(options.serve.transport);
    let sandbox = confine(options, warn)?;
    let volume = opened.journals.into_iter().fold(options.volume(), VolumeOptions::journal_device);
    let volume =
        Volume::open_device(opened.device, volume).map_err(|error| CliError::at(opened.name, error))?;
    if let Some(loss) = volume.info().recovery.loss() {
        warn(&format!("an older state is seen: {loss}"));
    }
    let session = Session::start(connection, volume, &options.serve).map_err(host)?;
    if let Some(reason) = session.declined() {
        warn(&format!("requests come through /dev/fuse: io_uring: {reason}"));
    }
    Ok((socket.answer_for(&session, sandbox.metrics()).map_err(host)?, session))
}

/// Enters the sandbox as the options say, and tells what does not hold.
fn confine(options: &Options, warn: impl Fn(&str)) -> Result<Sandbox, CliError> {
    if options.sandbox == Confine::Off {
        return Ok(Sandbox::default());
    }
    let sandbox = Sandbox::enter(Needs {
        nvme: options.spec.scheme == Scheme::Nvme,
        rings: options.serve.transport != Transport::Dev && uext4_fuse::rings_are_offered(),
    });
    if !sandbox.is_whole() {
        let layers = sandbox.layers();
        let missing: Vec<_> = layers.iter().filter(|(_, holds)| !holds).map(|(layer, _)| *layer).collect();
        let message = format!("the sandbox does not hold here: {}", missing.join(", "));
        if options.sandbox == Confine::Require {
            return Err(CliError::said(message, libc::ENOSYS));
        }
        warn(&message);
    }
    Ok(sandbox)
}

/// Starts this command again, without a terminal, and waits until its mount stands.
fn in_background() -> Result<(), CliError> {
    let failed = |error: io::Error| CliError::host(OsStr::new("uext4"), "start the server", &error);
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    let mut server = Command::new(std::env::current_exe().map_err(failed)?)
        .arg0(name)
        .args(words)
        .env(DAEMON, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut said = Vec::new();
    if let Some(mut stdout) = server.stdout.take() {
        stdout.read_to_end(&mut said).map_err(failed)?;
    }
    if said == READY {
        return Ok(());
    }
    // It has said why, unless it was killed.
    let ended = server.wait().map_err(failed)?;
    match ended.code() {
        Some(_) => Err(CliError::Told),
        None => Err(CliError::said(format!("the server ended: {ended}"), libc::EIO)),
    }
}

/// The mount stands: tells who waits, and lets go of the terminal and of the working directory.
fn detach() -> io::Result<()> {
    std::env::set_current_dir("/")?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let mut stdout = io::stdout();
    stdout.write_all(READY)?;
    stdout.flush()?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// A thread that has the session end with the first signal.
fn stop_on(mut signals: Signals, stopper: Stopper) -> io::Result<()> {
    let wait = move || {
        for _signal in signals.forever() {
            stopper.stop();
        }
    };
    std::thread::Builder::new().name("uext4-signals".into()).spawn(wait)?;
    Ok(())
}

/// Serves until the mount is gone. When asked to stop it is unmounted; if somebody uses it, they lose it.
fn serve(directory: &Path, session: &Session, keeper: &mut Keeper) -> io::Result<()> {
    match session.wait() {
        Ended::Unmounted => return Ok(()),
        Ended::Stopped => {}
        // To unmount would wait for answers that cannot be given. The mount is dead when this process has ended.
        Ended::Broken(errno) => return Err(io::Error::from_raw_os_error(errno)),
    }
    if keeper.unmount(directory, false).is_ok() {
        let _ended = session.wait_for(END);
        return Ok(());
    }
    // Files are open.
    let _gone = keeper.unmount(directory, true);
    Ok(())
}

/// The failure of an open, with where the device is mounted if it is.
fn held(error: CliError, options: &Options) -> CliError {
    let identity = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let Locator::Path(path) = &options.spec.locator else { return error };
    let Some(own) = identity(path) else { return error };
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let at = table.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (source, point, kind) = (fields.next()?, fields.next()?, fields.next()?);
        let source = Target::parse_bytes(unescaped(source).as_bytes()).ok()?.spec;
        // Another overlay of the device is in nobody's way.
        let apart = match (&source.options.overlay, &options.spec.options.overlay) {
            (Some(theirs), Some(ours)) => identity(theirs) != identity(ours),
            _ => false,
        };
        let Locator::Path(path) = source.locator else { return None };
        (kind.starts_with("fuse.") && !apart && identity(&path) == Some(own)).then(|| unescaped(point))
    });
    match at {
        Some(point) => error.with(&format!("it is mounted at {}", text::visible(point.as_bytes()))),
        None => error,
    }
}

/// The mount table writes space, tab, newline and backslash as `\ooo`.
fn unescaped(field: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(field.to_owned(), |text, (code, plain)| text.replace(code, plain))
}
