//! Case folding of names: which spellings name the same entry of a case-folded directory.
//!
//! Two names are the same if their folded forms are: canonical decomposition, full case folding and removal
//! of default-ignorable code points, by the tables of Unicode 12.1 (`fs/unicode`: *NFDICF*). The hash of such
//! a directory's names is computed on that form too.

use caseless::Caseless;
use unicode_normalization::char::{canonical_combining_class, decompose_canonical};

use super::unicode_12_1::{is_assigned, is_ignorable};

/// Folds names. Keeps its memory from one name to the next.
#[derive(Clone, Debug, Default)]
pub struct CaseFolder {
    folded: String,
    /// Characters with a combining class other than 0 since the last one of class 0, in canonical order.
    marks: Vec<(u8, char)>,
}

impl CaseFolder {
    /// A folder for any number of names.
    pub fn new() -> CaseFolder {
        CaseFolder::default()
    }

    /// The folded form of a name, or `None` if the name is not UTF-8: such a name equals itself only. The form
    /// is at most four times as long as the name, and empty if the name has but ignorable characters.
    pub fn fold(&mut self, name: &[u8]) -> Option<&[u8]> {
        let name = str::from_utf8(name).ok()?;
        self.folded.clear();
        if name.is_ascii() {
            self.folded.push_str(name);
            self.folded.make_ascii_lowercase();
            return Some(self.folded.as_bytes());
        }
        self.marks.clear();
        for point in name.chars() {
            if is_ignorable(point) {
                // It leaves nothing behind, but marks before and after it keep their order.
                self.end_marks();
            } else if is_assigned(point) {
                for folded in std::iter::once(point).default_case_fold() {
                    decompose_canonical(folded, |part| self.push(part));
                }
            } else {
                self.end_marks();
                self.folded.push(point);
            }
        }
        self.end_marks();
        Some(self.folded.as_bytes())
    }

    /// Appends a character of the decomposition, marks sorted by class and otherwise in their order.
    fn push(&mut self, point: char) {
        let class = canonical_combining_class(point);
        if class == 0 {
            self.end_marks();
            self.folded.push(point);
            return;
        }
        let at = self.marks.partition_point(|(before, _)| *before <= class);
        self.marks.insert(at, (class, point));
    }

    fn end_marks(&mut self) {
        self.folded.extend(self.marks.drain(..).map(|(_, mark)| mark));
    }
}
