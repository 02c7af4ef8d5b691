//! The DEVICE grammar. `crates/ext4/tests/target.rs` pins its spellings by a table, with paths behind them.

use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::time::Duration;
use uext4_blockdev::Error;
use uext4_blockdev::spec::{DeviceSpec, Format, Locator, Named, Scheme, SpecOptions};

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

#[test]
fn network_schemes_are_known_but_not_served() {
    for text in ["nbd://host:10809/export", "nbd+unix:///export?socket=/run/s", "rbd:pool/image@snap"] {
        assert!(matches!(DeviceSpec::parse(text), Err(Error::Unsupported(_))), "{text}");
    }
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
}
