//! The options of `-o`, as users of mount(8) and FUSE write them.

use crate::error::CliError;
use crate::text::{self, parse_size};
use std::path::PathBuf;
use std::time::Duration;
use uext4::device::{Locator, SpecOptions, Tls, closest};
use uext4::{Atime, DeviceSpec, VolumeOptions};
use uext4_fuse::{MountOptions, ServeOptions, Transport};

/// Options without a value.
const WORDS: [&str; 27] = [
    "ro",
    "rw",
    "allow_other",
    "default_permissions",
    "noatime",
    "relatime",
    "strictatime",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "sync",
    "async",
    "dirsync",
    "lazytime",
    "auto",
    "noauto",
    "defaults",
    "user",
    "nouser",
    "users",
    "group",
    "owner",
    "_netdev",
    "nofail",
];
/// Options with a value.
const WITH_VALUES: [&str; 13] = [
    "commit",
    "threads",
    "fsname",
    "subtype",
    "uid",
    "gid",
    "uidmap",
    "offset",
    "partition",
    "errors",
    "stats",
    "sandbox",
    "transport",
];
/// Words that say more of a mount to programs that read fstab, as `x-systemd.automount`.
const FOR_OTHERS: [&str; 3] = ["x-", "X-", "comment="];
/// Longest interval between commits, in seconds.
const COMMIT_MAX: u64 = 86_400;
/// Largest number of a user or group.
const ID_MAX: u64 = u32::MAX as u64 - 1;
/// Most threads.
const THREADS_MAX: usize = 256;
/// Connections to an NBD server, where it allows several.
const CONNECTIONS: u32 = 4;

/// Whether the server confines itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confine {
    /// As far as the kernel allows.
    Auto,
    /// Wholly, or it does not serve.
    Require,
    /// Not at all.
    Off,
}

/// What `-o` says.
#[derive(Debug, Clone)]
pub struct Options {
    /// The kernel's part.
    pub mount: MountOptions,
    /// Open for writing.
    pub write: bool,
    /// The device, with the part of it that the options name, and an absolute path.
    pub spec: DeviceSpec,
    /// How it is served.
    pub serve: ServeOptions,
    /// Where a socket tells what the server counts: an absolute path.
    pub stats: Option<PathBuf>,
    /// The sandbox.
    pub sandbox: Confine,
    offset: Option<u64>,
    partition: Option<u32>,
    atime: Atime,
    commit: Duration,
}

