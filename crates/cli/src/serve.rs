//! `uext4 serve`.

use crate::args::Globals;
use crate::error::{self, CliError};
use crate::open::{OpenHow, Operand, device};
use crate::{out, text};
use clap::{Args, ValueHint};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use uext4::{DeviceSpec, OpenOptions, Switches, Target, Volume};
use uext4_serve::{Export, Fault, Server, ServerOptions, Stopper};

/// The port of the protocol.
const PORT: u16 = 10809;
/// A signal this long after the first one ends the program at once. Some senders send two in a row.
const INSIST: Duration = Duration::from_secs(1);

/// `uext4 serve`.
#[derive(Args)]
#[command(after_long_help = "\
One line on standard output, `serving ... at URI`, says that clients can connect; URI is for qemu-img, nbdcopy and the
like. DEVICE:/path is a file inside a volume, which keeps the size that it has now; DEVICE alone is all bytes of the
device, through every image format and overlay (`disk.img?overlay=FILE`). Without --socket and --listen, the socket is
uext4-serve.sock in $XDG_RUNTIME_DIR (/run for root).

What a client flushed or wrote with FUA survives a crash, and a flush of one client covers the completed writes of all.
SIGTERM and SIGINT end the server: requests under way are finished, all is written home, the socket is removed, and
the volume is clean. Another signal, a second later or more, ends it at once: a device that hangs may keep it waiting.
If the server is killed, the next use of the volume recovers it.

The socket can be used by its owner only. TCP has no encryption and no password: whoever can connect can read and
write.")]
pub struct ServeArgs {
    /// The file, or the whole device.
    #[arg(value_name = "DEVICE[:/path]", value_hint = ValueHint::FilePath)]
    pub operand: OsString,
    /// Listen on a Unix socket at this path.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub socket: Option<PathBuf>,
    /// Listen on TCP: ADDRESS, ADDRESS:PORT or :PORT. The address is 127.0.0.1 unless given, the port 10809.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen)]
    pub listen: Option<SocketAddr>,
    /// The name that clients must ask for; the empty one by default, which is the default of clients.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub export: String,
    /// Clients can only read, and nothing is written, not even by recovery.
    #[arg(short, long)]
    pub read_only: bool,
    /// Read even if another process uses the device: the data may change meanwhile.
    #[arg(long, requires = "read_only")]
    pub force: bool,
    /// Most clients at once.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub connections: u16,
    /// End when the last client has left.
    #[arg(long)]
    pub once: bool,
}

/// Runs it.
pub fn run(args: &ServeArgs, globals: &Globals) -> Result<(), CliError> {
    if globals.watchers.trace.is_some() {
        return Err(CliError::usage("serve cannot be traced"));
    }
    let name = args.operand.as_os_str();
    // Before anything is opened, so that a signal from here on leaves nothing behind.
    let asked = Asked::watch().map_err(|error| CliError::host(name, "serve", &error))?;
    let write = !args.read_only;
    let how = OpenHow { write, background: true, ..OpenHow::reading(globals, args.force, Switches::ON) };
    let (export, volume) = open(args, &how)?;
    let served = serve(args, globals, export, &asked);
    match volume {
        Some((spec, volume)) => {
            served.and(how.close_volume(&spec, volume).map_err(|error| CliError::at(name, error)))
        }
        None => served,
    }
}

/// What is served, and the volume that it is in.
fn open(args: &ServeArgs, how: &OpenHow<'_>) -> Result<(Export, Option<(DeviceSpec, Volume)>), CliError> {
    let name = args.operand.as_os_str();
    let at = |error| CliError::at(name, error);
    let inside = Target::has_inner_path(name.as_bytes());
    let (export, volume) = if inside {
        let operand = Operand::parse(name)?;
        let volume = operand.volume(how)?;
        let options = OpenOptions::new().read(true).write(how.write).direct(true);
        let file = volume.open_file(operand.inner(), options).map_err(at)?;
        (Export::file(file, args.read_only), Some((operand.spec, volume)))
    } else {
        let device = how.open_device(&device(name)?).map_err(at)?;
        (Export::device(device, args.read_only), None)
    };
    let described = format!("uext4: {}", text::visible(name.as_bytes()));
    let export = export.and_then(|export| export.described(&described).named(args.export.as_bytes()));
    Ok((export.map_err(|error| failed(name, error))?, volume))
}

