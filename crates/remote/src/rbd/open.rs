//! Opening: configuration, cluster, pool, image, other clients, lock. Every refusal says in words what to look at.

use super::api::{Answer, Client, Cluster, Errno, Held, Image, Pool, c_text};
use super::device::{Facts, RbdDevice, Shared};
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use uext4_blockdev::spec::{DeviceSpec, Locator, RbdName, RemoteOptions};
use uext4_blockdev::{Error, OpenOptions, Process, Result, Sharing, describe};

/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
const EXCLUSIVE_LOCK: u64 = 1 << 2;

/// librados waits 300 s for monitors, unless the configuration says otherwise. A person waits less.
const CONNECT_TIMEOUT: (&CStr, &str, &CStr) = (c"client_mount_timeout", "300", c"30");

/// What is being opened, for errors.
struct Opening<'a> {
    spec: &'a DeviceSpec,
    name: RbdName<'a>,
    options: &'a RemoteOptions,
}

/// See [`uext4_blockdev::Engine::open`].
pub(super) fn open(spec: &DeviceSpec, options: OpenOptions) -> Result<RbdDevice> {
    let bad = || Error::BadSpec { spec: spec.to_string(), reason: "`rbd:` needs `pool/image`".into() };
    let Locator::Remote(remote) = &spec.locator else { return Err(bad()) };
    let name = remote.rbd_name().ok_or_else(bad)?;
    let opening = Opening { spec, name, options: &spec.options.remote };
    if options.write && name.snapshot.is_some() {
        let reason = "a snapshot is only read: add `?ro`, or name the image without `@`";
        return Err(opening.failed("open for writing", libc::EROFS, reason));
    }
    let process = Process::current()?;
    let pool = opening.pool(opening.connect()?)?;
    let image = opening.image(pool, options.write)?;
    let asked =
        |answer: Answer<u64>| answer.map_err(|errno| opening.failed_by("ask for the features", errno));
    let features = asked(image.features())?;
    let (sharing, held) = opening.share(&image, options, features)?;
    let facts = opening.facts(&image, features, sharing)?;
    Ok(RbdDevice::new(Shared::new(image, process, facts, held)))
}

