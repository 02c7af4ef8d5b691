//! NBD: servers that do not keep to the protocol, or that keep to it as few do.
#![expect(clippy::big_endian_bytes, reason = "the numbers of the protocol are big-endian")]

use crate::nbd::open;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use uext4_blockdev::{BufferPool, DeviceQueue, Error, Op, QueueOptions, WriteDurability};
use uext4_testkit::Scratch;
use uext4_testkit::conformance::{reap_all, request};

const SIZE: u64 = 1 << 20;
/// Transmission flags.
const FLUSH: u16 = 1 << 2;
const FUA: u16 = 1 << 3;
const TRIM: u16 = 1 << 5;
const MULTI_CONN: u16 = 1 << 8;

/// A request as it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked {
    connection: usize,
    command: u16,
    flags: u16,
    cookie: u64,
    offset: u64,
    length: u32,
}

/// What the server answers, byte by byte; `None`: it closes the connection.
type Answer = fn(&Asked) -> Option<Vec<u8>>;

/// A server that answers as it is told, and writes down what it was asked.
struct Server {
    asked: Arc<Mutex<Vec<Asked>>>,
    socket: PathBuf,
    _scratch: Scratch,
}

impl Server {
    /// With the block sizes that it tells, if any.
    fn new(size: u64, flags: u16, blocks: Option<[u32; 3]>, answer: Answer) -> Server {
        let scratch = Scratch::new(1 << 20);
        let socket = scratch.file("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        // They end with the program or with their clients.
        std::thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let (stream, log) = (stream.unwrap(), log.clone());
                std::thread::spawn(move || talk(stream, connection, size, flags, blocks, &log, answer));
            }
        });
        Server { asked, socket, _scratch: scratch }
    }

    fn device(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn take<const N: usize>(stream: &mut UnixStream) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).ok().map(|()| bytes)
}

fn talk(
    mut stream: UnixStream,
    connection: usize,
    size: u64,
    flags: u16,
    blocks: Option<[u32; 3]>,
    log: &Mutex<Vec<Asked>>,
    answer: Answer,
) -> Option<()> {
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").ok()?;
    take::<4>(&mut stream)?;
    loop {
        let head = take::<16>(&mut stream)?;
        let option = &head[8..12];
        let length = u32::from_be_bytes(head[12..].try_into().unwrap());
        stream.read_exact(&mut vec![0; length as usize]).ok()?;
        let mut reply = |kind: u32, data: &[u8]| {
            let length = (data.len() as u32).to_be_bytes();
            let head = [&0x3_e889_0455_65a9_u64.to_be_bytes()[..], option, &kind.to_be_bytes(), &length];
            stream.write_all(&[&head.concat(), data].concat()).ok()
        };
        if option != 7_u32.to_be_bytes() {
            reply(0x8000_0001, &[])?;
            continue;
        }
        reply(3, &[&[0, 0][..], &size.to_be_bytes(), &(flags | 1).to_be_bytes()].concat())?;
        if let Some(blocks) = blocks {
            reply(3, &[&[0, 3][..], &blocks.map(u32::to_be_bytes).concat()].concat())?;
        }
        reply(1, &[])?;
        break;
    }
    loop {
        let head = take::<28>(&mut stream)?;
        let asked = Asked {
            connection,
            flags: u16::from_be_bytes(head[4..6].try_into().unwrap()),
            command: u16::from_be_bytes(head[6..8].try_into().unwrap()),
            cookie: u64::from_be_bytes(head[8..16].try_into().unwrap()),
            offset: u64::from_be_bytes(head[16..24].try_into().unwrap()),
            length: u32::from_be_bytes(head[24..].try_into().unwrap()),
        };
        if asked.command == 1 {
            stream.read_exact(&mut vec![0; asked.length as usize]).ok()?;
        }
        log.lock().unwrap().push(asked);
        stream.write_all(&answer(&asked)?).ok()?;
    }
}

