//! Serves files in memory on a mount until it is unmounted: what the transport alone can do. Root.
//!
//! `memory DIR dev|uring`

use std::path::Path;
use uext4_fuse::{MountOptions, ServeOptions, Session, Transport, mount};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (directory, transport) = match &arguments[..] {
        [directory, way] if way == "dev" => (directory, Transport::Dev),
        [directory, way] if way == "uring" => (directory, Transport::Uring),
        _ => return Err("usage: memory DIR dev|uring".into()),
    };
    let connection = mount(Path::new(directory), &MountOptions::new("memory"))?;
    let options = ServeOptions { transport, ..ServeOptions::default() };
    Session::start_in_memory(connection, &options)?.wait();
    Ok(())
}
