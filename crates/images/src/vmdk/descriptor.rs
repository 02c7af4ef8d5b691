//! The text of a VMDK image.

use uext4_blockdev::ImageFault;

/// Most extents of an image.
const EXTENTS_MAX: usize = 4096;

/// What an extent is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ExtentKind {
    /// Bytes of a file from this sector on.
    Flat {
        name: String,
        offset: u64,
    },
    Sparse {
        name: String,
    },
    Zeros,
}

/// A run of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) sectors: u64,
    pub(super) kind: ExtentKind,
}

/// The text, as far as it matters to a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// `monolithicSparse`, `streamOptimized`, …
    pub(super) kind: String,
    pub(super) extents: Vec<Extent>,
}

fn wrong(line: &str) -> ImageFault {
    ImageFault::Header(format!("the line `{}` of its text", line.chars().take(100).collect::<String>()))
}

impl Descriptor {
    /// Parses the text, which zeros may follow.
    pub(super) fn parse(bytes: &[u8]) -> Result<Descriptor, ImageFault> {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        let text = std::str::from_utf8(&bytes[..end]);
        let text = text.map_err(|_| ImageFault::Unsupported("a text that is not UTF-8".into()))?;
        let mut found = Descriptor { kind: "unknown".into(), extents: Vec::new() };
        for line in text.lines().map(str::trim) {
            if let Some(extent) = Extent::parse(line)? {
                found.extents.push(extent);
                if found.extents.len() > EXTENTS_MAX {
                    return Err(ImageFault::Unsupported(format!("more than {EXTENTS_MAX} extents")));
                }
                continue;
            }
            let Some((key, value)) = line.split_once('=') else { continue };
            let value = value.trim().trim_matches('"');
            match key.trim() {
                "createType" => found.kind = value.to_owned(),
                "parentCID" if !value.eq_ignore_ascii_case("ffffffff") => {
                    return Err(ImageFault::Unsupported("an image over a parent".into()));
                }
                "encoding" if !["UTF-8", "windows-1252", "ISO-8859-1"].contains(&value) => {
                    return Err(ImageFault::Unsupported(format!("a text in {value}")));
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

impl Extent {
    /// `RW 4192256 SPARSE "test-s001.vmdk"`, with an offset for flat ones.
    fn parse(line: &str) -> Result<Option<Extent>, ImageFault> {
        let mut words = line.split_whitespace();
        if !matches!(words.next(), Some("RW" | "RDONLY" | "NOACCESS")) {
            return Ok(None);
        }
        let sectors = words.next().and_then(|word| word.parse().ok()).ok_or_else(|| wrong(line))?;
        let kind = words.next().ok_or_else(|| wrong(line))?;
        if kind == "ZERO" {
            return Ok(Some(Extent { sectors, kind: ExtentKind::Zeros }));
        }
        let (_, rest) = line.split_once('"').ok_or_else(|| wrong(line))?;
        let (name, rest) = rest.split_once('"').ok_or_else(|| wrong(line))?;
        let name = name.to_owned();
        let kind = match kind {
            "FLAT" | "VMFS" => {
                let offset = rest.split_whitespace().next().map_or(Ok(0), str::parse);
                ExtentKind::Flat { name, offset: offset.map_err(|_| wrong(line))? }
            }
            "SPARSE" => ExtentKind::Sparse { name },
            other => return Err(ImageFault::Unsupported(format!("an extent of type {other}"))),
        };
        Ok(Some(Extent { sectors, kind }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_its_extents() {
        let text = "# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\ncreateType=\"twoGbMaxExtentFlat\"\n\n\
                    RW 100 FLAT \"a b-f001.vmdk\" 7\nRW 28 ZERO\nRDONLY 3 SPARSE \"c.vmdk\"\n\0\0";
        let found = Descriptor::parse(text.as_bytes()).unwrap();
        assert_eq!(found.kind, "twoGbMaxExtentFlat");
        let flat = ExtentKind::Flat { name: "a b-f001.vmdk".into(), offset: 7 };
        assert_eq!(found.extents[0], Extent { sectors: 100, kind: flat });
        assert_eq!(found.extents[1], Extent { sectors: 28, kind: ExtentKind::Zeros });
        assert_eq!(found.extents[2].kind, ExtentKind::Sparse { name: "c.vmdk".into() });
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let parse = |text: &str| Descriptor::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(parse("parentCID=12345678\n").contains("parent"));
        assert!(parse("RW x FLAT \"a\" 0\n").contains("line"));
        assert!(parse("RW 5 FLAT a 0\n").contains("line"));
        assert!(parse("RW 5 SESPARSE \"a\"\n").contains("SESPARSE"));
        assert!(Descriptor::parse(b"\xff\xfe").is_err());
    }
}
