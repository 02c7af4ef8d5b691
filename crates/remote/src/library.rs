//! C libraries, loaded when they are needed.

use uext4_blockdev::{Error, Result};

/// A loaded library. It stays loaded until the process ends: it may have threads of its own.
pub(crate) struct Library {
    loaded: &'static libloading::Library,
    what: Named,
}

/// A library, and the packages that have it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named {
    /// The scheme that needs it.
    pub(crate) scheme: &'static str,
    /// Its file name, with the version of its interface.
    pub(crate) file: &'static str,
    /// Its packages, as a person reads them.
    pub(crate) install: &'static str,
}

impl Named {
    /// What the dynamic linker says is the source of the error.
    fn fault(self, error: &dyn std::error::Error) -> Error {
        let Named { scheme, file, install } = self;
        let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        Error::Library { scheme, library: file, install, reason }
    }
}

impl Library {
    /// Loads it.
    ///
    /// # Errors
    /// [`Error::Library`] if it is not there.
    pub(crate) fn load(what: Named) -> Result<Self> {
        // SAFETY: loading runs the initialisers of the library, which is one of the system's, asked for by its soname:
        // the caller names libraries that may be loaded at any time, from any thread.
        let loaded = unsafe { libloading::Library::new(what.file) }.map_err(|error| what.fault(&error))?;
        Ok(Library { loaded: Box::leak(Box::new(loaded)), what })
    }

    /// A function of it.
    ///
    /// # Errors
    /// [`Error::Library`] if it has none of this name: it is too old.
    ///
    /// # Safety
    /// `T` is a function pointer with the C signature that the library's header gives for this name.
    pub(crate) unsafe fn function<T: Copy>(&self, name: &str) -> Result<T> {
        // SAFETY: the caller's promise. The library is never unloaded, so that the pointer stays valid.
        unsafe { self.loaded.get::<T>(name) }.map(|symbol| *symbol).map_err(|error| self.what.fault(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_told_with_its_package() {
        let what = Named { scheme: "nbd", file: "libuext4-is-not-there.so.9", install: "a package" };
        let error = Library::load(what).err().unwrap();
        assert!(
            matches!(
                &error,
                Error::Library { library: "libuext4-is-not-there.so.9", install: "a package", .. }
            ),
            "{error:?}"
        );
        assert_eq!(error.errno(), libc::EOPNOTSUPP);
        let text = error.to_string();
        assert!(text.starts_with("`nbd:` devices need libuext4-is-not-there.so.9 (a package): "), "{text}");
        assert!(text.ends_with("No such file or directory"), "what the dynamic linker says: {text}");
    }

    /// The C library stands for one that is too old.
    #[test]
    fn a_function_that_is_not_there_is_told() {
        let what = Named { scheme: "nbd", file: "libc.so.6", install: "libc6" };
        let library = Library::load(what).unwrap();
        // SAFETY: the type is that of the C library's header.
        let there = unsafe { library.function::<unsafe extern "C" fn() -> libc::pid_t>("getpid") }.unwrap();
        // SAFETY: it may be called at any time.
        assert_eq!(unsafe { there() }.cast_unsigned(), std::process::id());
        // SAFETY: there is no such function.
        let missing = unsafe { library.function::<unsafe extern "C" fn()>("uext4_is_not_there") };
        assert!(
            matches!(&missing, Err(Error::Library { reason, .. }) if reason.contains("uext4_is_not_there"))
        );
    }
}
