//! A drawing of a file's extents: the file above, the volume below, and a band from each extent to its place.

use uext4::{Piece, State};

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 360.0;
const MARGIN: f64 = 40.0;
const BAR: f64 = 36.0;
const FILE_TOP: f64 = 70.0;
const VOLUME_TOP: f64 = 250.0;
/// Minimum visible width, in units of a drawing 1200 wide.
const MARK_MIN: f64 = 2.0;
/// A band narrower than this gets an outline: slanted, it would be thinner than a pixel.
const BAND_MIN: f64 = 4.0;

/// Alternating colours of adjacent written extents.
const WRITTEN: [&str; 2] = ["#2b6cb0", "#4299e1"];
const UNWRITTEN: &str = "#ed8936";
const HOLE: &str = "#e2e8f0";

/// Draws `pieces` of a file of `size` bytes on a volume of `volume` bytes.
pub fn draw(name: &str, size: u64, volume: u64, pieces: &[Piece]) -> String {
    let mut svg = String::new();
    let end = pieces.last().map_or(0, Piece::end).max(size).max(1);
    let name = escape(name);
    let extents = pieces.iter().filter(|piece| piece.state != State::Hole).count();
    svg.push_str(&format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"14\">\n<title>{name}</title>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{MARGIN}\" y=\"30\">{name}: {size} bytes, {extents} extent(s)</text>\n"
    ));
    bar(&mut svg, FILE_TOP, &format!("file, 0 … {size}"));
    bar(&mut svg, VOLUME_TOP, &format!("volume, 0 … {volume}"));
    for (index, piece) in pieces.iter().enumerate() {
        band(&mut svg, index, piece, end, volume.max(1));
    }
    legend(&mut svg);
    svg.push_str("</svg>\n");
    svg
}

fn bar(svg: &mut String, top: f64, label: &str) {
    svg.push_str(&format!(
        "<rect x=\"{MARGIN}\" y=\"{top}\" width=\"{}\" height=\"{BAR}\" fill=\"{HOLE}\"/>\n\
         <text x=\"{MARGIN}\" y=\"{}\" fill=\"#4a5568\" font-size=\"12\">{label}</text>\n",
        WIDTH - 2.0 * MARGIN,
        top - 6.0
    ));
}

fn band(svg: &mut String, index: usize, piece: &Piece, size: u64, volume: u64) {
    if piece.state == State::Hole {
        return;
    }
    let color = if piece.state == State::Unwritten { UNWRITTEN } else { WRITTEN[index % 2] };
    let (a, b) = span(piece.logical, piece.length, size);
    let (c, d) = span(piece.physical, piece.length, volume);
    let (file_bottom, volume_bottom) = (FILE_TOP + BAR, VOLUME_TOP + BAR);
    let outline = match b - a < BAND_MIN || d - c < BAND_MIN {
        true => format!(" stroke=\"{color}\" stroke-width=\"1.5\""),
        false => String::new(),
    };
    svg.push_str(&format!(
            "<g fill=\"{color}\"><title>{} bytes at {} of the file, {} of the volume, {}</title>\
         <path d=\"M{a:.2} {FILE_TOP}H{b:.2}V{file_bottom}H{a:.2}z\"/>\
         <path d=\"M{c:.2} {VOLUME_TOP}H{d:.2}V{volume_bottom}H{c:.2}z\"/>\
         <path opacity=\"0.3\"{outline} d=\"M{a:.2} {file_bottom}H{b:.2}L{d:.2} {VOLUME_TOP}H{c:.2}z\"/></g>\n",
            piece.length,
            piece.logical,
            piece.physical,
            piece.state.name()
        ));
}

fn span(pos: u64, length: u64, total: u64) -> (f64, f64) {
    let scale = (WIDTH - 2.0 * MARGIN) / total as f64;
    let width = (length as f64 * scale).max(MARK_MIN);
    // A piece widened to the minimum stays inside the bar.
    let start = (MARGIN + pos as f64 * scale).min(WIDTH - MARGIN - width);
    (start, start + width)
}

fn legend(svg: &mut String) {
    let entries = [("written", WRITTEN[0]), ("unwritten", UNWRITTEN), ("hole or other", HOLE)];
    for (index, (label, color)) in entries.iter().enumerate() {
        let x = MARGIN + 150.0 * index as f64;
        svg.push_str(&format!(
            "<rect x=\"{x}\" y=\"315\" width=\"14\" height=\"14\" fill=\"{color}\"/>\
             <text x=\"{}\" y=\"327\">{label}</text>\n",
            x + 20.0
        ));
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_every_extent_inside_the_frame() {
        let piece = |logical, physical, state| Piece { logical, physical, length: 4096, state };
        let pieces = [
            piece(0, 8192, State::Written),
            piece(4096, 0, State::Hole),
            piece(8192, 1 << 20, State::Unwritten),
        ];
        let svg = draw("/a<b>&c", 12288, (1 << 20) + 4096, &pieces);
        assert_eq!(svg.matches("<g ").count(), 2);
        assert!(svg.contains("/a&lt;b&gt;&amp;c"));
        assert!(svg.contains("4096 bytes at 8192 of the file, 1048576 of the volume, unwritten"));
        assert!(svg.contains("H1160.00"), "the last extent ends at the right margin: {svg}");
        assert!(draw("/empty", 0, 0, &[]).ends_with("</svg>\n"));
    }

    /// One block of a large file on a large volume, in the middle and at the end.
    #[test]
    fn a_small_extent_can_be_seen() {
        let size = 1 << 40;
        for logical in [size / 2, size - 4096] {
            let piece = Piece { logical, physical: logical, length: 4096, state: State::Written };
            let svg = draw("/large", size, size, &[piece]);
            let marks = svg.split("<path d=\"M").skip(1).map(|path| {
                let (start, rest) = path.split_once(' ').unwrap();
                let end = rest.split_once('H').unwrap().1.split_once('V').unwrap().0;
                (start.parse::<f64>().unwrap(), end.parse::<f64>().unwrap())
            });
            let marks: Vec<(f64, f64)> = marks.collect();
            assert_eq!(marks.len(), 2, "{svg}");
            for (start, end) in marks {
                assert!(
                    end - start > 1.9 && start >= MARGIN && end <= WIDTH - MARGIN,
                    "{start} to {end}: {svg}"
                );
            }
            assert!(svg.contains("stroke="), "{svg}");
        }
    }
}
