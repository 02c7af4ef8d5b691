//! How a server begins and ends.

use crate::common::*;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use uext4_serve::{Error, Server, ServerOptions};
use uext4_testkit::{Need, Scratch, e2fsck_clean, needs};

#[test]
fn a_stop_finishes_what_is_under_way() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let served = serve(&image);
    let mut client = served.client(false);
    let mut slow = served.greet();
    slow.put(b"IHAVE");
    let data = contents(4096);
    for cookie in 0..64 {
        client.put(&[&header(WRITE, 0, cookie, cookie * 4096, 4096)[..], &data].concat());
    }
    // All of them have come.
    let mut told: Vec<u64> = (0..64)
        .map(|_| client.simple())
        .map(|(cookie, error)| {
            assert_eq!(error, 0);
            cookie
        })
        .collect();
    told.sort_unstable();
    assert_eq!(told, (0..64).collect::<Vec<_>>());
    // Half a write is not done.
    client.put(&header(WRITE, 0, 99, 0, 4096));
    assert_eq!(served.end(), [""; 0]);
    let mut answer = Vec::new();
    std::io::Read::read_to_end(&mut client.stream, &mut answer).unwrap();
    // Its header may have been seen.
    assert!(answer.is_empty() || number(&answer[4..8]) == 108 && answer.len() == 16, "{answer:?}");
    e2fsck_clean(image.path());
    let served = serve(&image);
    assert_eq!(served.client(false).read(63 * 4096, 4096), Ok(data));
    served.end();
}

#[test]
fn requests_after_a_stop_are_answered_or_the_socket_is_closed() {
    needs!(Need::Tool("mke2fs"));
    let served = serve(&image());
    let mut client = served.client(false);
    served.stop();
    let sent = std::io::Write::write_all(&mut client.stream, &header(READ, 0, 5, 0, 512));
    let mut answer = Vec::new();
    let got = std::io::Read::read_to_end(&mut client.stream, &mut answer);
    if sent.is_ok() && got.is_ok() && !answer.is_empty() {
        let error = number(&answer[4..8]);
        assert!(error == 108 || (error == 0 && answer.len() == 16 + 512), "{error}");
    }
    served.end();
}

#[test]
fn once_ends_with_the_last_client() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let (export, _) = export(device(image.path(), true), false);
    let mut served = Served::start(export, ServerOptions { once: true, ..ServerOptions::default() });
    // One that never asks for the export does not count.
    drop(served.greet());
    let (mut first, mut second) = (served.client(false), served.client(false));
    assert_eq!(first.write(0, 0, &[9; 4096]), 0);
    first.send(DISCONNECT, 0, 0, 0, 0);
    first.closed();
    assert_eq!(second.read(0, 4096), Ok(vec![9; 4096]));
    drop(second);
    served.join().unwrap();
    e2fsck_clean(image.path());
}

#[test]
fn sockets_are_private_and_only_dead_ones_are_replaced() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let scratch = Scratch::new(1 << 20);
    let make = || Server::new(export(device(image.path(), false), true).0, ServerOptions::default()).unwrap();
    let path = scratch.file("s");
    drop(UnixListener::bind(&path).unwrap());
    let mut server = make();
    server.listen_at(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut other = make();
    assert!(matches!(other.listen_at(&path), Err(Error::Taken(at)) if at == path));
    assert!(matches!(other.listen_at(&scratch.file("none/s")), Err(Error::Bind { .. })));
    let file = scratch.file("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(matches!(other.listen_at(&file), Err(Error::Bind { .. })));
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    drop(server);
    assert!(!path.exists());
}

#[test]
fn tcp_clients_see_the_same_bytes() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let mut server =
        Server::new(export(device(image.path(), true), false).0, ServerOptions::default()).unwrap();
    let address = server.listen_on("127.0.0.1:0".parse().unwrap()).unwrap();
    assert!(matches!(server.listen_on(address), Err(Error::Listen { .. })));
    let stopper = server.stopper();
    let thread = std::thread::spawn(move || server.run(|fault| panic!("{fault}")));
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let asked =
        [&3_u32.big(4)[..], b"IHAVEOPT", &EXPORT_NAME.big(4), &[0; 4], &header(READ, 0, 7, 5, 100)].concat();
    std::io::Write::write_all(&mut stream, &asked).unwrap();
    let mut answer = vec![0; 18 + 10 + 16 + 100];
    std::io::Read::read_exact(&mut stream, &mut answer).unwrap();
    assert_eq!(answer[44..], contents(105)[5..]);
    drop(stream);
    stopper.stop();
    thread.join().unwrap().unwrap();
    e2fsck_clean(image.path());
}
