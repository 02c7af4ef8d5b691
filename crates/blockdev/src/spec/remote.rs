//! Devices of servers: what the grammar says about `nbd://`, `nbd+unix://` (`nbds…` with TLS) and `rbd:`.

use super::{Scheme, encoded};
use std::path::PathBuf;

/// What a server has: an export of NBD, or an image of a Ceph cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Remote {
    /// `host`, `host:port` or `[address]:port` of `nbd://` and `nbds://`. Otherwise empty.
    pub server: String,
    /// NBD: the name of the export, often empty. RBD: `pool/[namespace/]image[@snapshot]`.
    pub name: String,
}

/// The parts of the name of an RBD image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RbdName<'a> {
    /// The pool.
    pub pool: &'a str,
    /// The namespace in the pool; empty for the pool's own.
    pub namespace: &'a str,
    /// The image.
    pub image: &'a str,
    /// The snapshot that is read.
    pub snapshot: Option<&'a str>,
}

/// How TLS is used, as libnbd names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// `tls-certificates=DIR`: the directory with the certificates of the client and of who signed the server's.
    Certificates,
    /// `tls-psk-file=FILE`: the file with the keys that client and server share.
    PskFile,
    /// `tls-username=NAME`: whose key of that file is used.
    Username,
    /// `tls-hostname=NAME`: the name that the server's certificate must have; the host's unless given.
    Hostname,
    /// `tls-verify-peer=0|1`: whether the server's certificate is checked. It is unless told otherwise.
    VerifyPeer,
}

const TLS: [(&str, Tls); 5] = [
    ("tls-certificates", Tls::Certificates),
    ("tls-psk-file", Tls::PskFile),
    ("tls-username", Tls::Username),
    ("tls-hostname", Tls::Hostname),
    ("tls-verify-peer", Tls::VerifyPeer),
];

/// The options that only devices of servers have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RemoteOptions {
    /// `socket=PATH`: where the server of `nbd+unix://` listens.
    pub socket: Option<PathBuf>,
    /// `connections=N`: most connections to an NBD server, where it allows several.
    pub connections: Option<u32>,
    /// The options of TLS, in the order given.
    pub tls: Vec<(Tls, String)>,
    /// `conf=FILE`: the configuration of the Ceph cluster.
    pub conf: Option<PathBuf>,
    /// `id=NAME`: the user of the Ceph cluster, without `client.`.
    pub id: Option<String>,
}

/// Most connections to one NBD server.
const CONNECTIONS_MAX: u32 = 64;

impl RemoteOptions {
    pub(super) const KEYS: [&'static str; 9] = [
        "socket",
        "connections",
        "tls-certificates",
        "tls-psk-file",
        "tls-username",
        "tls-hostname",
        "tls-verify-peer",
        "conf",
        "id",
    ];

    /// Stores one option, if it is one of these. The error is the reason.
    pub(super) fn set(&mut self, key: &str, value: Option<&[u8]>) -> Option<Result<(), String>> {
        Self::KEYS.contains(&key).then(|| self.store(key, value))
    }

    fn store(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), String> {
        let given = value.filter(|value| !value.is_empty() && !value.contains(&0));
        let needs = |what: &str| format!("option `{key}` needs {what}");
        let path = || given.map(|path| super::path_of(path.to_vec())).ok_or_else(|| needs("a path"));
        let text = |what: &str| {
            let text = given.and_then(|value| std::str::from_utf8(value).ok());
            text.map(str::to_owned).ok_or_else(|| needs(what))
        };
        match key {
            "socket" => self.socket = Some(path()?),
            "conf" => self.conf = Some(path()?),
            "id" => self.id = Some(text("the name of a user")?),
            "connections" => {
                let what = format!("a number from 1 to {CONNECTIONS_MAX}");
                let number = text(&what)?;
                let digits = number.bytes().all(|byte| byte.is_ascii_digit());
                let number =
                    number.parse().ok().filter(|number| digits && (1..=CONNECTIONS_MAX).contains(number));
                self.connections = Some(number.ok_or_else(|| needs(&what))?);
            }
            _ => {
                let kind = TLS.iter().find(|(name, _)| *name == key).map(|(_, kind)| *kind);
                let value = text("a value")?;
                match kind {
                    Some(Tls::VerifyPeer) if !["0", "1"].contains(&value.as_str()) => {
                        return Err(needs("0 or 1"));
                    }
                    Some(kind) => self.tls.push((kind, value)),
                    None => return Err(format!("unknown option `{key}`")),
                }
            }
        }
        Ok(())
    }

    /// Refuses options that the scheme does not have, and the lack of one that it needs.
    pub(super) fn check(&self, scheme: Scheme) -> Result<(), String> {
        let unix = matches!(scheme, Scheme::NbdUnix | Scheme::NbdsUnix);
        let tls = matches!(scheme, Scheme::Nbds | Scheme::NbdsUnix);
        let nbd = unix || matches!(scheme, Scheme::Nbd | Scheme::Nbds);
        let rbd = scheme == Scheme::Rbd;
        for (given, allowed, key, owner) in [
            (self.socket.is_some(), unix, "socket", "nbd+unix:` and `nbds+unix:"),
            (self.connections.is_some(), nbd, "connections", "nbd:"),
            (!self.tls.is_empty(), tls, "tls-…", "nbds:` and `nbds+unix:"),
            (self.conf.is_some(), rbd, "conf", "rbd:"),
            (self.id.is_some(), rbd, "id", "rbd:"),
        ] {
            if given && !allowed {
                return Err(format!("option `{key}` is only for `{owner}`"));
            }
        }
        match unix && self.socket.is_none() {
            true => Err(format!("`{scheme}:` needs the option `socket=PATH`")),
            false => Ok(()),
        }
    }

