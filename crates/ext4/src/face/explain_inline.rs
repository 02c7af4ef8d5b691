//! Explains a request for inline contents.

use crate::face::explain::{Explanation, JournalShare, Query, check_openings};
use crate::face::volume::Shared;
use crate::ground::error::{Error, Result};
use crate::inline;
use crate::seam::Ext4;
use uext4_iomap::{OpenFile, Pieces, Plan, Range, State};

pub(crate) fn explain_inline(shared: &Shared, open: &OpenFile<Ext4>, query: &Query) -> Result<Explanation> {
    if query.length == 0 {
        return Err(Error::Invalid("a request of 0 bytes does nothing".into()));
    }
    const END_MAX: u64 = i64::MAX as u64;
    if query.pos.checked_add(query.length).is_none_or(|end| end > END_MAX) {
        return Err(Error::Invalid("the range ends past byte 2^63".into()));
    }
    let range = Range { pos: query.pos, length: query.length };
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
    reasons.push("route: not a pure overwrite, the contents are part of the inode".into());
    let refused = check_openings(shared, open).and(aligned).err();
    let refused = refused.unwrap_or_else(|| inline::refuse_write(&open.inode));
    let advice = Some("write it through a mounted volume until it is too large for its inode".into());
    Ok(told(Plan::inline_write(range, size), pieces, reasons, advice, Some(refused.to_string())))
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
