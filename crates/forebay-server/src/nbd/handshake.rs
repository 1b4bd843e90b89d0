// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first part of a connection: the client lists the exports, asks about them
//! and chooses one.  Fixed newstyle, with structured replies and the context
//! base:allocation; what else is optional and not here (TLS, extended headers) is answered
//! as unsupported, and clients go on without it.

use std::borrow::Borrow;
use std::io::{self, Read, Write};

use super::protocol::{self as nbd, info, option, option_reply, take, transmission};
use super::{Export, PREFERRED_BYTES, REQUEST_MAX_BYTES};
use crate::warn;

/// The longest data of an option that is looked at: a name has up to 4096 bytes.
const DATA_MAX: usize = 16 << 10;

type Option_ = (u32, Vec<u8>);

/// The client's choice.
#[derive(Clone, Copy)]
pub(crate) struct Chosen<'e> {
    pub export: &'e Export,
    pub structured: bool,
    /// It may ask for base:allocation.
    pub allocation: bool,
}

/// None: it went away, or broke the protocol.
pub(crate) fn negotiate<'e>(
    input: &mut impl Read,
    output: &mut impl Write,
    exports: &'e [impl Borrow<Export>],
) -> io::Result<Option<Chosen<'e>>> {
    let flags = nbd::FIXED_NEWSTYLE | nbd::NO_ZEROES;
    let mut greeting = nbd::NBD_MAGIC.to_be_bytes().to_vec();
    greeting.extend(nbd::OPTION_MAGIC.to_be_bytes());
    greeting.extend((flags as u16).to_be_bytes());
    output.write_all(&greeting)?;
    let client = u32::from_be_bytes(take(input)?);
    if client & !flags != 0 {
        return Ok(None);
    }
    let no_zeroes = client & nbd::NO_ZEROES != 0;
    let exports = exports.iter().map(Borrow::borrow).collect();
    let mut session = Session { input, output, exports, structured: false, context_of: None };
    while let Some((option, data)) = session.next()? {
        match option {
            option::EXPORT_NAME => {
                let export = session.export_name(&data, no_zeroes)?;
                return Ok(export.map(|export| session.chosen(export)));
            }
            option::GO => {
                if let Some(export) = session.info(option, &data)? {
                    return Ok(Some(session.chosen(export)));
                }
            }
            option::STRUCTURED_REPLY => session.structured_reply(&data)?,
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                session.meta_context(option, &data)?;
            }
            option::INFO => drop(session.info(option, &data)?),
            option::LIST => session.list(&data)?,
            option::ABORT => {
                // Who said good-bye need not hear the answer.
                let _ = session.reply(option, option_reply::ACK, &[]);
                return Ok(None);
            }
            _ => session.reply(option, option_reply::UNSUPPORTED, &[])?,
        }
    }
    Ok(None)
}

struct Session<'s, 'e, R, W> {
    input: &'s mut R,
    output: &'s mut W,
    exports: Vec<&'e Export>,
    structured: bool,
    /// The export for which the client has chosen base:allocation.
    context_of: Option<&'e Export>,
}

