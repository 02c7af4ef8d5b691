//! More second-level tables than memory keeps.

use crate::crash::take;
use crate::tools::{check, make, open};
use uext4_blockdev::{Device, WriteDurability};
use uext4_testkit::{Need, Scratch, needs};

/// What a table of 2 MiB is about. 16 of them are kept.
const REACH: u64 = 512 << 30;
const TABLES: u64 = 20;

/// A table with entries that the file lacks is not forgotten, however many others are read.
#[test]
fn a_changed_table_stays_in_memory() {
    needs!(Need::Tool("qemu-img"));
    let scratch = Scratch::new(512 << 20);
    let image = scratch.file("disk.qcow2");
    make(&image, "cluster_size=2M", "10T");
    let write = |device: &dyn Device, pos: u64, byte: u8| {
        device.write_at(&take(4096, byte), pos, WriteDurability::Cached).unwrap();
    };
    let read = |device: &dyn Device, pos: u64| {
        let mut buffer = take(4096, 0);
        device.read_at(&mut buffer, pos).unwrap();
        assert!(buffer.iter().all(|byte| *byte == buffer[0]));
        buffer[0]
    };
    let device = open(&image, true);
    (0..TABLES).for_each(|table| write(&*device, table * REACH, table as u8 + 1));
    drop(device);
    let device = open(&image, true);
    write(&*device, 8 << 20, 0xee);
    for _ in 0..3 {
        (1..TABLES).for_each(|table| assert_eq!(read(&*device, table * REACH), table as u8 + 1));
    }
    assert_eq!((read(&*device, 0), read(&*device, 8 << 20)), (1, 0xee));
    write(&*device, 16 << 20, 0xef);
    drop(device);
    check(&image, false);
    let device = open(&image, false);
    assert_eq!([0, 8, 16].map(|at| read(&*device, at << 20)), [1, 0xee, 0xef]);
}
