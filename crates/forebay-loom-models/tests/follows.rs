// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a model says something about the engine only while the engine does what the
//! model does.  So a change of the C that could make a difference to another thread must
//! not pass without a look at the model.
//!
//! Method: each model lists the C functions that it follows, and of each what other
//! threads can see, in the order of the text: atomic accesses with their memory order and
//! their object, barriers, locks, stores to the media, plain stores to what a lock word
//! guards, and calls of functions of the list.  The lists are compared with the source;
//! and each function that touches one of the model's words must be in a list.  Then
//! changes are planted in copies of the source, and each must be reported.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_loom_models::{bypass, floor, gate, generation, reader, static_clean, Follows};

const MODELS: [(&str, Follows); 6] = [
    ("bypass", bypass::FOLLOWS),
    ("floor", floor::FOLLOWS),
    ("gate", gate::FOLLOWS),
    ("generation", generation::FOLLOWS),
    ("static_clean", static_clean::FOLLOWS),
    ("reader", reader::FOLLOWS),
];

/// Text of the engine's and the port's files, by name.
type Sources = BTreeMap<String, String>;

fn sources() -> Sources {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut all = Sources::new();
    let list = |dir: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let mut files = list(&root.join("port"));
    for layer in list(&root.join("core")) {
        files.extend(list(&layer));
    }
    for path in files {
        if path.extension().is_some_and(|e| e == "c" || e == "h") {
            let name = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
            all.insert(name, std::fs::read_to_string(&path).unwrap());
        }
    }
    all
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The text without its comments.
fn code(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("/*") {
        out.push_str(&rest[..at]);
        rest = rest[at..].split_once("*/").map_or("", |(_, after)| after);
    }
    out + rest
}

/// Functions of a file in the kernel's style, where a body's braces stand alone in the
/// first column: names and bodies.
fn functions(text: &str) -> BTreeMap<String, String> {
    let code = code(text);
    let lines: Vec<&str> = code.lines().collect();
    let mut all = BTreeMap::new();
    let mut before = 0;
    while let Some(open) = (before..lines.len()).find(|&i| lines[i] == "{") {
        let close = (open..lines.len()).find(|&i| lines[i] == "}").unwrap_or(lines.len());
        let first = (0..open)
            .rev()
            .find(|&i| lines[i].trim().is_empty() || lines[i].starts_with(['}', '#']))
            .map_or(0, |i| i + 1);
        let head = lines[first..open].join(" ");
        if let Some((name, _)) = head.split_once('(') {
            let name = name.rsplit(|c| !is_word(c)).next().unwrap();
            all.insert(name.to_owned(), lines[open..close].join("\n"));
        }
        before = close;
    }
    all
}

/// Splits text after an opening bracket: up to where it closes, and up to the first comma.
fn arguments(text: &str) -> (&str, &str) {
    let (mut depth, mut comma) = (0, None);
    for (i, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' if depth == 0 => return (&text[..i], &text[..comma.unwrap_or(i)]),
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => comma = comma.or(Some(i)),
            _ => {}
        }
    }
    (text, text)
}

const ATOMIC: [&str; 8] = [
    "load",
    "load_acquire",
    "store",
    "store_release",
    "cmpxchg",
    "fetch_add",
    "fetch_or",
    "fetch_and",
];

/// The steps of a function that other threads can observe, in the order of its text.
fn steps(body: &str, guarded: &[&str], calls: &[&str]) -> Vec<String> {
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(c) = body[at..].chars().next() {
        if !is_word(c) {
            at += c.len_utf8();
            continue;
        }
        let end = body[at..].find(|c| !is_word(c)).map_or(body.len(), |n| at + n);
        let (name, after) = (&body[at..end], &body[end..]);
        let member = body[..at].ends_with("->") || body[..at].ends_with('.');
        at = end;
        let Some(inner) = after.strip_prefix('(') else {
            let set = after.trim_start().strip_prefix('=').is_some_and(|r| !r.starts_with('='));
            if member && set && guarded.contains(&name) {
                out.push(format!("set {name}"));
            }
            continue;
        };
        let (all, first) = arguments(inner);
        let short = name.strip_prefix("fby_").unwrap_or(name);
        if name == "FBY_ASSERT" {
            at += all.len();
        } else if ATOMIC.contains(&short) {
            out.push(format!("{short} {}", first.trim_start_matches('&')));
        } else if ["rmb", "wmb", "mb_after_atomic", "lock", "unlock"].contains(&short) {
            out.push(short.to_owned());
        } else if name.starts_with("media_")
            || ["fby_fence_chunk", "fby_settle_line"].contains(&name)
            || calls.contains(&name)
        {
            out.push(format!("call {name}"));
        }
    }
    out
}

