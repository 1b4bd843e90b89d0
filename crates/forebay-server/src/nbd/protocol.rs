// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers of the NBD protocol, and its messages in bytes.  All of them are big
//! endian; the specification is doc/proto.md of NetworkBlockDevice/nbd.

use std::io::{self, Read};

pub const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943; // NBDMAGIC
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054; // IHAVEOPT
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// For the handshake, the same numbers for both sides.
pub const FIXED_NEWSTYLE: u32 = 1;
pub const NO_ZEROES: u32 = 2;

pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

pub mod option_reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const UNSUPPORTED: u32 = (1 << 31) + 1;
    pub const INVALID: u32 = (1 << 31) + 3;
    pub const UNKNOWN: u32 = (1 << 31) + 6;
    pub const TOO_BIG: u32 = (1 << 31) + 9;
}

pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Features of an export.
pub mod transmission {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISCONNECT: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

pub mod flag {
    pub const FUA: u16 = 1;
    pub const NO_HOLE: u16 = 1 << 1;
    /// The answer of a read is in one piece.
    pub const DF: u16 = 1 << 2;
    /// The answer has one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// The only context of metadata, and its number.
pub const ALLOCATION: &[u8] = b"base:allocation";
pub const ALLOCATION_ID: u32 = 1;
/// Flags of an extent.
pub const STATE_HOLE: u32 = 1;
pub const STATE_ZERO: u32 = 1 << 1;

/// Kinds of chunks.
pub mod chunk {
    pub const OFFSET_DATA: u16 = 1;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = (1 << 15) + 1;
    /// It is the last one of its reply.
    pub const DONE: u16 = 1;
}

/// Errors as the protocol numbers them, which is as Linux does.
pub mod error {
    pub const PERM: u32 = 1;
    pub const IO: u32 = 5;
    pub const NOMEM: u32 = 12;
    pub const INVAL: u32 = 22;
    pub const NOSPC: u32 = 28;
    pub const NOTSUP: u32 = 95;
    pub const SHUTDOWN: u32 = 108;
}

/// The nearest one that the protocol knows.
pub fn error_of(errno: i32) -> u32 {
    match errno {
        1 | 13 | 30 => error::PERM,    // EPERM, EACCES, EROFS
        12 => error::NOMEM,            // ENOMEM
        22 => error::INVAL,            // EINVAL
        27 | 28 | 122 => error::NOSPC, // EFBIG, ENOSPC, EDQUOT
        95 => error::NOTSUP,           // EOPNOTSUPP
        108 => error::SHUTDOWN,        // ESHUTDOWN
        _ => error::IO,
    }
}

/// Size of a request, without its data.
pub const REQUEST_BYTES: usize = 28;
/// Size of a reply, without its data.
pub const REPLY_BYTES: usize = 16;

#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub len: u32,
}

impl Request {
    /// None: not a request, so that nothing after it can be understood.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<Request> {
        let mut bytes = &bytes[..];
        let magic = u32::from_be_bytes(first(&mut bytes));
        let request = Request {
            flags: u16::from_be_bytes(first(&mut bytes)),
            command: u16::from_be_bytes(first(&mut bytes)),
            cookie: u64::from_be_bytes(first(&mut bytes)),
            offset: u64::from_be_bytes(first(&mut bytes)),
            len: u32::from_be_bytes(first(&mut bytes)),
        };
        (magic == REQUEST_MAGIC).then_some(request)
    }
}

pub fn reply(error: u32, cookie: u64) -> [u8; REPLY_BYTES] {
    let mut bytes = [0; REPLY_BYTES];
    bytes[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// Size of a chunk, without its payload.
pub const CHUNK_BYTES: usize = 20;
/// Size of one with data of a read, without that data.
pub const DATA_HEAD_BYTES: usize = CHUNK_BYTES + 8;

/// The only one of its reply; the payload of so many bytes follows.
pub fn chunk(kind: u16, cookie: u64, payload: u32) -> [u8; CHUNK_BYTES] {
    let mut bytes = [0; CHUNK_BYTES];
    bytes[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&chunk::DONE.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&payload.to_be_bytes());
    bytes
}

/// Takes the first bytes off, which the caller knows to be there.
fn first<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let (taken, rest) = bytes.split_first_chunk().expect("a message of a fixed size");
    *bytes = rest;
    *taken
}

/// The next bytes of a stream.
pub fn take<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_linux_are_told_as_the_nearest() {
        let told = [
            (1, error::PERM),
            (13, error::PERM),
            (30, error::PERM),
            (12, error::NOMEM),
            (22, error::INVAL),
            (27, error::NOSPC),
            (28, error::NOSPC),
            (122, error::NOSPC),
            (95, error::NOTSUP),
            (108, error::SHUTDOWN),
            (5, error::IO),
            (0, error::IO),
            (61, error::IO),
        ];
        for (errno, wanted) in told {
            assert_eq!(error_of(errno), wanted, "errno {errno}");
        }
    }
}
