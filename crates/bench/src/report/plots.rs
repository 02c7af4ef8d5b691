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
const LEFT: i32 = 130;
const RIGHT: i32 = 120;
const WIDTH: u32 = 560;
/// Room for the marks of an axis.
const FOOT: i32 = 24;

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

/// Bars from the beginning of the axis to the longest, in front of the lines of the marks. `scale` turns a value into
/// a length.
fn bars(bars: &[Bar], marks: &[(f64, String)], scale: impl Fn(f64) -> f64) -> Result<String> {
    let foot = bars.len() as i32 * BAR + 8;
    let room = f64::from(WIDTH as i32 - LEFT - RIGHT);
    let longest = bars.iter().map(|bar| scale(bar.value)).fold(f64::MIN_POSITIVE, f64::max);
    let end = |value: f64| LEFT + (scale(value) / longest * room) as i32;
    svg(WIDTH, (foot + FOOT).unsigned_abs(), |area| {
        axis(area, foot, marks.iter().map(|(value, shown)| (end(*value), shown.as_str())))?;
        for (number, one) in bars.iter().enumerate() {
            let middle = number as i32 * BAR + BAR / 2 + 4;
            let end = end(one.value).max(LEFT + 1);
            write(area, &one.label, (LEFT - 8, middle), HPos::Right)?;
            bar(area, (LEFT, middle - 8), (end, middle + 8), one.colour)?;
            write(area, &one.shown, (end + 6, middle), HPos::Left)?;
        }
        Ok(())
    })
}

/// A line from the top for each mark, its text below.
fn axis<'a>(area: &Area<'_>, foot: i32, marks: impl Iterator<Item = (i32, &'a str)>) -> Result<()> {
    for (x, shown) in marks {
        line(area, (x, 2), (x, foot), INK.mix(0.25))?;
        write(area, shown, (x, foot + FOOT / 2), HPos::Center)?;
    }
    Ok(())
}

/// Requests per second of each arm.
pub fn iops(measured: &Measured) -> Result<String> {
    let one = |(number, arm): (usize, &super::model::MeasuredArm)| Bar {
        label: arm.arm.clone(),
        value: arm.iops,
        shown: format!("{}/s", amount(arm.iops)),
        colour: PALETTE[number % PALETTE.len()],
    };
    let most = measured.arms.iter().map(|arm| arm.iops).fold(0.0, f64::max);
    let marks: Vec<_> = even(0.0, most, 4.0).into_iter().map(|mark| (mark, amount(mark))).collect();
    bars(&measured.arms.iter().enumerate().map(one).collect::<Vec<_>>(), &marks, |value| value)
}

/// A number of requests, short.
fn amount(iops: f64) -> String {
    match iops {
        iops if iops >= 1e6 => format!("{} M", short(iops / 1e6, 2)),
        iops if iops >= 1e3 => format!("{} k", short(iops / 1e3, 1)),
        iops => short(iops, 0),
    }
}

/// Latency percentiles of each arm, on a logarithmic scale from 0.1 µs.
pub fn latencies(measured: &Measured) -> Result<String> {
    const LEAST: f64 = 0.1;
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
    let most = all.iter().map(|bar| bar.value).fold(LEAST, f64::max);
    let marks: Vec<_> = logarithmic(LEAST, most).into_iter().map(|mark| (mark, time(mark))).collect();
    bars(&all, &marks, |value| (value.max(LEAST) / LEAST).log10())
}

/// A time in microseconds, short.
fn time(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{} s", short(us / 1e6, 3)),
        us if us >= 1e3 => format!("{} ms", short(us / 1e3, 3)),
        us => format!("{} µs", short(us, 3)),
    }
}