/// A list as written in a model: for each `file function` its steps.
fn listed(text: &str) -> Vec<((String, String), Vec<String>)> {
    let mut all: Vec<((String, String), Vec<String>)> = Vec::new();
    for line in text.lines().filter(|l| !l.trim().is_empty()) {
        match line.strip_prefix("    ") {
            Some(step) => all.last_mut().expect("a function first").1.push(step.to_owned()),
            None => {
                let (file, function) = line.split_once(' ').expect("file and function");
                all.push(((file.to_owned(), function.to_owned()), Vec::new()));
            }
        }
    }
    all
}

/// Accesses of the words by an atomic operation.
fn touches(body: &str, words: &[&str]) -> bool {
    steps(body, &[], &[]).iter().any(|step| {
        words.iter().any(|word| {
            step.split_once(' ').is_some_and(|(_, object)| {
                object == *word || object.split(['[', ']', '.', '>', '-']).any(|part| part == *word)
            })
        })
    })
}

/// Differences between a model's list and the source.
fn differences(name: &str, follows: &Follows, sources: &Sources) -> Vec<String> {
    let list = listed(follows.functions);
    let calls: Vec<&str> = list.iter().map(|((_, function), _)| function.as_str()).collect();
    let mut found = Vec::new();
    for ((file, function), steps_listed) in &list {
        let functions = sources.get(file).map(|text| functions(text)).unwrap_or_default();
        let Some(body) = functions.get(function) else {
            found.push(format!("{name}: {function} is not in {file} any more"));
            continue;
        };
        let now = steps(body, follows.guarded, &calls);
        if now != *steps_listed {
            found.push(format!(
                "{name}: {file} {function} is now\n    {}\nand not\n    {}",
                now.join("\n    "),
                steps_listed.join("\n    ")
            ));
        }
    }
    for (file, text) in sources.iter().filter(|(file, _)| file.starts_with("core/")) {
        for (function, body) in functions(text) {
            let known = list.iter().any(|((f, n), _)| f == file && *n == function)
                || follows.besides.iter().any(|(n, _)| *n == function);
            if !known && touches(&body, follows.words) {
                found.push(format!(
                    "{name}: {file} {function} touches {:?} and is in no list",
                    follows.words
                ));
            }
        }
    }
    found
}

#[test]
fn the_models_follow_the_source() {
    let sources = sources();
    let found: Vec<String> =
        MODELS.iter().flat_map(|(name, f)| differences(name, f, &sources)).collect();
    assert!(
        found.is_empty(),
        "{}\n\nLook whether the model still does what the C does, change it if not, and then \
         its list (crates/forebay-loom-models/src).",
        found.join("\n\n")
    );
}

/// The port's orders, which the models take for granted.
const ORDERS: [(&str, &[&str]); 2] = [
    (
        "port/posix.h",
        &[
            "#define fby_load(p) __atomic_load_n((p), __ATOMIC_RELAXED)",
            "#define fby_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)",
            "#define fby_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)",
            "#define fby_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)",
            "(new), false, __ATOMIC_ACQ_REL, \\",
            "#define fby_fetch_add(p, v) __atomic_fetch_add((p), (v), __ATOMIC_ACQ_REL)",
            "#define fby_fetch_or(p, v) __atomic_fetch_or((p), (v), __ATOMIC_ACQ_REL)",
            "#define fby_fetch_and(p, v) __atomic_fetch_and((p), (v), __ATOMIC_ACQ_REL)",
            "#define fby_rmb() __atomic_thread_fence(__ATOMIC_ACQUIRE)",
            "#define fby_wmb() __builtin_ia32_sfence()",
            "#define fby_wmb() __atomic_thread_fence(__ATOMIC_RELEASE)",
            "\tfby_store_release(&l->word, 0u);",
        ],
    ),
    (
        "port/linux.h",
        &[
            "#define fby_load(p) READ_ONCE(*(p))",
            "#define fby_store(p, v) WRITE_ONCE(*(p), (v))",
            "#define fby_load_acquire(p) smp_load_acquire(p)",
            "#define fby_store_release(p, v) smp_store_release((p), (v))",
            "#define fby_rmb() smp_rmb()",
            "#define fby_wmb() wmb()",
            "#define fby_lock(l) raw_spin_lock(&(l)->lock)",
            "#define fby_unlock(l) raw_spin_unlock(&(l)->lock)",
        ],
    ),
];

