// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which entries of a log are replayed when some are missing (core/log/log_order.c): a table of
//! small logs, from ZIL-PMEM's section 7.2.1; the same logs with each small loss and each
//! resumption against a model; then random logs against it.

use std::collections::{BTreeMap, BTreeSet};

use forebay_engine::log_order::{append, claim, replay, sync};
use forebay_engine::sys;
use forebay_engine::sys::{fby_log_node as Node, fby_log_position as Position};
use forebay_sim::log_order::{name, run, Model, Name};

/// Shapes, and what becomes of them.
///
/// A shape is drawn with a line for each txg and a column for each generation; its
/// entries were appended by generation, and in one generation by letter.  The writer has
/// synced a txg only where it had to, to append one three above it.
///
/// A row of the table has the txg that is synced at the claim, the entries that the claim
/// does not see, one replay after another, and what the case is.  A replay is:
///
/// ```text
/// -AB     A and B are not there        ~A      A is there, its data cannot be read
/// .A      stopped before A             ABC     these are replayed; 0: none
/// ok      complete                     stop    stopped
/// D:2     D is the witness of something that is missing, and 2 are left; =: the seal is
/// ```
const GRID: &str = "
shape single
    3 | A
      +-1--

    2 |     | A ok                                  | whole
    3 |     | 0 ok                                  | synced
    2 | A   | -A 0 ok                               | never seen: no different from never appended
    2 |     | -A 0 =:0                              | lost after the claim
    2 |     | ~A 0 =:0                              | damaged
    2 |     | ~A 0 =:0; A ok; 0 ok                  | damaged, then read after all
    2 |     | .A 0 stop; A ok; 0 ok                 | resumed
    2 | A   | A ok                                  | appears after the claim
    2 |     | -A 0 =:0; A ok                        | hidden, then there again
    2 |     | A ok; -A 0 ok                         | lost after it was replayed

shape one generation of one txg
    3 | ABC
      +-1----

    2 |     | ABC ok                                | whole
    3 |     | 0 ok                                  | synced
    2 | A   | -A BC ok                              | A never seen: the rest does not depend on it
    2 | B   | -B AC ok                              | B never seen
    2 | C   | -C AB ok                              | C never seen
    2 | AC  | -AC B ok                              | two never seen
    2 |     | -A BC =:0                             | A lost after the claim
    2 |     | -B AC =:0                             | B lost after the claim
    2 |     | -C AB =:0                             | C lost after the claim
    2 |     | -AB C =:0                             | two lost after the claim
    2 |     | ~B AC =:0                             | damaged
    2 |     | .A 0 stop; .B A stop; .C B stop; C ok | resumed at each
    2 |     | -C AB =:0; C ok                       | hidden and back, ahead of the position
    2 |     | -A BC =:0; 0 =:0                      | hidden and back, behind it: too late
    2 |     | .C AB stop; -AB C ok                  | lost after they were replayed

shape I
    5 | C
    4 | B   D
    3 | A
      +-1---2--

    2 |     | ABCD ok                               | whole
    3 |     | BCD ok                                | one txg synced
    4 |     | C ok                                  | two txgs synced
    5 |     | 0 ok                                  | all synced
    2 | A   | -A BC D:1                             | A missing: the rest of its generation comes
    2 | B   | -B AC D:1                             | B missing
    2 | C   | -C AB D:1                             | C missing
    2 | D   | -D ABC ok                             | the tail never seen
    3 | A   | -A BCD ok                             | what is missing is synced
    4 | D   | -D C ok                               | the same, of the tail
    2 | AC  | -AC B D:1                             | two missing
    2 | AB  | -AB C D:1                             | two missing
    2 | BD  | -BD AC ok                             | two missing, and nobody left to tell
    2 | ABC | -ABC 0 D:1                            | a whole generation missing
    2 |     | -A BC D:1                             | A lost after the claim
    2 |     | -B AC D:1                             | B lost after the claim
    2 |     | -C AB D:1                             | C lost after the claim
    2 |     | -D ABC =:0                            | the tail lost after the claim
    3 |     | -D BC =:0                             | the same, one txg synced
    4 |     | -C 0 =:0                              | the last that counts lost after the claim
    2 |     | -ABCD 0 =:0                           | all lost after the claim
    2 | D   | ABCD ok                               | the tail appears after the claim
    2 | A   | ABCD ok                               | A missing at the claim alone
    2 |     | ~B AC D:1                             | damaged
    2 |     | ~D ABC =:0                            | the tail damaged
    2 |     | ~D ABC =:0; D ok                      | damaged, then read after all
    2 |     | .A 0 stop; .B A stop; .C B stop; .D C stop; D ok; 0 ok | resumed at each
    2 | C   | -C AB D:1; CD ok                      | C appears ahead of the position
    2 | A   | -A BC D:1; 0 D:1                      | A appears behind it: too late
    2 | A   | -A BC D:1; -A 0 D:1                   | A still missing
    2 |     | .C AB stop; -C 0 D:1; CD ok           | hidden ahead of the position, and back
    2 |     | .C AB stop; -A CD ok                  | hidden behind it
    2 |     | .D ABC stop; -ABC D ok                | all that was replayed is lost

