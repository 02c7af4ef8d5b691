//! `DEVICE[:/path]`, pinned by a table of spellings.

use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::time::Duration;
use uext4::device::Error;
use uext4::device::{Cache, Locator, Remote, Scheme, SpecOptions};
use uext4::{DeviceSpec, Target};

fn spec(scheme: Scheme, path: &str) -> DeviceSpec {
    DeviceSpec { scheme, locator: Locator::Path(PathBuf::from(path)), options: SpecOptions::default() }
}

fn memory(size: u64) -> DeviceSpec {
    DeviceSpec { scheme: Scheme::Memory, locator: Locator::Size(size), options: SpecOptions::default() }
}

fn with(mut spec: DeviceSpec, change: impl FnOnce(&mut SpecOptions)) -> DeviceSpec {
    change(&mut spec.options);
    spec
}

#[test]
fn accepted_spellings() {
    use Scheme::{Dax, File, Null, Nvme, Sync};
    let us = Duration::from_micros;
    let table: Vec<(&str, DeviceSpec, Option<&str>)> = vec![
        ("disk.img", spec(File, "disk.img"), None),
        ("/dev/nvme0n1p3", spec(File, "/dev/nvme0n1p3"), None),
        ("file:disk.img", spec(File, "disk.img"), None),
        ("file:/tmp/x.img", spec(File, "/tmp/x.img"), None),
        ("file:///tmp/x.img", spec(File, "/tmp/x.img"), None),
        ("file://localhost/tmp/x.img", spec(File, "/tmp/x.img"), None),
        ("file:/tmp/x.img:/etc", spec(File, "/tmp/x.img"), Some("/etc")),
        ("file:///tmp/x.img:/etc", spec(File, "/tmp/x.img"), Some("/etc")),
        ("sync:disk.img", spec(Sync, "disk.img"), None),
        ("sync:/dev/loop0?ro", with(spec(Sync, "/dev/loop0"), |o| o.read_only = true), None),
        ("dax:/dev/pmem0", spec(Dax, "/dev/pmem0"), None),
        ("dax:/dev/shm/x", spec(Dax, "/dev/shm/x"), None),
        ("nvme:/dev/nvme0n1", spec(Nvme, "/dev/nvme0n1"), None),
        ("nvme:/dev/nvme0n1:/etc", spec(Nvme, "/dev/nvme0n1"), Some("/etc")),
        ("null:disk.img", spec(Null, "disk.img"), None),
        ("null:/a/b:/f", spec(Null, "/a/b"), Some("/f")),
        ("mem:64M", memory(64 << 20), None),
        ("mem:512", memory(512), None),
        ("mem:1G:/a/b", memory(1 << 30), Some("/a/b")),
        ("disk.img:/", spec(File, "disk.img"), Some("/")),
        ("disk.img:/etc/passwd", spec(File, "disk.img"), Some("/etc/passwd")),
        ("./disk.img:/a:/b", spec(File, "./disk.img"), Some("/a:/b")),
        ("disk.img:/what?ro&x=%zz", spec(File, "disk.img"), Some("/what?ro&x=%zz")),
        ("/dev/sda?partition=3", with(spec(File, "/dev/sda"), |o| o.partition = Some(3)), None),
        ("/dev/sda?partition=3:/x", with(spec(File, "/dev/sda"), |o| o.partition = Some(3)), Some("/x")),
        ("d.img?offset=1M", with(spec(File, "d.img"), |o| o.offset = Some(1 << 20)), None),
        ("d.img?offset=1048576", with(spec(File, "d.img"), |o| o.offset = Some(1 << 20)), None),
        ("d.img?offset=0", with(spec(File, "d.img"), |o| o.offset = Some(0)), None),
        (
            "d.img?ro&partition=1",
            with(spec(File, "d.img"), |o| (o.read_only, o.partition) = (true, Some(1))),
            None,
        ),
        ("mem:1M?latency=740us", with(memory(1 << 20), |o| o.latency = Some(us(740))), None),
        (
            "mem:8M?cache=volatile&fua=on&flush_latency=2ms",
            with(memory(8 << 20), |o| {
                (o.cache, o.fua, o.flush_latency) = (Some(Cache::Volatile), Some(true), Some(us(2000)));
            }),
            None,
        ),
        ("d?cache=none", with(spec(File, "d"), |o| o.cache = Some(Cache::None)), None),
        ("d?fua=off:/y", with(spec(File, "d"), |o| o.fua = Some(false)), Some("/y")),
        ("a%3F.img", spec(File, "a?.img"), None),
        ("a%26b", spec(File, "a&b"), None),
        ("100%25.img", spec(File, "100%.img"), None),
        ("a%3a/b", spec(File, "a:/b"), None),
        ("a%3A/b:/c", spec(File, "a:/b"), Some("/c")),
        ("./foo:bar.img", spec(File, "./foo:bar.img"), None),
        ("file:foo:bar.img", spec(File, "foo:bar.img"), None),
        ("foo%3Abar.img", spec(File, "foo:bar.img"), None),
        ("/srv/a:b/c.img", spec(File, "/srv/a:b/c.img"), None),
        ("2024:disk.img", spec(File, "2024:disk.img"), None),
        ("snow man.img", spec(File, "snow man.img"), None),
        ("./x://y", spec(File, "./x"), Some("//y")),
        ("file:null:x", spec(File, "null:x"), None),
    ];
    assert!(table.len() >= 40);
    table.into_iter().for_each(is_read_so);
}

