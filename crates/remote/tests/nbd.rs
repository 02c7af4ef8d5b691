//! NBD: exports of nbdkit and qemu-nbd as devices.

use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{
    BufferPool, Device, DeviceQueue, Done, Error, Memory, Op, OpenOptions, QueueOptions, Registry, Request,
    Sharing, Wait, WriteDurability,
};
use uext4_testkit::conformance::{SIZE, conformance, pattern, reap_all, request};
use uext4_testkit::{NbdServer, Need, Scratch, needs};

const REGISTRY: Registry<'static> = Registry { engines: uext4_remote::ENGINES, ..Registry::EMPTY };

pub(crate) fn open(text: &str, write: bool) -> Result<Arc<dyn Device>, Error> {
    let options = OpenOptions { write, force: false };
    uext4_blockdev::open_with(&DeviceSpec::parse(text)?, options, &REGISTRY).map(|opened| opened.device)
}

pub(crate) fn writable(server: &NbdServer) -> Arc<dyn Device> {
    open(&server.device(""), true).unwrap()
}

fn has_note(device: &dyn Device, part: &str) -> bool {
    device.describe().notes.iter().any(|note| note.contains(part))
}

/// Reads or writes that are in flight together; results by tag.
fn together(device: &dyn Device, op: Op, places: &[u64], length: u32) -> Vec<i32> {
    let pool = BufferPool::new(64 << 20).unwrap();
    let mut buffers: Vec<_> = places.iter().map(|_| pool.take(length as usize).unwrap()).collect();
    let mut queue = device.queue(&QueueOptions::depth(places.len() as u32)).unwrap();
    for (tag, (pos, buffer)) in places.iter().zip(&mut buffers).enumerate() {
        // SAFETY: the buffers outlive the completions, which are all reaped below.
        unsafe { queue.push(request(op, *pos, length, buffer.memory(0), tag as u64)) }.unwrap();
    }
    queue.submit().unwrap();
    reap_all(&mut queue).iter().map(|done| done.result).collect()
}

#[test]
fn nbdkit_conforms_with_every_way_to_be_durable() {
    needs!(Need::Tool("nbdkit"));
    // The filter hides FUA unless told otherwise.
    for fua in ["none", "emulate", "native"] {
        let mode = format!("fuamode={fua}");
        let arguments = ["--filter=fua", "memory", "4M", &mode];
        let server = NbdServer::nbdkit(&arguments[..if fua == "none" { 3 } else { 4 }]);
        let device = writable(&server);
        let capabilities = device.capabilities();
        assert!(capabilities.volatile_cache && capabilities.discard);
        assert_eq!(capabilities.fua, fua != "none");
        assert_eq!(has_note(&*device, "no FUA"), fua == "none");
        conformance(&*device);
    }
}

#[test]
fn nbdkit_conforms_with_one_connection_and_with_several() {
    needs!(Need::Tool("nbdkit"));
    let scratch = Scratch::new(16 << 20);
    let file = scratch.sparse_file("disk", SIZE).display().to_string();
    for (mode, note) in [("disable", "one connection: "), ("emulate", "of at most 8 connections")] {
        let server =
            NbdServer::nbdkit(&["--filter=multi-conn", "file", &file, &format!("multi-conn-mode={mode}")]);
        let device = writable(&server);
        conformance(&*device);
        assert!(has_note(&*device, note), "{:?}", device.describe());
        let described = device.describe();
        assert_eq!((described.engine, described.sharing), ("nbd+unix", Sharing::Unlocked));
        assert_eq!(format!("nbd+unix:{}", described.locator), server.device(""));
    }
}

#[test]
fn qemu_nbd_conforms() {
    needs!(Need::Tool("qemu-nbd"));
    let scratch = Scratch::new(16 << 20);
    let file = scratch.sparse_file("disk", SIZE).display().to_string();
    let server = NbdServer::qemu(&["--shared=3", "--format=raw", &file]);
    let device = writable(&server);
    assert!(has_note(&*device, "smallest 1, preferred"), "{:?}", device.describe());
    conformance(&*device);
    // The server leaves a fourth client waiting: the device goes on with three connections.
    let queues: Vec<_> = (0..4).map(|_| device.queue(&QueueOptions::depth(1)).unwrap()).collect();
    let fallbacks = queues[3].facts().fallbacks;
    assert!(
        fallbacks.iter().any(|fallback| fallback.contains("without another connection")),
        "{fallbacks:?}"
    );
    assert!(has_note(&*device, "3 connections; another one was refused"), "{:?}", device.describe());
}