shape V
    5 | A               E
    4 |     B       D
    3 |         C
      +-1---2---3---4---5-

    2 |     | ABCDE ok                              | whole
    3 |     | ABDE ok                               | one txg synced
    4 |     | AE ok                                 | two txgs synced
    5 |     | 0 ok                                  | all synced
    2 | A   | -A 0 B:4                              | A missing
    2 | B   | -B A C:3                              | B missing
    2 | C   | -C AB D:2                             | C missing
    2 | D   | -D ABC E:1                            | D missing
    2 | E   | -E ABCD ok                            | the tail never seen
    3 | C   | -C ABDE ok                            | what is missing is synced
    4 | BD  | -BD AE ok                             | the same, of two
    3 | B   | -B A D:2                              | the next to tell is the one after the next
    2 | BD  | -BD A C:2                             | two missing: the first is told
    2 | DE  | -DE ABC ok                            | the last two never seen
    2 |     | -A 0 B:4                              | A lost after the claim
    2 |     | -B A C:3                              | B lost after the claim
    2 |     | -C AB D:2                             | C lost after the claim
    2 |     | -D ABC E:1                            | D lost after the claim
    2 |     | -E ABCD =:0                           | the tail lost after the claim
    2 |     | -DE ABC =:0                           | the last two lost after the claim
    4 |     | -E A =:0                              | the tail lost, two txgs synced
    2 |     | .A 0 stop; .B A stop; .C B stop; .D C stop; .E D stop; E ok; 0 ok | resumed at each
    2 | C   | -C AB D:2; CDE ok                     | C appears ahead of the position
    2 | C   | ABCDE ok                              | C missing at the claim alone
    2 |     | .D ABC stop; -B DE ok                 | hidden behind the position
    2 |     | .D ABC stop; -D 0 E:1; DE ok          | hidden ahead of it, and back

shape peak
    5 |         DE
    4 |     C       F
    3 | AB              G
      +-1---2---3---4---5-

    2 |     | ABCDEFG ok                            | whole
    3 |     | CDEF ok                               | one txg synced
    4 |     | DE ok                                 | two txgs synced
    5 |     | 0 ok                                  | all synced
    2 | A   | -A B C:5                              | A missing
    2 | B   | -B A C:5                              | B missing
    2 | C   | -C AB D:4                             | C missing
    2 | D   | -D ABCE F:2                           | D missing: E does not depend on it
    2 | E   | -E ABCD F:2                           | E missing
    2 | F   | -F ABCDE G:1                          | F missing
    2 | G   | -G ABCDEF ok                          | the tail never seen
    2 | DE  | -DE ABC F:2                           | a whole generation missing
    2 | AF  | -AF B C:4                             | two missing: the first is told
    3 | F   | -F CDE ok                             | F missing, and who depends on it synced
    3 |     | -F CDE =:0                            | the same, lost after the claim
    4 |     | -E D =:0                              | one of two lost in the last generation
    4 | E   | -E D ok                               | one of two never seen there
    4 |     | -DE 0 =:0                             | the last generation lost
    2 |     | -A B C:5                              | A lost after the claim
    2 |     | -B A C:5                              | B lost after the claim
    2 |     | -C AB D:4                             | C lost after the claim
    2 |     | -D ABCE F:2                           | D lost after the claim
    2 |     | -E ABCD F:2                           | E lost after the claim
    2 |     | -F ABCDE G:1                          | F lost after the claim
    2 |     | -G ABCDEF =:0                         | the tail lost after the claim
    2 |     | .A 0 stop; .B A stop; .C B stop; .D C stop; .E D stop; .F E stop; .G F stop; G ok | resumed at each
    2 | E   | -E ABCD F:2; EFG ok                   | E appears ahead of the position
    2 | D   | -D ABCE F:2; 0 F:2                    | D appears behind it: too late
    2 |     | .E ABCD stop; -D EFG ok               | hidden behind it

