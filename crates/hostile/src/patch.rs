//! What once failed, as a list of changed bytes: it stays the same image when the mutator learns new tricks.
//!
//! ```text
//! # what it was
//! image deep
//! length 524288        (only if the end was cut off)
//! at 0x1234: 00ff12
//! ```

use crate::images;

/// The difference between an image and its base, as text.
pub fn describe(base: usize, image: &[u8], comments: &[String]) -> String {
    let before = &images::base(base).image;
    let mut text: String = comments.iter().map(|line| format!("# {line}\n")).collect();
    text += &format!("image {}\n", images::NAMES[base]);
    if image.len() != before.len() {
        text += &format!("length {}\n", image.len());
    }
    let mut at = 0;
    while at < image.len().min(before.len()) {
        if image[at] == before[at] {
            at += 1;
            continue;
        }
        let end = (at..image.len().min(at + 32)).find(|&next| image[next] == before[next]);
        let end = end.unwrap_or(image.len().min(at + 32));
        let hex: String = image[at..end].iter().map(|byte| format!("{byte:02x}")).collect();
        text += &format!("at {at:#x}: {hex}\n");
        at = end;
    }
    text
}

/// Makes the image again.
///
/// # Errors
/// The line that makes no sense.
pub fn apply(text: &str) -> Result<Vec<u8>, String> {
    let mut image = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        apply_line(&mut image, line).ok_or_else(|| line.to_owned())?;
    }
    Ok(image)
}

fn apply_line(image: &mut Vec<u8>, line: &str) -> Option<()> {
    if let Some(name) = line.strip_prefix("image ") {
        *image = images::base(images::index_of(name)?).image.clone();
    } else if let Some(length) = line.strip_prefix("length ") {
        image.truncate(length.parse().ok()?);
    } else {
        let (at, hex) = line.strip_prefix("at 0x")?.split_once(": ")?;
        let at = usize::from_str_radix(at, 16).ok()?;
        for index in 0..hex.len() / 2 {
            let byte = u8::from_str_radix(hex.get(2 * index..2 * index + 2)?, 16).ok()?;
            *image.get_mut(at + index)? = byte;
        }
    }
    Some(())
}
