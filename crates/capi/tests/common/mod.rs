//! Programs of C, compiled against the archive that this build made.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;
use uext4_testkit::Scratch;

/// What a program is written in.
#[derive(Clone, Copy, PartialEq)]
pub enum Language {
    C,
    Cpp,
}

/// A program, in a folder that goes with it.
pub struct Program {
    pub path: PathBuf,
    _home: Scratch,
}

/// The archive beside this test: the newest, as cargo gives each of its builds a name of its own.
pub fn archive() -> PathBuf {
    let beside = std::env::current_exe().unwrap();
    let entries = fs::read_dir(beside.parent().unwrap()).unwrap().map(Result::unwrap);
    let archives = entries.filter(|entry| {
        let name = entry.file_name().into_string().unwrap_or_default();
        name.starts_with("libuext4_capi-") && name.ends_with(".a")
    });
    let changed = |path: &PathBuf| {
        fs::metadata(path).and_then(|facts| facts.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
    };
    archives.map(|entry| entry.path()).max_by_key(changed).expect("cargo has made the archive")
}

/// Compiles a program of `tests/c`.
pub fn compile(source: &str, language: Language, options: &[&str]) -> Program {
    let crate_home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let home = Scratch::new(256 << 20);
    let path = home.file("program");
    let (compiler, standard) = match language {
        Language::C => ("cc", "-std=c11"),
        Language::Cpp => ("c++", "-std=c++11"),
    };
    let mut command = Command::new(compiler);
    command.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-o"]).arg(&path);
    command.arg("-I").arg(crate_home.join("include")).args(options);
    command.arg(crate_home.join("tests/c").join(source)).arg(archive());
    command.args(["-lpthread", "-ldl", "-lm", "-lrt"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Program { path, _home: home }
}
