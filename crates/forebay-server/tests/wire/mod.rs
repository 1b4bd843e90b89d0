// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of a client to the NBD server, as bytes, and the server over a stream in memory.

use std::io::Cursor;

use forebay_server::nbd::{converse_over, Export};

const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";
/// No zeroes after EXPORT_NAME, fixed newstyle.
pub const FLAGS: u32 = 3;

pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = [b"IHAVEOPT", &number.to_be_bytes()[..]].concat();
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// With its length before it.
pub fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text].concat()
}

pub fn request(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend([flags, command].iter().flat_map(|n| n.to_be_bytes()));
    bytes.extend([cookie, offset].iter().flat_map(|n| n.to_be_bytes()));
    bytes.extend(len.to_be_bytes());
    bytes
}

/// Everything that the server answers to these after its greeting.
pub fn say(exports: &[Export], client_flags: u32, parts: &[Vec<u8>]) -> Vec<u8> {
    let input = [client_flags.to_be_bytes().to_vec(), parts.concat()].concat();
    let mut output = Vec::new();
    // It ends with the end of the stream, which is an error in the handshake alone.
    let _ = converse_over(Cursor::new(input), &mut output, exports);
    assert_eq!(output[..18], *GREETING);
    output.split_off(18)
}

pub fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}
