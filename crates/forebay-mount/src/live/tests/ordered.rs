// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a change of names precedes its entry only where the tree's file system keeps changes in
//! their order.  Somebody may mount it otherwise while it is in use.

use forebay::Uuid;

use super::*;
use crate::mark::Mark;
use crate::record::SetAttr;
use crate::replay::model::sim::{SimTree, State};

#[test]
fn names_wait_for_their_entries_after_a_remount() {
    let tree = SimTree::new(State::empty());
    let uid = Some(New::plain(Kind::File, 0).uid);
    tree.set_attr(&tree.root(), &SetAttr { uid, ..SetAttr::default() }).unwrap();
    let options = LiveOptions { interval: NEVER, names_at_sync: true, ..LiveOptions::default() };
    let live = Arc::new(Live::new(tree.clone(), MemoryLog::default(), 0, options).unwrap());
    let (pool, period) = (Uuid([1; 16]), Uuid([2; 16]));
    let (log, at, since) = ("mount".into(), "pool".into(), 0);
    let mark = Mark { pool, log, period, since, at, groups: true, ahead: true };
    live.bear(mark::begin(&tree, 0, || Ok(mark)).unwrap());
    let journal = live.journal();
    journal.late.store(true, Ordering::Relaxed);
    let create = |name: &'static [u8]| {
        let (live, (done, told)) = (live.clone(), mpsc::channel());
        thread::spawn(move || {
            let new = New::plain(Kind::File, 0o644);
            let _ = done.send(live.create(live.root(), name, &new).map(drop));
        });
        told
    };
    let first = create(b"first");
    assert_eq!(first.recv_timeout(Duration::from_secs(20)), Ok(Ok(())), "nothing is durable");
    tree.unordered.store(true, Ordering::Relaxed);
    let of = live.clone();
    let beat = thread::spawn(move || of.beat());
    while journal.waiting.load(Ordering::Relaxed) < 1 {
        thread::yield_now();
    }
    let second = create(b"second");
    assert!(second.recv_timeout(Duration::from_millis(300)).is_err(), "it precedes its entry");
    assert_eq!(tree.lookup(&tree.root(), b"second"), Ok(None));
    assert!(live.names_wait_for_syncs(), "a sync covers the first");
    journal.set_gate(true);
    assert_eq!(second.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
    assert!(beat.join().unwrap());
}
