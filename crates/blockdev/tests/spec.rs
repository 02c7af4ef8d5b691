//! The DEVICE grammar. `crates/ext4/tests/target.rs` pins its spellings by a table, with paths behind them.

use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::time::Duration;
use uext4_blockdev::spec::{DeviceSpec, Format, Locator, Named, RbdName, Remote, Scheme, SpecOptions, Tls};
use uext4_blockdev::{Error, OpenOptions};

fn memory(size: u64) -> DeviceSpec {
    DeviceSpec { scheme: Scheme::Memory, locator: Locator::Size(size), options: SpecOptions::default() }
}

fn with(mut spec: DeviceSpec, change: impl FnOnce(&mut SpecOptions)) -> DeviceSpec {
    change(&mut spec.options);
    spec
}

#[test]
fn costs_of_durability_are_spelled_out() {
    let text = "mem:8M?fua_latency=2380us&flush_rate=64M";
    let costs = |o: &mut SpecOptions| {
        (o.fua_latency, o.flush_rate) = (Some(Duration::from_micros(2380)), Some(64 << 20));
    };
    let spec = DeviceSpec::parse(text).unwrap();
    assert_eq!(spec, with(memory(8 << 20), costs));
    assert_eq!(spec.to_string(), text);
    assert_eq!(DeviceSpec::parse("d?fua_latency=1s").unwrap().to_string(), "d?fua_latency=1s");
}

#[test]
fn formats_and_what_they_may_name_are_spelled_out() {
    for (text, format, named) in [
        ("d?format=raw", Some(Format::Raw), Named::Beside),
        ("d?format=qcow2&backing=any", Some(Format::Qcow2), Named::Any),
        ("d?format=vmdk&backing=no", Some(Format::Vmdk), Named::No),
    ] {
        let spec = DeviceSpec::parse(text).unwrap();
        assert_eq!((spec.options.format, spec.options.named), (format, named));
        assert_eq!(spec.to_string(), text);
    }
    // What is usual is not spelled.
    assert_eq!(DeviceSpec::parse("d?backing=beside").unwrap().to_string(), "d");
    for (text, part) in [
        ("d?format=qed", "`raw`, `qcow2` or `vmdk`"),
        ("d?format", "`raw`, `qcow2` or `vmdk`"),
        ("d?format=raw&format=raw", "twice"),
        ("d?backing=yes", "`no`, `beside` or `any`"),
    ] {
        let refused = DeviceSpec::parse(text).unwrap_err().to_string();
        assert!(refused.contains(part), "{text}: {refused}");
    }
}

#[test]
fn a_device_alone_has_no_inner_path() {
    assert!(matches!(DeviceSpec::parse("disk.img:/etc"), Err(Error::BadSpec { .. })));
    assert_eq!(DeviceSpec::parse("disk.img").unwrap(), DeviceSpec::file("disk.img"));
}

