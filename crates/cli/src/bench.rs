//! `uext4 bench`: runs the measurements of `uext4-bench`, and prints and writes the results.

use crate::args::{Globals, SwitchArgs, choice};
use crate::error::CliError;
use crate::out::print;
use crate::text;
use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use uext4::device::describe;
use uext4_bench::{
    Arm, BenchError, Event, Probe, ROUNDS, Report, SECONDS, Settings, Timing, floor_parts, scenario_names,
};

const METHOD: &str = "\
Arms: `on` all switches on, `off` only the scenario's switch off, `all-off`, `raw` the same places of the same
device with the same buffers, threads and queue code but no file system, `kernel` (--kernel, as root, on
block devices) the kernel's ext4 mounted from that device.
Arms take turns in slices of at most 250 ms in one process; a ratio is the median of at least 40 paired ratios
with a 95 % interval of ranks. Without arguments everything runs on volumes that bench makes in /dev/shm and
removes: about two minutes; `metadata`, which takes as long again, runs only by name. On a given device it measures
on files named uext4-bench.N. Existing ones are overwritten and kept; the others are created, and removed even if
bench fails.";

/// `uext4 bench`.
#[derive(Args)]
#[command(after_long_help = METHOD)]
pub struct BenchArgs {
    /// Scenarios to measure; all but `metadata` by default.
    #[arg(value_name = "SCENARIO", value_parser = PossibleValuesParser::new(scenario_names()))]
    pub scenarios: Vec<String>,
    /// Measure here, on files uext4-bench.N in this directory (the root directory without a path).
    #[arg(long, value_name = "DEVICE[:/dir]", value_hint = ValueHint::FilePath)]
    pub device: Option<OsString>,
    /// Total size of the files that the requests are spread over.
    #[arg(long, value_name = "N", value_parser = text::parse_size)]
    pub size: Option<u64>,
    /// Files that each shape of `metadata` makes, at least 320 [default: 100000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(320..=10_000_000))]
    pub files: Option<u64>,
    /// Threads.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: Option<u16>,
    /// Requests in flight per thread, in scenarios that use queues.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32768))]
    pub qd: Option<u32>,
    /// Seconds to measure each arm of each scenario [default: 2].
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub seconds: Option<f64>,
    /// Slices of each arm, 40 to 100000, each S/N long but at most 250 ms (if S/N is longer, more slices are run)
    /// [default: 40].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(40..=100_000))]
    pub rounds: Option<u32>,
    /// Arms to run.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["on", "off", "raw"])]
    #[arg(value_parser = choice(ARMS.map(|(arm, what)| (arm.name(), arm, what))))]
    pub arms: Vec<Arm>,
    /// Also measure the kernel's ext4 on the same block device (root).
    #[arg(long)]
    pub kernel: bool,
    /// Format the device first: everything on it is lost. Without -F, a device with recognized contents is refused.
    #[arg(long, requires = "device")]
    pub mkfs: bool,
    /// Format the device whatever it contains.
    #[arg(short = 'F', long, requires = "mkfs")]
    pub force: bool,
    /// Results as JSON: on standard output instead of the table, or in FILE in addition to it. `--json FILE` works too,
    /// unless FILE is the name of a scenario.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(num_args = 0..=1, default_missing_value = "-")]
    #[arg(value_parser = OsStringValueParser::new().try_map(json_file))]
    pub json: Option<PathBuf>,
    /// Write an HTML page with charts to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,
    /// Show what changed since an earlier --json.
    #[arg(long, value_name = "OLD.json", value_hint = ValueHint::FilePath)]
    pub compare: Option<PathBuf>,
    /// Check the promised ratios instead: a table of floor, goal and measurement; exit 1 if one falls short.
    #[arg(long, conflicts_with_all = ["scenarios", "device", "size", "files", "threads", "qd"])]
    #[arg(conflicts_with_all = ["arms", "compare", "switches"])]
    pub floors: bool,
    /// Check only these promises.
    #[arg(long, value_name = "PART", requires = "floors", value_delimiter = ',')]
    #[arg(value_parser = PossibleValuesParser::new(floor_parts()))]
    pub only: Vec<String>,
    /// The switches of arm `on`, if not all on; the other arms switch off from there.
    #[command(flatten)]
    pub switches: SwitchArgs,
    /// Opens a volume and prints time and memory: a child process of --floors.
    #[arg(long, value_name = "IMAGE", hide = true, exclusive = true)]
    pub open_probe: Option<PathBuf>,
    /// Writes 10 GiB into an empty volume and prints time and memory: a child process of --floors.
    #[arg(long, value_name = "DEVICE", hide = true, exclusive = true)]
    pub first_writes_probe: Option<PathBuf>,
    /// Makes a million files in an empty volume and prints time and memory: a child process of --floors.
    #[arg(long, value_name = "IMAGE", hide = true, exclusive = true)]
    pub make_files_probe: Option<PathBuf>,
}

/// The arms that can be requested, with their help.
const ARMS: [(Arm, &str); 4] = [
    (Arm::On, "Every switch on"),
    (Arm::Off, "The scenario's switch off (every switch, if the scenario has no single one)"),
    (Arm::AllOff, "Every switch off"),
    (Arm::Raw, "The device without the file system"),
];

