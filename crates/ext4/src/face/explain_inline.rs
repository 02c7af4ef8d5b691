//! Why a request for contents inside the inode takes the way it takes.

use crate::face::explain::{Explanation, Query, check_openings};
use crate::face::volume::Shared;
use crate::ground::error::{Error, Result};
use crate::inline;
use crate::seam::Ext4;
use uext4_iomap::{OpenFile, Piece, Plan, Range, State};

pub(crate) fn explain_inline(shared: &Shared, open: &OpenFile<Ext4>, query: &Query) -> Result<Explanation> {
    if query.length == 0 {
        return Err(Error::Invalid("a request of 0 bytes does nothing".into()));
    }
    const END_MAX: u64 = i64::MAX as u64;
    let end = query.pos.checked_add(query.length).filter(|&end| end <= END_MAX);
    let Some(end) = end else {
        return Err(Error::Invalid("the range ends behind byte 2^63".into()));
    };
    let state = &shared.fs.state;
    let range = Range { pos: query.pos, length: query.length };
    let size = open.state().size();
    let pieces = pieces(&inline::piece(state, &open.inode, 0, end.max(1))?, range);
    let inside: u64 =
        pieces.iter().filter(|piece| piece.state == State::Inline).map(|piece| piece.length).sum();
    let mut reasons =
        vec![format!("mapping: none, {inside} bytes of the range lie inside the inode; file size {size}")];
    if !query.write {
        let plan = Plan::inline_read(range, size);
        reasons.push(match range.pos >= size {
            true => "route: nothing to read at or behind the end of the file".into(),
            false => "route: a copy out of the inode, which was read when the file was opened".into(),
        });
        let aligned =
            if query.queued { shared.engine.check_aligned(query.pos, query.length) } else { Ok(()) };
        let refused = aligned.err().map(|error| error.to_string());
        return Ok(told(plan, pieces, reasons, None, refused));
    }
    reasons.push("route: not a pure overwrite, the contents are part of the inode".into());
    let refused = check_openings(shared, open).err().unwrap_or_else(|| inline::refuse_write(&open.inode));
    let advice = Some("write it through a mounted volume until it is too large for its inode".into());
    Ok(told(Plan::inline_write(range, size), pieces, reasons, advice, Some(refused.to_string())))
}

/// The device gets nothing.
fn told(
    plan: Plan,
    pieces: Vec<Piece>,
    reasons: Vec<String>,
    advice: Option<String>,
    refused: Option<String>,
) -> Explanation {
    let advice = advice.into_iter().collect();
    let piece_count = pieces.len() as u64;
    let (requests, request_count) = (Vec::new(), 0);
    Explanation { plan, pieces, piece_count, requests, request_count, reasons, advice, refused }
}

/// The part of `range` that lies in `whole`, the inline piece of a file, and the hole behind it.
fn pieces(whole: &Piece, range: Range) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let split =
        if whole.state == State::Inline { whole.end().clamp(range.pos, range.end()) } else { range.pos };
    if split > range.pos {
        let physical = whole.physical.saturating_add(range.pos);
        pieces.push(Piece { logical: range.pos, physical, length: split - range.pos, state: State::Inline });
    }
    if range.end() > split {
        pieces.push(Piece { logical: split, physical: 0, length: range.end() - split, state: State::Hole });
    }
    pieces
}
