//! What a copy out of a volume meets: entries of its walk, and of walks below links that are followed.

use std::borrow::Cow;
use uext4::{Ino, Metadata, Visit, Volume, Walk, WalkOptions};

/// A step of the copy.
#[derive(Clone, Copy)]
pub struct Entry<'e> {
    pub visit: Visit,
    /// Below the source.
    pub path: &'e [u8],
    /// Its last component; `None` for the source itself.
    pub name: Option<&'e [u8]>,
    pub ino: Ino,
    pub metadata: &'e Metadata,
    /// Whether it was found below a link.
    pub below_link: bool,
}

/// A walk over the source, or over the directory that a followed link leads to.
pub struct Below {
    pub walk: Walk,
    /// Path and name of the link.
    link: Option<(Vec<u8>, Vec<u8>)>,
}

impl Below {
    /// Over a directory, or of something else. `link`: path and name of the link that leads there.
    pub fn new(volume: &Volume, start: Ino, link: Option<(&[u8], &[u8])>) -> Below {
        let walk = volume.walk_from(start, WalkOptions::new().brackets(true));
        Below { walk, link: link.map(|(path, name)| (path.to_vec(), name.to_vec())) }
    }

    /// The next step, handed to `visit`; `None` at the end. With an error comes its path.
    pub fn advance<T>(
        &mut self,
        visit: impl FnOnce(std::result::Result<Entry<'_>, (Cow<'_, [u8]>, uext4::Error)>) -> T,
    ) -> Option<Option<T>> {
        let link = self.link.as_ref().map(|(path, name)| (&path[..], &name[..]));
        let told = match self.walk.advance()? {
            Err(error) => Err((join(link, &error.shown()).into_owned().into(), error.error)),
            Ok(entry) => {
                let Some(metadata) = entry.metadata else { return Some(None) };
                let path = join(link, entry.path);
                let name = if entry.depth > 0 { Some(entry.name) } else { link.map(|(_, name)| name) };
                let below_link = link.is_some();
                let entry =
                    Entry { visit: entry.visit, path: &path, name, ino: entry.ino, metadata, below_link };
                return Some(Some(visit(Ok(entry))));
            }
        };
        Some(Some(visit(told)))
    }
}

fn join<'p>(link: Option<(&'p [u8], &[u8])>, below: &'p [u8]) -> Cow<'p, [u8]> {
    match link {
        None => below.into(),
        Some((path, _)) if below.is_empty() => path.into(),
        Some((path, _)) => [path, b"/", below].concat().into(),
    }
}