#[test]
fn connections_are_as_many_as_the_user_says() {
    needs!(Need::Tool("nbdkit"));
    let server = NbdServer::nbdkit(&["memory", "1M"]);
    let device = open(&format!("{}&connections=3", server.device("")), false).unwrap();
    assert!(has_note(&*device, "3 of at most 3 connections"), "{:?}", device.describe());
    let one = open(&format!("{}&connections=1", server.device("")), false).unwrap();
    let _queues: Vec<_> = (0..3).map(|_| one.queue(&QueueOptions::depth(1)).unwrap()).collect();
    assert!(has_note(&*one, "1 of at most 1 connections"), "{:?}", one.describe());
}

#[test]
fn block_sizes_of_the_server_are_obeyed() {
    needs!(Need::Tool("nbdkit"));
    let policy = ["--filter=blocksize-policy", "--filter=log", "memory", "8M"];
    let limits = ["blocksize-minimum=4096", "blocksize-preferred=8192", "blocksize-maximum=64k"];
    let scratch = Scratch::new(1 << 20);
    let log = scratch.file("log");
    let logfile = format!("logfile={}", log.display());
    // Anything else is answered with an error.
    let last = ["blocksize-error-policy=error", &logfile];
    let server = NbdServer::nbdkit(&[&policy[..], &limits, &last].concat());
    let device = writable(&server);
    assert_eq!(device.geometry().logical_block, 4096);
    assert!(has_note(&*device, "smallest 4096, preferred 8192, largest request 65536"));
    conformance(&*device);
    let mut data = vec![0; 5 << 20];
    pattern(3, &mut data);
    device.write_at(&data, 4096, WriteDurability::Fua).unwrap();
    let mut back = vec![0; data.len()];
    device.read_at(&mut back, 4096).unwrap();
    assert!(data == back);
    let log = std::fs::read_to_string(&log).unwrap();
    let fua = log.lines().filter(|line| line.contains("Write") && line.contains("count=0x10000 fua=1"));
    assert!(fua.count() >= 80, "every piece carries FUA");
    // A long request in a queue is one request to its user; one that must not be split fails at once.
    assert_eq!(together(&*device, Op::Read, &[0, 1 << 20], 3 << 20), [3 << 20; 2]);
    assert_eq!(together(&*device, Op::Write, &[4096, 4 << 20], 3 << 20), [3 << 20; 2]);
    let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
    let mut buffer = BufferPool::new(1 << 20).unwrap().take(128 << 10).unwrap();
    let read = Request { nowait: true, ..request(Op::Read, 0, 128 << 10, buffer.memory(0), 5) };
    // SAFETY: the buffer outlives the completion.
    unsafe { queue.push(read) }.unwrap();
    assert_eq!(reap_all(&mut queue), [Done { tag: 5, result: -libc::EAGAIN }]);
    assert_eq!(device.read_nowait(&mut buffer, 0).unwrap_err().errno(), libc::EAGAIN);
    device.read_nowait(&mut buffer[..64 << 10], 0).unwrap();
}

