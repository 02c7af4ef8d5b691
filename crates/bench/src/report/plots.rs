//! Charts as SVG text. Lines and letters are drawn in the page's own text colour, so that they suit light and
//! dark.

use super::model::{Measured, Report};
use super::words::Side;
use crate::error::{BenchError, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Stands for the page's text colour: plotters needs a colour, the page has a variable.
const INK: RGBColor = RGBColor(1, 2, 3);
/// As plotters writes [`INK`].
const INK_TEXT: &str = "#010203";
/// Bars of arms and percentiles, told apart in light, dark and by the colour-blind.
const PALETTE: [RGBColor; 6] = [
    RGBColor(0x2a, 0x7d, 0xc9),
    RGBColor(0xe0, 0x8a, 0x1e),
    RGBColor(0x9b, 0x6f, 0xc4),
    RGBColor(0x5d, 0x9e, 0x4f),
    RGBColor(0xc9, 0x4f, 0x4f),
    RGBColor(0x7a, 0x86, 0x90),
];
/// Height of a bar with its gap, and room around, pixels.
const BAR: i32 = 24;
const LEFT: i32 = 110;
const RIGHT: i32 = 120;
const WIDTH: u32 = 560;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::failed(format!("draw a chart: {error}"))
}

/// Draws on an empty area and returns the SVG element.
fn svg(width: u32, height: u32, draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (width, height)).into_drawing_area();
        draw(&area)?;
        area.present().map_err(failed)?;
    }
    Ok(text.replace(INK_TEXT, "currentColor"))
}

fn write(area: &Area<'_>, text: &str, at: (i32, i32), anchor: HPos) -> Result<()> {
    let style = ("sans-serif", 15).into_font().color(&INK).pos(Pos::new(anchor, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style)).map_err(failed)
}

fn bar(area: &Area<'_>, from: (i32, i32), to: (i32, i32), colour: RGBColor) -> Result<()> {
    area.draw(&Rectangle::new([from, to], colour.filled())).map_err(failed)
}

fn line(area: &Area<'_>, from: (i32, i32), to: (i32, i32), style: impl Into<ShapeStyle>) -> Result<()> {
    area.draw(&PathElement::new([from, to], style)).map_err(failed)
}

/// One horizontal bar.
struct Bar {
    label: String,
    value: f64,
    shown: String,
    colour: RGBColor,
}

/// Bars from zero to the longest; `scale` turns a value into a length.
fn bars(bars: &[Bar], scale: impl Fn(f64) -> f64) -> Result<String> {
    let height = bars.len() as i32 * BAR + 8;
    let room = f64::from(WIDTH as i32 - LEFT - RIGHT);
    let longest = bars.iter().map(|bar| scale(bar.value)).fold(f64::MIN_POSITIVE, f64::max);
    svg(WIDTH, height.unsigned_abs(), |area| {
        for (number, one) in bars.iter().enumerate() {
            let middle = number as i32 * BAR + BAR / 2 + 4;
            let end = LEFT + (scale(one.value) / longest * room).max(1.0) as i32;
            write(area, &one.label, (LEFT - 8, middle), HPos::Right)?;
            bar(area, (LEFT, middle - 8), (end, middle + 8), one.colour)?;
            write(area, &one.shown, (end + 6, middle), HPos::Left)?;
        }
        Ok(())
    })
}

/// Requests per second of each arm.
pub fn iops(measured: &Measured) -> Result<String> {
    let one = |(number, arm): (usize, &super::model::MeasuredArm)| Bar {
        label: arm.arm.clone(),
        value: arm.iops,
        shown: amount(arm.iops),
        colour: PALETTE[number % PALETTE.len()],
    };
    bars(&measured.arms.iter().enumerate().map(one).collect::<Vec<_>>(), |value| value)
}

fn amount(iops: f64) -> String {
    match iops {
        iops if iops >= 1e6 => format!("{:.2} M/s", iops / 1e6),
        iops if iops >= 1e3 => format!("{:.1} k/s", iops / 1e3),
        iops => format!("{iops:.0} /s"),
    }
}

/// Latency percentiles of each arm, on a logarithmic scale from 0.1 µs.
pub fn latencies(measured: &Measured) -> Result<String> {
    let mut all = Vec::new();
    for (number, arm) in measured.arms.iter().enumerate() {
        let percentiles = [("p50", arm.p50_us), ("p99", arm.p99_us), ("p999", arm.p999_us)];
        for (name, value) in percentiles {
            let Some(value) = value else { continue };
            all.push(Bar {
                label: format!("{} {name}", arm.arm),
                value,
                shown: format!("{value:.1} µs"),
                colour: PALETTE[number % PALETTE.len()],
            });
        }
    }
    bars(&all, |value| (value.max(0.1) / 0.1).log10())
}

