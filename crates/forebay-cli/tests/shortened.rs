// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: an origin that has lost its end is never called complete by who can know it: the server
//! that has it, its log, its status and its metrics, a drain, and the origin itself.
//! Method: a table of what becomes of a file, and what each of them says then.  The file changes
//! while it is served or while nobody has it, with and without something in the pool.

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::nbd::Served;
use common::Bench;

const WHOLE: u64 = 1 << 20;

struct Row {
    what: &'static str,
    /// A client has written, and nothing is drained.
    holds: bool,
    served: bool,
    /// The file has its size again.
    restored: bool,
    /// Exit code of `forebay origin status` after that, and after the server has ended.
    origin: i32,
    /// Words in `forebay status` and in the log.
    says: &'static str,
    /// The exit code of `forebay drain` meanwhile, and of a later one without a server.
    drain: i32,
    then: i32,
}

const CUT: &str = "has 524288 bytes";
const WAS_CUT: &str = "was shorter for a while";
const TRUNCATED: &str = "it was truncated";

const ROWS: [Row; 8] = [
    row("clean, served, cut", [false, true, false], 14, CUT, [6, 6]),
    row("holding, served, cut", [true, true, false], 14, CUT, [6, 6]),
    // Its end counts as lost until a new attach: whoever attaches it knows that it is restored.
    row("clean, served, cut and extended", [false, true, true], 14, WAS_CUT, [6, 0]),
    row("holding, served, cut and extended", [true, true, true], 14, WAS_CUT, [6, 0]),
    // Only the pool knows the size of the origin.
    row("clean, cut", [false, false, false], 0, TRUNCATED, [6, 6]),
    row("holding, cut", [true, false, false], 14, TRUNCATED, [6, 6]),
    // Nobody has noticed the change.
    row("clean, cut and extended", [false, false, true], 0, "", [0, 0]),
    row("holding, cut and extended", [true, false, true], 14, "", [0, 0]),
];

const fn row(
    what: &'static str,
    [holds, served, restored]: [bool; 3],
    origin: i32,
    says: &'static str,
    [drain, then]: [i32; 2],
) -> Row {
    Row { what, holds, served, restored, origin, says, drain, then }
}

fn origin_status(b: &Bench) -> i32 {
    b.run(&["origin", "status", "origin"]).code.unwrap()
}

fn changed(b: &Bench) -> String {
    let status = b.run_ok(&["status", "pool", "--json"]).stdout;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    status["volumes"][0]["origin_changed"].as_str().unwrap_or_default().into()
}

fn metric(b: &Bench) -> bool {
    b.run_ok(&["exporter", "pool", "--textfile", "metrics"]);
    let text = fs::read_to_string(b.path("metrics")).unwrap();
    let line = text.lines().find(|l| l.starts_with("forebay_volume_origin_changed{"));
    line.expect("the metric").ends_with(" 1")
}

fn soon(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn who_can_know_it_says_so() {
    for row in ROWS {
        let b = Bench::on_disk();
        b.make_volume();
        if row.holds {
            b.write_to_volume(0, &[1; 4096]);
        }
        let mut served = row.served.then(|| {
            let mut command = Served::command(&b, "pool");
            command.stderr(fs::File::create(b.path("log")).unwrap());
            Served::ready(&b, command).unwrap()
        });
        let origin = fs::File::options().write(true).open(b.path("origin")).unwrap();
        origin.set_len(WHOLE / 2).unwrap();
        let logged = || fs::read_to_string(b.path("log")).unwrap().contains(CUT);
        if row.served {
            soon(row.what, || logged() && origin_status(&b) == 14);
        }
        if row.restored {
            origin.set_len(WHOLE).unwrap();
        }
        let told = changed(&b);
        match row.says {
            "" => assert_eq!(told, "", "{}", row.what),
            says => assert!(told.contains(says), "{}: {told}", row.what),
        }
        assert_eq!(metric(&b), !row.says.is_empty(), "{}: metrics", row.what);
        assert_eq!(origin_status(&b), row.origin, "{}", row.what);
        let size = if row.restored { WHOLE } else { WHOLE / 2 };
        let json = b.run(&["origin", "status", "origin", "--json"]).stdout;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["size_bytes"], size, "{}: {json}", row.what);

        let drained = b.run(&["drain", "pool", "--json"]);
        assert_eq!(drained.code, Some(row.drain), "{}: {drained:?}", row.what);
        let complete = drained.stdout.contains("\"complete\": true");
        assert_eq!(complete, row.drain == 0, "{}: {drained:?}", row.what);
        if let Some(served) = &mut served {
            assert_eq!(origin_status(&b), 14, "{}: after the drain", row.what);
            assert_eq!(served.stop(), Some(0), "{}", row.what);
            assert_eq!(origin_status(&b), 14, "{}: after the end", row.what);
        }
        let drained = b.run(&["drain", "pool"]);
        assert_eq!(drained.code, Some(row.then), "{}: {drained:?}", row.what);
        if row.then == 0 {
            assert_eq!(origin_status(&b), 0, "{}", row.what);
        }
    }
}
