//! Clients that do not keep to the protocol. The server says why it leaves them, others are served all the while, and
//! nothing of a message that was cut off is done.

use crate::common::*;
use std::net::Shutdown;
use std::time::{Duration, Instant};
use uext4_serve::ServerOptions;
use uext4_testkit::{Need, Rng, e2fsck_clean, needs};

#[test]
fn handshakes_that_are_none() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let served = serve(&image);
    let mut good = served.client(false);
    Client::greet(served.connect(), 1 << 5).closed();
    let mut client = served.greet();
    client.put(b"GET / HTTP/1.1\r\n\r\n");
    client.closed();
    let mut client = served.greet();
    client.send_option(GO, u32::MAX, b"");
    client.closed();
    let mut client = served.greet();
    let lists: Vec<u8> = (0..300).flat_map(|_| [b"IHAVEOPT", &99_u32.big(4)[..], &[0; 4]].concat()).collect();
    client.put(&lists);
    let mut replies = 0;
    while let Ok(()) = std::io::Read::read_exact(&mut client.stream, &mut [0; 20]) {
        let mut message = vec![0; "this server does not know the option".len()];
        std::io::Read::read_exact(&mut client.stream, &mut message).unwrap();
        replies += 1;
    }
    assert_eq!(replies, 256);
    // These just leave.
    drop(served.connect());
    drop(served.greet());
    assert_eq!(good.read(0, 4096), Ok(contents(4096)));
    let faults = served.end();
    for expected in [
        "the client set unknown flags in the handshake (0x20)",
        "the client sent no option where one was due (magic 0x474554202f204854)",
        "the client sent an option with 4294967295 bytes of data",
        "the client sent more than 256 options",
    ] {
        assert!(faults.iter().any(|fault| fault == expected), "{expected}: {faults:?}");
    }
    assert_eq!(faults.len(), 4, "{faults:?}");
    e2fsck_clean(image.path());
}

#[test]
fn a_handshake_takes_ten_seconds_at_the_most() {
    needs!(Need::Tool("mke2fs"));
    let served = serve(&image());
    let begun = Instant::now();
    let mut silent = served.greet();
    // A byte now and then gives no more time.
    for byte in b"IHAVEOP" {
        std::thread::sleep(Duration::from_millis(700));
        silent.put(&[*byte]);
    }
    silent.closed();
    let took = begun.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(20)).contains(&took), "{took:?}");
    assert_eq!(served.end(), ["the handshake took longer than 10 seconds"]);
}

#[test]
fn requests_that_are_none_end_the_connection() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let served = serve(&image);
    let mut good = served.client(false);
    let mut client = served.client(true);
    let mut wrong = header(READ, 0, 1, 0, 512);
    wrong[0] ^= 1;
    client.put(&wrong);
    client.closed();
    assert_eq!(good.read(0, 4096), Ok(contents(4096)));
    assert_eq!(served.end(), ["the client sent no request where one was due"]);
    e2fsck_clean(image.path());
}

#[test]
fn half_a_message_does_nothing() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let served = serve(&image);
    for cut in [1, 27, 28, 29, 28 + 4096, 28 + 8191] {
        let mut client = served.client(false);
        let whole = [&header(WRITE, FUA, 1, 0, 8192)[..], &[0xee; 8192]].concat();
        client.put(&whole[..cut]);
        client.stream.shutdown(Shutdown::Write).unwrap();
        client.closed();
    }
    let mut client = served.client(false);
    assert_eq!(client.read(0, 8192), Ok(contents(8192)));
    assert_eq!(served.end(), ["the client left in the middle of a message"; 6]);
    e2fsck_clean(image.path());
}

#[test]
fn requests_that_are_refused_leave_the_client_connected() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let served = serve(&image);
    for structured in [false, true] {
        let mut client = served.client(structured);
        for (offset, length) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1), (u64::MAX - 511, 512), (0, 0)] {
            assert_eq!(client.read(offset, length), Err(EINVAL), "{offset} {length}");
        }
        // Longer than promised, if it were inside.
        assert_eq!(client.read(0, (32 << 20) + 1), Err(EINVAL));
        assert_eq!(client.write(0, SIZE - 1, b"ab"), ENOSPC);
        assert_eq!(client.write(0, u64::MAX - 1, b"ab"), ENOSPC);
        assert_eq!(client.write(DF, 0, b"ab"), EINVAL);
        assert_eq!(client.write(0x8000, 0, b"ab"), EINVAL);
        assert_eq!(client.done(WRITE_ZEROES, 0, SIZE - 1, 2), ENOSPC);
        assert_eq!(client.done(WRITE_ZEROES, DF, 0, 2), EINVAL);
        assert_eq!(client.done(TRIM, 0, SIZE, 1), EINVAL);
        assert_eq!(client.done(TRIM, 0, 0, 0), EINVAL);
        assert_eq!(client.done(FLUSH, REQ_ONE, 0, 0), EINVAL);
        for command in [CACHE, 8, 9, 0xffff] {
            assert_eq!(client.done(command, 0, 0, 512), EINVAL);
        }
        if structured {
            assert_eq!(client.status(0, SIZE, 1), Err(EINVAL));
            assert_eq!(client.status(DF, 0, 1), Err(EINVAL));
        } else {
            assert_eq!(client.done(BLOCK_STATUS, 0, 0, 512), EINVAL);
            client.send(READ, DF, 5, 0, 512);
            assert_eq!(client.simple(), (5, EINVAL));
        }
        // A refused write's payload was read past: this is still in step.
        assert_eq!(client.read(0, 100), Ok(contents(100)));
    }
    assert_eq!(served.end(), [""; 0]);
    e2fsck_clean(image.path());
}