shape ladder
    5 |                 J
    4 |             H
    3 |     F   G
    2 | C   E
    1 | ABD
      +-1---2---3---4---5-

    2 |     | FGHJ ok                               | whole: txgs 1 and 2 had to be synced
    3 |     | HJ ok                                 | one txg more synced
    4 |     | J ok                                  | two more
    5 |     | 0 ok                                  | all synced
    2 | F   | -F 0 G:3                              | F missing
    2 | G   | -G F H:2                              | G missing
    2 | H   | -H FG J:1                             | H missing
    2 | J   | -J FGH ok                             | the tail never seen
    2 | FH  | -FH 0 G:2                             | two missing: the first is told
    2 | GJ  | -GJ F H:1                             | the same
    2 | A   | -A FGHJ ok                            | an obsolete one is not missed
    2 |ABCDE| -ABCDE FGHJ ok                        | nor are all of them
    3 | G   | -G HJ ok                              | what is missing is synced
    2 |     | -F 0 G:3                              | F lost after the claim
    2 |     | -G F H:2                              | G lost after the claim
    2 |     | -H FG J:1                             | H lost after the claim
    2 |     | -J FGH =:0                            | the tail lost after the claim
    2 | G   | FGHJ ok                               | missing at the claim, there at the replay
    2 |     | .F 0 stop; .G F stop; .H G stop; .J H stop; J ok; 0 ok | resumed at each
    2 |     | .H FG stop; -F HJ ok                  | hidden behind the position
";

// --- the table's text ------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Complete,
    Stopped,
    Missing { witness: char, left: u64 },
}

/// One replay, and what is to come of it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Stage {
    hide: String,
    damaged: String,
    stop: Option<char>,
}

struct Row {
    synced: u64,
    unseen: String,
    stages: Vec<(Stage, String, End)>,
    text: String,
}

/// A drawn log: its entries with their letters, as they were appended.
struct Shape {
    name: String,
    entries: Vec<(char, Node)>,
    /// The txg that the writer has synced in the end.
    synced: u64,
    rows: Vec<Row>,
}

impl Shape {
    fn shown(&self, hide: &str) -> Vec<Node> {
        let there = |(letter, _): &&(char, Node)| !hide.contains(*letter);
        self.entries.iter().filter(there).map(|(_, node)| *node).collect()
    }

    fn letter(&self, at: Name) -> char {
        self.entries.iter().find(|(_, node)| name(node) == at).map_or('=', |(letter, _)| *letter)
    }

    /// The entries that count at the claim with the lowest synced txg.
    fn letters(&self) -> impl Iterator<Item = char> + '_ {
        self.entries.iter().filter(|(_, node)| node.txg > self.synced).map(|(letter, _)| *letter)
    }

    /// A replay by the engine: the entries handed out, and its end.
    fn replay(&self, at: &mut Position, stage: &Stage) -> (String, End) {
        let mut replayed = String::new();
        let outcome = replay(at, &self.shown(&stage.hide), &mut |node, _| {
            let letter = self.letter(name(node));
            if stage.stop == Some(letter) {
                return sys::FBY_LOG_STOP;
            }
            if stage.damaged.contains(letter) {
                return sys::FBY_LOG_DAMAGED;
            }
            replayed.push(letter);
            sys::FBY_LOG_REPLAYED
        });
        let end = match outcome.end {
            sys::FBY_LOG_COMPLETE => End::Complete,
            sys::FBY_LOG_STOPPED => End::Stopped,
            _ => End::Missing { witness: self.letter(name(&outcome.witness)), left: outcome.left },
        };
        (replayed, end)
    }
}

