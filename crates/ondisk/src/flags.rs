//! Flag words that keep bits this crate does not know, with the names that e2fsprogs prints.

use std::borrow::Cow;

/// The names of the set bits of `bits`, lowest first; a bit without a name becomes `prefix` and its number.
pub(crate) fn names(
    bits: u32,
    known: &'static [(u32, &'static str)],
    prefix: &str,
) -> Vec<Cow<'static, str>> {
    (0..u32::BITS)
        .filter_map(|number| {
            let bit = 1_u32.checked_shl(number)?;
            if bits & bit == 0 {
                return None;
            }
            match known.iter().find(|(known_bit, _)| *known_bit == bit) {
                Some((_, name)) => Some(Cow::Borrowed(*name)),
                None => Some(Cow::Owned(format!("{prefix}{number}"))),
            }
        })
        .collect()
}

/// Defines a bitflags type over a 32- or 16-bit word that retains unknown bits and can name each set bit.
macro_rules! named_flags {
    (
        $(#[$doc:meta])*
        pub struct $name:ident: $word:ty, unknown $prefix:literal {
            $( $(#[$inner:ident $($args:tt)*])* $flag:ident = $value:literal, $text:literal; )*
        }
    ) => {
        bitflags::bitflags! {
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
            pub struct $name: $word {
                $( $(#[$inner $($args)*])* const $flag = $value; )*
                // Unknown bits are kept: a set bit may carry meaning for others.
                const _ = !0;
            }
        }

        impl $name {
            const NAMES: &'static [(u32, &'static str)] = &[ $( ($value, $text), )* ];

            /// Bits that have a name here.
            pub const KNOWN: $name = $name::from_bits_retain(0 $( | $value )*);

            /// The names of the set bits, lowest bit first, as e2fsprogs prints them.
            pub fn names(&self) -> Vec<std::borrow::Cow<'static, str>> {
                crate::flags::names(u32::from(self.bits()), Self::NAMES, $prefix)
            }

            /// The set bits that have no name here.
            pub fn unknown(&self) -> $name {
                $name::from_bits_retain(self.bits() & !Self::KNOWN.bits())
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.names().join(" "))
            }
        }
    };
}

pub(crate) use named_flags;
