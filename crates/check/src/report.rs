//! Results of a check: kinds of findings with stable codes, findings with their places, and the report.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use uext4_ondisk::{Corrupt, Group, Ino, Lblk, Pblk, Place};

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The volume is damaged; `e2fsck` would repair it (or discard what cannot be replayed).
    Error,
    /// Odd, but not damage: the volume is still clean, and `e2fsck -fn` exits with 0, with or without a message.
    Warning,
}

impl Severity {
    /// `error` or `warning`.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

/// A kind of finding.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// Stable name for programs: the structure, a dot, the fault.
    pub code: &'static str,
    /// Its severity.
    pub severity: Severity,
    /// What it means, for people.
    pub meaning: &'static str,
}

impl Kind {
    pub(crate) const fn error(code: &'static str, meaning: &'static str) -> Kind {
        Kind { code, severity: Severity::Error, meaning }
    }

    pub(crate) const fn warning(code: &'static str, meaning: &'static str) -> Kind {
        Kind { code, severity: Severity::Warning, meaning }
    }

    /// The damaged structure: the code's first part.
    pub fn structure(&self) -> &'static str {
        self.code.split('.').next().unwrap_or(self.code)
    }
}

/// One fault or oddity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The kind of fault.
    pub kind: &'static Kind,
    /// Its place, as far as it has one.
    pub place: Place,
    /// What is wrong, with the values that were found and expected.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.kind.code)?;
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.text)
    }
}

/// Totals counted during the check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Inodes in use, reserved ones included.
    pub inodes: u64,
    /// Directories.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Device nodes, pipes and sockets.
    pub special: u64,
    /// Directory entries, `.` and `..` included.
    pub entries: u64,
    /// Blocks in use, metadata included; whole clusters with `bigalloc`.
    pub blocks: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        self.inodes += other.inodes;
        self.directories += other.directories;
        self.files += other.files;
        self.symlinks += other.symlinks;
        self.special += other.special;
        self.entries += other.entries;
        self.blocks += other.blocks;
    }
}

/// Something that the check did not examine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotExamined {
    /// What.
    pub what: &'static str,
    /// Why.
    pub reason: &'static str,
    /// Number of occurrences.
    pub count: u64,
}

/// The outcome of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Findings in the order of their codes and places, at most [`crate::CheckOptions::per_kind`] of each kind.
    pub findings: Vec<Finding>,
    /// Number of findings of each kind that occurred, including those not kept.
    pub totals: BTreeMap<&'static str, u64>,
    /// Notable facts that are not findings.
    pub notes: Vec<String>,
    /// What was not examined.
    pub not_examined: Vec<NotExamined>,
    /// Totals.
    pub counts: Counts,
}

impl Report {
    /// Whether nothing is damaged: no finding is a [`Severity::Error`].
    pub fn is_clean(&self) -> bool {
        self.findings.iter().all(|finding| finding.kind.severity != Severity::Error)
    }

    /// Findings of this kind that were counted but not kept.
    pub fn more(&self, kind: &Kind) -> u64 {
        let kept = self.findings.iter().filter(|finding| finding.kind.code == kind.code).count() as u64;
        self.totals.get(kind.code).copied().unwrap_or(0).saturating_sub(kept)
    }
}

/// Sort key of a place.
type Key = (Option<Group>, Option<Ino>, Option<Lblk>, Option<Pblk>);

fn key(place: &Place) -> Key {
    (place.group, place.inode, place.lblk, place.block)
}

struct Bucket {
    kind: &'static Kind,
    total: u64,
    kept: BTreeSet<(Key, String)>,
}

/// Collects findings: counts all and keeps the first few of each kind by place, so that the outcome does not depend on
/// the order of the threads, and a hostile volume cannot fill the memory.
pub(crate) struct Findings {
    cap: usize,
    buckets: BTreeMap<&'static str, Bucket>,
    missed: BTreeMap<(&'static str, &'static str), u64>,
}

impl Findings {
    /// Keeps `cap` of each kind.
    pub(crate) fn new(cap: usize) -> Findings {
        Findings { cap, buckets: BTreeMap::new(), missed: BTreeMap::new() }
    }

