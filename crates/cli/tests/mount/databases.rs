//! PostgreSQL in a mount whose server is killed at work: what it acknowledged is there after the next mount, and its
//! own checks are content.

use super::{Mounted, NEEDS, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use uext4_testkit::{Need, VolumeBuilder, requirement};

/// Clients at once, and thus transactions of which nobody knows after a kill.
const CLIENTS: u64 = 4;
const KILLS: usize = 2;
const USER: &str = "postgres";
/// Sums that are the same if every transaction is there as a whole or not at all, and the number of them.
const SUMS: &str = "SELECT count(*), coalesce(sum(delta), 0), (SELECT sum(abalance) FROM pgbench_accounts),
    (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT sum(bbalance) FROM pgbench_branches)
    FROM pgbench_history";

/// Where the programs of the newest version are.
fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").unwrap();
    let mut all: Vec<PathBuf> = versions.map(|version| version.unwrap().path().join("bin")).collect();
    all.retain(|bin| bin.join("initdb").exists());
    all.sort();
    all.pop().unwrap()
}

/// A program of PostgreSQL, as its user.
fn program(name: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]).arg(programs().join(name));
    command.current_dir("/").stdin(Stdio::null());
    command
}

#[track_caller]
fn done(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}: {status}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// A running server, its directory of data in a mount, its socket and its log outside.
struct Postgres<'p> {
    server: Child,
    socket: &'p Path,
}

impl<'p> Postgres<'p> {
    #[track_caller]
    fn start(data: &Path, socket: &'p Path) -> Postgres<'p> {
        let log = File::options().create(true).append(true).open(socket.join("log")).unwrap();
        let mut command = program("postgres");
        command.arg("-D").arg(data).arg("-k").arg(socket).args(["-c", "listen_addresses="]);
        command.args(["-c", "max_wal_size=16MB", "-c", "min_wal_size=4MB", "-c", "shared_buffers=16MB"]);
        let server = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let mut started = Postgres { server, socket };
        wait_until("PostgreSQL", || {
            let log = || std::fs::read_to_string(socket.join("log")).unwrap();
            assert!(started.server.try_wait().unwrap().is_none(), "PostgreSQL ended: {}", log());
            started.client("pg_isready").output().unwrap().status.success()
        });
        started
    }

    fn client(&self, name: &str) -> Command {
        let mut command = program(name);
        command.arg("-h").arg(self.socket);
        command
    }

    /// The number of transactions, whose sums are right.
    #[track_caller]
    fn transactions(&self) -> u64 {
        let said = done(self.client("psql").args(["-At", "-c", SUMS, USER]));
        let numbers: Vec<i64> = said.trim().split('|').map(|number| number.parse().unwrap()).collect();
        assert!(numbers[1..].iter().all(|sum| *sum == numbers[1]), "{said}");
        numbers[0].try_into().unwrap()
    }

    /// Ends the server by a signal, whatever it thinks of its files.
    fn end(&mut self, signal: Signal) {
        if self.server.try_wait().unwrap().is_none() {
            kill_process(Pid::from_child(&self.server), signal).unwrap();
        }
        wait_until("the end of PostgreSQL", || self.server.try_wait().unwrap().is_some());
    }
}

impl Drop for Postgres<'_> {
    fn drop(&mut self) {
        let _killed = self.server.kill();
        let _waited = self.server.wait();
    }
}

/// The lines of the logs in which pgbench notes each transaction that was acknowledged.
fn acknowledged(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let logs = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("done"));
    logs.map(|log| std::fs::read_to_string(log.path()).unwrap().lines().count() as u64).sum()
}

#[test]
fn root_postgresql_keeps_what_it_acknowledged() {
    let there = Need::Runs(&["sh", "-c", "id postgres && ls /usr/lib/postgresql/*/bin/initdb"]);
    let needs = [&NEEDS[..], &[Need::Tool("setpriv"), there]].concat();
    if !requirement::require("mount::databases", &needs) {
        return;
    }
    let volume = VolumeBuilder::new(512 << 20).args(["-b", "4096"]).build();
    let socket = tempfile::Builder::new().prefix("uext4-pg-").tempdir().unwrap();
    let id = |of: &str| done(Command::new("id").args([of, USER])).trim().parse().unwrap();
    let (user, group) = (id("-u"), id("-g"));
    chown(socket.path(), Some(user), Some(group)).unwrap();
    let mut mounted = Mounted::new(volume.path(), "allow_other");
    std::fs::create_dir(mounted.at("data")).unwrap();
    chown(mounted.at("data"), Some(user), Some(group)).unwrap();
    let initdb = ["--data-checksums", "--no-sync", "--wal-segsize=1", "-A", "trust", "--locale=C"];
    done(program("initdb").args(initdb).arg("-D").arg(mounted.at("data")));
    // A directory's sync is one of the volume.
    File::open(mounted.at("data")).unwrap().sync_all().unwrap();
    let mut before = 0;
    for kill in 0..=KILLS {
        let mut postgres = Postgres::start(&mounted.at("data"), socket.path());
        if kill == 0 {
            done(postgres.client("pgbench").args(["-i", "-q", "-s", "1", USER]));
        } else {
            let (found, known) = (postgres.transactions(), acknowledged(socket.path()));
            let most = known + kill as u64 * CLIENTS;
            println!("kill {kill}: {known} transactions acknowledged, {found} there");
            assert!(
                (known..=most).contains(&found) && known > before + 10,
                "{before} {known} {found} {most}"
            );
            before = known;
            done(postgres.client("pg_amcheck").args(["--install-missing", "--heapallindexed", USER]));
        }
        if kill == KILLS {
            postgres.end(Signal::INT);
            break;
        }
        let mut load = postgres.client("pgbench");
        load.args(["-n", "-c", &CLIENTS.to_string(), "-j", "2", "-T", "60", "-l", "--log-prefix"]);
        load.arg(socket.path().join(format!("done-{kill}"))).arg(USER);
        let mut load = load.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(3500));
        mounted.signal(Signal::KILL);
        mounted.ended();
        wait_until("the end of the load", || load.try_wait().unwrap().is_some());
        postgres.end(Signal::QUIT);
        drop(postgres);
        drop(mounted);
        mounted = Mounted::new(volume.path(), "allow_other");
    }
    done(program("pg_checksums").args(["--check", "-D"]).arg(mounted.at("data")));
    mounted.unmount();
    volume.assert_clean();
}
