//! Removes everything bench created, however this process ends: directories, zram devices and files on given volumes.
//!
//! A shell in a process group of its own makes it, so that there is no moment at which nobody would remove it. Then the
//! shell waits for the end of its input, which comes when the guard is dropped, and also when this process panics, is
//! interrupted or is killed, and cleans up. So there is one way to clean up, and it is taken every time.
//! Loop devices need none of this: they are detached at once and live as long as they are open.

use crate::error::{BenchError, Doing, Result};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A shell that waits to clean up.
#[derive(Debug)]
struct Janitor {
    child: Child,
    what: String,
}

impl Janitor {
    /// `make` runs at once, with `arguments` as `$1` and so on, and prints one word about what it made (the second
    /// result); `$made` is that word in `clean`, which runs when this process lets go.
    fn hire(make: &str, clean: &str, arguments: &[&OsStr], what: &str) -> Result<(Self, String)> {
        let script = format!(
            "trap '' HUP INT QUIT TERM PIPE\nmade=$({make}) || exit 1\necho \"made $made\"\n\
             exec >/dev/null 2>&1\ncat >/dev/null\n{clean}"
        );
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg("uext4-bench").args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().doing(|| format!("start a shell that makes {what}"))?;
        let mut said = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut said).doing(|| format!("make {what}"))?;
        }
        if let Some(made) = said.strip_prefix("made ") {
            return Ok((Janitor { child, what: what.to_owned() }, made.trim().to_owned()));
        }
        let output = child.wait_with_output().doing(|| format!("make {what}"))?;
        let why = String::from_utf8_lossy(&output.stderr);
        Err(BenchError::failed(format!("make {what}: {}", why.trim())))
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        match self.child.wait() {
            Ok(status) if status.success() => {}
            // A destructor has nobody to return an error to.
            Ok(_) | Err(_) => eprintln!("uext4 bench: {} could not be removed", self.what),
        }
    }
}

/// Where volumes are made: memory, so that the device costs next to nothing.
pub const MEMORY_DIR: &str = "/dev/shm";

/// A directory in tmpfs, removed with its contents on drop.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    _janitor: Janitor,
}

impl Scratch {
    /// A new directory with room for `bytes`.
    pub fn new(bytes: u64) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let stat = rustix::fs::statvfs(MEMORY_DIR).doing(|| format!("look at {MEMORY_DIR}"))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < bytes {
            return Err(BenchError::failed(format!(
                "volumes of bench are made in {MEMORY_DIR}: {} MiB are needed there, {} are free (--size \
                 makes them smaller, --device measures elsewhere)",
                bytes >> 20,
                free >> 20
            )));
        }
        let path = Path::new(MEMORY_DIR).join(format!("uext4-bench-{}-{number}", std::process::id()));
        let what = path.display().to_string();
        let (janitor, _) = Janitor::hire("mkdir -- \"$1\"", "rm -rf -- \"$1\"", &[path.as_os_str()], &what)?;
        Ok(Scratch { path, _janitor: janitor })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

const ZRAM_CONTROL: &str = "/sys/class/zram-control";

/// A zram device created here, never an existing one.
#[derive(Debug)]
pub struct Zram {
    path: PathBuf,
    _janitor: Janitor,
}

impl Zram {
    /// Whether devices can be added.
    pub fn available() -> bool {
        rustix::process::geteuid().is_root() && Path::new(ZRAM_CONTROL).join("hot_add").exists()
    }

    /// Adds a device of `bytes`.
    pub fn new(bytes: u64) -> Result<Self> {
        // Reading the attribute is what adds the device.
        let add = "cat \"$1/hot_add\"";
        // Busy while a closed descriptor's release is still under way.
        let remove = "i=0\nwhile [ $i -lt 100 ]; do\n\
            (echo \"$made\" >\"$1/hot_remove\") 2>/dev/null && exit 0\n\
            sleep 0.05; i=$((i+1))\ndone\nexit 1";
        let (janitor, number) = Janitor::hire(add, remove, &[OsStr::new(ZRAM_CONTROL)], "a zram device")?;
        let path = PathBuf::from(format!("/dev/zram{number}"));
        let size = format!("/sys/block/zram{number}/disksize");
        fs::write(&size, bytes.to_string()).doing(|| format!("set {size}"))?;
        let device = Zram { path, _janitor: janitor };
        super::wait_until(|| device.path.exists())
            .then_some(device)
            .ok_or_else(|| BenchError::failed(format!("/dev/zram{number} did not appear")))
    }

