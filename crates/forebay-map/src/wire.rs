// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process that maps files and the server of its pool say to each other, at a Unix
//! socket: a request, an answer, the next request.  Each is JSON behind its length, a number of
//! four bytes, the lowest first.  With the answer to the first one the pool's file comes.  Where
//! files are shared there is a second connection, and one at which the server asks.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::Uuid;
use forebay_engine::maps;
use forebay_engine::Persist;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::sharing::Grant;
use crate::store::{FileRecord, FrameInfo, Stamp};

/// Of the protocol: both sides have the same.
pub const VERSION: u32 = 5;
/// How often who works on a question or an order for long says that it lives: a slow disk may
/// take any time, and who is stopped says nothing.
pub const LIVES: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 4000 });
/// Bytes of a message, without its length.
pub const MESSAGE_MAX: usize = 64 << 10;
/// Frames in one answer.
pub const FRAMES_MAX: usize = 256;

/// Where the server of a pool of this UUID gives its memory to others.
pub fn socket_path(dir: &Path, pool: Uuid) -> PathBuf {
    dir.join(format!("{pool}.maps"))
}

/// Of the process.  Files and frames are its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The first, and only that: of which map; none: the only one.
    Hello {
        version: u32,
        map: Option<String>,
    },
    /// Of [`Store`](crate::store::Store), as are those that follow.
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
    /// So many segments more are not given back, or so many less.
    Pin {
        segments: u32,
    },
    Unpin {
        segments: u32,
    },
    Wanted,
    /// Where it is now, and how much of it the file has.
    Place {
        frame: u32,
    },
    /// The first from that number on.
    FileFrom {
        file: u32,
    },
    /// The first ones from that number on.
    FramesFrom {
        frame: u32,
    },
    /// It has nothing mapped any more, and ends.
    Bye,
    /// In the place of `Hello`: another connection of the process that was given that number.
    Also {
        of: u64,
    },
    /// The same, by which it takes orders from now on ([`Ordered`]).
    Orders {
        of: u64,
    },
    /// It maps a file that others map, too ([`crate::sharing`]), which has that identity; orders
    /// name it as `visit`.
    Join {
        visit: u32,
        path: String,
        identity: Vec<u8>,
        room: u64,
    },
    /// It has nothing of it mapped any more; `unsynced`: what it has stored may not be durable.
    Leave {
        home: u32,
        unsynced: bool,
    },
    /// It has touched a segment.
    Fill {
        home: u32,
        segment: u64,
    },
    /// It is to make pages of a segment durable; none: the size is to be so.
    Settle {
        home: u32,
        segment: Option<u64>,
    },
    /// All others have made durable what they have stored to a range.
    SyncOthers {
        home: u32,
        at: u64,
        len: u64,
    },
    /// Of [`MapFile`](crate::MapFile), as are those that follow.
    EndCut {
        home: u32,
    },
    /// `grow`: no smaller than it is by then.
    Resize {
        home: u32,
        size: u64,
        grow: bool,
    },
    Reserve {
        home: u32,
        len: u64,
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

/// What a server has a process do, and what that has said, by the number of the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ordered<T> {
    pub number: u64,
    pub what: T,
}

/// Of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    Hello(Share),
    Done,
    Yes(bool),
    Number(u32),
    /// None: no frame is free.
    Taken(Option<(u32, Place)>),
    Place(Place),
    File(Option<(u32, FileRecord)>),
    Frames(Vec<FrameInfo>),
    /// To be asked again soon: a process that had the file has died, or others are at work on it.
    Wait,
    /// Not the answer: the server works on it.
    Working,
    /// The number of the file, and of its segments; its board comes with it.
    Joined {
        home: u32,
        segments: u64,
    },
    /// None: nothing is there, or it was of the size.
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
    /// Of the server.
    pub pid: u32,
    /// By which other connections of the process are known.
    pub number: u64,
    /// Which file or device the pool is: no copy has the same.
    pub media: String,
    pub media_bytes: u64,
    /// Its mapping is to be synchronous, as DAX has it.
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

/// How stores are made durable.
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

/// [`maps::Place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    pub memory: u64,
    pub words: Option<u64>,
    pub pages: u32,
    pub limit: u32,
    pub seed: u32,
}

impl From<maps::Place> for Place {
    fn from(p: maps::Place) -> Place {
        let maps::Place { memory, words, pages, limit, seed } = p;
        Place { memory, words, pages, limit, seed }
    }
}

impl From<Place> for maps::Place {
    fn from(p: Place) -> maps::Place {
        let Place { memory, words, pages, limit, seed } = p;
        maps::Place { memory, words, pages, limit, seed }
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

/// A message as it is sent.
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

/// The first message of what has come, and how long it was; none: it is not whole yet.
pub fn message_in<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<Option<(T, usize)>> {
    let Some((head, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_le_bytes(*head) as usize;
    if len > MESSAGE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    let Some(message) = rest.get(..len) else { return Ok(None) };
    Ok(Some((serde_json::from_slice(message)?, 4 + len)))
}

/// Waits for the whole of a message.
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

/// Sends one.
pub fn send<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    to.write_all(&bytes_of(message)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_whole_or_not_there() {
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
