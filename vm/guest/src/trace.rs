//! The kernel's own record of what reached a device, from the block trace points.

use std::fs;

use crate::Test;
use crate::devices::open_writable;
use uext4_blockdev::WriteDurability;

const TRACING: &str = "/sys/kernel/tracing";

/// One request that a driver got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// Kind letters as in blktrace: `R`, `W`; `F` before = flush first, `F` after = FUA; `FF` or `F` alone =
    /// flush.
    pub kind: String,
    /// First 512-byte sector.
    pub sector: u64,
    /// Number of 512-byte sectors.
    pub sectors: u64,
}

impl Issued {
    /// A write that must be durable when it completes.
    pub fn is_fua(&self) -> bool {
        self.kind.split_once('W').is_some_and(|(_, after)| after.starts_with('F'))
    }

    /// A flush, alone or before a write.
    pub fn is_flush(&self) -> bool {
        self.kind.starts_with('F')
    }
}

/// What `work` made the kernel send to block devices.
pub fn traced(work: impl FnOnce()) -> Vec<Issued> {
    let set = |file: &str, value: &str| {
        fs::write(format!("{TRACING}/{file}"), value).unwrap_or_else(|e| panic!("{file}: {e}"));
    };
    set("tracing_on", "0");
    set("trace", "");
    set("events/block/block_rq_issue/enable", "1");
    set("tracing_on", "1");
    work();
    set("tracing_on", "0");
    set("events/block/block_rq_issue/enable", "0");
    let text = fs::read_to_string(format!("{TRACING}/trace")).expect("trace");
    text.lines().filter_map(parse).collect()
}

/// `… block_rq_issue: 259,0 WFS 4096 () 80 + 8 [dd]`
fn parse(line: &str) -> Option<Issued> {
    let (_, event) = line.split_once("block_rq_issue: ")?;
    let words: Vec<&str> = event.split(' ').collect();
    let plus = words.iter().position(|word| *word == "+")?;
    Some(Issued {
        kind: (*words.get(1)?).to_owned(),
        sector: words.get(plus.checked_sub(1)?)?.parse().ok()?,
        sectors: words.get(plus + 1)?.parse().ok()?,
    })
}

/// Tests of this room.
pub const TESTS: &[Test] = &[("vm_a_plain_write_and_a_flush_reach_the_device", plain_write_and_flush)];

fn plain_write_and_flush() {
    let device = open_writable("/dev/nvme0n1");
    let pool = uext4_blockdev::BufferPool::new(1 << 16).unwrap();
    let buf = pool.take(4096).unwrap();
    let issued = traced(|| {
        device.write_at(&buf, 40_960, WriteDurability::Cached).unwrap();
        device.flush().unwrap();
    });
    let writes: Vec<&Issued> = issued.iter().filter(|request| request.sectors > 0).collect();
    assert_eq!(writes.len(), 1, "{issued:?}");
    assert_eq!((writes[0].sector, writes[0].sectors, writes[0].is_fua()), (80, 8, false), "{issued:?}");
    assert!(issued.iter().any(|request| request.is_flush() && request.sectors == 0), "{issued:?}");
}
