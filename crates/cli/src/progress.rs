//! A progress bar on standard error for work that takes more than a second.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// Delay before the bar is shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// Shows bytes (or parts) done of a total, after a second and only on a terminal.
pub struct Progress {
    start: Instant,
    total: u64,
    done: u64,
    label: String,
    wanted: bool,
    template: &'static str,
    bar: Option<ProgressBar>,
}

/// For bytes.
pub const BYTES: &str = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
/// For parts of some work, shown as a percentage.
pub const PARTS: &str = "{msg} [{bar:30}] {percent}% {eta}";
/// For an unknown number of bytes.
pub const OPEN_ENDED: &str = "{msg} {spinner} {bytes} {bytes_per_sec}";

impl Progress {
    /// For `total` bytes or parts; `total` is ignored if the end is open. Pass `wanted` = false if the output itself
    /// goes to the same terminal.
    pub fn new(template: &'static str, label: String, total: u64, wanted: bool) -> Self {
        let wanted = wanted && io::stderr().is_terminal();
        Progress { start: Instant::now(), total, done: 0, label, wanted, template, bar: None }
    }

    /// Adds bytes or parts done.
    pub fn advance(&mut self, bytes: u64) {
        self.done = self.done.saturating_add(bytes);
        if !self.wanted {
            return;
        }
        if self.bar.is_none() && self.start.elapsed() >= PATIENCE {
            self.bar = Some(self.draw());
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
        }
    }

    fn draw(&self) -> ProgressBar {
        let total = Some(self.total).filter(|&total| total > 0);
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        let style =
            ProgressStyle::with_template(self.template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.with_style(style.progress_chars("=> "))
            .with_message(self.label.clone())
            .with_elapsed(self.start.elapsed())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
