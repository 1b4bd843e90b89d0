// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bodies of the entries in the log of a mount.
//!
//! An entry describes one operation, or a piece of what one fsync covers.  Its body is a header
//! and records, little-endian, one after another:
//!
//! ```text
//! entry   magic u32, version u16, records u16, number u64, time u64 (ns since 1970)
//! record  kind u8, flags u8, 0 u16, payload bytes u32, payload
//! ```
//!
//! The log verifies the bytes when they are read.  Their content is checked here all the same,
//! since anyone may have written the media.
//!
//! # Files by identity
//! A [`Fid`] names an inode of the tree within the transaction group of the entry.  A
//! [`Record::Bind`] says which inode it is (its file handle), in the same transaction
//! group, before any record that uses it; a [`Record::Create`] makes a new one, whose
//! handle follows when it is known.

use std::fmt;

/// Names an inode in the records of a mount's log.  Fids are assigned anew in each logging
/// period; 1 is the tree's root.
pub type Fid = u64;

pub const ROOT: Fid = 1;
/// No inode: an operation that replaced nothing.
pub const NONE: Fid = 0;

const MAGIC: u32 = 0x4d59_4246; // "FBYM"
const VERSION: u16 = 1;
pub const HEADER: usize = 24;
const RECORD: usize = 8;

/// The longest name, target, path or extended attribute's value that Linux takes.
pub const NAME_MAX: usize = 255;
const PATH_MAX: usize = 4096;
const XATTR_MAX: usize = 65536;
/// The most bytes of a file handle, with its type before it (MAX_HANDLE_SZ + 4).
pub const HANDLE_MAX: usize = 132;

/// The kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    File = 1,
    Directory = 2,
    Symlink = 3,
    Fifo = 4,
    Socket = 5,
    CharDevice = 6,
    BlockDevice = 7,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::File,
            2 => Kind::Directory,
            3 => Kind::Symlink,
            4 => Kind::Fifo,
            5 => Kind::Socket,
            6 => Kind::CharDevice,
            7 => Kind::BlockDevice,
            _ => return None,
        })
    }
}

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    pub seconds: i64,
    pub nanoseconds: u32,
}

/// The attributes of an inode to set; `None`: unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits, with set-user-ID, set-group-ID and sticky.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
}

/// How [`Record::Allocate`] changes a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Allocate {
    /// Blocks are there; the file grows to the end of the range.
    Extend = 0,
    /// Blocks are there; the size stays.
    KeepSize = 1,
    /// A hole; the size stays.
    Punch = 2,
    /// Zeros; the file grows to the end of the range.
    Zero = 3,
    /// Zeros; the size stays.
    ZeroKeepSize = 4,
}

impl Allocate {
    fn of(byte: u8) -> Option<Allocate> {
        Some(match byte {
            0 => Allocate::Extend,
            1 => Allocate::KeepSize,
            2 => Allocate::Punch,
            3 => Allocate::Zero,
            4 => Allocate::ZeroKeepSize,
            _ => return None,
        })
    }
}