    /// `/dev/zramN`.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Files inside the volume of a given device, removed by `uext4 rm`. Nobody may have the volume open then.
#[derive(Debug)]
pub struct Leftovers {
    _janitor: Janitor,
}

impl Leftovers {
    /// Files that are going to be made, in the spelling of the command line.
    pub fn of(program: &Path, files: &[OsString]) -> Result<Self> {
        let what = files.first().map_or_else(String::new, |file| format!("{}, …", file.display()));
        let words = [program.as_os_str(), OsStr::new("rm"), OsStr::new("-f"), OsStr::new("--")];
        let words: Vec<&OsStr> = words.into_iter().chain(files.iter().map(OsString::as_os_str)).collect();
        let (janitor, _) = Janitor::hire(":", "\"$@\"", &words, &what)?;
        Ok(Leftovers { _janitor: janitor })
    }
}

/// A loop device over a file, with direct I/O and 512-byte sectors.
#[derive(Debug)]
pub struct Loop {
    path: PathBuf,
    open: Option<fs::File>,
}

impl Loop {
    /// Attaches `file` to a free loop device.
    pub fn attach(file: &Path) -> Result<Self> {
        let options = ["--find", "--show", "--direct-io=on", "--sector-size", "512"];
        let shown = super::tool(Command::new("losetup").args(options).arg(file))?;
        let path = PathBuf::from(shown.trim());
        let open = fs::File::open(&path);
        // Detaching an open device only marks it: the kernel takes it away with the last descriptor, ours at
        // the end of this process at the latest.
        super::tool(Command::new("losetup").arg("--detach").arg(&path))?;
        let device = Loop { open: Some(open.doing(|| format!("open {}", path.display()))?), path };
        let direct = fs::read_to_string(device.attribute("loop/dio"));
        match direct.doing(|| format!("look at {}", device.path.display()))?.trim() {
            "1" => Ok(device),
            _ => Err(BenchError::failed(format!("no direct I/O from {} to its file", device.path.display()))),
        }
    }

    /// `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn attribute(&self, name: &str) -> PathBuf {
        Path::new("/sys/block").join(self.path.file_name().unwrap_or_default()).join(name)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.open = None;
        let backing = self.attribute("loop/backing_file");
        if !super::wait_until(|| !backing.exists()) {
            eprintln!("uext4 bench: {} is still attached: something has it open", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_goes_with_its_guard_and_with_a_panic() {
        let scratch = Scratch::new(1).unwrap();
        let path = scratch.path().to_owned();
        fs::write(path.join("file"), b"x").unwrap();
        drop(scratch);
        assert!(!path.exists());
        let (told, heard) = std::sync::mpsc::channel();
        let ended = std::thread::spawn(move || {
            let scratch = Scratch::new(1).unwrap();
            told.send(scratch.path().to_owned()).unwrap();
            panic!("planted");
        });
        let path = heard.recv().unwrap();
        assert!(ended.join().is_err());
        assert!(!path.exists());
    }

    #[test]
    fn what_exists_is_neither_taken_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        let error = Janitor::hire("mkdir -- \"$1\"", "rm -rf -- \"$1\"", &[dir.path().as_os_str()], "it");
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("make it: ") && error.contains("exists"), "{error}");
        assert!(dir.path().exists());
    }

    #[test]
    fn too_little_room_is_refused_before_anything_is_made() {
        let error = Scratch::new(u64::MAX).unwrap_err().to_string();
        assert!(error.contains("--size"), "{error}");
    }
}