fn reply(error: u32, cookie: u64, data: u32) -> Option<Vec<u8>> {
    let head = [&0x6744_6698_u32.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()];
    Some([&head.concat()[..], &vec![0; data as usize]].concat())
}

/// As it should be: zeros for a read.
fn well(asked: &Asked) -> Option<Vec<u8>> {
    reply(0, asked.cookie, if asked.command == 0 { asked.length } else { 0 })
}

/// What is no answer ends the connection, and with it the device: nothing is taken for data.
#[test]
fn answers_that_are_none_end_the_device() {
    let wrong: [(&str, Answer); 6] = [
        ("another cookie", |asked| reply(0, asked.cookie ^ 0x55, asked.length)),
        ("no magic number", |_| Some(vec![0; 16])),
        ("twice", |asked| Some([well(asked)?, well(asked)?].concat())),
        ("a structured reply", |asked| {
            let length = (asked.length + 8).to_be_bytes();
            let head = [&0x668e_33ef_u32.to_be_bytes()[..], &[0, 1, 0, 1], &asked.cookie.to_be_bytes()];
            Some([&head.concat()[..], &length, &[0; 8], &vec![0; asked.length as usize]].concat())
        }),
        ("too much", |asked| Some([well(asked)?, vec![b'x'; 100]].concat())),
        ("an end", |_| None),
    ];
    for (what, answer) in wrong {
        let server = Server::new(SIZE, FLUSH | FUA | TRIM, None, answer);
        let device = open(&server.device(), true).unwrap();
        let mut data = [0; 4096];
        // The second one at the latest finds what came behind the first answer.
        let all = (0..2).find_map(|_| device.read_at(&mut data, 0).err());
        let error = all.unwrap_or_else(|| panic!("{what}"));
        assert!(matches!(&error, Error::Remote { .. }) && error.errno() == libc::EIO, "{what}: {error}");
        for error in [
            device.write_at(&data, 0, WriteDurability::Fua).unwrap_err(),
            device.flush().unwrap_err(),
            device.read_at(&mut data, 0).unwrap_err(),
        ] {
            assert!(error.to_string().contains("the connection is lost"), "{what}: {error}");
        }
        // Only reads were sent before. The server may still be at one of them.
        let asked = server.asked();
        assert!(asked.iter().all(|asked| asked.command == 0), "{what}: nothing is sent any more: {asked:?}");
    }
}

/// Of a request in several pieces, any error is the request's, whichever piece has it and whatever comes after.
#[test]
fn an_error_of_any_piece_is_the_requests() {
    // Each piece has 64 KiB.
    let server = Server::new(SIZE, FLUSH | FUA | TRIM, Some([512, 4096, 64 << 10]), |asked| {
        let bad = match asked.command {
            0 | 1 => asked.offset == 128 << 10,
            _ => false,
        };
        if bad { reply(28, asked.cookie, 0) } else { well(asked) }
    });
    let device = open(&server.device(), true).unwrap();
    let mut data = vec![0; 384 << 10];
    // First, in the middle, last.
    for (start, length) in [(128, 384), (0, 384), (0, 192), (64, 128), (128, 64)] {
        let (pos, length) = (start << 10, length << 10);
        let error = device.write_at(&data[..length], pos, WriteDurability::Cached).unwrap_err();
        assert_eq!(error.errno(), libc::ENOSPC, "{start} {length}");
        assert_eq!(device.read_at(&mut data[..length], pos).unwrap_err().errno(), libc::ENOSPC);
        let mut queue = device.queue(&QueueOptions::depth(2)).unwrap();
        let mut buffer = BufferPool::new(1 << 20).unwrap().take(length).unwrap();
        // SAFETY: the buffer outlives the completions.
        unsafe {
            queue.push(request(Op::Write, pos, length as u32, buffer.memory(0), 1)).unwrap();
            queue.push(request(Op::Read, 512 << 10, 512, buffer.memory(0), 2)).unwrap();
        }
        let mut done = reap_all(&mut queue);
        done.sort_by_key(|done| done.tag);
        assert_eq!([done[0].result, done[1].result], [-libc::ENOSPC, 512], "{start} {length}");
    }
    device.write_at(&data[..64 << 10], 0, WriteDurability::Cached).unwrap();
}

