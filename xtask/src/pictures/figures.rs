//! Figures of a measurement as bars: each arm of each scenario beside the raw device.

use super::canvas::{Canvas, LINE, Tone};
use serde_json::Value;

const NAMES: usize = 370;
const BARS: usize = 360;

/// Which figure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Requests a second, of those of arm `raw`.
    Throughput,
    /// The median latency of a request, of that of arm `raw`.
    Latency,
}

impl Shown {
    fn key(self) -> &'static str {
        match self {
            Shown::Throughput => "iops",
            Shown::Latency => "p50_us",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Shown::Throughput => "Requests a second, of those of the raw device (1.00; longer is better)",
            Shown::Latency => "Median latency, of that of the raw device (1.00; shorter is better)",
        }
    }
}

/// A ratio with two digits that say something, at least.
fn digits(ratio: f64) -> String {
    let places = if ratio < 0.0095 { 4 } else { 2 };
    format!("{ratio:.places$}")
}

/// Draws the kept measurement.
pub fn draw(json: &str, shown: Shown) -> Result<String, String> {
    let report: Value = serde_json::from_str(json).map_err(|e| format!("bench.json: {e}"))?;
    let mut canvas = Canvas::default();
    canvas.text(10, 14, shown.title());
    let mut y = 40;
    for scenario in report["scenarios"].as_array().into_iter().flatten() {
        let arms: Vec<&Value> = scenario["arms"].as_array().into_iter().flatten().collect();
        let figure = |arm: &&Value| arm[shown.key()].as_f64().filter(|figure| *figure > 0.0);
        let raw = arms.iter().find(|arm| arm["arm"] == "raw").and_then(figure);
        let Some(raw) = raw else { continue };
        let device = scenario["device"].as_str().unwrap_or("?");
        let device = device.split(['?', ',']).next().unwrap_or(device);
        let shape =
            arms.first().map_or_else(String::new, |arm| format!("{} × {}", arm["threads"], arm["qd"]));
        let names = ["scenario", "shape"].map(|key| scenario[key].as_str());
        let title = names.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let name = format!("{title}, {shape}, {device}");
        for (number, arm) in arms.iter().enumerate() {
            let Some(figure) = figure(arm) else { continue };
            let ratio = figure / raw;
            if number == 0 {
                canvas.text(10, y + LINE / 2, &name);
            }
            canvas.text(NAMES, y + LINE / 2, arm["arm"].as_str().unwrap_or("?"));
            // Twice the raw device ends the scale.
            let length = (ratio.min(2.0) / 2.0 * BARS as f64).max(1.0) as usize;
            let tone = if arm["arm"] == "on" { Tone::Strong } else { Tone::Plain };
            canvas.labelled(NAMES + 80, y, length, LINE - 3, tone, &[]);
            canvas.text(NAMES + 86 + length, y + LINE / 2 - 2, &digits(ratio));
            y += LINE;
        }
        y += 8;
    }
    Ok(canvas.finish(shown.title()))
}
