//! A course of events: who does what, one after another or beside each other.

use super::canvas::{Canvas, LINE, Tone, broken};
use serde::Deserialize;

const LANE: usize = 190;
const GAP: usize = 20;
const HEAD: usize = 30;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Course {
    title: String,
    lanes: Vec<String>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    /// Index of the lane.
    lane: usize,
    text: String,
    /// Begins when this step (an index) begins instead of when the last one ended.
    #[serde(default)]
    with: Option<usize>,
    /// Steps (indexes) whose end it comes from, drawn as arrows.
    #[serde(default)]
    after: Vec<usize>,
    /// Ends with this step at the earliest.
    #[serde(default)]
    until: Option<usize>,
    #[serde(default)]
    tone: Option<String>,
}

struct Place {
    x: usize,
    top: usize,
    bottom: usize,
}

/// Draws a course that a text describes.
pub fn draw(text: &str) -> Result<String, String> {
    let course: Course = toml::from_str(text).map_err(|e| e.to_string())?;
    let places = places(&course)?;
    let mut canvas = Canvas::default();
    for (number, lane) in course.lanes.iter().enumerate() {
        canvas.text(10 + number * (LANE + GAP), 14, lane);
    }
    for (step, place) in course.steps.iter().zip(&places) {
        let tone = match step.tone.as_deref() {
            None => Tone::Plain,
            Some("strong") => Tone::Strong,
            Some("weak") => Tone::Weak,
            Some(other) => return Err(format!("no tone `{other}`")),
        };
        canvas.labelled(place.x, place.top, LANE, place.bottom - place.top, tone, &broken(&step.text, LANE));
        for &before in &step.after {
            let from = places.get(before).ok_or_else(|| format!("no step {before}"))?;
            let to = (place.x + LANE / 2, place.top);
            canvas.line((from.x + LANE / 2, from.bottom.min(place.top)), to, true);
        }
    }
    Ok(canvas.finish(&course.title))
}

fn places(course: &Course) -> Result<Vec<Place>, String> {
    let mut places: Vec<Place> = Vec::new();
    let mut next = HEAD;
    for step in &course.steps {
        if step.lane >= course.lanes.len() {
            return Err(format!("no lane {}", step.lane));
        }
        let with = step.with.map(|index| places.get(index).ok_or_else(|| format!("no step {index}")));
        let top = with.transpose()?.map_or(next, |place| place.top);
        let bottom = top + broken(&step.text, LANE).len() * LINE + 10;
        next = next.max(bottom + 14);
        places.push(Place { x: 10 + step.lane * (LANE + GAP), top, bottom });
    }
    for (index, step) in course.steps.iter().enumerate() {
        if let Some(until) = step.until {
            let end = places.get(until).ok_or_else(|| format!("no step {until}"))?.bottom;
            places[index].bottom = places[index].bottom.max(end);
        }
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_course_names_only_what_there_is() {
        let course = |step: &str| draw(&format!("title = \"t\"\nlanes = [\"one\"]\n[[steps]]\n{step}"));
        assert!(course("lane = 0\ntext = \"a\"").is_ok());
        assert!(course("lane = 1\ntext = \"a\"").unwrap_err().contains("no lane 1"));
        assert!(course("lane = 0\ntext = \"a\"\nafter = [7]").unwrap_err().contains("no step 7"));
    }
}
