// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares each block with what was acknowledged, and sums it up.

use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::block::{self, Found, Version};
use super::journal::{Journal, RunEnd};
use super::run::{PullMode, Run};
use crate::medium::FuaWay;
use crate::report::Uuid;

/// Blocks that are named one by one.
const EXAMPLES: usize = 20;

/// The verdict of the test, the gravest first.
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
    /// The exit code of a command that ends with this verdict, one of
    /// [`EXIT_CODES`](crate::EXIT_CODES).
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
    /// The byte of the disk where the block begins.
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
    /// How long the disk was idle after each step, while the receiver was told; 0: unknown.
    pub round_trip_us: u32,
    /// The requests that a write of FUA mode became at the device.
    pub fua_is: FuaWay,
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
    /// How the writer ended, as far as it is known.
    pub end: Option<RunEnd>,
    /// The system has not been started again since the run began, or does not say.
    pub same_boot: bool,
    /// It was read past the page cache.
    pub direct: bool,
    /// Whether it is the disk of the run.
    pub disk: DiskIs,
    pub verdict: PullVerdict,
    /// Why nothing can be said.
    pub because: Option<String>,
}

/// The relation of a disk to the one of the run, by model and serial number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskIs {
    Same,
    Other,
    /// One of them has no serial number.
    Unknown,
}

/// The first block of a disk, which has the parameters of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// They are this run's.
    Own,
    /// As before the run.
    Old,
    /// Those of another run, which began earlier or later.
    Earlier,
    Later,
    Damaged,
}

/// Facts of a verification apart from the blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub first: First,
    /// The end that the writer has left in the first block.
    pub end: Option<RunEnd>,
    pub same_boot: bool,
    pub direct: bool,
    pub disk: DiskIs,
}

/// Blocks come in any order, each once.
pub(super) struct Check<'j> {
    run: &'j Run,
    /// The last acknowledged step of each block.
    last: Vec<u64>,
    cut: HashSet<u64>,
    /// Some block has a sector of the run.
    carries: bool,
    report: PullReport,
}

/// Steps between two looks at whether it is to go on.
const STEPS_AT_ONCE: u64 = 1 << 16;

