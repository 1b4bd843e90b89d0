// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decisions that all hosts of the engine share: host/policy.h.

use std::ffi::CString;

use forebay_sys as sys;

use crate::code::Code;

/// So many bytes as sectors, up.
pub fn policy_limit(bytes: u64) -> u32 {
    // SAFETY: a plain computation.
    unsafe { sys::fby_policy_limit(bytes) }
}

/// The origin found at its place.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Without a path.
    pub id: &'a str,
    pub sectors: u64,
    pub logical_block: u32,
    pub accept_changed: bool,
    pub by_name: bool,
}

/// Is it the volume's origin?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Same,
    /// And is to be recorded anew.
    Renewed,
    Block,
    Other,
    Name,
    Smaller,
    Larger,
}

/// And the sectors of it that the volume uses: whole blocks.
pub fn judge_origin(recorded: &sys::fby_volume_spec, found: &Found<'_>) -> (Verdict, u64) {
    assert!(recorded.identity.contains(&0), "it does not end");
    let Ok(id) = CString::new(found.id) else { return (Verdict::Other, found.sectors) };
    // SAFETY: a plain computation.
    let sectors = unsafe { sys::fby_origin_usable(recorded.block_size, found.sectors) };
    let raw = sys::fby_origin_found {
        id: id.as_ptr(),
        sectors,
        logical_block: found.logical_block,
        accept_changed: found.accept_changed,
        by_name: found.by_name,
        ..Default::default()
    };
    // SAFETY: the id is zero-terminated, and so is the record's identity.
    let verdict = match unsafe { sys::fby_origin_judge(recorded, &raw) } {
        sys::FBY_ORIGIN_IS_SAME => Verdict::Same,
        sys::FBY_ORIGIN_IS_RENEWED => Verdict::Renewed,
        sys::FBY_ORIGIN_IS_BLOCK => Verdict::Block,
        sys::FBY_ORIGIN_IS_NAME => Verdict::Name,
        sys::FBY_ORIGIN_IS_SMALLER => Verdict::Smaller,
        sys::FBY_ORIGIN_IS_LARGER => Verdict::Larger,
        _ => Verdict::Other,
    };
    (verdict, sectors)
}

/// Is the pool the one that marked the origin?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkVerdict {
    Right,
    /// The pool is an older copy.
    Newer,
    /// The origin is an older state of itself.
    Older,
    /// It is of another volume that has, or had, this name.
    Other,
    /// There is none, and there was one.
    Missing,
}

impl MarkVerdict {
    pub fn cause(self) -> &'static str {
        sys::mark_cause(match self {
            MarkVerdict::Right => sys::FBY_MARK_IS_RIGHT,
            MarkVerdict::Newer => sys::FBY_MARK_IS_NEWER,
            MarkVerdict::Older => sys::FBY_MARK_IS_OLDER,
            MarkVerdict::Other => sys::FBY_MARK_IS_OTHER,
            MarkVerdict::Missing => sys::FBY_MARK_IS_MISSING,
        })
    }
}

/// The content of a mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkSays {
    /// The least number of the record.
    pub least: u32,
    /// The UUID of the volume, if the mark names it.
    pub uuid: Option<[u8; 16]>,
    /// The number is the last one that was set, and the origin itself bears it.
    pub exact: bool,
}

/// Judges the volume by its record and the mark of the origin, if there is one.  `borne`: the
/// origin could bear a mark itself.
pub fn judge_mark(
    volume: &sys::fby_volume_info,
    mark: Option<MarkSays>,
    borne: bool,
) -> MarkVerdict {
    let MarkSays { least, uuid, exact } = mark.unwrap_or_default();
    let found = sys::fby_mark_found {
        marked: mark.is_some(),
        names: uuid.is_some(),
        exact: if mark.is_some() { exact } else { borne },
        least,
        uuid: uuid.unwrap_or_default(),
    };
    // SAFETY: a plain computation.
    match unsafe { sys::fby_mark_judge(volume, &found) } {
        sys::FBY_MARK_IS_RIGHT => MarkVerdict::Right,
        sys::FBY_MARK_IS_NEWER => MarkVerdict::Newer,
        sys::FBY_MARK_IS_OLDER => MarkVerdict::Older,
        sys::FBY_MARK_IS_OTHER => MarkVerdict::Other,
        _ => MarkVerdict::Missing,
    }
}

