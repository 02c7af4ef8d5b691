//! The bytes of the NBD protocol, and what a request may be.
//!
//! Numbers are big-endian. Source: `doc/proto.md` of <https://github.com/NetworkBlockDevice/nbd>.

use std::fmt;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of the server: `NBDMAGIC`.
pub(crate) const HELLO: u64 = 0x4e42_444d_4147_4943;
/// Begins each option of the client, and follows [`HELLO`]: `IHAVEOPT`.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Begins each reply to an option.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins each request.
const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins each simple reply.
const SIMPLE_MAGIC: u32 = 0x6744_6698;
/// Begins each chunk of a structured reply.
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags, of the server and of the client alike.
pub(crate) const FIXED_NEWSTYLE: u16 = 1;
/// The 124 zeros after the reply to [`option::EXPORT_NAME`] may be left out.
pub(crate) const NO_ZEROES: u16 = 2;

/// Options of the client.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub(crate) mod reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const UNSUPPORTED: u32 = 0x8000_0001;
    pub(crate) const INVALID: u32 = 0x8000_0003;
    pub(crate) const UNKNOWN: u32 = 0x8000_0006;
}

/// Kinds of information about an export.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export can do.
pub(crate) mod can {
    pub(crate) const HAS_FLAGS: u16 = 1;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const FLUSH: u16 = 1 << 2;
    pub(crate) const FUA: u16 = 1 << 3;
    pub(crate) const TRIM: u16 = 1 << 5;
    pub(crate) const WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const DF: u16 = 1 << 7;
    pub(crate) const MULTI_CONN: u16 = 1 << 8;
    pub(crate) const FAST_ZERO: u16 = 1 << 11;
}

/// Flags of requests.
pub(crate) mod flag {
    pub(crate) const FUA: u16 = 1;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
}

/// Types of chunks of structured replies.
mod chunk {
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const ERROR: u16 = (1 << 15) + 1;
}
/// The last chunk of a structured reply.
const DONE: u16 = 1;

/// The one metadata context.
pub(crate) const ALLOCATION: &[u8] = b"base:allocation";
/// Its number in replies.
pub(crate) const ALLOCATION_ID: u32 = 1;
/// Status of an extent in that context: no blocks are allocated.
pub(crate) const STATE_HOLE: u32 = 1;
/// It reads as zeros.
pub(crate) const STATE_ZERO: u32 = 2;

/// Most bytes of a read or write, as told to clients that ask for block sizes.
pub(crate) const TRANSFER_MAX: u32 = 32 << 20;
/// Longest string of the protocol: names of exports, queries.
pub(crate) const STRING_MAX: usize = 4096;

/// An error of a reply: one of the numbers that the protocol knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Permission,
    Io,
    Memory,
    Invalid,
    NoSpace,
    NotSupported,
    Shutdown,
}

impl Code {
    pub(crate) fn number(self) -> u32 {
        match self {
            Code::Permission => 1,
            Code::Io => 5,
            Code::Memory => 12,
            Code::Invalid => 22,
            Code::NoSpace => 28,
            Code::NotSupported => 95,
            Code::Shutdown => 108,
        }
    }

    /// The error for the system's number. What the protocol has no number for is an I/O error.
    pub(crate) fn of_errno(errno: i32) -> Code {
        match errno {
            libc::EPERM | libc::EACCES | libc::EROFS => Code::Permission,
            libc::ENOMEM => Code::Memory,
            libc::EINVAL => Code::Invalid,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Code::NoSpace,
            libc::EOPNOTSUPP => Code::NotSupported,
            _ => Code::Io,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Code::Permission => "the export is read-only",
            Code::Io => "input or output error",
            Code::Memory => "no memory",
            Code::Invalid => "invalid request",
            Code::NoSpace => "no space",
            Code::NotSupported => "not supported",
            Code::Shutdown => "the server is shutting down",
        })
    }
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    WriteZeroes,
    BlockStatus,
    /// A number that this server does not know. It has no payload.
    Unknown,
}

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) flags: u16,
    /// Names the request in replies.
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRequest {
    magic: U32,
    flags: U16,
    kind: U16,
    cookie: U64,
    offset: U64,
    length: U32,
}

/// Bytes of a request's header.
pub(crate) const REQUEST_BYTES: usize = size_of::<RawRequest>();
const _: () = assert!(REQUEST_BYTES == 28);

/// What requests of a connection are checked against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes of the export.
    pub(crate) size: u64,
    pub(crate) writable: bool,
    /// What was negotiated.
    pub(crate) structured: bool,
    pub(crate) status: bool,
}

impl Request {
    /// `None` if the magic number is wrong: what follows is no request, and nothing after it can be found.
    pub(crate) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<Request> {
        let raw = RawRequest::ref_from_bytes(bytes).ok()?;
        let command = match raw.kind.get() {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            _ => Command::Unknown,
        };
        (raw.magic.get() == REQUEST_MAGIC).then_some(Request {
            command,
            flags: raw.flags.get(),
            cookie: raw.cookie.get(),
            offset: raw.offset.get(),
            length: raw.length.get(),
        })
    }

