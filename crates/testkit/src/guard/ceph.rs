//! A Ceph cluster of one node, and images in it.

use super::release_failed;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A running cluster: one for the whole test program, which `scripts/ceph.sh` stops when the program has ended.
///
/// One program of the machine has one at a time. A test in a process of its own uses that of the program that started
/// it, so it asks for the cluster before it leaves for that process.
#[derive(Debug)]
pub struct Ceph {
    dir: PathBuf,
    _lock: Option<File>,
}

/// The cluster, for a test that leaves its daemons alone.
pub type Shared = RwLockReadGuard<'static, Ceph>;

/// The cluster, for a test that stops them.
pub type Alone = RwLockWriteGuard<'static, Ceph>;

fn started() -> &'static RwLock<Ceph> {
    static CEPH: OnceLock<RwLock<Ceph>> = OnceLock::new();
    CEPH.get_or_init(|| RwLock::new(Ceph::start()))
}

impl Ceph {
    /// The cluster of this program, started if it is not running. That takes some 15 seconds.
    pub fn shared() -> Shared {
        started().read()
    }

    /// The same, with no other test on it meanwhile.
    pub fn alone() -> Alone {
        started().write()
    }

    fn start() -> Ceph {
        let path = std::env::temp_dir().join("uext4-test-ceph.lock");
        let mut lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let inside = std::env::var_os("UEXT4_OWN_PROCESS").is_some();
        if inside && rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut dir = String::new();
            lock.read_to_string(&mut dir).expect("read the lock file");
            return Ceph { dir: dir.into(), _lock: None };
        }
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("lock a file");
        let dir = std::env::temp_dir().join(format!("uext4-ceph-{}", std::process::id()));
        let ceph = Ceph { dir, _lock: None };
        ceph.script(&["up"], &[&std::process::id().to_string()]);
        lock.set_len(0).expect("empty the lock file");
        lock.rewind().expect("rewind the lock file");
        write!(lock, "{}", ceph.dir.display()).expect("write the lock file");
        Ceph { _lock: Some(lock), ..ceph }
    }

    /// A cluster of the caller's own whose users have keys, ended on drop.
    pub fn with_keys() -> CephWithKeys {
        let dir = std::env::temp_dir().join(format!("uext4-ceph-keys-{}", std::process::id()));
        let ceph = Ceph { dir, _lock: None };
        ceph.script_with(&["up"], &[&std::process::id().to_string()], "cephx");
        CephWithKeys(ceph)
    }

    /// `scripts/ceph.sh COMMAND DIR MORE`.
    fn script(&self, command: &[&str], more: &[&str]) {
        self.script_with(command, more, "none");
    }

    fn script_with(&self, command: &[&str], more: &[&str], auth: &str) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/ceph.sh");
        let output = Command::new(script)
            .args(command)
            .arg(&self.dir)
            .args(more)
            // Clients that died are forgotten sooner than after 30 seconds.
            .env("CEPH_WATCH_SECONDS", "6")
            .env("CEPH_AUTH", auth)
            .output()
            .expect("scripts/ceph.sh runs");
        assert!(output.status.success(), "ceph.sh {command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Its configuration file.
    pub fn conf(&self) -> PathBuf {
        self.dir.join("ceph.conf")
    }

    /// Kills the OSD. Requests wait until [`Ceph::start_osd`].
    pub fn kill_osd(&self) {
        self.script(&["kill-osd"], &[]);
    }

    /// Starts it again.
    pub fn start_osd(&self) {
        self.script(&["start-osd"], &[]);
    }

    /// Runs a program of Ceph, and returns what it says.
    pub fn run(&self, program: &str, args: &[&str]) -> String {
        let output = self.try_run(program, args);
        output.unwrap_or_else(|complaint| panic!("{program} {args:?}: {complaint}"))
    }

    /// The same, when it may fail: with what it complains about.
    ///
    /// # Errors
    /// Its standard error.
    pub fn try_run(&self, program: &str, args: &[&str]) -> Result<String, String> {
        let output = Command::new(program).args(args).env("CEPH_CONF", self.conf()).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// A new image in the pool `rbd`, of so many MiB, with these further options of `rbd create`.
    pub fn image(&self, mib: u64, options: &[&str]) -> RbdImage<'_> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rbd/t{}-{number}", std::process::id());
        let size = format!("{mib}M");
        self.run("rbd", &[&["create", "--size", &size, &name], options].concat());
        RbdImage { ceph: self, name }
    }
}

