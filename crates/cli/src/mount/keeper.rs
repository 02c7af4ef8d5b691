//! A process beside the server that unmounts for it: inside the sandbox it could neither do so nor run `fusermount3`.
//! It waits for words of the server, and ends with it.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Set in that process.
const KEEPER: &str = "UEXT4_MOUNT_KEEPER";

/// Who unmounts at the end.
pub enum Keeper {
    /// The server itself, which is in no sandbox.
    Server,
    /// A process that waits for its word.
    Process(Child),
}

/// Whether this process is one.
pub fn is_one() -> bool {
    std::env::var_os(KEEPER).is_some()
}

/// Does what the server says on standard input, until it ends.
pub fn serve(directory: &Path) -> io::Result<()> {
    std::env::set_current_dir("/")?;
    for word in io::stdin().lock().lines() {
        let done = unmount(directory, word? == "lazily");
        let mut out = io::stdout().lock();
        match done {
            Ok(()) => writeln!(out, "done")?,
            Err(error) => writeln!(out, "{}", error.to_string().replace('\n', " "))?,
        }
        out.flush()?;
    }
    Ok(())
}

/// Unmounts. What mappings of open files have changed is written home before those lose it.
fn unmount(directory: &Path, lazy: bool) -> io::Result<()> {
    if lazy && let Ok(root) = std::fs::File::open(directory) {
        let _as_far_as_possible = rustix::fs::syncfs(&root);
    }
    uext4_fuse::unmount(directory, lazy)
}

impl Keeper {
    /// Starts the process. Signals of a terminal do not reach it.
    pub fn start(directory: &Path) -> io::Result<Keeper> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["mount", "--", "none"]).arg(directory).env(KEEPER, "1").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(Keeper::Process(command.spawn()?))
    }

    /// Unmounts, as [`uext4_fuse::unmount`].
    pub fn unmount(&mut self, directory: &Path, lazy: bool) -> io::Result<()> {
        let Keeper::Process(child) = self else { return unmount(directory, lazy) };
        let (Some(stdin), Some(stdout)) = (&mut child.stdin, &mut child.stdout) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        writeln!(stdin, "{}", if lazy { "lazily" } else { "now" })?;
        let mut said = String::new();
        BufReader::new(stdout).read_line(&mut said)?;
        if said == "done\n" { Ok(()) } else { Err(io::Error::other(said.trim_end().to_owned())) }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Keeper::Process(child) = self {
            drop(child.stdin.take());
            let _ended = child.wait();
        }
    }
}
