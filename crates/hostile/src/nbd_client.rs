//! Clients of an NBD server that send anything: each is answered or left, in time, and the server goes on.
//!
//! The first byte of an input chooses what is served (the lowest bit: a file in a volume, or a device) and how far a
//! sound handshake goes (the next two bits, `Greeting`). The rest are messages. If the highest bit of a message's first
//! byte is set, its other bits count bytes behind it that are sent as they are. Otherwise it is a request: three bits
//! of command, four of flags, then two bytes of offset, in units of 256, and one that chooses the length (`LENGTHS`)
//! and, with bit 4, counts the offset backwards from 2⁶⁴.
#![allow(clippy::big_endian_bytes, reason = "the protocol's numbers are big-endian")]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use uext4::device::{Device, MemoryDevice, MemoryOptions};
use uext4::{OpenOptions, Volume, VolumeOptions};
use uext4_serve::{Export, Server, ServerOptions};
use uext4_testkit::{Scratch, VolumeBuilder};

use crate::images;

/// Bytes of what is served.
const SIZE: u64 = 4 << 20;
/// A client that waits longer has found a hang.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most bytes that a client may ask for in one input.
const ASKED: u64 = 64 << 20;

/// Lengths of requests.
const LENGTHS: [u32; 16] = [
    0,
    1,
    255,
    256,
    511,
    512,
    513,
    4095,
    4096,
    4097,
    65536,
    70_001,
    1 << 20,
    4 << 20,
    (32 << 20) + 1,
    u32::MAX,
];

/// How much of a sound handshake comes before the messages.
enum Greeting {
    /// Nothing: the messages are the handshake.
    None,
    /// The flags: the messages begin with options.
    Flags,
    /// All of it.
    Simple,
    /// All of it, with structured replies and block status.
    Structured,
}

/// What became of a client.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Requests that it sent in the right form.
    pub requests: usize,
    /// Bytes that it got.
    pub answered: usize,
}

/// A server of this process, which ends with it.
struct Served {
    socket: PathBuf,
    _scratch: Scratch,
}

fn served(file: bool) -> &'static Served {
    static SERVERS: [OnceLock<Served>; 2] = [const { OnceLock::new() }; 2];
    SERVERS[usize::from(file)].get_or_init(|| {
        let scratch = Scratch::new(64 << 20);
        let export = if file { of_file(&scratch) } else { of_device() };
        let socket = scratch.file("socket");
        let mut server = Server::new(export, ServerOptions::default()).expect("a server");
        server.listen_at(&socket).expect("a socket");
        std::thread::spawn(move || server.run(|_| ()).expect("the server runs"));
        Served { socket, _scratch: scratch }
    })
}

fn of_device() -> Export {
    let device = MemoryDevice::new(MemoryOptions::new(SIZE)).expect("memory");
    Export::device(Arc::new(device), false).expect("an export")
}

fn of_file(scratch: &Scratch) -> Export {
    let source = scratch.file("source");
    std::fs::create_dir(&source).expect("a directory");
    let file = std::fs::File::create(source.join("disk")).expect("a file");
    file.set_len(SIZE).expect("a length");
    let built = VolumeBuilder::new(16 << 20).args(["-b", "4096"]).from_dir(&source).build();
    let device: Arc<dyn Device> = images::device(&std::fs::read(built.path()).expect("an image"));
    let volume = Volume::open_device(device, VolumeOptions::read_write()).expect("a volume");
    let options = OpenOptions::new().read(true).write(true).direct(true);
    Export::file(volume.open_file("/disk", options).expect("a file"), false).expect("an export")
}