impl<'j> Check<'j> {
    /// `None`: it is not to go on.  From the last step back, until each block has its step: how
    /// many steps that takes follows from the number of blocks, whatever the record says.
    pub(super) fn new(journal: &'j Journal, go_on: &mut dyn FnMut() -> bool) -> Option<Check<'j>> {
        let run = &journal.run;
        let mut last = vec![0; run.blocks as usize];
        let (mut missing, mut step) = (run.blocks, journal.steps);
        while missing > 0 && step > 0 {
            run.writes(step, |w| {
                for last in &mut last[w.block as usize..(w.block + w.blocks) as usize] {
                    if *last == 0 {
                        *last = step;
                        missing -= 1;
                    }
                }
            });
            step -= 1;
            if step.is_multiple_of(STEPS_AT_ONCE) && !go_on() {
                return None;
            }
        }
        let mut cut = HashSet::new();
        run.writes(journal.steps + 1, |w| cut.extend(w.block..w.block + w.blocks));
        let report = PullReport {
            run: run.uuid,
            device: run.device.clone(),
            unit_bytes: run.unit_bytes,
            blocks: run.blocks,
            steps: journal.steps,
            round_trip_us: journal.round_trip_us,
            fua_is: run.fua_is,
            cut_in: run.mode(journal.steps + 1),
            fua: ModeReport::default(),
            flush: ModeReport::default(),
            in_flight: InFlight::default(),
            unknown: 0,
            oldest_lost_step: None,
            examples: Vec::new(),
            end: journal.end,
            same_boot: false,
            direct: false,
            disk: DiskIs::Unknown,
            verdict: PullVerdict::Inconclusive,
            because: None,
        };
        Some(Check { run, last, cut, carries: false, report })
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
        let carries = |bytes| block::has_sector_of(self.run, bytes);
        self.carries = self.carries || bytes.is_some_and(carries);
        let found = bytes.map(|bytes| block::read(self.run, block, bytes));
        let bad = match found {
            Some(Found::Versions { oldest, newest, zeroes }) if !(is_cut && zeroes) => {
                self.versions(step, is_cut, oldest, newest)
            }
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
        // No step between the acknowledged one and the cut one was written here.
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

    pub(super) fn end(mut self, seen: Seen) -> PullReport {
        let ended = self.report.end.or(seen.end);
        // The writer that says how it ended writes that to the first block.
        let first = if ended.is_none() { seen.first } else { First::Own };
        match first {
            First::Old => self.report.flush.lost += 1,
            First::Earlier if seen.disk == DiskIs::Same => self.report.flush.lost += 1,
            First::Damaged => {
                let cut_in = self.report.cut_in;
                self.of_mode(cut_in).collateral += 1;
            }
            First::Own | First::Earlier | First::Later => {}
        }
        let (fua, flush) = (&self.report.fua, &self.report.flush);
        let nothing = |why: &str| (PullVerdict::Inconclusive, Some(why.to_string()));
        let (verdict, because) = match () {
            () if seen.disk == DiskIs::Other => {
                nothing("it is not the disk, or not the partition, of the run, by model and serial number: attach that as it was attached then")
            }
            () if seen.first == First::Later => nothing("another run was written to it since"),
            () if seen.disk != DiskIs::Same && seen.first == First::Earlier => {
                nothing("its first block has another run, and no serial number says that it is the disk of this one")
            }
            () if seen.disk != DiskIs::Same && !self.carries => {
                nothing("no block has anything of the run, and no serial number says that it is its disk: it is another one, or has lost everything")
            }
            () if self.report.steps == 0 => nothing("no step was acknowledged"),
            () if self.report.unknown > 0 => {
                nothing("it has steps that the record does not have: the record is older, or another run's")
            }
            () if fua.lost + flush.lost > 0 => (PullVerdict::Lost, None),
            () if fua.torn + flush.torn > 0 => (PullVerdict::Torn, None),
            () if fua.collateral + flush.collateral > 0 => (PullVerdict::Collateral, None),
            () if ended == Some(RunEnd::Uncut) => {
                nothing("the writer ended by itself or was killed: nobody had cut the power")
            }
            () if ended == Some(RunEnd::Stalled) => {
                nothing("a step took too long, and the disk was back before it ended: keep it off until the writer has ended")
            }
            () if seen.same_boot && ended != Some(RunEnd::DiskFailed) => {
                nothing("this system has not restarted since, and no writer told the receiver that the disk failed: nobody knows that its power was cut")
            }
            () if seen.same_boot && !seen.direct => {
                nothing("it was read through the page cache of the system that wrote it: restart, and verify again")
            }
            () => (PullVerdict::Kept, None),
        };
        self.report.end = ended;
        self.report.same_boot = seen.same_boot;
        self.report.direct = seen.direct;
        self.report.disk = seen.disk;
        self.report.verdict = verdict;
        self.report.because = because;
        self.report
    }
}

fn words(found: Found) -> String {
    let name = |version: Version| match version {
        None => "before the run".to_string(),
        Some(step) => format!("step {step}"),
    };
    match found {
        Found::Versions { zeroes: true, newest: None, .. } => "zeroes".into(),
        Found::Versions { oldest, newest, .. } if oldest == newest => {
            format!("content of {}", name(oldest))
        }
        Found::Versions { oldest, newest, .. } => {
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
            let journal = Journal { run, steps: 0, round_trip_us: 0, end: None };
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
            let check = Check::new(&self.journal, &mut || true).unwrap();
            let is = |b: &u64| check.last[*b as usize] >= step && !check.cut.contains(b);
            (0..BLOCKS).filter(is).collect()
        }

        fn last(&self, block: u64) -> u64 {
            Check::new(&self.journal, &mut || true).unwrap().last[block as usize]
        }

        fn judged(&self) -> PullReport {
            self.judged_as(after_a_cut())
        }

        fn judged_as(&self, seen: Seen) -> PullReport {
            let mut check = Check::new(&self.journal, &mut || true).unwrap();
            for block in 0..BLOCKS {
                let bytes = &self.blocks[block as usize][..];
                check.block(block, (!self.unreadable.contains(&block)).then_some(bytes));
            }
            check.end(seen)
        }
    }

    /// The machine was started again.
    fn after_a_cut() -> Seen {
        Seen { first: First::Own, end: None, same_boot: false, direct: true, disk: DiskIs::Unknown }
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
                match bits % 6 {
                    0 => {}
                    1 => disk.blocks[block as usize] = new,
                    2 => for sector in (0..8).filter(|s| bits >> s & 1 != 0) {
                        let range = sector * 512..(sector + 1) * 512;
                        disk.blocks[block as usize][range.clone()].copy_from_slice(&new[range]);
                    },
                    3 => { disk.unreadable.insert(block); }
                    4 => disk.blocks[block as usize].fill(0),
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
        disk.journal.end = Some(RunEnd::Uncut);
        assert_eq!(disk.judged().verdict, PullVerdict::Inconclusive);
        let block = disk.since(1)[0];
        disk.blocks[block as usize].fill(0);
        assert_eq!(disk.judged().verdict, PullVerdict::Lost, "even so");
    }

    /// A disk that has everything: what else must be known before that is said, and what makes
    /// it nothing.
    #[test]
    fn kept_needs_a_cut_that_is_known() {
        use PullVerdict::{Collateral, Inconclusive, Kept, Lost};
        let seen = after_a_cut();
        let same_boot = Seen { same_boot: true, ..seen };
        let cached = Seen { direct: false, ..seen };
        let failed = Some(RunEnd::DiskFailed);
        let table = [
            (Kept, None, seen),
            (Kept, None, cached),
            (Kept, failed, seen),
            (Kept, failed, same_boot),
            (Kept, None, Seen { disk: DiskIs::Same, ..seen }),
            (Inconclusive, None, same_boot),
            (Inconclusive, None, Seen { disk: DiskIs::Same, ..same_boot }),
            (Inconclusive, failed, Seen { same_boot: true, ..cached }),
            (Inconclusive, Some(RunEnd::Stalled), seen),
            (Inconclusive, Some(RunEnd::Stalled), same_boot),
            (Inconclusive, Some(RunEnd::Uncut), seen),
            (Inconclusive, Some(RunEnd::Uncut), same_boot),
            // Only the disk itself has it: the receiver was not to be reached.
            (Inconclusive, None, Seen { end: Some(RunEnd::Uncut), ..seen }),
            (Inconclusive, None, Seen { disk: DiskIs::Other, ..seen }),
            (Inconclusive, None, Seen { first: First::Later, ..seen }),
            (Inconclusive, None, Seen { first: First::Later, disk: DiskIs::Same, ..seen }),
            (Inconclusive, None, Seen { first: First::Earlier, ..seen }),
            (Lost, None, Seen { first: First::Earlier, disk: DiskIs::Same, ..seen }),
            (Lost, None, Seen { first: First::Old, ..seen }),
            (Collateral, None, Seen { first: First::Damaged, ..seen }),
            // It wrote that block when it ended.
            (Kept, failed, Seen { first: First::Damaged, ..seen }),
        ];
        let mut disk = Disk::after(Modes::Both, 9);
        for (verdict, end, seen) in table {
            disk.journal.end = end;
            let report = disk.judged_as(seen);
            assert_eq!(report.verdict, verdict, "{end:?} {seen:?}: {:?}", report.because);
            assert_eq!(report.because.is_some(), verdict == Inconclusive, "{seen:?}");
        }
    }

    /// A blank disk, or one with other content, has lost nothing of a run that is not its own.
    #[test]
    fn another_disk_is_not_accused() {
        use PullVerdict::{Inconclusive, Lost};
        for (blank, fill) in [(true, 0), (true, 0x5a), (false, 0x5a)] {
            let mut disk = Disk::after(Modes::Both, 9);
            disk.journal.run.blank = blank;
            for block in &mut disk.blocks {
                block.fill(fill);
            }
            assert_eq!(disk.judged().verdict, Inconclusive);
            // By its serial number it is that disk: it has lost all.
            let report = disk.judged_as(Seen { disk: DiskIs::Same, ..after_a_cut() });
            assert_eq!(report.verdict == Lost, fill == 0 || !blank, "{report:?}");
            assert_ne!(report.verdict, Inconclusive);
        }
    }

    /// A record with more steps than anybody wrote takes no longer than its blocks do, and an
    /// order to end is heard.
    #[test]
    fn a_record_with_many_steps_is_compared_in_bounded_time() {
        for modes in [Modes::Both, Modes::Fua, Modes::Flush] {
            let run = run(BLOCKS, modes);
            let steps = super::super::journal::STEPS_MOST;
            let journal = Journal { run, steps, round_trip_us: 0, end: None };
            let mut asked = 0;
            let check = Check::new(&journal, &mut || {
                asked += 1;
                true
            });
            assert!(check.unwrap().last.iter().all(|last| *last > steps - 10_000) && asked <= 1);
        }
        let long = Journal { run: run(1 << 22, Modes::Fua), ..Disk::after(Modes::Fua, 0).journal };
        let long = Journal { steps: 1 << 40, ..long };
        assert!(Check::new(&long, &mut || false).is_none());
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
