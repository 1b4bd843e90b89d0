// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs of an open pool: added, opened, removed, listed.

use std::path::Path;

use forebay_engine::{sys, Decision};

use super::{table_full, Pool};
use crate::engine::{Code, Wait};
use crate::error::{Error, Result};
use crate::grouped::Sender;
use crate::log::{log_info, Log, LogOptions};
use crate::opened::Logs;
use crate::report::{LogHome, LogInfo, VolumeInfo};
use crate::shared_pool::SharedPool;

impl SharedPool {
    pub(crate) fn logs(&self) -> Vec<LogInfo> {
        let engine = &self.engine;
        let n = engine.info().sb.nvolumes as u16;
        (0..n).filter_map(|i| Some(log_info(i, &engine.log_info(i).ok()?))).collect()
    }

    /// The log of the name, without a word about others.
    pub(crate) fn log_named(&self, name: &str) -> Option<u16> {
        self.engine.log_find(name).ok()
    }

    pub(crate) fn find_log(&self, name: &str) -> Result<u16> {
        if let Some(index) = self.log_named(name) {
            return Ok(index);
        }
        if self.volumes().iter().any(|v| v.name == name) {
            return Err(Error::Log {
                name: name.into(),
                cause: "is a volume, not a log".into(),
                way_out: "see `forebay volume`".into(),
                code: sys::FBY_E_NO_LOG,
            });
        }
        Err(Error::no_log(self.path(), name, &self.logs(), &self.volumes()))
    }
}

impl Error {
    /// The error for a log that does not exist, or that may be one with a damaged record.
    pub fn no_log(pool: &Path, name: &str, logs: &[LogInfo], volumes: &[VolumeInfo]) -> Error {
        let (pool, name) = (pool.to_path_buf(), name.to_owned());
        match volumes.iter().find(|v| v.damaged) {
            None => {
                Error::NoLog { pool, name, known: logs.iter().map(|l| l.name.clone()).collect() }
            }
            Some(v) => Error::Damaged {
                path: pool,
                cause: format!(
                    "no log {name} can be read, but both copies of record #{} are damaged, \
                     which may be its",
                    v.index
                ),
                way_out: format!(
                    "restore the pool from a copy, or remove what the record was of, with all \
                     that it holds: forebay volume remove POOL '#{}' --discard",
                    v.index
                ),
            },
        }
    }
}

impl Pool {
    /// A new log, in no state.  Its name is neither a volume's nor another log's; and while
    /// a record of the pool is damaged, which may be its, none is made.
    pub fn log_add(&self, name: &str, home: LogHome) -> Result<LogInfo> {
        let core = self.0.core();
        core.check_writable()?;
        let _volumes = self.0.volumes();
        let flags = match home {
            LogHome::Embedded => 0,
            LogHome::Consumer => sys::FBY_LOG_CONSUMER,
        };
        let added = core.engine.log_add(name, flags).map_err(|e| match e.0 {
            sys::FBY_E_VOLUME_TABLE_FULL => {
                let (cause, way_out) = table_full(core.engine.info().sb.nvolumes);
                Error::Log { name: name.into(), cause, way_out, code: e.0 }
            }
            sys::FBY_E_VOLUME_DAMAGED => {
                Error::no_log(core.path(), name, &core.logs(), &core.volumes())
            }
            _ => core.log_error(name, e),
        })?;
        self.log_info_of(added, name)
    }

    /// Removes a log.  One that holds entries is removed with `discard` only: they are
    /// lost.
    pub fn log_remove(&self, name: &str, discard: bool) -> Result<()> {
        let core = self.0.core();
        core.check_writable()?;
        let _volumes = self.0.volumes();
        let index = core.find_log(name)?;
        let mut open = self.0.logs();
        if has_handles(&open, index) {
            return Err(Error::Log {
                name: name.into(),
                cause: "handles of it are in use".into(),
                way_out: "drop them first".into(),
                code: sys::FBY_E_BUSY,
            });
        }
        open.remove(&index);
        // A slot may be busy for a moment.
        loop {
            let seen = core.sender.as_ref().map_or(0, Sender::ends);
            match (core.engine.log_remove(index, discard), &core.sender) {
                (Ok(Decision::Wait(wait @ Wait::Ticket)), Some(sender)) => {
                    core.help(sender, wait, seen);
                }
                (Ok(Decision::Wait(_)), _) => std::thread::yield_now(),
                (removed, _) => break removed.map_err(|e| remove_error(core, name, e)),
            };
        }?;
        core.push();
        core.space.wake();
        Ok(())
    }

    /// There are handles of it.
    pub fn log_in_use(&self, name: &str) -> Result<bool> {
        let index = self.0.core().find_log(name)?;
        Ok(has_handles(&self.0.logs(), index))
    }

    /// A handle of a log; there may be several.
    pub fn log(&self, name: &str, o: &LogOptions) -> Result<Log> {
        let _volumes = self.0.volumes();
        let index = self.0.core().find_log(name)?;
        // Destage seals appended entries, and frees obsolete ones.
        self.0.start_destage()?;
        let log = Log::open(&self.0, index, name, o);
        let mut open = self.0.logs();
        let handles = open.entry(index).or_default();
        handles.retain(|handle| handle.strong_count() > 0);
        handles.push(std::sync::Arc::downgrade(log.handle()));
        Ok(log)
    }

    /// Logs in the order of the table, whatever their state.
    pub fn logs(&self) -> Vec<LogInfo> {
        self.0.core().logs()
    }

    pub fn log_info(&self, name: &str) -> Result<LogInfo> {
        self.log_info_of(self.0.core().find_log(name)?, name)
    }

    fn log_info_of(&self, index: u16, name: &str) -> Result<LogInfo> {
        let info = self.engine().log_info(index).map_err(|e| self.0.core().log_error(name, e))?;
        Ok(log_info(index, &info))
    }
}

fn has_handles(open: &Logs, index: u16) -> bool {
    open.get(&index).is_some_and(|all| all.iter().any(|w| w.strong_count() > 0))
}

fn remove_error(core: &SharedPool, name: &str, e: Code) -> Error {
    match e.0 {
        sys::FBY_E_LOG_STATE | sys::FBY_E_LOG_UNCLAIMED => Error::Log {
            name: name.into(),
            cause: "it holds entries, or may".into(),
            way_out: "replay and destroy it first, or discard what it holds (--discard): its consumer then loses what it was promised".into(),
            // As a volume that holds data: their exit code is the same.
            code: sys::FBY_E_VOLUME_DIRTY,
        },
        _ => core.log_error(name, e),
    }
}
