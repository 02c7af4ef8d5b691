//! What can be said to `uext4 bench`.

use super::arm::Arm;
use super::scenario;
use crate::args::SwitchArgs;
use crate::text;
use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;

const METHOD: &str = "\
Arms: `on` all switches on, `off` only the scenario's switch off, `all-off`, `raw` the same places of the same
device with the same buffers, threads and queue code but no file system, `kernel` (--kernel, as root, on
block devices) the kernel's ext4 mounted from that device.
Arms take turns in slices of at most 250 ms in one process; a ratio is the median of at least 40 paired ratios
with a 95 % interval of ranks. Without arguments everything runs on volumes that bench makes in /dev/shm and
removes: about two minutes. On a given device only files named uext4-bench.N are written, and their contents
are lost.";

/// `uext4 bench`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = METHOD)]
pub struct BenchArgs {
    /// What to measure; everything without one.
    #[arg(value_name = "SCENARIO", value_parser = PossibleValuesParser::new(scenario::names()))]
    pub scenarios: Vec<String>,
    /// Measure here, on the files uext4-bench.N of the directory (the root directory without a path).
    #[arg(long, value_name = "DEVICE[:/dir]", value_hint = ValueHint::FilePath)]
    pub device: Option<OsString>,
    /// Bytes that the requests are spread over, in all files together; suffixes k, m, g count in powers of
    /// 1024.
    #[arg(long, value_name = "N", value_parser = text::parse_size)]
    pub size: Option<u64>,
    /// Threads.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: Option<u16>,
    /// Requests in flight per thread, in scenarios that use queues.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32768))]
    pub qd: Option<u32>,
    /// Seconds measured of each arm of each scenario [default: 2].
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub seconds: Option<f64>,
    /// Slices of each arm, 40 to 100000; their length is S/N, at most 250 ms (then there are more of them)
    /// [default: 40].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(40..=100_000))]
    pub rounds: Option<u32>,
    /// Which arms run.
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    #[arg(default_values_t = [Arm::On, Arm::Off, Arm::Raw])]
    pub arms: Vec<Arm>,
    /// Measure the kernel's ext4 too, on the same block device (root).
    #[arg(long)]
    pub kernel: bool,
    /// Format the device and make the files first: everything on it is lost.
    #[arg(long, requires = "device")]
    pub mkfs: bool,
    /// Results as JSON: on standard output instead of the table, or in FILE beside it. `--json FILE` works too,
    /// unless FILE is the name of a scenario.
    #[arg(long = "json", id = "json_file", value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(num_args = 0..=1, default_missing_value = "-")]
    #[arg(value_parser = OsStringValueParser::new().try_map(json_file))]
    pub json: Option<PathBuf>,
    /// Write a page with charts here.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,
    /// Tell what changed since an earlier --json.
    #[arg(long, value_name = "OLD.json", value_hint = ValueHint::FilePath)]
    pub compare: Option<PathBuf>,
    /// Check the promised ratios instead: a table of floor, goal and measurement; exit 1 if one falls short.
    #[arg(long, conflicts_with_all = ["scenarios", "device", "size", "threads", "qd"])]
    #[arg(conflicts_with_all = ["arms", "compare", "switches"])]
    pub floors: bool,
    /// The setting that arm `on` uses, if not everything on; the other arms switch off from there.
    #[command(flatten)]
    pub switches: SwitchArgs,
    /// Opens a volume and prints time and memory: the child process of --floors.
    #[arg(long, value_name = "IMAGE", hide = true, exclusive = true)]
    pub open_probe: Option<PathBuf>,
}

/// Longest slice, seconds.
pub const SLICE_MAX: f64 = 0.25;
/// Shortest slice, seconds: below it the start of the threads would be what is measured.
const SLICE_MIN: f64 = 0.001;

/// Behind `--json`, a scenario's name could be meant as one.
fn json_file(file: OsString) -> Result<PathBuf, String> {
    match file.to_str() {
        Some(name) if scenario::names().contains(&name) => Err(format!(
            "it could be the scenario: name scenarios before --json, and a file of this name ./{name}"
        )),
        _ => Ok(PathBuf::from(file)),
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.04..=86400.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0.04 to 86400".into()),
    }
}

/// How long and how often each arm is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// Slices of each arm.
    pub rounds: u32,
    /// Length of one, seconds.
    pub slice: f64,
}

impl Timing {
    /// `seconds` in `rounds` slices; more rounds if the slices would be too long.
    pub fn new(seconds: f64, rounds: u32) -> Self {
        let rounds = rounds.max((seconds / SLICE_MAX).ceil() as u32);
        Timing { rounds, slice: (seconds / f64::from(rounds)).clamp(SLICE_MIN, SLICE_MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn parsed(line: &str) -> Result<BenchArgs, clap::Error> {
        use clap::Parser;
        Line::try_parse_from(line.split(' ')).map(|line| line.bench)
    }

    #[test]
    fn json_is_a_flag_and_may_name_a_file() {
        for (line, file, scenarios) in [
            ("bench --json", Some("-"), 0),
            ("bench --json -", Some("-"), 0),
            ("bench seq-read --json", Some("-"), 1),
            ("bench --json --html x", Some("-"), 0),
            ("bench --json=out.json seq-read", Some("out.json"), 1),
            ("bench --json out.json seq-read", Some("out.json"), 1),
            ("bench --json ./seq-read", Some("./seq-read"), 0),
            ("bench seq-read", None, 1),
        ] {
            let args = parsed(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(args.json.as_deref(), file.map(std::path::Path::new), "{line}");
            assert_eq!(args.scenarios.len(), scenarios, "{line}");
        }
        let refused = parsed("bench --json seq-read").err().unwrap().to_string();
        assert!(refused.contains("could be the scenario"), "{refused}");
    }

    #[test]
    fn help_tells_the_range_of_rounds() {
        let help = <Line as clap::CommandFactory>::command().render_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("40 to 100000"), "{help}");
        assert!(parsed("bench --rounds 100000").is_ok() && parsed("bench --rounds 100001").is_err());
        assert!(parsed("bench --rounds 40").is_ok() && parsed("bench --rounds 39").is_err());
    }

    #[test]
    fn slices_stay_short_however_long_it_measures() {
        assert_eq!(Timing::new(2.0, 40), Timing { rounds: 40, slice: 0.05 });
        assert_eq!(Timing::new(10.0, 40), Timing { rounds: 40, slice: 0.25 });
        assert_eq!(Timing::new(60.0, 40), Timing { rounds: 240, slice: 0.25 });
        assert_eq!(Timing::new(0.04, 100), Timing { rounds: 100, slice: 0.001 });
        for bad in ["0", "-1", "x", "nan", "inf", "1e9"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
