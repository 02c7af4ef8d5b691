//! A volume made without root that has one of every kind of mapping.

use super::{Image, patterned};
use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::{LazyLock, Mutex};
use uext4_testkit::oracle::{self, command, text};
use uext4_testkit::{Rng, Scratch, VolumeBuilder};

/// Pattern numbers of the files.
pub const DATA: u64 = 1;
pub const TAIL: u64 = 2;
pub const FRAG: u64 = 3;
pub const MIXED: u64 = 4;
pub const SPARSE: u64 = 5;

/// `/data`: written in one piece.
pub const DATA_SIZE: u64 = 1 << 20;
/// `/tail`: the last block is partly used.
pub const TAIL_SIZE: u64 = 10_000;
/// `/frag`: written, in more pieces than one plan covers.
pub const FRAG_SIZE: u64 = 512 << 10;
/// `/holed`: as `/frag`, with 4 KiB of hole from here on, after more written pieces than one plan covers.
pub const HOLED_AT: u64 = 480 << 10;
/// `/mixed`: 16 KiB written, then unwritten up to 64 KiB, then a hole up to the size.
pub const MIXED_WRITTEN: u64 = 16 << 10;
pub const MIXED_ALLOCATED: u64 = 64 << 10;
pub const MIXED_SIZE: u64 = 128 << 10;
/// `/sparse`: 4 KiB of data, 4 KiB of hole, this many times.
pub const SPARSE_PAIRS: u64 = 100;

/// Bytes of the volume.
pub const VOLUME_SIZE: u64 = 24 << 20;

/// Files of 4096 bytes with a relevant flag: name, inode flags besides `extents`.
pub const FLAGGED: [(&str, u32); 5] = [
    ("immutable", 0x10),
    ("append", 0x20),
    ("journaled", 0x4000),
    ("verity", 0x10_0000),
    ("encrypted", 0x800),
];

const EXTENTS_FLAG: u32 = 0x8_0000;

static MADE: LazyLock<Mutex<HashMap<Vec<String>, Image>>> = LazyLock::new(Mutex::default);

/// The sample volume with blocks of 4 KiB and a journal.
pub fn sample() -> Image {
    sample_with(4096, &[])
}

/// The sample volume without a journal, as a killed process leaves it.
pub fn not_left_cleanly() -> Image {
    let mut image = sample_with(4096, &["-O", "^has_journal"]);
    image.patch_superblock(|superblock| superblock[0x3a] &= !1);
    image
}

/// Whether a volume made with these arguments has a journal. Without one only e2fsck recovers it after a crash, and
/// nothing is allocated before that.
pub fn is_journaled(args: &[&str]) -> bool {
    !args.iter().any(|arg| arg.contains("^has_journal"))
}

/// The sample volume with other arguments for mke2fs. Made once per process.
pub fn sample_with(block: u32, args: &[&str]) -> Image {
    let mut all: Vec<String> = vec!["-b".into(), block.to_string(), "-J".into(), "size=4".into()];
    if !is_journaled(args) {
        all.truncate(2);
    }
    all.extend(args.iter().map(|&arg| arg.into()));
    let mut made = MADE.lock().unwrap();
    made.entry(all.clone()).or_insert_with(|| make(block, &all)).clone()
}

