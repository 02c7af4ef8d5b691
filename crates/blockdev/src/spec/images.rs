//! What a file holds, and which other files it may name.

use std::fmt;

/// The format of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The bytes of the disk.
    Raw,
    /// QEMU's format, versions 2 and 3.
    Qcow2,
    /// VMware's format, for reading.
    Vmdk,
}

impl Format {
    /// Its name in the device grammar.
    pub fn name(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
            Format::Vmdk => "vmdk",
        }
    }

    /// The format of this name.
    pub fn of(name: &str) -> Option<Self> {
        [Format::Raw, Format::Qcow2, Format::Vmdk].into_iter().find(|format| format.name() == name)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which of the files that an image names are opened: its backing file, its data file, its extents. An image of unknown
/// origin may name any file that its reader can open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Named {
    /// None: an image that needs one is refused.
    No,
    /// Regular files in the image's directory or below it, if the user said that the file is an image: by `format=`, or
    /// by the end of its name.
    #[default]
    Beside,
    /// Any regular file or block device.
    Any,
}

impl Named {
    /// Its name in the device grammar.
    pub fn name(self) -> &'static str {
        match self {
            Named::No => "no",
            Named::Beside => "beside",
            Named::Any => "any",
        }
    }

    /// The rule of this name.
    pub fn of(name: &str) -> Option<Self> {
        [Named::No, Named::Beside, Named::Any].into_iter().find(|rule| rule.name() == name)
    }
}
