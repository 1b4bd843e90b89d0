// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads of a tracker.  One reads events and handles stores to watched segments.  Others
//! bring in segments that were touched.
//!
//! The thread that reads events never waits for a lock or a file.  A thread that evicts a segment
//! holds its lock and waits until its event has been read.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_engine::lasting;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use super::{Inner, Kind, Source};
use crate::pages::SEGMENT;
use crate::planted::{self, Planted};
use crate::system::{Event, Uffd};
use crate::threads;

/// The number of segments that are brought in at the same time.
const BRING_IN: usize = 2;

pub(super) fn start<S: Source + 'static>(inner: &Arc<Inner<S>>) -> io::Result<Vec<JoinHandle<()>>> {
    let mut started = Vec::new();
    for i in 0..=BRING_IN {
        let inner = Arc::clone(inner);
        let (name, work): (_, fn(&Inner<S>)) = match i {
            0 => ("map-events", Inner::read_events),
            _ => ("map-bring-in", Inner::bring_in_touched),
        };
        started.push(threads::spawn(name, move || work(&inner))?);
    }
    Ok(started)
}

impl<S: Source> Inner<S> {
    fn read_events(&self) {
        let Some(events) = &self.events else { return };
        loop {
            let mut fds =
                vec![PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(events, PollFlags::IN)];
            fds.extend(
                self.noted.as_ref().map(|n| PollFd::from_borrowed_fd(n.as_fd(), PollFlags::IN)),
            );
            // If the descriptors can be closed by others, a thread that waits would not notice.
            // So it wakes up regularly.
            let turn = Timespec { tv_sec: 1, tv_nsec: 0 };
            let _ = poll(&mut fds, lasting::are_kept().then_some(&turn));
            if self.stopping.load(Ordering::SeqCst) {
                return;
            }
            if fds.iter().any(|fd| fd.revents().contains(PollFlags::NVAL)) {
                std::thread::sleep(Duration::from_millis(100));
            }
            for uffd in [Some(events), self.noted.as_ref()].into_iter().flatten() {
                while let Some(event) = self.next_event(uffd) {
                    self.handle(event);
                }
            }
        }
    }

    fn next_event(&self, uffd: &Uffd) -> Option<Event> {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let event = uffd.read().ok().flatten()?;
        if let Event::Remove(range) = &event {
            planted::wait();
            // The record of stores to these pages may disappear with them.
            for address in range.clone().step_by(SEGMENT).chain([range.end - 1]) {
                if let Some(segment) = self.space.segment_of(address) {
                    self.make_blind(segment);
                }
            }
        }
        Some(event)
    }

    fn handle(&self, event: Event) {
        assert!(!planted::is(Planted::EventsPanic), "as planted");
        match event {
            Event::Store(at) => {
                if let Some(segment) = self.space.segment_of(at) {
                    self.handle_store(segment);
                }
            }
            Event::Missing(at) => {
                let Some(segment) = self.space.segment_of(at) else { return };
                let mut touched =
                    self.absent_touched.lock().unwrap_or_else(PoisonError::into_inner);
                touched.push_back(segment);
                drop(touched);
                self.some_touched.notify_one();
            }
            Event::Remove(_) | Event::Other => {}
        }
    }

    /// Handles a store to a watched segment.  The thread that stored is woken when the lock is
    /// released, here or by its present holder, and stores again.  If the segment is still
    /// watched, that causes another event.
    fn handle_store(&self, segment: usize) {
        self.segments[segment].waiting.store(true, Ordering::SeqCst);
        let Some(mut state) = self.try_hold(segment) else { return };
        if state.kind == Kind::Watched && self.stored_to(segment, &mut state).is_err() {
            // The process has too many mappings or no memory.  That may change soon.
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(state);
        if planted::is(Planted::LookAfterStore) {
            planted::wait();
            self.look(segment);
        }
    }

    fn bring_in_touched(&self) {
        loop {
            let mut touched = self.absent_touched.lock().unwrap_or_else(PoisonError::into_inner);
            let segment = loop {
                if self.stopping.load(Ordering::SeqCst) {
                    return;
                }
                match touched.pop_front() {
                    Some(segment) => break segment,
                    None => {
                        let waited = self.some_touched.wait(touched);
                        touched = waited.unwrap_or_else(PoisonError::into_inner);
                    }
                }
            };
            drop(touched);
            let mut state = self.hold(segment);
            if state.kind == Kind::Absent {
                match self.bring_in(segment, &mut state) {
                    Ok(()) => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        drop(state);
                        std::thread::sleep(super::ASK_AGAIN);
                        let touched = &self.absent_touched;
                        touched.lock().unwrap_or_else(PoisonError::into_inner).push_back(segment);
                        continue;
                    }
                    Err(e) => {
                        self.source.cannot_be_touched(segment, &e);
                        // The poison stays until `Tracker::with` has brought the segment in.
                        if let Some(events) = &self.events {
                            let _ = events.poison(&self.space, segment);
                        }
                    }
                }
            }
            drop(state);
            self.wake(segment);
        }
    }
}