impl Options {
    /// Parses lists of options; later ones win.
    ///
    /// # Errors
    /// Bad usage: unknown options, and impossible values.
    pub fn parse(lists: &[String], spec: DeviceSpec) -> Result<Options, CliError> {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let mut options = Options {
            mount: MountOptions::new(""),
            spec,
            write: true,
            serve: ServeOptions { threads: (2 * processors).clamp(4, 16), ..ServeOptions::default() },
            stats: None,
            sandbox: Confine::Auto,
            offset: None,
            partition: None,
            atime: Atime::Off,
            commit: Duration::from_secs(5),
        };
        let words = lists.iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty());
        for word in words.filter(|word| !FOR_OTHERS.iter().any(|start| word.starts_with(start))) {
            match word.split_once('=') {
                Some((name, value)) => options.set(name, value)?,
                None => options.switch(word)?,
            }
        }
        let serve = &options.serve;
        if serve.owner.is_some() && (serve.uid.is_some() || serve.gid.is_some()) {
            return Err(CliError::usage("uidmap= goes with neither uid= nor gid="));
        }
        options.mount.read_only = !options.write;
        options.name_device()?;
        Ok(options)
    }

    /// How the volume is opened. The kernel strips set-id bits, by the right of each caller.
    pub fn volume(&self) -> VolumeOptions {
        let options = if self.write { VolumeOptions::read_write() } else { VolumeOptions::read_only() };
        options.background(true).keep_set_id(true).atime(self.atime).commit_interval(self.commit)
    }

    /// Completes the device, and what the mount table shows of it.
    fn name_device(&mut self) -> Result<(), CliError> {
        let named = &mut self.spec.options;
        let parts = [
            self.offset.is_some(),
            self.partition.is_some(),
            named.offset.is_some(),
            named.partition.is_some(),
        ];
        if parts.iter().filter(|given| **given).count() > 1 {
            return Err(CliError::usage("one of offset= and partition= names the part of the device, once"));
        }
        named.offset = named.offset.or(self.offset);
        named.partition = named.partition.or(self.partition);
        // The server leaves its working directory.
        if let Locator::Path(path) = &mut self.spec.locator
            && let Ok(absolute) = std::fs::canonicalize(&*path)
        {
            *path = absolute;
        }
        let SpecOptions { overlay, remote, .. } = &mut self.spec.options;
        for file in [overlay, &mut remote.socket, &mut remote.conf].into_iter().flatten() {
            if let Ok(absolute) = std::path::absolute(&*file) {
                *file = absolute;
            }
        }
        for (kind, value) in &mut remote.tls {
            if matches!(kind, Tls::Certificates | Tls::PskFile)
                && let Ok(absolute) = std::path::absolute(&*value)
                && let Some(text) = absolute.to_str()
            {
                *value = text.to_owned();
            }
        }
        if let Some(file) = &mut self.spec.options.remote.conf
            && let Ok(absolute) = std::path::absolute(&*file)
        {
            *file = absolute;
        }
        if self.mount.source.is_empty() {
            self.mount.source = self.spec.to_string();
        }
        if self.spec.scheme.is_nbd() {
            // Made when the device is opened: in its sandbox the server cannot connect.
            self.spec.options.remote.connections.get_or_insert(CONNECTIONS);
        }
        Ok(())
    }

    fn switch(&mut self, word: &str) -> Result<(), CliError> {
        match word {
            "ro" => self.write = false,
            "rw" => self.write = true,
            "allow_other" => self.mount.allow_other = true,
            "default_permissions" => {}
            "noatime" => self.atime = Atime::Off,
            "relatime" => self.atime = Atime::Relatime,
            "strictatime" => self.atime = Atime::Strict,
            "suid" => self.mount.suid = true,
            "nosuid" => self.mount.suid = false,
            "dev" => self.mount.dev = true,
            "nodev" => self.mount.dev = false,
            "exec" => self.mount.exec = true,
            "noexec" => self.mount.exec = false,
            "sync" => self.serve.sync = true,
            "async" => self.serve.sync = false,
            "dirsync" => self.serve.dirsync = true,
            // Times are lazy anyhow; the others are for the reader of fstab.
            "lazytime" | "defaults" | "user" | "users" | "group" | "owner" | "nouser" | "auto" | "noauto"
            | "_netdev" | "nofail" => {}
            _ if WITH_VALUES.contains(&word) => {
                return Err(CliError::usage(format!("option {word} needs a value: {word}=…")));
            }
            _ => return Err(unknown(word)),
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), CliError> {
        match name {
            "commit" => {
                let seconds = number(name, value, COMMIT_MAX)?;
                // As in Linux, 0 is the default.
                self.commit = Duration::from_secs(if seconds == 0 { 5 } else { seconds });
            }
            "threads" => match number(name, value, THREADS_MAX as u64)? {
                0 => return Err(CliError::usage("threads=0: nobody would serve the mount")),
                threads => self.serve.threads = threads as usize,
            },
            "uid" => self.serve.uid = Some(number(name, value, ID_MAX)? as u32),
            "uidmap" if value == "owner" => {
                let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
                self.serve.owner = Some((uid.as_raw(), gid.as_raw()));
            }
            "uidmap" => return Err(CliError::usage("only uidmap=owner")),
            "gid" => self.serve.gid = Some(number(name, value, ID_MAX)? as u32),
            "offset" => {
                let wrong = || {
                    CliError::usage(format!("offset={}: expected a size", text::visible(value.as_bytes())))
                };
                self.offset = Some(parse_size(value).map_err(|_| wrong())?);
            }
            "partition" => match number(name, value, u32::MAX.into())? {
                0 => return Err(CliError::usage("partition=0: partitions are counted from 1")),
                partition => self.partition = Some(partition as u32),
            },
            // A volume that broke a promise takes no changes until it is opened again.
            "errors" if value == "remount-ro" => {}
            "errors" => {
                return Err(CliError::usage("after an error nothing is written: only errors=remount-ro"));
            }
            "fsname" => self.mount.source = value.to_owned(),
            "sandbox" => {
                self.sandbox = match value {
                    "auto" => Confine::Auto,
                    "require" => Confine::Require,
                    "off" => Confine::Off,
                    _ => return Err(CliError::usage("sandbox= is auto, require or off")),
                };
            }
            "stats" => {
                let path = std::path::absolute(value);
                self.stats = Some(path.map_err(|_| CliError::usage("stats= needs the path of a socket"))?);
            }
            "transport" => {
                self.serve.transport = match value {
                    "auto" => Transport::Auto,
                    "dev" => Transport::Dev,
                    "uring" => Transport::Uring,
                    _ => return Err(CliError::usage("transport= is auto, dev or uring")),
                };
            }
            "subtype" => self.mount.subtype = value.to_owned(),
            _ if WORDS.contains(&name) => {
                return Err(CliError::usage(format!("option {name} takes no value")));
            }
            _ => return Err(unknown(name)),
        }
        Ok(())
    }
}

