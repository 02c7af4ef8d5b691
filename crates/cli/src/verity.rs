//! `uext4 verity`: what files sealed by fs-verity are measured by, printed as by `fsverity measure`.

use crate::args::{CommonArgs, Globals};
use crate::cat::Volumes;
use crate::error::CliError;
use crate::hex;
use crate::open::{OpenHow, Operand};
use crate::out::{Elements, Out};
use crate::progress::{BYTES, Progress};
use crate::text::{self, JsonBytes};
use clap::{Args, ValueHint};
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uext4::{Switches, Verity};

/// `uext4 verity`.
#[derive(Args)]
#[command(after_long_help = "\
Prints `ALGORITHM:DIGEST DEVICE:/path`. The digest covers the contents, their size, and how they are hashed, and is what
`fsverity measure` prints for the file on a mounted volume, and `fsverity digest` for the same contents. It is taken
from the volume: with --verify all contents are read and compared with the hash tree behind them, and the tree with the
digest.")]
pub struct VerityArgs {
    /// The files.
    #[arg(value_name = "DEVICE:/path", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// Read everything and compare it with the hashes; a difference is an error.
    #[arg(long)]
    pub verify: bool,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
}

#[derive(Serialize)]
struct JsonVerity<'a> {
    #[serde(flatten)]
    argument: JsonBytes<'a>,
    algorithm: &'static str,
    digest: String,
    root_hash: String,
    salt: String,
    block_size: u32,
    tree_size: u64,
    signature_size: u32,
    verified: bool,
}

/// Runs it.
pub fn run(args: &VerityArgs, globals: &Globals) -> Result<(), CliError> {
    let operands =
        args.operands.iter().map(|operand| Operand::parse(operand)).collect::<Result<Vec<_>, _>>()?;
    let how = OpenHow::reading(globals, args.common.force, Switches::ON);
    let (mut volumes, mut failures) = (Volumes::default(), globals.failures());
    let mut out = Out::new();
    let mut list = Elements::new(globals.json && operands.len() > 1);
    for operand in &operands {
        let measured = measure(operand, args.verify, &mut volumes, &how);
        let Some(verity) = failures.one_of(operands.len(), measured)? else { continue };
        if globals.json {
            list.element(&mut out, &json(operand, operands.len(), &verity, args.verify))?;
        } else {
            write!(out, "{}:{} ", verity.algorithm().name(), hex::digits(&verity.digest()))?;
            out.name(operand.argument.as_bytes())?;
            out.line_end()?;
        }
    }
    list.end(&mut out)?;
    out.finish()?;
    failures.finish()
}

fn measure(
    operand: &Operand,
    verify: bool,
    volumes: &mut Volumes,
    how: &OpenHow<'_>,
) -> Result<Verity, CliError> {
    let file = operand.file(&volumes.get(operand, how)?)?;
    let verity = if verify {
        let mut progress = Progress::new(BYTES, text::visible(&operand.path), file.size(), true);
        file.verify_verity(&mut |bytes| progress.advance(bytes))
    } else {
        file.verity()
    };
    let verity = verity.map_err(|error| operand.error(error))?;
    verity.ok_or_else(|| CliError::failed(&operand.argument, "it is not sealed by fs-verity", libc::ENODATA))
}

fn json<'a>(operand: &'a Operand, operands: usize, verity: &Verity, verified: bool) -> JsonVerity<'a> {
    JsonVerity {
        argument: JsonBytes::argument(&operand.argument, operands),
        algorithm: verity.algorithm().name(),
        digest: hex::digits(&verity.digest()),
        root_hash: hex::digits(verity.root_hash()),
        salt: hex::digits(verity.salt()),
        block_size: verity.block_size(),
        tree_size: verity.tree_size(),
        signature_size: verity.signature_size(),
        verified,
    }
}
