//! The integration tests of this crate are one program: it links once, and tests share the volumes they made.

mod block_devices;
mod common;
mod crash;
mod file_engine;
mod fork;
mod late;
mod layers;
mod memory;
mod memory_engines;
mod open;
mod overlay;
mod overlay_file;
mod partitions;
mod sigbus;
mod spec;
mod tags;
mod vm_nvme;
mod vm_nvme_commands;