    /// The options as they are spelled.
    pub(super) fn write(&self, items: &mut Vec<String>) {
        use std::os::unix::ffi::OsStrExt;
        let path = |key: &str, path: &PathBuf| format!("{key}={}", encoded(path.as_os_str().as_bytes()));
        items.extend(self.socket.iter().map(|socket| path("socket", socket)));
        items.extend(self.connections.iter().map(|number| format!("connections={number}")));
        items.extend(
            self.tls.iter().map(|(kind, value)| format!("{}={}", kind.key(), encoded(value.as_bytes()))),
        );
        items.extend(self.conf.iter().map(|conf| path("conf", conf)));
        items.extend(self.id.iter().map(|id| format!("id={}", encoded(id.as_bytes()))));
    }
}

impl Tls {
    /// Its key in the device grammar.
    pub fn key(self) -> &'static str {
        TLS.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

impl Remote {
    /// From the decoded locator of such a scheme. The error is the reason.
    pub(super) fn parse(
        scheme: Scheme,
        raw: &[u8],
        decode: impl Fn(&[u8]) -> super::Result<Vec<u8>>,
    ) -> Parsed {
        let text = |raw: &[u8]| match decode(raw) {
            Ok(bytes) if bytes.contains(&0) => Err("the locator has a NUL byte".to_owned()),
            Ok(bytes) => String::from_utf8(bytes).map_err(|_| "the locator is not UTF-8".to_owned()),
            Err(super::Error::BadSpec { reason, .. }) => Err(reason),
            Err(other) => Err(other.to_string()),
        };
        if scheme == Scheme::Rbd {
            let remote = Remote { server: String::new(), name: text(raw)? };
            return match remote.rbd_name() {
                Some(_) => Ok(remote),
                None => Err("`rbd:` needs `pool/[namespace/]image[@snapshot]`".to_owned()),
            };
        }
        let after = raw.strip_prefix(b"//").ok_or_else(|| format!("`//` must follow `{scheme}:`"))?;
        let end = after.iter().position(|&byte| byte == b'/').unwrap_or(after.len());
        let (server, name) = after.split_at(end);
        let (server, name) = (text(server)?, text(name.strip_prefix(b"/").unwrap_or(name))?);
        let by_socket = matches!(scheme, Scheme::NbdUnix | Scheme::NbdsUnix);
        if by_socket && !server.is_empty() {
            return Err(format!("`{scheme}:` has no host: write `{scheme}:///{name}?socket=PATH`"));
        }
        if !by_socket {
            check_server(&server)?;
        }
        Ok(Remote { server, name })
    }

    /// The parts of the name of an RBD image. `None` if it is not one.
    pub fn rbd_name(&self) -> Option<RbdName<'_>> {
        let (name, snapshot) = match self.name.split_once('@') {
            Some((name, snapshot)) => (name, Some(snapshot)),
            None => (self.name.as_str(), None),
        };
        let parts: Vec<&str> = name.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] if !namespace.is_empty() => (pool, namespace, image),
            _ => return None,
        };
        let odd = snapshot.is_some_and(|name| name.is_empty() || name.contains(['@', '/']));
        let whole = !pool.is_empty() && !image.is_empty() && !odd;
        whole.then_some(RbdName { pool, namespace, image, snapshot })
    }

    /// The host and the port of an NBD server, 10809 unless it is given. Brackets around an address are taken off.
    pub fn host_and_port(&self) -> (&str, u16) {
        let (host, port) = split_server(&self.server);
        (
            host.trim_start_matches('[').trim_end_matches(']'),
            port.and_then(|port| port.parse().ok()).unwrap_or(10809),
        )
    }

    pub(super) fn write(&self, scheme: Scheme, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = encoded(self.name.as_bytes());
        match scheme {
            Scheme::Rbd => f.write_str(&name),
            _ => write!(f, "//{}/{name}", self.server),
        }
    }
}

/// A remote locator, or the reason why it is none.
type Parsed = Result<Remote, String>;

fn split_server(server: &str) -> (&str, Option<&str>) {
    let address = server.rfind(']').map_or(0, |end| end + 1);
    match server[address..].find(':') {
        Some(colon) => (&server[..address + colon], Some(&server[address + colon + 1..])),
        None => (server, None),
    }
}

fn check_server(server: &str) -> Result<(), String> {
    let (host, port) = split_server(server);
    let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let right = match inner {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b)),
    };
    if !right {
        return Err(format!("`{host}` is not a host: a name, an address, or `[an IPv6 address]`"));
    }
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    match port {
        Some(port) if !digits(port) || !port.parse::<u16>().is_ok_and(|port| port != 0) => {
            Err(format!("`{port}` is not a port"))
        }
        _ => Ok(()),
    }
}
