//! NVMe commands below the block layer: the device behind `nvme:`.
//!
//! The **block device** is opened, claimed and held as by `file:`, because a character device cannot be claimed.
//! Commands go to the **generic character device** of the same namespace (`/dev/ng0n1`): queued ones through io_uring
//! ([`super::nvme_queue`]), synchronous ones by ioctl. Both bypass the page cache, which is written back and dropped
//! when the device is opened and when it is closed.
//!
//! Before Linux 6.2 only root may send commands; since then any process that can open the character device.

use super::attempt::errno_of;
use super::budget::Budget;
use super::nvme_command::{Command, RANGE_BLOCKS_MAX, range};
use super::nvme_ioctl::{self, Failed};
use super::nvme_node::{self, Node};
use super::nvme_queue::NvmeQueue;
use super::nvme_slot::RETRIES;
use super::nvme_target::NvmeTarget;
use super::probe;
use crate::own::{self, Claim};
use crate::retries::{Retries, is_put_off};
use crate::{
    Capabilities, Description, Device, Driving, Error, Geometry, Op, Process, Queue, QueueOptions, Result,
    WriteDurability, probes,
};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Pause before a failed command is sent again.
const PAUSE: Duration = Duration::from_millis(20);

/// An NVMe namespace, or a partition of one.
#[derive(Debug)]
pub(crate) struct NvmeDevice {
    process: Process,
    node: Arc<Node>,
    target: NvmeTarget,
    geometry: Geometry,
    capabilities: Capabilities,
    description: Description,
}

impl NvmeDevice {
    /// Opens, claims and probes the block device `path`. `force` as in [`crate::OpenOptions`].
    pub(crate) fn open(path: &Path, write: bool, force: bool) -> Result<Self> {
        nvme_node::check_path(path)?;
        let claimed = own::claim(Claim { path, write, force, direct: true })?;
        let sharing = claimed.sharing;
        let probed = probe::probe(&claimed, path, write)?;
        let (node, facts) = nvme_node::open(claimed, path, write, &probed)?;
        let geometry = probed.geometry;
        let block = u64::from(geometry.logical_block);
        let discard_max = facts.discard_max.min(RANGE_BLOCKS_MAX * block) & !(block - 1);
        let tags = probed.tags.as_ref().map(|(_, tags)| tags.all());
        let capabilities = Capabilities {
            volatile_cache: facts.volatile_cache,
            // Every controller with a volatile cache must support FUA.
            fua: true,
            nowait: true,
            discard: probed.capabilities.discard && discard_max > 0,
            ..probed.capabilities
        };
        let target = NvmeTarget {
            namespace: facts.namespace,
            start: facts.start,
            size: geometry.size,
            logical_block: geometry.logical_block,
            transfer_max: facts.transfer_max,
            discard_max: if capabilities.discard { discard_max } else { 0 },
            volatile_cache: facts.volatile_cache,
            read_only: !write,
            polls: facts.polls,
            budget: probed.tags.map(|(disk, tags)| Budget::of_disk(disk, tags)),
            takes: Arc::new(OnceLock::new()),
        };
        let (namespace, most) = (facts.namespace, facts.transfer_max >> 10);
        let mut notes = probed.notes;
        notes.push(format!("NVMe commands to namespace {namespace}, {most} KiB each at most"));
        let description = Description {
            engine: "nvme",
            locator: path.display().to_string(),
            layers: Vec::new(),
            sharing,
            driving: Driving::Ring,
            tags,
            notes,
        };
        let process = Process::current()?;
        Ok(NvmeDevice { process, node: Arc::new(node), target, geometry, capabilities, description })
    }

    fn check(&self, buf: &[u8], pos: u64) -> Result<()> {
        self.process.check()?;
        self.geometry.check_transfer(buf, pos)
    }

    /// Runs a command of a request, with as many retries as the block layer.
    fn run(
        &self,
        op: Op,
        pos: u64,
        length: u64,
        fua: bool,
        mut command: impl FnMut() -> std::result::Result<(), Failed>,
    ) -> Result<()> {
        probes::around(op, pos, length, fua, || self.run_again(op.name(), pos, length, &mut command))
    }

