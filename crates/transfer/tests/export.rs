//! Copies out of a volume as a program would make them: what is told, and typed errors. What copies look like is tested
//! with `uext4 cp` (`crates/cli/tests/copy*.rs`).

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use uext4::{DeviceSpec, Volume, VolumeOptions};
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs};
use uext4_transfer::{Cause, Error, Export, Keep, Observer, Subject, stream};

#[derive(Default)]
struct Seen {
    begun: Vec<Option<u64>>,
    bytes: u64,
    troubles: Vec<Error>,
}

impl Observer for Seen {
    fn begin(&mut self, total: Option<u64>) {
        self.begun.push(total);
    }

    fn advance(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    fn trouble(&mut self, error: Error) {
        self.troubles.push(error);
    }
}

/// A volume with `/tree/one`, `/tree/two` (the same file), `/tree/sub/deep` and `/tree/holes`, and a place beside it.
struct Bed {
    volume: Volume,
    spec: DeviceSpec,
    scratch: Scratch,
    _image: uext4_testkit::Volume,
}

const HOLES: u64 = 1 << 20;

fn bed() -> Bed {
    let scratch = Scratch::new(64 << 20);
    let root = scratch.path().join("root/tree/sub");
    fs::create_dir_all(&root).unwrap();
    let tree = root.parent().unwrap();
    fs::write(tree.join("one"), "one").unwrap();
    fs::hard_link(tree.join("one"), tree.join("two")).unwrap();
    fs::write(root.join("deep"), "deep").unwrap();
    File::create(tree.join("holes")).unwrap().set_len(HOLES).unwrap();
    let image = VolumeBuilder::new(32 << 20).from_dir(&scratch.path().join("root")).build();
    let spec = DeviceSpec::file(image.path());
    let volume = Volume::open_spec(&spec, VolumeOptions::read_only()).unwrap();
    Bed { volume, spec, scratch, _image: image }
}

fn host(path: impl Into<PathBuf>) -> Subject {
    Subject::Host(path.into())
}

#[test]
fn a_tree_is_told_as_it_goes_and_keeps_its_links() {
    needs!(Need::Tool("mke2fs"));
    let Bed { volume, spec, scratch, .. } = &bed();
    let (to, mut seen) = (scratch.path().join("copy"), Seen::default());
    let mut export = Export::new(&to, &[spec], Keep::EVERYTHING).unwrap();
    export.tree(volume, Path::new("/tree"), &mut seen).unwrap();
    assert!(seen.troubles.is_empty(), "{:?}", seen.troubles);
    assert_eq!((seen.begun, seen.bytes), (vec![None], HOLES + 7));
    assert_eq!(fs::read(to.join("sub/deep")).unwrap(), b"deep");
    let holes = fs::metadata(to.join("holes")).unwrap();
    assert_eq!((holes.len(), holes.blocks()), (HOLES, 0));
    assert_eq!(fs::metadata(to.join("one")).unwrap().ino(), fs::metadata(to.join("two")).unwrap().ino());
}

#[test]
fn what_cannot_be_made_is_trouble_with_its_path_and_the_rest_goes_on() {
    needs!(Need::Tool("mke2fs"));
    let Bed { volume, spec, scratch, .. } = &bed();
    let (to, mut seen) = (scratch.path().join("copy"), Seen::default());
    fs::create_dir_all(to.join("one")).unwrap();
    fs::write(to.join("sub"), "in the way").unwrap();
    let mut export = Export::new(&to, &[spec], Keep::NOTHING).unwrap();
    export.tree(volume, Path::new("/tree/."), &mut seen).unwrap();
    let mut told: Vec<_> = seen.troubles.iter().map(|error| (error.subject.clone(), error.errno())).collect();
    told.sort_by_key(|(subject, _)| format!("{subject:?}"));
    assert_eq!(told, [(host(to.join("one")), libc::EISDIR), (host(to.join("sub")), libc::ENOTDIR)]);
    let words = format!("{}: make directory: ", to.join("sub").display());
    assert!(seen.troubles.iter().any(|error| error.to_string().starts_with(&words)), "{:?}", seen.troubles);
    assert_eq!(fs::read(to.join("two")).unwrap(), b"one");
}

#[test]
fn sources_of_one_export_do_not_replace_each_other_and_no_source_is_written_to() {
    needs!(Need::Tool("mke2fs"));
    let Bed { volume, spec, scratch, .. } = &bed();
    let (to, mut seen) = (scratch.path().join("copy"), Seen::default());
    let refused = Export::new(&to, &[spec, spec], Keep::NOTHING).err().unwrap();
    assert!(matches!(refused.cause, Cause::NotDirectory) && refused.subject == host(&to), "{refused}");
    fs::create_dir(&to).unwrap();
    let mut export = Export::new(&to, &[spec, spec], Keep::NOTHING).unwrap();
    export.file(volume, Path::new("/tree/one"), &mut seen).unwrap();
    let again = export.file(volume, Path::new("/tree/sub/../one"), &mut seen).unwrap_err();
    assert!(matches!(again.cause, Cause::JustMade) && again.errno() == libc::EEXIST, "{again}");
    // A second volume that is open on the same device is the same source: two names of one file stay one.
    let links = Keep { links: true, ..Keep::NOTHING };
    let mut trees = Export::new(&to, &[spec, spec], links).unwrap();
    trees.tree(volume, Path::new("/tree/one"), &mut seen).unwrap();
    trees.tree(&volume.clone(), Path::new("/tree/two"), &mut seen).unwrap();
    assert_eq!(fs::metadata(to.join("one")).unwrap().ino(), fs::metadata(to.join("two")).unwrap().ino());
    let image = match &spec.locator {
        uext4::device::Locator::Path(path) => path.clone(),
        other => panic!("{other:?}"),
    };
    let mut over = Export::new(&image, &[spec], Keep::NOTHING).unwrap();
    let refused = over.file(volume, Path::new("/tree/one"), &mut seen).unwrap_err();
    assert!(matches!(refused.cause, Cause::SourceDevice) && refused.subject == host(image), "{refused}");
    assert!(seen.troubles.is_empty(), "{:?}", seen.troubles);
}

#[test]
fn a_stream_gives_zeros_and_names_where_it_goes() {
    needs!(Need::Tool("mke2fs"));
    let Bed { volume, scratch, .. } = &bed();
    let file = volume.open_file("/tree/holes", uext4::OpenOptions::new().read(true)).unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let reading = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map(|_count| bytes).unwrap()
    });
    let mut bytes = 0;
    let to = File::from(std::os::fd::OwnedFd::from(writer));
    stream(volume, &file, &to, Path::new("the pipe"), &mut |more| bytes += more).unwrap();
    drop(to);
    assert!(reading.join().unwrap() == vec![0; HOLES as usize] && bytes == HOLES);
    fs::write(scratch.path().join("read-only"), "").unwrap();
    let to = File::open(scratch.path().join("read-only")).unwrap();
    let error = stream(volume, &file, &to, Path::new("somewhere"), &mut |_more| ()).unwrap_err();
    assert_eq!((error.subject.clone(), error.errno()), (host("somewhere"), libc::EBADF), "{error}");
}