/// Serves until it is over. Everything is durable then.
fn serve(args: &ServeArgs, globals: &Globals, export: Export, asked: &Asked) -> Result<(), CliError> {
    let name = args.operand.as_os_str();
    let options = ServerOptions { connections: args.connections.into(), once: args.once };
    let failed = |error| failed(name, error);
    let mut server = Server::new(export, options).map_err(failed)?;
    let mut places = Vec::new();
    let socket = match (&args.socket, args.listen) {
        (Some(socket), _) => Some(socket.clone()),
        (None, Some(_)) => None,
        (None, None) => Some(default_socket()?),
    };
    if let Some(socket) = socket {
        server.listen_at(&socket).map_err(failed)?;
        let socket = std::path::absolute(&socket).unwrap_or(socket);
        let (export, socket) = (escaped(args.export.as_bytes()), escaped(socket.as_os_str().as_bytes()));
        places.push(format!("nbd+unix:///{export}?socket={socket}"));
    }
    if let Some(address) = args.listen {
        let address = server.listen_on(address).map_err(failed)?;
        places.push(format!("nbd://{address}/{}", escaped(args.export.as_bytes())));
    }
    asked.ends(server.stopper());
    let shown = text::visible(name.as_bytes());
    let how = if server.export().is_writable() { "" } else { ", read-only" };
    let ready =
        format!("serving {shown} ({} bytes{how}) at {}\n", server.export().size(), places.join(" and "));
    let told = out::print(ready.as_bytes());
    let warn = |fault: &Fault| error::warn(&globals.command, globals.json, &shown, &fault.to_string());
    told.and_then(|()| server.run(warn).map_err(failed))
}

/// Signals that ask for the end, from before anything is opened until all is closed.
struct Asked {
    state: Arc<Mutex<AskedState>>,
    signals: signal_hook::iterator::Handle,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct AskedState {
    /// When the first one came.
    first: Option<Instant>,
    /// Ends the server, once there is one.
    stopper: Option<Stopper>,
}

impl Asked {
    fn watch() -> std::io::Result<Asked> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let (state, handle) = (Arc::new(Mutex::new(AskedState::default())), signals.handle());
        let seen = state.clone();
        let work = move || {
            for signal in signals.forever() {
                let mut state = lock(&seen);
                let first = *state.first.get_or_insert_with(Instant::now);
                if first.elapsed() >= INSIST {
                    // The program ends here. Should that fail, the sender has another try.
                    let _failed = signal_hook::low_level::emulate_default_handler(signal);
                }
                state.stopper.iter().for_each(Stopper::stop);
            }
        };
        let thread = std::thread::Builder::new().name("uext4-signals".into()).spawn(work)?;
        Ok(Asked { state, signals: handle, thread: Some(thread) })
    }

    /// What a signal ends from now on. It may have come already.
    fn ends(&self, stopper: Stopper) {
        let mut state = lock(&self.state);
        if state.first.is_some() {
            stopper.stop();
        }
        state.stopper = Some(stopper);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.signals.close();
        // It has nothing that can fail.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

fn lock(state: &Mutex<AskedState>) -> MutexGuard<'_, AskedState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(name: &OsStr, error: uext4_serve::Error) -> CliError {
    match error {
        uext4_serve::Error::Volume(error) => CliError::at(name, error),
        uext4_serve::Error::Name => CliError::usage(error.to_string()),
        error => CliError::said(error.to_string(), error.errno()),
    }
}

/// Where the socket is if nobody says it.
fn default_socket() -> Result<PathBuf, CliError> {
    let directory = match std::env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty()) {
        Some(directory) => PathBuf::from(directory),
        None if rustix::process::geteuid().is_root() => PathBuf::from("/run"),
        None => {
            return Err(CliError::usage(
                "$XDG_RUNTIME_DIR is not set: say --socket PATH or --listen ADDRESS",
            ));
        }
    };
    Ok(directory.join("uext4-serve.sock"))
}

/// `ADDRESS`, `ADDRESS:PORT`, `:PORT`.
fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
        return Ok(SocketAddr::new(local, port));
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    match (text.parse(), bare.parse()) {
        (Ok(address), _) => Ok(address),
        (_, Ok(address)) => Ok(SocketAddr::new(address, PORT)),
        _ => Err("expected an IP address, with :PORT or without".into()),
    }
}

/// Bytes of a URI.
fn escaped(bytes: &[u8]) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(byte);
    let escape = |byte: &u8| if plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") };
    bytes.iter().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_to_listen_on() {
        for (text, address) in [
            ("127.0.0.1", "127.0.0.1:10809"),
            ("0.0.0.0:7", "0.0.0.0:7"),
            (":7", "127.0.0.1:7"),
            ("::1", "[::1]:10809"),
            ("[::1]", "[::1]:10809"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(parse_listen(text), Ok(address.parse().unwrap()), "{text}");
        }
        for text in ["", "localhost:7", ":", ":70000", "1.2.3.4:"] {
            assert!(parse_listen(text).is_err(), "{text}");
        }
    }
}
