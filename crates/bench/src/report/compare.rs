//! `--compare`: what changed since an earlier measurement.
//!
//! Requests per second depend on what else the machine did at the time. Ratios were paired and have an
//! interval: a change is called one if the intervals do not meet.

use super::model::{Measured, Report};
use super::table::WIDTH;
use super::words::wrap;

/// The changes, a block for each measurement.
pub fn render(old: &Report, new: &Report) -> String {
    let mut text = String::new();
    if old.machine != new.machine {
        text.push_str(&format!(
            "Another machine or version: {} ({} processors, Linux {}, uext4 {}) before.\n",
            old.machine.cpu, old.machine.cpus, old.machine.kernel, old.machine.uext4
        ));
    }
    for measured in &new.scenarios {
        head(&mut text, measured);
        match old.scenarios.iter().find(|earlier| earlier.same_as(measured)) {
            Some(earlier) => rows(&mut text, earlier, measured),
            None => text.push_str("  not measured before\n"),
        }
    }
    let gone = old.scenarios.iter().filter(|earlier| !new.scenarios.iter().any(|now| now.same_as(earlier)));
    for earlier in gone {
        head(&mut text, earlier);
        text.push_str("  not measured now\n");
    }
    text
}

fn head(text: &mut String, measured: &Measured) {
    let (threads, qd) = measured.lanes();
    let line = format!("{} on {}, {threads} × {qd}", measured.title(), measured.device);
    text.push_str(&wrap(&line, WIDTH, 4));
    text.push('\n');
}

fn row(text: &mut String, what: &str, before: &str, now: &str, change: &str) {
    text.push_str(&format!("  {what:<20} before {before:>9}, now {now:>9}: {change}\n"));
}

fn rows(text: &mut String, old: &Measured, new: &Measured) {
    for arm in &new.arms {
        let Some(earlier) = old.arms.iter().find(|earlier| earlier.arm == arm.arm) else { continue };
        let change = format!("{:+.1} %", (arm.iops / earlier.iops - 1.0) * 100.0);
        let kilo = |iops: f64| format!("{:.1}", iops / 1000.0);
        row(text, &format!("{} kIOPS", arm.arm), &kilo(earlier.iops), &kilo(arm.iops), &change);
    }
    for (name, now) in &new.ratios {
        let Some(before) = old.ratios.get(name) else { continue };
        let intervals = old.ratio_intervals.get(name).zip(new.ratio_intervals.get(name));
        let verdict = match intervals {
            Some((old, new)) if new.low > old.high => "higher",
            Some((old, new)) if new.high < old.low => "lower",
            Some(_) => "no change that shows",
            None => "no interval",
        };
        row(text, name, &format!("{before:.3}"), &format!("{now:.3}"), verdict);
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::sample;
    use super::*;

    #[test]
    fn a_change_is_one_only_beyond_the_intervals() {
        let old = sample(100_000.0, 0.90);
        assert!(render(&old, &sample(150_000.0, 0.95)).contains("higher"));
        assert!(render(&old, &sample(150_000.0, 0.85)).contains("lower"));
        let same = render(&old, &sample(150_000.0, 0.91));
        assert!(same.contains("no change that shows") && same.contains("+50.0 %"), "{same}");
    }

    #[test]
    fn what_only_one_of_them_has_is_said() {
        let mut other = sample(1.0, 0.9);
        other.scenarios[0].device = "loop".into();
        let text = render(&sample(1.0, 0.9), &other);
        assert!(text.contains("not measured before") && text.contains("not measured now"));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }
}
