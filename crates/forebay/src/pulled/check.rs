// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares each block with what was acknowledged, and sums it up.

use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::block::{self, Found, Version};
use super::journal::Journal;
use super::run::{PullMode, Run};
use crate::report::Uuid;

/// Blocks that are named one by one.
const EXAMPLES: usize = 20;

/// What the test says, the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PullVerdict {
    /// Acknowledged blocks are not there.
    Lost,
    /// Acknowledged blocks are there in part.
    Torn,
    /// Blocks that the cut write did not touch are damaged.
    Collateral,
    /// Nothing was tested.
    Inconclusive,
    /// Everything that was acknowledged is there.
    Kept,
}

impl PullVerdict {
    /// Of a command that ends with it, of [`EXIT_CODES`](crate::EXIT_CODES).
    pub fn exit_code(self) -> u8 {
        match self {
            PullVerdict::Kept => 0,
            PullVerdict::Lost => 11,
            PullVerdict::Torn => 15,
            PullVerdict::Collateral => 16,
            PullVerdict::Inconclusive => 17,
        }
    }
}

impl fmt::Display for PullVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PullVerdict::Kept => "everything that was acknowledged is there",
            PullVerdict::Lost => "writes are lost that the disk said were durable",
            PullVerdict::Torn => "blocks are torn that the disk said were durable",
            PullVerdict::Collateral => "blocks are damaged that nothing was writing to",
            PullVerdict::Inconclusive => "nothing can be said",
        })
    }
}

/// Blocks whose last acknowledged write was of a mode; collateral damage counts for the mode in
/// which the power was cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeReport {
    /// Blocks that a step of this mode wrote last.
    pub blocks: u64,
    pub lost: u64,
    pub torn: u64,
    pub collateral: u64,
}

/// Blocks of the step that was cut: each may be old, new, mixed or unreadable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InFlight {
    pub old: u64,
    pub new: u64,
    pub other: u64,
}

/// A block that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Example {
    pub block: u64,
    /// Where it begins on the disk.
    pub byte: u64,
    /// The last acknowledged step that wrote it.
    pub step: u64,
    pub mode: PullMode,
    pub verdict: PullVerdict,
    pub found: String,
}

/// The result of a verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullReport {
    pub run: Uuid,
    pub device: String,
    pub unit_bytes: u32,
    pub blocks: u64,
    /// Steps that were acknowledged.
    pub steps: u64,
    /// The mode of the step that was cut.
    pub cut_in: PullMode,
    pub fua: ModeReport,
    pub flush: ModeReport,
    pub in_flight: InFlight,
    /// Blocks of steps that the record does not know: it is not the record of this disk's run.
    pub unknown: u64,
    /// The oldest step that is lost or torn.
    pub oldest_lost_step: Option<u64>,
    pub examples: Vec<Example>,
    /// The writer has ended by itself: nobody has cut the power.
    pub uncut: bool,
    /// The system has not been started again since the run began.
    pub same_boot: bool,
    pub verdict: PullVerdict,
}

/// Blocks come in any order, each once.
pub(super) struct Check<'j> {
    run: &'j Run,
    /// The last acknowledged step of each block.
    last: Vec<u64>,
    cut: HashSet<u64>,
    report: PullReport,
}