#[test]
fn zeros_are_requests_without_data_where_the_server_takes_them() {
    needs!(Need::Tool("nbdkit"));
    let scratch = Scratch::new(1 << 20);
    let length = (130 << 20) + 4096;
    for filter in ["fua", "nozero"] {
        let log = scratch.file(filter);
        let logfile = format!("logfile={}", log.display());
        let server =
            NbdServer::nbdkit(&["--filter=log", &format!("--filter={filter}"), "memory", "256M", &logfile]);
        let device = writable(&server);
        device.write_at(&[0xa5; 4096], 0, WriteDurability::Cached).unwrap();
        device.write_at(&[0xa5; 8192], length, WriteDurability::Cached).unwrap();
        device.write_zeros(4096, length).unwrap();
        let mut found = [1; 12288];
        device.read_at(&mut found, length - 4096).unwrap();
        assert!(found[..8192] == [0; 8192] && found[8192..] == [0xa5; 4096], "{filter}");
        device.read_at(&mut found[..8192], 0).unwrap();
        assert!(found[..4096] == [0xa5; 4096] && found[4096..8192] == [0; 4096], "{filter}");
        let takes = filter == "fua";
        assert_eq!(has_note(&*device, "takes no request for zeros"), !takes);
        // In flight together: nbdkit's threads write them down in any order.
        let (mut zeros, writes) = (NbdServer::logged(&log, "Zero"), NbdServer::logged(&log, "Write"));
        zeros.sort_unstable_by(|one, other| other.cmp(one));
        if takes {
            assert_eq!((zeros, writes), (vec![64 << 20, 64 << 20, (2 << 20) + 4096], vec![4096, 8192]));
            let log = std::fs::read_to_string(&log).unwrap();
            let kept =
                log.lines().filter(|line| line.contains(" Zero id=")).all(|line| line.contains("trim=0"));
            assert!(kept, "the space stays: {log}");
        } else {
            assert_eq!((zeros.len(), writes.iter().sum::<u64>()), (0, length + 12288));
        }
    }
    // Without flush, zeros too must be durable by themselves.
    let log = scratch.file("through");
    let logfile = format!("logfile={}", log.display());
    let script = "case $1 in get_size) echo 1M;; can_write|can_zero) exit 0;; can_fua) echo native;; \
                  can_flush|can_trim) exit 3;; pread) head -c $3 /dev/zero;; pwrite) cat >/dev/null;; \
                  zero) exit 0;; *) exit 2;; esac";
    let server = NbdServer::nbdkit(&["--filter=log", "eval", &logfile, &format!("missing={script}")]);
    let device = writable(&server);
    assert!(!device.capabilities().volatile_cache, "{:?}", device.describe());
    device.write_zeros(0, 8192).unwrap();
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.lines().any(|line| line.contains("Zero id=") && line.contains("fua=1")), "{log}");
}

#[test]
fn an_end_that_is_no_block_is_cut() {
    needs!(Need::Tool("nbdkit"));
    let server = NbdServer::nbdkit(&["memory", "1048677"]);
    let device = writable(&server);
    assert_eq!(device.geometry().size, 1 << 20);
    assert!(has_note(&*device, "the last 101 bytes are not used"));
}

#[test]
fn exports_without_writes_flush_or_discard() {
    needs!(Need::Tool("nbdkit"));
    let server = NbdServer::nbdkit(&["--readonly", "memory", "1M"]);
    let refused = open(&server.device(""), true).unwrap_err();
    assert_eq!(refused.errno(), libc::EROFS);
    assert!(refused.to_string().contains("open for writing: the export is read-only"), "{refused}");
    let device = open(&server.device(""), false).unwrap();
    assert!(device.capabilities().read_only && has_note(&*device, "the export is read-only"));
    assert_eq!(device.write_at(&[0; 512], 0, WriteDurability::Cached), Err(Error::ReadOnly));
    assert_eq!(device.discard(0, 512), Err(Error::ReadOnly));
    assert_eq!(together(&*device, Op::Write, &[0], 512), [-libc::EROFS]);

    let size = ["get_size=echo 1M", "pread=head -c $3 /dev/zero"];
    let plain = ["eval", size[0], size[1], "pwrite=cat > /dev/null"];
    let device_of = |more: &[&str]| {
        let server = NbdServer::nbdkit(&[&plain, more].concat());
        let device = writable(&server);
        (server, device)
    };
    let (_server, device) = device_of(&[]);
    let capabilities = device.capabilities();
    assert!(!capabilities.volatile_cache && !capabilities.fua && !capabilities.discard);
    assert!(has_note(&*device, "neither flush nor FUA") && has_note(&*device, "no discards"));
    device.write_at(&[0; 512], 0, WriteDurability::Fua).unwrap();
    device.flush().unwrap();
    assert!(matches!(device.discard(0, 512), Err(Error::Unsupported(_))));
    assert_eq!(together(&*device, Op::Flush, &[0], 512), [0]);
    assert_eq!(together(&*device, Op::Discard, &[0], 512), [-libc::EOPNOTSUPP]);
}

