//! The handshake: fixed newstyle, until the client asks for the export or leaves.
//!
//! Nothing of a client is trusted: the whole handshake has a time, options have a number and a length, and what has an
//! unknown type is read past and refused.

use crate::export::Export;
use crate::fault::Fault;
use crate::protocol::{
    ALLOCATION, ALLOCATION_ID, FIXED_NEWSTYLE, HELLO, NO_ZEROES, OPTION_MAGIC, OPTION_REPLY_MAGIC,
    STRING_MAX, TRANSFER_MAX, info, option, reply,
};
use crate::stop::Stopper;
use crate::stream::{Moved, Stream, poll_in, wait};
use rustix::event::{PollFd, PollFlags};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;
use zerocopy::big_endian::{U16, U32, U64};

/// Seconds that a handshake may take.
const PATIENCE: u64 = 10;
/// Most options of a client. Clients send less than ten.
const OPTIONS_MAX: u32 = 256;
/// Longest data of an option that is read past; real options have a few kilobytes at the most.
const OPTION_BYTES_MAX: u32 = 64 << 10;

/// What client and server agreed on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// Reads get structured replies.
    pub(crate) structured: bool,
    /// Block status may be asked for.
    pub(crate) status: bool,
}

/// A client in its handshake.
struct Talk<'c> {
    stream: &'c mut Stream,
    stop: &'c Stopper,
    export: &'c Export,
    deadline: Instant,
    /// The client needs no zeros after the reply to its last option.
    no_zeroes: bool,
    agreed: Agreed,
}

/// What follows an option.
enum Next {
    /// Another option.
    Option,
    /// Requests.
    Requests,
    /// Nothing: the client leaves.
    End,
}

/// Speaks with a client that has just connected. `None`: it left, as it may, or the server stops.
pub(crate) fn negotiate(
    stream: &mut Stream,
    export: &Export,
    stop: &Stopper,
) -> Result<Option<Agreed>, Fault> {
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    let mut talk = Talk { stream, stop, export, deadline, no_zeroes: false, agreed: Agreed::default() };
    match talk.run() {
        Ok(Next::Requests) => Ok(Some(talk.agreed)),
        Ok(_) | Err(Halt::Gone) => Ok(None),
        Err(Halt::Fault(fault)) => Err(fault),
    }
}

/// Why a handshake ends early.
enum Halt {
    /// The client has closed the socket, or the server stops.
    Gone,
    Fault(Fault),
}

impl<F: Into<Fault>> From<F> for Halt {
    fn from(fault: F) -> Halt {
        Halt::Fault(fault.into())
    }
}

type Talked<T> = Result<T, Halt>;

