// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reports of a log, ready for JSON.

use forebay_engine::logs::LogInfo as RawInfo;
use forebay_engine::sys;

use crate::printable::printable;
use crate::report::{LogHome, LogInfo, LogState, Uuid};

pub(super) fn state_of(raw: u32) -> LogState {
    match raw {
        sys::FBY_LOG_LOGGING => LogState::Logging,
        sys::FBY_LOG_REPLAYING => LogState::Replaying,
        _ => LogState::None,
    }
}

/// Entries to be replayed may be lost without any other entry showing it.
pub(super) fn incomplete(raw: &RawInfo) -> bool {
    let ended = raw.header.state == sys::FBY_LOG_NONE && (raw.claimed || !raw.consumer);
    raw.incomplete && !ended
}

pub(crate) fn log_info(index: u16, raw: &RawInfo) -> LogInfo {
    let (h, at) = (&raw.header, &raw.header.at);
    let state = state_of(h.state);
    let open = state == LogState::Logging && raw.claimed;
    let (entries, unsynced_txgs) = match open {
        true => (raw.unsynced, raw.unsynced_txgs.into()),
        false => (raw.found, 0),
    };
    LogInfo {
        name: printable(&sys::text(&raw.name)).into_owned(),
        index,
        home: if raw.consumer { LogHome::Consumer } else { LogHome::Embedded },
        state,
        claimed: raw.claimed,
        // Before the claim of a consumer's log that of its newest period, ended or not.
        guid: (state != LogState::None || (raw.consumer && !raw.claimed && h.guid != [0; 16]))
            .then_some(Uuid(h.guid)),
        synced_txg: at.synced,
        unsynced_txgs,
        entries,
        missing: raw.missing,
        incomplete: incomplete(raw),
        chunks: raw.chunks,
        held_chunks: if open { 0 } else { raw.chunks },
        largest_entry_bytes: raw.most,
        appends: raw.appends,
        appended_bytes: raw.bytes,
    }
}
