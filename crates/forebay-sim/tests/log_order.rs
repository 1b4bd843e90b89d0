// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which entries of a log are replayed when some are missing (core/log/log_order.c):
//! a table of small logs, as ZIL-PMEM's section 7.2.1 has it, then random logs
//! against a model.
//!
//! A log is drawn as its entries in the order of their appends, `3A` for entry A of
//! txg 3; a bar begins a generation, and `s3` syncs txg 3.

use forebay_engine::log_order::{append, claim, replay, sync};
use forebay_engine::sys;
use forebay_engine::sys::{fby_log_node as Node, fby_log_position as Position};
use forebay_sim::log_order::{name, run, Name};

/// One replay of the entries not hidden.
struct Stage {
    hide: &'static str,
    damaged: &'static str,
    /// Stopped before this entry.
    stop: Option<char>,
    replays: &'static str,
    ends: End,
}

#[derive(Debug, PartialEq)]
enum End {
    Complete,
    Stopped,
    /// An entry, or `=` for the seal, shows that something is missing; so many are
    /// left.
    Missing {
        witness: char,
        left: u64,
    },
}

use End::{Complete, Missing, Stopped};

struct Case {
    title: &'static str,
    log: &'static str,
    /// The txg that is synced at the claim.
    synced: u64,
    /// Hidden from the claim.
    unseen: &'static str,
    stages: &'static [Stage],
}

const fn stage(hide: &'static str, replays: &'static str, ends: End) -> Stage {
    Stage { hide, damaged: "", stop: None, replays, ends }
}
const fn stopped(stop: char, replays: &'static str) -> Stage {
    Stage { hide: "", damaged: "", stop: Some(stop), replays, ends: Stopped }
}
const fn damaged(damaged: &'static str, replays: &'static str, ends: End) -> Stage {
    Stage { hide: "", damaged, stop: None, replays, ends }
}
const fn missing(witness: char, left: u64) -> End {
    Missing { witness, left }
}

/// A generation of three txgs, and one that depends on it.
const I: &str = "3A 4B 5C | 4D";
/// Txgs that go on from generation to generation and come back.
const V: &str = "3A 3B | 4C | 5D 5E | 4F | 3G";
/// As in figure 5.5 of the thesis.
const LADDER: &str = "1A 1B 2C 1D | 2E 3F | 3G | s1 4H | s2 5J";

