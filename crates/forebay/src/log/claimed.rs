// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entries of a log after a crash, and their replay.

use forebay_engine::log_order;
use forebay_engine::logs::{Header, LogInfo as RawInfo, Node, Outcome, Position};
use forebay_engine::sys;

use super::info::incomplete;
use super::{Log, LogHeader};
use crate::engine::Code;
use crate::error::{Error, Result};
use crate::report::{EntryName, ReplayEnd, ReplayReport, Witness};

/// An entry that is replayed; its bytes are verified.
#[derive(Clone, Copy, Debug)]
pub struct LogEntry<'a> {
    pub name: EntryName,
    pub txg: u64,
    pub data: &'a [u8],
}

/// The effect of an entry that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The content is durable; for a log whose header is with the consumer, together with the
    /// checkpoint.
    Durable,
    /// The entry is applied, but not durable yet.  It is handed out again if the replay is
    /// interrupted before a later entry is [`Effect::Durable`], which covers all entries before
    /// it.
    Applied,
    /// It is not done: the replay ends here, and may go on later.
    Stop,
}

fn witness(node: &Node) -> Option<Witness> {
    let witness = Witness { generation: node.gen, id: node.id, txg: node.txg };
    (node.gen != 0).then_some(witness)
}

impl ReplayReport {
    /// `info`: that of the log.
    pub(crate) fn of(outcome: &Outcome, info: &RawInfo) -> ReplayReport {
        let incomplete = incomplete(info);
        // Only one of two entries with one name was appended, so neither is used.
        let lost = info.missing > 0 || incomplete || outcome.twins > 0;
        ReplayReport {
            end: match outcome.end {
                sys::FBY_LOG_COMPLETE if lost => ReplayEnd::Missing,
                sys::FBY_LOG_COMPLETE => ReplayEnd::Complete,
                sys::FBY_LOG_MISSING => ReplayEnd::Missing,
                _ => ReplayEnd::Stopped,
            },
            replayed: outcome.replayed,
            obsolete: outcome.obsolete,
            earlier: outcome.earlier,
            twins: outcome.twins,
            damaged: outcome.damaged,
            first_damaged: witness(&outcome.first_damaged),
            left: outcome.left,
            witness: witness(&outcome.witness).filter(|_| outcome.end == sys::FBY_LOG_MISSING),
            missing: info.missing,
            incomplete,
        }
    }
}

/// A claimed log: its remaining entries can be replayed, and the log destroyed or given up.  If
/// it is dropped before that, the log stays claimed and its entries stay: the next open of the
/// pool can claim it again, and the replay continues at its position.
#[derive(Debug)]
pub struct Claimed {
    log: Log,
    nodes: Vec<Node>,
    report: ReplayReport,
    /// Nothing is left of what it holds.
    complete: bool,
}

impl Claimed {
    pub(super) fn new(log: Log, nodes: Vec<Node>, outcome: &Outcome) -> Result<Claimed> {
        let info = log.raw_info()?;
        let complete = info.header.state == sys::FBY_LOG_NONE;
        Ok(Claimed { log, nodes, report: ReplayReport::of(outcome, &info), complete })
    }

    /// Forecast of a replay, from the entries' headers alone: their data is read by the replay.
    pub fn report(&self) -> &ReplayReport {
        &self.report
    }

    /// The log's header: a consumer that keeps it must store it after the claim.
    pub fn header(&self) -> Result<LogHeader> {
        Ok(LogHeader(self.log.raw_info()?.header))
    }

    /// Hands out the remaining entries in order, each once.  `effect` makes the entry's content
    /// durable, and stores the checkpoint in the same step if the header is with the consumer.
    /// If the pool keeps the header, the pool stores the checkpoint afterwards, so the last
    /// entry before a crash may be handed out twice.
    ///
    /// The replay skips an unreadable entry and all that depend on it, and ends with
    /// [`Error::LogIncomplete`], which names it.  It ends in the same way if recovery did not
    /// find all entries and no other entry depends on the missing ones; then all remaining
    /// entries were handed out.  The replay may be called again, and continues where it ended.
    pub fn replay(
        &mut self,
        mut effect: impl FnMut(&LogEntry<'_>, &LogHeader) -> Effect,
    ) -> Result<ReplayReport> {
        let info = self.log.raw_info()?;
        let header = info.header;
        if self.complete && header.state == sys::FBY_LOG_NONE {
            return Ok(ReplayReport::default());
        }
        if header.state != sys::FBY_LOG_REPLAYING {
            return Err(self.log.error("replay", Code(sys::FBY_E_LOG_STATE)));
        }
        let (mut at, mut room, mut failed) = (header.at, Vec::new(), None);
        let outcome = log_order::replay(&mut at, &self.nodes, &mut |node, next| match self
            .replay_one(&header, node, next, &mut room, &mut effect)
        {
            Ok(verdict) => verdict,
            Err(e) => {
                failed = Some(e);
                sys::FBY_LOG_STOP
            }
        });
        if let Some(e) = failed {
            return Err(self.log.core().log_error(self.log.name(), e));
        }
        let report = ReplayReport::of(&outcome, &info);
        self.complete = report.end == ReplayEnd::Complete;
        match report.end {
            ReplayEnd::Missing => {
                Err(Error::LogIncomplete { name: self.log.name().into(), report: Box::new(report) })
            }
            _ => Ok(report),
        }
    }

    /// Nothing is held while the consumer works; then the engine is told the result of this
    /// entry alone, and takes the position.
    fn replay_one(
        &self,
        header: &Header,
        node: &Node,
        next: &Position,
        room: &mut Vec<u8>,
        effect: &mut impl FnMut(&LogEntry<'_>, &LogHeader) -> Effect,
    ) -> std::result::Result<u32, Code> {
        let (engine, index) = (&self.log.core().engine, self.log.0.index);
        let data = match engine.log_read(index, node, room) {
            Ok(data) => data,
            Err(Code(sys::FBY_E_LOG_ENTRY)) => return Ok(sys::FBY_LOG_DAMAGED),
            Err(e) => return Err(e),
        };
        let name = EntryName { generation: node.gen, id: node.id };
        let checkpoint = LogHeader(Header { at: *next, ..*header });
        let verdict = match effect(&LogEntry { name, txg: node.txg, data }, &checkpoint) {
            Effect::Durable => sys::FBY_LOG_REPLAYED,
            Effect::Applied => sys::FBY_LOG_APPLIED,
            Effect::Stop => return Ok(sys::FBY_LOG_STOP),
        };
        let told = engine.log_replay(index, &mut [*node], &mut |_, _| verdict)?;
        match told.replayed {
            1 => Ok(verdict),
            _ => Err(Code(sys::FBY_E_INVARIANT)),
        }
    }

    /// After a complete replay: the log is in no state, and can be created anew.  Refused
    /// while there is something left; see [`Claimed::give_up`].
    pub fn destroy(self) -> Result<LogHeader> {
        match self.complete {
            true => self.log.destroy(),
            false => Err(self.log.refused(
                "destroy refused: it is not replayed to its end",
                "replay it, or give up what is left (Claimed::give_up)",
                sys::FBY_E_LOG_STATE,
            )),
        }
    }

    /// Like `destroy`, but the remaining entries are lost, by explicit order.
    pub fn give_up(self) -> Result<LogHeader> {
        self.log.destroy()
    }
}
