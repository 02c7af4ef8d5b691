//! What a file holds, by its first bytes.

use uext4_blockdev::spec::Format;
use uext4_blockdev::{Error, ImageFault, Result, Scratch, Store};

/// First bytes of a qcow2 image, before its version.
pub(crate) const QCOW: [u8; 4] = *b"QFI\xfb";
/// First bytes of a sparse VMDK extent.
pub(crate) const VMDK: [u8; 4] = *b"KDMV";
/// First bytes of the text that describes a VMDK image.
pub(crate) const DESCRIPTOR: &[u8] = b"# Disk DescriptorFile";

/// Recognises `file`; `wanted`: what it has to be.
pub(crate) fn recognise(file: &dyn Store, path: &str, wanted: Option<Format>) -> Result<Format> {
    if wanted == Some(Format::Raw) {
        return Ok(Format::Raw);
    }
    let mut first = Scratch::new(file.geometry().logical_block as usize);
    // What it does not have stays zero.
    file.read_upto(&mut first, 0)?;
    let found = if first.starts_with(&QCOW) {
        Format::Qcow2
    } else if first.starts_with(&VMDK) || first.starts_with(DESCRIPTOR) {
        Format::Vmdk
    } else {
        Format::Raw
    };
    match wanted {
        Some(wanted) if wanted != found => {
            Err(Error::Image { path: path.to_owned(), fault: ImageFault::NotOne(wanted.name()) })
        }
        _ => Ok(found),
    }
}

/// Whether the name of a file says that it is such an image.
pub(crate) fn is_named(path: &std::path::Path, format: Format) -> bool {
    let Some(end) = path.extension().and_then(|end| end.to_str()) else { return false };
    match format {
        Format::Raw => false,
        Format::Qcow2 => end.eq_ignore_ascii_case("qcow2") || end.eq_ignore_ascii_case("qcow"),
        Format::Vmdk => end.eq_ignore_ascii_case("vmdk"),
    }
}