    /// Whether there is a finding of this kind.
    pub(crate) fn has(&self, kind: &Kind) -> bool {
        self.buckets.contains_key(kind.code)
    }

    /// Notes a finding. The text is made only if it is kept.
    pub(crate) fn add(&mut self, kind: &'static Kind, place: Place, text: impl Display) {
        let empty = || Bucket { kind, total: 0, kept: BTreeSet::new() };
        let bucket = self.buckets.entry(kind.code).or_insert_with(empty);
        bucket.total += 1;
        bucket.keep(self.cap, key(&place), text);
    }

    /// Notes a fault that a decoder found.
    pub(crate) fn corrupt(&mut self, kind: &'static Kind, place: Place, fault: &Corrupt) {
        let place = Place {
            block: fault.place.block.or(place.block),
            inode: fault.place.inode.or(place.inode),
            group: fault.place.group.or(place.group),
            lblk: fault.place.lblk.or(place.lblk),
        };
        self.add(kind, place, fault.kind);
    }

    /// Notes that something was not examined.
    pub(crate) fn not_examined(&mut self, what: &'static str, reason: &'static str) {
        *self.missed.entry((what, reason)).or_default() += 1;
    }

    /// Merges another collector.
    pub(crate) fn merge(&mut self, other: Findings) {
        for (code, bucket) in other.buckets {
            let kind = bucket.kind;
            let empty = || Bucket { kind, total: 0, kept: BTreeSet::new() };
            let mine = self.buckets.entry(code).or_insert_with(empty);
            mine.total += bucket.total;
            for (key, text) in bucket.kept {
                mine.keep(self.cap, key, text);
            }
        }
        for (what, count) in other.missed {
            *self.missed.entry(what).or_default() += count;
        }
    }

    /// The report, without counts and notes.
    pub(crate) fn into_report(self) -> Report {
        let mut report = Report::default();
        for (code, bucket) in self.buckets {
            report.totals.insert(code, bucket.total);
            report.findings.extend(bucket.kept.into_iter().map(|((group, inode, lblk, block), text)| {
                Finding { kind: bucket.kind, place: Place { block, inode, group, lblk }, text }
            }));
        }
        report.not_examined = self
            .missed
            .into_iter()
            .map(|((what, reason), count)| NotExamined { what, reason, count })
            .collect();
        report
    }
}

impl Bucket {
    fn keep(&mut self, cap: usize, key: Key, text: impl Display) {
        if self.kept.len() >= cap {
            match self.kept.last() {
                Some(last) if key < last.0 => {}
                _ => return,
            }
        }
        self.kept.insert((key, text.to_string()));
        if self.kept.len() > cap {
            self.kept.pop_last();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static ODD: Kind = Kind::warning("thing.odd", "odd");
    static BAD: Kind = Kind::error("thing.bad", "bad");

    fn at(block: u64) -> Place {
        Place { block: Some(Pblk(block)), ..Place::default() }
    }

    #[test]
    fn the_first_by_place_are_kept_in_any_order_and_all_are_counted() {
        let (mut one, mut two) = (Findings::new(3), Findings::new(3));
        for block in [9, 2, 7, 4, 30] {
            one.add(&BAD, at(block), format_args!("{block}"));
            two.add(&BAD, at(block + 1), format_args!("{}", block + 1));
        }
        two.add(&ODD, Place::default(), "odd");
        one.merge(two);
        let report = one.into_report();
        let kept: Vec<_> = report.findings.iter().map(|finding| finding.to_string()).collect();
        let odd = "thing.odd: odd";
        assert_eq!(kept, ["thing.bad: block 2: 2", "thing.bad: block 3: 3", "thing.bad: block 4: 4", odd]);
        assert_eq!((report.totals["thing.bad"], report.more(&BAD), report.more(&ODD)), (10, 7, 0));
        assert!(!report.is_clean());
        assert_eq!(BAD.structure(), "thing");
    }

    #[test]
    fn warnings_leave_a_volume_clean() {
        let mut findings = Findings::new(3);
        findings.add(&ODD, Place::default(), "odd");
        assert!(findings.into_report().is_clean());
    }
}
