//! The options of `-o`, as users of mount(8) and FUSE write them.

use crate::error::CliError;
use crate::text;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use uext4::device::closest;
use uext4::{Atime, VolumeOptions};
use uext4_fuse::MountOptions;

/// Options without a value.
const WORDS: [&str; 13] = [
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
];
/// Options with a value.
const WITH_VALUES: [&str; 4] = ["commit", "threads", "fsname", "subtype"];
/// Longest interval between commits, in seconds.
const COMMIT_MAX: u64 = 86_400;
/// Most threads.
const THREADS_MAX: usize = 256;

/// What `-o` says.
#[derive(Debug, Clone)]
pub struct Options {
    /// The kernel's part.
    pub mount: MountOptions,
    /// Open for writing.
    pub write: bool,
    /// Threads that serve requests.
    pub threads: usize,
    atime: Atime,
    commit: Duration,
}

impl Options {
    /// Parses lists of options; later ones win.
    ///
    /// # Errors
    /// Bad usage: unknown options, and impossible values.
    pub fn parse(lists: &[String], device: &OsString) -> Result<Options, CliError> {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let mut options = Options {
            mount: MountOptions::new(text::visible(device.as_bytes())),
            write: true,
            threads: (2 * processors).clamp(4, 16),
            atime: Atime::Off,
            commit: Duration::from_secs(5),
        };
        for word in lists.iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                Some((name, value)) => options.set(name, value)?,
                None => options.switch(word)?,
            }
        }
        options.mount.read_only = !options.write;
        Ok(options)
    }

    /// How the volume is opened. The kernel strips set-id bits, by the right of each caller.
    pub fn volume(&self) -> VolumeOptions {
        let options = if self.write { VolumeOptions::read_write() } else { VolumeOptions::read_only() };
        options.background(true).keep_set_id(true).atime(self.atime).commit_interval(self.commit)
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
                threads => self.threads = threads as usize,
            },
            "fsname" => self.mount.source = value.to_owned(),
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
    CliError::usage(format!("unknown mount option `{}`{hint}", text::visible(OsStr::new(word).as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(list: &str) -> Result<Options, CliError> {
        Options::parse(&[list.to_owned()], &"disk.img".into())
    }

    #[test]
    fn options_are_what_they_say() {
        let options = parsed("").unwrap();
        let mount = &options.mount;
        assert!(options.write && !mount.read_only && !mount.suid && !mount.dev && mount.exec);
        assert_eq!((mount.source.as_str(), mount.subtype.as_str()), ("disk.img", "uext4"));
        let options = parsed("ro,suid,noexec,,commit=9,threads=3,fsname=a=b,relatime").unwrap();
        let mount = &options.mount;
        assert!(!options.write && mount.read_only && mount.suid && !mount.dev && !mount.exec);
        assert_eq!((mount.source.as_str(), options.threads), ("a=b", 3));
        assert_eq!((options.commit, options.atime), (Duration::from_secs(9), Atime::Relatime));
        // Two switches, not one.
        let mount = parsed("dev,nosuid").unwrap().mount;
        assert!(mount.dev && !mount.suid);
        assert!(parsed("ro,rw").unwrap().write);
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
            "uid=3",
            "allow_othr",
        ];
        for list in wrong {
            assert!(matches!(parsed(list), Err(CliError::Usage(_))), "{list}");
        }
        let error = parsed("allow_othr").unwrap_err().line();
        assert!(error.contains("did you mean allow_other?"), "{error}");
    }
}