/// At most `places` decimals, without trailing zeros.
fn short(value: f64, places: usize) -> String {
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

/// Evenly spaced round numbers from `from` to `to`, between 0.5 and 1.5 times `wanted` of them.
fn even(from: f64, to: f64, wanted: f64) -> Vec<f64> {
    let rough = ((to - from) / wanted).max(f64::MIN_POSITIVE);
    let decade = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|part| part * decade).into_iter().find(|&step| step * 1.5 >= rough);
    let step = step.unwrap_or(decade * 10.0);
    let (first, last) = ((from / step).ceil() as i64, (to / step).floor() as i64);
    // Of whole multiples: a sum of steps would drift.
    (first..=last).map(|number| number as f64 * step).collect()
}

/// Marks of a logarithmic axis, both ends above zero: even ones if it is short, then 1, 2 and 5 of each decade, then
/// decades.
fn logarithmic(from: f64, to: f64) -> Vec<f64> {
    if to / from < 4.0 {
        return even(from, to, 5.0);
    }
    let parts: &[f64] = if to / from < 200.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let decades = from.log10().floor() as i32..=to.log10().ceil() as i32;
    let marks = decades.flat_map(|decade| parts.iter().map(move |part| part * 10f64.powi(decade)));
    // The ends are round numbers themselves, in floating point.
    marks.filter(|mark| (from * 0.999..=to * 1.001).contains(mark)).collect()
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
    let (left, right, width) = (410, 190, 1020);
    let lowest = dots.iter().map(|dot| dot.low).fold(1.0, f64::min);
    let highest = dots.iter().map(|dot| dot.high).fold(1.0, f64::max);
    // Far ratios need a logarithmic axis; near ones would be squeezed by it no less than they are.
    let (from, to) = (lowest.max(1e-3).ln() - 0.02, highest.max(1e-3).ln() + 0.02);
    let x = |value: f64| {
        left + ((value.max(1e-3).ln() - from) / (to - from) * f64::from(width - left - right)) as i32
    };
    let foot = dots.len() as i32 * BAR + 8;
    let marks: Vec<_> =
        logarithmic(from.exp(), to.exp()).into_iter().map(|mark| (x(mark), short(mark, 3))).collect();
    let chart = svg(width.unsigned_abs(), (foot + FOOT).unsigned_abs(), |area| {
        axis(area, foot, marks.iter().map(|(x, shown)| (*x, shown.as_str())))?;
        line(area, (x(1.0), 2), (x(1.0), foot), INK.stroke_width(2))?;
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
        assert!(charts[0].contains("500 k/s"));
        assert!(charts[2].contains("0.950 [0.940, 0.960]"));
        assert!(charts[2].contains("#C94F4F"), "clearly slower: {}", charts[2]);
        assert_eq!(ratios(&report, "on/kernel").unwrap(), None);
    }

    #[test]
    fn every_axis_has_several_round_marks() {
        assert_eq!(even(0.0, 973_000.0, 4.0), [0.0, 2e5, 4e5, 6e5, 8e5]);
        assert_eq!(
            even(0.93, 1.11, 5.0).iter().map(|&mark| short(mark, 3)).collect::<Vec<_>>(),
            ["0.95", "1", "1.05", "1.1"]
        );
        assert_eq!(logarithmic(0.1, 8_000.0), [0.1, 1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(logarithmic(0.9, 34.0), [1.0, 2.0, 5.0, 10.0, 20.0]);
        for (from, to) in [(0.98, 1.02), (0.7, 1.05), (0.98, 2.0), (0.98, 5.0), (0.3, 40.0), (0.98, 2100.0)] {
            let marks = logarithmic(from, to);
            assert!((3..=8).contains(&marks.len()), "{from} to {to}: {marks:?}");
            assert!(marks.is_sorted() && marks.contains(&1.0), "{from} to {to}: {marks:?}");
        }
        assert_eq!([time(0.1), time(2_000.0), time(1e7)], ["0.1 µs", "2 ms", "10 s"]);
        assert_eq!([amount(0.0), amount(20.0), amount(2e5), amount(1.25e6)], ["0", "20", "200 k", "1.25 M"]);
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
