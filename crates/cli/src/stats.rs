//! `uext4 stats`: what the server of a mount counts, as it tells it in Prometheus' text.

use crate::args::{Globals, JsonArgs};
use crate::error::CliError;
use crate::out::Out;
use crate::text;
use crate::umount::served;
use clap::{Args, ValueHint};
use serde::Serialize;
use serde_json::Number;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;
use uext4_fuse::{MountEntry, Server};

/// `uext4 stats`.
#[derive(Args)]
#[command(after_long_help = "\
Shows a screen that refreshes each second, until it is interrupted or the mount ends: the first with everything since
the mount began, each later one with what came since the screen before. If standard output is no terminal, one screen.

Latencies are those of the server, from reading a request to its answer. p50 and p99 are exact to a fifth. Only root and
the user of the server may see them. With `-o stats=SOCKET` the server has the same for Prometheus on a socket (also
by HTTP: curl --unix-socket SOCKET http://localhost/metrics).")]
pub struct StatsArgs {
    /// The mount point.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    /// One screen, of everything since the mount began.
    #[arg(long)]
    pub once: bool,
    /// Seconds between two screens.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub interval: u64,
    /// The text for Prometheus, once.
    #[arg(long, conflicts_with_all = ["once", "json"])]
    pub prometheus: bool,
    /// The output format.
    #[command(flatten)]
    pub json: JsonArgs,
}

/// Requests of one kind.
#[derive(Debug, Clone, Default, PartialEq)]
struct Requests {
    count: u64,
    errors: u64,
    seconds: f64,
    /// Upper bounds in seconds, and how many took no longer.
    latencies: Vec<(f64, u64)>,
}

/// What a server has told.
#[derive(Debug, Clone, Default, PartialEq)]
struct Told {
    requests: BTreeMap<String, Requests>,
    volume: BTreeMap<String, u64>,
    /// The metrics of each cache, without what is common to their names.
    caches: BTreeMap<String, BTreeMap<String, u64>>,
    /// Metrics with one value.
    values: BTreeMap<String, Number>,
}

#[derive(Serialize)]
struct JsonStats<'t> {
    device: String,
    values: &'t BTreeMap<String, Number>,
    requests: BTreeMap<&'t str, JsonRequests>,
    caches: &'t BTreeMap<String, BTreeMap<String, u64>>,
    volume: &'t BTreeMap<String, u64>,
}

#[derive(Serialize)]
struct JsonRequests {
    count: u64,
    errors: u64,
    seconds: f64,
    p50_seconds: Option<f64>,
    p99_seconds: Option<f64>,
}

/// Runs it.
pub fn run(args: &StatsArgs, globals: &Globals) -> Result<(), CliError> {
    let mount = served(&args.directory)?;
    let told = ask(&mount, &args.directory)?;
    if args.prometheus {
        return crate::out::print(told.as_bytes());
    }
    let mut last = Told::parse(&told);
    let mut out = Out::new();
    if globals.json {
        out.json(&last.json(&mount))?;
        return out.finish();
    }
    let live = !args.once && io::stdout().is_terminal();
    last.screen(&Told::default(), None, &mount, live, &mut out)?;
    out.flush()?;
    if !live {
        return out.finish();
    }
    loop {
        std::thread::sleep(Duration::from_secs(args.interval));
        // The mount is gone, which is the end.
        let Ok(told) = ask(&mount, &args.directory) else { return out.finish() };
        let now = Told::parse(&told);
        now.screen(&last, Some(args.interval), &mount, live, &mut out)?;
        out.flush()?;
        last = now;
    }
}

/// What the server tells.
fn ask(mount: &MountEntry, directory: &Path) -> Result<String, CliError> {
    let failed = |error: io::Error| CliError::host(directory.as_os_str(), "ask the server", &error);
    match Server::of(mount).map_err(failed)? {
        Some(server) => server.metrics().map_err(failed),
        None => Err(CliError::failed(
            directory.as_os_str(),
            "no server: it is gone, or no uext4, or in another network name space",
            libc::ENOTCONN,
        )),
    }
}

/// The value of a label, and what is before the labels.
fn named<'l>(metric: &'l str, label: &str) -> Option<&'l str> {
    let (_, rest) = metric.split_once(&format!("{label}=\""))?;
    rest.split('"').next()
}

