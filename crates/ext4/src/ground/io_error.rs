//! Conversion to `std::io::Error`.

use crate::ground::error::Error;
use std::io;

/// For code that returns [`io::Result`]: `?` converts.
///
/// The [`io::Error`] wraps this error, because it says more than a number: [`io::Error::get_ref`] and
/// [`io::Error::downcast`] return it, with its [`Error::errno`]; `Display` prints its message.
/// [`io::Error::raw_os_error`] is `None`, as for every wrapped error. The [`io::ErrorKind`] is the one that std has for
/// the errno, with three exceptions:
///
/// - damage (`EUCLEAN`, for which std has no kind) is [`io::ErrorKind::InvalidData`];
/// - an interrupted device request (`EINTR`) is [`io::ErrorKind::Other`], because std's helpers retry
///   [`io::ErrorKind::Interrupted`] forever, and the library has already retried where that helps;
/// - a value too large to return (`E2BIG`) is [`io::ErrorKind::FileTooLarge`].
///
/// ```
/// fn first_byte(volume: &uext4::Volume, path: &str) -> std::io::Result<u8> {
///     let file = volume.open_file(path, uext4::OpenOptions::new().read(true))?;
///     let mut byte = [0];
///     file.read_any_at(&mut byte, 0)?;
///     Ok(byte[0])
/// }
///
/// let error = std::io::Error::from(uext4::Error::NotDirectory);
/// assert_eq!(error.kind(), std::io::ErrorKind::NotADirectory);
/// assert_eq!(error.downcast::<uext4::Error>().unwrap().errno(), 20); // ENOTDIR
/// ```
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match (error.errno(), io::Error::from_raw_os_error(error.errno()).kind()) {
            (crate::ground::error::EUCLEAN, _) => io::ErrorKind::InvalidData,
            (libc::E2BIG, _) => io::ErrorKind::FileTooLarge,
            (_, io::ErrorKind::Interrupted) => io::ErrorKind::Other,
            (_, kind) => kind,
        };
        io::Error::new(kind, error)
    }
}
