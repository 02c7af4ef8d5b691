//! Repository tasks, run as `cargo xtask TASK`.
#![forbid(unsafe_code)]

mod pictures;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str =
    "usage: cargo xtask tidy        checks the house rules; limits and exceptions are in tidy.toml
       cargo xtask pictures    draws the pictures of the documentation anew";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => report(tidy::run(root())),
        ["pictures"] => match pictures::write(root()) {
            Ok(names) => {
                println!("pictures: {}", names.join(" "));
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("pictures: {error}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The workspace's top folder: the parent of this crate's.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

fn report(outcome: Result<tidy::Summary, String>) -> ExitCode {
    match outcome {
        Ok(summary) if summary.problems.is_empty() => {
            println!("tidy: {} files, {} crates in order", summary.files, summary.crates);
            ExitCode::SUCCESS
        }
        Ok(summary) => {
            for problem in &summary.problems {
                eprintln!("{problem}");
            }
            eprintln!("tidy: {} problems", summary.problems.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::FAILURE
        }
    }
}
