//! The tree of a volume as read by this library, in the form that is compared with the kernel's view.

use super::{aligned, read_only};
use std::collections::BTreeMap;
use uext4::{File, FileKind, Ino, IoQueue, QueueOptions, State, Volume};
use uext4_testkit::{Entry, Kind, Manifest, Rng, SparseDigest};

/// How file contents are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// `read_at` with aligned memory.
    Direct,
    /// `read_any_at` at odd offsets and lengths into odd memory.
    AnyByte,
    /// An I/O queue.
    Queue,
}

/// Everything under the root, without extended attributes (`tests/xattr.rs` compares them).
pub fn manifest(volume: &Volume, how: How) -> Manifest {
    let mut walk = Walk { volume, how, queue: None, out: Manifest::new() };
    if how == How::Queue {
        walk.queue = Some(volume.queue(QueueOptions::depth(16)).unwrap());
    }
    let mut pending = vec![(b"/".to_vec(), Ino::ROOT)];
    while let Some((path, ino)) = pending.pop() {
        walk.visit(path, ino, &mut pending);
    }
    walk.out
}

/// The same without extended attributes.
pub fn without_xattrs(mut manifest: Manifest) -> Manifest {
    manifest.values_mut().for_each(|entry| entry.xattrs = BTreeMap::new());
    manifest
}

struct Walk<'v> {
    volume: &'v Volume,
    how: How,
    queue: Option<IoQueue>,
    out: Manifest,
}

impl Walk<'_> {
    fn visit(&mut self, path: Vec<u8>, ino: Ino, pending: &mut Vec<(Vec<u8>, Ino)>) {
        let name = path.escape_ascii().to_string();
        let meta = self.volume.metadata_of(ino).unwrap_or_else(|e| panic!("{name}: {e}"));
        if meta.kind == FileKind::Directory {
            for entry in self.volume.read_dir_of(ino).unwrap_or_else(|e| panic!("{name}: {e}")) {
                let entry = entry.unwrap_or_else(|e| panic!("{name}: {e}"));
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                if let Some(kind) = entry.kind {
                    assert_eq!(kind, self.volume.metadata_of(entry.ino).unwrap().kind, "{name}");
                }
                let mut child = if path == b"/" { Vec::new() } else { path.clone() };
                child.push(b'/');
                child.extend(&entry.name);
                pending.push((child, entry.ino));
            }
        }
        let digest = (meta.kind == FileKind::Regular).then(|| {
            let file = self.volume.open_inode(ino, read_only()).unwrap_or_else(|e| panic!("{name}: {e}"));
            self.digest(&file)
        });
        let target = (meta.kind == FileKind::Symlink).then(|| self.volume.read_link_of(ino).unwrap());
        let entry = Entry {
            kind: kind(meta.kind),
            mode: meta.mode,
            uid: meta.uid,
            gid: meta.gid,
            size: meta.size,
            mtime_ns: meta.modified.nanoseconds_since_epoch(),
            nlink: u64::from(meta.links),
            rdev: meta.rdev,
            target,
            digest,
            xattrs: BTreeMap::new(),
        };
        assert!(self.out.insert(path, entry).is_none(), "{name} was listed twice");
    }

    /// Reads the mapped parts and assumes zeros elsewhere; holes are read at their edges only.
    fn digest(&mut self, file: &File) -> [u8; 32] {
        let size = file.size();
        let mut digest = SparseDigest::new();
        let mut rng = Rng::new(size ^ u64::from(file.ino().get()));
        let mut next = 0;
        for piece in file.map() {
            let piece = piece.unwrap();
            assert_eq!(piece.logical, next, "pieces follow one another without gaps");
            next = piece.end();
            let end = piece.end().min(size);
            let length = end - piece.logical;
            // The content of long holes is known; read only their first and last bytes.
            let skip = piece.state != State::Written && length > 1 << 20;
            let windows = if skip {
                vec![(piece.logical, 65_536), (piece.end() - 65_536, end - (piece.end() - 65_536))]
            } else {
                vec![(piece.logical, length)]
            };
            for (pos, length) in windows {
                self.feed(file, &mut digest, pos, length, &mut rng);
            }
        }
        assert!(next >= size, "the map ends at {next}, the file at {size}");
        digest.finish(size)
    }

    fn feed(&mut self, file: &File, digest: &mut SparseDigest, pos: u64, length: u64, rng: &mut Rng) {
        let mut done = 0;
        while done < length {
            let left = length - done;
            let bytes = match self.how {
                How::Direct => direct(file, pos + done, left),
                How::AnyByte => any_byte(file, pos + done, left, rng),
                How::Queue => self.queued(file, pos + done, left),
            };
            digest.update(pos + done, &bytes);
            done += bytes.len() as u64;
        }
    }

    fn queued(&mut self, file: &File, pos: u64, left: u64) -> Vec<u8> {
        let queue = self.queue.as_mut().unwrap();
        let slot = queue.attach(file).unwrap();
        let wanted = left.min(1 << 18);
        // Several requests at a time, of different lengths.
        let (mut at, mut parts) = (0, Vec::new());
        while at < wanted {
            let length = (4096 * (1 + parts.len() as u64 % 7)).min((wanted - at).next_multiple_of(4096));
            let buffer = queue.buffer(length as usize).unwrap();
            queue.read(slot, pos + at, buffer, parts.len() as u64).unwrap();
            parts.push(Vec::new());
            at += length;
            if parts.len() == 16 {
                break;
            }
        }
        let count = parts.len();
        let mut seen = 0;
        while seen < count {
            for done in queue.wait(count - seen).unwrap() {
                let (tag, read) = (done.tag as usize, done.result.as_ref().copied().unwrap());
                parts[tag] = done.into_buffer().unwrap()[..read].to_vec();
                seen += 1;
            }
        }
        queue.detach(slot).unwrap();
        let mut bytes = parts.concat();
        bytes.truncate(left as usize);
        bytes
    }
}

fn direct(file: &File, pos: u64, left: u64) -> Vec<u8> {
    let mut buffer = aligned(left.min(1 << 20).next_multiple_of(4096) as usize);
    buffer.fill(0xee);
    let read = file.read_at(&mut buffer, pos).unwrap();
    assert!(read > 0 && read as u64 >= left.min(1 << 20), "a read inside the file is short: {read}");
    buffer[..(left as usize).min(read)].to_vec()
}

fn any_byte(file: &File, pos: u64, left: u64, rng: &mut Rng) -> Vec<u8> {
    let length = rng.range(1..300_000).min(left) as usize;
    let offset = rng.below(64) as usize;
    let mut memory = vec![0xee; offset + length];
    assert_eq!(file.read_any_at(&mut memory[offset..], pos).unwrap(), length);
    memory[offset..].to_vec()
}

fn kind(kind: FileKind) -> Kind {
    match kind {
        FileKind::Regular => Kind::File,
        FileKind::Directory => Kind::Directory,
        FileKind::Symlink => Kind::Symlink,
        FileKind::CharDevice => Kind::CharDevice,
        FileKind::BlockDevice => Kind::BlockDevice,
        FileKind::Fifo => Kind::Fifo,
        FileKind::Socket => Kind::Socket,
    }
}