/// Runs an input.
///
/// # Panics
/// If the server hangs, says more than it was asked for, or does not go on with others.
pub fn run(input: &[u8]) -> Outcome {
    let (&first, script) = input.split_first().unwrap_or((&0, &[]));
    let served = served(first & 1 != 0);
    let greeting = match first >> 1 & 3 {
        0 => Greeting::None,
        1 => Greeting::Flags,
        2 => Greeting::Simple,
        _ => Greeting::Structured,
    };
    let mut message = hello(&greeting);
    let (requests, asked) = append(&mut message, script);
    let answered = exchange(served, &message);
    // Replies of options are short, and those of requests have little besides the data.
    let most = asked + 64 * message.len() as u64 + 4096;
    assert!(answered as u64 <= most, "{answered} bytes for a client that may get {most}");
    let sound = hello(&Greeting::Simple);
    let mut sound_and_read = sound.clone();
    push(&mut sound_and_read, (0, 0), 0, 512);
    let (without, with) = (exchange(served, &sound), exchange(served, &sound_and_read));
    assert_eq!(with - without, 16 + 512, "a sound client is answered");
    Outcome { requests, answered }
}

/// What a client says until the messages begin.
fn hello(greeting: &Greeting) -> Vec<u8> {
    let mut bytes = Vec::new();
    let option = |bytes: &mut Vec<u8>, number: u32, data: &[u8]| {
        bytes.extend(b"IHAVEOPT");
        bytes.extend(number.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
    };
    if matches!(greeting, Greeting::None) {
        return bytes;
    }
    bytes.extend(3_u32.to_be_bytes());
    if matches!(greeting, Greeting::Structured) {
        option(&mut bytes, 8, &[]);
        let context = b"base:allocation";
        let mut query = vec![0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, context.len() as u8];
        query.extend(context);
        option(&mut bytes, 10, &query);
    }
    if !matches!(greeting, Greeting::Flags) {
        // The option GO: the export without a name, and no request for information.
        option(&mut bytes, 7, &[0; 6]);
    }
    bytes
}

/// A request, with data if it is a write.
fn push(bytes: &mut Vec<u8>, (command, flags): (u16, u16), offset: u64, length: u32) {
    bytes.extend(0x2560_9513_u32.to_be_bytes());
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend((bytes.len() as u64).to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    if command == 1 && length <= 1 << 20 {
        bytes.resize(bytes.len() + length as usize, 0x5a);
    }
}

/// The messages of a script. How many are requests, and how many bytes they ask for.
fn append(bytes: &mut Vec<u8>, script: &[u8]) -> (usize, u64) {
    let (mut requests, mut asked, mut rest) = (0, 0, script);
    while let [kind, more @ ..] = rest {
        if kind & 0x80 != 0 {
            let (raw, behind) = more.split_at(usize::from(kind & 0x7f).min(more.len()));
            bytes.extend(raw);
            rest = behind;
            // They may be requests, too.
            asked += (raw.len() as u64 / 28) * (32 << 20);
            continue;
        }
        let [low, high, length, behind @ ..] = more else { break };
        let offset = u64::from(u16::from_le_bytes([*low, *high])) * 256;
        let offset = if length & 16 != 0 { offset.wrapping_neg() } else { offset };
        let length = LENGTHS[usize::from(length & 15)];
        let command = u16::from(kind & 7);
        // A read is answered with its data if it is no longer than the server takes.
        asked += if command == 0 && length <= 32 << 20 { u64::from(length) } else { 0 };
        if asked > ASKED {
            break;
        }
        push(bytes, (command, u16::from(kind >> 3)), offset, length);
        requests += 1;
        rest = behind;
    }
    (requests, asked)
}

/// Sends it all, then says that nothing follows. How many bytes came back until the server closed the connection.
fn exchange(served: &Served, message: &[u8]) -> usize {
    let stream = UnixStream::connect(&served.socket).expect("the server accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    stream.set_write_timeout(Some(PATIENCE)).expect("a limit");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut total, mut buffer) = (0, vec![0; 1 << 16]);
            loop {
                match (&stream).read(&mut buffer) {
                    Ok(0) => return total,
                    Ok(count) => total += count,
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return total,
                    Err(error) => panic!("the server neither answers nor leaves: {error}"),
                }
            }
        });
        // It may have left before it has read all.
        if let Err(error) = (&stream).write_all(message) {
            let left = [std::io::ErrorKind::BrokenPipe, std::io::ErrorKind::ConnectionReset];
            assert!(left.contains(&error.kind()), "the server does not read: {error}");
        }
        let _left = stream.shutdown(Shutdown::Write);
        reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