impl Talk<'_> {
    fn run(&mut self) -> Talked<Next> {
        let flags = U16::new(FIXED_NEWSTYLE | NO_ZEROES);
        let magic = [U64::new(HELLO), U64::new(OPTION_MAGIC)];
        self.send(&[magic.as_bytes(), flags.as_bytes()].concat())?;
        let mut flags = U32::ZERO;
        self.receive(flags.as_mut_bytes())?;
        let flags = flags.get();
        if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
            return Err(Fault::Flags(flags).into());
        }
        self.no_zeroes = flags & u32::from(NO_ZEROES) != 0;
        for _ in 0..OPTIONS_MAX {
            match self.option()? {
                Next::Option => {}
                next => return Ok(next),
            }
        }
        Err(Fault::Options(OPTIONS_MAX).into())
    }

    fn option(&mut self) -> Talked<Next> {
        let (mut magic, mut head) = (U64::ZERO, [U32::ZERO; 2]);
        self.receive(magic.as_mut_bytes())?;
        if magic.get() != OPTION_MAGIC {
            return Err(Fault::Option(magic.get()).into());
        }
        self.receive(head.as_mut_bytes())?;
        let [number, length] = head.map(U32::get);
        if length > OPTION_BYTES_MAX {
            return Err(Fault::OptionLength(length).into());
        }
        let mut data = vec![0; length as usize];
        self.receive(&mut data)?;
        match number {
            option::EXPORT_NAME => self.export_name(&data),
            option::ABORT => {
                self.reply(number, reply::ACK, b"")?;
                Ok(Next::End)
            }
            option::LIST => self.list(&data),
            option::INFO | option::GO => self.info(number, &data),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.agreed.structured = true;
                self.answer(number, reply::ACK, "")
            }
            option::STRUCTURED_REPLY => self.answer(number, reply::INVALID, "this option has no data"),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(number, &data),
            _ => self.answer(number, reply::UNSUPPORTED, "this server does not know the option"),
        }
    }

    /// The oldest way to ask for an export. It has no reply that refuses.
    fn export_name(&mut self, name: &[u8]) -> Talked<Next> {
        if name != self.export.name() {
            let name = name.get(..STRING_MAX).unwrap_or(name);
            return Err(Fault::Export(String::from_utf8_lossy(name).into_owned()).into());
        }
        let size = U64::new(self.export.size());
        let flags = U16::new(self.export.flags(self.agreed.structured));
        let zeros = if self.no_zeroes { &[][..] } else { &[0; 124] };
        self.send(&[size.as_bytes(), flags.as_bytes(), zeros].concat())?;
        Ok(Next::Requests)
    }

    fn list(&mut self, data: &[u8]) -> Talked<Next> {
        if !data.is_empty() {
            return self.answer(option::LIST, reply::INVALID, "this option has no data");
        }
        let name = self.export.name();
        let length = U32::new(name.len() as u32);
        let server = [length.as_bytes(), name, self.export.description().as_bytes()].concat();
        self.reply(option::LIST, reply::SERVER, &server)?;
        self.answer(option::LIST, reply::ACK, "")
    }

    fn info(&mut self, number: u32, data: &[u8]) -> Talked<Next> {
        let Some((name, asked)) = asked_info(data) else {
            return self.answer(number, reply::INVALID, "the data of the option does not hold together");
        };
        if name != self.export.name() {
            return self.answer(number, reply::UNKNOWN, "there is no such export");
        }
        let size = U64::new(self.export.size());
        let flags = U16::new(self.export.flags(self.agreed.structured));
        self.tell(number, info::EXPORT, &[size.as_bytes(), flags.as_bytes()].concat())?;
        if asked.contains(&info::NAME) {
            self.tell(number, info::NAME, self.export.name())?;
        }
        if asked.contains(&info::DESCRIPTION) {
            self.tell(number, info::DESCRIPTION, self.export.description().as_bytes())?;
        }
        // Asked for or not: all sizes are allowed, and these are faster.
        let sizes = [1, self.export.preferred_block(), TRANSFER_MAX].map(U32::new);
        self.tell(number, info::BLOCK_SIZE, sizes.as_bytes())?;
        self.reply(number, reply::ACK, b"")?;
        Ok(if number == option::GO { Next::Requests } else { Next::Option })
    }

    fn contexts(&mut self, number: u32, data: &[u8]) -> Talked<Next> {
        let set = number == option::SET_META_CONTEXT;
        if set {
            // Whatever comes of it, it replaces what was set before.
            self.agreed.status = false;
        }
        if !self.agreed.structured {
            return self.answer(number, reply::INVALID, "structured replies come first");
        }
        let Some((name, queries)) = asked_contexts(data) else {
            return self.answer(number, reply::INVALID, "the data of the option does not hold together");
        };
        if name != self.export.name() {
            return self.answer(number, reply::UNKNOWN, "there is no such export");
        }
        let all = !set && (queries.is_empty() || queries.contains(&&b"base:"[..]));
        if all || queries.contains(&ALLOCATION) {
            let context = U32::new(if set { ALLOCATION_ID } else { 0 });
            self.reply(number, reply::META_CONTEXT, &[context.as_bytes(), ALLOCATION].concat())?;
            self.agreed.status |= set;
        }
        self.answer(number, reply::ACK, "")
    }

    /// A piece of information about the export.
    fn tell(&mut self, number: u32, kind: u16, data: &[u8]) -> Talked<()> {
        self.reply(number, reply::INFO, &[U16::new(kind).as_bytes(), data].concat())
    }

    /// The last reply to an option after which others may follow.
    fn answer(&mut self, number: u32, kind: u32, message: &str) -> Talked<Next> {
        self.reply(number, kind, message.as_bytes())?;
        Ok(Next::Option)
    }

    fn reply(&mut self, number: u32, kind: u32, data: &[u8]) -> Talked<()> {
        let magic = U64::new(OPTION_REPLY_MAGIC);
        let head = [number, kind, data.len() as u32].map(U32::new);
        self.send(&[magic.as_bytes(), head.as_bytes(), data].concat())
    }

    fn receive(&mut self, mut into: &mut [u8]) -> Talked<()> {
        while !into.is_empty() {
            match self.stream.receive(&mut [IoSliceMut::new(into)])? {
                Moved::Bytes(bytes) => into = &mut into[bytes..],
                Moved::Later => self.wait(PollFlags::IN)?,
                Moved::Closed => return Err(Halt::Gone),
            }
        }
        Ok(())
    }

    fn send(&mut self, mut bytes: &[u8]) -> Talked<()> {
        while !bytes.is_empty() {
            match self.stream.send(&[IoSlice::new(bytes)])? {
                Moved::Bytes(sent) => bytes = &bytes[sent..],
                Moved::Later => self.wait(PollFlags::OUT)?,
                Moved::Closed => return Err(Halt::Gone),
            }
        }
        Ok(())
    }

    fn wait(&self, flags: PollFlags) -> Talked<()> {
        if Instant::now() >= self.deadline {
            return Err(Fault::Slow(PATIENCE).into());
        }
        let mut polled = [PollFd::new(&*self.stream, flags), poll_in(self.stop.as_fd())];
        wait(&mut polled, Some(self.deadline))?;
        if self.stop.is_thrown() { Err(Halt::Gone) } else { Ok(()) }
    }
}

/// The name and the kinds of information in the data of [`option::INFO`] and [`option::GO`].
fn asked_info(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let (name, data) = string(data)?;
    let (count, data) = data.split_first_chunk::<2>()?;
    let count: U16 = zerocopy::transmute!(*count);
    let (kinds, rest) = data.as_chunks::<2>();
    let kinds: Vec<u16> = kinds.iter().map(|kind| zerocopy::transmute!(*kind)).map(U16::get).collect();
    (rest.is_empty() && kinds.len() == usize::from(count.get())).then_some((name, kinds))
}

/// Decodes an option about metadata contexts: the export's name, and the contexts that the client asks for.
fn asked_contexts(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (name, data) = string(data)?;
    let (count, mut data) = number(data)?;
    let mut queries = Vec::new();
    for _ in 0..count {
        let (query, rest) = string(data)?;
        queries.push(query);
        data = rest;
    }
    data.is_empty().then_some((name, queries))
}

/// A string after its length.
fn string(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, data) = number(data)?;
    let length = usize::try_from(length).ok().filter(|length| *length <= STRING_MAX)?;
    data.split_at_checked(length)
}

fn number(data: &[u8]) -> Option<(u32, &[u8])> {
    let (number, data) = data.split_first_chunk::<4>()?;
    let number: U32 = zerocopy::transmute!(*number);
    Some((number.get(), data))
}
