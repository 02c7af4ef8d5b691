//! How a connection is made: address, export, TLS, as the device's specification has them.

use super::api::{Api, Fault, Handle};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};
use uext4_blockdev::spec::{DeviceSpec, Locator, Remote, Scheme, SpecOptions, Tls};
use uext4_blockdev::{Error, Process, Result};

/// What to connect to.
#[derive(Debug, Clone)]
pub(super) struct Target {
    spec: DeviceSpec,
    remote: Remote,
}

impl Target {
    /// Of a device of NBD.
    ///
    /// # Errors
    /// [`Error::BadSpec`] for another device.
    pub(super) fn new(spec: &DeviceSpec) -> Result<Self> {
        let Locator::Remote(remote) = &spec.locator else {
            return Err(Error::BadSpec {
                spec: spec.to_string(),
                reason: "it is no export of a server".into(),
            });
        };
        let mut own = SpecOptions::default();
        own.remote.clone_from(&spec.options.remote);
        let spec = DeviceSpec { options: own, ..spec.clone() };
        Ok(Target { remote: remote.clone(), spec })
    }

    /// Scheme and locator, with the options of the server.
    pub(super) fn name(&self) -> String {
        self.spec.to_string()
    }

    pub(super) fn scheme(&self) -> &'static str {
        self.spec.scheme.name()
    }

    /// Most connections that the user allows.
    pub(super) fn connections(&self) -> Option<u32> {
        self.spec.options.remote.connections
    }

    pub(super) fn error(&self, action: &'static str, fault: Fault) -> Error {
        // libnbd names some actions itself: "connect: Connection refused".
        let said = fault.reason.strip_prefix(action).and_then(|rest| rest.strip_prefix(": "));
        let reason = said.unwrap_or(&fault.reason).to_owned();
        Error::Remote { device: self.name(), action, reason, errno: fault.errno }
    }

    fn by_socket(&self) -> bool {
        matches!(self.spec.scheme, Scheme::NbdUnix | Scheme::NbdsUnix)
    }

    fn tls(&self) -> bool {
        matches!(self.spec.scheme, Scheme::Nbds | Scheme::NbdsUnix)
    }

    /// Refuses a connection whose server would not be checked although the user did not say so: libnbd checks a
    /// certificate by the host's name, which a local socket does not have.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub(super) fn check(&self, api: &Api) -> Result<()> {
        let given = |wanted| self.spec.options.remote.tls.iter().find(|(kind, _)| *kind == wanted);
        if given(Tls::Hostname).is_some() && !api.has_tls_hostname() {
            return Err(Error::Unsupported(format!("{}: `tls-hostname` with this libnbd", self.name())));
        }
        let unchecked = given(Tls::VerifyPeer).is_some_and(|(_, value)| value == "0");
        let named = !self.by_socket() || given(Tls::Hostname).is_some() || given(Tls::PskFile).is_some();
        if self.tls() && !named && !unchecked {
            return Err(Error::Unsupported(format!(
                "{}: checking the server's certificate, since a socket has no host name: give `tls-psk-file`, or \
                 `tls-verify-peer=0` if nobody else can listen on it",
                self.name()
            )));
        }
        Ok(())
    }

    /// Connects and negotiates. `limit`: how long that may take; `None` as long as server and network take.
    pub(super) fn connect(
        &self,
        api: &'static Api,
        process: Process,
        limit: Option<Duration>,
    ) -> std::result::Result<Handle, Fault> {
        let handle = Handle::new(api, process)?;
        handle.set_export_name(&self.remote.name)?;
        if self.tls() {
            self.set_tls(&handle)?;
        }
        match &self.spec.options.remote.socket {
            Some(socket) if self.by_socket() => handle.connect_unix(socket.as_os_str().as_bytes())?,
            _ => {
                let (host, port) = self.remote.host_and_port();
                handle.connect_tcp(host, port)?;
            }
        }
        let deadline = limit.map(|limit| Instant::now() + limit);
        while !handle.is_ready() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Fault { reason: "the server does not answer".into(), errno: libc::ETIMEDOUT });
            }
            handle.poll(left)?;
            if handle.is_over() {
                return Err(Fault {
                    reason: "the server has closed the connection".into(),
                    errno: libc::ECONNRESET,
                });
            }
        }
        Ok(handle)
    }

    fn set_tls(&self, handle: &Handle) -> std::result::Result<(), Fault> {
        handle.require_tls()?;
        for (kind, value) in &self.spec.options.remote.tls {
            match kind {
                Tls::Certificates => handle.set_tls_certificates(value)?,
                Tls::PskFile => handle.set_tls_psk_file(value)?,
                Tls::Username => handle.set_tls_username(value)?,
                Tls::Hostname => handle.set_tls_hostname(value)?,
                Tls::VerifyPeer => handle.set_tls_verify_peer(value == "1")?,
            }
        }
        Ok(())
    }
}