fn parse_stage(text: &str) -> (Stage, String, End) {
    let (mut stage, mut replayed, mut end) = (Stage::default(), None, None);
    for word in text.split_whitespace() {
        match (&word[..1], word) {
            ("-", _) => stage.hide = word[1..].into(),
            ("~", _) => stage.damaged = word[1..].into(),
            (".", _) => stage.stop = word[1..].chars().next(),
            (_, "ok") => end = Some(End::Complete),
            (_, "stop") => end = Some(End::Stopped),
            (_, "0") => replayed = Some(String::new()),
            _ => match word.split_once(':') {
                None => replayed = Some(word.into()),
                Some((witness, left)) => {
                    let witness = witness.chars().next().expect(word);
                    end = Some(End::Missing { witness, left: left.parse().expect(word) });
                }
            },
        }
    }
    (stage, replayed.expect(text), end.expect(text))
}

fn parse_row(text: &str) -> Row {
    let mut columns = text.split('|').map(str::trim);
    let mut column = || columns.next().expect(text);
    let (synced, unseen) = (column().parse().expect(text), column().into());
    let stages = column().split(';').map(parse_stage).collect();
    Row { synced, unseen, stages, text: text.trim().into() }
}

/// Appends what is drawn: lines of txgs, and a last one with the generations.
fn parse_drawing(lines: &[&str]) -> (Vec<(char, Node)>, u64) {
    let (axis, txgs) = lines.split_last().expect("a drawing");
    let (_, axis) = axis.split_once('+').expect("an axis");
    let mut drawn = BTreeMap::new();
    for line in txgs {
        let (txg, places) = line.split_once('|').expect(line);
        let txg: u64 = txg.trim().parse().expect(line);
        for (at, letter) in places.char_indices().filter(|(_, c)| c.is_alphabetic()) {
            let generation = axis[..=at].rfind(|c: char| c.is_ascii_digit()).expect(line);
            drawn.insert((generation, letter), txg);
        }
    }
    let (mut at, mut entries, mut last) = (Position::default(), Vec::new(), 0);
    sync(&mut at, drawn.values().min().expect("entries") - 1).unwrap();
    for ((generation, letter), txg) in drawn {
        if txg > at.synced + sys::FBY_LOG_TXGS as u64 {
            sync(&mut at, txg - sys::FBY_LOG_TXGS as u64).unwrap();
        }
        entries.push((letter, append(&mut at, txg, generation != last).unwrap()));
        last = generation;
    }
    (entries, at.synced)
}

fn shapes() -> Vec<Shape> {
    let sections = GRID.split("\nshape ").skip(1);
    let shape = |section: &str| {
        let mut lines = section.lines();
        let name = lines.next().unwrap().to_owned();
        let drawing: Vec<&str> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        let (entries, synced) = parse_drawing(&drawing);
        let rows = lines.filter(|line| !line.is_empty()).map(parse_row).collect();
        Shape { name, entries, synced, rows }
    };
    sections.map(shape).collect()
}

fn shape(name: &str) -> Shape {
    shapes().into_iter().find(|shape| shape.name == name).expect(name)
}

// --- the table ---------------------------------------------------------------------------

#[test]
fn table() {
    let mut rows = 0;
    for shape in shapes() {
        for row in &shape.rows {
            let mut at = claim(row.synced, &shape.shown(&row.unseen));
            for (i, (stage, replayed, end)) in row.stages.iter().enumerate() {
                let got = shape.replay(&mut at, stage);
                let case = format!("shape {}: {}, replay {}", shape.name, row.text, i + 1);
                assert_eq!(got, (replayed.clone(), *end), "{case}");
            }
            rows += 1;
        }
    }
    println!("{rows} rows");
}