    /// Checks flags, permission, range and length. After an error nothing may be done.
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), Code> {
        use Command::{BlockStatus, Disconnect, Flush, Read, Trim, Unknown, Write, WriteZeroes};
        let changes = matches!(self.command, Write | Trim | WriteZeroes);
        if changes && !limits.writable {
            return Err(Code::Permission);
        }
        let allowed = match self.command {
            Read if limits.structured => flag::DF,
            // FUA on requests that write nothing is allowed by some versions of the protocol, and means nothing.
            Read | Flush => flag::FUA,
            Write | Trim => flag::FUA,
            WriteZeroes => flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
            BlockStatus if limits.status => flag::REQ_ONE,
            Disconnect | Unknown | BlockStatus => return Err(Code::Invalid),
        };
        if self.flags & !(allowed | flag::FUA) != 0 {
            return Err(Code::Invalid);
        }
        if self.command == Flush {
            return Ok(());
        }
        let inside = self.offset.checked_add(self.length.into()).is_some_and(|end| end <= limits.size);
        if !inside {
            return Err(if matches!(self.command, Write | WriteZeroes) {
                Code::NoSpace
            } else {
                Code::Invalid
            });
        }
        let transfers = matches!(self.command, Read | Write);
        if self.length == 0 || transfers && self.length > TRANSFER_MAX {
            return Err(Code::Invalid);
        }
        Ok(())
    }

    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Simple {
    magic: U32,
    error: U32,
    cookie: U64,
}

/// Bytes of a simple reply.
pub(crate) const SIMPLE_BYTES: usize = size_of::<Simple>();

/// A simple reply. Data follows if it answers a read without error.
pub(crate) fn simple(cookie: u64, error: Option<Code>) -> [u8; SIMPLE_BYTES] {
    let error = error.map_or(0, Code::number);
    let reply = Simple { magic: SIMPLE_MAGIC.into(), error: error.into(), cookie: cookie.into() };
    zerocopy::transmute!(reply)
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Chunk {
    magic: U32,
    flags: U16,
    kind: U16,
    cookie: U64,
    length: U32,
}

fn chunk(cookie: u64, kind: u16, last: bool, length: u32) -> Chunk {
    let flags = if last { DONE } else { 0 };
    Chunk {
        magic: CHUNK_MAGIC.into(),
        flags: flags.into(),
        kind: kind.into(),
        cookie: cookie.into(),
        length: length.into(),
    }
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct DataChunk {
    chunk: Chunk,
    offset: U64,
}

/// Bytes of the head of a chunk of data.
pub(crate) const DATA_BYTES: usize = size_of::<DataChunk>();

/// The head of a chunk of `length` bytes of data, which follow.
pub(crate) fn data_chunk(cookie: u64, last: bool, offset: u64, length: u32) -> [u8; DATA_BYTES] {
    let chunk = chunk(cookie, chunk::OFFSET_DATA, last, length + 8);
    zerocopy::transmute!(DataChunk { chunk, offset: offset.into() })
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct HoleChunk {
    chunk: Chunk,
    offset: U64,
    length: U32,
}

/// A chunk that says that bytes are zeros.
pub(crate) fn hole_chunk(cookie: u64, last: bool, offset: u64, length: u32) -> [u8; size_of::<HoleChunk>()] {
    let chunk = chunk(cookie, chunk::OFFSET_HOLE, last, 12);
    zerocopy::transmute!(HoleChunk { chunk, offset: offset.into(), length: length.into() })
}

/// A structured reply that says nothing but an error.
pub(crate) fn error_chunk(cookie: u64, code: Code) -> Vec<u8> {
    let message = code.to_string();
    let chunk = chunk(cookie, chunk::ERROR, true, 6 + message.len() as u32);
    let number = U32::new(code.number());
    let length = U16::new(message.len() as u16);
    [chunk.as_bytes(), number.as_bytes(), length.as_bytes(), message.as_bytes()].concat()
}

/// The status of consecutive bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) length: u32,
    /// [`STATE_HOLE`], [`STATE_ZERO`].
    pub(crate) flags: u32,
}

/// A structured reply with the status of extents.
pub(crate) fn status_chunk(cookie: u64, extents: &[Extent]) -> Vec<u8> {
    let chunk = chunk(cookie, chunk::BLOCK_STATUS, true, 4 + 8 * extents.len() as u32);
    let mut bytes = chunk.as_bytes().to_vec();
    bytes.extend_from_slice(U32::new(ALLOCATION_ID).as_bytes());
    for extent in extents {
        bytes.extend_from_slice(U32::new(extent.length).as_bytes());
        bytes.extend_from_slice(U32::new(extent.flags).as_bytes());
    }
    bytes
}