const CASES: &[Case] = &[
    Case { title: "no entry", log: "", synced: 2, unseen: "", stages: &[stage("", "", Complete)] },
    Case {
        title: "one entry",
        log: "3A",
        synced: 2,
        unseen: "",
        stages: &[stage("", "A", Complete)],
    },
    Case {
        title: "one entry, obsolete",
        log: "3A",
        synced: 3,
        unseen: "",
        stages: &[stage("", "", Complete)],
    },
    Case {
        title: "one entry, lost after the claim",
        log: "3A",
        synced: 2,
        unseen: "",
        stages: &[stage("A", "", missing('=', 0))],
    },
    Case {
        title: "one entry, never seen",
        log: "3A",
        synced: 2,
        unseen: "A",
        stages: &[stage("A", "", Complete)],
    },
    Case {
        title: "I: whole",
        log: I,
        synced: 2,
        unseen: "",
        stages: &[stage("", "ABCD", Complete)],
    },
    Case {
        title: "I: without the first txg",
        log: I,
        synced: 3,
        unseen: "",
        stages: &[stage("", "BCD", Complete)],
    },
    Case {
        title: "I: without two txgs",
        log: I,
        synced: 4,
        unseen: "",
        stages: &[stage("", "C", Complete)],
    },
    Case {
        title: "I: all synced",
        log: I,
        synced: 5,
        unseen: "",
        stages: &[stage("", "", Complete)],
    },
    Case {
        title: "I: A missing",
        log: I,
        synced: 2,
        unseen: "A",
        stages: &[stage("A", "BC", missing('D', 1))],
    },
    Case {
        title: "I: B missing",
        log: I,
        synced: 2,
        unseen: "B",
        stages: &[stage("B", "AC", missing('D', 1))],
    },
    Case {
        title: "I: C missing",
        log: I,
        synced: 2,
        unseen: "C",
        stages: &[stage("C", "AB", missing('D', 1))],
    },
    Case {
        title: "I: the tail never seen",
        log: I,
        synced: 2,
        unseen: "D",
        stages: &[stage("D", "ABC", Complete)],
    },
    Case {
        title: "I: the tail lost after the claim",
        log: I,
        synced: 2,
        unseen: "",
        stages: &[stage("D", "ABC", missing('=', 0))],
    },
    Case {
        title: "I: two missing",
        log: I,
        synced: 2,
        unseen: "AC",
        stages: &[stage("AC", "B", missing('D', 1))],
    },
    Case {
        title: "I: what is missing is synced",
        log: I,
        synced: 3,
        unseen: "A",
        stages: &[stage("A", "BCD", Complete)],
    },
    Case {
        title: "I: the tail appears after the claim",
        log: I,
        synced: 2,
        unseen: "D",
        stages: &[stage("", "ABCD", Complete)],
    },
    Case {
        title: "I: a damaged entry counts as missing",
        log: I,
        synced: 2,
        unseen: "",
        stages: &[damaged("B", "AC", missing('D', 1))],
    },
    Case {
        title: "I: the damaged tail",
        log: I,
        synced: 2,
        unseen: "",
        stages: &[damaged("D", "ABC", missing('=', 0))],
    },
    Case {
        title: "I: damaged, then read after all",
        log: I,
        synced: 2,
        unseen: "",
        stages: &[damaged("D", "ABC", missing('=', 0)), stage("", "D", Complete)],
    },
    Case {
        title: "I: missing, found before it is passed",
        log: I,
        synced: 2,
        unseen: "C",
        stages: &[stage("C", "AB", missing('D', 1)), stage("", "CD", Complete)],
    },
    Case {
        title: "I: missing, found when it is passed",
        log: I,
        synced: 2,
        unseen: "A",
        stages: &[stage("A", "BC", missing('D', 1)), stage("", "", missing('D', 1))],
    },
    Case {
        title: "I: stopped and resumed",
        log: I,
        synced: 2,
        unseen: "",
        stages: &[
            stopped('A', ""),
            stopped('C', "AB"),
            stage("", "CD", Complete),
            stage("", "", Complete),
        ],
    },
    Case {
        title: "I: lost after it was replayed",
        log: I,
        synced: 2,
        unseen: "",
        stages: &[stopped('C', "AB"), stage("AB", "CD", Complete)],
    },
    Case {
        title: "V: whole",
        log: V,
        synced: 2,
        unseen: "",
        stages: &[stage("", "ABCDEFG", Complete)],
    },
    Case {
        title: "V: one synced",
        log: V,
        synced: 3,
        unseen: "",
        stages: &[stage("", "CDEF", Complete)],
    },
    Case {
        title: "V: two synced",
        log: V,
        synced: 4,
        unseen: "",
        stages: &[stage("", "DE", Complete)],
    },
    Case {
        title: "V: C missing",
        log: V,
        synced: 2,
        unseen: "C",
        stages: &[stage("C", "AB", missing('D', 4))],
    },
    Case {
        title: "V: D missing",
        log: V,
        synced: 2,
        unseen: "D",
        stages: &[stage("D", "ABCE", missing('F', 2))],
    },
    Case {
        title: "V: F missing, its dependant synced",
        log: V,
        synced: 3,
        unseen: "F",
        stages: &[stage("F", "CDE", Complete)],
    },
    Case {
        title: "V: F lost after the claim",
        log: V,
        synced: 3,
        unseen: "",
        stages: &[stage("F", "CDE", missing('=', 0))],
    },
    Case {
        title: "V: one of two lost in the last generation",
        log: V,
        synced: 4,
        unseen: "",
        stages: &[stage("E", "D", missing('=', 0))],
    },
    Case {
        title: "V: a whole generation missing",
        log: V,
        synced: 2,
        unseen: "DE",
        stages: &[stage("DE", "ABC", missing('F', 2))],
    },
    Case {
        title: "ladder: whole",
        log: LADDER,
        synced: 2,
        unseen: "",
        stages: &[stage("", "FGHJ", Complete)],
    },
    Case {
        title: "ladder: G missing",
        log: LADDER,
        synced: 2,
        unseen: "G",
        stages: &[stage("G", "F", missing('H', 2))],
    },
    Case {
        title: "ladder: F missing",
        log: LADDER,
        synced: 2,
        unseen: "F",
        stages: &[stage("F", "", missing('G', 3))],
    },
    Case {
        title: "ladder: obsolete ones still there",
        log: LADDER,
        synced: 4,
        unseen: "",
        stages: &[stage("", "J", Complete)],
    },
    Case {
        title: "ladder: missing at the claim, found at the replay",
        log: LADDER,
        synced: 2,
        unseen: "G",
        stages: &[stage("", "FGHJ", Complete)],
    },
];