/// A record of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// Identifies the tree: the handle of its root, the id of its file system, and the path
    /// that it had.  The first record in each transaction group.
    Tree { file_system: [u8; 16], root: &'a [u8], path: &'a [u8] },
    /// Binds a fid to an inode.  The path, relative to the root, is where the inode was seen: a
    /// hint.  It may be empty, as where the same group has the inode's Create.
    Bind { fid: Fid, kind: Kind, handle: &'a [u8], path: &'a [u8] },
    /// A new inode with that name, written before the tree has it.
    Create {
        dir: Fid,
        name: &'a [u8],
        fid: Fid,
        kind: Kind,
        mode: u32,
        uid: u32,
        gid: u32,
        device: u64,
        target: &'a [u8],
    },
    /// Another name of a file, written before the tree has it.
    Link { fid: Fid, dir: Fid, name: &'a [u8] },
    /// The name of `fid` is removed: unlink, or rmdir of a directory.  Written before the tree
    /// does it.
    Unlink { dir: Fid, name: &'a [u8], fid: Fid },
    /// `fid` gets another name and replaces `replaced` unless that is [`NONE`]; with `exchange`
    /// the two trade names.  Written before the tree does it.
    Rename {
        from_dir: Fid,
        from: &'a [u8],
        to_dir: Fid,
        to: &'a [u8],
        fid: Fid,
        replaced: Fid,
        exchange: bool,
    },
    /// Bytes that a sync covers, with the size and the modification time at that moment.
    Data { fid: Fid, offset: u64, size: u64, mtime: Time, bytes: &'a [u8] },
    /// The size was set.  Written before the tree does it.
    Truncate { fid: Fid, size: u64 },
    /// Written before the tree has it.
    Allocate { fid: Fid, mode: Allocate, offset: u64, length: u64 },
    /// Written before the tree has it.
    Attr { fid: Fid, set: SetAttr },
    /// An extended attribute was set, or removed.  Written before the tree has it.
    Xattr { fid: Fid, name: &'a [u8], value: Option<&'a [u8]> },
    /// The tree's own sync has made the file durable as it was then: earlier records of its
    /// data and size ([`Record::is_content`]) are void.
    Synced { fid: Fid },
    /// The operation of the entry with this number failed in the tree and never happened.
    Void { number: u64 },
    /// The mount was alive at the time of this entry.
    Alive,
    /// The time when the file system made the inode.  Another inode that gets the same handle
    /// after a crash was made at another time.
    Born { fid: Fid, time: Time },
    /// The clock was set back: it has shown this time (ns since 1970) before.
    Latest { time_ns: u64 },
}

impl Record<'_> {
    /// Whether the record is about a file's bytes or size.
    pub fn is_content(&self) -> bool {
        use Record::*;
        matches!(self, Data { .. } | Truncate { .. } | Allocate { .. })
    }

    /// Whether it is an operation that the tree gets after the entry is durable, and that a
    /// [`Record::Void`] can revoke.
    pub fn is_operation(&self) -> bool {
        use Record::*;
        matches!(
            self,
            Create { .. }
                | Link { .. }
                | Unlink { .. }
                | Rename { .. }
                | Truncate { .. }
                | Allocate { .. }
                | Attr { .. }
                | Xattr { .. }
        )
    }
}

/// The reason why an entry cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEntry {
    #[error("it is no entry of a mount")]
    Magic,
    #[error("its version {0} is newer than this program's ({VERSION}): use a newer forebay")]
    Version(u16),
    #[error("it ends in the middle of a record")]
    Short,
    #[error("a record of kind {0} is not known: use a newer forebay")]
    Kind(u8),
    #[error("a record of kind {0} says what cannot be")]
    Field(u8),
}

/// The first piece of an entry's body; its records follow, in as many pieces as there are.
pub fn header(number: u64, time_ns: u64, records: u16) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..8].copy_from_slice(&records.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..].copy_from_slice(&time_ns.to_le_bytes());
    bytes
}

/// Records that are being built, for an entry or a piece of one.  The object is kept and
/// [`clear`](Records::clear)ed for the next entry.
#[derive(Clone, Debug, Default)]
pub struct Records {
    bytes: Vec<u8>,
    count: u16,
}

impl Records {
    pub fn of(record: &Record<'_>) -> Records {
        let mut records = Records::default();
        records.push(record);
        records
    }