/// The number that a mark of a volume with this record carries.
pub fn mark_number(marks: u32) -> u32 {
    // SAFETY: a plain computation.
    unsafe { sys::fby_mark_number(marks) }
}

/// The pool holds what the volume's origin lacks, or may.
pub fn holds(volume: &sys::fby_volume_info) -> bool {
    // SAFETY: a plain computation.
    unsafe { sys::fby_volume_holds(volume) }
}

/// The id says no more than what the device is called today.
pub fn is_name(id: &str) -> bool {
    // SAFETY: zero-terminated.
    CString::new(id).is_ok_and(|id| unsafe { sys::fby_origin_is_name(id.as_ptr()) })
}

/// The recorded id is the same name, but nobody was asked whether a name will do.
pub fn is_unasked_name(recorded: &str, id: &str) -> bool {
    let texts = (CString::new(recorded), CString::new(id));
    let (Ok(recorded), Ok(id)) = texts else { return false };
    // SAFETY: zero-terminated.
    unsafe { sys::fby_origin_is_unasked_name(recorded.as_ptr(), id.as_ptr()) }
}

/// The exit code for an error of the engine.
pub fn error_exit(code: Code) -> u8 {
    // SAFETY: takes any number.
    unsafe { sys::fby_error_exit(-code.0) as u8 }
}

