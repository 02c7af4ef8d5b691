//! Code shared by the commands that change a file: `truncate`, `fallocate`, `prepare`.

use crate::args::Globals;
use crate::cat::Volumes;
use crate::error::CliError;
use crate::open::{OpenHow, Operand, creating};
use crate::out::{Elements, Out};
use crate::text::JsonBytes;
use serde::Serialize;
use uext4::{File, Metadata, OpenOptions, Switches};

/// What to do if a file does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Create it.
    Create,
    /// Skip it silently.
    Skip,
    /// Fail.
    Fail,
}

/// The result for a file, in bytes.
#[derive(Serialize)]
struct JsonChanged<'a> {
    #[serde(flatten)]
    argument: JsonBytes<'a>,
    size: u64,
    /// Space taken by its blocks, mapping blocks included.
    allocated: u64,
}

/// Changes files and closes their volumes, which makes the changes durable. With JSON, prints the result for each file.
pub fn change_all(
    operands: &[Operand],
    globals: &Globals,
    missing: Missing,
    mut change: impl FnMut(&Operand, &File) -> uext4::Result<()>,
) -> Result<(), CliError> {
    let how = OpenHow { write: true, ..OpenHow::reading(globals, false, Switches::ON) };
    let options = OpenOptions::new().read(true).write(true).direct(true);
    let options = if missing == Missing::Create { creating(globals, options) } else { options };
    let mut volumes = Volumes::default();
    let mut failures = globals.failures();
    let mut changed = Vec::new();
    let mut one = |operand: &Operand| -> Result<Option<Metadata>, CliError> {
        let file = match volumes.get(operand, &how)?.open_file(operand.inner(), options.clone()) {
            Err(uext4::Error::NotFound) if missing == Missing::Skip => return Ok(None),
            opened => opened.map_err(|error| operand.error(error))?,
        };
        change(operand, &file).map_err(|error| operand.error(error))?;
        Ok(Some(file.metadata()))
    };
    let mut ended = Ok(());
    for operand in operands {
        match failures.one_of(operands.len(), one(operand)) {
            Ok(done) => changed.extend(done.flatten().map(|metadata| (operand, metadata))),
            Err(error) => {
                ended = Err(error);
                break;
            }
        }
    }
    // The first failure is reported.
    let closed = volumes.close();
    ended.and(closed)?;
    if globals.json {
        tell(operands.len(), &changed)?;
    }
    failures.finish()
}

fn tell(count: usize, changed: &[(&Operand, Metadata)]) -> Result<(), CliError> {
    let (mut out, mut list) = (Out::new(), Elements::new(count > 1));
    for (operand, metadata) in changed {
        let argument = JsonBytes::argument(&operand.argument, count);
        let allocated = metadata.blocks.saturating_mul(512);
        list.element(&mut out, &JsonChanged { argument, size: metadata.size, allocated })?;
    }
    list.end(&mut out)?;
    out.finish()
}
