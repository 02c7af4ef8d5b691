//! NBD over TLS with certificates: nbdkit on a port of this machine, certificates by certtool.

use crate::nbd::open;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use uext4_blockdev::Error;
use uext4_testkit::conformance::conformance;
use uext4_testkit::{Need, Scratch, needs};

/// An authority, and what it has signed.
struct Authority {
    dir: PathBuf,
}

fn certtool(args: &[&str]) {
    let output = Command::new("certtool").args(args).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "certtool {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Authority {
    /// In a directory of `scratch`, which clients and servers can be given.
    fn new(scratch: &Scratch, name: &str) -> Self {
        let dir = scratch.file(name);
        std::fs::create_dir(&dir).unwrap();
        let made = Authority { dir };
        std::fs::write(made.dir.join("ca.info"), format!("cn = {name}\nca\ncert_signing_key\n")).unwrap();
        made.key("ca-key.pem");
        let [template, key, out] = ["ca.info", "ca-key.pem", "ca-cert.pem"].map(|file| made.path(file));
        certtool(&[
            "--generate-self-signed",
            "--load-privkey",
            &key,
            "--template",
            &template,
            "--outfile",
            &out,
        ]);
        made
    }

    fn path(&self, file: &str) -> String {
        self.dir.join(file).display().to_string()
    }

    fn key(&self, file: &str) {
        certtool(&["--generate-privkey", "--key-type", "ecdsa", "--outfile", &self.path(file)]);
    }

    /// `WHO-cert.pem` and `WHO-key.pem`.
    fn sign(&self, who: &str, template: &str) {
        let [key, cert] = [format!("{who}-key.pem"), format!("{who}-cert.pem")];
        self.key(&key);
        std::fs::write(self.dir.join("template"), template).unwrap();
        let [ca, ca_key] = ["ca-cert.pem", "ca-key.pem"].map(|file| self.path(file));
        certtool(&[
            "--generate-certificate",
            "--load-ca-certificate",
            &ca,
            "--load-ca-privkey",
            &ca_key,
            "--load-privkey",
            &self.path(&key),
            "--template",
            &self.path("template"),
            "--outfile",
            &self.path(&cert),
        ]);
    }
}

/// nbdkit on a port, ended on drop.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(certificates: &Path, options: &[&str]) -> Self {
        // Free a moment ago, and probably still.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new("nbdkit")
            .args(["--foreground", "--exit-with-parent", "--ipaddr", "127.0.0.1", "--tls=require", "--port"])
            .arg(port.to_string())
            .arg(format!("--tls-certificates={}", certificates.display()))
            .args(options)
            .args(["memory", "4M"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server { child, port };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(30), "nbdkit does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn device(&self, host: &str, certificates: &Path) -> String {
        format!("nbds://{host}:{}/?tls-certificates={}", self.port, certificates.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn refused(device: &str) -> String {
    match open(device, true) {
        Err(error @ Error::Remote { action: "connect", .. }) => error.to_string(),
        other => panic!("{device}: {other:?}"),
    }
}

const SERVER: &str = "cn = localhost\ndns_name = localhost\ntls_www_server\nsigning_key\nencryption_key\n";
const CLIENT: &str = "cn = alice\ntls_www_client\nsigning_key\nencryption_key\n";

#[test]
fn tls_with_certificates() {
    needs!(Need::Tool("nbdkit"), Need::Tool("certtool"));
    let scratch = Scratch::new(1 << 20);
    let (ours, others) = (Authority::new(&scratch, "ours"), Authority::new(&scratch, "others"));
    ours.sign("server", SERVER);
    let server = Server::start(&ours.dir, &[]);
    let device = open(&server.device("localhost", &ours.dir), true).unwrap();
    assert!(device.describe().notes.iter().any(|note| note.contains("with TLS")), "{:?}", device.describe());
    conformance(&*device);
    drop(device);
    // Another authority's, a name that is not the certificate's, and both when nobody looks.
    let told = refused(&server.device("localhost", &others.dir));
    assert!(told.contains("certificate"), "{told}");
    let told = refused(&server.device("127.0.0.1", &ours.dir));
    assert!(told.contains("name") || told.contains("certificate"), "{told}");
    let unchecked = format!("{}&tls-verify-peer=0", server.device("127.0.0.1", &others.dir));
    conformance(&*open(&unchecked, true).unwrap());
    // Without TLS the server takes nobody.
    refused(&format!("nbd://localhost:{}/", server.port));
}

#[test]
fn the_server_asks_for_a_certificate() {
    needs!(Need::Tool("nbdkit"), Need::Tool("certtool"));
    let scratch = Scratch::new(1 << 20);
    let ours = Authority::new(&scratch, "ours");
    ours.sign("server", SERVER);
    let server = Server::start(&ours.dir, &["--tls-verify-peer"]);
    // The authority alone is no certificate of a client.
    let device = server.device("localhost", &ours.dir);
    assert!(open(&device, true).and_then(|device| device.read_at(&mut [0; 512], 0)).is_err());
    ours.sign("client", CLIENT);
    conformance(&*open(&device, true).unwrap());
}
