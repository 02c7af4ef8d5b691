//! Names by which a layer of a container image hides what lower layers have (aufs's names, which OCI took over).

use super::draft::{Draft, Spot};
use super::error::GatherCause;
use super::steps::{self, Through};

const PREFIX: &[u8] = b".wh.";
const OWN: &[u8] = b".wh..wh.";

/// What the name of an entry hides.
#[derive(Debug, PartialEq, Eq)]
pub enum Whiteout<'p> {
    /// This name of lower layers.
    Name(&'p [u8]),
    /// Everything that lower layers have in its directory.
    All,
    /// Nothing: it is of aufs itself.
    Ignored,
}

impl<'p> Whiteout<'p> {
    /// What the components of a path say. `None`: it is the path of a file.
    pub fn of(path: &[&'p [u8]]) -> Result<Option<Whiteout<'p>>, GatherCause> {
        let Some((name, parents)) = path.split_last() else { return Ok(None) };
        if *name == b".wh..wh..opq" {
            return Ok(Some(Whiteout::All));
        }
        if path.iter().any(|name| name.starts_with(OWN)) {
            return Ok(Some(Whiteout::Ignored));
        }
        if parents.iter().any(|name| name.starts_with(PREFIX)) {
            return Err(GatherCause::Name("a whiteout is no directory"));
        }
        match name.strip_prefix(PREFIX) {
            Some(b"" | b"." | b"..") => Err(GatherCause::Name("a whiteout of no name")),
            Some(hidden) => Ok(Some(Whiteout::Name(hidden))),
            None => Ok(None),
        }
    }
}

/// Hides what lower layers have. Where they have nothing, nothing is done.
pub fn apply(
    draft: &mut Draft,
    path: &[&[u8]],
    whiteout: Whiteout<'_>,
    through: Through,
) -> Result<(), GatherCause> {
    let parents = path.split_last().map_or(&[][..], |(_, parents)| parents);
    if whiteout == Whiteout::Ignored {
        return Ok(());
    }
    let Some(directory) = steps::find(draft, parents, through)? else { return Ok(()) };
    match whiteout {
        Whiteout::Name(name) => draft.white_out(&Spot { directory, name: name.into() }),
        Whiteout::All => draft.make_opaque(directory),
        Whiteout::Ignored => {}
    }
    Ok(())
}
