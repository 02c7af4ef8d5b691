//! What requests cost is told as it is.

use crate::crash::take;
use crate::tools::{img, io, make, open, path};
use std::sync::{Arc, Mutex};
use uext4_blockdev::layer::{CountingDevice, TracePhase};
use uext4_blockdev::{Cost, Device, Op, QueueOptions, Way, WriteDurability};
use uext4_testkit::{Flight, Need, Scratch, needs};

const KIB: u64 = 1 << 10;

#[test]
fn requests_say_what_they_cost() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let image = scratch.file("disk.qcow2");
    std::fs::write(scratch.file("base.raw"), vec![0xb5; 1 << 20]).unwrap();
    make(&image, "cluster_size=65536,backing_file=base.raw,backing_fmt=raw", "4M");
    io(&image, &["write -P 1 0 128k", "write -z 256k 64k", "write -P 2 512k 64k"]);
    let device = open(&image, true);
    let way = |op, pos, length| device.cost(op, pos, length).map(|Cost { format, way }| (format, way));
    let says =
        |op, pos, length, wanted| assert_eq!(way(op, pos, length), Some(("qcow2", wanted)), "{op:?} {pos}");
    let Some((_, Way::Mapped(host))) = way(Op::Read, 64 * KIB, 4 * KIB) else { panic!("it has a place") };
    says(Op::Read, 72 * KIB, 8 * KIB, Way::Mapped(host + 8 * KIB));
    says(Op::Write, 72 * KIB, 8 * KIB, Way::Mapped(host + 8 * KIB));
    says(Op::Read, 128 * KIB, 4 * KIB, Way::Below);
    says(Op::Read, 124 * KIB, 8 * KIB, Way::Pieces);
    says(Op::Read, 260 * KIB, 4 * KIB, Way::Zeros);
    says(Op::Write, 128 * KIB, 4 * KIB, Way::Allocates { clusters: 1, copies: true });
    says(Op::Write, 128 * KIB, 128 * KIB, Way::Allocates { clusters: 2, copies: false });
    says(Op::Write, 124 * KIB, 8 * KIB, Way::Allocates { clusters: 1, copies: true });
    says(Op::Write, 260 * KIB, 4 * KIB, Way::Allocates { clusters: 1, copies: false });
    says(Op::Write, 3000 * KIB, 4 * KIB, Way::Allocates { clusters: 1, copies: false });
    says(Op::Discard, 0, 4096 * KIB, Way::Frees(3));
    says(Op::Discard, 4 * KIB, 124 * KIB, Way::Frees(1));
    says(Op::Discard, 4 * KIB, 60 * KIB, Way::Frees(0));
    assert_eq!((way(Op::Flush, 0, 0), way(Op::Read, 4096 * KIB, 4 * KIB)), (None, None));
    device.write_at(&take(4096, 1), 3000 * KIB, WriteDurability::Cached).unwrap();
    says(Op::Flush, 0, 0, Way::Tables);
    device.flush().unwrap();
    assert_eq!(way(Op::Flush, 0, 0), None);
    assert_eq!(
        device.cost(Op::Write, 128 * KIB, 4 * KIB).unwrap().to_string(),
        "qcow2: allocates a cluster, copies what is not written"
    );
    drop(device);
    let packed = scratch.file("packed.qcow2");
    img(&["convert", "-c", "-O", "qcow2", path(&image), path(&packed)]);
    let device = open(&packed, false);
    let cost = device.cost(Op::Read, 0, 4096);
    assert!(matches!(cost, Some(Cost { way: Way::Compressed(1..), .. })), "{cost:?}");
    let vmdk = scratch.file("disk.vmdk");
    img(&["convert", "-O", "vmdk", path(&image), path(&vmdk)]);
    let device = open(&vmdk, false);
    assert_eq!(device.cost(Op::Read, 0, 4096).unwrap().to_string(), "vmdk: in the submitting call");
}

/// A trace says what a request cost when it was made, queued or not.
#[test]
fn a_trace_shows_the_cost() {
    needs!(Need::Tool("qemu-img"));
    let scratch = Scratch::new(64 << 20);
    let image = scratch.file("disk.qcow2");
    make(&image, "cluster_size=65536", "4M");
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = Arc::clone(&lines);
    let traced = CountingDevice::with_trace(
        open(&image, true),
        Arc::new(move |event| {
            if event.phase == TracePhase::Submit {
                sink.lock().unwrap().push(event.to_string());
            } else {
                assert_eq!(event.cost, None);
            }
        }),
    );
    traced.write_at(&take(512, 1), 512, WriteDurability::Cached).unwrap();
    let mut queue = Flight::new(traced.queue(&QueueOptions::depth(4)).unwrap());
    queue.push(Op::Write, 1 << 20, take(512, 1), 0);
    queue.push(Op::Write, 512, take(512, 1), 1);
    assert!(queue.reap_all().iter().all(|(done, _)| done.result == 512));
    let lines = lines.lock().unwrap();
    let allocates = "(qcow2: allocates a cluster)";
    assert_eq!(lines[0], format!("W 1+1 {allocates}"));
    assert_eq!(lines[1], format!("W 2048+1 {allocates}"));
    assert!(lines[2].starts_with("W 1+1 (qcow2: mapped, host offset "), "{lines:?}");
}
