// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words by which people name what an option can be.

/// A text that is not what it should be.  It becomes [`crate::Error::Usage`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {way_out}")]
pub struct ParseError {
    pub what: String,
    pub way_out: &'static str,
}

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
            type Err = crate::report::ParseError;

            fn from_str(s: &str) -> std::result::Result<$type, Self::Err> {
                match s {
                    $($word => Ok($type::$variant),)+
                    _ => Err(crate::report::ParseError { what: format!($unknown, s), way_out: $way_out }),
                }
            }
        }
    };
}

pub(crate) use words;