fn orders_missing(sources: &Sources) -> Vec<&'static str> {
    let missing = |(file, lines): &(&str, &'static [&'static str])| {
        lines.iter().copied().filter(|l| !sources[*file].contains(l)).collect::<Vec<_>>()
    };
    ORDERS.iter().flat_map(missing).collect()
}

#[test]
fn the_ports_orders_are_those_of_the_models() {
    assert_eq!(orders_missing(&sources()), Vec::<&str>::new());
}

/// Planted: file, text, and what it becomes.
const PLANTED: [(&str, &str, &str); 17] = [
    // The counter before the floor.
    (
        "core/space/slot.h",
        "\t\tfby_store(&s->floor, fby_load(&p->seq));\n\
         \t\ts->seq_next = fby_fetch_add(&p->seq, (u64)FBY_SEQ_BLOCK);\n",
        "\t\ts->seq_next = fby_fetch_add(&p->seq, (u64)FBY_SEQ_BLOCK);\n\
         \t\tfby_store(&s->floor, s->seq_next);\n",
    ),
    // The floor before the fill.
    ("core/cache/write.c", "\tfby_store(&ch->fill, w->first_page + w->npages);\n", ""),
    ("core/cache/write.c", "fby_store_release(&s->floor,", "fby_store(&s->floor,"),
    (
        "core/drain/collect.c",
        "floor = fby_load_acquire(&s->floor);",
        "floor = fby_load(&s->floor);",
    ),
    // The bucket, then the range.
    (
        "core/cache/bypass.c",
        "\tstop = uncached_until(p, volume, first, end, &cached);\n",
        "\tstop = fby_load(&v->gate.lost);\n",
    ),
    (
        "core/cache/write.c",
        "if (fby_unlikely(fby_load(&p->volume[volume].bypassing))) {",
        "if (0) {",
    ),
    ("core/cache/bypass.c", "\tfby_lock(&p->space->lock);\n\tbusy =", "\tbusy ="),
    // The extent of a failure is set to unknown before the failure shows.
    ("core/cache/flush.c", "\tfby_store(&g->lost_upto, LOST_UPTO_UNKNOWN);\n", ""),
    ("core/cache/index.h", "fby_store_release(&e->state, state", "fby_store(&e->state, state"),
    ("core/cache/read.c", "\tfby_rmb();\n", ""),
    ("core/space/chunk.c", "\tfby_wmb();\n", ""),
    // The entry in flight, then the gate.
    ("core/log/append.c", "\t\tfby_mb_after_atomic();\n\t\tif (fby_likely", "\t\tif (fby_likely"),
    (
        "core/log/append.c",
        "\tfby_store_release(&s->log, FBY_NO_OWNER);\n\tappend_release",
        "\tfby_store(&s->log, FBY_NO_OWNER);\n\tappend_release",
    ),
    // A round is on, then it counts, then bits go.
    (
        "core/drain/static_round.c",
        "\tfby_store(&d->phase, FBY_PH_WRITE);\n\tfby_fetch_add(&v->collects, 1u);\n",
        "\tfby_fetch_add(&v->collects, 1u);\n\tfby_store(&d->phase, FBY_PH_WRITE);\n",
    ),
    (
        "core/drain/static_round.c",
        "\tfby_rmb();\n\treturn fby_load(&v->collects)",
        "\treturn fby_load(&v->collects)",
    ),
    ("core/static/place.c", "\tfby_mb_after_atomic();\n", ""),
    // Somebody new.
    (
        "core/space/fullness.c",
        "bool fby_starved(const",
        "static u64 fresh(struct fby_slot *s)\n{\n\treturn fby_load(&s->floor);\n}\n\n\
         bool fby_starved(const",
    ),
];

#[test]
fn planted_changes_are_reported() {
    for (file, from, to) in PLANTED {
        let mut sources = sources();
        let text = sources.get_mut(file).unwrap();
        assert!(text.contains(from), "{file} has no {from:?} any more");
        *text = text.replacen(from, to, 1);
        let reports = MODELS.iter().map(|(name, f)| differences(name, f, &sources).len());
        assert!(reports.sum::<usize>() > 0, "{file}: {from:?} became {to:?} unseen");
    }
    let mut sources = sources();
    let port = sources.get_mut("port/posix.h").unwrap();
    *port = port.replacen("(v), __ATOMIC_RELEASE)", "(v), __ATOMIC_RELAXED)", 1);
    assert_eq!(orders_missing(&sources).len(), 1);
}
