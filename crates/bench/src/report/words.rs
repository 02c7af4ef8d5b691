//! Explanations in words: what a switch does, and how to read a ratio.

use super::model::Interval;

/// What a switch does, one sentence for each route. `None` if it is not a switch.
pub fn switch(name: &str) -> Option<&'static str> {
    Some(match name {
        "overwrite-no-transaction" => {
            "On, an overwrite of written blocks looks its blocks up and starts no journal transaction. Off, a \
             real handle is started around each."
        }
        "dax-no-dio-count" => {
            "On, a copy from or to mapped memory, which is over when the call returns, counts no request in \
             flight. Off, it counts up before and down after the copy."
        }
        "fua-dsync-overwrite" => {
            "On, an O_DSYNC overwrite of written blocks is one FUA write: the device makes these blocks durable \
             and nothing else. Off, it is a plain write with a flush of the whole device cache behind it."
        }
        "simple-read" => {
            "On, a read of one mapping takes a short path: a preset slot, one look-up, one device request. Off, \
             it goes through the general request with its iteration over mappings."
        }
        "shared-subblock-overwrite" => {
            "On, overwrites smaller than a block run concurrently under the shared inode gate. Off, each takes \
             the gate exclusively and waits until nothing else is in flight."
        }
        _ => return None,
    })
}

/// On which side of 1 the whole interval lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It contains 1: no difference shows.
    Neither,
    /// Above.
    Above,
    /// Below.
    Below,
}

impl Side {
    /// Of an interval.
    pub fn of(interval: &Interval) -> Side {
        match (interval.low > 1.0, interval.high < 1.0) {
            (true, _) => Side::Above,
            (_, true) => Side::Below,
            _ => Side::Neither,
        }
    }
}

/// `0.972 [0.965, 0.980]`.
pub fn ratio(median: f64, interval: &Interval) -> String {
    let digits = if median >= 10.0 { 1 } else { 3 };
    format!("{median:.digits$} [{:.digits$}, {:.digits$}]", interval.low, interval.high)
}

/// What a ratio of requests per second says: whether there is a difference, and whether its size is known.
pub fn rate_verdict(interval: &Interval) -> &'static str {
    verdict(
        interval,
        ["clearly faster", "clearly slower"],
        ["clearly faster, size not resolved", "clearly slower, size not resolved"],
    )
}

/// The same of processor time for each request, of which less is better.
pub fn cpu_verdict(interval: &Interval) -> &'static str {
    verdict(
        interval,
        ["clearly more", "clearly less"],
        ["clearly more, size not resolved", "clearly less, size not resolved"],
    )
}

fn verdict(interval: &Interval, precise: [&'static str; 2], wide: [&'static str; 2]) -> &'static str {
    let words = if interval.resolved { precise } else { wide };
    match Side::of(interval) {
        Side::Above => words[0],
        Side::Below => words[1],
        Side::Neither if interval.resolved => "no difference that shows",
        Side::Neither => "not resolved",
    }
}

/// Breaks a line that is wider than `width` columns behind spaces, commas, `&` and `?`, or anywhere if there are
/// none; further lines are indented by `indent`.
pub fn wrap(line: &str, width: usize, indent: usize) -> String {
    let mut letters: Vec<char> = line.chars().collect();
    let mut text = String::new();
    while letters.len() > width {
        let may_end = |&at: &usize| matches!(letters[at - 1], ' ' | ',' | '&' | '?');
        let end = (indent + 1..=width).rev().find(may_end).unwrap_or(width);
        let rest = letters.split_off(end);
        text.push_str(letters.iter().collect::<String>().trim_end());
        text.push('\n');
        letters = std::iter::repeat_n(' ', indent).chain(rest).collect();
    }
    text + &letters.iter().collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(low: f64, high: f64, resolved: bool) -> Interval {
        Interval { low, high, pairs: 40, resolved, excludes_one: low > 1.0 || high < 1.0 }
    }

    #[test]
    fn every_switch_has_its_sentence() {
        for name in uext4::SWITCH_NAMES {
            assert!(switch(name).is_some_and(|words| words.contains("Off,")), "{name}");
        }
        assert_eq!(switch("no-switch"), None);
    }

    #[test]
    fn precise_and_clear_are_two_things() {
        assert_eq!(rate_verdict(&interval(1.9, 2.4, false)), "clearly faster, size not resolved");
        assert_eq!(rate_verdict(&interval(1.01, 1.03, true)), "clearly faster");
        assert_eq!(rate_verdict(&interval(0.95, 0.97, true)), "clearly slower");
        assert_eq!(rate_verdict(&interval(0.99, 1.01, true)), "no difference that shows");
        assert_eq!(rate_verdict(&interval(0.9, 1.1, false)), "not resolved");
        assert_eq!(cpu_verdict(&interval(0.9, 0.95, true)), "clearly less");
        assert_eq!(cpu_verdict(&interval(1.0, 1.05, true)), "no difference that shows");
    }

    #[test]
    fn lines_are_broken_where_they_may_be() {
        assert_eq!(wrap("short", 10, 2), "short");
        assert_eq!(wrap("mem:64M?latency=1ms&fua=on", 12, 2), "mem:64M?\n  latency=1m\n  s&fua=on");
        assert_eq!(wrap("one two three", 8, 1), "one two\n three");
        for width in 5..40 {
            let text = wrap("some words, and a-very-long-one-without-any-place-to-break", width, 3);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        }
    }
}