    pub fn clear(&mut self) {
        self.count = 0;
        self.bytes.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn count(&self) -> u16 {
        self.count
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds a record.
    pub fn push(&mut self, record: &Record<'_>) {
        let start = self.begin(record_kind(record));
        let b = &mut self.bytes;
        let mut flags = 0u8;
        match record {
            Record::Tree { file_system, root, path } => {
                b.extend_from_slice(file_system);
                put_bytes(b, root);
                put_bytes(b, path);
            }
            Record::Bind { fid, kind, handle, path } => {
                put_u64(b, *fid);
                flags = *kind as u8;
                put_bytes(b, handle);
                put_bytes(b, path);
            }
            Record::Create { dir, name, fid, kind, mode, uid, gid, device, target } => {
                put_u64(b, *dir);
                put_u64(b, *fid);
                flags = *kind as u8;
                put_u32(b, *mode);
                put_u32(b, *uid);
                put_u32(b, *gid);
                put_u64(b, *device);
                put_bytes(b, name);
                put_bytes(b, target);
            }
            Record::Link { fid, dir, name } | Record::Unlink { dir, name, fid } => {
                put_u64(b, *dir);
                put_u64(b, *fid);
                put_bytes(b, name);
            }
            Record::Rename { from_dir, from, to_dir, to, fid, replaced, exchange } => {
                for v in [*from_dir, *to_dir, *fid, *replaced] {
                    put_u64(b, v);
                }
                flags = u8::from(*exchange);
                put_bytes(b, from);
                put_bytes(b, to);
            }
            Record::Data { fid, offset, size, mtime, bytes } => {
                put_u64(b, *fid);
                put_u64(b, *offset);
                put_u64(b, *size);
                put_time(b, *mtime);
                b.extend_from_slice(bytes);
            }
            Record::Truncate { fid, size } => {
                put_u64(b, *fid);
                put_u64(b, *size);
            }
            Record::Allocate { fid, mode, offset, length } => {
                flags = *mode as u8;
                for v in [*fid, *offset, *length] {
                    put_u64(b, v);
                }
            }
            Record::Attr { fid, set } => {
                put_u64(b, *fid);
                let set_u32 = [set.mode, set.uid, set.gid];
                for (i, v) in set_u32.iter().enumerate() {
                    flags |= u8::from(v.is_some()) << i;
                    put_u32(b, v.unwrap_or(0));
                }
                for (i, v) in [set.atime, set.mtime].iter().enumerate() {
                    flags |= u8::from(v.is_some()) << (3 + i);
                    put_time(b, v.unwrap_or_default());
                }
            }
            Record::Xattr { fid, name, value } => {
                put_u64(b, *fid);
                flags = u8::from(value.is_some());
                put_bytes(b, name);
                put_bytes(b, value.unwrap_or_default());
            }
            Record::Synced { fid } => put_u64(b, *fid),
            Record::Void { number } => put_u64(b, *number),
            Record::Alive => {}
            Record::Born { fid, time } => {
                put_u64(b, *fid);
                put_time(b, *time);
            }
            Record::Latest { time_ns } => put_u64(b, *time_ns),
        }
        self.end(start, flags);
    }

    /// Adds a [`Record::Data`] with at most `length` bytes.  `read` puts the bytes in place and
    /// returns their number.
    pub fn push_data<E>(
        &mut self,
        (fid, offset, size, mtime): (Fid, u64, u64, Time),
        length: usize,
        read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let start = self.begin(DATA);
        let b = &mut self.bytes;
        put_u64(b, fid);
        put_u64(b, offset);
        put_u64(b, size);
        put_time(b, mtime);
        let at = b.len();
        b.resize(at + length, 0);
        match read(&mut b[at..]) {
            Ok(n) => {
                self.bytes.truncate(at + n.min(length));
                self.end(start, 0);
                Ok(n.min(length))
            }
            Err(e) => {
                self.bytes.truncate(start);
                Err(e)
            }
        }
    }

    fn begin(&mut self, kind: u8) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
        start
    }

    fn end(&mut self, start: usize, flags: u8) {
        let length = (self.bytes.len() - start - RECORD) as u32;
        self.bytes[start + 1] = flags;
        self.bytes[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
        self.count += 1;
    }
}

const TREE: u8 = 1;
const BIND: u8 = 2;
const CREATE: u8 = 3;
const LINK: u8 = 4;
const UNLINK: u8 = 5;
const RENAME: u8 = 6;
const DATA: u8 = 7;
const TRUNCATE: u8 = 8;
const ALLOCATE: u8 = 9;
const ATTR: u8 = 10;
const XATTR: u8 = 11;
const SYNCED: u8 = 12;
const VOID: u8 = 13;
const ALIVE: u8 = 14;
const BORN: u8 = 15;
const LATEST: u8 = 16;

/// Bytes of a [`Record::Data`] beyond its data.
pub const DATA_OVERHEAD: usize = RECORD + 8 * 3 + 12;

fn record_kind(record: &Record<'_>) -> u8 {
    match record {
        Record::Tree { .. } => TREE,
        Record::Bind { .. } => BIND,
        Record::Create { .. } => CREATE,
        Record::Link { .. } => LINK,
        Record::Unlink { .. } => UNLINK,
        Record::Rename { .. } => RENAME,
        Record::Data { .. } => DATA,
        Record::Truncate { .. } => TRUNCATE,
        Record::Allocate { .. } => ALLOCATE,
        Record::Attr { .. } => ATTR,
        Record::Xattr { .. } => XATTR,
        Record::Synced { .. } => SYNCED,
        Record::Void { .. } => VOID,
        Record::Alive => ALIVE,
        Record::Born { .. } => BORN,
        Record::Latest { .. } => LATEST,
    }
}

fn put_u64(b: &mut Vec<u8>, v: u64) {
    b.extend_from_slice(&v.to_le_bytes());
}

fn put_u32(b: &mut Vec<u8>, v: u32) {
    b.extend_from_slice(&v.to_le_bytes());
}

fn put_time(b: &mut Vec<u8>, t: Time) {
    put_u64(b, t.seconds as u64);
    put_u32(b, t.nanoseconds);
}

fn put_bytes(b: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(b, bytes.len() as u32);
    b.extend_from_slice(bytes);
}

/// A decoded entry.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    pub number: u64,
    pub time_ns: u64,
    records: u16,
    rest: &'a [u8],
}

impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {} of {} records", self.number, self.records)
    }
}

