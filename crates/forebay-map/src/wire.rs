// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages between a process that maps files and the server of its pool, on a Unix socket:
//! a request, an answer, the next request.  Each message is JSON, preceded by its length as a
//! little-endian number of four bytes.  The answer to the first request carries the descriptor
//! of the pool's file, and `Keep` carries that of a file of the process.  Shared files add a second connection for requests, and one on which the
//! server sends orders.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::{FileFate, Uuid};
use forebay_engine::Persist;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::store::{FileRecord, FrameInfo, Place, Stamp};

/// The version of the protocol.  Both sides must have the same.
pub const VERSION: u32 = 9;
/// How often a side that works long on a request or an order reports that it is alive.  A slow
/// disk may take any time, and a stopped process sends no report.
pub const LIVES: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 4000 });
/// The most bytes in a message, without its length.
pub const MESSAGE_MAX: usize = 64 << 10;
/// The most frames in one answer.
pub const FRAMES_MAX: usize = 256;

/// The socket on which the server of the pool with this UUID shares its memory.
pub fn socket_path(dir: &Path, pool: Uuid) -> PathBuf {
    dir.join(format!("{pool}.maps"))
}

/// A request of a process.  It concerns the process's own files and frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The first request on the first connection: attaches to a map.  None: the only map.
    Hello {
        version: u32,
        map: Option<String>,
    },
    /// This and the requests up to `Wanted` are those of [`Store`](crate::store::Store).
    AddFile {
        file: FileRecord,
    },
    SetSize {
        file: u32,
        size: u64,
    },
    SetAhead {
        file: u32,
        ahead: u64,
    },
    Promise {
        file: u32,
        size: u64,
    },
    Cut {
        file: u32,
        size: u64,
    },
    CutEnd {
        file: u32,
    },
    SetStamp {
        file: u32,
        stamp: Stamp,
    },
    RemoveFile {
        file: u32,
    },
    /// Comes with a duplicate of the descriptor by which the process has the file open.  Its locks
    /// and its lease of the file last until the server has written the file back, should the
    /// process die.  The answer is whether the server keeps it.
    Keep {
        file: u32,
    },
    Take {
        file: u32,
        segment: u64,
    },
    Show {
        frame: u32,
    },
    Release {
        frame: u32,
        discard: bool,
    },
    IsBroughtHome {
        identity: Vec<u8>,
    },
    /// Pins this many more segments, or unpins this many.
    Pin {
        segments: u32,
    },
    Unpin {
        segments: u32,
    },
    Wanted,
    /// Asks for the loss of the pool's file.
    Lost,
    /// Asks where the frame is now and how much of it the file has.
    Place {
        frame: u32,
    },
    /// Asks for the first file with this number or a higher one.
    FileFrom {
        file: u32,
    },
    /// Asks for the first frames with this number or higher ones.
    FramesFrom {
        frame: u32,
    },
    /// The process has nothing mapped any more and ends.
    Bye,
    /// Replaces `Hello` on another connection of the process with that number.
    Also {
        of: u64,
    },
    /// Likewise, on the connection for orders ([`Ordered`]).
    Orders {
        of: u64,
    },
    /// Joins a file that other processes map too ([`crate::sharing`]) and that has that
    /// identity.  Orders refer to it by `visit`.
    Join {
        visit: u32,
        path: String,
        identity: Vec<u8>,
        room: u64,
    },
    /// The process has nothing of the file mapped any more.  `unsynced`: some of its stores may
    /// not be durable.
    Leave {
        home: u32,
        unsynced: bool,
    },
    /// The process touched a segment and needs a frame.
    Fill {
        home: u32,
        segment: u64,
    },
    /// Prepares the segment so that the guest can make its pages durable.  None: makes the size
    /// durable.
    Settle {
        home: u32,
        segment: Option<u64>,
    },
    /// Makes the stores of all other guests to a range durable.
    SyncOthers {
        home: u32,
        at: u64,
        len: u64,
    },
    /// Makes durable what others have changed of the file's attributes and names.  `touched`: the
    /// guest has changed some.
    SyncAttributes {
        home: u32,
        touched: bool,
    },
    /// This and the following requests are those of [`MapFile`](crate::MapFile).
    EndCut {
        home: u32,
    },
    Resize {
        home: u32,
        size: u64,
    },
    /// Gives the process a place for bytes after the end of the file, at `at` or at the end.  Until the
    /// last `Grown`, or the end of the process, nobody else changes the size.
    Grow {
        home: u32,
        at: Option<u64>,
        len: u64,
    },
    /// The bytes are there up to `end`.
    Grown {
        home: u32,
        end: u64,
        more: bool,
    },
    Allocate {
        home: u32,
        at: u64,
        len: u64,
    },
    GiveBack {
        home: u32,
        segment: u64,
    },
    WriteBack {
        home: u32,
    },
    IsDirty {
        home: u32,
    },
}

/// A promise on which a guest may rely when it makes pages of a segment durable.  The file has its
/// mark, its size, and blocks for `bytes` bytes of the segment, all durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    pub segment: u64,
    pub frame: u32,
    pub bytes: u32,
    /// The number of truncations at the time.  After another truncation the grant is void,
    /// because the bytes that were cut off have no blocks.
    pub cuts: u64,
    /// The frame's place.  None: the guest knows the place already.
    pub place: Option<Place>,
}

