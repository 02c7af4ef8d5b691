//! The table on standard output.

use super::model::{Interval, Measured, Report};
use crate::bench::arm::Arm;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Columns of ratios.
const RATIOS: [&str; 4] = ["on/off", "on/raw", "on/kernel", "on/one-extent"];

/// The table and, below it, the notes.
pub fn render(report: &Report) -> String {
    let shown: Vec<&str> = RATIOS
        .into_iter()
        .filter(|&name| report.scenarios.iter().any(|measured| measured.ratios.contains_key(name)))
        .collect();
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    let mut header = vec!["scenario", "device", "threads × qd"];
    header.extend(&shown);
    header.extend(["kIOPS", "MB/s", "cpu-ns/op", "p50 µs", "p99 µs", "p999 µs"]);
    table.set_header(header);
    for measured in &report.scenarios {
        table.add_row(row(measured, &shown));
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n{}", notes(report))
}

fn row(measured: &Measured, ratios: &[&str]) -> Vec<String> {
    let (threads, qd) = measured.shape();
    let mut row = vec![measured.scenario.clone(), measured.device.clone(), format!("{threads} × {qd}")];
    row.extend(ratios.iter().map(|&name| {
        let median = measured.ratios.get(name);
        let interval = measured.ratio_intervals.get(name);
        median.zip(interval).map_or_else(|| "–".into(), |(median, interval)| ratio(*median, interval))
    }));
    let Some(on) = measured.arm(Arm::On).or_else(|| measured.arms.first()) else { return row };
    row.push(format!("{:.1}", on.iops / 1000.0));
    row.push(format!("{:.0}", on.mb_s));
    row.push(format!("{:.0}", on.cpu_ns_per_op));
    for latency in [on.p50_us, on.p99_us, on.p999_us] {
        row.push(latency.map_or_else(|| "–".into(), |latency| format!("{latency:.1}")));
    }
    row
}

/// `0.972`, below it `[0.965, 0.980]`, and if it is not resolved, that.
pub fn ratio(median: f64, interval: &Interval) -> String {
    let digits = if median >= 10.0 { 1 } else { 3 };
    let mark = if interval.resolved { "" } else { "\nnot resolved" };
    format!("{median:.digits$}\n[{:.digits$}, {:.digits$}]{mark}", interval.low, interval.high)
}

fn notes(report: &Report) -> String {
    let mut lines = String::from(
        "Ratios are of requests per second: median of paired slices, 95 % interval. The rest: arm `on`.\n",
    );
    for measured in &report.scenarios {
        for note in &measured.notes {
            let (threads, qd) = measured.shape();
            lines.push_str(&format!(
                "{} on {}, {threads} × {qd}: {note}\n",
                measured.scenario, measured.device
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::sample;
    use super::*;

    #[test]
    fn shows_what_ran_and_nothing_else() {
        let text = render(&sample(500_000.0, 0.95));
        for part in ["overwrite-randrw", "zram", "16 × 1", "0.950", "[0.940, 0.960]", "500.0", "a note"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("on/kernel") && !text.contains("on/off"));
    }

    #[test]
    fn a_wide_interval_is_called_that() {
        let wide = Interval { low: 0.8, high: 1.0, pairs: 40, resolved: false };
        assert!(ratio(0.9, &wide).contains("not resolved"));
    }
}
