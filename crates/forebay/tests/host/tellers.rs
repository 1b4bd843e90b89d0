// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: whoever says whether an origin is complete says the same, and never more than is true,
//! also of volumes that hold nothing and that nobody has attached.
//!
//! Method: each state that the origin of such a volume can have, and each teller.

use std::path::Path;

use crate::common::*;
use forebay::*;

const SIZE: u64 = 1 << 20;

/// Drain, completeness, check, status and what its reader makes of it, served or not.
fn tellers(pool: &Pool) -> Vec<(&'static str, Completeness)> {
    let drained = pool.drain(None, &mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
    let of_v = |all: Vec<Completeness>| all.into_iter().find(|c| c.volume == "v").unwrap();
    let status = pool.status().volumes.into_iter().find(|v| v.name == "v").unwrap();
    let verdict = status.verdict;
    let by_status = status.completeness();
    assert_eq!(by_status.verdict, verdict, "status and its reader");
    vec![
        ("drain", of_v(drained)),
        ("completeness", pool.completeness("v").unwrap()),
        ("check", of_v(pool.check(true).unwrap().volumes)),
        ("status", by_status),
    ]
}

/// The origin was drained, and its volume is not attached.
#[test]
fn an_origin_that_nobody_has_attached_is_looked_at() {
    type Change = fn(&Path);
    let table: [(&str, Change, Verdict); 6] = [
        ("as it was", |_| (), Verdict::Complete),
        ("gone", |at| std::fs::remove_file(at).unwrap(), Verdict::OriginChanged),
        ("shorter", |at| set_len(at, SIZE / 2), Verdict::OriginChanged),
        ("longer", |at| set_len(at, SIZE * 2), Verdict::OriginChanged),
        ("another file", |at| another(at), Verdict::OriginChanged),
        ("marked by another pool", |at| marked(at), Verdict::OriginMarked),
    ];
    for (state, change, verdict) in table {
        for served in [false, true] {
            let dir = Dir::on_disk("tellers");
            let pool = open(&dir.pool(24));
            let disk = dir.file("disk", SIZE);
            add_file(&pool, "v", &disk, 0);
            add_file(&pool, "w", &dir.file("beside", SIZE), 0);
            let volume = pool.attach("v", &AttachOptions::default()).unwrap();
            volume.write_at(&[1; 4096], 0).unwrap();
            drain(&volume);
            volume.detach().unwrap();
            // Another volume is in use.
            let beside = served.then(|| pool.attach("w", &AttachOptions::default()).unwrap());
            change(&disk);
            for (teller, told) in tellers(&pool) {
                let what = format!("{state}, served {served}, {teller}: {told:?}");
                assert_eq!(told.verdict, verdict, "{what}");
                let complete = verdict == Verdict::Complete;
                assert_eq!((told.complete, told.exit_code() == 0), (complete, complete), "{what}");
                assert_eq!(told.to_string().contains("NOT complete"), !complete, "{what}");
            }
            drop(beside);
        }
    }
}

fn set_len(at: &Path, len: u64) {
    std::fs::File::options().write(true).open(at).unwrap().set_len(len).unwrap();
}

fn another(at: &Path) {
    std::fs::rename(at, at.with_extension("moved")).unwrap();
    std::fs::File::create(at).unwrap().set_len(SIZE).unwrap();
}

fn marked(at: &Path) {
    let dir = Dir::on_disk("another");
    let pool = open(&dir.pool(24));
    add_file(&pool, "theirs", at, 0);
    let volume = pool.attach("theirs", &AttachOptions::default()).unwrap();
    volume.write_at(&[2; 4096], 0).unwrap();
    volume.detach().unwrap();
    pool.close().unwrap();
}