fn make(block: u32, args: &[String]) -> Image {
    let source = Scratch::new(8 << 20);
    fill(source.path());
    let volume = VolumeBuilder::new(VOLUME_SIZE).args(args).from_dir(source.path()).build();
    let host = source.file("frag");
    let script = source.file("script");
    std::fs::write(&script, debugfs_script(u64::from(block), &host)).unwrap();
    let output = command("debugfs").arg("-w").arg("-f").arg(&script).arg(volume.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let complaints: Vec<&str> = said.lines().filter(|line| !line.starts_with("debugfs 1.")).collect();
    assert!(output.status.success() && complaints.is_empty(), "{}", text(&output));
    volume.assert_clean();
    Image::load(volume.path())
}

fn fill(dir: &Path) {
    let file = |name: &str, id, size: u64| {
        std::fs::write(dir.join(name), &*patterned(id, 0, size as usize)).unwrap();
    };
    file("data", DATA, DATA_SIZE);
    file("tail", TAIL, TAIL_SIZE);
    file("mixed", MIXED, MIXED_WRITTEN);
    let sparse = std::fs::File::create(dir.join("sparse")).unwrap();
    for pair in 0..SPARSE_PAIRS {
        use std::os::unix::fs::FileExt;
        sparse.write_all_at(&patterned(SPARSE, pair * 8192, 4096), pair * 8192).unwrap();
    }
    sparse.set_len(SPARSE_PAIRS * 8192).unwrap();
    for (name, _) in FLAGGED {
        file(name, 9, 4096);
    }
    std::fs::create_dir(dir.join("dir")).unwrap();
    for n in 0..40 {
        std::fs::write(dir.join("dir").join(format!("file-{n:02}")), format!("number {n}\n")).unwrap();
    }
    for (name, target) in [("link", "data"), ("dangling", "nowhere"), ("loop", "loop"), ("up", "dir/../data")]
    {
        std::os::unix::fs::symlink(target, dir.join(name)).unwrap();
    }
    std::os::unix::fs::symlink("x".repeat(200), dir.join("slow")).unwrap();
    // Remove every second file; the rest fragment the free space.
    std::fs::create_dir(dir.join("spacers")).unwrap();
    for n in 0..200 {
        file(&format!("spacers/{n}"), 8, 4096);
    }
}

/// What mke2fs cannot do: unwritten extents, a fragmented file, flags. Writes the contents of `/frag` to `host`.
fn debugfs_script(block: u64, host: &Path) -> String {
    let mut frag = patterned(FRAG, 0, FRAG_SIZE as usize);
    // debugfs would turn zeros into holes.
    assert!(frag.chunks_mut(1024).all(|part| part.iter().any(|&byte| byte != 0)));
    std::fs::write(host, &*frag).unwrap();
    let mut script = String::new();
    for (name, spacers) in [("frag", 0..100), ("holed", 100..200)] {
        for n in spacers.step_by(2) {
            writeln!(script, "rm /spacers/{n}").unwrap();
        }
        writeln!(script, "write {} {name}", host.display()).unwrap();
    }
    writeln!(script, "punch /holed {} {}", HOLED_AT / block, (HOLED_AT + 4096) / block - 1).unwrap();
    let (first, last) = (MIXED_WRITTEN / block, MIXED_ALLOCATED / block - 1);
    writeln!(script, "fallocate /mixed {first} {last}").unwrap();
    writeln!(script, "sif /mixed size {MIXED_SIZE}").unwrap();
    for (name, flags) in FLAGGED {
        if name != "verity" && name != "encrypted" {
            writeln!(script, "sif /{name} flags {:#x}", flags | EXTENTS_FLAG).unwrap();
        }
    }
    script
}

/// A volume whose files have maps of block pointers, without those that `debugfs` has to make.
pub fn with_pointers(block: u32, args: &[&str]) -> Image {
    let source = Scratch::new(8 << 20);
    for path in ["/data", "/tail", "/sparse"] {
        let bytes = expected(if path == "/tail" { "/frag" } else { path });
        std::fs::write(source.file(&path[1..]), bytes).unwrap();
    }
    let size = block.to_string();
    let volume = VolumeBuilder::new(VOLUME_SIZE).args(["-b", &size]).args(args).from_dir(source.path());
    Image::load(volume.build().path())
}

/// Sets the flags that e2fsck does not accept on a volume without the feature they belong to.
pub fn with_sealed_files(image: &Image) -> Image {
    let scratch = Scratch::new(VOLUME_SIZE);
    let path = scratch.file("volume.img");
    image.save(&path);
    for (name, flags) in FLAGGED {
        let request = format!("sif /{name} flags {:#x}", flags | EXTENTS_FLAG);
        uext4_testkit::oracle::debugfs_write(&path, &request);
    }
    Image::load(&path)
}

/// The expected contents of a file, by name.
pub fn expected(name: &str) -> Vec<u8> {
    let whole = |id, size: u64| patterned(id, 0, size as usize).to_vec();
    match name {
        "/data" => whole(DATA, DATA_SIZE),
        "/tail" => whole(TAIL, TAIL_SIZE),
        "/frag" => whole(FRAG, FRAG_SIZE),
        "/mixed" => {
            let mut bytes = whole(MIXED, MIXED_WRITTEN);
            bytes.resize(MIXED_SIZE as usize, 0);
            bytes
        }
        "/sparse" => {
            let mut bytes = vec![0; (SPARSE_PAIRS * 8192) as usize];
            for pair in 0..SPARSE_PAIRS {
                let at = (pair * 8192) as usize;
                bytes[at..at + 4096].copy_from_slice(&patterned(SPARSE, pair * 8192, 4096));
            }
            bytes
        }
        _ => panic!("no such sample file: {name}"),
    }
}

/// A seeded generator that prints its seed when a test fails.
pub fn seeded(seed: u64) -> Rng {
    println!("seed {seed}");
    Rng::new(seed)
}

/// A volume of 32 MiB with a few small files and directories, and what `more` adds to the tree.
pub fn few_files(args: &[&str], more: impl FnOnce(&Path)) -> Image {
    let source = Scratch::new(64 << 20);
    let tree = source.file("tree");
    std::fs::create_dir_all(tree.join("dir")).unwrap();
    for (name, length) in [("a", 100), ("b", 5000), ("c", 20), ("dir/inner", 0)] {
        std::fs::write(tree.join(name), vec![b'o'; length]).unwrap();
    }
    more(&tree);
    let made = VolumeBuilder::new(32 << 20).args(args.iter().copied()).from_dir(&tree).build();
    // Of quota, mke2fs 1.47.0 counts only a part.
    assert!(oracle::e2fsck(made.path(), &["-fy"]).status < 2);
    made.assert_clean();
    Image::load(made.path())
}
