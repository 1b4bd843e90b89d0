// SPDX-License-Identifier: MIT OR Apache-2.0
//! Looks at an origin on the network that nobody has open.  Its server may hang, so each look has a
//! thread of its own, and whoever asks waits for a short time only.  There is one look at an origin
//! at a time: who asks meanwhile gets its answer, too.

use std::any::Any;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{nbd, place_of, size_changed, split_identity, Origin, Place, RbdOrigin};
use crate::error::Result;
use crate::mark::mark_on;

/// Nobody waits longer for the answer of an origin that is only looked at: less than the exporter
/// waits for the server.
const PATIENCE: Duration = Duration::from_secs(2);

/// An origin, as the record of its volume has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sought {
    pub place: PathBuf,
    pub id: String,
    pub size_bytes: u64,
}

/// What a look has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// How it differs from what was recorded.
    pub changed: Option<String>,
    /// The content of its mark, if the origin itself has that.
    pub mark: Option<String>,
    /// Why it cannot be looked at.
    pub unseen: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Look {
    sought: Sought,
    began: Instant,
    answer: Mutex<Option<Seen>>,
    answered: Condvar,
}

/// Those that are not answered.
static LOOKS: Mutex<Vec<Arc<Look>>> = Mutex::new(Vec::new());

fn looks() -> MutexGuard<'static, Vec<Arc<Look>>> {
    LOOKS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Look {
    /// Begins a look, or joins one that has begun.
    pub fn begin(sought: Sought) -> Arc<Look> {
        Look::begin_by(sought, ask)
    }

    fn begin_by(
        sought: Sought,
        ask: impl FnOnce(&Sought) -> (Seen, Option<Box<dyn Any>>) + Send + 'static,
    ) -> Arc<Look> {
        let mut looks = looks();
        if let Some(look) = looks.iter().find(|look| look.sought == sought) {
            return look.clone();
        }
        let (answer, answered) = Default::default();
        let look = Arc::new(Look { sought, began: Instant::now(), answer, answered });
        let asking = look.clone();
        let thread = std::thread::Builder::new().name("fby-look".into()).spawn(move || {
            let ended = Ended(asking);
            let (seen, _released) = ask(&ended.0.sought);
            ended.0.tell(seen);
        });
        match thread {
            Ok(_) => looks.push(look.clone()),
            Err(e) => {
                let unseen = Some(format!("no thread asks it: {e}"));
                look.tell(Seen { unseen, ..Seen::default() });
            }
        }
        look
    }

    fn tell(&self, seen: Seen) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
        self.answered.notify_all();
    }

    /// Its answer, if that comes in time.
    pub fn seen(&self) -> Seen {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let left = PATIENCE.saturating_sub(self.began.elapsed());
        let waited = self.answered.wait_timeout_while(answer, left, |answer| answer.is_none());
        let (answer, _) = waited.unwrap_or_else(PoisonError::into_inner);
        answer.clone().unwrap_or_else(|| {
            let place = self.sought.place.display();
            let waited = self.began.elapsed().as_secs();
            let unseen = Some(format!("{place} has not answered for {waited} s; see its server"));
            Seen { unseen, ..Seen::default() }
        })
    }
}

/// A look that is under way, until it has an answer or its thread is lost.
struct Ended(Arc<Look>);

impl Drop for Ended {
    fn drop(&mut self) {
        looks().retain(|look| !Arc::ptr_eq(look, &self.0));
    }
}

/// The origin, and what is to be released when that is told.
fn ask(sought: &Sought) -> (Seen, Option<Box<dyn Any>>) {
    let (seen, origin) = match place_of(&sought.place) {
        Ok(Place::Nbd(uri, said)) => {
            let size = nbd::size_of(uri).map(|size| changed(sought, &nbd::known_by(&said), size));
            (size.map(|changed| (changed, None)), None)
        }
        Ok(Place::Rbd(uri)) => match RbdOrigin::open(uri, true, Default::default()) {
            Ok(origin) => (look_at_image(sought, &origin), Some(Box::new(origin) as Box<dyn Any>)),
            Err(e) => (Err(e), None),
        },
        Ok(Place::Path(_)) => (Ok((None, None)), None),
        Err(e) => (Err(e), None),
    };
    let seen = match seen {
        Ok((changed, mark)) => Seen { changed, mark, unseen: None },
        Err(e) => Seen { unseen: Some(e.to_string()), ..Seen::default() },
    };
    (seen, origin)
}

fn look_at_image(sought: &Sought, origin: &RbdOrigin) -> Result<(Option<String>, Option<String>)> {
    let identity = origin.identity();
    let changed = changed(sought, split_identity(&identity).0, origin.size_bytes());
    Ok((changed, mark_on(&sought.place, &origin.mark())?))
}

fn changed(sought: &Sought, id: &str, size: u64) -> Option<String> {
    let place = sought.place.display();
    match id == sought.id {
        false => {
            Some(format!("is another: {place} is {id}, the volume was made for {}", sought.id))
        }
        true => size_changed(size, sought.size_bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// One that hangs is waited for once; the others that ask are told at once, and the next look
    /// begins when it has ended.
    #[test]
    fn an_origin_that_hangs_is_waited_for_once() {
        let sought = Sought { place: "nbd://hangs".into(), id: "nbd:1".into(), size_bytes: 1 };
        let (end, ended) = channel::<()>();
        let look = Look::begin_by(sought.clone(), move |_| {
            let _ = ended.recv();
            (Seen::default(), None)
        });
        let began = Instant::now();
        let told = look.seen().unseen.unwrap();
        assert!(told.contains("nbd://hangs has not answered for 2 s"), "{told}");
        assert!(began.elapsed() >= PATIENCE);
        let began = Instant::now();
        let second = Look::begin_by(sought.clone(), |_| panic!("there is one at a time"));
        assert!(second.seen().unseen.is_some() && began.elapsed() < PATIENCE);
        end.send(()).unwrap();
        while looks().iter().any(|look| look.sought == sought) {
            std::thread::yield_now();
        }
        let mark = Some("it may lack writes".to_string());
        let found = Seen { mark, ..Seen::default() };
        let answer = found.clone();
        assert_eq!(Look::begin_by(sought, move |_| (answer, None)).seen(), found);
    }
}
