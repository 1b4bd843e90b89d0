// SPDX-License-Identifier: MIT OR Apache-2.0
//! Goal: a flush's result is true of the writes before it, whatever happens to the connections
//! meanwhile.  Method: the state alone; the test plays the links' part at moments that a server
//! meets only by chance.

use super::*;
use crate::attach::WhenAway;

fn shared(limit: Duration) -> Shared {
    let kicks = (0..LINKS).map(|_| Kick::new().unwrap()).collect();
    let away = Away { when: WhenAway::Error, limit };
    let (uri, host) = ("nbd://x".into(), None);
    Shared { uri, host, away, state: Mutex::default(), changed: Condvar::new(), kicks }
}

fn sent(wanted: bool, flush: bool) -> Sent {
    let began = Instant::now();
    Sent { changes: !flush, flush, offset: 0, len: 4096, link: 0, began, wanted }
}

/// A flush of link 0, which has written once; `meanwhile` before its answer.
fn flush_beside(shared: &Shared, meanwhile: impl FnOnce(&mut State)) -> io::Result<()> {
    shared.state().links[0].acknowledged = 1;
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| shared.flush());
        let token = loop {
            if let Some(request) = shared.state().next_of(0) {
                assert!(matches!(request.command, Command::Flush));
                break request.token;
            }
            std::thread::yield_now();
        };
        let mut state = shared.state();
        meanwhile(&mut state);
        state.ended.insert(token, Ok(Vec::new()));
        drop(state);
        shared.changed.notify_all();
        flush.join().unwrap()
    })
}

#[test]
fn a_flush_is_of_what_was_written_before_it() {
    let shared = shared(Duration::from_secs(60));
    flush_beside(&shared, |state| state.links[0].acknowledged = 3).unwrap();
    assert_eq!(shared.state().links[0].flushed, 1);
    shared.state().links[0].flushed = 0;
    // Another connection ended while it was under way, with writes from before it.
    flush_beside(&shared, |state| state.lost = true).unwrap_err();
    shared.state().links[0].flushed = 0;
    flush_beside(&shared, |_| ()).unwrap();
}

#[test]
fn a_flush_is_not_sent_to_another_server() {
    let mut state = State::default();
    for (token, flush) in [(1, true), (2, false)] {
        state.sent.insert(token, sent(true, flush));
        let command = if flush { Command::Flush } else { Command::Trim(4096) };
        let result = Err(Failure::Nbd { text: "gone".into(), errno: 0 });
        state.take_back(Done { token, command, data: Vec::new(), result });
    }
    assert!(state.ended.remove(&1).is_some_and(|result| result.is_err()));
    let again: Vec<u64> = state.queue.iter().map(|request| request.token).collect();
    assert_eq!(again, [2]);
}

#[test]
fn what_was_given_up_on_is_not_overtaken() {
    let shared = shared(Duration::from_millis(20));
    shared.state().sent.insert(7, sent(false, false));
    let late = shared.request(Command::Trim(4096), 0, 4096).unwrap_err();
    assert_eq!((late.kind(), shared.state().next), (io::ErrorKind::TimedOut, 0));
    shared.request(Command::Trim(4096), 4096, 4096).unwrap_err();
    assert_eq!(shared.state().next, 1, "what lies beside it is sent");
}
