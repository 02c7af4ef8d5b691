//! A client that speaks the protocol byte by byte.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a test waits for an answer before it fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Commands.
pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISCONNECT: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;
/// Flags of commands.
pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const FAST_ZERO: u16 = 16;
/// Options.
pub const EXPORT_NAME: u32 = 1;
pub const ABORT: u32 = 2;
pub const LIST: u32 = 3;
pub const STARTTLS: u32 = 5;
pub const INFO: u32 = 6;
pub const GO: u32 = 7;
pub const STRUCTURED: u32 = 8;
pub const LIST_CONTEXTS: u32 = 9;
pub const SET_CONTEXTS: u32 = 10;
/// Replies to options.
pub const ACK: u32 = 1;
pub const UNSUPPORTED: u32 = 0x8000_0001;
pub const INVALID: u32 = 0x8000_0003;
pub const UNKNOWN: u32 = 0x8000_0006;
/// Errors.
pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const ENOTSUP: u32 = 95;

/// A client that is connected and has said nothing.
pub fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Data of [`INFO`] and [`GO`].
pub fn go(name: &[u8], kinds: &[u16]) -> Vec<u8> {
    let mut data = [&(name.len() as u32).big(4)[..], name, &(kinds.len() as u32).big(2)].concat();
    kinds.iter().for_each(|kind| data.extend(u32::from(*kind).big(2)));
    data
}

/// Data of the options about contexts.
pub fn contexts(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let mut data = [&(name.len() as u32).big(4)[..], name, &(queries.len() as u32).big(4)].concat();
    for query in queries {
        data.extend((query.len() as u32).big(4));
        data.extend(*query);
    }
    data
}

/// The last bytes of a number, the highest first.
pub trait Big {
    fn big(self, bytes: usize) -> Vec<u8>;
}

impl<N: Into<u64>> Big for N {
    fn big(self, bytes: usize) -> Vec<u8> {
        let number: u64 = self.into();
        (0..bytes).rev().map(|at| (number >> (8 * at)) as u8).collect()
    }
}

/// A number from its bytes, the highest first.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A client after its greeting.
pub struct Client {
    pub stream: UnixStream,
    pub structured: bool,
}

/// A part of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    Data(u64, Vec<u8>),
    Hole(u64, u32),
    Status(Vec<(u32, u32)>),
    Error(u32),
    Done,
}

impl Client {
    /// A client after its handshake. `structured`: it has asked for structured replies and block status.
    pub fn new(socket: &Path, structured: bool) -> Client {
        let mut client = Client::greet(connect(socket), 3);
        if structured {
            assert_eq!(client.option(STRUCTURED, b""), [(ACK, vec![])]);
            let set = client.option(SET_CONTEXTS, &contexts(b"", &[b"base:allocation"]));
            assert_eq!(set.len(), 2);
            client.structured = true;
        }
        assert_eq!(client.option(GO, &go(b"", &[])).last().unwrap().0, ACK);
        client
    }

