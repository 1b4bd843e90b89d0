// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text of others, for a terminal or a log.

use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::Utf8Chunk;

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

/// Quotes a path for a shell, on one line: bash, zsh, ksh, and sh since POSIX of 2024.
pub fn quoted(path: &Path) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    match path.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(plain) => text.into(),
        Some(text) if !text.contains(char::is_control) => {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
        _ => {
            let chunks = path.as_os_str().as_bytes().utf8_chunks();
            format!("$'{}'", chunks.map(escaped).collect::<String>())
        }
    }
}

/// Bytes that are no text, and control characters, by three octal digits: what follows is never
/// taken for another digit.
fn escaped(chunk: Utf8Chunk<'_>) -> String {
    let octal = |bytes: &[u8]| bytes.iter().map(|b| format!("\\{b:03o}")).collect::<String>();
    let shown = |c: char| match c {
        '\'' | '\\' => format!("\\{c}"),
        c if c.is_control() => octal(c.encode_utf8(&mut [0; 4]).as_bytes()),
        c => c.into(),
    };
    chunk.valid().chars().map(shown).chain([octal(chunk.invalid())]).collect()
}

/// The text by which a whole path is known: two paths have two texts.  Bytes that are no text are
/// written as [`quoted`] has them, and a whole path begins with no dollar sign.
pub fn path_in_text(path: &Path) -> String {
    path.to_str().map_or_else(|| quoted(path), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::ffi::OsStr;

    #[test]
    fn control_characters_are_written_out() {
        assert!(matches!(printable("a b/\u{e9}"), Cow::Borrowed(_)));
        assert_eq!(printable("a\n\x1b[2J\x7f\u{9b}\u{e9}"), "a\\n\\u{1b}[2J\\u{7f}\\u{9b}\u{e9}");
    }

    #[test]
    fn paths_for_a_shell() {
        let q = |path: &str| quoted(path.as_ref());
        assert_eq!(q("/dev/pmem0"), "/dev/pmem0");
        assert_eq!(q("a b"), "'a b'");
        assert_eq!(q("it's"), r"'it'\''s'");
        assert_eq!(q("$x"), "'$x'");
        assert_eq!(q("a\nb"), r"$'a\012b'");
        let bytes = |path: &[u8]| quoted(OsStr::from_bytes(path).as_ref());
        assert_eq!(bytes(b"\xff1'\\\xc2\x9b\xc3\xa9"), r"$'\3771\'\\\302\233é'");
    }

    #[test]
    fn no_two_paths_have_one_text() {
        let text = |path: &[u8]| path_in_text(OsStr::from_bytes(path).as_ref());
        assert_eq!(text(b"/a b'\\"), "/a b'\\");
        let paths: [&[u8]; 5] =
            [b"/b\xe4r", b"/b\xf6r", "/b\u{fffd}r".as_bytes(), b"/b\\344r", b"/b\xe4\\366r"];
        let texts: std::collections::HashSet<_> = paths.iter().map(|path| text(path)).collect();
        assert_eq!(texts.len(), paths.len(), "{texts:?}");
    }
}
