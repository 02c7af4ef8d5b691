//! Archives and layers of volumes: GNU tar restores what the volume has; a volume made of an archive makes the same
//! archive; layers turn one tree into the other.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use uext4::device::{self, OpenOptions};
use uext4::mkfs::{Free, Options, Source, SourceError, format_tree, smallest};
use uext4::{DeviceSpec, Volume, VolumeOptions};
use uext4_testkit::manifest::assert_same;
use uext4_testkit::{
    Kind, Manifest, Need, Scratch, VolumeBuilder, e2fsck_clean, fixture, kernel_manifest, manifest, needs,
    oracle,
};
use uext4_transfer::{ArchiveInput, Error, GatherOptions, Gathered, Gathering, Observer, PackOptions};
use uext4_transfer::{pack, pack_changes};

/// Remembers what was told.
#[derive(Default)]
struct Told(Vec<String>);

impl Observer for Told {
    fn begin(&mut self, _total: Option<u64>) {}
    fn advance(&mut self, _bytes: u64) {}
    fn trouble(&mut self, error: Error) {
        self.0.push(error.to_string());
    }
}

fn open(image: &Path) -> Volume {
    Volume::open(image, VolumeOptions::read_only()).unwrap()
}

fn packed(image: &Path, path: &str, options: PackOptions) -> Vec<u8> {
    let (mut out, mut told) = (Vec::new(), Told::default());
    pack(&open(image), Path::new(path), (&mut out, Path::new("out")), options, &mut told).unwrap();
    out
}

fn layer(old: &Path, new: &Path) -> Result<Vec<u8>, Error> {
    let (mut out, mut told) = (Vec::new(), Told::default());
    let (old, new) = (open(old), open(new));
    let (old, new) = ((&old, Path::new("/")), (&new, Path::new("/")));
    pack_changes(old, new, (&mut out, Path::new("out")), PackOptions::default(), &mut told)?;
    Ok(out)
}

