//! Hostile images: sound volumes, changed where it hurts, with the checksums made right again so that the change is
//! looked at and not just refused.
//!
//! A [`Base`] knows every structure of a sound volume. A script (any bytes, see [`script_of`]) draws edits from the
//! tables in `fields`; the same script on the same base always makes the same image. Nothing here uses the decoders of
//! the library under test, and nothing here fails on what earlier edits left behind.

mod bytes;
mod choices;
mod edit;
mod fields;
mod geometry;
mod journal;
mod layout;
mod repair;
mod tree;

pub use choices::{Choices, script_of};
pub use geometry::Geometry;
pub use journal::{Log, Tag};
pub use layout::{Kind, Layout, Site};
pub use repair::repair;

/// Most edits of one image.
const EDITS: usize = 16;

/// A sound volume to start from.
#[derive(Debug)]
pub struct Base {
    /// Its bytes.
    pub image: Vec<u8>,
    /// Its structures.
    pub layout: Layout,
    kinds: Vec<Kind>,
}

/// A changed volume.
#[derive(Debug)]
pub struct Mutated {
    /// Its bytes; fewer than the base has if the end was cut off.
    pub image: Vec<u8>,
    /// What was done, one line each, for a reader.
    pub edits: Vec<String>,
}

impl Base {
    /// Looks at the volume.
    ///
    /// # Panics
    /// If it is none, or not sound.
    pub fn new(image: Vec<u8>) -> Base {
        let layout = Layout::of(&image);
        Base { kinds: edit::kinds_of(&layout), image, layout }
    }

    /// Makes the edits of a script. One script in sixteen leaves the checksums as they fall.
    pub fn mutate(&self, script: &[u8]) -> Mutated {
        let mut choices = Choices::new(script);
        let repaired = choices.below(16) != 15;
        let mut mutated = Mutated { image: self.image.clone(), edits: Vec::new() };
        while !choices.is_empty() && mutated.edits.len() < EDITS {
            mutated.edits.push(edit::edit(&mut mutated.image, &self.layout, &self.kinds, &mut choices));
        }
        if repaired {
            repair(&mut mutated.image, &self.layout);
        } else {
            mutated.edits.push("checksums left as they are".into());
        }
        mutated
    }
}
