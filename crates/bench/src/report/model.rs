//! The JSON of `--json` (version 1), written and read.

use super::{compare, html, ideas, table};
use crate::arm::Arm;
use crate::error::{BenchError, Doing, Result};
use crate::load::Load;
use crate::machine::Machine;
use crate::scenario;
use crate::statistics::Ratio;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// 1.
    pub version: u32,
    /// Where it was measured.
    pub machine: Machine,
    /// Processor use by others before measuring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_before: Option<Load>,
    /// In the order measured.
    pub scenarios: Vec<Measured>,
    /// Scenarios ruled out by the given device, a sentence each. Not in JSON.
    #[serde(skip)]
    pub left_out: Vec<String>,
}

/// One scenario on one device at one depth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Its name.
    pub scenario: String,
    /// Which of its shapes, if it has several and this is not the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
    /// The switch that `off` differs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<String>,
    /// The device.
    pub device: String,
    /// The device engine.
    pub engine: String,
    /// Completions were polled.
    pub polled: bool,
    /// Seconds measured of each arm.
    pub seconds: f64,
    /// Slices of each arm.
    pub rounds: u32,
    /// Arms that ran.
    pub arms: Vec<MeasuredArm>,
    /// Medians of paired ratios by name. An arm that did not run has none.
    pub ratios: BTreeMap<String, f64>,
    /// How sure they are.
    pub ratio_intervals: BTreeMap<String, Interval>,
    /// The same of processor time for each request: below 1, `on` takes less.
    #[serde(default)]
    pub cpu_ratios: BTreeMap<String, f64>,
    /// How sure they are.
    #[serde(default)]
    pub cpu_ratio_intervals: BTreeMap<String, Interval>,
    /// Processor use by others during the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Result of `e2fsck -fn` after all arms.
    pub e2fsck: String,
    /// Remarks on the numbers.
    pub notes: Vec<String>,
}

/// One arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredArm {
    /// Its name.
    pub arm: String,
    /// Threads.
    pub threads: usize,
    /// Requests in flight per thread; 1 with blocking calls.
    pub qd: u32,
    /// Bytes of a request.
    pub block_size: u32,
    /// Reads done in all its slices.
    pub reads: u64,
    /// Writes done in all its slices.
    pub writes: u64,
    /// Writes of unmeasured threads, in all its slices; not part of any rate.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub other_writes: u64,
    /// Requests per second, all threads together.
    pub iops: f64,
    /// 10⁶ bytes per second.
    pub mb_s: f64,
    /// Elapsed time for each request, all threads together.
    pub ns_per_op: f64,
    /// Processor time of the process for each request.
    pub cpu_ns_per_op: f64,
    /// Latencies, of one request in 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// 99 % were faster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// 99.9 % were faster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999_us: Option<f64>,
    /// The library's counters; empty for arms without it.
    pub counters: BTreeMap<String, u64>,
}

/// The 95 % interval of a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Pairs.
    pub pairs: usize,
    /// Narrow enough to be useful: at most 0.05 (of the ratio, if it is above 1).
    pub resolved: bool,
    /// Wholly above 1 or wholly below, so that there is a difference, whatever its size.
    #[serde(default)]
    pub excludes_one: bool,
}

impl Interval {
    fn of(ratio: &Ratio) -> Self {
        let &Ratio { low, high, pairs, .. } = ratio;
        Interval { low, high, pairs, resolved: ratio.resolved(), excludes_one: low > 1.0 || high < 1.0 }
    }
}

/// The medians, in the shape of the JSON.
pub fn medians(ratios: &BTreeMap<String, Ratio>) -> BTreeMap<String, f64> {
    ratios.iter().map(|(name, ratio)| (name.clone(), ratio.median)).collect()
}

/// The intervals, in the shape of the JSON.
pub fn intervals(ratios: &BTreeMap<String, Ratio>) -> BTreeMap<String, Interval> {
    ratios.iter().map(|(name, ratio)| (name.clone(), Interval::of(ratio))).collect()
}

impl Measured {
    /// One arm by name.
    pub fn arm(&self, arm: Arm) -> Option<&MeasuredArm> {
        self.arms.iter().find(|measured| measured.arm == arm.name())
    }

    /// A ratio of rates by name.
    pub fn ratio(&self, name: &str) -> Option<(f64, &Interval)> {
        Some((*self.ratios.get(name)?, self.ratio_intervals.get(name)?))
    }

    /// A ratio of processor times by name.
    pub fn cpu_ratio(&self, name: &str) -> Option<(f64, &Interval)> {
        Some((*self.cpu_ratios.get(name)?, self.cpu_ratio_intervals.get(name)?))
    }

    /// Name and shape, for people.
    pub fn title(&self) -> String {
        scenario::title(&self.scenario, self.shape.as_deref())
    }

    /// Threads and depth of its arms, which are all alike.
    pub fn lanes(&self) -> (usize, u32) {
        self.arms.first().map_or((0, 0), |arm| (arm.threads, arm.qd))
    }

