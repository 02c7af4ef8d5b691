//! Images of containers: those that umoci and skopeo make, and those that are not what they say.

use crate::common::{Head, Tar, described, find, host, item, paths, run, same};
use flate2::{Compression, write::GzEncoder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use uext4_testkit::{Need, Scratch, needs};
use uext4_transfer::{Failures, GatherCause, GatherOptions, Gathered, Gathering};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

fn gather(folder: &Path, reference: Option<&str>, platform: Option<&str>) -> Result<Gathered, Failures> {
    let platform = platform.map(str::to_owned);
    let mut gathering = Gathering::new(GatherOptions { platform, ..GatherOptions::default() });
    gathering.oci(folder, reference)?;
    gathering.finish()
}

fn digest(bytes: &[u8]) -> String {
    let hex = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("sha256:{hex}")
}

/// A folder made by hand.
struct Folder {
    scratch: Scratch,
}

impl Folder {
    fn new() -> Folder {
        let folder = Folder { scratch: Scratch::new(1 << 20) };
        fs::create_dir_all(folder.path().join("blobs/sha256")).unwrap();
        fs::write(folder.path().join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        folder
    }

    fn path(&self) -> &Path {
        self.scratch.path()
    }

    fn blob_path(&self, digest: &str) -> PathBuf {
        self.path().join(digest.replace("sha256:", "blobs/sha256/"))
    }

    fn blob(&self, media_type: &str, bytes: &[u8]) -> Value {
        let digest = digest(bytes);
        fs::write(self.blob_path(&digest), bytes).unwrap();
        json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() })
    }

    fn document(&self, media_type: &str, document: &Value) -> Value {
        self.blob(media_type, document.to_string().as_bytes())
    }

    /// An image of these layers, which are compressed as their types say.
    fn image(&self, layers: &[(&str, Vec<u8>)]) -> Value {
        let diff_ids: Vec<_> = layers.iter().map(|(_, tar)| digest(tar)).collect();
        let config = self.document(CONFIG, &json!({ "rootfs": { "type": "layers", "diff_ids": diff_ids } }));
        let layers = layers.iter().map(|(kind, tar)| {
            let bytes = match *kind {
                "+gzip" => {
                    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
                    encoder.write_all(tar).unwrap();
                    encoder.finish().unwrap()
                }
                "+zstd" => compress_to_vec(&tar[..], CompressionLevel::Fastest),
                _ => tar.clone(),
            };
            self.blob(&format!("{LAYER}{kind}"), &bytes)
        });
        let layers: Vec<_> = layers.collect();
        self.document(MANIFEST, &json!({ "schemaVersion": 2, "config": config, "layers": layers }))
    }

    fn index(&self, manifests: &[Value]) {
        let index = json!({ "schemaVersion": 2, "manifests": manifests });
        fs::write(self.path().join("index.json"), index.to_string()).unwrap();
    }
}

