// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool's on-media structures as values for tools: `forebay dump` prints them, as text or
//! JSON.

use std::fmt;

use forebay_engine::sys;
use serde::{Deserialize, Serialize};

use super::Uuid;

/// The superblock that counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuperblockDump {
    pub version: u32,
    pub clean: bool,
    pub flags: u32,
    pub features_compat: u64,
    pub features_ro: u64,
    pub features_incompat: u64,
    pub uuid: Uuid,
    pub generation: u64,
    pub media_size_bytes: u64,
    pub data_offset_bytes: u64,
    pub chunk_size_bytes: u32,
    pub chunks: u32,
    pub max_volumes: u32,
    /// Room after the chunks, for static volumes.
    #[serde(default)]
    pub static_bytes: u64,
    /// Room after that of static volumes, for maps.
    #[serde(default)]
    pub map_bytes: u64,
    /// Recorded by a clean close; meaningless without `clean`.
    pub clean_entries: u64,
    pub clean_digest: u64,
    pub clean_seq: u64,
    /// The copy at 0, and the one at 4096.
    pub primary_valid: bool,
    pub copy_valid: bool,
}

impl SuperblockDump {
    fn chunk_at(&self, chunk: u32) -> u64 {
        self.data_offset_bytes + u64::from(chunk) * u64::from(self.chunk_size_bytes)
    }

    /// Offset on the media of the data of a page of a chunk, in bytes.
    pub fn page_at(&self, chunk: u32, page: u32) -> u64 {
        self.chunk_at(chunk) + u64::from(page * sys::FBY_PAGE)
    }

    /// Offset of the line that describes this page.
    pub fn line_at(&self, chunk: u32, page: u32) -> u64 {
        let line = sys::fby_line_of_page(self.chunk_size_bytes / sys::FBY_PAGE, page);
        self.chunk_at(chunk) + u64::from(line * sys::FBY_LINE)
    }
}

impl SuperblockDump {
    /// It lies on a disk, and is written in groups.
    pub fn in_groups(&self) -> bool {
        self.features_incompat & sys::FBY_FEATURE_GROUPED != 0
    }
}

impl fmt::Display for SuperblockDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let valid = |v| if v { "valid" } else { "DAMAGED" };
        writeln!(f, "uuid            {}", self.uuid)?;
        writeln!(f, "version         {}", self.version)?;
        writeln!(
            f,
            "features        compat {:#x}, read-only {:#x}, incompat {:#x}",
            self.features_compat, self.features_ro, self.features_incompat
        )?;
        writeln!(f, "generation      {}", self.generation)?;
        writeln!(f, "media size      {} bytes", self.media_size_bytes)?;
        writeln!(f, "data offset     {} bytes", self.data_offset_bytes)?;
        writeln!(f, "chunks          {} of {} bytes", self.chunks, self.chunk_size_bytes)?;
        writeln!(f, "volume records  {}", self.max_volumes)?;
        if self.static_bytes != 0 {
            writeln!(f, "static volumes  {} bytes", self.static_bytes)?;
        }
        if self.map_bytes != 0 {
            writeln!(f, "maps            {} bytes", self.map_bytes)?;
        }
        match self.clean {
            true => writeln!(
                f,
                "closed cleanly  {} entries, next seq {}",
                self.clean_entries, self.clean_seq
            )?,
            false => writeln!(f, "closed cleanly  no")?,
        }
        write!(
            f,
            "copies          at 0 {}, at {} {}",
            valid(self.primary_valid),
            if self.in_groups() { self.chunk_size_bytes / 4 } else { 4096 },
            valid(self.copy_valid)
        )
    }
}

/// State of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChunkState {
    Free,
    Open,
    Closed,
}

impl fmt::Display for ChunkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ChunkState::Free => "free",
            ChunkState::Open => "open",
            ChunkState::Closed => "closed",
        })
    }
}

/// A chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkDump {
    pub number: u32,
    pub state: ChunkState,
    pub volume: Option<String>,
    /// The log, where it is one's: fill and live are then in lines of 64 bytes, seq_max is
    /// a txg.
    #[serde(default)]
    pub log: Option<String>,
    pub epoch: u64,
    pub seq_min: u64,
    pub seq_max: u64,
    /// Pages written.
    pub fill: u32,
    /// Pages linked: the newest of their block.
    pub live: u32,
}

impl fmt::Display for ChunkDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "chunk {:6}  {:6}  epoch {:6}  fill {:3}  live {:3}  seq {}..{}  {}",
            self.number,
            self.state,
            self.epoch,
            self.fill,
            self.live,
            self.seq_min,
            self.seq_max,
            match &self.log {
                Some(log) => format!("log {log}"),
                None => self.volume.clone().unwrap_or_else(|| "-".into()),
            }
        )
    }
}

/// The content of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryKind {
    Data,
    Zero,
    Discard,
    Bypass,
    Void,
    Unknown,
}