/// The entries of a drawing, with their letters.
fn draw(text: &str) -> Vec<(char, Node)> {
    let (mut at, mut entries, mut next) = (Position::default(), Vec::new(), false);
    let first = text.split_whitespace().find_map(|word| word[..1].parse::<u64>().ok());
    sync(&mut at, first.map_or(0, |txg| txg - 1)).unwrap();
    for word in text.split_whitespace() {
        if word == "|" {
            next = true;
        } else if let Some(txg) = word.strip_prefix('s') {
            sync(&mut at, txg.parse().unwrap()).unwrap();
        } else {
            let node = append(&mut at, word[..1].parse().unwrap(), next).expect(word);
            entries.push((word.chars().nth(1).unwrap(), node));
            next = false;
        }
    }
    entries
}

fn shown(entries: &[(char, Node)], hide: &str) -> Vec<Node> {
    entries.iter().filter(|(letter, _)| !hide.contains(*letter)).map(|(_, node)| *node).collect()
}

#[test]
fn table() {
    for case in CASES {
        let entries = draw(case.log);
        let letter = |at: Name| {
            entries.iter().find(|(_, node)| name(node) == at).map_or('=', |(letter, _)| *letter)
        };
        let mut at = claim(case.synced, &shown(&entries, case.unseen));
        for (i, stage) in case.stages.iter().enumerate() {
            let mut replayed = String::new();
            let outcome = replay(&mut at, &shown(&entries, stage.hide), &mut |node, _| {
                let letter = letter(name(node));
                if stage.stop == Some(letter) {
                    return sys::FBY_LOG_STOP;
                }
                if stage.damaged.contains(letter) {
                    return sys::FBY_LOG_DAMAGED;
                }
                replayed.push(letter);
                sys::FBY_LOG_REPLAYED
            });
            let ends = match outcome.end {
                sys::FBY_LOG_COMPLETE => Complete,
                sys::FBY_LOG_STOPPED => Stopped,
                _ => Missing { witness: letter(name(&outcome.witness)), left: outcome.left },
            };
            assert_eq!(
                (replayed.as_str(), &ends),
                (stage.replays, &stage.ends),
                "{}, replay {i}",
                case.title
            );
        }
    }
}

