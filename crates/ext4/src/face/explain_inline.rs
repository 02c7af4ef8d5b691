//! Explains a request for inline contents.

use crate::change::privileges;
use crate::face::explain::{Explanation, JournalShare, Query, check_openings};
use crate::face::volume::Shared;
use crate::ground::error::{Error, Result};
use crate::seam::Ext4;
use uext4_iomap::plan::Durability;
use uext4_iomap::{OpenFile, Pieces, Plan, Range, Request, State};

pub(crate) fn explain_inline(shared: &Shared, open: &OpenFile<Ext4>, query: &Query) -> Result<Explanation> {
    let range = checked_range(query)?;
    let size = open.state().size();
    let mut pieces = Pieces::new();
    shared.engine.map(open, range, &mut pieces)?;
    let inside: u64 =
        pieces.iter().filter(|piece| piece.state == State::Inline).map(|piece| piece.length).sum();
    let mut reasons =
        vec![format!("mapping: none, {inside} bytes of the range lie inside the inode; file size {size}")];
    let aligned = if query.queued { shared.engine.check_aligned(query.pos, query.length) } else { Ok(()) };
    if !query.write {
        let plan = Plan::inline_read(range, size);
        reasons.push(match range.pos >= size {
            true => "route: nothing to read at or past the end of the file".into(),
            false => "route: copy from the inode, which was read when the file was opened".into(),
        });
        let refused = aligned.err().map(|error| error.to_string());
        return Ok(told(plan, pieces, reasons, None, refused));
    }
    privileges::note(&shared.fs.state, &open.inode)?;
    let block = u64::from(shared.engine.device().geometry().logical_block);
    let bounced = (query.pos | query.length) & (block - 1) != 0;
    let request = Request { range, sync: query.sync, bounced, queued: query.queued };
    let device = shared.given_device().capabilities();
    let outlook = shared.engine.explain(open, &request, true, &device)?;
    let plan = outlook.plan;
    let refused = check_openings(shared, open).err().or(outlook.refused);
    let journaled = shared.fs.state.superblock.journal_inode().is_some();
    let mapping = journaled && !open.switches.overwrite_no_transaction;
    let mut journal = JournalShare {
        handles_before: u32::from(plan.drops_privileges) + u32::from(mapping),
        handles_after: 1,
        commits: u32::from(plan.durability != Durability::None),
    };
    let mut advice = None;
    if shared.fs.files().fits_inline(&open.inode, range.end().max(size))? {
        reasons.push("route: not a pure overwrite, the contents are part of the inode".into());
    } else {
        journal.handles_before += 1;
        reasons.push("route: the contents do not fit the inode, and move to a block first".into());
        reasons.push("then it is planned again, as a write to an ordinary file".into());
        advice = Some("from the first such write on the file is an ordinary one".into());
    }
    if refused.is_none() {
        reasons.extend(journal.line(journaled));
    } else {
        journal = JournalShare::default();
    }
    let refused = refused.map(|error| error.to_string());
    Ok(Explanation { journal, ..told(plan, pieces, reasons, advice, refused) })
}

/// The same for contents that are written through the log.
pub(crate) fn explain_journaled(
    shared: &Shared,
    open: &OpenFile<Ext4>,
    query: &Query,
) -> Result<Explanation> {
    let range = checked_range(query)?;
    let size = open.state().size();
    let mut pieces = Pieces::new();
    shared.engine.map(open, range, &mut pieces)?;
    let mut reasons =
        vec![format!("mapping: the contents are journaled (chattr +j or data=journal); file size {size}")];
    let aligned = if query.queued { shared.engine.check_aligned(query.pos, query.length) } else { Ok(()) };
    if !query.write {
        reasons.push(match range.pos >= size {
            true => "route: nothing to read at or past the end of the file".into(),
            false => {
                "route: copy from the cache, which has what the log holds; it reads other blocks first".into()
            }
        });
        let refused = aligned.err().map(|error| error.to_string());
        return Ok(told(Plan::inline_read(range, size), pieces, reasons, None, refused));
    }
    privileges::note(&shared.fs.state, &open.inode)?;
    let request = Request { range, sync: query.sync, bounced: false, queued: query.queued };
    // Not the engine's: a volume that is open for reading reads such files directly.
    let plan = Plan { drops_privileges: open.state().is_privileged(), ..Plan::inline_write(&request, size) };
    let files = shared.fs.files();
    let allocates =
        files.check_allocates(&open.inode).and_then(|()| files.check_size(&open.inode, range.end()));
    let refused = check_openings(shared, open).err().or(allocates.err()).map(|error| error.to_string());
    let refused = refused.or(aligned.err().map(|error| error.to_string()));
    reasons.push("route: through the log, in handles that change the data, the map and the size".into());
    let journal = match refused {
        Some(_) => JournalShare::default(),
        None => JournalShare {
            handles_before: u32::from(plan.drops_privileges),
            handles_after: 1,
            commits: u32::from(plan.durability != Durability::None),
        },
    };
    reasons.extend(journal.line(true));
    let advice = "chattr -j makes it an ordinary file, which is overwritten directly".into();
    Ok(Explanation { journal, ..told(plan, pieces, reasons, Some(advice), refused) })
}

/// The range of a request.
fn checked_range(query: &Query) -> Result<Range> {
    if query.length == 0 {
        return Err(Error::Invalid("a request of 0 bytes does nothing".into()));
    }
    const END_MAX: u64 = i64::MAX as u64;
    if query.pos.checked_add(query.length).is_none_or(|end| end > END_MAX) {
        return Err(Error::Invalid("the range ends past byte 2^63".into()));
    }
    Ok(Range { pos: query.pos, length: query.length })
}

/// An explanation without device requests.
fn told(
    plan: Plan,
    pieces: Pieces,
    reasons: Vec<String>,
    advice: Option<String>,
    refused: Option<String>,
) -> Explanation {
    Explanation {
        plan,
        piece_count: pieces.len() as u64,
        pieces: pieces.to_vec(),
        requests: Vec::new(),
        journal: JournalShare::default(),
        request_count: 0,
        zeroed: 0,
        reasons,
        advice: advice.into_iter().collect(),
        refused,
    }
}