impl EntryKind {
    pub(crate) fn of(raw: u32) -> EntryKind {
        match raw {
            sys::FBY_KIND_DATA => EntryKind::Data,
            sys::FBY_KIND_ZERO => EntryKind::Zero,
            sys::FBY_KIND_DISCARD => EntryKind::Discard,
            sys::FBY_KIND_BYPASS => EntryKind::Bypass,
            sys::FBY_KIND_VOID => EntryKind::Void,
            _ => EntryKind::Unknown,
        }
    }
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            EntryKind::Data => "data",
            EntryKind::Zero => "zero",
            EntryKind::Discard => "discard",
            EntryKind::Bypass => "bypass",
            EntryKind::Void => "void",
            EntryKind::Unknown => "unknown",
        })
    }
}

/// A page of a chunk, as its line describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryDump {
    pub chunk: u32,
    pub page: u32,
    /// The line's own checksum and fields are right.
    pub valid: bool,
    /// It is of the chunk's present epoch.
    pub current: bool,
    /// The page is the newest of its block: a read returns it.
    pub linked: bool,
    /// Whether the data matched its checksum, if it was verified.
    pub data_ok: Option<bool>,
    pub kind: EntryKind,
    pub seq: u64,
    /// 4 KiB units.
    pub block: u64,
    pub volume: Option<String>,
    pub epoch: u64,
    /// First page and pages of the write it belongs to.
    pub batch_first: u16,
    pub batch_count: u8,
    /// Sectors held, bit 0 first.
    pub valid_sectors: u8,
    pub lost_sectors: u8,
    /// Written with a data checksum.
    pub has_checksum: bool,
    pub data_crc: u32,
}

impl fmt::Display for EntryDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {} page {:3}  ", self.chunk, self.page)?;
        if !self.valid {
            return f.write_str("no valid entry");
        }
        write!(
            f,
            "seq {:10}  block {:10}  {:7}  sectors {:08b}",
            self.seq, self.block, self.kind, self.valid_sectors
        )?;
        if self.lost_sectors != 0 {
            write!(f, " LOST {:08b}", self.lost_sectors)?;
        }
        write!(f, "  batch {}+{}  epoch {}", self.batch_first, self.batch_count, self.epoch)?;
        f.write_str(match (self.current, self.linked) {
            (false, _) => "  stale",
            (true, true) => "  linked",
            (true, false) => "  superseded",
        })?;
        f.write_str(match self.data_ok {
            Some(true) => "  data ok",
            Some(false) => "  data BAD",
            None => "",
        })?;
        write!(f, "  {}", self.volume.as_deref().unwrap_or("-"))
    }
}

/// All entries of one block that are still readable, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockHistory {
    pub volume: String,
    /// 4 KiB units.
    pub block: u64,
    /// Entries with a seq up to this are on the origin.
    pub watermark: u64,
    pub entries: Vec<EntryDump>,
}

impl fmt::Display for BlockHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "volume {} block {}: {} entries, watermark {}",
            self.volume,
            self.block,
            self.entries.len(),
            self.watermark
        )?;
        for e in &self.entries {
            write!(f, "\n{e}")?;
            if e.seq <= self.watermark {
                f.write_str("  on the origin")?;
            }
        }
        Ok(())
    }
}

/// One of the two places of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayDump {
    /// Its page is one that the origin lacks.
    pub live: bool,
    /// ... and of which block it is is not known.
    pub lost: bool,
    /// ... and the other has the block's newer one.
    pub superseded: bool,
    /// Written last.
    pub newest: bool,
    /// Whether the checksum of a live page is right.
    pub data_ok: Option<bool>,
    pub kind: EntryKind,
    /// 4 KiB units.
    pub block: u64,
    pub era: u64,
    /// The write's number within the slot.
    pub number: u32,
    /// Sectors held, bit 0 first.
    pub valid_sectors: u8,
    pub lost_sectors: u8,
    pub data_crc: u32,
}

impl fmt::Display for WayDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.live && self.lost {
            return f.write_str("LOST, of an unknown block");
        }
        if !self.live {
            return f.write_str("free");
        }
        write!(f, "block {:10}  {:7}  sectors {:08b}", self.block, self.kind, self.valid_sectors)?;
        if self.lost_sectors != 0 {
            write!(f, " LOST {:08b}", self.lost_sectors)?;
        }
        write!(f, "  era {}  number {}", self.era, self.number)?;
        f.write_str(match self.superseded {
            true => "  superseded",
            false => "  live",
        })?;
        f.write_str(match self.data_ok {
            Some(true) => "  data ok",
            Some(false) => "  data BAD",
            None => "",
        })
    }
}

/// The slot of a static volume in which a block has its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotDump {
    pub volume: String,
    /// That was asked for, 4 KiB units; other blocks have the same slot.
    pub block: u64,
    pub slot: u32,
    /// The last write was never acknowledged.
    pub torn: bool,
    pub ways: Vec<WayDump>,
}

impl fmt::Display for SlotDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "volume {} block {}: slot {}", self.volume, self.block, self.slot)?;
        if self.torn {
            f.write_str(", its last write torn by a crash and never acknowledged")?;
        }
        for (i, way) in self.ways.iter().enumerate() {
            write!(f, "\nway {i}  {way}")?;
        }
        Ok(())
    }
}