#[test]
fn paths_behind_devices_of_servers() {
    let remote = |scheme, server: &str, name: &str| {
        let locator = Locator::Remote(Remote { server: server.into(), name: name.into() });
        DeviceSpec { scheme, locator, options: SpecOptions::default() }
    };
    let socket = |o: &mut SpecOptions| o.remote.socket = Some(PathBuf::from("/run/s"));
    for (text, want, path) in [
        ("nbd://host:/etc", remote(Scheme::Nbd, "host", ""), Some("/etc")),
        ("nbd://host/:/etc", remote(Scheme::Nbd, "host", ""), Some("/etc")),
        ("nbd://host:7/a:/etc", remote(Scheme::Nbd, "host:7", "a"), Some("/etc")),
        ("nbds://[::1]:7/a", remote(Scheme::Nbds, "[::1]:7", "a"), None),
        ("nbd+unix:///?socket=/run/s:/b", with(remote(Scheme::NbdUnix, "", ""), socket), Some("/b")),
        ("rbd:p/i:/x", remote(Scheme::Rbd, "", "p/i"), Some("/x")),
        ("rbd:p/n/i@s:/x:/y", remote(Scheme::Rbd, "", "p/n/i@s"), Some("/x:/y")),
    ] {
        is_read_so((text, want, path));
    }
}

/// A spelling has this meaning, and its printed form has the same.
fn is_read_so((text, want, path): (&str, DeviceSpec, Option<&str>)) {
    let target = Target::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(target.spec, want, "{text}");
    assert_eq!(target.path.as_deref(), path.map(str::as_bytes), "{text}");
    let again = Target::parse(&target.to_string()).unwrap_or_else(|e| panic!("{text} -> {target}: {e}"));
    assert_eq!(again, target, "{text} -> {target}");
}

#[test]
fn refused_spellings_are_told_whole() {
    let table = [
        (":/etc", "empty"),
        ("d?rw:/x", "unknown option `rw`"),
        ("http://host/disk.img:/x", "unknown scheme `http`"),
        ("disk.img://etc", "unknown scheme"),
        ("file://host/disk.img:/x", "host `host`"),
        ("sync:/d:/a\0b", "NUL"),
    ];
    for (text, part) in table {
        match Target::parse(text) {
            Err(Error::BadSpec { spec, reason }) => {
                assert_eq!(spec, text);
                assert!(reason.contains(part), "{text}: {reason}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn copy_arguments_without_inner_path_are_host_paths() {
    for text in [
        "disk.img",
        "./a",
        "/tmp/b",
        "notes:draft.txt",
        "file:/tmp/x",
        "file:///tmp/x",
        "a?b",
        "50%",
        "mem:64M",
    ] {
        assert!(!Target::has_inner_path(text.as_bytes()), "{text}");
    }
    for text in ["disk.img:/a", "disk.img?ro:/a", "file:/tmp/x:/a", "mem:64M:/", "rbd:p/i:/x", "s3://bucket"]
    {
        assert!(Target::has_inner_path(text.as_bytes()), "{text}");
    }
}

#[test]
fn bytes_that_are_not_utf8_are_kept() {
    use std::os::unix::ffi::OsStrExt;
    let target = Target::parse_bytes(b"d%FF.img:/n\xfe").unwrap();
    let Locator::Path(path) = &target.spec.locator else { panic!("a path is expected") };
    assert_eq!(path.as_os_str().as_bytes(), b"d\xff.img");
    assert_eq!(target.path.as_deref(), Some(&b"/n\xfe"[..]));
    let raw = Target::parse_bytes(b"d\xff.img").unwrap();
    assert_eq!(raw.spec, target.spec);
    assert_eq!(raw.spec.to_string(), "d%FF.img");
}

fn any_path() -> impl Strategy<Value = PathBuf> {
    prop::collection::vec(prop_oneof![Just(b':'), Just(b'/'), Just(b'%'), Just(b'?'), 1u8..=255], 1..24)
        .prop_map(|b| {
            use std::os::unix::ffi::OsStrExt;
            Path::new(std::ffi::OsStr::from_bytes(&b)).to_path_buf()
        })
}

proptest! {
    #[test]
    fn every_path_round_trips(path in any_path(), which in 0usize..4, inner in any::<bool>()) {
        let scheme = [Scheme::File, Scheme::Sync, Scheme::Dax, Scheme::Null][which];
        let spec = DeviceSpec { scheme, locator: Locator::Path(path), options: SpecOptions::default() };
        let target = Target { spec, path: inner.then(|| b"/a:/b".to_vec()) };
        let text = target.to_string();
        prop_assert_eq!(Target::parse(&text).unwrap(), target, "{}", text);
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Target::has_inner_path(&bytes);
        if let Ok(target) = Target::parse_bytes(&bytes) {
            let spec = target.spec.to_string();
            prop_assert_eq!(DeviceSpec::parse(&spec).unwrap(), target.spec);
        }
    }
}
