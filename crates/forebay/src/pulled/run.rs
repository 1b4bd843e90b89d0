// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run: its parameters, as the disk's first block and the receiver have them, and what each of
//! its steps writes.

use std::fmt;

use forebay_engine::sys::crc32c;
use serde::{Deserialize, Serialize};

use crate::media::RUN_MAGIC;
use crate::medium::{mixed, FuaWay};
use crate::report::{words, Uuid};

/// Bytes of a run's parameters.
pub(super) const RUN_BYTES: usize = 256;
const DEVICE_BYTES: usize = 128;
const DISK_AT: usize = 88 + DEVICE_BYTES;
const VERSION: u32 = 2;
/// Blocks of a run: what has to be kept in memory to compare them is 8 bytes each.
pub(super) const BLOCKS_LEAST: u64 = 64;
pub(super) const BLOCKS_MOST: u64 = 1 << 24;
pub(super) const UNIT_MOST: u32 = 64 << 10;
/// Steps of a mode before it is the other one's turn.
const PHASE_STEPS: u64 = 2048;

/// How a step becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PullMode {
    Fua,
    Flush,
}

impl fmt::Display for PullMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PullMode::Fua => "FUA",
            PullMode::Flush => "flush",
        })
    }
}

/// The modes of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Modes {
    /// Steps of both modes, in turns.
    #[default]
    Both,
    Fua,
    Flush,
}

words! {
    Modes { "both" => Both, "fua" => Fua, "flush" => Flush }
    unknown: "mode \"{}\" is not known", way_out: "use both, fua or flush"
}

/// The parameters of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub uuid: Uuid,
    /// Bytes of a block.
    pub unit_bytes: u32,
    /// Offset of block 0.
    pub first_byte: u64,
    pub blocks: u64,
    pub modes: Modes,
    pub(super) seed: u64,
    /// The kernel's number of the start of the system that writes.
    pub boot: Uuid,
    /// Seconds since 1970.
    pub started: u64,
    /// The disk's name and model.
    pub device: String,
    /// A number of the disk, by model and serial number ([`crate::DeviceFacts`]); 0: it has none.
    pub(super) disk: u64,
    /// The requests that a write of FUA mode becomes at the device.
    pub fua_is: FuaWay,
    /// All bytes that the run writes to were zero before it.
    pub blank: bool,
}

/// A write of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub block: u64,
    pub blocks: u64,
}