/// Without flush, FUA is the only way to be durable: every write carries it.
#[test]
fn without_flush_every_write_carries_fua() {
    needs!(Need::Tool("nbdkit"));
    let scratch = Scratch::new(1 << 20);
    let log = scratch.file("log").display().to_string();
    let pwrite = format!("pwrite=cat > /dev/null; echo \"[$5]\" >> {log}");
    let server = NbdServer::nbdkit(&[
        "eval",
        "get_size=echo 1M",
        "pread=head -c $3 /dev/zero",
        &pwrite,
        "can_fua=echo native",
    ]);
    let device = writable(&server);
    let capabilities = device.capabilities();
    assert!(!capabilities.volatile_cache && capabilities.fua, "{capabilities:?}");
    device.write_at(&[0; 512], 0, WriteDurability::Cached).unwrap();
    assert_eq!(together(&*device, Op::Write, &[0], 512), [512]);
    assert_eq!(std::fs::read_to_string(log).unwrap(), "[fua]\n[fua]\n");
}

#[test]
fn what_does_not_exist_is_told() {
    needs!(Need::Tool("nbdkit"));
    let missing = open("nbd+unix:///?socket=/nonexistent/socket", false).unwrap_err();
    assert_eq!(missing.errno(), libc::ENOENT, "{missing}");
    let said = "nbd+unix:///?socket=/nonexistent/socket: connect: No such file or directory";
    assert_eq!(missing.to_string(), said);
    let exact = ["--filter=exportname", "memory", "1M", "exportname=disk", "exportname-strict=true"];
    let server = NbdServer::nbdkit(&exact);
    open(&server.device("disk"), false).unwrap();
    let other = open(&server.device("other"), false).unwrap_err();
    assert!(matches!(other, Error::Remote { .. }) && other.to_string().contains("/other?"), "{other}");
    let empty = NbdServer::nbdkit(&["memory", "0"]);
    assert!(matches!(open(&empty.device(""), false), Err(Error::Unsupported(_))));
    let refused = open("nbd://127.0.0.1:1/", false).unwrap_err();
    assert_eq!(refused.errno(), libc::ECONNREFUSED, "{refused}");
    assert!(refused.to_string().starts_with("nbd://127.0.0.1:1/: connect: "), "{refused}");
}

/// A port of its own, from which bytes go to the server's socket and back.
fn by_tcp(socket: PathBuf) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // It ends with the program: nobody connects any more.
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), UnixStream::connect(&socket).unwrap());
            let (from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _gone = std::io::copy(&mut &from, &mut to);
                let _gone = to.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let _gone = std::io::copy(&mut &server, &mut &client);
                let _gone = client.shutdown(Shutdown::Both);
            });
        }
    });
    port
}

#[test]
fn over_tcp() {
    needs!(Need::Tool("nbdkit"));
    let server = NbdServer::nbdkit(&["--filter=exportname", "memory", "4M", "exportname=a disk"]);
    let port = by_tcp(server.socket());
    for host in ["127.0.0.1", "localhost"] {
        let device = open(&format!("nbd://{host}:{port}/a%20disk"), true).unwrap();
        assert_eq!(device.describe().engine, "nbd");
        assert_eq!(device.describe().locator, format!("//{host}:{port}/a%20disk"));
        conformance(&*device);
        assert!(is_asked_in_time(port), "a machine that goes without a word would be waited for for ever");
    }
}

/// Whether a connection to this port has the timer of `SO_KEEPALIVE` running, for a minute at the most.
fn is_asked_in_time(port: u16) -> bool {
    let asked = || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        table.lines().any(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (timer, left) = fields[5].split_once(':').unwrap_or_default();
            let ours = fields[2].ends_with(&format!(":{port:04X}")) && fields[3] == "01";
            ours && timer == "02" && u64::from_str_radix(left, 16).is_ok_and(|left| left <= 6000)
        })
    };
    // Another timer may run while something is under way.
    let again = |_| {
        std::thread::sleep(Duration::from_millis(20));
        asked()
    };
    (0..50).any(again)
}

