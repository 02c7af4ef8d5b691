//! The text on standard output: one block for each measurement, no wider than a terminal.

use super::model::{Measured, MeasuredArm, Report};
use super::words::{cpu_verdict, rate_verdict, ratio, wrap};
use std::fmt::Write;

/// Columns of the narrowest usual terminal.
pub const WIDTH: usize = 80;

/// Ratios in this order.
const RATIOS: [&str; 7] =
    ["on/off", "on/all-off", "on/raw", "on/kernel", "on/one-extent", "on/no-dsync", "on/one-thread"];

/// The blocks and, below them, how to read them.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    for measured in &report.scenarios {
        block(&mut text, measured);
        text.push('\n');
    }
    push(
        &mut text,
        "Ratios are of requests per second, those marked cpu of processor time for each request: median of \
         paired slices [95 % interval]. Clear: the interval excludes 1. Not resolved: it is wider than 0.05.",
        0,
    );
    if let Some(warning) = report.load_before.and_then(|load| load.warning()) {
        push(&mut text, &format!("Before the first measurement: {warning}."), 0);
    }
    text
}

/// Adds a line, broken if need be.
fn push(text: &mut String, line: &str, indent: usize) {
    text.push_str(&wrap(line, WIDTH, indent));
    text.push('\n');
}

fn block(text: &mut String, measured: &Measured) {
    let (threads, qd) = measured.lanes();
    push(text, &format!("{} on {}", measured.title(), measured.device), 4);
    let threads = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    let block = measured.arms.first().map_or(0, |arm| arm.block_size);
    let block = if block == 0 { String::new() } else { format!(", {block} bytes") };
    let switch = measured.switch.as_ref().map_or_else(String::new, |name| format!(", switch {name}"));
    push(text, &format!("  {threads} × {qd}{block}{switch}"), 4);
    let header = ["kIOPS", "MB/s", "cpu-ns/op", "p50 µs", "p99 µs", "p999 µs"].map(str::to_owned);
    row(text, "arm", &header);
    for arm in &measured.arms {
        row(text, &arm.arm, &cells(arm));
    }
    for name in RATIOS {
        if let Some((median, interval)) = measured.ratio(name) {
            let shown = format!("  {name:<16} {:<24} {}", ratio(median, interval), rate_verdict(interval));
            push(text, shown.trim_end(), 4);
        }
        if let Some((median, interval)) = measured.cpu_ratio(name) {
            let name = format!("cpu {name}");
            let shown = format!("  {name:<16} {:<24} {}", ratio(median, interval), cpu_verdict(interval));
            push(text, shown.trim_end(), 4);
        }
    }
    for note in &measured.notes {
        push(text, &format!("  {note}"), 4);
    }
}

fn row(text: &mut String, name: &str, cells: &[String; 6]) {
    let [iops, mb, cpu, p50, p99, p999] = cells;
    // Writing to a string cannot fail.
    let _infallible = writeln!(text, "  {name:<10} {iops:>9} {mb:>8} {cpu:>10} {p50:>9} {p99:>9} {p999:>9}");
}

fn cells(arm: &MeasuredArm) -> [String; 6] {
    let latency = |value: Option<f64>| value.map_or_else(|| "–".into(), digits);
    let MeasuredArm { iops, mb_s, cpu_ns_per_op, p50_us, p99_us, p999_us, .. } = *arm;
    let [p50, p99, p999] = [p50_us, p99_us, p999_us].map(latency);
    [digits(iops / 1000.0), digits(mb_s), format!("{cpu_ns_per_op:.0}"), p50, p99, p999]
}

/// Significant digits only: a slow device does less than one thousand requests per second.
fn digits(value: f64) -> String {
    let places = if value < 10.0 { 3 } else { 1 };
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::sample;
    use super::*;

    #[test]
    fn shows_what_ran_and_nothing_else() {
        let text = render(&sample(500_000.0, 0.95));
        for part in ["overwrite-randrw", "zram", "16 threads × 1", "0.950 [0.940, 0.960]", "500.0", "a note"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(text.contains("clearly slower") && text.contains("switch overwrite-no-transaction"));
        assert!(!text.contains("on/kernel") && !text.contains("on/off"));
    }

    #[test]
    fn it_fits_a_terminal_whatever_the_device_is_called() {
        let mut report = sample(123_456_789.0, 12_345.678);
        let measured = &mut report.scenarios[0];
        measured.device = format!("mem:100M?{}", "latency=460us&flush_latency=2240us&".repeat(5));
        measured.notes.push("a note that says much ".repeat(9));
        measured.shape = Some("a-shape".into());
        let arm = MeasuredArm { arm: "one-extent".into(), p50_us: None, ..measured.arms[0].clone() };
        measured.arms.push(MeasuredArm { p99_us: Some(60_000_000.0), p999_us: Some(6e7), ..arm });
        for name in RATIOS {
            let wide = super::super::model::Interval {
                low: 0.8,
                high: 12_345.6,
                pairs: 40,
                resolved: false,
                excludes_one: false,
            };
            measured.ratios.insert(name.into(), 12_345.6);
            measured.ratio_intervals.insert(name.into(), wide);
            measured.cpu_ratios.insert(name.into(), 12_345.6);
            measured.cpu_ratio_intervals.insert(name.into(), wide);
        }
        let text = render(&report);
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{} columns: {line}", line.chars().count());
        }
        assert!(text.contains("cpu on/raw") && text.contains("not resolved"));
    }

    #[test]
    fn a_busy_machine_is_told() {
        let mut report = sample(1000.0, 1.0);
        assert!(!render(&report).contains("busy"));
        report.load_before = Some(crate::load::Load { others: 1.5, stolen: 0.0 });
        assert!(render(&report).contains("other processes took 1.5 processors"));
    }
}
