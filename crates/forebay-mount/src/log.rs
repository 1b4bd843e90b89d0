// SPDX-License-Identifier: MIT OR Apache-2.0
//! The journal of a mount: a named log of a pool.

use forebay::{Error, Generation, Log, Submitted, Ticket, Writes};

use crate::live::{Journal, JournalError};

#[derive(Debug)]
pub struct PoolJournal {
    log: Log,
    entry_max: usize,
}

impl PoolJournal {
    pub fn new(log: Log) -> forebay::Result<PoolJournal> {
        let entry_max = log.info()?.largest_entry_bytes as usize;
        Ok(PoolJournal { log, entry_max })
    }

    pub fn log(&self) -> &Log {
        &self.log
    }
}

impl Journal for PoolJournal {
    fn append(&self, txg: u64, pieces: &[&[u8]]) -> Result<Ticket, JournalError> {
        match self.log.submit_now(txg, Generation::New, pieces) {
            Ok(Submitted::Done(_, ticket)) => Ok(ticket),
            Ok(Submitted::Busy(writes)) => Err(JournalError::Busy(writes)),
            Err(Error::LogFull { .. }) => Err(JournalError::Full),
            Err(e) => Err(JournalError::Failed(e.to_string())),
        }
    }

    fn wait_for_writes(&self, before: Writes) {
        self.log.wait_for_writes(before);
    }

    fn wait(&self, ticket: Ticket) -> Result<(), JournalError> {
        self.log.wait(ticket).map_err(|e| JournalError::Failed(e.to_string()))
    }

    fn is_settled(&self, ticket: Ticket) -> bool {
        self.log.is_settled(ticket)
    }

    fn sync(&self, txg: u64) -> Result<(), JournalError> {
        self.log.sync(txg).map(|_| ()).map_err(|e| JournalError::Failed(e.to_string()))
    }

    fn entry_max(&self) -> usize {
        self.entry_max
    }
}