/// ddrescue's map says which bytes cannot be read.
#[test]
fn an_error_goes_to_the_request_that_it_belongs_to() {
    needs!(Need::Tool("nbdkit"));
    let scratch = Scratch::new(1 << 20);
    let map = scratch.file("map");
    std::fs::write(&map, "0x0 + 1\n0x0 0x10000 +\n0x10000 0x1000 -\n0x11000 0xef000 +\n").unwrap();
    let mapfile = format!("ddrescue-mapfile={}", map.display());
    for mode in ["disable", "emulate"] {
        let connections = format!("multi-conn-mode={mode}");
        let server = NbdServer::nbdkit(&[
            "--filter=multi-conn",
            "--filter=ddrescue",
            "memory",
            "1M",
            &mapfile,
            &connections,
        ]);
        let device = open(&server.device(""), false).unwrap();
        let places: Vec<u64> = (0..64).map(|block| block * 4096).collect();
        let wanted: Vec<i32> =
            places.iter().map(|&pos| if pos == 0x10000 { -libc::EIO } else { 4096 }).collect();
        assert_eq!(together(&*device, Op::Read, &places, 4096), wanted);
        let error = device.read_at(&mut [0; 4096], 0x10000).unwrap_err();
        assert_eq!(error, Error::Io { op: "read", pos: 0x10000, length: 4096, errno: libc::EIO });
        // The connection is as good as before.
        device.read_at(&mut [0; 4096], 0x11000).unwrap();
    }
}

#[test]
fn errors_of_every_kind_keep_their_number() {
    needs!(Need::Tool("nbdkit"));
    let scratch = Scratch::new(1 << 20);
    let trigger = scratch.file("fail");
    let fails = |errno: &str| {
        let trigger = trigger.display();
        format!("if [ -e {trigger} ]; then echo '{errno} on purpose' >&2; exit 1; fi")
    };
    let kinds = [libc::ENOSPC, libc::EIO, libc::EINVAL];
    let server = NbdServer::nbdkit(&[
        "eval",
        "get_size=echo 1M",
        "pread=head -c $3 /dev/zero",
        &format!("pwrite=cat > /dev/null; {}", fails("ENOSPC")),
        "can_flush=exit 0",
        &format!("flush={}", fails("EIO")),
        "can_trim=exit 0",
        &format!("trim={}", fails("EINVAL")),
    ]);
    let device = writable(&server);
    let calls = || {
        [
            device.write_at(&[1; 512], 1024, WriteDurability::Cached),
            device.flush(),
            device.discard(4096, 4096),
        ]
    };
    let queued = || {
        [(Op::Write, 1024), (Op::Flush, 0), (Op::Discard, 4096)]
            .map(|(op, pos)| together(&*device, op, &[pos], 512)[0])
    };
    assert!(calls().iter().all(Result::is_ok) && queued().iter().all(|&result| result >= 0));
    std::fs::write(&trigger, "").unwrap();
    for (result, errno) in calls().into_iter().zip(kinds) {
        assert!(matches!(result, Err(Error::Io { errno: found, .. }) if found == errno), "{result:?}");
    }
    assert_eq!(queued(), kinds.map(|errno| -errno));
    std::fs::remove_file(&trigger).unwrap();
    assert!(calls().iter().all(Result::is_ok) && queued().iter().all(|&result| result >= 0));
}

pub(crate) fn is_readable(fd: impl AsFd, limit: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap() > 0
}