#[test]
fn refused_spellings() {
    let table = [
        ("", "empty"),
        ("?ro", "empty"),
        (":/etc", "without"),
        ("file:", "empty"),
        ("foo:bar.img", "unknown scheme `foo`"),
        ("xyz:disk.img", "unknown scheme `xyz`"),
        ("FILE:disk.img", "unknown scheme `FILE`"),
        ("s3://bucket/x", "unknown scheme `s3`"),
        ("http://host/disk.img:/x", "unknown scheme `http`"),
        ("disk.img://etc", "unknown scheme"),
        ("disk.img:", "unknown scheme"),
        ("C:\\disk.img", "unknown scheme `C`"),
        ("file://host/disk.img", "host `host`"),
        ("file://", "must follow"),
        ("sync://localhost", "must follow"),
        ("nvme:", "empty"),
        ("NVME:nvme0n1", "unknown scheme `NVME`"),
        ("nvme://host/dev/nvme0n1", "host `host`"),
        ("d?", "empty"),
        ("d?ro&", "empty"),
        ("d?&ro", "empty"),
        ("d?=1", "empty"),
        ("d?rw", "unknown option `rw`"),
        ("d?RO", "unknown option `RO`"),
        ("d?size=1M", "unknown option `size`"),
        ("d?ro=1", "takes no value"),
        ("d?ro&ro", "twice"),
        ("d?partition=1&partition=2", "twice"),
        ("d?partition=0", "from 1"),
        ("d?partition=-1", "from 1"),
        ("d?partition=+1", "from 1"),
        ("d?partition=4294967296", "from 1"),
        ("d?partition", "from 1"),
        ("d?partition=1&offset=512", "exclude"),
        ("d?offset=x", "a size"),
        ("d?offset=", "a size"),
        ("d?latency=5", "a time"),
        ("d?latency", "a time"),
        ("d?flush_latency=2m", "a time"),
        ("d?fua_latency", "a time"),
        ("d?fua_latency=2", "a time"),
        ("mem:8M?flush_rate=0", "a size"),
        ("mem:8M?flush_rate=1ms", "a size"),
        ("d?cache=maybe", "`volatile` or `none`"),
        ("d?fua=yes", "`on` or `off`"),
        ("a&b.img", "%26"),
        ("a%", "hexadecimal"),
        ("a%4", "hexadecimal"),
        ("a%zz", "hexadecimal"),
        ("a%00b", "NUL"),
        ("mem:", "empty"),
        ("mem:lots", "size like 64M"),
        ("mem:0", "multiple of 512"),
        ("mem:1000", "multiple of 512"),
        ("mem://64M", "size like 64M"),
    ];
    for (text, part) in table {
        match DeviceSpec::parse(text) {
            Err(Error::BadSpec { spec, reason }) => {
                assert_eq!(spec, text);
                assert!(reason.contains(part), "{text}: {reason}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn nvme_names_a_block_device() {
    let spec = DeviceSpec { scheme: Scheme::Nvme, ..DeviceSpec::file("/dev/nvme0n1") };
    assert_eq!(DeviceSpec::parse("nvme:/dev/nvme0n1").unwrap(), spec);
    assert_eq!(DeviceSpec::parse("nvme:///dev/nvme0n1").unwrap(), spec);
    let part = with(spec, |options| options.partition = Some(3));
    assert_eq!(DeviceSpec::parse("nvme:/dev/nvme0n1?partition=3").unwrap(), part);
    assert_eq!(part.to_string(), "nvme:/dev/nvme0n1?partition=3");
}

fn remote(scheme: Scheme, server: &str, name: &str) -> DeviceSpec {
    let locator = Locator::Remote(Remote { server: server.into(), name: name.into() });
    DeviceSpec { scheme, locator, options: SpecOptions::default() }
}

#[test]
fn devices_of_servers_are_spelled_out() {
    let socket = |o: &mut SpecOptions| o.remote.socket = Some("/run/s".into());
    for (text, spec, canonical) in [
        ("nbd://host/a", remote(Scheme::Nbd, "host", "a"), "nbd://host/a"),
        ("nbd://host", remote(Scheme::Nbd, "host", ""), "nbd://host/"),
        (
            "nbd://h-1.net:10810/a/b%20c",
            remote(Scheme::Nbd, "h-1.net:10810", "a/b c"),
            "nbd://h-1.net:10810/a/b%20c",
        ),
        ("nbds://[::1]:1/", remote(Scheme::Nbds, "[::1]:1", ""), "nbds://[::1]:1/"),
        (
            "nbd+unix:///a?socket=/run/s",
            with(remote(Scheme::NbdUnix, "", "a"), socket),
            "nbd+unix:///a?socket=/run/s",
        ),
        (
            "nbds+unix://?socket=%2frun/s&connections=4&tls-verify-peer=0",
            with(remote(Scheme::NbdsUnix, "", ""), |o| {
                socket(o);
                o.remote.connections = Some(4);
                o.remote.tls.push((Tls::VerifyPeer, "0".into()));
            }),
            "nbds+unix:///?socket=/run/s&connections=4&tls-verify-peer=0",
        ),
        ("rbd:p/i", remote(Scheme::Rbd, "", "p/i"), "rbd:p/i"),
        (
            "rbd:p/n/i@s?conf=/etc/c.conf&id=me",
            with(remote(Scheme::Rbd, "", "p/n/i@s"), |o| {
                (o.remote.conf, o.remote.id) = (Some("/etc/c.conf".into()), Some("me".into()));
            }),
            "rbd:p/n/i@s?conf=/etc/c.conf&id=me",
        ),
    ] {
        let parsed = DeviceSpec::parse(text).unwrap();
        assert_eq!(parsed, spec, "{text}");
        assert_eq!(parsed.to_string(), canonical);
        assert_eq!(DeviceSpec::parse(canonical).unwrap(), spec, "{canonical}");
    }
}

#[test]
fn parts_of_the_names_of_servers() {
    let of = |text: &str| match DeviceSpec::parse(text).unwrap().locator {
        Locator::Remote(remote) => remote,
        other => panic!("{other:?}"),
    };
    assert_eq!(of("nbd://host/x").host_and_port(), ("host", 10809));
    assert_eq!(of("nbd://host:7/x").host_and_port(), ("host", 7));
    assert_eq!(of("nbd://[fe80::1]:7").host_and_port(), ("fe80::1", 7));
    assert_eq!(of("nbd://[fe80::1]").host_and_port(), ("fe80::1", 10809));
    let name = |pool, namespace, image, snapshot| Some(RbdName { pool, namespace, image, snapshot });
    assert_eq!(of("rbd:p/i").rbd_name(), name("p", "", "i", None));
    assert_eq!(of("rbd:p/n/i@s").rbd_name(), name("p", "n", "i", Some("s")));
}

#[test]
fn refused_names_of_servers() {
    for (text, part) in [
        ("nbd:host/x", "`//` must follow"),
        ("nbd:///x", "not a host"),
        ("nbd://a b/x", "not a host"),
        ("nbd://host:0/x", "not a port"),
        ("nbd://host:/x", "without `:/path`"),
        ("nbd://host:", "not a port"),
        ("nbd://host:65536/x", "not a port"),
        ("nbd://host:+1/x", "not a port"),
        ("nbd://[::g]/x", "not a host"),
        ("nbd://host/%ff", "not UTF-8"),
        ("nbd://host/%00", "NUL"),
        ("nbd+unix:///x", "needs the option `socket=PATH`"),
        ("nbd+unix://host/x?socket=/s", "has no host"),
        ("nbd+unix:///x?socket=", "needs a path"),
        ("nbd+unix:///x?socket=/s&id=me", "only for `rbd:`"),
        ("nbd://host/x?socket=/s", "only for `nbd+unix:"),
        ("nbd://host/x?tls-username=me", "only for `nbds:"),
        ("nbds://host/x?tls-verify-peer=no", "needs 0 or 1"),
        ("nbds://host/x?tls-cert=d", "did you mean `tls-certificates`"),
        ("nbd://host/x?connections=0", "from 1 to 64"),
        ("nbd://host/x?connections=65", "from 1 to 64"),
        ("disk.img?connections=2", "only for `nbd:`"),
        ("disk.img?conf=/c", "only for `rbd:`"),
        ("rbd:", "pool/[namespace/]image"),
        ("rbd:image", "pool/[namespace/]image"),
        ("rbd:p/", "pool/[namespace/]image"),
        ("rbd:/i", "pool/[namespace/]image"),
        ("rbd:p//i", "pool/[namespace/]image"),
        ("rbd:p/a/b/i", "pool/[namespace/]image"),
        ("rbd:p/i@", "pool/[namespace/]image"),
        ("rbd:p/i@a@b", "pool/[namespace/]image"),
    ] {
        match DeviceSpec::parse(text) {
            Err(Error::BadSpec { spec, reason }) => {
                assert_eq!(spec, text);
                assert!(reason.contains(part), "{text}: {reason}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

/// Without an engine in the registry.
#[test]
fn servers_need_an_engine() {
    for text in ["nbd://host:10809/export", "nbd+unix:///export?socket=/run/s", "rbd:pool/image@snap"] {
        let refused = uext4_blockdev::open(&DeviceSpec::parse(text).unwrap(), OpenOptions::default());
        assert!(matches!(&refused, Err(Error::Unsupported(why)) if why.contains("no engine")), "{refused:?}");
    }
    let image = DeviceSpec::parse("rbd:pool/image?format=qcow2").unwrap();
    let refused = uext4_blockdev::open(&image, OpenOptions::default()).unwrap_err().to_string();
    assert!(refused.contains("format of their own"), "{refused}");
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
    fn every_path_round_trips(path in any_path(), which in 0usize..5) {
        let scheme = [Scheme::File, Scheme::Sync, Scheme::Dax, Scheme::Nvme, Scheme::Null][which];
        let spec = DeviceSpec { scheme, locator: Locator::Path(path), options: SpecOptions::default() };
        let text = spec.to_string();
        prop_assert_eq!(DeviceSpec::parse(&text).unwrap(), spec, "{}", text);
    }

    #[test]
    fn every_export_round_trips(name in "[^\\x00]{0,16}", socket in any_path(), which in 0usize..3) {
        let (scheme, server) =
            [(Scheme::Nbd, "[::1]:7"), (Scheme::Nbds, "host"), (Scheme::NbdUnix, "")][which];
        let mut spec = remote(scheme, server, &name);
        if scheme == Scheme::NbdUnix {
            spec.options.remote.socket = Some(socket);
        }
        let text = spec.to_string();
        prop_assert_eq!(DeviceSpec::parse(&text).unwrap(), spec, "{}", text);
    }
}
