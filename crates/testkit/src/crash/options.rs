//! How many states, which of them, and what the environment says about it.

use super::choices::Pick;
use std::time::Duration;

/// Replays one state: what a failure printed.
pub(super) const STATE: &str = "UEXT4_CRASH_STATE";
/// Replaces the seed.
pub(super) const SEED: &str = "UEXT4_CRASH_SEED";
/// Replaces the number of states.
const STATES: &str = "UEXT4_CRASH_STATES";
/// Replaces the seconds.
const SECONDS: &str = "UEXT4_CRASH_SECONDS";
/// A file to which long runs append a line for each enumeration: source file and scenario, states, images.
pub(super) const TOTALS: &str = "UEXT4_CRASH_TOTALS";
/// Where the image of a state that failed is left.
pub(super) const KEEP: &str = "UEXT4_CRASH_KEEP";

/// How states are enumerated.
#[derive(Debug, Clone)]
pub struct Options {
    /// Names the scenario; a replay of another scenario's state shows nothing here. No colon.
    pub name: String,
    /// Decides every draw.
    pub seed: u64,
    /// Most states.
    pub states: usize,
    /// Longest time.
    pub time: Duration,
    /// A cut with at most this many states is enumerated completely, others are drawn from.
    pub exhaustive: u64,
    /// Whether writes may be there in part.
    pub torn: bool,
    /// What the medium writes whole or not at all, in bytes: the log's logical block unless set; 8 for DAX.
    pub unit: Option<u32>,
    /// A state to show and no other, as [`super::State::id`] names it.
    pub only: Option<String>,
}

impl Options {
    /// 10 000 states, a minute, cuts of 64 states completely, torn writes; but what the environment says counts.
    ///
    /// # Panics
    /// If the environment says something else than numbers.
    #[track_caller]
    pub fn new(name: &str, seed: u64) -> Options {
        assert!(!name.contains(':'), "a colon ends the name in `{STATE}`");
        Options {
            name: name.into(),
            seed: number(SEED).unwrap_or(seed),
            states: number(STATES).map_or(10_000, |states| states as usize),
            time: Duration::from_secs(number(SECONDS).unwrap_or(60)),
            exhaustive: 64,
            torn: true,
            unit: None,
            only: std::env::var(STATE).ok(),
        }
    }

    /// Shows at most so many states, unless the environment says how many.
    pub fn at_most(mut self, states: usize) -> Options {
        self.states = number(STATES).map_or(states, |states| states as usize);
        self
    }

    /// What a state is called.
    pub(super) fn id(&self, cut: usize, pick: Pick) -> String {
        let (letter, number) = match pick {
            Pick::Exact(number) => ('x', number),
            Pick::Whole(number) => ('w', number),
            Pick::Drawn(number) => ('d', number),
        };
        format!("{}:{cut}:{letter}{number}", self.name)
    }

    /// The one state to show: inside, `None` if it is another scenario's.
    pub(super) fn only(&self) -> Option<Result<Option<(usize, Pick)>, String>> {
        let id = self.only.as_deref()?;
        let wrong = || format!("{STATE}: `{id}` is no state, which is NAME:CUT:x0, w0 or d0");
        let parse = || {
            let [name, cut, pick] = id.split(':').collect::<Vec<_>>()[..] else { return None };
            let number = pick.get(1..)?.parse().ok()?;
            let pick = match pick.as_bytes()[0] {
                b'x' => Pick::Exact(number),
                b'w' => Pick::Whole(number),
                b'd' => Pick::Drawn(number),
                _ => return None,
            };
            let cut = cut.parse().ok()?;
            Some((name == self.name).then_some((cut, pick)))
        };
        Some(parse().ok_or_else(wrong))
    }
}

#[track_caller]
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}: `{text}` is no number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_states_come_back() {
        let mut options = Options::new("here", 1);
        for pick in [Pick::Exact(3), Pick::Whole(0), Pick::Drawn(u64::MAX)] {
            options.only = Some(options.id(17, pick));
            assert_eq!(options.only(), Some(Ok(Some((17, pick)))));
        }
        options.only = Some("there:1:x0".into());
        assert_eq!(options.only(), Some(Ok(None)));
        for wrong in ["", "here", "here:1", "here:1:", "here:1:y0", "here:x:x0", "here:1:x0:1", "here:1:é"] {
            options.only = Some(wrong.into());
            assert!(matches!(options.only(), Some(Err(_))), "{wrong}");
        }
    }
}