impl Opening<'_> {
    fn failed(&self, action: &'static str, errno: i32, reason: impl Into<String>) -> Error {
        Error::Remote { device: self.spec.to_string(), action, reason: reason.into(), errno }
    }

    /// With the system's words.
    fn failed_by(&self, action: &'static str, Errno(errno): Errno) -> Error {
        self.failed(action, errno, words(errno))
    }

    fn user(&self) -> String {
        format!("client.{}", self.options.id.as_deref().unwrap_or("admin"))
    }

    fn connect(&self) -> Result<Cluster> {
        let text = |text: &str| c_text(text).map_err(|errno| self.failed_by("read its name", errno));
        let id = self.options.id.as_deref().map(text).transpose()?;
        let cluster = Cluster::new(id.as_deref())?.map_err(|errno| self.failed_by("begin", errno))?;
        self.configure(&cluster).map_err(|(action, errno, reason)| self.failed(action, errno, reason))?;
        match cluster.connect() {
            Ok(()) => Ok(cluster),
            Err(Errno(errno)) => {
                let user = self.user();
                let reason = match errno {
                    libc::ETIMEDOUT => {
                        "no monitor has answered: look at `mon host` in the configuration, and whether the cluster runs"
                            .to_owned()
                    }
                    libc::ENOENT => format!(
                        "there is no key of the user {user}, or no `mon host` in the configuration ({})",
                        words(errno)
                    ),
                    libc::EACCES | libc::EPERM => format!("the cluster refuses the user {user} or its key"),
                    _ => words(errno),
                };
                Err(self.failed("connect to the cluster", errno, reason))
            }
        }
    }

    /// Reads the configuration, and changes what this engine needs otherwise.
    fn configure(&self, cluster: &Cluster) -> std::result::Result<(), (&'static str, i32, String)> {
        const READ: &str = "read the configuration";
        let failed = |action| move |Errno(errno): Errno| (action, errno, words(errno));
        let path = self.options.conf.as_deref();
        let c_path =
            path.map(|path| c_text(path.as_os_str().as_bytes())).transpose().map_err(failed(READ))?;
        cluster.read_configuration(c_path.as_deref()).map_err(|Errno(errno)| {
            let reason = match (path, errno) {
                (Some(path), libc::EINVAL) => format!("{} is not a configuration of Ceph", path.display()),
                (Some(path), _) => format!("{}: {}", path.display(), words(errno)),
                (None, libc::ENOENT) => {
                    "there is no /etc/ceph/ceph.conf: `?conf=FILE` or CEPH_CONF names another".to_owned()
                }
                (None, _) => words(errno),
            };
            (READ, errno, reason)
        })?;
        const SET: &str = "change the configuration";
        cluster.set_option(c"rbd_cache", c"false").map_err(failed(SET))?;
        let (name, usual, ours) = CONNECT_TIMEOUT;
        // The option is a number of seconds, which newer versions print with a unit.
        let now = cluster.option(name).map_err(failed(SET))?;
        if now.trim_end_matches('s') == usual || now.starts_with("300.") || now == "5m" {
            cluster.set_option(name, ours).map_err(failed(SET))?;
        }
        Ok(())
    }

    fn pool(&self, cluster: Cluster) -> Result<Pool> {
        const ACTION: &str = "open the pool";
        let text = |text: &str| c_text(text).map_err(|errno| self.failed_by(ACTION, errno));
        let pool = self.name.pool;
        cluster.pool(&text(pool)?, &text(self.name.namespace)?).map_err(|(_, Errno(errno))| {
            let reason = match errno {
                libc::ENOENT => format!("there is no pool `{pool}`"),
                libc::EACCES | libc::EPERM => format!("{} may not use the pool `{pool}`", self.user()),
                _ => words(errno),
            };
            self.failed(ACTION, errno, reason)
        })
    }

    fn image(&self, pool: Pool, write: bool) -> Result<Image> {
        const ACTION: &str = "open the image";
        let text = |text: &str| c_text(text).map_err(|errno| self.failed_by(ACTION, errno));
        let RbdName { image, snapshot, .. } = self.name;
        let (name, c_snapshot) = (text(image)?, snapshot.map(text).transpose()?);
        let (pool, errno) = match pool.image(&name, c_snapshot.as_deref(), write) {
            Ok(image) => return Ok(image),
            Err((pool, Errno(errno))) => (pool, errno),
        };
        let reason = match (errno, snapshot) {
            (libc::ENOENT, Some(snapshot)) if pool.image(&name, None, false).is_ok() => {
                format!("the image `{image}` has no snapshot `{snapshot}`")
            }
            (libc::ENOENT, _) => format!("there is no image `{image}` in {}", self.place()),
            (libc::EACCES | libc::EPERM, _) => format!("{} may not use {}", self.user(), self.place()),
            _ => words(errno),
        };
        Err(self.failed(ACTION, errno, reason))
    }

    fn locator(&self) -> String {
        match &self.spec.locator {
            Locator::Remote(remote) => remote.name.clone(),
            _ => String::new(),
        }
    }

    fn place(&self) -> String {
        let RbdName { pool, namespace, .. } = self.name;
        match namespace {
            "" => format!("the pool `{pool}`"),
            _ => format!("the namespace `{namespace}` of the pool `{pool}`"),
        }
    }

    /// Looks for other clients, and takes the lock of a writer: what it has then.
    ///
    /// A writer has a watch on the image, which a reader has not. Two that open at the same time both have theirs
    /// before they look, so that at least one of them finds the other. The lock alone would not do: librbd gives it
    /// from one client to the next whenever both let it.
    fn share(&self, image: &Image, options: OpenOptions, features: u64) -> Result<(Sharing, Option<Held>)> {
        if self.name.snapshot.is_some() {
            return Ok((Sharing::SharedRead, None));
        }
        const LOOK: &str = "look for other clients";
        let me = image.pool().cluster().client();
        let all = image.watchers().map_err(|errno| self.failed_by(LOOK, errno))?;
        if let Some(other) = all.iter().find(|client| client.id != me) {
            if options.force && !options.write {
                return Ok((Sharing::Forced, None));
            }
            return Err(Error::InUse(self.owner(image, other)));
        }
        if !options.write {
            return Ok((Sharing::SharedRead, None));
        }
        let Some(mine) = all.iter().find(|client| client.id == me) else {
            return Err(self.failed(LOOK, libc::EIO, "the cluster does not see this one"));
        };
        let mut owners = Vec::new();
        if features & EXCLUSIVE_LOCK != 0 {
            image.lock().map_err(|errno| self.not_locked(image, errno))?;
            owners =
                image.lock_owners().map_err(|errno| self.failed_by("look at the exclusive lock", errno))?;
        }
        Ok((Sharing::Exclusive, Some(Held { watch: mine.clone(), owners })))
    }

    fn owner(&self, image: &Image, Client { id, address, .. }: &Client) -> String {
        let locks = image.lock_owners().is_ok_and(|owners| owners.iter().any(|owner| owner == address));
        let lock = if locks { ", which has the exclusive lock" } else { "" };
        format!(
            "client.{id} at {address}{lock} (if that client is dead, the cluster forgets it after about 30 seconds)"
        )
    }

    fn not_locked(&self, image: &Image, Errno(errno): Errno) -> Error {
        let owners = image.lock_owners().unwrap_or_default();
        match (errno, owners.first()) {
            (libc::EROFS | libc::EBUSY | libc::EAGAIN, Some(owner)) => {
                Error::InUse(format!("the client at {owner}, which has the exclusive lock"))
            }
            (libc::EACCES | libc::EPERM, _) => {
                let reason = format!(
                    "{} may not lock it: its capabilities must have `profile rbd` for monitors and OSDs",
                    self.user()
                );
                self.failed("take the exclusive lock", errno, reason)
            }
            _ => self.failed_by("take the exclusive lock", Errno(errno)),
        }
    }

    fn facts(&self, image: &Image, features: u64, sharing: Sharing) -> Result<Facts> {
        const ACTION: &str = "ask for its properties";
        let failed = |errno| self.failed_by(ACTION, errno);
        let sizes = image.sizes().map_err(failed)?;
        if sizes.image % 512 != 0 || sizes.image == 0 {
            let reason = format!("its size of {} bytes is not a multiple of 512", sizes.image);
            return Err(self.failed(ACTION, libc::EINVAL, reason));
        }
        let options = ["rbd_cache", "rbd_cache_policy", "rbd_persistent_cache_mode"];
        let options = image.options(&options).map_err(failed)?;
        let in_memory =
            options[0].as_deref() == Some("true") && options[1].as_deref() != Some("writethrough");
        // The cache on a local disk works beside `rbd_cache`, and may keep completed writes until a flush.
        let on_disk = options[2].as_deref().is_some_and(|mode| mode != "disabled");
        let cached = in_memory || on_disk;
        let lock = features & EXCLUSIVE_LOCK != 0;
        let names = image.names_of(features).map_err(failed)?;
        let RbdName { image: name, snapshot, .. } = self.name;
        let snapshot = snapshot.map_or(String::new(), |snapshot| format!(", snapshot `{snapshot}`"));
        let mut notes = vec![
            format!("image `{name}` in {}{snapshot}", self.place()),
            format!("objects of {} KiB, the best size of large requests", sizes.object / 1024),
            format!("features: {}", if names.is_empty() { "none" } else { &names }),
        ];
        if sharing == Sharing::Exclusive {
            notes.push(match lock {
                true => "has the exclusive lock".to_owned(),
                false => "no exclusive lock, since the image lacks the feature `exclusive-lock`: only programs that \
                          look for other clients are kept from writing"
                    .to_owned(),
            });
        }
        if cached {
            notes.push("the pool or the image turns the cache of librbd on: writes need flushes".to_owned());
        }
        Ok(Facts {
            device: self.spec.to_string(),
            locator: self.locator(),
            size: sizes.image,
            cached,
            sharing,
            notes,
        })
    }
}

/// The system's words for an error number.
fn words(errno: i32) -> String {
    match errno {
        libc::ESHUTDOWN => "the cluster refuses this client: it is on the blocklist".to_owned(),
        _ => describe(&std::io::Error::from_raw_os_error(errno)),
    }
}