impl<'e, R: Read, W: Write> Session<'_, 'e, R, W> {
    /// None: not an option.  One that is too long is answered here.
    fn next(&mut self) -> io::Result<Option<Option_>> {
        loop {
            if u64::from_be_bytes(take(self.input)?) != nbd::OPTION_MAGIC {
                return Ok(None);
            }
            let option = u32::from_be_bytes(take(self.input)?);
            let len = u32::from_be_bytes(take(self.input)?) as usize;
            if len <= DATA_MAX {
                let mut data = vec![0; len];
                self.input.read_exact(&mut data)?;
                return Ok(Some((option, data)));
            }
            // EXPORT_NAME has no answer that says no.
            if option == option::EXPORT_NAME || len > REQUEST_MAX_BYTES as usize {
                return Ok(None);
            }
            io::copy(&mut self.input.by_ref().take(len as u64), &mut io::sink())?;
            self.reply(option, option_reply::TOO_BIG, b"the data of this option is too long")?;
        }
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        let mut bytes = nbd::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        self.output.write_all(&bytes)
    }

    fn chosen(&self, export: &'e Export) -> Chosen<'e> {
        let allocation = self.context_of.is_some_and(|of| std::ptr::eq(of, export));
        Chosen { export, structured: self.structured, allocation }
    }

    fn structured_reply(&mut self, data: &[u8]) -> io::Result<()> {
        if !data.is_empty() {
            let text = b"no data is expected";
            return self.reply(option::STRUCTURED_REPLY, option_reply::INVALID, text);
        }
        self.structured = true;
        self.reply(option::STRUCTURED_REPLY, option_reply::ACK, &[])
    }

    /// Each choice takes the place of the last one; none is left of one that is refused.
    fn meta_context(&mut self, option: u32, data: &[u8]) -> io::Result<()> {
        let sets = option == option::SET_META_CONTEXT;
        if sets {
            self.context_of = None;
        }
        if !self.structured {
            let text = b"structured replies have to be agreed on before";
            return self.reply(option, option_reply::INVALID, text);
        }
        let Some((name, queries)) = parse_queries(data) else {
            let text = b"the lengths do not fit the data";
            return self.reply(option, option_reply::INVALID, text);
        };
        let Some(export) = find(&self.exports, name) else {
            let text = unknown(&self.exports, name);
            return self.reply(option, option_reply::UNKNOWN, text.as_bytes());
        };
        let listed = !sets && (queries.is_empty() || queries.contains(&&b"base:"[..]));
        if listed || queries.contains(&nbd::ALLOCATION) {
            let id = if sets { nbd::ALLOCATION_ID } else { 0 };
            let context = [&id.to_be_bytes()[..], nbd::ALLOCATION].concat();
            self.reply(option, option_reply::META_CONTEXT, &context)?;
            if sets {
                self.context_of = Some(export);
            }
        }
        self.reply(option, option_reply::ACK, &[])
    }

    /// The old way to choose: the answer is the export, or the end.
    fn export_name(&mut self, name: &[u8], no_zeroes: bool) -> io::Result<Option<&'e Export>> {
        let Some(export) = find(&self.exports, name) else {
            warn(unknown(&self.exports, name));
            return Ok(None);
        };
        let mut bytes = export.volume.size_bytes().to_be_bytes().to_vec();
        bytes.extend(flags(export, self.structured).to_be_bytes());
        bytes.resize(bytes.len() + if no_zeroes { 0 } else { 124 }, 0);
        self.output.write_all(&bytes)?;
        Ok(Some(export))
    }

    fn list(&mut self, data: &[u8]) -> io::Result<()> {
        if !data.is_empty() {
            return self.reply(option::LIST, option_reply::INVALID, b"no data is expected");
        }
        for export in self.exports.clone() {
            let name = export.volume.name();
            let mut data = (name.len() as u32).to_be_bytes().to_vec();
            data.extend(name.as_bytes());
            data.extend(describe(export).as_bytes());
            self.reply(option::LIST, option_reply::SERVER, &data)?;
        }
        self.reply(option::LIST, option_reply::ACK, &[])
    }

    /// For INFO and GO.  None: refused, and the client may go on asking.
    fn info(&mut self, option: u32, data: &[u8]) -> io::Result<Option<&'e Export>> {
        let Some((name, asked)) = parse_info(data) else {
            self.reply(option, option_reply::INVALID, b"the lengths do not fit the data")?;
            return Ok(None);
        };
        let Some(export) = find(&self.exports, name) else {
            let text = unknown(&self.exports, name);
            self.reply(option, option_reply::UNKNOWN, text.as_bytes())?;
            return Ok(None);
        };
        let flags = flags(export, self.structured);
        let mut about = |kind: u16, data: &[&[u8]]| {
            let bytes = [&[&kind.to_be_bytes()[..]], data].concat().concat();
            self.reply(option, option_reply::INFO, &bytes)
        };
        let volume = &export.volume;
        about(info::EXPORT, &[&volume.size_bytes().to_be_bytes(), &flags.to_be_bytes()])?;
        let sizes = [volume.block_size(), PREFERRED_BYTES, REQUEST_MAX_BYTES];
        about(info::BLOCK_SIZE, &[&sizes.map(u32::to_be_bytes).concat()])?;
        if asked.contains(&info::NAME) {
            about(info::NAME, &[volume.name().as_bytes()])?;
        }
        if asked.contains(&info::DESCRIPTION) {
            about(info::DESCRIPTION, &[describe(export).as_bytes()])?;
        }
        self.reply(option, option_reply::ACK, &[])?;
        Ok(Some(export))
    }
}

/// Length and name, number and numbers of what is asked for.
fn parse_info(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let (len, rest) = data.split_first_chunk()?;
    let (name, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
    let (number, rest) = rest.split_first_chunk()?;
    let asked: Vec<_> = rest.chunks_exact(2).map(|n| u16::from_be_bytes([n[0], n[1]])).collect();
    let whole =
        rest.len().is_multiple_of(2) && asked.len() == usize::from(u16::from_be_bytes(*number));
    whole.then_some((name, asked))
}

/// Length and name of an export, number, and length and text of each query.
fn parse_queries(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    fn text(data: &[u8]) -> Option<(&[u8], &[u8])> {
        let (len, rest) = data.split_first_chunk()?;
        rest.split_at_checked(u32::from_be_bytes(*len) as usize)
    }
    let (name, rest) = text(data)?;
    let (number, mut rest) = rest.split_first_chunk()?;
    let mut queries = Vec::new();
    // Each takes bytes of the data, so that there are no more than fit.
    for _ in 0..u32::from_be_bytes(*number) {
        let query;
        (query, rest) = text(rest)?;
        queries.push(query);
    }
    rest.is_empty().then_some((name, queries))
}

/// If there is only one, it also answers to the empty name.
fn find<'e>(exports: &[&'e Export], name: &[u8]) -> Option<&'e Export> {
    match exports {
        [only] if name.is_empty() => Some(only),
        _ => exports.iter().find(|e| e.volume.name().as_bytes() == name).copied(),
    }
}

fn unknown(exports: &[&Export], name: &[u8]) -> String {
    let names: Vec<_> = exports.iter().map(|e| e.volume.name()).collect();
    let name = String::from_utf8_lossy(&name[..name.len().min(100)]);
    format!("export {name:?}: no such volume; there are: {}", names.join(", "))
}

fn describe(export: &Export) -> String {
    let volume = &export.volume;
    format!("{} bytes, blocks of {}", volume.size_bytes(), volume.block_size())
}

/// A flush of one connection stands for all, so connections need not be kept apart (multi-conn).
/// SEND_FLUSH says that a write may be acknowledged before it is durable, whether this volume does so
/// or not.
fn flags(export: &Export, structured: bool) -> u16 {
    use transmission::*;
    let all = if structured { SEND_DF } else { 0 }
        | HAS_FLAGS
        | SEND_FLUSH
        | SEND_FUA
        | SEND_TRIM
        | SEND_WRITE_ZEROES
        | CAN_MULTI_CONN
        | SEND_FAST_ZERO;
    match export.read_only {
        true => all | READ_ONLY,
        false => all,
    }
}
