//! A probe.
use std::time::Instant;
use uext4::{OpenOptions, Volume, VolumeOptions, WriteFlags};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (device, n) = (a[1].clone(), a[2].parse::<u64>().unwrap());
    let mode = a.get(3).map_or("", String::as_str).to_owned();
    let volume = Volume::open(device.as_str(), VolumeOptions::read_write()).unwrap();
    let file =
        volume.open_file("/probe", OpenOptions::new().write(true).create(true).truncate(true)).unwrap();
    let mut pool = vec![0u8; 4096 * 2 + (1 << 20)];
    let at = pool.as_ptr().align_offset(4096);
    let buf = &mut pool[at..at + if mode == "big" { 1 << 20 } else { 4096 }];
    buf.fill(7);
    let t = Instant::now();
    let flags = if mode == "dsync" { WriteFlags::DSYNC } else { WriteFlags::empty() };
    for i in 0..n {
        file.write_at_with(buf, i * buf.len() as u64, flags).unwrap();
    }
    println!("{:.2} us per append", t.elapsed().as_secs_f64() * 1e6 / n as f64);
    if mode == "fsync" {
        file.sync_all().unwrap();
    }
    drop(file);
    volume.close().unwrap();
}
