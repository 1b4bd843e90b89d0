// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text of others, for a terminal or a log.

use std::borrow::Cow;

/// With control characters written out: a name or a path that moves the cursor, or begins
/// a line of its own, could say anything in our name.
pub fn printable(text: &str) -> Cow<'_, str> {
    match text.contains(char::is_control) {
        false => text.into(),
        true => text.chars().map(shown).collect::<String>().into(),
    }
}

fn shown(c: char) -> String {
    match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out() {
        assert!(matches!(printable("a b/\u{e9}"), Cow::Borrowed(_)));
        assert_eq!(printable("a\n\x1b[2J\x7f\u{9b}\u{e9}"), "a\\n\\u{1b}[2J\\u{7f}\\u{9b}\u{e9}");
    }
}