/// Each entry of each shape missing at the claim, each txg synced, and the replay
/// stopped before each entry: what is replayed in the end is the same as without
/// the stop.
#[test]
fn a_stop_anywhere_changes_nothing() {
    for drawing in [I, V, LADDER] {
        let entries = draw(drawing);
        for synced in 0..6 {
            for hidden in 0..=entries.len() {
                let present: Vec<Node> = entries
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| *i != hidden)
                    .map(|(_, (_, node))| *node)
                    .collect();
                let start = claim(synced, &present);
                let whole = {
                    let (mut at, mut got) = (start, Vec::new());
                    let outcome = replay(&mut at, &present, &mut |node, _| {
                        got.push(name(node));
                        sys::FBY_LOG_REPLAYED
                    });
                    (got, outcome.end, at)
                };
                for stop in 0..=entries.len() {
                    let (mut at, mut got) = (start, Vec::new());
                    let mut calls = 0;
                    replay(&mut at, &present, &mut |node, _| {
                        if calls == stop {
                            return sys::FBY_LOG_STOP;
                        }
                        calls += 1;
                        got.push(name(node));
                        sys::FBY_LOG_REPLAYED
                    });
                    let outcome = replay(&mut at, &present, &mut |node, _| {
                        got.push(name(node));
                        sys::FBY_LOG_REPLAYED
                    });
                    assert_eq!(
                        (got, outcome.end, at),
                        whole,
                        "{drawing}, synced {synced}, stop {stop}"
                    );
                }
            }
        }
    }
}

#[test]
fn refused_appends_change_nothing() {
    let mut at = Position::default();
    sync(&mut at, 5).unwrap();
    append(&mut at, 6, false).unwrap();
    let before = at;
    for (txg, refusal) in [
        (0, sys::FBY_LOG_OBSOLETE),
        (5, sys::FBY_LOG_OBSOLETE),
        (9, sys::FBY_LOG_SKIPS),
        (u64::MAX, sys::FBY_LOG_SKIPS),
    ] {
        assert_eq!(append(&mut at, txg, true), Err(refusal), "txg {txg}");
    }
    assert_eq!(sync(&mut at, 4), Err(sys::FBY_LOG_BACKWARDS));
    assert_eq!(at, before);
    for txg in 6..=8 {
        append(&mut at, txg, false).unwrap();
    }
    let mut last = Position { gen: u64::MAX, id: 1, synced: 5, ..Position::default() };
    assert_eq!(append(&mut last, 6, true), Err(sys::FBY_LOG_FULL));
    append(&mut last, 6, false).unwrap();
    last.id = u64::MAX;
    assert_eq!(append(&mut last, 6, false), Err(sys::FBY_LOG_FULL));
}

/// Two entries of one name, as only damage or a writer's mistake makes them:
/// neither is taken, and what depends on them shows it.
#[test]
fn twins_are_not_replayed() {
    let entries = draw(I);
    let mut nodes = shown(&entries, "");
    let mut at = claim(2, &nodes);
    nodes.push(Node { place: 99, ..nodes[1] });
    let mut got = Vec::new();
    let outcome = replay(&mut at, &nodes, &mut |node, _| {
        got.push(name(node));
        sys::FBY_LOG_REPLAYED
    });
    assert_eq!(got, [(1, 1), (1, 3)]);
    assert_eq!(
        (outcome.end, outcome.twins, name(&outcome.witness)),
        (sys::FBY_LOG_MISSING, 2, (2, 1))
    );
}

/// An entry that was never appended does not stand in for one that is missing.
#[test]
fn a_forged_entry_is_told() {
    let entries = draw(V);
    let mut nodes = shown(&entries, "C");
    nodes.push(Node { txg: 5, gen: 2, id: 1, before: nodes[2].before, place: 99 });
    let mut at = claim(2, &nodes);
    let outcome = replay(&mut at, &nodes, &mut |_, _| sys::FBY_LOG_REPLAYED);
    assert_eq!(outcome.end, sys::FBY_LOG_MISSING);
}

#[test]
fn random_logs() {
    for seed in 0..150_000 {
        run(seed).unwrap_or_else(|what| panic!("{what}"));
    }
}
