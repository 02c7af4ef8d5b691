//! The page of `--html`: one file, no scripts, nothing fetched.

use super::model::{Measured, Report};
use super::{ideas, plots, words};
use crate::error::Result;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1c2430; --paper: #ffffff; --rule: #d5dae1; --soft: #5b6675; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ee; --paper: #14181d; --rule: #333b46; --soft: #9aa6b5; }
}
body { color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif;
       max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-top: 1px solid var(--rule);
     padding-top: 1rem; }
h3 { font-size: 1rem; margin: 1rem 0 .3rem; }
p, li { max-width: 60rem; } .soft { color: var(--soft); }
.warning { border-left: 4px solid #e08a1e; padding-left: .8rem; }
table { border-collapse: collapse; margin: .8rem 0; } th, td { padding: .25rem .8rem; text-align: right;
        border-bottom: 1px solid var(--rule); } th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; } .charts { display: flex; flex-wrap: wrap; gap: 1rem; }
svg { max-width: 100%; height: auto; }
.ideas td { text-align: left; } .ideas td:first-child { text-align: right; font-size: 1.3rem; font-weight: 600; }
summary { cursor: pointer; margin: .8rem 0; }
";

const METHOD: &str = "Arms take turns in slices of at most 250 ms in one process; every arm of a round gets \
    the same seeded requests, <b>raw</b> at the files' own places on the same opened device through the same \
    code. A ratio is the median of the paired ratios of requests per second; the bar is its 95 % interval. \
    Blue: clearly more, the whole interval lies above 1. Red: clearly less. Grey: the interval holds 1, no \
    difference shows. A ring instead of a disc: the interval is wider than 0.05, so that the size of the \
    difference is not resolved, even where it is clear that there is one. A measurement whose counters showed another \
    route than meant would be missing here, and every volume was clean for e2fsck afterwards.";