/// An order of the server, or the reply to it, with the order's number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ordered<T> {
    pub number: u64,
    pub what: T,
}

/// An answer of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    Hello(Share),
    Done,
    Yes(bool),
    Number(u32),
    /// None: the file is there.
    Lost(Option<FileFate>),
    /// None: no frame is free.
    Taken(Option<(u32, Place)>),
    Place(Place),
    File(Option<(u32, FileRecord)>),
    Frames(Vec<FrameInfo>),
    /// Ask again soon: a process that had the file has died, or others are busy with it.
    Wait,
    /// Not the answer yet: the server is working on the request.
    Working,
    /// The number of the file and of its segments.  The descriptor of its board comes with it.
    Joined {
        home: u32,
        segments: u64,
    },
    /// None: the segment has no frame, or the request was about the size.
    Granted(Option<Grant>),
    At(u64),
    Failed {
        refused: bool,
        why: String,
    },
}

/// A map and its pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The server's process.
    pub pid: u32,
    /// The number by which the server links other connections to the process.
    pub number: u64,
    /// Identifies the pool's file or device.  A copy has another value.
    pub media: String,
    pub media_bytes: u64,
    /// Whether the mapping must be synchronous (MAP_SYNC), as DAX allows.
    pub synchronous: bool,
    pub persist: Method,
    pub pool: Uuid,
    pub generation: u64,
    pub share_bytes: u64,
    pub map: String,
    pub map_uuid: Uuid,
    pub at: String,
    pub frames: u32,
}

/// The method by which stores become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    Nt,
    Clwb,
    Eadr,
    Msync,
}

impl From<Persist> for Method {
    fn from(p: Persist) -> Method {
        match p {
            Persist::Nt => Method::Nt,
            Persist::Clwb => Method::Clwb,
            Persist::Eadr => Method::Eadr,
            Persist::Msync => Method::Msync,
        }
    }
}

impl From<Method> for forebay::Persist {
    fn from(m: Method) -> forebay::Persist {
        match m {
            Method::Nt => forebay::Persist::Nt,
            Method::Clwb => forebay::Persist::Clwb,
            Method::Eadr => forebay::Persist::Eadr,
            Method::Msync => forebay::Persist::Msync,
        }
    }
}

impl From<Method> for Persist {
    fn from(m: Method) -> Persist {
        match m {
            Method::Nt => Persist::Nt,
            Method::Clwb => Persist::Clwb,
            Method::Eadr => Persist::Eadr,
            Method::Msync => Persist::Msync,
        }
    }
}

impl From<Error> for Answer {
    fn from(e: Error) -> Answer {
        match e {
            Error::Refused { why, .. } => Answer::Failed { refused: true, why },
            Error::Pool(why) => Answer::Failed { refused: false, why },
            e => Answer::Failed { refused: false, why: e.to_string() },
        }
    }
}

/// Sends the first bytes together with a duplicate of a descriptor, and returns how many it has sent.
/// An end of the reader is EPIPE and no signal.
pub fn send_first(
    stream: &UnixStream,
    bytes: &[u8],
    file: BorrowedFd<'_>,
) -> rustix::io::Result<usize> {
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    if !with.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(Errno::NOMEM);
    }
    let first = &[IoSlice::new(bytes)];
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(stream, first, &mut with, SendFlags::NOSIGNAL)
    })
}

/// The bytes of a message as they are sent.
pub fn bytes_of<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let len = bytes.len() - 4;
    if len > MESSAGE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(bytes)
}

/// The first message in the received bytes, and its length.  None: it is not complete yet.
pub fn message_in<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<Option<(T, usize)>> {
    let Some((head, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_le_bytes(*head) as usize;
    if len > MESSAGE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    let Some(message) = rest.get(..len) else { return Ok(None) };
    Ok(Some((serde_json::from_slice(message)?, 4 + len)))
}

/// Waits for a whole message.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut head = [0; 4];
    from.read_exact(&mut head)?;
    let len = u32::from_le_bytes(head) as usize;
    if len > MESSAGE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    let mut message = vec![0; len];
    from.read_exact(&mut message)?;
    Ok(serde_json::from_slice(&message)?)
}

/// Sends a message.
pub fn send<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    to.write_all(&bytes_of(message)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_message_is_not_received() {
        let request = Request::Take { file: 3, segment: 9 };
        let bytes = bytes_of(&request).unwrap();
        for n in 0..bytes.len() {
            assert!(message_in::<Request>(&bytes[..n]).unwrap().is_none());
        }
        assert_eq!(message_in(&bytes).unwrap(), Some((request.clone(), bytes.len())));
        assert_eq!(receive::<Request>(&mut &bytes[..]).unwrap(), request);
        let long = (MESSAGE_MAX as u32 + 1).to_le_bytes();
        assert!(
            message_in::<Request>(&long).is_err() && receive::<Request>(&mut &long[..]).is_err()
        );
        let odd = [&2u32.to_le_bytes()[..], b"{}"].concat();
        assert!(message_in::<Request>(&odd).is_err());
    }
}