impl Told {
    fn parse(text: &str) -> Told {
        let mut told = Told::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((metric, value)) = line.rsplit_once(' ') else { continue };
            let Some((name, labels)) = metric.split_once('{') else {
                if let Ok(value) = value.parse() {
                    told.values.insert(metric.to_owned(), value);
                }
                continue;
            };
            if let (Some(counter), Ok(value)) = (named(labels, "counter"), value.parse()) {
                told.volume.insert(counter.to_owned(), value);
            }
            if let (Some(cache), Ok(value), Some(metric)) =
                (named(labels, "cache"), value.parse(), name.strip_prefix("uext4_cache_"))
            {
                let metric = metric.trim_end_matches("_total").to_owned();
                told.caches.entry(cache.to_owned()).or_default().insert(metric, value);
            }
            let Some(kind) = named(labels, "kind") else { continue };
            let requests = told.requests.entry(kind.to_owned()).or_default();
            let whole = value.parse().unwrap_or_default();
            match name {
                "uext4_request_seconds_count" => requests.count = whole,
                "uext4_request_errors_total" => requests.errors = whole,
                "uext4_request_seconds_sum" => requests.seconds = value.parse().unwrap_or_default(),
                "uext4_request_seconds_bucket" => {
                    let bound = named(labels, "le").and_then(|bound| bound.parse().ok());
                    requests.latencies.push((bound.unwrap_or(f64::INFINITY), whole));
                }
                _ => {}
            }
        }
        told
    }

    fn json<'t>(&'t self, mount: &MountEntry) -> JsonStats<'t> {
        let requests = self.requests.iter().map(|(kind, found)| {
            let (p50_seconds, p99_seconds) = (found.quantile(0.5), found.quantile(0.99));
            let Requests { count, errors, seconds, .. } = *found;
            (kind.as_str(), JsonRequests { count, errors, seconds, p50_seconds, p99_seconds })
        });
        JsonStats {
            device: mount.source.to_string_lossy().into_owned(),
            values: &self.values,
            requests: requests.collect(),
            caches: &self.caches,
            volume: &self.volume,
        }
    }

    /// Prints what came since `before`, which was `seconds` ago.
    fn screen(
        &self,
        before: &Told,
        seconds: Option<u64>,
        mount: &MountEntry,
        clear: bool,
        out: &mut Out,
    ) -> Result<(), CliError> {
        if clear {
            out.bytes(b"\x1b[H\x1b[2J")?;
        }
        let since = seconds.map_or("since the mount began".into(), |seconds| format!("in {seconds} s"));
        let source = text::visible(mount.source.as_encoded_bytes());
        writeln!(out, "{source} on {}, {since}", mount.point_text())?;
        writeln!(
            out,
            "process {}, {} threads ({} wait), {} of memory, {} descriptors; {} files known, {} open",
            self.value("uext4_process_id"),
            self.value("uext4_threads"),
            self.value("uext4_threads_waiting"),
            text::human(self.value("process_resident_memory_bytes")),
            self.value("process_open_fds"),
            self.value("uext4_nodes"),
            self.value("uext4_open_files"),
        )?;
        let layers = self.values.iter().filter(|(_, holds)| holds.as_u64() == Some(1));
        let layers: Vec<_> = layers.filter_map(|(name, _)| name.strip_prefix("uext4_sandbox_")).collect();
        let sandbox = if layers.is_empty() { "off".into() } else { layers.join(", ") };
        let rings = self.values.get("uext4_uring").and_then(serde_json::Number::as_u64) == Some(1);
        writeln!(out, "transport: {}; sandbox: {sandbox}", if rings { "io_uring" } else { "/dev/fuse" })?;
        self.screen_volume(before, out)?;
        writeln!(
            out,
            "{:16}{:>12}{:>10}{:>11}{:>11}{:>11}",
            "request", "count", "errors", "mean", "p50", "p99"
        )?;
        for (kind, found) in &self.requests {
            let new = found.since(before.requests.get(kind));
            if new.count > 0 {
                let mean = Some(new.seconds / new.count as f64);
                let [mean, p50, p99] = [mean, new.quantile(0.5), new.quantile(0.99)].map(duration);
                writeln!(out, "{kind:16}{:>12}{:>10}{mean:>11}{p50:>11}{p99:>11}", new.count, new.errors)?;
            }
        }
        writeln!(out, "\n{:40}{:>12}", "volume", "count")?;
        for (name, value) in &self.volume {
            let new = value.saturating_sub(before.volume.get(name).copied().unwrap_or_default());
            if new > 0 {
                writeln!(out, "{name:40}{new:>12}")?;
            }
        }
        Ok(())
    }
}

impl Told {
    /// A metric with one value; 0 if it was not told.
    fn value(&self, name: &str) -> f64 {
        self.values.get(name).and_then(Number::as_f64).unwrap_or_default()
    }

