//! Owners and times that the options give instead of those of the inputs.

use super::draft::Attributes;
use uext4::Timestamp;

/// What the options say about owners and times.
#[derive(Debug, Clone, Default)]
pub struct Owners {
    /// Owner and group of everything.
    pub all: Option<(u32, u32)>,
    /// Times later than this many seconds since 1970 become it.
    pub latest: Option<i64>,
}

impl Owners {
    pub fn apply(&self, attributes: &mut Attributes) {
        if let Some((uid, gid)) = self.all {
            (attributes.uid, attributes.gid) = (uid, gid);
        }
        if let Some(latest) = self.latest {
            let bound = Timestamp { seconds: latest, nanoseconds: 0 };
            let time = attributes.modified;
            if (time.seconds, time.nanoseconds) > (bound.seconds, bound.nanoseconds) {
                attributes.modified = bound;
            }
        }
    }
}