/// For each shape: each txg synced at the claim; each entry missing, at the claim and
/// after it; two missing; a replay resumed at each entry.
#[test]
fn the_table_leaves_nothing_out() {
    for shape in shapes() {
        let last = shape.entries.iter().map(|(_, node)| node.txg).max().unwrap();
        let has = |what: String, row: &dyn Fn(&Row) -> bool| {
            assert!(shape.rows.iter().any(row), "shape {}: no row with {what}", shape.name);
        };
        for synced in shape.synced..=last {
            let whole = |row: &Row| {
                row.synced == synced
                    && row.unseen.is_empty()
                    && row.stages.len() == 1
                    && row.stages[0].0 == Stage::default()
            };
            has(format!("txg {synced} synced"), &whole);
        }
        for letter in shape.letters() {
            let letter = letter.to_string();
            for unseen in ["", &letter] {
                let missing = |row: &Row| row.unseen == unseen && row.stages[0].0.hide == letter;
                has(format!("{letter} missing, unseen {unseen:?}"), &missing);
            }
        }
        let resumed = |row: &Row| {
            let stops: Vec<char> = row.stages.iter().filter_map(|(s, ..)| s.stop).collect();
            shape.letters().all(|letter| stops.contains(&letter))
        };
        has("a replay resumed at each entry".into(), &resumed);
        if shape.letters().count() > 1 {
            has("two missing".into(), &|row| row.stages[0].0.hide.len() == 2);
        }
    }
}

// --- against the model ---------------------------------------------------------------------

/// None, each one, and each two of these letters.
fn few(letters: &[char]) -> Vec<String> {
    let mut all = vec![String::new()];
    for (i, a) in letters.iter().enumerate() {
        all.push(a.to_string());
        all.extend(letters[i + 1..].iter().map(|b| format!("{a}{b}")));
    }
    all
}

/// Two replays against the model, which knows what was appended.
fn against_model(shape: &Shape, synced: u64, unseen: &str, stages: [&Stage; 2]) {
    let written = shape.shown("");
    let seen = shape.shown(unseen);
    let (mut at, mut model) = (claim(synced, &seen), Model::new(&written, synced, &seen));
    for (i, stage) in stages.into_iter().enumerate() {
        let (replayed, end) = shape.replay(&mut at, stage);
        let stop = stage.stop.map(|letter| {
            name(&shape.entries.iter().find(|(found, _)| *found == letter).unwrap().1)
        });
        let expected =
            model.replay(&shape.shown(&stage.hide), &BTreeSet::new(), |_, at| Some(at) == stop);
        let letters: String = expected.replayed.iter().map(|at| shape.letter(*at)).collect();
        let case = || {
            format!(
                "shape {}, synced {synced}, unseen {unseen:?}, {stages:?}, replay {i}",
                shape.name
            )
        };
        assert_eq!(replayed, letters, "{}", case());
        assert_eq!(end == End::Complete, expected.complete, "{}", case());
    }
}

/// Each shape, with each txg synced at the claim, and none, one or two entries missing at
/// the claim, other ones, in a first replay that is stopped before any entry or none,
/// and again others in a second one.
#[test]
fn every_small_loss_against_the_model() {
    let mut cases = 0u64;
    for shape in shapes() {
        let letters: Vec<char> = shape.letters().collect();
        let (few, last) = (few(&letters), shape.entries.iter().map(|(_, n)| n.txg).max().unwrap());
        let stops = || std::iter::once(None).chain(letters.iter().map(|letter| Some(*letter)));
        let again: Vec<Stage> =
            few.iter().map(|hide| Stage { hide: hide.clone(), ..Stage::default() }).collect();
        for synced in shape.synced..=last {
            for unseen in &few {
                for hide in &few {
                    for stop in stops() {
                        let first = Stage { hide: hide.clone(), stop, ..Stage::default() };
                        for second in &again {
                            against_model(&shape, synced, unseen, [&first, second]);
                            cases += 1;
                        }
                    }
                }
            }
        }
    }
    println!("{cases} cases");
    assert!(cases > 500_000, "{cases}");
}

// --- single cases, and random ones ---------------------------------------------------------

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
    let mut nodes = shape("I").shown("");
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
    let mut nodes = shape("peak").shown("C");
    nodes.push(Node { txg: 5, gen: 2, id: 1, before: nodes[2].before, place: 99 });
    let mut at = claim(2, &nodes);
    let outcome = replay(&mut at, &nodes, &mut |_, _| sys::FBY_LOG_REPLAYED);
    assert_eq!(outcome.end, sys::FBY_LOG_MISSING);
}

#[test]
fn random_logs() {
    const LOGS: u64 = 150_000;
    for seed in 0..LOGS {
        run(seed).unwrap_or_else(|what| panic!("{what}"));
    }
    println!("{LOGS} random logs");
}