/// The page.
pub fn render(report: &Report) -> Result<String> {
    let mut page = String::new();
    let machine = &report.machine;
    page.push_str("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    page.push_str("<title>uext4 bench</title><style>");
    page.push_str(STYLE);
    page.push_str("</style></head><body><h1>uext4 bench</h1>\n");
    page.push_str(&format!(
        "<p class=\"soft\">{}, {} processors, Linux {}, uext4 {}</p>\n",
        escape(&machine.cpu),
        machine.cpus,
        escape(&machine.kernel),
        escape(&machine.uext4)
    ));
    if let Some(warning) = report.load_before.and_then(|load| load.warning()) {
        page.push_str(&format!(
            "<p class=\"warning\">Before anything was measured: {}.</p>\n",
            escape(&warning)
        ));
    }
    worth(&mut page, report);
    page.push_str(&format!(
        "<details><summary>How it is measured, and how to read it</summary><p>{METHOD}</p></details>\n"
    ));
    let titles = [
        ("on/raw", "All switches on, against the device without a file system"),
        ("on/kernel", "All switches on, against the kernel's ext4 on the same device"),
        ("on/off", "All switches on, against the scenario's switch off (logarithmic)"),
        ("on/all-off", "All switches on, against every switch off (logarithmic)"),
        ("on/one-extent", "A file of a million extents, against a file of one"),
        ("on/no-dsync", "Durable overwrites, against plain ones"),
    ];
    page.push_str(
        "<p class=\"soft\">In the charts: scenario · device · threads × requests in flight of each.</p>\n",
    );
    for (name, title) in titles {
        if let Some(chart) = plots::ratios(report, name)? {
            page.push_str(&format!("<h2>{name}</h2><p>{title}</p><div class=\"wide\">{chart}</div>\n"));
        }
    }
    for (number, measured) in report.scenarios.iter().enumerate() {
        section(&mut page, number, measured)?;
    }
    switches(&mut page);
    page.push_str("</body></html>\n");
    Ok(page)
}

/// What each idea is worth here: the same lines as the text's last ones.
fn worth(page: &mut String, report: &Report) {
    let ideas = ideas::ideas(report);
    if ideas.is_empty() {
        return;
    }
    page.push_str(
        "<p>Times as fast with an idea as without it; ≈ where no difference shows. Each was measured where the \
         device hides least of it.</p>\n<div class=\"wide\"><table class=\"ideas\">\n",
    );
    for one in ideas {
        page.push_str(&format!(
            "<tr><td>{} ×</td><td>{}</td><td>{} a request, {}</td>\
             <td><a href=\"#m{}\">{}</a></td></tr>\n",
            one.factor(),
            escape(one.words),
            escape(&one.time),
            escape(&one.place),
            one.measurement,
            one.switch
        ));
    }
    page.push_str("</table></div>\n");
}

/// What each switch does.
fn switches(page: &mut String) {
    page.push_str("<h2>Switches</h2><dl>\n");
    for name in uext4::SWITCH_NAMES {
        let what = words::switch(name).unwrap_or_default();
        page.push_str(&format!("<dt><b>{name}</b></dt><dd>{}</dd>\n", escape(what)));
    }
    page.push_str("</dl>\n");
}

fn section(page: &mut String, number: usize, measured: &Measured) -> Result<()> {
    let (threads, qd) = measured.lanes();
    page.push_str(&format!(
        "<h2 id=\"m{number}\">{} on {}</h2><p class=\"soft\">{threads} threads, queue depth {qd}, engine {}, {}, \
             {} rounds, {:.1} s per arm, e2fsck {}</p>\n",
        escape(&measured.title()),
        escape(&measured.device),
        escape(&measured.engine),
        if measured.polled { "polled" } else { "not polled" },
        measured.rounds,
        measured.seconds,
        escape(&measured.e2fsck)
    ));
    if let Some((name, what)) = measured.switch.as_deref().and_then(|name| Some((name, words::switch(name)?)))
    {
        page.push_str(&format!("<p>Switch <b>{}</b>. {}</p>\n", escape(name), escape(what)));
    }
    let busy = measured.load.and_then(|load| load.warning());
    for note in &measured.notes {
        let class = if busy.as_ref() == Some(note) { " class=\"warning\"" } else { "" };
        page.push_str(&format!("<p{class}>{}</p>\n", escape(note)));
    }
    page.push_str("<div class=\"charts\"><div><h3>Requests per second</h3>");
    page.push_str(&plots::iops(measured)?);
    page.push_str("</div><div><h3>Latency (logarithmic)</h3>");
    page.push_str(&plots::latencies(measured)?);
    page.push_str("</div></div>\n");
    numbers(page, measured);
    Ok(())
}

fn numbers(page: &mut String, measured: &Measured) {
    page.push_str("<div class=\"wide\"><table><tr><th>arm</th><th>IOPS</th><th>MB/s</th><th>ns/op</th>");
    page.push_str(
        "<th>cpu-ns/op</th><th>p50 µs</th><th>p99 µs</th><th>p999 µs</th><th>ratio of on</th>\
         <th>what it says</th><th>processor time of on</th></tr>\n",
    );
    let latency = |value: Option<f64>| value.map_or_else(|| "–".into(), |value| format!("{value:.1}"));
    for arm in &measured.arms {
        let name = format!("on/{}", arm.arm);
        let rate = measured.ratio(&name);
        let ratio = rate.map_or_else(String::new, |(median, interval)| words::ratio(median, interval));
        let says = rate.map_or("", |(_, interval)| words::rate_verdict(interval));
        let cpu = measured.cpu_ratio(&name);
        let cpu = cpu.map_or_else(String::new, |(median, interval)| words::ratio(median, interval));
        page.push_str(&format!(
            "<tr><td>{}</td><td>{:.0}</td><td>{:.0}</td><td>{:.0}</td><td>{:.0}</td><td>{}</td>\
                 <td>{}</td><td>{}</td><td>{}</td><td>{says}</td><td>{}</td></tr>\n",
            escape(&arm.arm),
            arm.iops,
            arm.mb_s,
            arm.ns_per_op,
            arm.cpu_ns_per_op,
            latency(arm.p50_us),
            latency(arm.p99_us),
            latency(arm.p999_us),
            escape(&ratio),
            escape(&cpu)
        ));
    }
    page.push_str("</table></div>\n");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::sample;
    use super::*;
    use crate::load::Load;

    #[test]
    fn the_page_is_whole_and_fetches_nothing() {
        let mut report = sample(500_000.0, 0.95);
        report.scenarios[0].device = "<script>alert(1)</script>".into();
        report.load_before = Some(Load { others: 1.5, stolen: 0.0 });
        let page = render(&report).unwrap();
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        assert!(!page.contains("<script"));
        // The only addresses are the names of the SVG namespaces.
        for (start, _) in page.match_indices("http") {
            assert!(page[start..].starts_with("http://www.w3.org/"), "{}", &page[start..start + 40]);
        }
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(page.contains("1.5 processors") && page.contains("class=\"warning\""));
        for name in uext4::SWITCH_NAMES {
            assert!(page.contains(words::switch(name).unwrap()), "{name}");
        }
        assert!(page.contains("clearly slower"));
        assert!(!page.contains("class=\"ideas\""), "none of the ideas was measured with and without");
    }

    #[test]
    fn it_begins_with_the_five_ideas() {
        let report = ideas::tests::all(7.6);
        let page = render(&report).unwrap();
        let (head, rest) = page.split_once("<details>").unwrap();
        for (number, name) in uext4::SWITCH_NAMES.iter().enumerate() {
            assert!(head.contains(&format!("<a href=\"#m{number}\">{name}</a>")), "{name}");
            assert!(rest.contains(&format!("<h2 id=\"m{number}\">")), "{name}");
        }
        assert_eq!(head.matches("7.6 ×").count(), 5);
    }
}