/// Also when another queue's user takes the reply from the connection that both share, and for what did not fit.
#[test]
fn the_descriptor_tells_of_completions() {
    needs!(Need::Tool("nbdkit"));
    for mode in ["disable", "emulate"] {
        let connections = format!("multi-conn-mode={mode}");
        let server = NbdServer::nbdkit(&["--filter=multi-conn", "memory", "1M", &connections]);
        let device = writable(&server);
        let pool = BufferPool::new(1 << 20).unwrap();
        let mut buffers: Vec<_> = (0..3).map(|_| pool.take(4096).unwrap()).collect();
        let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
        let other = device.queue(&QueueOptions::depth(4)).unwrap();
        let fd = queue.event_fd().unwrap().unwrap().try_clone_to_owned().unwrap();
        assert!(!is_readable(&fd, Duration::from_millis(20)), "nothing is in flight");
        for round in 0..20 {
            for (tag, buffer) in buffers.iter_mut().enumerate() {
                // SAFETY: the buffers outlive the completions.
                unsafe { queue.push(request(Op::Read, 0, 4096, buffer.memory(0), tag as u64)) }.unwrap();
            }
            queue.submit().unwrap();
            if round % 2 == 1 {
                // Its replies come behind ours: with one connection this thread takes both.
                device.read_at(&mut [0; 4096], 0).unwrap();
            }
            let mut out: Vec<Done> = Vec::with_capacity(2);
            let mut seen = 0;
            while queue.in_flight() > 0 {
                assert!(is_readable(&fd, Duration::from_secs(20)), "{mode} {round}: {seen} seen");
                queue.reap(&mut out, Wait::No).unwrap();
                seen += out.len();
                out.clear();
            }
            assert_eq!(seen, 3);
            assert!(!is_readable(&fd, Duration::ZERO), "all is delivered");
        }
        // An answer that no server gives.
        // SAFETY: the buffer outlives the completion.
        unsafe { queue.push(request(Op::Read, 4 << 20, 4096, buffers[0].memory(0), 9)) }.unwrap();
        queue.submit().unwrap();
        assert!(is_readable(&fd, Duration::ZERO));
        assert_eq!(reap_all(&mut queue), [Done { tag: 9, result: -libc::EINVAL }]);
        drop(other);
    }
}

/// Requests that do not fit into the socket go on when it has room, which the descriptor tells too.
#[test]
fn the_descriptor_tells_when_more_can_be_sent() {
    needs!(Need::Tool("nbdkit"));
    // Slow enough that the socket is full when the user waits.
    let server =
        NbdServer::nbdkit(&["--filter=delay", "--filter=noparallel", "memory", "64M", "wdelay=20ms"]);
    let device = writable(&server);
    let pool = BufferPool::new(64 << 20).unwrap();
    let size = 2 << 20;
    let mut buffers: Vec<_> = (0..8).map(|_| pool.take(size).unwrap()).collect();
    let mut queue = device.queue(&QueueOptions::depth(8)).unwrap();
    let fd = queue.event_fd().unwrap().unwrap().try_clone_to_owned().unwrap();
    for (tag, buffer) in buffers.iter_mut().enumerate() {
        pattern(tag as u64, buffer);
        let write = request(Op::Write, (tag * size) as u64, size as u32, buffer.memory(0), tag as u64);
        // SAFETY: the buffers outlive the completions.
        unsafe { queue.push(write) }.unwrap();
    }
    queue.submit().unwrap();
    let mut out: Vec<Done> = Vec::with_capacity(8);
    while queue.in_flight() > 0 {
        assert!(is_readable(&fd, Duration::from_secs(10)), "{out:?}");
        queue.reap(&mut out, Wait::No).unwrap();
    }
    assert!(out.len() == 8 && out.iter().all(|done| done.result == size as i32), "{out:?}");
    let (mut wanted, mut back) = (vec![0; size], vec![0; size]);
    for tag in 0..8 {
        pattern(tag, &mut wanted);
        device.read_at(&mut back, tag * size as u64).unwrap();
        assert!(wanted == back, "{tag}");
    }
}

/// One connection, used by calls and queues of several threads, with requests that do not fit into its buffers.
#[test]
fn threads_share_a_connection() {
    needs!(Need::Tool("nbdkit"));
    let server = NbdServer::nbdkit(&["--filter=multi-conn", "memory", "32M", "multi-conn-mode=disable"]);
    let device = writable(&server);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                let pool = BufferPool::new(16 << 20).unwrap();
                let (size, base) = (1 << 20, thread * (8 << 20));
                let mut buffers: Vec<_> = (0..8).map(|_| pool.take(size).unwrap()).collect();
                for round in 0..4 {
                    let mut queue = device.queue(&QueueOptions::depth(8)).unwrap();
                    for (index, buffer) in buffers.iter_mut().enumerate() {
                        pattern(thread * 100 + round * 10 + index as u64, buffer);
                        let pos = base + (index * size) as u64;
                        let write = request(Op::Write, pos, size as u32, buffer.memory(0), index as u64);
                        // SAFETY: the buffers outlive the completions.
                        unsafe { queue.push(write) }.unwrap();
                    }
                    assert!(reap_all(&mut queue).iter().all(|done| done.result == size as i32));
                    let (mut wanted, mut back) = (vec![0; size], vec![0; size]);
                    for index in 0..8 {
                        pattern(thread * 100 + round * 10 + index, &mut wanted);
                        device.read_at(&mut back, base + index * size as u64).unwrap();
                        assert!(wanted == back, "thread {thread}, round {round}, block {index}");
                    }
                }
            });
        }
    });
}