    fn run_again(
        &self,
        op: &'static str,
        pos: u64,
        length: u64,
        command: &mut impl FnMut() -> std::result::Result<(), Failed>,
    ) -> Result<()> {
        let mut retries = Retries::default();
        loop {
            let failed = match command() {
                Ok(()) => return Ok(()),
                Err(failed) => failed,
            };
            let again = retries.count();
            match failed {
                Failed::Status(status) if !status.may_be_retried() || retries.trials() > RETRIES.into() => {
                    return Err(Error::Nvme { op, pos, length, status: status.0, errno: status.errno() });
                }
                Failed::System(error) if !is_put_off(errno_of(&error)) => {
                    return Err(Error::Io { op, pos, length, errno: errno_of(&error) });
                }
                Failed::System(error) if !again => {
                    let (errno, trials) = (errno_of(&error), retries.trials());
                    return Err(Error::GaveUp { op, pos, length, errno, trials });
                }
                Failed::Status(_) | Failed::System(_) => {}
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Device for NvmeDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn describe(&self) -> Description {
        self.description.clone()
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.check(buf, pos)?;
        let (length, mut at) = (buf.len() as u64, pos);
        for chunk in buf.chunks_mut(self.target.transfer_max as usize) {
            let blocks = self.target.blocks(at, chunk.len() as u64);
            at += chunk.len() as u64;
            let command = |data| Command::read(self.target.namespace, blocks, data);
            self.run(Op::Read, pos, length, false, || nvme_ioctl::read(self.node.generic(), chunk, command))?;
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.capabilities.check_writable()?;
        self.check(buf, pos)?;
        // Without a volatile cache every completed write is durable, so a plain one suffices.
        let fua = durability == WriteDurability::Fua && self.target.volatile_cache;
        let (length, mut at) = (buf.len() as u64, pos);
        for chunk in buf.chunks(self.target.transfer_max as usize) {
            let blocks = self.target.blocks(at, chunk.len() as u64);
            at += chunk.len() as u64;
            let command = |data| Command::write(self.target.namespace, blocks, data, fua);
            self.run(Op::Write, pos, length, fua, || nvme_ioctl::write(self.node.generic(), chunk, command))?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.process.check()?;
        if !self.target.volatile_cache {
            return Ok(());
        }
        let command = |_| Command::flush(self.target.namespace);
        self.run(Op::Flush, 0, 0, false, || nvme_ioctl::write(self.node.generic(), &[], command))
    }

    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        self.process.check()?;
        self.capabilities.check_writable()?;
        self.geometry.check(pos, length)?;
        if self.target.discard_max == 0 {
            return Err(Error::Io { op: Op::Discard.name(), pos, length, errno: libc::EOPNOTSUPP });
        }
        let mut done = 0;
        while done < length {
            let part = self.target.discard_max.min(length - done);
            let blocks = self.target.blocks(pos + done, part);
            let range = range(blocks.first, blocks.count);
            let command = |data| Command::deallocate(self.target.namespace, data);
            self.run(Op::Discard, pos, length, false, || {
                nvme_ioctl::write(self.node.generic(), &range, command)
            })?;
            done += part;
        }
        Ok(())
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        self.process.check()?;
        let queue = NvmeQueue::new(self.target.clone(), Arc::clone(&self.node), options)?;
        Ok(Queue::Other(Box::new(queue)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &Path) -> String {
        let error = NvmeDevice::open(path, true, false).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
        error.to_string()
    }

    #[test]
    fn what_is_no_nvme_block_device_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        std::fs::write(&image, [0; 8192]).unwrap();
        assert!(refused(&image).contains("is an image file, not an NVMe device"));
        assert!(refused(Path::new("/dev/null")).contains("needs the block device"));
        let error = NvmeDevice::open(Path::new("/nowhere/nvme0n1"), true, false).unwrap_err();
        assert_eq!(error.errno(), libc::ENOENT);
    }

    #[test]
    fn root_another_block_device_is_refused() {
        use uext4_testkit::{LoopDevice, LoopOptions, Need, Scratch, needs};
        needs!(Need::Loop);
        let scratch = Scratch::new(8 << 20);
        let node = LoopDevice::attach(&scratch.sparse_file("image", 4 << 20), LoopOptions::default());
        assert!(refused(node.path()).contains("not an NVMe device but `loop"));
        // The refused open leaves no lock or claim.
        drop(std::fs::File::options().read(true).write(true).open(node.path()).unwrap());
        own::claim(Claim { path: node.path(), write: true, force: false, direct: true }).unwrap();
    }
}