/// Refuses a scenario's name after `--json`: it could be meant as the scenario.
fn json_file(file: OsString) -> Result<PathBuf, String> {
    match file.to_str() {
        Some(name) if scenario_names().contains(&name) => Err(format!(
            "it could be the scenario: put scenarios before --json, and write a file of this name as ./{name}"
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

/// Runs it.
pub fn run(args: &BenchArgs, globals: &Globals) -> Result<ExitCode, CliError> {
    if globals.watchers.trace.is_some() {
        return Err(CliError::usage("a traced measurement would measure the tracing: run bench by itself"));
    }
    let probes = [
        (Probe::Open, &args.open_probe),
        (Probe::FirstWrites, &args.first_writes_probe),
        (Probe::MakeFiles, &args.make_files_probe),
    ];
    for (probe, device) in probes {
        if let Some(device) = device {
            print((probe.run(device)? + "\n").as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    check_outputs(args)?;
    // Read first, so that a wrong file fails before two minutes of measurement.
    let old = args.compare.as_deref().map(Report::read).transpose()?;
    let timing = Timing::new(args.seconds.unwrap_or(SECONDS), args.rounds.unwrap_or(ROUNDS));
    let program = std::env::current_exe().map_err(|error| failed("find this program", &error))?;
    if !args.floors {
        let report = uext4_bench::run(&settings(args, timing, program), &mut watcher())?;
        tell(args, &report, old.as_ref())?;
        return Ok(ExitCode::SUCCESS);
    }
    let process = |probe: Probe, device: &Path| {
        let option = match probe {
            Probe::Open => "--open-probe",
            Probe::FirstWrites => "--first-writes-probe",
            Probe::MakeFiles => "--make-files-probe",
        };
        let mut command = Command::new(&program);
        command.args(["bench", option]).arg(device);
        command
    };
    let floors = uext4_bench::floors(timing, &args.only, &process, &mut watcher())?;
    tell(args, &floors.report, None)?;
    print(floors.to_text().as_bytes())?;
    Ok(if floors.are_kept() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn settings(args: &BenchArgs, timing: Timing, program: PathBuf) -> Settings {
    Settings {
        scenarios: args.scenarios.clone(),
        device: args.device.clone(),
        mkfs: args.mkfs,
        force: args.force,
        program,
        size: args.size,
        files: args.files,
        threads: args.threads,
        depth: args.qd,
        arms: args.arms.clone(),
        kernel: args.kernel,
        switches: args.switches.switches,
        timing,
    }
}

/// Shows warnings and, on a terminal, a bar on standard error.
fn watcher() -> impl FnMut(Event) {
    let mut bar = ProgressBar::hidden();
    move |event| match event {
        Event::Warning(warning) => eprintln!("uext4 bench: {warning}"),
        Event::Begin { title, turns } => {
            let style = ProgressStyle::with_template("{msg:30} [{bar:30}] {elapsed} of about {duration}");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ");
            let target = ProgressDrawTarget::stderr_with_hz(5);
            bar.finish_and_clear();
            bar = ProgressBar::with_draw_target(Some(turns), target).with_style(style).with_message(title);
        }
        Event::Turn => bar.inc(1),
    }
}

/// Fails early if the results cannot be written. Existing files keep their contents until there are results.
fn check_outputs(args: &BenchArgs) -> Result<(), CliError> {
    let json = args.json.as_deref().filter(|path| *path != Path::new("-"));
    for path in json.into_iter().chain(args.html.as_deref()) {
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(|error| failed(&format!("write {}", path.display()), &error))?;
    }
    Ok(())
}

fn tell(args: &BenchArgs, report: &Report, old: Option<&Report>) -> Result<(), CliError> {
    if let Some(path) = &args.html {
        write(path, &report.to_html()?)?;
    }
    match args.json.as_deref() {
        Some(path) if path == Path::new("-") => return print(report.to_json()?.as_bytes()),
        Some(path) => write(path, &report.to_json()?)?,
        None => {}
    }
    let changes = old.map_or_else(String::new, |old| report.changes_since(old));
    let page = args.html.as_ref().map_or_else(String::new, |path| format!("\n{}\n", path.display()));
    print((report.to_text() + &changes + &report.ideas_text() + &page).as_bytes())
}

fn write(path: &Path, text: &str) -> Result<(), CliError> {
    std::fs::write(path, text).map_err(|error| failed(&format!("write {}", path.display()), &error))
}

/// An error of the system while `doing` something.
fn failed(doing: &str, error: &io::Error) -> CliError {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    CliError::said(format!("{doing}: {}", describe(error)), errno)
}

impl From<BenchError> for CliError {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Usage(message) => CliError::usage(message),
            other => CliError::said(other.to_string(), other.errno()),
        }
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
    fn what_bench_does_not_know_is_refused() {
        for line in ["bench made-up", "bench metadata --files 319", "bench --floors seq-read"] {
            assert!(parsed(line).is_err(), "{line}");
        }
        for line in ["bench --rounds 39", "bench --mkfs", "bench --floors --files 1000"] {
            assert!(parsed(line).is_err(), "{line}");
        }
        for line in ["bench --only open", "bench --floors --only made-up"] {
            assert!(parsed(line).is_err(), "{line}");
        }
        assert_eq!(parsed("bench --floors --only append,open").unwrap().only, ["append", "open"]);
    }

    #[test]
    fn every_arm_that_can_be_asked_for_has_its_help() {
        assert_eq!(ARMS.map(|(arm, _)| arm), Arm::CHOICES);
        assert_eq!(parsed("bench --arms all-off,raw").unwrap().arms, [Arm::AllOff, Arm::Raw]);
    }

    #[test]
    fn seconds_are_a_sensible_number() {
        for bad in ["0", "-1", "x", "nan", "inf", "1e9"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