impl<'j> Check<'j> {
    pub(super) fn new(journal: &'j Journal) -> Check<'j> {
        let run = &journal.run;
        let mut last = vec![0; run.blocks as usize];
        for step in 1..=journal.steps {
            run.writes(step, |w| {
                last[w.block as usize..(w.block + w.blocks) as usize].fill(step);
            });
        }
        let mut cut = HashSet::new();
        run.writes(journal.steps + 1, |w| cut.extend(w.block..w.block + w.blocks));
        let report = PullReport {
            run: run.uuid,
            device: run.device.clone(),
            unit_bytes: run.unit_bytes,
            blocks: run.blocks,
            steps: journal.steps,
            cut_in: run.mode(journal.steps + 1),
            fua: ModeReport::default(),
            flush: ModeReport::default(),
            in_flight: InFlight::default(),
            unknown: 0,
            oldest_lost_step: None,
            examples: Vec::new(),
            uncut: journal.uncut,
            same_boot: false,
            verdict: PullVerdict::Inconclusive,
        };
        Check { run, last, cut, report }
    }

    fn of_mode(&mut self, mode: PullMode) -> &mut ModeReport {
        match mode {
            PullMode::Fua => &mut self.report.fua,
            PullMode::Flush => &mut self.report.flush,
        }
    }

    /// `None`: the block cannot be read.
    pub(super) fn block(&mut self, block: u64, bytes: Option<&[u8]>) {
        let step = self.last[block as usize];
        let (mode, is_cut) = (self.run.mode(step), self.cut.contains(&block));
        self.of_mode(mode).blocks += 1;
        let found = bytes.map(|bytes| block::read(self.run, block, bytes));
        let bad = match found {
            Some(Found::Versions { oldest, newest }) => self.versions(step, is_cut, oldest, newest),
            _ if is_cut => {
                self.report.in_flight.other += 1;
                None
            }
            _ => Some(PullVerdict::Collateral),
        };
        if let Some(verdict) = bad {
            self.tell(block, step, verdict, found);
        }
    }

    fn versions(
        &mut self,
        step: u64,
        is_cut: bool,
        oldest: Version,
        newest: Version,
    ) -> Option<PullVerdict> {
        let acknowledged = Some(step);
        let most = if is_cut { Some(self.report.steps + 1) } else { acknowledged };
        if newest > most {
            self.report.unknown += 1;
            return None;
        }
        if oldest < acknowledged {
            return Some(if newest == oldest { PullVerdict::Lost } else { PullVerdict::Torn });
        }
        // What is between the acknowledged step and the cut one was never written here.
        let is = |version: Version| version == acknowledged || version == most;
        if !is(oldest) || !is(newest) {
            self.report.unknown += 1;
            return None;
        }
        if is_cut {
            let in_flight = &mut self.report.in_flight;
            match (oldest == acknowledged, newest == acknowledged) {
                (true, true) => in_flight.old += 1,
                (false, false) => in_flight.new += 1,
                _ => in_flight.other += 1,
            }
        }
        None
    }

    fn tell(&mut self, block: u64, step: u64, verdict: PullVerdict, found: Option<Found>) {
        let cut_in = self.report.cut_in;
        let mode = match verdict {
            PullVerdict::Collateral => cut_in,
            _ => self.run.mode(step),
        };
        let count = self.of_mode(mode);
        match verdict {
            PullVerdict::Lost => count.lost += 1,
            PullVerdict::Torn => count.torn += 1,
            _ => count.collateral += 1,
        }
        if verdict != PullVerdict::Collateral {
            let oldest = self.report.oldest_lost_step.unwrap_or(step);
            self.report.oldest_lost_step = Some(oldest.min(step));
        }
        if self.report.examples.len() < EXAMPLES {
            let found = found.map_or_else(|| "it cannot be read".into(), words);
            let byte = self.run.byte(block);
            self.report.examples.push(Example { block, byte, step, mode, verdict, found });
        }
    }

    /// The first block of the disk has the run's parameters.
    pub(super) fn parameters(&mut self, intact: bool) {
        if !intact {
            let cut_in = self.report.cut_in;
            self.of_mode(cut_in).collateral += 1;
        }
    }

    pub(super) fn end(mut self, same_boot: bool) -> PullReport {
        let (fua, flush) = (&self.report.fua, &self.report.flush);
        self.report.verdict = match () {
            () if self.report.steps == 0 || self.report.unknown > 0 => PullVerdict::Inconclusive,
            () if fua.lost + flush.lost > 0 => PullVerdict::Lost,
            () if fua.torn + flush.torn > 0 => PullVerdict::Torn,
            () if fua.collateral + flush.collateral > 0 => PullVerdict::Collateral,
            () if self.report.uncut => PullVerdict::Inconclusive,
            () => PullVerdict::Kept,
        };
        self.report.same_boot = same_boot;
        self.report
    }
}

fn words(found: Found) -> String {
    let name = |version: Version| match version {
        None => "before the run".to_string(),
        Some(step) => format!("step {step}"),
    };
    match found {
        Found::Versions { oldest, newest } if oldest == newest => {
            format!("content of {}", name(oldest))
        }
        Found::Versions { oldest, newest } => {
            format!("sectors of {} and of {}", name(newest), name(oldest))
        }
        Found::OtherBlock => "content of another block".into(),
        Found::Garbage => "content that was never written".into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::run::tests::run;
    use super::super::run::Modes;
    use super::*;

    const UNIT: usize = 4096;
    const BLOCKS: u64 = 200;

    /// A disk of its own: every step that was done, up to the one that was cut.
    struct Disk {
        journal: Journal,
        blocks: Vec<Vec<u8>>,
        unreadable: HashSet<u64>,
    }

    impl Disk {
        fn after(modes: Modes, steps: u64) -> Disk {
            let run = run(BLOCKS, modes);
            let content = |block| Disk::content(&run, block, 0);
            let blocks = (0..BLOCKS).map(content).collect();
            let journal = Journal { run, steps: 0, uncut: false };
            let mut disk = Disk { journal, blocks, unreadable: HashSet::new() };
            for step in 1..=steps {
                for block in disk.of_step(step) {
                    disk.put(block, step);
                }
                disk.journal.steps = step;
            }
            disk
        }

        fn content(run: &Run, block: u64, step: u64) -> Vec<u8> {
            let mut bytes = vec![0; UNIT];
            block::write(run, block, step, &mut bytes);
            bytes
        }

        fn put(&mut self, block: u64, step: u64) {
            self.blocks[block as usize] = Disk::content(&self.journal.run, block, step);
        }

        fn of_step(&self, step: u64) -> Vec<u64> {
            let mut all = HashSet::new();
            self.journal.run.writes(step, |w| all.extend(w.block..w.block + w.blocks));
            let mut all: Vec<_> = all.into_iter().collect();
            all.sort_unstable();
            all
        }

        /// Blocks whose last step was this one or a later one, and that are not in the cut one.
        fn since(&self, step: u64) -> Vec<u64> {
            let check = Check::new(&self.journal);
            let is = |b: &u64| check.last[*b as usize] >= step && !check.cut.contains(b);
            (0..BLOCKS).filter(is).collect()
        }

        fn last(&self, block: u64) -> u64 {
            Check::new(&self.journal).last[block as usize]
        }

        fn judged(&self) -> PullReport {
            let mut check = Check::new(&self.journal);
            for block in 0..BLOCKS {
                let bytes = &self.blocks[block as usize][..];
                check.block(block, (!self.unreadable.contains(&block)).then_some(bytes));
            }
            check.end(true)
        }
    }

    fn sum(report: &PullReport, of: impl Fn(&ModeReport) -> u64) -> u64 {
        of(&report.fua) + of(&report.flush)
    }

    fn any_modes() -> impl Strategy<Value = Modes> {
        prop_oneof![Just(Modes::Both), Just(Modes::Fua), Just(Modes::Flush)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// A disk that keeps its word, whatever the cut left of the step in flight.
        #[test]
        fn a_disk_that_kept_all_is_never_accused(
            modes in any_modes(), steps in 1u64..60, cut in any::<[u8; 32]>(),
        ) {
            let mut disk = Disk::after(modes, steps);
            for (i, block) in disk.of_step(steps + 1).into_iter().enumerate() {
                let old = disk.blocks[block as usize].clone();
                let new = Disk::content(&disk.journal.run, block, steps + 1);
                let bits = cut[i % 32].wrapping_add(i as u8);
                match bits % 5 {
                    0 => {}
                    1 => disk.blocks[block as usize] = new,
                    2 => for sector in (0..8).filter(|s| bits >> s & 1 != 0) {
                        let range = sector * 512..(sector + 1) * 512;
                        disk.blocks[block as usize][range.clone()].copy_from_slice(&new[range]);
                    },
                    3 => { disk.unreadable.insert(block); }
                    _ => disk.blocks[block as usize] = old.iter().map(|b| b ^ bits | 1).collect(),
                }
            }
            let report = disk.judged();
            prop_assert_eq!(report.verdict, PullVerdict::Kept, "{:?}", report);
            prop_assert_eq!(sum(&report, |m| m.blocks), BLOCKS);
            prop_assert_eq!(report.examples.len(), 0);
        }

        /// One block is old: from before its last write, or from before the run.
        #[test]
        fn a_block_that_is_old_is_lost(
            modes in any_modes(), steps in 3u64..60, which in any::<usize>(), zero in any::<bool>(),
        ) {
            let mut disk = Disk::after(modes, steps);
            let all = disk.since(1);
            prop_assume!(!all.is_empty());
            let block = all[which % all.len()];
            let step = disk.last(block);
            match zero {
                true => disk.blocks[block as usize].fill(0),
                false => disk.put(block, step - 1),
            }
            let report = disk.judged();
            prop_assert_eq!(report.verdict, PullVerdict::Lost);
            prop_assert_eq!(sum(&report, |m| m.lost), 1);
            prop_assert_eq!(report.oldest_lost_step, Some(step));
            let of_mode = match disk.journal.run.mode(step) {
                PullMode::Fua => report.fua,
                PullMode::Flush => report.flush,
            };
            prop_assert_eq!(of_mode.lost, 1, "of the mode that wrote it");
            prop_assert_eq!(report.examples[0].byte, 4096 + block * 4096);
        }

        /// A write that never arrived: all blocks of a step are as before it.
        #[test]
        fn a_write_that_never_arrived_is_lost_with_all_its_blocks(
            modes in any_modes(), steps in 3u64..60, step in 1u64..60,
        ) {
            let step = 1 + step % steps;
            let mut disk = Disk::after(modes, steps);
            let gone: Vec<_> =
                disk.of_step(step).into_iter().filter(|b| disk.last(*b) == step).collect();
            prop_assume!(!gone.is_empty());
            for block in &gone {
                disk.put(*block, 0);
            }
            let report = disk.judged();
            prop_assert_eq!(report.verdict, PullVerdict::Lost);
            prop_assert_eq!(sum(&report, |m| m.lost), gone.len() as u64);
            prop_assert_eq!(report.oldest_lost_step, Some(step));
        }

        /// All of a window: the cache of a drive that flushed nothing for a while.
        #[test]
        fn a_window_that_is_lost_is_told_with_its_beginning(
            modes in any_modes(), steps in 8u64..60, window in 1u64..8,
        ) {
            let (whole, earlier) = (Disk::after(modes, steps), Disk::after(modes, steps - window));
            let disk = Disk { journal: whole.journal, ..earlier };
            let lost = disk.since(steps - window + 1);
            let in_cut: Vec<_> = disk.of_step(steps + 1);
            let lost_in_cut =
                in_cut.iter().filter(|b| disk.last(**b) > steps - window).count() as u64;
            prop_assume!(lost.len() as u64 + lost_in_cut > 0);
            let report = disk.judged();
            prop_assert_eq!(report.verdict, PullVerdict::Lost);
            prop_assert_eq!(sum(&report, |m| m.lost), lost.len() as u64 + lost_in_cut);
            prop_assert!(report.oldest_lost_step.unwrap() > steps - window);
        }

        /// Torn at 512 bytes: some sectors of an acknowledged block are older.
        #[test]
        fn a_block_of_two_ages_is_torn(
            modes in any_modes(), steps in 3u64..60, which in any::<usize>(), sectors in 1u8..255,
        ) {
            let mut disk = Disk::after(modes, steps);
            let all = disk.since(1);
            prop_assume!(!all.is_empty());
            let block = all[which % all.len()];
            let old = Disk::content(&disk.journal.run, block, disk.last(block) - 1);
            for sector in (0..8).filter(|s| sectors >> s & 1 != 0) {
                let range = sector * 512..(sector + 1) * 512;
                disk.blocks[block as usize][range.clone()].copy_from_slice(&old[range]);
            }
            let report = disk.judged();
            prop_assert_eq!(report.verdict, PullVerdict::Torn);
            prop_assert_eq!((sum(&report, |m| m.torn), sum(&report, |m| m.lost)), (1, 0));
        }

        /// A neighbour that nothing was writing to: garbage, another block's content, unreadable.
        #[test]
        fn a_damaged_neighbour_is_collateral(
            modes in any_modes(), steps in 3u64..60, which in any::<usize>(), how in 0u8..3,
            bit in 0usize..4096 * 8,
        ) {
            let mut disk = Disk::after(modes, steps);
            let all = disk.since(0);
            let block = all[which % all.len()];
            match how {
                0 => disk.blocks[block as usize][bit / 8] ^= 1 << (bit % 8),
                1 => disk.blocks[block as usize] =
                    disk.blocks[((block + 1) % BLOCKS) as usize].clone(),
                _ => { disk.unreadable.insert(block); }
            }
            let report = disk.judged();
            prop_assert_eq!(report.verdict, PullVerdict::Collateral);
            let of_cut = match report.cut_in {
                PullMode::Fua => report.fua,
                PullMode::Flush => report.flush,
            };
            prop_assert_eq!(of_cut.collateral, 1);
        }
    }

    #[test]
    fn a_record_that_is_older_than_the_disk_says_nothing() {
        let mut disk = Disk::after(Modes::Fua, 40);
        disk.journal.steps = 20;
        let report = disk.judged();
        assert_eq!(report.verdict, PullVerdict::Inconclusive, "{report:?}");
        assert!(report.unknown > 0);
    }

    #[test]
    fn a_run_without_a_step_or_without_a_cut_says_nothing() {
        assert_eq!(Disk::after(Modes::Both, 0).judged().verdict, PullVerdict::Inconclusive);
        let mut disk = Disk::after(Modes::Both, 9);
        assert_eq!(disk.judged().verdict, PullVerdict::Kept);
        disk.journal.uncut = true;
        assert_eq!(disk.judged().verdict, PullVerdict::Inconclusive);
        let block = disk.since(1)[0];
        disk.blocks[block as usize].fill(0);
        assert_eq!(disk.judged().verdict, PullVerdict::Lost, "even so");
    }

    #[test]
    fn parameters_that_are_damaged_are_collateral() {
        let disk = Disk::after(Modes::Both, 9);
        let mut check = Check::new(&disk.journal);
        check.parameters(false);
        assert_eq!(check.end(true).verdict, PullVerdict::Collateral);
    }

    #[test]
    fn each_verdict_has_an_exit_code_of_its_own() {
        let all = [
            PullVerdict::Kept,
            PullVerdict::Lost,
            PullVerdict::Torn,
            PullVerdict::Collateral,
            PullVerdict::Inconclusive,
        ];
        let codes: HashSet<_> = all.iter().map(|v| v.exit_code()).collect();
        assert_eq!(codes.len(), all.len());
        for code in codes {
            assert!(crate::EXIT_CODES.iter().any(|(known, _)| *known == code), "{code}");
        }
    }
}