#[test]
fn a_client_that_takes_no_answers_waits_alone() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let served = serve(&image);
    let mut greedy = served.client(false);
    let before = memory();
    let requests: Vec<u8> = (0..600).flat_map(|cookie| header(READ, 0, cookie, 0, 1 << 20)).collect();
    greedy.put(&requests);
    std::thread::sleep(Duration::from_millis(500));
    let mut good = served.client(true);
    assert_eq!(good.read(0, 4096), Ok(contents(4096)));
    assert_eq!(good.write(FUA, 0, &contents(4096)), 0);
    // 64 MiB of requests, 32 of answers, and what the pool rounds up.
    let grown = memory().saturating_sub(before);
    assert!(grown < 200 << 20, "{grown} bytes");
    // What waited is answered as it should be.
    for _ in 0..600 {
        assert_eq!(greedy.simple().1, 0);
        greedy.take(1 << 20);
    }
    drop(greedy);
    served.end();
    e2fsck_clean(image.path());
}

/// More requests than the server takes at once have come before the first is answered.
#[test]
fn requests_beyond_the_depth_are_answered_without_another_word() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let served = serve(&image);
    let mut client = served.client(false);
    let count = 3 * 128 + 7;
    for _ in 0..20 {
        let requests: Vec<u8> = (0..count).flat_map(|cookie| header(READ, 0, cookie, 0, 512)).collect();
        client.put(&requests);
        for _ in 0..count {
            assert_eq!(client.simple().1, 0);
            client.take(512);
        }
    }
    drop(client);
    served.end();
    e2fsck_clean(image.path());
}

#[test]
fn a_client_that_takes_no_answers_holds_a_stop_up_for_seconds_only() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let served = serve(&image);
    let mut greedy = served.client(false);
    (0..16).for_each(|cookie| greedy.send(READ, 0, cookie, 0, 4 << 20));
    // The first answer has begun.
    greedy.take(16);
    let begun = Instant::now();
    assert_eq!(served.end(), ["the client took no replies for 5 seconds while the server was shutting down"]);
    assert!(begun.elapsed() < Duration::from_secs(20));
    e2fsck_clean(image.path());
}

/// Bytes of memory that this process has.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn clients_beyond_the_limit_are_turned_away() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let (export, _) = export(device(image.path(), true), false);
    let served = Served::start(export, ServerOptions { connections: 2, once: false });
    let (mut first, second) = (served.client(false), served.client(false));
    let mut rest = Vec::new();
    let mut third = served.connect();
    std::io::Read::read_to_end(&mut third, &mut rest).unwrap();
    assert_eq!(rest, b"");
    drop(second);
    let deadline = Instant::now() + Duration::from_secs(10);
    // Its place is free soon.
    loop {
        let mut again = served.connect();
        if std::io::Read::read_exact(&mut again, &mut [0; 18]).is_ok() {
            break;
        }
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(first.read(0, 10), Ok(contents(10)));
    served.end();
}

#[test]
fn random_bytes_never_stop_the_server() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let served = serve(&image);
    let mut rng = Rng::new(61);
    let before = served.client(false).read(0, 1 << 20);
    for round in 0..200 {
        let mut client = if round % 2 == 0 { served.greet() } else { served.client(round % 3 == 0) };
        // Mostly right: a message with some bytes changed.
        let length = rng.below(200) as u32;
        let command = *rng.pick(&[READ, TRIM, FLUSH, BLOCK_STATUS, CACHE]);
        let mut message = match round % 2 {
            0 => [b"IHAVEOPT", &rng.below(12).big(4)[..], &length.big(4), &vec![0; length as usize]].concat(),
            _ => header(command, rng.below(32) as u16, 1, rng.below(SIZE), length),
        };
        for _ in 0..rng.below(4) {
            let at = rng.below(message.len() as u64) as usize;
            // Not the command: a random write would change the file.
            if round % 2 == 0 || !(6..8).contains(&at) {
                message[at] = rng.next_u64() as u8;
            }
        }
        let _may_be_closed = std::io::Write::write_all(&mut client.stream, &message);
        client.stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _any = std::io::Read::read_to_end(&mut client.stream, &mut answer);
    }
    // Trims may have taken whole blocks.
    let (before, after) = (before.unwrap(), served.client(false).read(0, 1 << 20).unwrap());
    for (old, new) in before.chunks(4096).zip(after.chunks(4096)) {
        assert!(old == new || new.iter().all(|byte| *byte == 0));
    }
    served.end();
    e2fsck_clean(image.path());
}