    /// Space, commits since `before`, and caches.
    fn screen_volume(&self, before: &Told, out: &mut Out) -> Result<(), CliError> {
        if self.values.contains_key("uext4_free_bytes") {
            writeln!(
                out,
                "free: {} of {}, {} of {} inodes",
                text::human(self.value("uext4_free_bytes")),
                text::human(self.value("uext4_size_bytes")),
                self.value("uext4_free_inodes"),
                self.value("uext4_inodes"),
            )?;
        }
        let new = |name: &str| (self.value(name) - before.value(name)).max(0.0);
        let commits = new("uext4_commits_total");
        write!(out, "commits: {commits}, {} blocks", new("uext4_commit_blocks_total"))?;
        if commits > 0.0 {
            let mean = duration(Some(new("uext4_commit_seconds_total") / commits));
            let last = duration(Some(self.value("uext4_commit_last_seconds")));
            write!(out, ", mean {mean}, last {last}")?;
        }
        writeln!(
            out,
            "; {} of late writes and {} of metadata wait\n",
            text::human(self.value("uext4_late_write_bytes")),
            text::human(self.value("uext4_metadata_waiting_bytes")),
        )?;
        writeln!(
            out,
            "{:16}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}",
            "cache", "entries", "bytes", "at most", "hits", "misses", "evictions"
        )?;
        for (name, cache) in &self.caches {
            let value = |metric: &str| cache.get(metric).copied().unwrap_or_default();
            let old = before.caches.get(name);
            let new = |metric: &str| {
                value(metric).saturating_sub(old.and_then(|old| old.get(metric).copied()).unwrap_or_default())
            };
            writeln!(
                out,
                "{name:16}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}",
                value("entries"),
                text::human(value("bytes") as f64),
                text::human(value("budget_bytes") as f64),
                new("hits"),
                new("misses"),
                new("evictions"),
            )?;
        }
        writeln!(out)?;
        Ok(())
    }
}

impl Requests {
    fn since(&self, before: Option<&Requests>) -> Requests {
        let Some(before) = before else { return self.clone() };
        let earlier = |bucket: usize| before.latencies.get(bucket).map_or(0, |found| found.1);
        let latencies = self.latencies.iter().enumerate();
        Requests {
            count: self.count.saturating_sub(before.count),
            errors: self.errors.saturating_sub(before.errors),
            seconds: (self.seconds - before.seconds).max(0.0),
            latencies: latencies
                .map(|(bucket, &(bound, count))| (bound, count.saturating_sub(earlier(bucket))))
                .collect(),
        }
    }

    /// The latency that this part of the requests did not exceed, in seconds, interpolated between bounds.
    fn quantile(&self, part: f64) -> Option<f64> {
        let all = self.latencies.last().filter(|(_, count)| *count > 0)?.1 as f64;
        let (mut lower, mut below) = (0.0, 0);
        for &(bound, count) in &self.latencies {
            if count as f64 >= all * part && count > below {
                let share = (all * part - below as f64) / (count - below) as f64;
                return Some(if bound.is_finite() { lower + (bound - lower) * share } else { lower });
            }
            (lower, below) = (bound, count);
        }
        None
    }
}

/// Seconds with three digits.
fn duration(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds else { return String::new() };
    match seconds {
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP x y\nuext4_threads 4\n\
        uext4_request_seconds_bucket{kind=\"READ\",le=\"0.001\"} 50\n\
        uext4_request_seconds_bucket{kind=\"READ\",le=\"0.002\"} 98\n\
        uext4_request_seconds_bucket{kind=\"READ\",le=\"+Inf\"} 100\n\
        uext4_request_seconds_sum{kind=\"READ\"} 0.5\nuext4_request_seconds_count{kind=\"READ\"} 100\n\
        uext4_request_errors_total{kind=\"READ\"} 3\nuext4_commit_seconds_total 0.25\n\
        uext4_cache_hits_total{cache=\"names\"} 7\nuext4_cache_bytes{cache=\"names\"} 90\n\
        uext4_volume_total{counter=\"commits\"} 9\nnonsense\n";

    #[test]
    fn text_for_prometheus_is_read() {
        let told = Told::parse(TEXT);
        assert_eq!((told.values["uext4_threads"].as_u64(), told.volume["commits"]), (Some(4), 9));
        assert_eq!(told.value("uext4_commit_seconds_total"), 0.25);
        assert_eq!((told.caches["names"]["hits"], told.caches["names"]["bytes"]), (7, 90));
        let reads = &told.requests["READ"];
        assert_eq!((reads.count, reads.errors, reads.seconds), (100, 3, 0.5));
        assert_eq!((reads.quantile(0.5), reads.quantile(0.99)), (Some(0.001), Some(0.002)));
        assert_eq!(reads.quantile(0.25), Some(0.0005));
        let new = reads.since(Some(reads));
        assert_eq!((new.count, new.quantile(0.5)), (0, None));
        assert_eq!(reads.since(None), *reads);
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!([2e-6, 0.0123, 2.5].map(|s| duration(Some(s))), ["2.0 µs", "12.30 ms", "2.50 s"]);
    }
}