fn number(name: &str, value: &str, most: u64) -> Result<u64, CliError> {
    let number = value.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| {
        let value = text::visible(value.as_bytes());
        CliError::usage(format!("{name}={value}: expected a number of at most {most}"))
    })
}

fn unknown(word: &str) -> CliError {
    let meant = closest(word, WORDS.into_iter().chain(WITH_VALUES));
    let hint = meant.map_or_else(String::new, |meant| format!(" (did you mean {meant}?)"));
    CliError::usage(format!("unknown mount option `{}`{hint}", text::visible(word.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(list: &str) -> Result<Options, CliError> {
        of(list, "/nowhere/disk.img")
    }

    fn of(list: &str, device: &str) -> Result<Options, CliError> {
        Options::parse(&[list.to_owned()], uext4::Target::parse_bytes(device.as_bytes()).unwrap().spec)
    }

    #[test]
    fn options_are_what_they_say() {
        let options = parsed("").unwrap();
        let mount = &options.mount;
        assert!(options.write && !mount.read_only && !mount.suid && !mount.dev && mount.exec);
        assert_eq!((mount.source.as_str(), mount.subtype.as_str()), ("/nowhere/disk.img", "uext4"));
        let options = parsed("ro,suid,noexec,,commit=9,threads=3,fsname=a=b,relatime").unwrap();
        let mount = &options.mount;
        assert!(!options.write && mount.read_only && mount.suid && !mount.dev && !mount.exec);
        assert_eq!((mount.source.as_str(), options.serve.threads), ("a=b", 3));
        assert_eq!((options.commit, options.atime), (Duration::from_secs(9), Atime::Relatime));
        // Two switches, not one.
        let mount = parsed("dev,nosuid").unwrap().mount;
        assert!(mount.dev && !mount.suid);
        assert!(parsed("ro,rw").unwrap().write);
        let fstab =
            parsed("defaults,noauto,user,nofail,_netdev,x-systemd.automount,X-a=b,comment=c").unwrap();
        assert!(fstab.write && fstab.serve.owner.is_none());
        assert_eq!(fstab.serve.transport, Transport::Auto);
        assert_eq!(parsed("transport=uring").unwrap().serve.transport, Transport::Uring);
        assert!(parsed("uidmap=owner").unwrap().serve.owner.is_some());
    }

    #[test]
    fn a_part_of_the_device_is_named_once() {
        let part = |list: &str, device: &str| {
            of(list, device).map(|options| (options.spec.options.offset, options.spec.options.partition))
        };
        assert_eq!(part("offset=1M", "disk.img").unwrap(), (Some(1 << 20), None));
        assert_eq!(part("partition=2", "disk.img").unwrap(), (None, Some(2)));
        assert_eq!(part("", "disk.img?partition=3").unwrap(), (None, Some(3)));
        for (list, device) in [("offset=1,partition=1", "disk.img"), ("partition=1", "disk.img?offset=4096")]
        {
            assert!(matches!(part(list, device), Err(CliError::Usage(_))), "{list} {device}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let wrong = [
            "nonsense",
            "threads",
            "threads=0",
            "threads=257",
            "commit=-1",
            "commit=x",
            "ro=1",
            "uid=x",
            "sandbox=on",
            "transport=io_uring",
            "uidmap=root",
            "uid=1,uidmap=owner",
            "uidmap=owner,gid=1",
            "allow_othr",
        ];
        for list in wrong {
            assert!(matches!(parsed(list), Err(CliError::Usage(_))), "{list}");
        }
        let error = parsed("allow_othr").unwrap_err().line();
        assert!(error.contains("did you mean allow_other?"), "{error}");
    }
}