/// Without multi-conn a flush on one connection says nothing about another: there is only one.
#[test]
fn without_multi_conn_there_is_one_connection() {
    for (flags, several) in [(0, false), (MULTI_CONN, true)] {
        let server = Server::new(SIZE, FLUSH | flags, None, well);
        let device = open(&format!("{}&connections=3", server.device()), true).unwrap();
        let mut queues: Vec<_> = (0..3).map(|_| device.queue(&QueueOptions::depth(1)).unwrap()).collect();
        let mut buffer = BufferPool::new(1 << 20).unwrap().take(512).unwrap();
        for queue in &mut queues {
            // SAFETY: the buffer outlives the completion.
            unsafe { queue.push(request(Op::Write, 0, 512, buffer.memory(0), 1)) }.unwrap();
            assert_eq!(reap_all(queue)[0].result, 512);
        }
        device.flush().unwrap();
        let asked = server.asked();
        assert_eq!(asked.iter().any(|one| one.connection > 0), several, "{asked:?}");
        assert_eq!(asked.iter().filter(|one| one.command == 3).count(), 1);
    }
}

/// A server without FUA gets no durable write: the call is refused, and its caller writes and flushes instead.
#[test]
fn a_durable_write_is_not_sent_as_a_plain_one() {
    let server = Server::new(SIZE, FLUSH, None, well);
    let device = open(&server.device(), true).unwrap();
    let refused = device.write_at(&[0; 512], 0, WriteDurability::Fua);
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    assert_eq!(server.asked(), []);
    device.write_durable(&[0; 512], 0).unwrap();
    let commands: Vec<_> = server.asked().iter().map(|one| (one.command, one.flags)).collect();
    assert_eq!(commands, [(1, 0), (3, 0)]);
}

/// Nothing past the end is sent, by call or by queue.
#[test]
fn nothing_past_the_end_is_sent() {
    let server = Server::new(SIZE + 100, FLUSH | FUA | TRIM, None, well);
    let device = open(&server.device(), true).unwrap();
    let mut buffer = BufferPool::new(1 << 20).unwrap().take(1024).unwrap();
    let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
    for pos in [SIZE - 512, SIZE, u64::MAX - 511, 1] {
        for op in [Op::Read, Op::Write, Op::Discard] {
            // SAFETY: the buffer outlives the completion.
            unsafe { queue.push(request(op, pos, 1024, buffer.memory(0), 1)) }.unwrap();
            assert_eq!(reap_all(&mut queue)[0].result, -libc::EINVAL, "{op:?} {pos}");
        }
        device.read_at(&mut buffer, pos).unwrap_err();
        device.write_at(&buffer, pos, WriteDurability::Cached).unwrap_err();
        device.discard(pos, 1024).unwrap_err();
    }
    assert_eq!(server.asked(), []);
}

#[test]
fn a_size_that_no_device_has_is_told() {
    for (size, said) in [(1 << 63, "8 EiB or more"), (u64::MAX, "8 EiB or more"), (0, "an export of 0 bytes")]
    {
        let server = Server::new(size, FLUSH, None, well);
        let error = open(&server.device(), false).unwrap_err().to_string();
        assert!(error.contains(said), "{size}: {error}");
    }
    // Nearly the longest.
    let server = Server::new((1 << 63) - 1, FLUSH, None, well);
    let device = open(&server.device(), false).unwrap();
    let end = device.geometry().size;
    assert_eq!(end, (1 << 63) - 512);
    device.read_at(&mut [1; 512], end - 512).unwrap();
    device.read_at(&mut [1; 512], end).unwrap_err();
}
