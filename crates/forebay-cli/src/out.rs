// SPDX-License-Identifier: MIT OR Apache-2.0
//! Printing: a table or one value for people, JSON for programs.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Context;
use forebay::printable;
pub use forebay::quoted;
use serde::Serialize;

/// Whether anything was printed.
static PRINTED: AtomicBool = AtomicBool::new(false);
/// Whether the reader has gone.
static UNREAD: AtomicBool = AtomicBool::new(false);

/// Prints a line.  A missing reader is no error: the work is done, and the exit code reports it.
pub fn line(text: impl Display) -> anyhow::Result<()> {
    raw_line(printable_lines(&text.to_string()))
}

/// Makes each of several lines printable.
fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Moves to the top left corner and clears the screen.
pub fn clear() -> anyhow::Result<()> {
    raw_line("\x1b[H\x1b[2J")
}

fn raw_line(text: impl Display) -> anyhow::Result<()> {
    whole(format!("{text}\n").as_bytes())
}

/// Prints bytes unchanged.
pub fn whole(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => UNREAD.store(true, Relaxed),
        written => written.context("standard output cannot be written")?,
    }
    PRINTED.store(true, Relaxed);
    Ok(())
}

/// Whether the reader has gone, so that a command that prints repeatedly can end.
pub fn is_unread() -> bool {
    UNREAD.load(Relaxed)
}

/// Prints a warning on standard error, if anybody reads that.
#[track_caller]
pub fn warn(text: impl Display) {
    forebay::diagnostics::warn(text);
}

/// The exit code of a server that has ended, and was closed whatever the reason.  The reason
/// becomes the error; an error of the close is printed before it.
pub fn served<E: Into<anyhow::Error>>(
    served: anyhow::Result<()>,
    closed: Result<(), E>,
) -> anyhow::Result<u8> {
    match (served, closed.map_err(Into::into)) {
        (Err(e), Err(of_close)) => {
            warn(format_args!("forebay: {of_close}"));
            Err(e)
        }
        (served, closed) => served.and(closed).map(|()| 0),
    }
}

/// How long a service that ends waits for the reader of its standard error.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// Prepares a process that serves others.  From here on it never waits for a reader of its standard
/// error, not even in a panic.
pub fn as_a_service() {
    forebay::diagnostics::never_wait();
    std::panic::set_hook(Box::new(|panic| warn(format_args!("forebay: {panic}"))));
}

/// Puts a file with these bytes at the path, atomically.  An existing file with that name, or with
/// the temporary name, is replaced or left alone, and links are never followed.  The directory may
/// belong to another user, who makes links in it, while this process runs as root.  Anything else
/// at the path, such as /dev/null, is left alone.
pub fn replace_file(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    // Other programs use a device, a FIFO or a socket.
    match std::fs::symlink_metadata(path).map(|found| found.file_type()) {
        Ok(kind) if !kind.is_file() && !kind.is_symlink() => {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "what is there is no file"));
        }
        _ => {}
    }
    loop {
        let mut new = OsString::from(".");
        new.push(name);
        new.push(format!(".{:016x}", RandomState::new().build_hasher().finish()));
        let new = path.with_file_name(new);
        // With O_EXCL no link is followed, not even a dangling one.
        let made = File::options().write(true).create_new(true).mode(mode).open(&new);
        let mut file = match made {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            made => made?,
        };
        let written = file.write_all(bytes).and_then(|()| std::fs::rename(&new, path));
        if written.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        return written;
    }
}

/// Escapes the control characters that JSON may have as they are, and a terminal may obey.
fn escaped_controls(json: String) -> String {
    let control = |c: char| c.is_control() && c != '\n';
    match json.contains(control) {
        false => json,
        true => json.chars().fold(String::new(), |mut text, c| {
            match control(c) {
                true => text += &format!("\\u{:04x}", u32::from(c)),
                false => text.push(c),
            }
            text
        }),
    }
}

/// Prints a value as indented JSON, which ends with a newline.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    raw_line(escaped_controls(serde_json::to_string_pretty(value)?))
}

/// Prints a value as one line of JSON, for output that is repeated.
pub fn json_line(value: &impl Serialize) -> anyhow::Result<()> {
    raw_line(escaped_controls(serde_json::to_string(value)?))
}

/// Prints an error as JSON, unless the command has already printed something.
pub fn json_error(message: &str, exit_code: u8) {
    if !PRINTED.load(Relaxed) {
        let error = serde_json::json!({ "message": message, "exit_code": exit_code });
        let _ = json(&serde_json::json!({ "error": error }));
    }
}

/// Columns as wide as their widest cell; the first is left-aligned, the others
/// too where the header starts with '<'.
pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(header: &[&'static str]) -> Self {
        Table { header: header.to_vec(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.header.len());
        self.rows.push(cells.iter().map(|cell| printable(cell).into_owned()).collect());
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let left = |i: usize| i == 0 || self.header[i].starts_with('<');
        let title = |i: usize| self.header[i].trim_start_matches('<');
        let width = |i: usize| {
            let cells = self.rows.iter().map(|r| r[i].chars().count());
            cells.max().unwrap_or(0).max(title(i).chars().count())
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let line = |cell: &dyn Fn(usize) -> String| {
            let cells = widths.iter().enumerate().map(|(i, &w)| match left(i) {
                true => format!("{:w$}", cell(i)),
                false => format!("{:>w$}", cell(i)),
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
        };
        write!(f, "{}", line(&|i| title(i).to_string()))?;
        for row in &self.rows {
            write!(f, "\n{}", line(&|i| row[i].clone()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_server_has_ended_is_its_exit_code() {
        let error = |code: u8| forebay_server::Error::service(code, "what", "way out");
        let table =
            [(None, None, 0), (None, Some(4), 4), (Some(13), None, 13), (Some(13), Some(4), 13)];
        for (of_it, of_close, code) in table {
            let of_it = of_it.map_or(Ok(()), |code| Err(error(code).into()));
            let ended = served(of_it, of_close.map_or(Ok(()), |code| Err(error(code))));
            let ended = ended.unwrap_or_else(|e| crate::exit_code(&e));
            assert_eq!(ended, code, "{of_close:?}");
        }
    }

    #[test]
    fn tables_line_up() {
        let mut t = Table::new(&["name", "size", "<origin"]);
        t.row(vec!["a".into(), "12 MiB".into(), "/x".into()]);
        t.row(vec!["longer".into(), "1 B".into(), "/yyy".into()]);
        assert_eq!(
            t.to_string(),
            "name      size  origin\na       12 MiB  /x\nlonger     1 B  /yyy"
        );
    }
}
