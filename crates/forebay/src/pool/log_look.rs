// SPDX-License-Identifier: MIT OR Apache-2.0
//! Views of logs for tools, and forecasts of a replay: reads only.

use std::collections::HashSet;

use forebay_engine::logs::{Cursor, EntryInfo};
use forebay_engine::{log_order, sys};

use super::Pool;
use crate::engine::Code;
use crate::error::{log_error, Error, Result};
use crate::log::{log_info, LogEntry};
use crate::report::{
    EntryName, LogCheck, LogEntryDump, LogHome, LogState, ReplayEnd, ReplayReport, Uuid,
};

impl Pool {
    /// The entries of a chunk of a log, in the order in which they lie there; `None`: it
    /// is not a log's.
    pub fn log_entries_of_chunk(
        &self,
        chunk: u32,
        check_data: bool,
    ) -> Result<Option<Vec<LogEntryDump>>> {
        self.check_chunk(chunk)?;
        let found = match self.walk(chunk, check_data) {
            Err(Code(sys::FBY_E_NO_LOG)) => return Ok(None),
            found => found.map_err(|e| self.0.core().pool_error(e))?,
        };
        Ok(Some(found.iter().map(|e| self.log_entry_dump(e, check_data)).collect()))
    }

    /// The entries of a log, in the order of their generations.
    pub fn log_entries(&self, name: &str, check_data: bool) -> Result<Vec<LogEntryDump>> {
        let index = self.0.core().find_log(name)?;
        let found = self.walk_log(index, check_data).map_err(|e| log_error(name, e))?;
        let mut all: Vec<_> = found.iter().map(|e| self.log_entry_dump(e, check_data)).collect();
        all.sort_by_key(|e| (e.name, e.chunk, e.line));
        Ok(all)
    }

    /// Forecasts the replay of a log, and verifies the data of its entries.  The log must not
    /// be in use, and its header must be in the pool.
    pub fn log_replay_dry(&self, name: &str) -> Result<ReplayReport> {
        let index = self.0.core().find_log(name)?;
        let info = self.log_info(name)?;
        let refused = |cause: &str, way_out: &str| Error::Log {
            name: name.into(),
            cause: cause.into(),
            way_out: way_out.into(),
            code: sys::FBY_E_LOG_STATE,
        };
        if info.state == LogState::Logging && info.claimed {
            return Err(refused(
                "it is in use: nothing waits for a replay",
                "see `forebay log show`",
            ));
        }
        if info.home == LogHome::Consumer && !info.claimed {
            let way_out = "claim it by the consumer, or list what it holds (`forebay log dump`)";
            return Err(refused(
                "its header, which says what is to be replayed, is with the consumer",
                way_out,
            ));
        }
        self.dry(index, true).map_err(|e| log_error(name, e))
    }

