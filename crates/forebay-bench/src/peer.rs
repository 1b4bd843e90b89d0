// SPDX-License-Identifier: MIT OR Apache-2.0
//! Another program that does the same: bench/pmemlog.c.  It gets a line "BATCH" for each
//! turn, and answers with operations a second.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::BenchError;

pub(crate) struct Peer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

fn failed(what: &str, source: std::io::Error) -> BenchError {
    BenchError::System { what: what.to_owned(), source }
}

impl Peer {
    pub fn start(program: &Path, bytes: u32, threads: u32, logs: u32) -> Result<Self, BenchError> {
        let mut child = Command::new(program)
            .args([bytes.to_string(), threads.to_string(), logs.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| failed(&format!("starting {}", program.display()), e))?;
        let missing = || std::io::ErrorKind::BrokenPipe.into();
        let to = child.stdin.take().ok_or_else(|| failed("a pipe", missing()))?;
        let from = child.stdout.take().ok_or_else(|| failed("a pipe", missing()))?;
        Ok(Self { child, to, from: BufReader::new(from) })
    }

    /// Operations a second of so many by each thread.
    pub fn turn(&mut self, batch: u32) -> Result<f64, BenchError> {
        let mut line = String::new();
        writeln!(self.to, "{batch}")
            .and_then(|()| self.to.flush())
            .and_then(|()| self.from.read_line(&mut line))
            .map_err(|e| failed("talking to the other program", e))?;
        line.trim().parse().map_err(|_| {
            BenchError::Options(format!("the other program answered {:?}", line.trim()))
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