#[test]
fn a_wait_ends_in_time() {
    needs!(Need::Tool("nbdkit"));
    let server = NbdServer::nbdkit(&["--filter=delay", "memory", "1M", "rdelay=2"]);
    let device = writable(&server);
    let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
    let mut buffer = BufferPool::new(1 << 20).unwrap().take(4096).unwrap();
    let begin = Instant::now();
    // SAFETY: the buffer outlives the completion.
    unsafe { queue.push(request(Op::Read, 0, 4096, buffer.memory(0), 1)) }.unwrap();
    let mut out = Vec::with_capacity(1);
    assert_eq!(queue.reap(&mut out, Wait::Timeout(Duration::from_millis(50))).unwrap(), 0);
    assert!((Duration::from_millis(50)..Duration::from_secs(2)).contains(&begin.elapsed()));
    assert_eq!(queue.reap(&mut out, Wait::AtLeast(1)).unwrap(), 1);
    assert_eq!(out, [Done { tag: 1, result: 4096 }]);
    // A flush has no memory and no place.
    // SAFETY: a flush has no memory.
    unsafe { queue.push(request(Op::Flush, 0, 0, Memory::NONE, 2)) }.unwrap();
    assert_eq!(reap_all(&mut queue), [Done { tag: 2, result: 0 }]);
}