    /// Hands out the live entries of a log that was created in this open of the pool, and that
    /// nobody appends to, in the order of a replay.  It is for a consumer that left them there
    /// and begins again, since a log is claimed once in each open.  Nothing is stored; missing
    /// entries are reported as by [`Claimed::replay`](crate::Claimed::replay).
    pub fn log_left(
        &self,
        name: &str,
        each: &mut dyn FnMut(&LogEntry<'_>),
    ) -> Result<ReplayReport> {
        let index = self.0.core().find_log(name)?;
        let info = self.log_info(name)?;
        if info.state != LogState::Logging || !info.claimed {
            return Err(Error::Log {
                name: name.into(),
                cause: "it was not created in this open of the pool".into(),
                way_out: "claim it (Log::claim)".into(),
                code: sys::FBY_E_LOG_STATE,
            });
        }
        let failed = |e| log_error(name, e);
        let raw = self.engine().log_info(index).map_err(failed)?;
        let header = raw.header;
        let found = self.walk_log(index, false).map_err(failed)?;
        let nodes: Vec<_> =
            found.iter().filter(|e| e.entry.guid == header.guid).map(|e| e.node).collect();
        let mut at = log_order::claim(header.at.synced, &nodes);
        let (mut room, mut error) = (Vec::new(), None);
        let outcome = log_order::replay(&mut at, &nodes, &mut |node, _| match self
            .engine()
            .log_read(index, node, &mut room)
        {
            Ok(data) => {
                let name = EntryName { generation: node.gen, id: node.id };
                each(&LogEntry { name, txg: node.txg, data });
                sys::FBY_LOG_REPLAYED
            }
            Err(Code(sys::FBY_E_LOG_ENTRY)) => sys::FBY_LOG_DAMAGED,
            Err(e) => {
                error = Some(e);
                sys::FBY_LOG_STOP
            }
        });
        let report = Box::new(ReplayReport::of(&outcome, &raw));
        match (error, report.end) {
            (Some(e), _) => Err(failed(e)),
            (None, ReplayEnd::Missing) => Err(Error::LogIncomplete { name: name.into(), report }),
            (None, _) => Ok(*report),
        }
    }

    fn dry(&self, index: u16, data: bool) -> Result<ReplayReport, Code> {
        let info = self.engine().log_info(index)?;
        let header = info.header;
        if header.state == sys::FBY_LOG_NONE {
            return Ok(ReplayReport::default());
        }
        let mut found = self.walk_log(index, data)?;
        found.retain(|e| e.entry.guid == header.guid);
        let bad = found.iter().filter(|e| data && !e.data_ok).map(|e| e.node.place);
        let bad: HashSet<u64> = bad.collect();
        let nodes: Vec<_> = found.iter().map(|e| e.node).collect();
        let mut at = match header.state {
            sys::FBY_LOG_LOGGING => log_order::claim(header.at.synced, &nodes),
            _ => header.at,
        };
        let outcome =
            log_order::replay(&mut at, &nodes, &mut |node, _| match bad.contains(&node.place) {
                true => sys::FBY_LOG_DAMAGED,
                false => sys::FBY_LOG_REPLAYED,
            });
        Ok(ReplayReport::of(&outcome, &info))
    }

    /// For each log: is any entry that should be replayed missing or damaged?
    pub(super) fn check_logs(&self, data: bool) -> Result<Vec<LogCheck>> {
        let checked = self.0.core().logs().into_iter().map(|info| {
            let in_use = info.state == LogState::Logging && info.claimed;
            let of_consumer = info.home == LogHome::Consumer && !info.claimed;
            let replay = match in_use || of_consumer {
                true => None,
                false => Some(self.dry(info.index, data).map_err(|e| log_error(&info.name, e))?),
            };
            let damaged = match of_consumer && data {
                true => {
                    let found = self.walk_log(info.index, true);
                    let found = found.map_err(|e| log_error(&info.name, e))?;
                    found.iter().filter(|e| !e.data_ok).count() as u64
                }
                false => replay.as_ref().map_or(0, |r| r.damaged),
            };
            let (missing, incomplete) = (info.missing, info.incomplete);
            Ok(LogCheck { log: info.name, replay, missing, incomplete, damaged })
        });
        checked.collect()
    }

    fn walk_log(&self, index: u16, data: bool) -> Result<Vec<EntryInfo>, Code> {
        let mut all = Vec::new();
        for chunk in 0..self.engine().info().sb.nchunks {
            let info = self.engine().chunk_info(chunk)?;
            if info.volume == index && info.state != 0 {
                all.extend(self.walk(chunk, data)?);
            }
        }
        Ok(all)
    }

    fn walk(&self, chunk: u32, data: bool) -> Result<Vec<EntryInfo>, Code> {
        let (mut at, mut all) = (Cursor::default(), Vec::new());
        while let Some(found) = self.engine().log_entry_info(chunk, &mut at, data)? {
            all.push(found);
        }
        Ok(all)
    }

    fn log_entry_dump(&self, found: &EntryInfo, checked: bool) -> LogEntryDump {
        let e = &found.entry;
        let log = self.engine().log_info(e.log).ok();
        let header = log.as_ref().map(|raw| raw.header);
        LogEntryDump {
            log: log.as_ref().map(|raw| log_info(e.log, raw).name),
            name: EntryName { generation: e.gen, id: e.id },
            txg: e.txg,
            bytes: e.length,
            chunk: e.chunk,
            line: e.line,
            epoch: e.epoch,
            guid: Uuid(e.guid),
            after_gap: found.gap,
            obsolete: header.is_some_and(|h| h.guid == e.guid && e.txg <= h.at.synced),
            data_ok: checked.then_some(found.data_ok),
            data_crc: e.body_crc,
        }
    }
}
