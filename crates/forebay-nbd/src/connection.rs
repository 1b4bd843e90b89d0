// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection to a server.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fmt;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;

use crate::library::{functions, Callback, Functions, Handle};
use crate::Failure;

const TRANSPORTS: u32 = 1 | 2; // LIBNBD_ALLOW_TRANSPORT_TCP, _UNIX
const TLS_DISABLE: i32 = 0;
const DIRECTION_READ: u32 = 1;
const DIRECTION_WRITE: u32 = 2;
const SIZE_MINIMUM: i32 = 0;
const SIZE_MAXIMUM: i32 = 2;

/// The server's description of the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    pub size_bytes: u64,
    /// Requests are multiples of it; 0: it does not say.
    pub block_min: u64,
    /// No longer than that; 0: it does not say.
    pub block_max: u64,
    pub read_only: bool,
    pub can_flush: bool,
    pub can_trim: bool,
    pub can_zero: bool,
    /// A flush by one connection includes the writes of the others.
    pub multi_conn: bool,
}

/// A request to the server.
#[derive(Debug)]
pub enum Command {
    /// So many bytes.
    Read(usize),
    Write(Vec<u8>),
    Flush,
    Trim(u64),
    Zero(u64),
}

impl Command {
    /// Does the request change the export's content?
    pub fn changes(&self) -> bool {
        matches!(self, Command::Write(_) | Command::Trim(_) | Command::Zero(_))
    }
}

/// A command that has ended.
#[derive(Debug)]
pub struct Done {
    /// Both of [`Connection::submit`].
    pub token: u64,
    pub command: Command,
    /// The data of a read.
    pub data: Vec<u8>,
    pub result: Result<(), Failure>,
}

/// The events to poll [`Connection::fd`] for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    pub read: bool,
    pub write: bool,
}

struct InFlight {
    token: u64,
    /// libnbd has the address of what is written, or read, until the command has ended or
    /// the handle is closed; the Vecs may move, their bytes do not.
    command: Command,
    data: Vec<u8>,
}

impl InFlight {
    fn done(self, result: Result<(), Failure>) -> Done {
        Done { token: self.token, command: self.command, data: self.data, result }
    }
}

/// A connection; to be used by the thread that made it.
pub struct Connection {
    nbd: &'static Functions,
    handle: NonNull<Handle>,
    /// By libnbd's cookies.
    in_flight: HashMap<u64, InFlight>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("in_flight", &self.in_flight.len()).finish()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used after this; the buffers are dropped after it.
        unsafe { (self.nbd.close)(self.handle.as_ptr()) }
    }
}

impl Connection {
    /// Begins to connect to `nbd://HOST[:PORT]/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`;
    /// the name of a host is looked up before it returns.
    pub fn begin(uri: &str) -> Result<Connection, Failure> {
        Connection::begin_in(uri, false)
    }

    /// As above, to ask the server for the export, and not to use it: the connection is never up,
    /// unless the server has the old protocol without options.
    pub fn begin_to_ask(uri: &str) -> Result<Connection, Failure> {
        Connection::begin_in(uri, true)
    }

    fn begin_in(uri: &str, asks: bool) -> Result<Connection, Failure> {
        let nbd = functions()?;
        let text = CString::new(uri).map_err(|_| Failure::Nbd {
            text: "the URI has a zero byte".into(),
            errno: 22, // EINVAL
        })?;
        // SAFETY: needs no more than the library.
        let handle = NonNull::new(unsafe { (nbd.create)() }).ok_or_else(|| last(nbd))?;
        let new = Connection { nbd, handle, in_flight: HashMap::new() };
        let h = handle.as_ptr();
        // SAFETY: the handle is ours; the text ends with a zero and is copied.
        unsafe {
            new.ok((nbd.set_uri_allow_transports)(h, TRANSPORTS))?;
            new.ok((nbd.set_uri_allow_tls)(h, TLS_DISABLE))?;
            new.ok((nbd.set_opt_mode)(h, asks))?;
            new.ok((nbd.aio_connect_uri)(h, text.as_ptr()))?;
        }
        Ok(new)
    }

    /// Connected, and the export can be used.
    pub fn is_up(&self) -> bool {
        self.ask(self.nbd.aio_is_ready) || self.ask(self.nbd.aio_is_processing)
    }

    /// The server waits for a question, of a connection that asks.
    pub fn may_ask(&self) -> bool {
        self.ask(self.nbd.aio_is_negotiating)
    }

    /// Asks for the export.  When it may ask again, [`Connection::export`] has the answer, or an
    /// error if the server gave none.
    pub fn ask_for_export(&mut self) -> Result<(), Failure> {
        // SAFETY: the handle is ours.
        self.ok(unsafe { (self.nbd.aio_opt_info)(self.handle.as_ptr(), Callback::NONE) })
    }

    /// Asks no more: the server ends the connection.
    pub fn leave(&mut self) -> Result<(), Failure> {
        self.asked(self.nbd.aio_opt_abort).map(drop)
    }

    /// No command will end any more but by an error.
    pub fn is_down(&self) -> bool {
        self.ask(self.nbd.aio_is_dead) || self.ask(self.nbd.aio_is_closed)
    }

