//! Attributes set, shared and removed under power cuts. In every state, recovered by us and by e2fsck, the attributes
//! of all files together are those of one moment since the last sync: so no value is half, and no block that others
//! share is lost.

use crate::common;

use common::crash::{enumerate, garbage_volume};
use common::open_rw;
use std::collections::BTreeMap;
use std::sync::Arc;
use uext4::{Error, OpenOptions, Volume, XattrFlags};
use uext4_testkit::crash::Options;
use uext4_testkit::device::{CrashDevice, CrashOptions};
use uext4_testkit::fixture::pattern;
use uext4_testkit::{Need, Rng, Scratch, needs};

const PATHS: [&str; 5] = ["/a", "/b", "/c", "/d", "/e"];

/// Lengths of values.
const SMALL: [usize; 4] = [5, 200, 300, 300];
const LARGE: [usize; 4] = [5, 1200, 5000, 40_000];

type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;
/// The attributes of all files; `None`: the file is missing.
type Moment = [Option<Xattrs>; 5];

/// A moment: about to come, or durable.
struct Said {
    moment: Moment,
    durable: bool,
}

fn read(volume: &Volume, path: &str) -> Option<Xattrs> {
    let node = match volume.node_at(path, false) {
        Err(Error::NotFound) => return None,
        node => node.unwrap(),
    };
    let read = |name: uext4::Result<uext4::XattrName>| {
        let name = name.unwrap();
        (name.as_bytes().to_vec(), node.xattr(&name).unwrap())
    };
    Some(node.xattrs().map(read).collect())
}

fn play(args: &[&str], lengths: [usize; 4], name: &'static str) {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let options = Options::new(name, 1).at_most(220);
    let tree = Scratch::new(12 << 20);
    PATHS.iter().for_each(|path| std::fs::write(tree.file(&path[1..]), "").unwrap());
    let image = garbage_volume(12 << 20, tree.path(), &[&["-b", "1024", "-J", "size=1"], args].concat());
    let device = CrashDevice::new(image.device(), CrashOptions::default()).unwrap();
    let (handle, volume) = (device.handle(), open_rw(Arc::new(device)));
    let mut rng = Rng::new(options.seed);
    let mut now: Moment = [(); 5].map(|()| Some(Xattrs::new()));
    let first = Said { moment: now.clone(), durable: true };
    for _ in 0..160 {
        let at = rng.below(5) as usize;
        let (name, length) = (format!("user.{}", rng.below(2)), *rng.pick(&lengths));
        let mut value = vec![0; length];
        pattern(rng.below(2), 0, &mut value);
        let mut next = now.clone();
        match (rng.below(10), &mut next[at]) {
            (0, _) => {
                volume.sync_all().unwrap();
                handle.mark(Said { moment: now.clone(), durable: true });
                continue;
            }
            (1, gone @ Some(_)) => *gone = None,
            (_, made @ None) => *made = Some(Xattrs::new()),
            (2 | 3, Some(xattrs)) if xattrs.contains_key(name.as_bytes()) => {
                xattrs.remove(name.as_bytes());
            }
            (_, Some(xattrs)) => drop(xattrs.insert(name.clone().into_bytes(), value.clone())),
        }
        handle.mark(Said { moment: next.clone(), durable: false });
        let path = PATHS[at];
        match (&now[at], &next[at]) {
            (Some(_), None) => volume.remove_file(path).unwrap(),
            (None, _) => {
                drop(volume.open_file(path, OpenOptions::new().write(true).create_new(true)).unwrap());
            }
            (Some(_), Some(xattrs)) if xattrs.contains_key(name.as_bytes()) => {
                volume.set_xattr(path, &name, &value, XattrFlags::empty(), true).unwrap();
            }
            (Some(_), Some(_)) => volume.remove_xattr(path, &name, true).unwrap(),
        }
        assert_eq!(read(&volume, path), next[at]);
        now = next;
    }
    let report = enumerate(&handle, &options, 12, |state, volume| {
        let said: Vec<&Said> = [&first].into_iter().chain(state.marks()).collect();
        let durable = said.iter().rposition(|said| said.durable).unwrap();
        let found = PATHS.map(|path| read(volume, path));
        match said[durable..].iter().any(|said| said.moment == found) {
            true => Ok(()),
            false => Err(format!("no moment since the last sync: {found:?}")),
        }
    });
    assert!(options.only.is_some() || report.images > 20, "{report}");
}

#[test]
fn blocks() {
    play(&["-I", "128"], SMALL, "crash_xattrs_blocks");
}

#[test]
fn records_and_blocks() {
    play(&["-I", "256", "-O", "^metadata_csum"], SMALL, "crash_xattrs_both");
}

/// Values in inodes of their own, which files share: named by records.
#[test]
fn value_inodes() {
    play(&["-I", "256", "-O", "ea_inode"], LARGE, "crash_xattrs_values");
}

/// The same, named by blocks that files share.
#[test]
fn value_inodes_of_blocks() {
    play(&["-I", "128", "-O", "ea_inode,^metadata_csum"], LARGE, "crash_xattrs_values_blocks");
}