impl Run {
    pub(super) fn encode(&self) -> [u8; RUN_BYTES] {
        let mut out = [0; RUN_BYTES];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(RUN_MAGIC);
        put(&VERSION.to_le_bytes());
        put(&self.unit_bytes.to_le_bytes());
        put(&self.uuid.0);
        put(&self.boot.0);
        for number in [self.seed, self.first_byte, self.blocks, self.started, self.modes as u64] {
            put(&number.to_le_bytes());
        }
        let mut end = self.device.len().min(DEVICE_BYTES);
        while !self.device.is_char_boundary(end) {
            end -= 1;
        }
        put(&self.device.as_bytes()[..end]);
        out[DISK_AT..DISK_AT + 8].copy_from_slice(&self.disk.to_le_bytes());
        out[DISK_AT + 8] = self.fua_is as u8;
        out[DISK_AT + 9] = self.blank.into();
        let crc = crc32c(0, &out[..RUN_BYTES - 4]);
        out[RUN_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None`: these are no parameters that a run can have.
    pub(super) fn decode(bytes: &[u8]) -> Option<Run> {
        let bytes = bytes.get(..RUN_BYTES)?;
        let u32_at = |at: usize| Some(u32::from_le_bytes(bytes[at..at + 4].try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        if bytes[..8] != *RUN_MAGIC || u32_at(8)? != VERSION {
            return None;
        }
        if u32_at(RUN_BYTES - 4)? != crc32c(0, &bytes[..RUN_BYTES - 4]) {
            return None;
        }
        let device = &bytes[88..88 + DEVICE_BYTES];
        let device = &device[..device.iter().position(|b| *b == 0).unwrap_or(DEVICE_BYTES)];
        let run = Run {
            unit_bytes: u32_at(12)?,
            uuid: Uuid(bytes[16..32].try_into().ok()?),
            boot: Uuid(bytes[32..48].try_into().ok()?),
            seed: u64_at(48)?,
            first_byte: u64_at(56)?,
            blocks: u64_at(64)?,
            started: u64_at(72)?,
            modes: match u64_at(80)? {
                0 => Modes::Both,
                1 => Modes::Fua,
                2 => Modes::Flush,
                _ => return None,
            },
            device: crate::printable(&String::from_utf8_lossy(device)).into_owned(),
            disk: u64_at(DISK_AT)?,
            fua_is: FuaWay::ALL.into_iter().find(|way| *way as u8 == bytes[DISK_AT + 8])?,
            blank: match bytes[DISK_AT + 9] {
                0 => false,
                1 => true,
                _ => return None,
            },
        };
        let unit = run.unit_bytes;
        let fits = unit.is_power_of_two()
            && (4096..=UNIT_MOST).contains(&unit)
            && (BLOCKS_LEAST..=BLOCKS_MOST).contains(&run.blocks)
            && run.first_byte.is_multiple_of(unit.into())
            && run.first_byte <= i64::MAX as u64 - run.blocks * u64::from(unit);
        fits.then_some(run)
    }

    /// Offset of a block.
    pub(super) fn byte(&self, block: u64) -> u64 {
        self.first_byte + block * u64::from(self.unit_bytes)
    }

    /// The first byte after the run's blocks.
    pub(super) fn end(&self) -> u64 {
        self.byte(self.blocks)
    }

    /// The mode of a step; step 0 writes all blocks once, and flushes.
    pub(super) fn mode(&self, step: u64) -> PullMode {
        match self.modes {
            _ if step == 0 => PullMode::Flush,
            Modes::Fua => PullMode::Fua,
            Modes::Flush => PullMode::Flush,
            Modes::Both => match (step - 1) / PHASE_STEPS % 2 {
                0 => PullMode::Fua,
                _ => PullMode::Flush,
            },
        }
    }

    /// The write of a step from 1 on.  Half of the writes begin where an earlier one ended.
    pub(super) fn writes(&self, step: u64, mut each: impl FnMut(Write)) {
        let mut seed = self.seed ^ step.wrapping_mul(0xd134_2543_de82_ef95);
        let (writes, most) = match self.mode(step) {
            PullMode::Fua => (1, 16),
            PullMode::Flush => (1 + mixed(&mut seed) % 32, 4),
        };
        for i in 0..writes {
            let blocks = 1 + mixed(&mut seed) % most;
            let block = match mixed(&mut seed) % 2 {
                0 => mixed(&mut seed) % (self.blocks - blocks + 1),
                _ => (step.wrapping_mul(37).wrapping_add(i * most)) % (self.blocks - blocks + 1),
            };
            each(Write { block, blocks });
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::pulled) fn run(blocks: u64, modes: Modes) -> Run {
        Run {
            uuid: Uuid([7; 16]),
            unit_bytes: 4096,
            first_byte: 4096,
            blocks,
            modes,
            seed: 5,
            boot: Uuid([1; 16]),
            started: 1_700_000_000,
            device: "sdx Example".into(),
            disk: 0,
            fua_is: FuaWay::Fua,
            blank: true,
        }
    }

    #[test]
    fn parameters_are_read_as_they_were_written() {
        for modes in [Modes::Both, Modes::Fua, Modes::Flush] {
            let run = run(1000, modes);
            assert_eq!(Run::decode(&run.encode()), Some(run));
        }
        for fua_is in FuaWay::ALL {
            let run = Run { fua_is, blank: false, disk: u64::MAX - 1, ..run(64, Modes::Fua) };
            assert_eq!(Run::decode(&run.encode()), Some(run));
        }
        let long = Run { device: "ü".repeat(100), ..run(64, Modes::Both) };
        assert_eq!(Run::decode(&long.encode()).unwrap().device, "ü".repeat(64));
    }

    /// Each bit that is flipped, and parameters with a checksum that no run can have.
    #[test]
    fn other_parameters_are_refused() {
        let good = run(1000, Modes::Both).encode();
        for bit in 0..RUN_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Run::decode(&bad), None, "bit {bit}");
        }
        assert_eq!(Run::decode(&good[..RUN_BYTES - 1]), None);
        let base = run(1000, Modes::Both);
        for bad in [
            Run { unit_bytes: 0, ..base.clone() },
            Run { unit_bytes: 512, ..base.clone() },
            Run { unit_bytes: 12288, ..base.clone() },
            Run { unit_bytes: 1 << 20, ..base.clone() },
            Run { blocks: 0, ..base.clone() },
            Run { blocks: BLOCKS_MOST + 1, ..base.clone() },
            Run { blocks: u64::MAX, ..base.clone() },
            Run { first_byte: 512, ..base.clone() },
            Run { first_byte: i64::MAX as u64 - 4095, ..base.clone() },
        ] {
            assert_eq!(Run::decode(&bad.encode()), None, "{bad:?}");
        }
    }

    #[test]
    fn steps_write_within_the_run_and_the_same_each_time() {
        for (blocks, modes) in [(64, Modes::Both), (1000, Modes::Flush), (BLOCKS_MOST, Modes::Fua)]
        {
            let run = run(blocks, modes);
            let all = |step| {
                let mut writes = Vec::new();
                run.writes(step, |w| writes.push(w));
                writes
            };
            for step in 1..3 * PHASE_STEPS {
                let writes = all(step);
                assert!(
                    !writes.is_empty()
                        && writes.iter().all(|w| w.block + w.blocks <= blocks && w.blocks > 0)
                );
                assert_eq!(writes, all(step));
            }
        }
        let both = run(64, Modes::Both);
        let modes = [0, 1, PHASE_STEPS, PHASE_STEPS + 1, 2 * PHASE_STEPS + 1].map(|s| both.mode(s));
        use PullMode::{Flush, Fua};
        assert_eq!(modes, [Flush, Fua, Fua, Flush, Fua]);
    }
}