impl<'a> Entry<'a> {
    pub fn parse(body: &'a [u8]) -> Result<Entry<'a>, BadEntry> {
        let mut at = Reader { rest: body, kind: 0 };
        let short = |_| BadEntry::Short;
        if at.u32().map_err(short)? != MAGIC {
            return Err(BadEntry::Magic);
        }
        let version = at.u16().map_err(short)?;
        if version != VERSION {
            return Err(BadEntry::Version(version));
        }
        let records = at.u16().map_err(short)?;
        let (number, time_ns) = (at.u64().map_err(short)?, at.u64().map_err(short)?);
        Ok(Entry { number, time_ns, records, rest: at.rest })
    }

    /// The records of the entry, each checked.
    pub fn records(self) -> impl Iterator<Item = Result<Record<'a>, BadEntry>> {
        let mut left = self.records;
        let mut at = Reader { rest: self.rest, kind: 0 };
        std::iter::from_fn(move || {
            if left == 0 {
                // Bytes after the last record belong to no entry that was written.
                let surplus = !std::mem::take(&mut at.rest).is_empty();
                return surplus.then_some(Err(BadEntry::Short));
            }
            left -= 1;
            let record = at.record();
            if record.is_err() {
                left = 0;
                at.rest = &[];
            }
            Some(record)
        })
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    kind: u8,
}

impl<'a> Reader<'a> {
    fn bad(&self) -> BadEntry {
        BadEntry::Field(self.kind)
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], BadEntry> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or(self.bad())?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadEntry> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(self.bad())?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u16(&mut self) -> Result<u16, BadEntry> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, BadEntry> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, BadEntry> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn fid(&mut self) -> Result<Fid, BadEntry> {
        self.u64().and_then(|fid| if fid == NONE { Err(self.bad()) } else { Ok(fid) })
    }

