//! Threads that change files of one volume concurrently: appends, holes, truncation, punches, names, syncs. Each
//! thread's files hold its own data, and e2fsck finds no fault, after a crash and after closing.

use crate::common;

use common::sample::sample_with;
use common::{Image, open_rw, patterned, read_all, read_only, within};
use std::time::Duration;
use uext4::{Fallocate, File, OpenOptions, Volume, WriteFlags};
use uext4_testkit::{Need, Rng, Scratch, needs, oracle};

const THREADS: u64 = 4;
const STEPS: u64 = 250;
const MOST: u64 = 300_000;

/// A thread's own file, and its expected contents.
struct Own {
    file: File,
    name: String,
    model: Vec<u8>,
}

impl Own {
    fn new(volume: &Volume, thread: u64, number: u64) -> Own {
        let name = format!("/own-{thread}-{number}");
        let options = OpenOptions::new().read(true).write(true).create_new(true);
        Own { file: volume.open_file(&name, options).unwrap(), name, model: Vec::new() }
    }

    fn step(&mut self, rng: &mut Rng, number: u64) {
        let size = self.model.len() as u64;
        match rng.below(10) {
            0 => {
                let to = rng.below(size + 5000).min(MOST);
                self.file.set_len(to).unwrap();
                self.model.resize(to as usize, 0);
            }
            1 => {
                let (pos, length) = (rng.below(size + 1), 1 + rng.below(20_000));
                self.file.fallocate(Fallocate::Punch, pos, length).unwrap();
                let end = (pos + length).min(size);
                self.model[pos.min(size) as usize..end as usize].fill(0);
            }
            2 => self.file.sync_all().unwrap(),
            kind => {
                let pos = if kind < 6 { size } else { rng.below(size + 10_000) }.min(MOST);
                let bytes = patterned(number, pos, 1 + rng.below(9000) as usize);
                let flags = if kind == 9 { WriteFlags::DSYNC } else { WriteFlags::empty() };
                assert_eq!(self.file.write_any_at(&bytes, pos, flags).unwrap(), bytes.len());
                let end = pos as usize + bytes.len();
                self.model.resize(self.model.len().max(end), 0);
                self.model[pos as usize..end].copy_from_slice(&bytes);
            }
        }
    }
}

fn work(volume: &Volume, thread: u64) -> Vec<(String, Vec<u8>)> {
    let mut rng = Rng::new(thread);
    let mut files = vec![Own::new(volume, thread, 0)];
    for step in 1..=STEPS {
        if step % 25 == 0 {
            files.push(Own::new(volume, thread, step));
        }
        if files.len() > 4 {
            let gone = files.swap_remove(rng.below(files.len() as u64) as usize);
            volume.remove_file(&gone.name).unwrap();
            common::assert_same_bytes(&gone.model, &read_all(&gone.file));
        }
        let at = rng.below(files.len() as u64) as usize;
        files[at].step(&mut rng, thread << 32 | step);
    }
    for own in &files {
        common::assert_same_bytes(&own.model, &read_all(&own.file));
        own.file.sync_all().unwrap();
    }
    files.into_iter().map(|own| (own.name, own.model)).collect()
}

#[test]
fn threads_change_their_files_and_nobody_elses() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    within(Duration::from_secs(300), || {
        let scratch = Scratch::new(64 << 20);
        let path = scratch.file("after.img");
        let layouts: [(u32, &[&str]); 3] =
            [(1024, &[]), (4096, &[]), (1024, &["-O", "bigalloc", "-C", "8192"])];
        for (block, args) in layouts {
            let device = sample_with(block, args).device();
            let volume = open_rw(device.clone());
            let all: Vec<_> = std::thread::scope(|scope| {
                let work = |thread| {
                    scope.spawn({
                        let volume = &volume;
                        move || work(volume, thread)
                    })
                };
                let threads: Vec<_> = (0..THREADS).map(work).collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            });
            let dirty = Image::of(&*device);
            volume.close().unwrap();
            Image::of(&*device).save(&path);
            oracle::e2fsck_clean(&path);
            for device in [device, dirty.device()] {
                let volume = open_rw(device.clone());
                for (name, model) in &all {
                    let file = volume.open_file(name, read_only()).unwrap();
                    common::assert_same_bytes(model, &read_all(&file));
                }
                volume.close().unwrap();
                Image::of(&*device).save(&path);
                oracle::e2fsck_clean(&path);
            }
        }
    });
}