/// Extracts an archive over a directory by GNU tar.
fn extract(bytes: &[u8], into: &Path) {
    let mut tar = oracle::command("tar");
    tar.args(["--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "-xpf", "-", "-C"]).arg(into);
    let mut child = tar.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Without what an archive does not have, and the sizes of directories.
fn comparable(mut found: Manifest) -> Manifest {
    found.remove(&b"/lost+found"[..]);
    found.retain(|_, entry| entry.kind != Kind::Socket);
    for entry in found.values_mut().filter(|entry| entry.kind == Kind::Directory) {
        (entry.size, entry.nlink) = (0, 0);
    }
    found
}

fn volume(scratch: &Scratch, name: &str, tree: &Path) -> PathBuf {
    let path = scratch.file(name);
    fs::File::create(&path).unwrap().set_len(128 << 20).unwrap();
    VolumeBuilder::new(128 << 20).args(["-F", "-b", "4096"]).from_dir(tree).format(&path);
    path
}

struct Contents(Gathered);

impl Source for Contents {
    fn read(&self, key: u64, pos: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        self.0.read(key, pos, buffer)
    }
}

/// A volume of archives, one over the other.
fn built(scratch: &Scratch, name: &str, archives: &[&[u8]]) -> PathBuf {
    let mut gathering = Gathering::new(GatherOptions::default());
    for (number, bytes) in archives.iter().enumerate() {
        let path = scratch.file(format!("{name}.{number}.tar"));
        fs::write(&path, bytes).unwrap();
        gathering.archive(&path, ArchiveInput::File(fs::File::open(&path).unwrap())).unwrap();
    }
    let contents = Contents(gathering.finish().unwrap());
    let image = scratch.file(name);
    fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
    let how = OpenOptions { write: true, force: false };
    let device = device::open(&DeviceSpec::file(&image), how).unwrap().device;
    let options = smallest(device.geometry(), &Options::default(), &contents.0.tree, Free::Bytes(0)).unwrap();
    format_tree(&*device, &options, &contents.0.tree, &contents).unwrap();
    drop(device);
    e2fsck_clean(&image);
    image
}

/// A tree with everything, in a directory.
fn tree(scratch: &Scratch) -> PathBuf {
    let tree = scratch.file("tree");
    fs::create_dir(&tree).unwrap();
    fixture::standard_tree_with(
        &tree,
        fixture::TreeOptions { far: 50 << 20, ..fixture::TreeOptions::new(7) },
    );
    let long = tree.join("n".repeat(200));
    fs::create_dir(&long).unwrap();
    fs::write(long.join("m".repeat(200)), b"contents").unwrap();
    symlink("t".repeat(1000), tree.join("far")).unwrap();
    let sparse = fs::File::create(tree.join("with holes")).unwrap();
    sparse.set_len(50 << 20).unwrap();
    sparse.write_all_at(&[7; 70_000], 9 << 20).unwrap();
    fs::write(tree.join("a large one"), vec![3; 3 << 20]).unwrap();
    tree
}

#[test]
fn root_tar_restores_what_the_volume_has() {
    needs!(Need::Root, Need::Loop, Need::Tool("mke2fs"), Need::Tool("tar"));
    let scratch = Scratch::new(512 << 20);
    let image = volume(&scratch, "image", &tree(&scratch));
    let archive = packed(&image, "/", PackOptions::default());
    let copy = scratch.file("copy");
    fs::create_dir(&copy).unwrap();
    extract(&archive, &copy);
    assert_same(&comparable(kernel_manifest(&image)), &comparable(manifest(&copy)));
}

#[test]
fn a_volume_of_an_archive_makes_the_same_archive() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(512 << 20);
    let image = volume(&scratch, "image", &tree(&scratch));
    let archive = packed(&image, "/", PackOptions::default());
    let again = built(&scratch, "again", &[&archive]);
    assert!(packed(&again, "/", PackOptions::default()) == archive);
    // A directory alone, a single file, one owner, one time.
    let options = PackOptions { owner: Some((5, 6)), latest: Some(1000) };
    let one = packed(&image, "/a large one", options);
    assert_eq!(one.len(), (512 + (3 << 20) + 1024_usize).next_multiple_of(10_240));
    let head = String::from_utf8_lossy(&one[..512]).into_owned();
    assert!(head.starts_with("a large one\0") && head[108..].starts_with("0000005\x000000006\0"), "{head:?}");
    assert_eq!(&head[136..148], "00000001750\0");
}

#[test]
fn a_layer_turns_one_tree_into_the_other() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(512 << 20);
    let tree = tree(&scratch);
    for name in ["gone", "other kind", "same", "a linked one", "mode"] {
        fs::write(tree.join(name), name).unwrap();
    }
    fs::create_dir_all(tree.join("directory/below")).unwrap();
    fs::create_dir_all(tree.join("replaced/below")).unwrap();
    fs::hard_link(tree.join("a linked one"), tree.join("directory/linked too")).unwrap();
    let old = volume(&scratch, "old", &tree);
    assert!(layer(&old, &old).unwrap().iter().all(|&byte| byte == 0), "nothing changed");

    let same = fs::metadata(tree.join("same")).unwrap().modified().unwrap();
    fs::remove_file(tree.join("gone")).unwrap();
    fs::remove_file(tree.join("other kind")).unwrap();
    fs::create_dir(tree.join("other kind")).unwrap();
    fs::write(tree.join("other kind/new"), b"new").unwrap();
    fs::remove_dir_all(tree.join("replaced")).unwrap();
    fs::write(tree.join("replaced"), b"a file").unwrap();
    fs::remove_dir_all(tree.join("directory/below")).unwrap();
    fs::hard_link(tree.join("a linked one"), tree.join("a third name")).unwrap();
    fs::set_permissions(tree.join("mode"), fs::Permissions::from_mode(0o600)).unwrap();
    // Other contents of the same size and time.
    let file = fs::OpenOptions::new().write(true).open(tree.join("same")).unwrap();
    file.write_all_at(b"SAME", 0).unwrap();
    file.set_modified(same).unwrap();
    let new = volume(&scratch, "new", &tree);

    let bytes = layer(&old, &new).unwrap();
    let all = packed(&new, "/", PackOptions::default());
    assert!(bytes.len() < all.len() / 10, "{} of {}", bytes.len(), all.len());
    let both = built(&scratch, "both", &[&packed(&old, "/", PackOptions::default()), &bytes]);
    assert!(packed(&both, "/", PackOptions::default()) == all);
    // What would hide another name cannot be in a layer.
    fs::write(tree.join(".wh.name"), b"").unwrap();
    let hiding = volume(&scratch, "hiding", &tree);
    let error = layer(&old, &hiding).unwrap_err();
    assert!(error.to_string().starts_with(".wh.name: "), "{error}");
}