/// A child can drop what it inherits; the parent's connection goes on.
#[test]
fn a_child_uses_nothing_of_its_parent() {
    needs!(Need::Tool("nbdkit"));
    uext4_testkit::own_process!();
    let server = NbdServer::nbdkit(&["memory", "1M"]);
    let device = writable(&server);
    let mut queue = device.queue(&QueueOptions::depth(2)).unwrap();
    let mut buffer = BufferPool::new(1 << 20).unwrap().take(4096).unwrap();
    // SAFETY: the buffer outlives the completion, which the parent reaps.
    unsafe { queue.push(request(Op::Read, 0, 4096, buffer.memory(0), 1)) }.unwrap();
    // SAFETY: the child calls nothing that another thread of the parent could hold a lock of: this process has none.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut out = Vec::with_capacity(1);
        let all = [
            device.read_at(&mut [0; 512], 0).err(),
            device.flush().err(),
            device.queue(&QueueOptions::depth(1)).err(),
            queue.reap(&mut out, Wait::AtLeast(1)).err(),
            queue.submit().err(),
        ];
        let forked = all.iter().all(|error| *error == Some(Error::Forked));
        drop((queue, device));
        // SAFETY: ends the child without running what the parent's test does at its end.
        unsafe { libc::_exit(if forked { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above, into a number of this frame.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(reap_all(&mut queue), [Done { tag: 1, result: 4096 }]);
    device.write_at(&[7; 512], 0, WriteDurability::Fua).unwrap();
}

/// Keys that client and server share, in a file.
#[test]
fn tls_with_shared_keys() {
    needs!(Need::Tool("nbdkit"), Need::Tool("psktool"));
    let scratch = Scratch::new(1 << 20);
    let keys = scratch.file("keys").display().to_string();
    let made = std::process::Command::new("psktool").args(["-u", "alice", "-p", &keys]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let server = NbdServer::nbdkit(&["--tls=require", &format!("--tls-psk={keys}"), "memory", "4M"]);
    let plain = open(&server.device(""), false).unwrap_err();
    assert!(matches!(plain, Error::Remote { action: "connect", .. }), "{plain}");
    let secret = server.device("").replace("nbd+unix", "nbds+unix");
    let device = open(&format!("{secret}&tls-psk-file={keys}&tls-username=alice"), true).unwrap();
    assert!(has_note(&*device, "with TLS"));
    conformance(&*device);
    let other = open(&format!("{secret}&tls-psk-file={keys}&tls-username=bob"), true).unwrap_err();
    assert!(matches!(other, Error::Remote { .. }), "{other}");
    // A certificate could not be checked: the socket has no host name.
    assert!(matches!(open(&secret, true), Err(Error::Unsupported(_))));
    // A server without TLS is not used without it.
    let open_server = NbdServer::nbdkit(&["memory", "4M"]);
    let secret = open_server.device("").replace("nbd+unix", "nbds+unix");
    let refused = open(&format!("{secret}&tls-verify-peer=0"), true).unwrap_err();
    assert!(matches!(refused, Error::Remote { .. }), "{refused}");
}

/// Runs a program that must succeed.
fn run(program: &str, arguments: &[&str]) {
    let output = std::process::Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

/// A directory as libnbd and nbdkit want it: who signs (`ca-cert.pem`), a server called `localhost`, and a client.
fn certificates(directory: &std::path::Path) -> String {
    std::fs::create_dir(directory).unwrap();
    let at = |name: &str| directory.join(name).display().to_string();
    for (name, template) in [
        ("ca", "cn = us\nca\ncert_signing_key\n"),
        ("server", "cn = localhost\ndns_name = localhost\ntls_www_server\nsigning_key\nencryption_key\n"),
        ("client", "cn = somebody\ntls_www_client\nsigning_key\nencryption_key\n"),
    ] {
        let (key, certificate, info) =
            (at(&format!("{name}-key.pem")), at(&format!("{name}-cert.pem")), at("info"));
        std::fs::write(&info, template).unwrap();
        run("certtool", &["--generate-privkey", "--ecc", "--outfile", &key]);
        let made = ["--template", &info, "--load-privkey", &key, "--outfile", &certificate];
        let (ca_key, ca) = (at("ca-key.pem"), at("ca-cert.pem"));
        match name {
            "ca" => run("certtool", &[&["--generate-self-signed"], &made[..]].concat()),
            _ => {
                let signed = ["--load-ca-certificate", &ca, "--load-ca-privkey", &ca_key];
                run("certtool", &[&["--generate-certificate"], &made[..], &signed].concat());
            }
        }
    }
    directory.display().to_string()
}

/// The server's certificate must be signed by whom the user trusts, and be for the host; the client shows its own.
#[test]
fn tls_with_certificates() {
    needs!(Need::Tool("nbdkit"), Need::Tool("certtool"));
    let scratch = Scratch::new(1 << 20);
    let (ours, others) = (certificates(&scratch.file("ours")), certificates(&scratch.file("others")));
    let kept = format!("--tls-certificates={ours}");
    let server = NbdServer::nbdkit(&["--tls=require", &kept, "--tls-verify-peer", "memory", "4M"]);
    let port = by_tcp(server.socket());
    let at = |host: &str, options: &str| open(&format!("nbds://{host}:{port}/?{options}"), true);
    let trusted = format!("tls-certificates={ours}");
    let device = at("localhost", &trusted).unwrap();
    assert!(has_note(&*device, "with TLS"));
    conformance(&*device);
    drop(device);
    let refused = |host: &str, options: &str| {
        let error = at(host, options).expect_err(options);
        assert!(matches!(error, Error::Remote { action: "connect", .. }), "{options}: {error}");
    };
    // Another name, somebody else's signature, and a client that shows nothing or what the server does not trust.
    refused("127.0.0.1", &trusted);
    refused("localhost", &format!("tls-certificates={others}"));
    refused("localhost", &format!("tls-certificates={others}&tls-verify-peer=0"));
    std::fs::remove_file(scratch.file("ours/client-cert.pem")).unwrap();
    std::fs::remove_file(scratch.file("ours/client-key.pem")).unwrap();
    refused("localhost", &trusted);
    // A server that asks for nothing.
    let server = NbdServer::nbdkit(&["--tls=require", &kept, "memory", "4M"]);
    let port = by_tcp(server.socket());
    let at = |host: &str, options: &str| open(&format!("nbds://{host}:{port}/?{options}"), true);
    at("localhost", &trusted).unwrap();
    at("127.0.0.1", &trusted).unwrap_err();
    for verified in ["", "&tls-verify-peer=1"] {
        at("localhost", &format!("tls-certificates={others}{verified}")).unwrap_err();
    }
    at("localhost", &format!("tls-certificates={others}&tls-verify-peer=0")).unwrap();
    at("127.0.0.1", &format!("{trusted}&tls-verify-peer=0")).unwrap();
}
