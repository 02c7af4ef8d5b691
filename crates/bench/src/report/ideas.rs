//! The gain of each of the five ideas, a line each, measured where the device hides it least.

use super::model::{Measured, Report};
use super::table::WIDTH;
use super::words::{Side, wrap};
use crate::arm::Arm;
use crate::scenario;

/// An idea, and the measurement that shows its worth.
struct Idea {
    switch: &'static str,
    /// At most 37 letters: a line has 80.
    words: &'static str,
    scenario: &'static str,
    shape: Option<&'static str>,
}

const IDEAS: [Idea; 5] = [
    Idea {
        switch: "overwrite-no-transaction",
        words: "overwrites start no transaction",
        scenario: "overwrite-randrw-dax",
        shape: None,
    },
    Idea {
        switch: "dax-no-dio-count",
        words: "mapped copies count nothing in flight",
        scenario: "dax-shared-read",
        shape: None,
    },
    Idea {
        switch: "fua-dsync-overwrite",
        words: "O_DSYNC is one FUA write, no flush",
        scenario: "dsync-overwrite",
        shape: Some(scenario::ALONE),
    },
    Idea {
        switch: "simple-read",
        words: "small reads skip the general request",
        scenario: "randread-poll",
        shape: Some(scenario::NO_DEVICE),
    },
    Idea {
        switch: "shared-subblock-overwrite",
        words: "overwrites below a block run together",
        scenario: "subblock-overwrite",
        shape: None,
    },
];

/// What an idea is worth on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Worth {
    /// Its switch.
    pub switch: &'static str,
    /// The idea in a few words.
    pub words: &'static str,
    /// Requests per second with it, over those without.
    pub ratio: f64,
    /// The interval of the ratio excludes 1.
    pub clear: bool,
    /// Time of a request with it.
    pub time: String,
    /// The device in two words.
    pub place: String,
    /// Position of the measurement in the report.
    pub measurement: usize,
}

impl Worth {
    /// `7.6`, or `≈1.01` where no difference shows.
    pub fn factor(&self) -> String {
        let digits = match self.ratio {
            ratio if ratio >= 10.0 => 0,
            ratio if ratio >= 2.0 => 1,
            _ => 2,
        };
        format!("{}{:.digits$}", if self.clear { "" } else { "≈" }, self.ratio)
    }
}

/// The ideas that were measured with and without, in order.
pub fn ideas(report: &Report) -> Vec<Worth> {
    IDEAS.iter().filter_map(|idea| worth(idea, report)).collect()
}

fn worth(idea: &Idea, report: &Report) -> Option<Worth> {
    let shows =
        |measured: &&Measured| measured.scenario == idea.scenario && measured.shape.as_deref() == idea.shape;
    let (measurement, measured) =
        report.scenarios.iter().enumerate().find(|(_, measured)| shows(measured))?;
    let (ratio, interval) = measured.ratio("on/off")?;
    Some(Worth {
        switch: idea.switch,
        words: idea.words,
        ratio,
        clear: Side::of(interval) != Side::Neither,
        time: time(measured.arm(Arm::On)?.ns_per_op),
        place: place(&measured.device),
        measurement,
    })
}

/// Rounded to significant digits.
fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns => (ns / 1e6, "ms"),
    };
    let places = if value < 10.0 { 2 } else { 0 };
    format!("{value:.places$} {unit}")
}

/// The device in two words, without its options.
fn place(device: &str) -> String {
    let known = [("dax:", "mapped memory"), ("mem:", "modelled disk"), ("null:", "no device")];
    match known.iter().find(|(scheme, _)| device.starts_with(scheme)) {
        Some((_, words)) => (*words).into(),
        None => device.split('?').next().unwrap_or_default().into(),
    }
}

/// The lines, for a terminal of 80 columns. Empty if none of the ideas was measured.
pub fn lines(report: &Report) -> String {
    let lines = ideas(report).iter().map(line).collect::<String>();
    if lines.is_empty() {
        return lines;
    }
    format!("\nThe ideas: times as fast as without (≈: no difference shows); a request takes\n{lines}")
}

fn line(worth: &Worth) -> String {
    let line = format!("{:>6} ×  {:<37}  {:>7}, {}", worth.factor(), worth.words, worth.time, worth.place);
    wrap(&line, WIDTH, 10) + "\n"
}

#[cfg(test)]
pub mod tests {
    use super::super::model::tests::sample;
    use super::*;

    /// A report in which every idea was measured, at `ratio`.
    pub fn all(ratio: f64) -> Report {
        let mut report = sample(1e6, ratio);
        let one = report.scenarios.remove(0);
        for idea in &IDEAS {
            let mut measured = one.clone();
            (measured.scenario, measured.shape) = (idea.scenario.into(), idea.shape.map(str::to_owned));
            measured.device = "mem:100M?latency=460us".into();
            measured.arms[1].arm = "off".into();
            let (value, ends) = (measured.ratios["on/raw"], measured.ratio_intervals["on/raw"]);
            measured.ratios.insert("on/off".into(), value);
            measured.ratio_intervals.insert("on/off".into(), ends);
            report.scenarios.push(measured);
        }
        report
    }

    #[test]
    fn every_switch_is_an_idea_with_a_measurement_of_its_own() {
        assert_eq!(IDEAS.map(|idea| idea.switch).to_vec(), uext4::SWITCH_NAMES.to_vec());
        for idea in IDEAS {
            let scenario = scenario::find(idea.scenario, idea.shape).unwrap();
            assert_eq!(scenario.switch, Some(idea.switch), "{}", idea.scenario);
        }
    }

    #[test]
    fn each_idea_is_a_line_that_fits() {
        let text = lines(&all(7.6));
        assert_eq!(text.lines().count(), 2 + IDEAS.len());
        assert!(
            text.contains("   7.6 ×  small reads skip the general request   1.00 µs, modelled disk"),
            "{text}"
        );
        for ratio in [1.0, 1.234, 33.3, 1961.0] {
            for line in lines(&all(ratio)).lines() {
                assert!(line.chars().count() <= WIDTH, "{line}");
            }
        }
        assert!(lines(&all(1.0)).contains("≈1.00 ×"), "no difference shows");
    }

    #[test]
    fn what_was_not_measured_is_no_line() {
        let mut report = all(2.0);
        report.scenarios.truncate(2);
        assert_eq!(ideas(&report).len(), 2);
        report.scenarios[0].ratios.clear();
        assert_eq!(ideas(&report).iter().map(|worth| worth.measurement).collect::<Vec<_>>(), [1]);
        report.scenarios.clear();
        assert_eq!(lines(&report), "");
    }

    #[test]
    fn a_time_has_two_or_three_digits() {
        assert_eq!(
            [21.4, 1_609.9, 52_331.0, 2_386_982.0].map(time),
            ["21 ns", "1.61 µs", "52 µs", "2.39 ms"]
        );
    }
}