fn named(mut image: Value, name: &str) -> Value {
    image["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    image
}

fn platform(mut image: Value, architecture: &str) -> Value {
    image["platform"] = json!({ "os": "linux", "architecture": architecture });
    image
}

fn tar() -> Tar {
    Tar::default()
}

fn layers() -> [(&'static str, Vec<u8>); 3] {
    let lowest = tar()
        .directory("usr")
        .file("usr/a", "1")
        .file("usr/b", "1")
        .symlink("bin", "usr")
        .file("c", "1")
        .end();
    let middle = tar().file("usr/.wh.a", "").file("bin/d", "2").file(".wh.c", "").end();
    let highest = tar().file("usr/a", "3").end();
    [("", lowest), ("+gzip", middle), ("+zstd", highest)]
}

#[test]
fn layers_of_all_kinds_are_one_tree() {
    let folder = Folder::new();
    let image = folder.image(&layers());
    let digest = image["digest"].as_str().unwrap().to_owned();
    let other = folder.image(&[("", tar().file("other", "").end())]);
    folder.index(std::slice::from_ref(&image));
    let wanted = ["bin", "usr/", "usr/a", "usr/b", "usr/d"];
    assert_eq!(paths(&gather(folder.path(), None, None).unwrap().tree), wanted);
    folder.index(&[named(other, "other"), named(image, "latest")]);
    for reference in ["latest", &digest] {
        assert_eq!(paths(&gather(folder.path(), Some(reference), None).unwrap().tree), wanted);
    }
    assert_eq!(paths(&gather(folder.path(), Some("other"), None).unwrap().tree), ["other"]);
    for reference in [None, Some("neither"), Some("sha256:00")] {
        let failures = gather(folder.path(), reference, None).unwrap_err();
        let text = failures.to_string();
        assert!(text.contains("other") && text.contains("latest"), "{text}");
    }
}

#[test]
fn a_whiteout_in_the_lowest_layer_is_no_file() {
    let folder = Folder::new();
    let lowest = tar().file("d/.wh.x", "").file(".wh..wh..opq", "").file("a", "").end();
    folder.index(&[folder.image(&[("+gzip", lowest)])]);
    assert_eq!(paths(&gather(folder.path(), None, None).unwrap().tree), ["a"]);
    // Its bytes are proved, so it needs no end mark.
    folder.index(&[folder.image(&[("", tar().file("b", "b").0)])]);
    assert_eq!(paths(&gather(folder.path(), None, None).unwrap().tree), ["b"]);
    // But all that it says it has.
    let cut = tar().head(&Head::new("b", b'0', 5000)).data(b"b").0;
    for kind in ["", "+gzip"] {
        folder.index(&[folder.image(&[(kind, cut.clone())])]);
        let failures = refused(&folder, "a file that is cut");
        assert!(matches!(failures.errors[0].cause, GatherCause::Truncated(_)), "{failures}");
    }
}

#[test]
fn of_several_platforms_the_one_of_this_machine_is_taken() {
    let folder = Folder::new();
    let image = |name: &str| folder.image(&[("", tar().file(name, "").end())]);
    let ours = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let mut proof = image("attestation");
    proof["platform"] = json!({ "os": "unknown", "architecture": "unknown" });
    let images = [proof, platform(image("s390x"), "s390x"), platform(image("ours"), ours)];
    let nested = folder.document(INDEX, &json!({ "manifests": images }));
    folder.index(&[named(nested, "many")]);
    for reference in [None, Some("many")] {
        assert_eq!(paths(&gather(folder.path(), reference, None).unwrap().tree), ["ours"]);
    }
    assert_eq!(paths(&gather(folder.path(), None, Some("linux/s390x")).unwrap().tree), ["s390x"]);
    let inner = images[1]["digest"].as_str();
    assert_eq!(paths(&gather(folder.path(), inner, None).unwrap().tree), ["s390x"]);
    let missing = gather(folder.path(), None, Some("linux/riscv64")).unwrap_err().to_string();
    assert!(missing.contains("linux/s390x"), "{missing}");
    assert!(gather(folder.path(), None, Some("linux")).is_err());
    // Indexes in indexes, deeper than anyone needs.
    let mut index = image("deep");
    for _ in 0..6 {
        index = folder.document(INDEX, &json!({ "manifests": [index] }));
    }
    folder.index(&[index]);
    assert!(gather(folder.path(), None, None).is_err());
}

#[track_caller]
fn refused(folder: &Folder, what: &str) -> Failures {
    gather(folder.path(), None, None).map(|tree| paths(&tree.tree)).expect_err(what)
}

#[test]
fn a_blob_that_is_not_what_its_digest_says_is_refused() {
    let folder = Folder::new();
    let image = folder.image(&layers());
    folder.index(&[image]);
    gather(folder.path(), None, None).unwrap();
    for entry in fs::read_dir(folder.path().join("blobs/sha256")).unwrap() {
        let path = entry.unwrap().path();
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        let last = bad.len() - 1;
        bad[last] ^= 1;
        fs::write(&path, &bad).unwrap();
        let failures = refused(&folder, "a changed byte");
        assert!(matches!(failures.errors[0].cause, GatherCause::Digest { .. }), "{failures}");
        fs::write(&path, [&good[..], b" "].concat()).unwrap();
        let failures = refused(&folder, "a byte more");
        assert!(matches!(failures.errors[0].cause, GatherCause::Image(_)), "{failures}");
        // A link to the right bytes is not a blob either.
        let elsewhere = folder.path().join("elsewhere");
        fs::write(&elsewhere, &good).unwrap();
        fs::remove_file(&path).unwrap();
        refused(&folder, "a missing blob");
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        refused(&folder, "a link");
        fs::remove_file(&path).unwrap();
        fs::write(&path, &good).unwrap();
    }
    gather(folder.path(), None, None).unwrap();
}

#[test]
fn documents_that_contradict_themselves_are_refused() {
    let folder = Folder::new();
    let bytes = tar().file("a", "").end();
    let other = digest(b"something else");
    for (kind, compressed) in [("", false), ("+gzip", true)] {
        let image = folder.image(&[(kind, bytes.clone())]);
        let path = folder.blob_path(image["digest"].as_str().unwrap());
        let manifest: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let changed = |change: &dyn Fn(&mut Value)| {
            let mut manifest = manifest.clone();
            change(&mut manifest);
            folder.index(&[folder.document(MANIFEST, &manifest)]);
            refused(&folder, "a changed manifest")
        };
        let config = |document: Value| {
            let config = folder.document(CONFIG, &document);
            changed(&|manifest| manifest["config"] = config.clone())
        };
        let wrong = config(json!({ "rootfs": { "diff_ids": [other] } }));
        assert!(matches!(wrong.errors[0].cause, GatherCause::Digest { .. }), "{compressed}: {wrong}");
        config(json!({ "rootfs": { "diff_ids": [] } }));
        config(json!({}));
        changed(&|manifest| manifest["layers"][0]["mediaType"] = "application/x-7z".into());
        changed(&|manifest| {
            manifest["config"]["mediaType"] = "application/vnd.cncf.helm.config.v1+json".into()
        });
        for wrong in ["sha256:../../../../etc/passwd", "sha512:00", "", "../oci-layout"] {
            changed(&|manifest| manifest["layers"][0]["digest"] = wrong.into());
        }
        changed(&|manifest| manifest["layers"][0]["size"] = 1.into());
        changed(&|manifest| manifest["layers"][0]["size"] = (-1).into());
    }
    folder.index(&[]);
    refused(&folder, "no image");
    fs::write(folder.path().join("index.json"), vec![b' '; 5 << 20]).unwrap();
    let large = refused(&folder, "a large index");
    assert!(matches!(large.errors[0].cause, GatherCause::TooLarge { .. }), "{large}");
    folder.index(&[folder.image(&layers())]);
    gather(folder.path(), None, None).unwrap();
    fs::write(folder.path().join("oci-layout"), r#"{"imageLayoutVersion":"2.0.0"}"#).unwrap();
    refused(&folder, "another version");
    fs::remove_file(folder.path().join("oci-layout")).unwrap();
    refused(&folder, "no layout");
}

#[test]
fn images_of_umoci_and_skopeo_are_what_umoci_unpacks() {
    needs!(Need::Root, Need::Tool("umoci"), Need::Tool("skopeo"));
    let scratch = Scratch::new(64 << 20);
    let shell = |script: &str| run(&["bash", "-ec", script], scratch.path());
    shell(
        "umoci init --layout L; umoci new --image L:t; umoci unpack --image L:t B; cd B/rootfs
        mkdir -p usr/lib etc/deep var; ln -s usr/lib lib; echo one > usr/lib/one; echo gone > etc/deep/gone
        ln usr/lib/one etc/hard; mkfifo var/pipe; mknod var/null c 1 3; chown 7:8 etc/hard; chmod 4755 usr/lib/one
        head -c 300000 /dev/urandom > var/random; setfattr -n user.x -v y var/random",
    );
    shell("umoci repack --refresh-bundle --image L:t B; umoci unpack --image L:t C");
    shell(
        "cd C/rootfs; rm -r etc/deep var/pipe; echo two > usr/lib/two; rm lib; mkdir lib; echo new > lib/new
        chmod 700 var; mkdir etc/deep; echo back > etc/deep/back",
    );
    shell("umoci repack --image L:t C; umoci unpack --image L:t D");
    let gathered = gather(&scratch.file("L"), Some("t"), None).unwrap();
    same(&host(&scratch.file("D/rootfs")), &described(&gathered));
    assert!(find(&gathered.tree, "etc/deep/gone").is_none());
    assert_eq!(find(&gathered.tree, "usr/lib/one"), find(&gathered.tree, "etc/hard"));
    assert_eq!(item(&gathered.tree, "var").mode, 0o700);
    shell("skopeo copy -q --insecure-policy oci:L:t oci:S:zstd --dest-compress-format zstd --dest-compress");
    let copied = gather(&scratch.file("S"), None, None).unwrap();
    same(&described(&gathered), &described(&copied));
}