/// See [`Ceph::with_keys`].
#[derive(Debug)]
pub struct CephWithKeys(Ceph);

impl std::ops::Deref for CephWithKeys {
    type Target = Ceph;

    fn deref(&self) -> &Ceph {
        &self.0
    }
}

impl CephWithKeys {
    /// Makes the user `client.NAME` with these rights, and keeps its key where clients look for it.
    pub fn add_user(&self, name: &str, rights: &[&str]) {
        let user = format!("client.{name}");
        let file = self.0.dir.join(format!("{user}.keyring")).display().to_string();
        self.run("ceph", &[&["auth", "get-or-create", &user][..], rights, &["-o", &file]].concat());
    }
}

impl Drop for CephWithKeys {
    fn drop(&mut self) {
        self.0.script(&["down"], &[]);
    }
}

/// An image of a cluster, removed when it is dropped.
#[derive(Debug)]
pub struct RbdImage<'a> {
    ceph: &'a Ceph,
    /// `pool/image`.
    pub name: String,
}

impl RbdImage<'_> {
    /// The device, as uext4 spells it.
    pub fn spec(&self) -> String {
        self.spec_of("")
    }

    /// The same of `@snapshot`, or of a namespace's.
    pub fn spec_of(&self, snapshot: &str) -> String {
        format!("rbd:{}{snapshot}?conf={}", self.name, self.ceph.conf().display())
    }

    /// Leaves it to the end of the cluster: removing an image looks at each of its objects, those of a petabyte too.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    /// Copies it into a file.
    pub fn export(&self, file: &Path) {
        let file = file.display().to_string();
        self.ceph.run("rbd", &["export", "--no-progress", &self.name, &file]);
    }

    /// Takes the exclusive lock from whoever has it, as an administrator does.
    pub fn break_lock(&self) {
        self.remove_lock("--rbd_blocklist_on_break_lock=true");
    }

    /// The same, but the client that had it is not put on the blocklist: nothing stops its requests.
    pub fn break_lock_without_blocklist(&self) {
        self.remove_lock("--rbd_blocklist_on_break_lock=false");
    }

    fn remove_lock(&self, blocklist: &str) {
        let (id, locker) = (self.lock("id"), self.lock("locker"));
        self.ceph.run("rbd", &[blocklist, "lock", "rm", &self.name, &id, &locker]);
    }

    /// What the cluster says of the exclusive lock: its `id`, and `locker` and `address` of who has it.
    pub fn lock(&self, field: &str) -> String {
        let listed = self.ceph.run("rbd", &["lock", "ls", &self.name, "--format", "json"]);
        // [{"id":"auto 1234","locker":"client.4136","address":"…"}]
        let (_, rest) = listed.split_once(&format!("\"{field}\":\"")).expect("a lock");
        rest.split('"').next().expect("a string").to_owned()
    }
}

impl Drop for RbdImage<'_> {
    fn drop(&mut self) {
        // A client that was killed a moment ago still counts as one that watches.
        let removed = || {
            let _ = self.ceph.try_run("rbd", &["snap", "purge", "--no-progress", &self.name]);
            self.ceph.try_run("rbd", &["rm", "--no-progress", &self.name]).is_ok()
        };
        if !super::wait_until(std::time::Duration::from_secs(40), removed) {
            release_failed(&format!("the image {} cannot be removed", self.name));
        }
    }
}
