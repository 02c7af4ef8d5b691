//! What clients and server agree on before the first request.

use crate::common::*;
use uext4_serve::{Export, ServerOptions};
use uext4_testkit::{Need, needs};

fn named() -> Served {
    let image = image();
    let (export, _) = export(device(image.path(), true), false);
    let export = export.named(b"vm").unwrap().described("a disk");
    Served::start(export, ServerOptions::default())
}

#[test]
fn information_about_the_export() {
    needs!(Need::Tool("mke2fs"));
    let served = named();
    let mut client = served.greet();
    assert_eq!(client.option(STRUCTURED, b""), [(ACK, vec![])]);
    let replies = client.option(INFO, &go(b"vm", &[1, 2, 3, 99]));
    let [(3, export), (3, name), (3, description), (3, sizes), (ACK, end)] = &replies[..] else {
        panic!("{replies:?}");
    };
    assert_eq!(export[..10], [&[0; 2][..], &SIZE.big(8)].concat());
    // HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, DF, MULTI_CONN, FAST_ZERO.
    assert_eq!(number(&export[10..]), 0b1001_1110_1101);
    assert_eq!(name[..], *b"\0\x01vm");
    assert_eq!(description[..], *b"\0\x02a disk");
    assert_eq!(sizes[2..].chunks(4).map(number).collect::<Vec<_>>(), [1, 4096, 32 << 20]);
    assert!(end.is_empty());
    // It was information only: options go on.
    let list = client.option(LIST, b"");
    assert_eq!(list, [(2, [&2_u32.big(4)[..], b"vma disk"].concat()), (ACK, vec![])]);
    assert_eq!(client.option(INFO, &go(b"other", &[])).last().unwrap().0, UNKNOWN);
    assert_eq!(client.option(GO, &go(b"", &[])).last().unwrap().0, UNKNOWN);
    assert_eq!(client.option(GO, &go(b"vm", &[])).last().unwrap().0, ACK);
    client.structured = true;
    assert_eq!(client.read(0, 10), Ok(contents(10)));
    assert_eq!(served.end(), [""; 0]);
}

#[test]
fn the_oldest_way_to_ask_for_an_export() {
    needs!(Need::Tool("mke2fs"));
    let served = named();
    for flags in [1, 3] {
        let mut client = Client::greet(served.connect(), flags);
        client.send_option(EXPORT_NAME, 2, b"vm");
        assert_eq!(number(&client.take(8)), SIZE);
        // Without structured replies no DF.
        assert_eq!(number(&client.take(2)), 0b1001_0110_1101);
        if flags == 1 {
            assert_eq!(client.take(124), [0; 124]);
        }
        assert_eq!(client.read(1, 10).unwrap(), contents(11)[1..]);
    }
    let mut client = served.greet();
    client.send_option(EXPORT_NAME, 5, b"other");
    client.closed();
    assert_eq!(served.end(), ["the client asked for another export: `other`"]);
}

#[test]
fn options_that_are_refused_leave_the_client_connected() {
    needs!(Need::Tool("mke2fs"));
    let served = named();
    let mut client = served.greet();
    let last = |replies: Vec<(u32, Vec<u8>)>| replies.last().unwrap().0;
    assert_eq!(last(client.option(STARTTLS, b"")), UNSUPPORTED);
    assert_eq!(last(client.option(11, b"")), UNSUPPORTED);
    assert_eq!(last(client.option(4711, &[1; 60_000])), UNSUPPORTED);
    assert_eq!(last(client.option(STRUCTURED, b"x")), INVALID);
    assert_eq!(last(client.option(LIST, b"x")), INVALID);
    let whole = go(b"vm", &[1]);
    for wrong in
        [&whole[..whole.len() - 1], &[&whole[..], b"x"].concat(), b"", b"\xff\xff\xff\xff", b"\0\0\0\x09vm"]
    {
        assert_eq!(last(client.option(GO, wrong)), INVALID, "{wrong:?}");
    }
    // Longer than any name.
    assert_eq!(last(client.option(INFO, &go(&[b'a'; 4097], &[]))), INVALID);
    assert_eq!(last(client.option(ABORT, b"")), ACK);
    client.closed();
    assert_eq!(served.end(), [""; 0]);
}

#[test]
fn metadata_contexts() {
    needs!(Need::Tool("mke2fs"));
    let served = named();
    let mut client = served.greet();
    let set: &[&[u8]] = &[b"base:allocation"];
    // Structured replies come first.
    assert_eq!(client.option(SET_CONTEXTS, &contexts(b"vm", set)).last().unwrap().0, INVALID);
    assert_eq!(client.option(STRUCTURED, b""), [(ACK, vec![])]);
    let context = |id: u32| (4, [&id.big(4)[..], b"base:allocation"].concat());
    let all: &[&[u8]] = &[b"base:"];
    for query in [&[][..], set, all] {
        assert_eq!(client.option(LIST_CONTEXTS, &contexts(b"vm", query)), [context(0), (ACK, vec![])]);
    }
    let other: &[&[u8]] = &[b"qemu:dirty-bitmap:b"];
    assert_eq!(client.option(LIST_CONTEXTS, &contexts(b"vm", other)), [(ACK, vec![])]);
    assert_eq!(client.option(SET_CONTEXTS, &contexts(b"vm", set)), [context(1), (ACK, vec![])]);
    let whole = contexts(b"vm", set);
    for wrong in
        [&whole[..whole.len() - 1], &[&whole[..], b"x"].concat(), b"", b"\0\0\0\x02vm\xff\xff\xff\xff"]
    {
        assert_eq!(client.option(SET_CONTEXTS, wrong).last().unwrap().0, INVALID, "{wrong:?}");
    }
    assert_eq!(client.option(SET_CONTEXTS, &contexts(b"no", set)).last().unwrap().0, UNKNOWN);
    // Each of these took away what was set.
    assert_eq!(client.option(GO, &go(b"vm", &[])).last().unwrap().0, ACK);
    client.structured = true;
    assert_eq!(client.send_status(), EINVAL);
    assert_eq!(served.end(), [""; 0]);
}

impl Client {
    /// Asks for block status without having negotiated it: the error of the simple reply.
    fn send_status(&mut self) -> u32 {
        self.done(BLOCK_STATUS, 0, 0, 4096)
    }
}

#[test]
fn names_that_no_client_could_send() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let make = || export(device(image.path(), false), true).0;
    let refused = |made: Result<Export, uext4_serve::Error>| {
        assert_eq!(
            made.unwrap_err().to_string(),
            "the name of an export has at most 4096 bytes and no zero byte"
        );
    };
    refused(make().named(&[b'a'; 4097]));
    refused(make().named(b"a\0b"));
    assert!(make().named(&[b'a'; 4096]).is_ok());
}