    /// The descriptor to poll; it changes only while connecting.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the handle is ours.
        let fd: RawFd = unsafe { (self.nbd.aio_get_fd)(self.handle.as_ptr()) };
        // SAFETY: libnbd's socket, open as long as the handle is.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    pub fn direction(&self) -> Direction {
        // SAFETY: the handle is ours.
        let d = unsafe { (self.nbd.aio_get_direction)(self.handle.as_ptr()) };
        Direction { read: d & DIRECTION_READ != 0, write: d & DIRECTION_WRITE != 0 }
    }

    /// Handles the events that the poll found.  An error: the connection is down.
    pub fn notify(&mut self, found: Direction) -> Result<(), Failure> {
        let now = self.direction();
        // SAFETY: the handle is ours, and waits for this.
        unsafe {
            if found.read && now.read {
                return self.ok((self.nbd.aio_notify_read)(self.handle.as_ptr()));
            }
            if found.write && now.write {
                return self.ok((self.nbd.aio_notify_write)(self.handle.as_ptr()));
            }
        }
        Ok(())
    }

    /// The export of a connection that is up.
    pub fn export(&self) -> Result<Export, Failure> {
        let nbd = self.nbd;
        let flag = |ask| self.asked(ask).map(|n| n > 0);
        let size = |n: i64| u64::try_from(n).map_err(|_| last(nbd));
        // SAFETY: the handle is ours.
        unsafe {
            let h = self.handle.as_ptr();
            Ok(Export {
                size_bytes: size((nbd.get_size)(h))?,
                block_min: size((nbd.get_block_size)(h, SIZE_MINIMUM))?,
                block_max: size((nbd.get_block_size)(h, SIZE_MAXIMUM))?,
                read_only: flag(nbd.is_read_only)?,
                can_flush: flag(nbd.can_flush)?,
                can_trim: flag(nbd.can_trim)?,
                can_zero: flag(nbd.can_zero)?,
                multi_conn: flag(nbd.can_multi_conn)?,
            })
        }
    }

    /// Sends a command; [`ended`](Connection::ended) tells its end with the same token.
    /// A request that cannot be sent comes back.
    pub fn submit(&mut self, token: u64, command: Command, offset: u64) -> Result<(), Done> {
        let (nbd, h, none) = (self.nbd, self.handle.as_ptr(), Callback::NONE);
        let mut data = match &command {
            Command::Read(n) => vec![0; *n],
            _ => Vec::new(),
        };
        // SAFETY: the handle is ours; a buffer stays where it is until libnbd is done
        // with it (in_flight, and Drop).
        let cookie = unsafe {
            match &command {
                Command::Read(n) => {
                    (nbd.aio_pread)(h, data.as_mut_ptr().cast(), *n, offset, none, 0)
                }
                Command::Write(bytes) => {
                    (nbd.aio_pwrite)(h, bytes.as_ptr().cast(), bytes.len(), offset, none, 0)
                }
                Command::Flush => (nbd.aio_flush)(h, none, 0),
                Command::Trim(n) => (nbd.aio_trim)(h, *n, offset, none, 0),
                Command::Zero(n) => (nbd.aio_zero)(h, *n, offset, none, 0),
            }
        };
        let op = InFlight { token, command, data };
        match u64::try_from(cookie) {
            Ok(cookie) => {
                self.in_flight.insert(cookie, op);
                Ok(())
            }
            Err(_) => Err(op.done(Err(last(nbd)))),
        }
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The commands that have ended since.
    pub fn ended(&mut self) -> Vec<Done> {
        let (nbd, h) = (self.nbd, self.handle.as_ptr());
        let ended = self.in_flight.keys().filter_map(|&cookie| {
            // SAFETY: the handle is ours; a command that has ended is told once, and
            // then its buffers are not libnbd's any more.
            match unsafe { (nbd.aio_command_completed)(h, cookie) } {
                0 => None,
                1 => Some((cookie, Ok(()))),
                _ => Some((cookie, Err(last(nbd)))),
            }
        });
        let ended: Vec<_> = ended.collect();
        let done = |(cookie, result)| Some(self.in_flight.remove(&cookie)?.done(result));
        ended.into_iter().filter_map(done).collect()
    }

    /// Ends it.  What was in flight may still be done by the server, or not.
    pub fn close(mut self) -> Vec<Done> {
        let gone = std::mem::take(&mut self.in_flight);
        drop(self); // and with it what libnbd knew of the buffers
        let failure = || Failure::Nbd { text: "the connection ended".into(), errno: 0 };
        gone.into_values().map(|op| op.done(Err(failure()))).collect()
    }

    fn ask(&self, question: unsafe extern "C" fn(*mut Handle) -> i32) -> bool {
        self.asked(question).is_ok_and(|n| n > 0)
    }

    fn asked(&self, question: unsafe extern "C" fn(*mut Handle) -> i32) -> Result<i32, Failure> {
        // SAFETY: the handle is ours, and these want nothing else.
        let n = unsafe { question(self.handle.as_ptr()) };
        self.ok(n).map(|()| n)
    }

    fn ok(&self, result: i32) -> Result<(), Failure> {
        match result {
            0.. => Ok(()),
            _ => Err(last(self.nbd)),
        }
    }
}

/// libnbd's record of this thread's last failure.
fn last(nbd: &Functions) -> Failure {
    // SAFETY: the text is this thread's, and copied before another call.
    unsafe {
        let text = (nbd.get_error)();
        let text = match text.is_null() {
            true => "libnbd tells no reason".into(),
            false => CStr::from_ptr(text).to_string_lossy().into_owned(),
        };
        Failure::Nbd { text, errno: (nbd.get_errno)() }
    }
}