    pub fn greet(stream: UnixStream, flags: u32) -> Client {
        let mut client = Client { stream, structured: false };
        assert_eq!(client.take(16), b"NBDMAGICIHAVEOPT");
        assert_eq!(number(&client.take(2)), 3, "fixed newstyle, no zeroes");
        client.put(&flags.big(4));
        client
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn take(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Asserts that the server closes the socket and says nothing more.
    pub fn closed(mut self) {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => assert_eq!(rest, b""),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }

    pub fn send_option(&mut self, number: u32, length: u32, data: &[u8]) {
        self.put(&[b"IHAVEOPT", &number.big(4)[..], &length.big(4), data].concat());
    }

    /// Sends an option, and returns all replies to it: the last is an acknowledgement or an error.
    pub fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send_option(option, data.len() as u32, data);
        let mut replies = Vec::new();
        loop {
            assert_eq!(number(&self.take(8)), 0x3_e889_0455_65a9);
            assert_eq!(number(&self.take(4)), u64::from(option));
            let (kind, length) = (number(&self.take(4)) as u32, number(&self.take(4)));
            replies.push((kind, self.take(length as usize)));
            if kind == ACK || kind >> 31 == 1 {
                return replies;
            }
        }
    }

    pub fn send(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, length: u32) {
        self.put(&header(command, flags, cookie, offset, length));
    }

    /// The cookie and the error of a simple reply.
    pub fn simple(&mut self) -> (u64, u32) {
        assert_eq!(number(&self.take(4)), 0x6744_6698);
        let error = number(&self.take(4)) as u32;
        (number(&self.take(8)), error)
    }

    /// The cookie and the chunks of a structured reply.
    pub fn chunks(&mut self) -> (u64, Vec<Chunk>) {
        let mut chunks = Vec::new();
        loop {
            assert_eq!(number(&self.take(4)), 0x668e_33ef);
            let (flags, kind) = (number(&self.take(2)), number(&self.take(2)));
            let (cookie, length) = (number(&self.take(8)), number(&self.take(4)) as usize);
            let data = self.take(length);
            chunks.push(match kind {
                0 => Chunk::Done,
                1 => Chunk::Data(number(&data[..8]), data[8..].to_vec()),
                2 => Chunk::Hole(number(&data[..8]), number(&data[8..]) as u32),
                5 => {
                    assert_eq!(number(&data[..4]), 1, "the context");
                    let pairs = data[4..].chunks(8);
                    Chunk::Status(
                        pairs.map(|pair| (number(&pair[..4]) as u32, number(&pair[4..]) as u32)).collect(),
                    )
                }
                0x8001 => Chunk::Error(number(&data[..4]) as u32),
                other => panic!("a chunk of type {other}"),
            });
            if flags & 1 != 0 {
                return (cookie, chunks);
            }
        }
    }

    /// Reads with whatever replies were negotiated: the bytes, or the error.
    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        self.send(READ, 0, 77, offset, length);
        if !self.structured {
            return match self.simple() {
                (77, 0) => Ok(self.take(length as usize)),
                (cookie, error) => {
                    assert_eq!(cookie, 77);
                    Err(error)
                }
            };
        }
        let (cookie, chunks) = self.chunks();
        assert_eq!(cookie, 77);
        let mut bytes = vec![None; length as usize];
        for chunk in chunks {
            let (at, data) = match chunk {
                Chunk::Data(at, data) => (at, data),
                Chunk::Hole(at, length) => (at, vec![0; length as usize]),
                Chunk::Error(error) => return Err(error),
                Chunk::Status(_) | Chunk::Done => continue,
            };
            for (number, byte) in data.into_iter().enumerate() {
                let place = &mut bytes[(at - offset) as usize + number];
                assert_eq!(place.replace(byte), None, "a byte in two chunks");
            }
        }
        Ok(bytes.into_iter().map(|byte| byte.expect("every byte is in a chunk")).collect())
    }

    /// A command that is answered by its error alone.
    pub fn done(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> u32 {
        self.send(command, flags, 78, offset, length);
        let (cookie, error) = self.simple();
        assert_eq!(cookie, 78);
        error
    }

    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let head = header(WRITE, flags, 79, offset, data.len() as u32);
        self.put(&[&head[..], data].concat());
        let (cookie, error) = self.simple();
        assert_eq!(cookie, 79);
        error
    }

    /// Block status: the extents, or the error.
    pub fn status(&mut self, flags: u16, offset: u64, length: u32) -> Result<Vec<(u32, u32)>, u32> {
        self.send(BLOCK_STATUS, flags, 80, offset, length);
        let (cookie, chunks) = self.chunks();
        assert_eq!(cookie, 80);
        match &chunks[..] {
            [Chunk::Status(extents)] => Ok(extents.clone()),
            [Chunk::Error(error)] => Err(*error),
            other => panic!("{other:?}"),
        }
    }
}

pub fn header(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let parts = [0x2560_9513_u32.big(4), flags.big(2), command.big(2)];
    [parts.concat(), cookie.big(8), offset.big(8), length.big(4)].concat()
}
