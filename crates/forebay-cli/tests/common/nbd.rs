// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small NBD client that can misbehave, and a `forebay serve` to try it on.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Bench;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const WRITE_ZEROES: u16 = 6;

const GO: u32 = 7;

pub struct Client(pub UnixStream);

impl Client {
    /// Connects up to the first option.
    pub fn greeted(socket: &Path) -> io::Result<Client> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut client = Client(stream);
        let greeting = client.take(18)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        client.0.write_all(&3u32.to_be_bytes())?;
        Ok(client)
    }

    /// Connects until requests can be sent.
    pub fn connect(socket: &Path, export: &str) -> io::Result<Client> {
        let mut client = Client::greeted(socket)?;
        let mut data = (export.len() as u32).to_be_bytes().to_vec();
        data.extend(export.as_bytes());
        data.extend([0, 0]);
        client.option(GO, &data)?;
        loop {
            match client.option_reply()? {
                (1, _) => return Ok(client),
                (3, _) => {}
                (kind, text) => panic!("{kind:x}: {}", String::from_utf8_lossy(&text)),
            }
        }
    }

    pub fn option(&mut self, option: u32, data: &[u8]) -> io::Result<()> {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        self.0.write_all(&bytes)
    }

    /// The kind and the data of a reply to an option.
    pub fn option_reply(&mut self) -> io::Result<(u32, Vec<u8>)> {
        let head = self.take(20)?;
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        Ok((number(12), self.take(number(16) as usize)?))
    }

    pub fn send(&mut self, kind: u16, cookie: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        self.send_raw(0, kind, cookie, offset, data.len() as u32, data)
    }

    pub fn send_raw(
        &mut self,
        flags: u16,
        kind: u16,
        cookie: u64,
        offset: u64,
        len: u32,
        data: &[u8],
    ) -> io::Result<()> {
        let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend(data);
        self.0.write_all(&bytes)
    }

    /// The error and the cookie of the next reply.
    pub fn reply(&mut self) -> io::Result<(u32, u64)> {
        let head = self.take(16)?;
        assert_eq!(head[..4], 0x6744_6698u32.to_be_bytes());
        let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
        Ok((error, u64::from_be_bytes(head[8..].try_into().unwrap())))
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.send(WRITE, offset, offset, data).unwrap();
        self.reply().unwrap().0
    }

    pub fn flush(&mut self) -> u32 {
        self.send(FLUSH, 0, 0, &[]).unwrap();
        self.reply().unwrap().0
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, u32> {
        self.send_raw(0, READ, offset, offset, len as u32, &[]).unwrap();
        match self.reply().unwrap().0 {
            0 => Ok(self.take(len).unwrap()),
            error => Err(error),
        }
    }

    pub fn take(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

const SOCKET: &str = "run/nbd";

/// `forebay serve`, ready; killed when dropped.
pub struct Served {
    pub process: Child,
    pub socket: PathBuf,
    ready: BufReader<std::process::ChildStdout>,
}

impl Served {
    pub fn start(bench: &Bench, options: &[&str]) -> Served {
        Served::try_start(bench, options).expect("the server ended before it was ready")
    }

    /// Starts a server.  Returns the exit code if the server ended instead of becoming ready.
    pub fn try_start(bench: &Bench, options: &[&str]) -> Result<Served, i32> {
        let mut command = Served::command(bench, "pool");
        command.args(options);
        Served::ready(bench, command)
    }

    pub fn command(bench: &Bench, pool: impl AsRef<OsStr>) -> Command {
        let mut command = bench.command(&["serve", "--json", "--socket"]);
        command.arg(bench.path(SOCKET)).arg(pool);
        command
    }

    pub fn ready(bench: &Bench, mut command: Command) -> Result<Served, i32> {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let ready = BufReader::new(process.stdout.take().unwrap());
        let mut served = Served { process, socket: bench.path(SOCKET), ready };
        match served.ready_line() {
            true => Ok(served),
            false => Err(served.process.wait().unwrap().code().unwrap()),
        }
    }

    /// Whether the server reports again that it is ready, after a restart.
    pub fn ready_line(&mut self) -> bool {
        let mut line = String::new();
        self.ready.read_line(&mut line).unwrap();
        line.contains("\"ready\":true")
    }

    pub fn connect(&self, export: &str) -> Client {
        Client::connect(&self.socket, export).unwrap()
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        let status = std::process::Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(status.success());
    }

    /// The exit code after SIGTERM.  None: the server did not end.
    pub fn stop(&mut self) -> Option<i32> {
        self.signal("-TERM");
        self.wait()
    }

    pub fn wait(&mut self) -> Option<i32> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            if let Some(status) = self.process.try_wait().unwrap() {
                return Some(status.code().unwrap_or(-1));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
