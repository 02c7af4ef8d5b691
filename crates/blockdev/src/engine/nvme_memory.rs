//! The memory of NVMe commands that is registered with their ring, and which parts of it the kernel accepts.

use super::nvme_command::{Command, Data, ENTRY_BYTES, URING_CMD_IO};
use super::nvme_node::Node;
use super::nvme_target::{NvmeTarget, Takes};
use super::registered::{Table, register_memory};
use super::ring::{self, RingParams};
use crate::pool::Follower;
use crate::{Ask, Buffer, BufferPool, Error, Memory, QueueFacts, QueueOptions, Registered, Result};
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue::Entry32, opcode, types};
use std::os::fd::AsRawFd;

/// A ring with large entries for commands and large completions for their results.
pub(super) type Ring = IoUring<Entry128, Entry32>;

/// Bytes of the trial pool: enough for a huge page.
const TRIAL_POOL: usize = 4 << 20;
/// Bytes of an individually registered page.
const PAGE: usize = crate::BUFFER_ALIGN;
/// Lengths of the trial reads, in bytes.
const TRIALS: [usize; 3] = [4096, 4096, 64 << 10];

/// The registered memory of a queue.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RegisteredMemory {
    table: Table,
    /// The kernel accepts only whole pages of it.
    whole_pages: bool,
}

impl RegisteredMemory {
    /// Registers the requested memory, if the kernel accepts it for commands: a trial, once per device, finds out.
    pub(super) fn new(
        ring: &Ring,
        target: &NvmeTarget,
        node: &Node,
        options: &QueueOptions,
        facts: &mut QueueFacts,
    ) -> Result<(Self, Option<Follower>)> {
        let takes = match (options.register_buffers, &options.pool) {
            (Ask::No, _) | (_, None) => Ok(Takes::Parts),
            (_, Some(_)) => target.takes.get_or_init(|| try_registered(target, node)).clone(),
        };
        let (whole_pages, takes) = match takes {
            Ok(Takes::Pages(why)) if options.register_buffers == Ask::Try => {
                facts.fallbacks.push(format!("only whole pages of registered memory are used: {why}"));
                (true, Ok(()))
            }
            Ok(Takes::Pages(why)) | Err(why) => (false, Err(why)),
            Ok(Takes::Parts) => (false, Ok(())),
        };
        if options.register_buffers.granted("registered buffers", || takes, facts)? {
            let (table, follower) = register_memory(ring, options, facts)?;
            return Ok((RegisteredMemory { table, whole_pages }, follower));
        }
        Ok((RegisteredMemory::default(), None))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The entry for a command on this memory.
    #[inline]
    pub(super) fn entry(&self, memory: &Memory, length: u32) -> Option<u16> {
        if self.whole_pages {
            self.table.whole_page(memory, length)
        } else {
            self.table.entry(memory, length)
        }
    }
}

/// Trial reads into parts of registered memory: kernels before 6.12 refuse them (`blk_rq_map_user_bvec`) unless
/// patched, and accept whole entries only. The memory is like that of any pool.
fn try_registered(target: &NvmeTarget, node: &Node) -> std::result::Result<Takes, String> {
    let told = |error: Error| error.to_string();
    let pool = BufferPool::new(TRIAL_POOL).map_err(told)?;
    let options =
        QueueOptions { register_buffers: Ask::Require, pool: Some(pool.clone()), ..QueueOptions::depth(1) };
    let mut facts = QueueFacts::default();
    let plan = RingParams { depth: 1, polled: false, owner: false, sqpoll: Ask::No };
    let (mut ring, _) = ring::build::<Entry128, Entry32>(plan, &mut facts).map_err(told)?;
    let (table, _follower) = register_memory(&ring, &options, &mut facts).map_err(told)?;
    let refused = |error: i32| {
        let error = std::io::Error::from_raw_os_error(error);
        format!("the kernel refuses a part of a larger region for a command: {}", crate::describe(&error))
    };
    for length in TRIALS {
        let mut buffer = pool.take(length).map_err(told)?;
        let region = buffer.memory(0).registered.map(Registered::region);
        let result = try_read(&mut ring, target, node, &pool, buffer, region)?;
        if result < 0 {
            let mut buffer = pool.take(PAGE).map_err(told)?;
            let page = table.whole_page(&buffer.memory(0), PAGE as u32);
            let takes = page.is_some() && try_read(&mut ring, target, node, &pool, buffer, page)? == 0;
            return if takes { Ok(Takes::Pages(refused(-result))) } else { Err(refused(-result)) };
        }
        if result > 0 {
            return Err(format!("a trial read failed: NVMe status {result:#x}"));
        }
    }
    Ok(Takes::Parts)
}

/// Reads the first bytes of the device into a buffer registered as `index`. Returns the command's result.
fn try_read(
    ring: &mut Ring,
    target: &NvmeTarget,
    node: &Node,
    pool: &BufferPool,
    mut buffer: Buffer,
    index: Option<u16>,
) -> std::result::Result<i32, String> {
    let length = (buffer.len() as u64).min(target.size).min(target.transfer_max);
    let address = buffer.memory(0).address.as_ptr().expose_provenance() as u64;
    let data = Data { address, length: length as u32 };
    let command = Command::read(target.namespace, target.blocks(0, length), data);
    let entry = opcode::UringCmd80::new(types::Fd(node.generic().as_raw_fd()), URING_CMD_IO)
        .cmd(command.encode::<ENTRY_BYTES>())
        .buf_index(index)
        .build();
    // SAFETY: the memory is the buffer's, writable, unshared and at least of this length. It is freed after the
    // completion was seen, or leaked if there is none. The node is borrowed.
    unsafe { ring.submission().push(&entry) }.map_err(|_| "the ring is full".to_string())?;
    ring::try_one(ring, |completion| completion.result()).map_err(|error| {
        std::mem::forget((buffer, pool.clone()));
        crate::describe(&error)
    })
}
