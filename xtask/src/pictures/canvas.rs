//! A drawing of boxes, lines and words.

use std::fmt::Write;

/// Pixels of a letter, on average, and of a line of text.
const LETTER: usize = 7;
pub const LINE: usize = 16;

/// What a box stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Something of ours.
    Plain,
    /// What the picture is about.
    Strong,
    /// Waiting, or what is beside.
    Weak,
}

impl Tone {
    fn fill(self) -> &'static str {
        match self {
            Tone::Plain => "#dbe9f6",
            Tone::Strong => "#9ecae1",
            Tone::Weak => "#f0f0f0",
        }
    }
}

/// A drawing that grows with what is put on it.
#[derive(Default)]
pub struct Canvas {
    body: String,
    width: usize,
    height: usize,
}

impl Canvas {
    /// Words that begin at a point; its height is that of the line's middle.
    pub fn text(&mut self, x: usize, y: usize, text: &str) {
        self.grow(x + text.chars().count() * LETTER, y + LINE);
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _infallible = writeln!(self.body, "<text x=\"{x}\" y=\"{}\">{text}</text>", y + 4);
    }

    /// A box with lines of words in it.
    pub fn labelled(
        &mut self,
        x: usize,
        y: usize,
        width: usize,
        height: usize,
        tone: Tone,
        words: &[String],
    ) {
        self.grow(x + width, y + height);
        let _infallible = writeln!(
            self.body,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\" fill=\"{}\" stroke=\"#6b8299\"/>",
            tone.fill()
        );
        for (number, line) in words.iter().enumerate() {
            self.text(x + 6, y + LINE / 2 + 4 + number * LINE, line);
        }
    }

    /// A line from one point to another, with a head at its end if it is an arrow.
    pub fn line(&mut self, from: (usize, usize), to: (usize, usize), arrow: bool) {
        self.grow(from.0.max(to.0), from.1.max(to.1));
        let head = if arrow { " marker-end=\"url(#head)\"" } else { "" };
        let _infallible = writeln!(
            self.body,
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"#444\"{head}/>",
            from.0, from.1, to.0, to.1
        );
    }

    fn grow(&mut self, x: usize, y: usize) {
        (self.width, self.height) = (self.width.max(x), self.height.max(y));
    }

    /// The picture, `title` for those who hear it.
    pub fn finish(self, title: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <title>{title}</title>\n\
             <defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
             orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#444\"/></marker></defs>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
            self.width + 10,
            self.height + 10,
            self.body
        )
    }
}

/// Words broken into lines that fit so many pixels.
pub fn broken(text: &str, width: usize) -> Vec<String> {
    let most = (width.saturating_sub(10) / LETTER).max(1);
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