/// The exit code for an error of the system.
pub fn errno_exit(errno: i32) -> u8 {
    // SAFETY: takes any number.
    unsafe { sys::fby_errno_exit(errno) as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each line: the record, what is found, whether the changed one or the name is
    /// accepted, and the verdict.
    #[test]
    fn origins_by_their_ids() {
        use Verdict::{Name, Other, Renewed, Same};
        let table = [
            ("serial:A|/dev/a", "serial:A", false, false, Same),
            ("serial:A", "serial:A", false, false, Same),
            ("serial:AB|/dev/a", "serial:A", false, false, Other),
            ("serial:A|/dev/a", "serial:AB", false, false, Other),
            ("serial:A|/dev/a", "serial:B", true, false, Renewed),
            ("serial:A|/dev/a", "name:vda", false, false, Other),
            ("serial:A|/dev/a", "name:vda", false, true, Other),
            ("serial:A|/dev/a", "name:vda", true, false, Name),
            ("serial:A|/dev/a", "name:vda", true, true, Renewed),
            ("name:vda|/dev/vda", "name:vda", false, false, Same),
            ("name:vda|/dev/vda", "name:vdb", false, true, Other),
            ("blk:vda|/dev/vda", "name:vda", false, false, Name),
            ("blk:vda|/dev/vda", "name:vda", false, true, Renewed),
            ("blk:vda|/dev/vda", "name:vdb", false, true, Other),
        ];
        for (record, id, accept_changed, by_name, verdict) in table {
            let spec = sys::fby_volume_spec {
                identity: sys::c_text(record).unwrap(),
                origin_sectors: 80,
                block_size: 4096,
                ..Default::default()
            };
            let found = Found { id, sectors: 80, logical_block: 512, accept_changed, by_name };
            assert_eq!(judge_origin(&spec, &found), (verdict, 80), "{record} {id}");
        }
    }

    #[test]
    fn origins_by_their_sizes() {
        use Verdict::{Block, Larger, Renewed, Same, Smaller};
        let spec = sys::fby_volume_spec {
            identity: sys::c_text("i|/p").unwrap(),
            origin_sectors: 80,
            block_size: 4096,
            ..Default::default()
        };
        let table = [
            (80, 512, false, (Same, 80)),
            (80, 8192, true, (Block, 80)),
            (79, 512, true, (Smaller, 72)),
            (87, 512, false, (Same, 80)),
            (88, 512, false, (Larger, 88)),
            (95, 512, true, (Renewed, 88)),
        ];
        for (sectors, logical_block, accept_changed, verdict) in table {
            let found = Found { id: "i", sectors, logical_block, accept_changed, by_name: false };
            assert_eq!(judge_origin(&spec, &found), verdict, "{sectors} sectors");
        }
    }

    #[test]
    fn every_verdict_has_its_words() {
        for verdict in sys::FBY_ORIGIN_IS_SAME..=sys::FBY_ORIGIN_IS_LARGER {
            assert!(sys::origin_cause(verdict).len() > 20);
        }
    }

    /// Rows: the record's number, does the pool hold something, the mark's number; then what
    /// follows where the number is but the least, and where the origin itself bears the last.
    #[test]
    fn marks_by_their_numbers() {
        use MarkVerdict::{Missing, Newer, Older, Other, Right};
        let volume = |marks, pages| {
            let spec = sys::fby_volume_spec { uuid: [7; 16], ..Default::default() };
            sys::fby_volume_info { spec, marks, pages, counted: true, ..Default::default() }
        };
        for (marks, holds, least, verdict, exact_verdict) in [
            // Even: never marked, about to be marked first, or mark removed, by any version.
            (0, false, None, Right, Right),
            (0, true, None, Right, Right),
            (2, true, None, Right, Right),
            (4, true, None, Right, Right),
            (6, true, None, Right, Right),
            (8, false, None, Right, Right),
            // Odd: marked.
            (9, false, None, Right, Missing),
            (9, true, None, Missing, Missing),
            (11, true, None, Missing, Missing),
            (13, true, None, Missing, Missing),
            (15, false, None, Right, Missing),
            // About to be set first, and set.
            (8, true, Some(8), Right, Right),
            (8, true, Some(0), Right, Older),
            (9, true, Some(8), Right, Right),
            (17, true, Some(8), Right, Older),
            (9, true, Some(6), Right, Older),
            // About to be set again.
            (11, true, Some(8), Right, Right),
            (11, true, Some(16), Newer, Right),
            (11, true, Some(0), Right, Older),
            (19, true, Some(8), Right, Older),
            // About to be removed, or to be set again because the removal failed.
            (10, false, Some(8), Right, Right),
            (10, false, Some(0), Right, Older),
            (10, true, Some(16), Newer, Newer),
            (12, false, Some(8), Right, Right),
            (12, true, Some(16), Newer, Right),
            (12, true, Some(0), Right, Older),
            // It is gone.
            (14, false, Some(8), Right, Older),
            (22, true, Some(16), Right, Older),
            (14, false, Some(16), Newer, Newer),
            // An older copy of the pool.
            (1, true, Some(8), Newer, Newer),
            (9, true, Some(16), Newer, Newer),
            (0, false, Some(2), Newer, Newer),
            // The number wraps around.
            (0, true, Some(u32::MAX - 7), Right, Older),
            (u32::MAX - 4, true, Some(0), Newer, Right),
            (u32::MAX - 6, true, Some(u32::MAX - 7), Right, Right),
            (u32::MAX, true, Some(2), Newer, Newer),
        ] {
            let volume = volume(marks, u64::from(holds));
            let judge = |uuid, exact| {
                let mark = least.map(|least| MarkSays { least, uuid, exact });
                judge_mark(&volume, mark, exact)
            };
            for uuid in [None, Some([7; 16])] {
                assert_eq!(judge(uuid, false), verdict, "{marks} {holds} {least:?}");
                assert_eq!(judge(uuid, true), exact_verdict, "{marks} {holds} {least:?}");
            }
            for (exact, verdict) in [(false, verdict), (true, exact_verdict)] {
                let other = judge(Some([8; 16]), exact);
                assert_eq!(other, if least.is_some() { Other } else { verdict });
                assert!(verdict.cause().len() > 20 && other.cause().len() > 20);
            }
        }
        let uncounted = sys::fby_volume_info { counted: false, ..volume(3, 0) };
        assert!(holds(&uncounted) && !holds(&volume(3, 0)));
        assert_eq!(judge_mark(&uncounted, None, true), Missing);
    }

    #[test]
    fn limits_are_whole_sectors() {
        let table = [(0, 0), (1, 1), (512, 1), (513, 2), (1 << 20, 2048), (u64::MAX, u32::MAX)];
        assert!(table.iter().all(|&(bytes, sectors)| policy_limit(bytes) == sectors));
    }
}