    /// An offset or a length in a file: no file has more bytes than an `i64` can count.
    fn offset(&mut self) -> Result<u64, BadEntry> {
        self.u64().and_then(|v| if v > i64::MAX as u64 { Err(self.bad()) } else { Ok(v) })
    }

    fn time(&mut self) -> Result<Time, BadEntry> {
        let (seconds, nanoseconds) = (self.u64()? as i64, self.u32()?);
        if nanoseconds >= 1_000_000_000 {
            return Err(self.bad());
        }
        Ok(Time { seconds, nanoseconds })
    }

    fn bytes(&mut self, most: usize) -> Result<&'a [u8], BadEntry> {
        let n = self.u32()? as usize;
        if n > most {
            return Err(self.bad());
        }
        self.take(n)
    }

    /// A name in a directory that the kernel would accept.
    fn name(&mut self) -> Result<&'a [u8], BadEntry> {
        let name = self.bytes(NAME_MAX)?;
        let odd = name.is_empty() || name == b"." || name == b"..";
        if odd || name.iter().any(|b| matches!(b, 0 | b'/')) {
            return Err(self.bad());
        }
        Ok(name)
    }

    fn text(&mut self, most: usize) -> Result<&'a [u8], BadEntry> {
        let text = self.bytes(most)?;
        if text.contains(&0) {
            return Err(self.bad());
        }
        Ok(text)
    }

    fn record(&mut self) -> Result<Record<'a>, BadEntry> {
        let Ok([kind, flags, _, _, a, b, c, d]) = self.array::<RECORD>() else {
            return Err(BadEntry::Short);
        };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let payload = self.take(length).map_err(|_| BadEntry::Short)?;
        let mut at = Reader { rest: payload, kind };
        let bad = at.bad();
        let record = match kind {
            TREE => Record::Tree {
                file_system: at.array()?,
                root: at.bytes(HANDLE_MAX)?,
                path: at.text(PATH_MAX)?,
            },
            BIND => Record::Bind {
                kind: Kind::of(flags).ok_or(bad)?,
                fid: at.fid()?,
                handle: at.bytes(HANDLE_MAX)?,
                path: at.text(PATH_MAX)?,
            },
            CREATE => {
                let kind = Kind::of(flags).ok_or(bad)?;
                let (dir, fid) = (at.fid()?, at.fid()?);
                let (mode, uid, gid) = (at.u32()?, at.u32()?, at.u32()?);
                let device = at.u64()?;
                let (name, target) = (at.name()?, at.text(PATH_MAX)?);
                if mode > 0o7777 || (kind == Kind::Symlink) == target.is_empty() {
                    return Err(bad);
                }
                Record::Create { dir, name, fid, kind, mode, uid, gid, device, target }
            }
            LINK | UNLINK => {
                let (dir, fid, name) = (at.fid()?, at.fid()?, at.name()?);
                match kind {
                    LINK => Record::Link { fid, dir, name },
                    _ => Record::Unlink { dir, name, fid },
                }
            }
            RENAME => {
                let (from_dir, to_dir, fid) = (at.fid()?, at.fid()?, at.fid()?);
                let replaced = at.u64()?;
                let (from, to) = (at.name()?, at.name()?);
                if flags > 1 || (flags == 1 && replaced == NONE) {
                    return Err(bad);
                }
                Record::Rename { from_dir, from, to_dir, to, fid, replaced, exchange: flags == 1 }
            }
            DATA => {
                let (fid, offset, size) = (at.fid()?, at.offset()?, at.offset()?);
                let mtime = at.time()?;
                let bytes = std::mem::take(&mut at.rest);
                if size.checked_sub(offset).is_none_or(|n| n < bytes.len() as u64) {
                    return Err(bad);
                }
                Record::Data { fid, offset, size, mtime, bytes }
            }
            TRUNCATE => Record::Truncate { fid: at.fid()?, size: at.offset()? },
            ALLOCATE => {
                let mode = Allocate::of(flags).ok_or(bad)?;
                let (fid, offset, length) = (at.fid()?, at.offset()?, at.offset()?);
                if length == 0 || offset.checked_add(length).is_none_or(|e| e > i64::MAX as u64) {
                    return Err(bad);
                }
                Record::Allocate { fid, mode, offset, length }
            }
            ATTR => {
                let fid = at.fid()?;
                let (mode, uid, gid) = (at.u32()?, at.u32()?, at.u32()?);
                let (atime, mtime) = (at.time()?, at.time()?);
                let has = |bit: u8| flags >> bit & 1 == 1;
                if flags > 31 || (has(0) && mode > 0o7777) {
                    return Err(bad);
                }
                let set = SetAttr {
                    mode: has(0).then_some(mode),
                    uid: has(1).then_some(uid),
                    gid: has(2).then_some(gid),
                    atime: has(3).then_some(atime),
                    mtime: has(4).then_some(mtime),
                };
                Record::Attr { fid, set }
            }
            XATTR => {
                let fid = at.fid()?;
                let name = at.text(NAME_MAX)?;
                let value = at.bytes(XATTR_MAX)?;
                if flags > 1 || name.is_empty() || (flags == 0 && !value.is_empty()) {
                    return Err(bad);
                }
                Record::Xattr { fid, name, value: (flags == 1).then_some(value) }
            }
            SYNCED => Record::Synced { fid: at.fid()? },
            VOID => Record::Void { number: at.u64()? },
            ALIVE => Record::Alive,
            BORN => Record::Born { fid: at.fid()?, time: at.time()? },
            LATEST => Record::Latest { time_ns: at.u64()? },
            _ => return Err(BadEntry::Kind(kind)),
        };
        if !at.rest.is_empty() {
            return Err(bad);
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(name: &[u8], kind: Kind) -> Vec<u8> {
        let (dir, fid, device) = (ROOT, 2, 0x801);
        let target = if kind == Kind::Symlink { &b"t"[..] } else { b"" };
        let (mode, uid, gid) = (0o644, 3, 4);
        let record = Record::Create { dir, name, fid, kind, mode, uid, gid, device, target };
        [&header(1, 1, 1)[..], Records::of(&record).bytes()].concat()
    }

    fn read(body: &[u8]) -> Result<Record<'_>, BadEntry> {
        Entry::parse(body).unwrap().records().next().unwrap()
    }

    /// No name leads out of its directory, or to the directory itself.
    #[test]
    fn invalid_names_are_refused() {
        for name in [&b""[..], b".", b"..", b"/", b"a/b", b"../x", b"a\0", &[b'x'; 256]] {
            assert!(read(&made(name, Kind::File)).is_err(), "{name:?}");
        }
        for name in [&b"..."[..], b".x", b"x.", b" ", b"\xff", &[b'x'; 255]] {
            let body = made(name, Kind::File);
            assert!(matches!(read(&body), Ok(Record::Create { name: n, .. }) if n == name));
        }
    }

    /// A file may be shorter by the time when it is read.
    #[test]
    fn a_short_read_records_the_bytes_that_there_are() {
        let mut records = Records::default();
        let three = |b: &mut [u8]| {
            b[..3].copy_from_slice(b"abc");
            Ok::<_, ()>(3)
        };
        assert_eq!(records.push_data((2, 10, 13, Time::default()), 100, three), Ok(3));
        let body = [&header(1, 1, 1)[..], records.bytes()].concat();
        assert!(matches!(read(&body), Ok(Record::Data { bytes: b"abc", .. })));
        assert_eq!(records.push_data((2, 0, 0, Time::default()), 100, |_| Err(())), Err(()));
        assert_eq!(body[HEADER..], *records.bytes());
    }

    #[test]
    fn each_kind_is_read_as_it_was_written() {
        use Kind::{BlockDevice, CharDevice, Directory, Fifo, File, Socket, Symlink};
        for kind in [File, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice] {
            let body = made(b"n", kind);
            assert!(matches!(read(&body), Ok(Record::Create { kind: k, .. }) if k == kind));
        }
    }
}