    /// Whether both measured the same.
    pub(crate) fn same_as(&self, other: &Measured) -> bool {
        let key = |measured: &Measured| (measured.title(), measured.device.clone(), measured.lanes());
        key(self) == key(other)
    }
}

/// A key that says nothing is left out.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Report {
    /// Parses an earlier report.
    pub fn read(path: &Path) -> Result<Report> {
        let text = std::fs::read_to_string(path).doing(|| format!("read {}", path.display()))?;
        let report: Report = serde_json::from_str(&text).map_err(|error| {
            BenchError::failed(format!("{} is not JSON of `uext4 bench`: {error}", path.display()))
        })?;
        if report.version != 1 {
            return Err(BenchError::failed(format!("{} has version {}", path.display(), report.version)));
        }
        Ok(report)
    }

    /// Everything for a terminal of 80 columns.
    pub fn to_text(&self) -> String {
        let left_out = self.left_out.iter().map(|line| format!("{line}\n"));
        table::render(self) + &left_out.collect::<String>()
    }

    /// The gain of each of the five ideas measured with and without it, a line each.
    pub fn ideas_text(&self) -> String {
        ideas::lines(self)
    }

    /// What changed since an earlier one, for a terminal of 80 columns.
    pub fn changes_since(&self, old: &Report) -> String {
        compare::render(old, self)
    }

    /// A page with charts, which fetches nothing.
    pub fn to_html(&self) -> Result<String> {
        html::render(self)
    }

    /// As JSON, indented, with a line end.
    pub fn to_json(&self) -> Result<String> {
        let text = serde_json::to_string_pretty(self);
        text.map(|text| text + "\n").map_err(|error| BenchError::failed(error.to_string()))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A report with one scenario and the arms `on` and `raw`.
    pub fn sample(iops: f64, ratio: f64) -> Report {
        let arm = |name: &str, iops: f64| MeasuredArm {
            arm: name.into(),
            threads: 16,
            qd: 1,
            block_size: 4096,
            reads: 7,
            writes: 0,
            other_writes: 0,
            iops,
            mb_s: iops * 4096.0 / 1e6,
            ns_per_op: 1e9 / iops,
            cpu_ns_per_op: 1234.0,
            p50_us: Some(1.0),
            p99_us: Some(20.0),
            p999_us: Some(400.0),
            counters: BTreeMap::from([("simple_reads".to_owned(), 7)]),
        };
        let interval = Interval {
            low: ratio - 0.01,
            high: ratio + 0.01,
            pairs: 40,
            resolved: true,
            excludes_one: ratio < 0.99,
        };
        Report {
            version: 1,
            machine: Machine::this(),
            load_before: None,
            left_out: Vec::new(),
            scenarios: vec![Measured {
                scenario: "overwrite-randrw".into(),
                shape: None,
                switch: Some("overwrite-no-transaction".into()),
                device: "zram".into(),
                engine: "file".into(),
                polled: false,
                seconds: 2.0,
                rounds: 40,
                arms: vec![arm("on", iops), arm("raw", iops / ratio)],
                ratios: BTreeMap::from([("on/raw".to_owned(), ratio)]),
                ratio_intervals: BTreeMap::from([("on/raw".to_owned(), interval)]),
                cpu_ratios: BTreeMap::new(),
                cpu_ratio_intervals: BTreeMap::new(),
                load: None,
                e2fsck: "clean".into(),
                notes: vec!["a note".into()],
            }],
        }
    }

    #[test]
    fn json_of_earlier_versions_is_read() {
        let mut value = serde_json::to_value(sample(500_000.0, 0.5)).unwrap();
        let scenario = value["scenarios"][0].as_object_mut().unwrap();
        for key in ["switch", "cpu_ratios", "cpu_ratio_intervals"] {
            assert!(scenario.remove(key).is_some(), "{key}");
        }
        scenario["ratio_intervals"]["on/raw"].as_object_mut().unwrap().remove("excludes_one").unwrap();
        let report: Report = serde_json::from_value(value).unwrap();
        assert_eq!(report.scenarios[0].ratio("on/raw").unwrap().0, 0.5);
    }

    #[test]
    fn json_has_the_contract_and_survives() {
        // Numbers that survive decimal notation.
        let report = sample(500_000.0, 0.5);
        let text = report.to_json().unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["version"], 1);
        let scenario = &value["scenarios"][0];
        for key in ["scenario", "device", "engine", "polled", "seconds", "rounds", "arms", "ratios"] {
            assert!(!scenario[key].is_null(), "{key}");
        }
        for key in [
            "arm",
            "threads",
            "qd",
            "block_size",
            "iops",
            "mb_s",
            "ns_per_op",
            "cpu_ns_per_op",
            "p50_us",
            "p99_us",
            "p999_us",
            "counters",
        ] {
            assert!(!scenario["arms"][0][key].is_null(), "{key}");
        }
        assert_eq!(scenario["ratios"]["on/raw"], 0.5);
        assert_eq!(scenario["ratio_intervals"]["on/raw"]["excludes_one"], true);
        assert!(scenario.get("shape").is_none() && scenario.get("load").is_none());
        assert!(scenario["ratios"].get("on/kernel").is_none(), "an absent arm is an absent key");
    }
}