/// A ratio of one scenario in a chart of all.
struct Dot {
    label: String,
    median: f64,
    low: f64,
    high: f64,
    resolved: bool,
    side: Side,
}

impl Dot {
    /// Grey if no difference shows, however precise.
    fn colour(&self) -> RGBColor {
        match self.side {
            Side::Above => PALETTE[0],
            Side::Below => PALETTE[4],
            Side::Neither => PALETTE[5],
        }
    }
}

/// One ratio of all scenarios, with its intervals. `None` if nothing has it.
pub fn ratios(report: &Report, name: &str) -> Result<Option<String>> {
    let dot = |measured: &Measured| {
        let (median, interval) = (measured.ratios.get(name)?, measured.ratio_intervals.get(name)?);
        let (threads, qd) = measured.lanes();
        let device = measured.device.split('?').next().unwrap_or_default();
        let label = format!("{} · {device} · {threads} × {qd}", measured.title());
        Some(Dot {
            label,
            median: *median,
            low: interval.low,
            high: interval.high,
            resolved: interval.resolved,
            side: Side::of(interval),
        })
    };
    let dots: Vec<Dot> = report.scenarios.iter().filter_map(dot).collect();
    if dots.is_empty() {
        return Ok(None);
    }
    let (left, right, width) = (340, 190, 960);
    let lowest = dots.iter().map(|dot| dot.low).fold(1.0, f64::min);
    let highest = dots.iter().map(|dot| dot.high).fold(1.0, f64::max);
    // Far ratios need a logarithmic axis; near ones would be squeezed by it no less than they are.
    let (from, to) = (lowest.max(1e-3).ln() - 0.02, highest.max(1e-3).ln() + 0.02);
    let x = |value: f64| {
        left + ((value.max(1e-3).ln() - from) / (to - from) * f64::from(width - left - right)) as i32
    };
    let height = dots.len() as i32 * BAR + 34;
    let chart = svg(width.unsigned_abs(), height.unsigned_abs(), |area| {
        line(area, (x(1.0), 4), (x(1.0), height - 26), INK.mix(0.4))?;
        write(area, "1", (x(1.0), height - 14), HPos::Center)?;
        for (number, dot) in dots.iter().enumerate() {
            let middle = number as i32 * BAR + BAR / 2 + 4;
            let colour = dot.colour();
            write(area, &dot.label, (left - 12, middle), HPos::Right)?;
            line(area, (x(dot.low), middle), (x(dot.high), middle), colour.stroke_width(3))?;
            // A ring instead of a disc: how large it is, is not resolved.
            let style = if dot.resolved { colour.filled() } else { colour.stroke_width(2) };
            area.draw(&Circle::new((x(dot.median), middle), 5, style)).map_err(failed)?;
            let digits = if dot.median >= 10.0 { 1 } else { 3 };
            let shown = format!("{:.digits$} [{:.digits$}, {:.digits$}]", dot.median, dot.low, dot.high);
            write(area, &shown, (x(to.exp()) + 12, middle), HPos::Left)?;
        }
        Ok(())
    })?;
    Ok(Some(chart))
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::sample;
    use super::*;

    #[test]
    fn charts_are_drawn_in_the_colour_of_the_page() {
        let report = sample(500_000.0, 0.95);
        let charts = [
            iops(&report.scenarios[0]).unwrap(),
            latencies(&report.scenarios[0]).unwrap(),
            ratios(&report, "on/raw").unwrap().unwrap(),
        ];
        for chart in &charts {
            assert!(chart.contains("<svg") && chart.contains("</svg>"));
            assert!(chart.contains("currentColor") && !chart.contains(INK_TEXT));
        }
        assert!(charts[0].contains("500.0 k/s"));
        assert!(charts[2].contains("0.950 [0.940, 0.960]"));
        assert!(charts[2].contains("#C94F4F"), "clearly slower: {}", charts[2]);
        assert_eq!(ratios(&report, "on/kernel").unwrap(), None);
    }

    #[test]
    fn grey_means_that_no_difference_shows_and_a_ring_that_its_size_is_not_resolved() {
        let chart = |low, high, resolved| {
            let mut report = sample(1000.0, 1.5);
            let interval = report.scenarios[0].ratio_intervals.get_mut("on/raw").unwrap();
            (interval.low, interval.high, interval.resolved) = (low, high, resolved);
            ratios(&report, "on/raw").unwrap().unwrap()
        };
        let (grey, blue) = ("#7A8690", "#2A7DC9");
        let wide = chart(1.2, 1.9, false);
        assert!(wide.contains(blue) && !wide.contains(grey) && wide.contains("fill=\"none\""), "{wide}");
        let precise = chart(1.49, 1.51, true);
        assert!(precise.contains(blue) && !precise.contains("<circle cx=\"0\" fill=\"none\""));
        assert!(chart(0.99, 1.01, true).contains(grey));
    }
}
