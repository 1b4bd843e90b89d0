// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words by which people name what an option can be.

/// `Display` and `FromStr` of an enum from one list of its words.  `unknown` is the
/// message about another word, `{}`; `way_out` says what to use.
macro_rules! words {
    ($type:ident { $($word:literal => $variant:ident),+ $(,)? }
     unknown: $unknown:literal, way_out: $way_out:literal) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self {
                    $($type::$variant => $word,)+
                })
            }
        }

        impl std::str::FromStr for $type {
            type Err = crate::error::Error;

            fn from_str(s: &str) -> crate::error::Result<$type> {
                match s {
                    $($word => Ok($type::$variant),)+
                    _ => Err(crate::error::Error::usage(format!($unknown, s), $way_out)),
                }
            }
        }
    };
}

pub(crate) use words;
