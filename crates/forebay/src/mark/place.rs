// SPDX-License-Identifier: MIT OR Apache-2.0
//! Marks without the pool: showing an origin's mark, giving up what it stands for, and the
//! marks that the command sets for the kernel module.

use std::io;
use std::path::{Path, PathBuf};

use forebay_engine::sys;
use serde::Serialize;

use super::content::{now, short, utc};
use super::host::host;
use super::keep::{self, Kept};
use super::{judge, Claim, Found, Keep, Mark, MarkedBy, Refusal};
use crate::error::{Error, Result};
use crate::origin::{self, Known};
use crate::report::{SuperblockDump, Uuid};

/// The state of an origin according to its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OriginState {
    /// It bears none.
    Complete,
    MayLackWrites,
    /// It bears something that is no mark: it may lack writes.
    MarkDamaged,
}

/// The state of an origin, with all known details.
#[derive(Clone, Debug, Serialize)]
pub struct OriginStatus {
    #[serde(flatten, serialize_with = "crate::report::path::place::serialize")]
    pub place: PathBuf,
    pub state: OriginState,
    pub complete: bool,
    /// The place of its mark, present or future.
    pub kept_in: String,
    /// The mark is on the origin itself, and not only on this host.
    pub on_the_origin: bool,
    pub since: Option<String>,
    pub mark: Option<Mark>,
    /// Its size now, of a file or image.  A mark does not say what it was.
    pub size_bytes: Option<u64>,
    /// The damage of the mark.
    pub damage: Option<String>,
    /// The process that has a lease of the file, as one has that maps the file onto a pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leased_by: Option<u32>,
}

impl OriginStatus {
    /// One of [`EXIT_CODES`](crate::EXIT_CODES).
    pub fn exit_code(&self) -> u8 {
        match self.state {
            OriginState::Complete => 0,
            OriginState::MayLackWrites => 14,
            OriginState::MarkDamaged => 5,
        }
    }
}

/// A volume, as its record was, that holds nothing any more that its origin lacks.
#[derive(Clone, Copy, Debug)]
pub struct Completed<'a> {
    pub pool: Uuid,
    pub name: &'a str,
    pub uuid: Uuid,
    /// [`sys::fby_volume_info::marks`].
    pub marks: u32,
}

impl Completed<'_> {
    /// Was it this volume, or an older copy of it, that set the mark?
    fn set(&self, mark: &Mark) -> bool {
        let spec = sys::fby_volume_spec { uuid: self.uuid.0, ..Default::default() };
        let record = sys::fby_volume_info { spec, marks: self.marks, ..Default::default() };
        let claim = Claim {
            pool: self.pool,
            volume: self.name.into(),
            record: Some(record),
            host: host(),
            accept: true,
            borne: mark.exact,
        };
        judge(&Found::Marked(Box::new(mark.clone())), &claim, "").is_ok()
    }
}

/// The mark of what is at a place, of an origin that need not be attached.
#[derive(Debug)]
pub struct OriginMarks {
    place: PathBuf,
    state: PathBuf,
    /// Open for as long as its mark is looked at.
    known: Option<Known>,
    kept: Kept,
}

impl OriginMarks {
    /// A path or URI; marks that are files are in `state`, else in [`state_dir`](super::state_dir).
    pub fn at(place: &Path, state: Option<&Path>) -> Result<OriginMarks> {
        let state = state.map_or_else(super::state_dir, PathBuf::from);
        let known = origin::known_by(place)?;
        let marks = OriginMarks::of(place, state, &known.marked_by())?;
        Ok(OriginMarks { known: Some(known), ..marks })
    }

    fn of(place: &Path, state: PathBuf, by: &MarkedBy<'_>) -> Result<OriginMarks> {
        let kept = Kept::look(by, &state).map_err(|e| failed(place, "looked for", e))?;
        Ok(OriginMarks { place: place.into(), state, known: None, kept })
    }

    fn fails(&self, what: &'static str) -> impl Fn(io::Error) -> Error + '_ {
        move |e| failed(&self.place, what, e)
    }

    pub(crate) fn find(&self) -> Result<Found> {
        self.kept.find().map_err(self.fails("looked for"))
    }

    fn leased_by(&self) -> Option<u32> {
        match &self.known {
            Some(Known::File(_, fd)) => crate::media::lease_holder(fd),
            _ => None,
        }
    }

    /// Reads the mark's content, without the pool.
    pub fn status(&self) -> Result<OriginStatus> {
        let (state, mark, damage) = match self.find()? {
            Found::Nothing => (OriginState::Complete, None, None),
            Found::Marked(mark) => (OriginState::MayLackWrites, Some(*mark), None),
            Found::Damaged(why) => (OriginState::MarkDamaged, None, Some(why)),
        };
        Ok(OriginStatus {
            place: self.place.clone(),
            state,
            complete: state == OriginState::Complete,
            kept_in: self.kept.place(),
            on_the_origin: self.kept.is_on_the_origin(),
            since: mark.as_ref().map(|mark| utc(mark.since)),
            mark,
            size_bytes: self.known.as_ref().and_then(Known::size_bytes),
            damage,
            leased_by: self.leased_by(),
        })
    }

    /// As [`status`](Self::status), and an export without a mark is asked for its size: one that does
    /// not answer is not called complete.
    pub fn asked_status(&self) -> Result<OriginStatus> {
        let status = self.status()?;
        let size = match status.complete {
            true => origin::size_of_export(&self.place)?,
            false => None,
        };
        Ok(OriginStatus { size_bytes: size.or(status.size_bytes), ..status })
    }

    /// Removes the mark, by order: the data that it stands for is given up.  Durable when the
    /// call returns the old content.  Refused while the origin is in use.
    pub fn accept_loss(&self) -> Result<OriginStatus> {
        let before = self.status()?;
        if before.complete {
            return Ok(before);
        }
        if before.leased_by.is_some() {
            let way_out = "it is mapped onto a pool, and complete when that process has ended";
            let (path, way_out) = (self.place.clone(), way_out.into());
            return Err(Error::Busy { path, holder: before.leased_by, way_out });
        }
        self.claimed(OriginMarks::take_away)?;
        Ok(before)
    }

    fn lock(&self) -> Result<keep::Claim> {
        self.kept.lock().map_err(|e| in_use(&self.place, e))
    }

    /// While nobody else has the origin, or is about to.
    fn claimed(&self, work: impl FnOnce(&OriginMarks) -> Result<()>) -> Result<()> {
        let by_marks = origin::is_kept_apart_by_marks(&self.place);
        let _claim = match by_marks || !self.kept.is_on_the_origin() {
            true => Some(self.lock()?),
            false => None,
        };
        if by_marks {
            return work(self);
        }
        let origin = origin::open(&self.place, false, Default::default())?;
        match origin.marked_by() {
            None => work(self),
            Some(by) => work(&OriginMarks::of(&self.place, self.state.clone(), &by)?),
        }
    }

    fn take_away(&self) -> Result<()> {
        let gone = self.kept.take_away().and_then(|()| self.kept.sync());
        gone.map_err(self.fails("taken away"))?;
        match self.find()? {
            Found::Nothing => Ok(()),
            // The mark of a part of the disk, or of the whole disk.
            Found::Marked(mark) => Err(self.fails("taken away")(io::Error::other(format!(
                "{} has its own mark, and is a part of it, or contains it: {mark}",
                mark.origin
            )))),
            Found::Damaged(why) => Err(self.fails("taken away")(io::Error::other(why))),
        }
    }

    /// The origin has all that this volume held: takes its mark away, if it is the volume's,
    /// and of no later state of the pool than this one.  Refused while the origin is in use.
    pub fn complete(&self, volume: &Completed<'_>) -> Result<()> {
        let is_its =
            || Ok::<_, Error>(matches!(self.find()?, Found::Marked(mark) if volume.set(&mark)));
        match is_its()? {
            // The previous owner may have marked it.
            true => self.claimed(|marks| if is_its()? { marks.take_away() } else { Ok(()) }),
            false => Ok(()),
        }
    }

    /// Refused if it is marked at all: no pool but the one that marked it may have it, nor
    /// that one, `pool`, for another volume than it was.
    pub(crate) fn refuse_marked(&self, pool: Uuid, volume: &str) -> Result<()> {
        let claim = Claim {
            pool: Uuid([0; 16]),
            volume: volume.into(),
            record: None,
            host: host(),
            accept: false,
            borne: false,
        };
        match self.find()? {
            Found::Marked(mark) if mark.pool == pool => Err(self.refused(
                volume,
                Refusal {
                    way_out: format!(
                        "that volume was removed from this pool: forebay origin accept-loss {} gives up what it held",
                        self.place.display()
                    ),
                    cause: mark.to_string(),
                },
            )),
            Found::Marked(mark) => Err(self.refused(
                volume,
                Refusal {
                    cause: mark.to_string(),
                    way_out: format!(
                        "write back what that pool holds ({} {}); if the pool is gone: forebay origin accept-loss {} gives that up",
                        mark.way_home(),
                        mark.at,
                        self.place.display()
                    ),
                },
            )),
            found => judge(&found, &claim, &self.place.display().to_string())
                .map_err(|refusal| self.refused(volume, refusal)),
        }
    }

    fn refused(&self, volume: &str, Refusal { cause, way_out }: Refusal) -> Error {
        let origin = self.place.display().to_string();
        Error::WrongOrigin { name: volume.into(), origin, cause, way_out }
    }

    /// Before the module attaches it to a volume: judges the mark as far as that can be
    /// told without the volume's record, which the module does, and sets one if there is
    /// none.
    pub fn attaching(
        self,
        pool: &SuperblockDump,
        at: &Path,
        volume: &str,
        accept: bool,
    ) -> Result<Attaching> {
        // Locked until it is known whether this attach succeeded: if two attach one origin, the
        // one that fails would remove the other's mark.
        let lock = self.lock()?;
        let found = self.find()?;
        let least = match &found {
            Found::Marked(mark) => Some(mark.least),
            // The module does not look for what may be missing.
            _ if accept => Some(0),
            _ => None,
        };
        let claim = Claim {
            pool: pool.uuid,
            volume: volume.into(),
            record: None,
            host: host(),
            accept,
            borne: false,
        };
        judge(&found, &claim, &self.place.display().to_string())
            .map_err(|refusal| self.refused(volume, refusal))?;
        let (since, volume_uuid) = match &found {
            Found::Marked(mark) => (mark.since, mark.volume_uuid),
            _ => (now(), None),
        };
        let mark = Mark {
            pool: pool.uuid,
            volume: volume.into(),
            volume_uuid,
            generation: pool.generation,
            least: least.unwrap_or(0),
            since,
            at_most_bytes: pool.media_size_bytes,
            host: claim.host,
            at: short(&at.display().to_string()),
            origin: self.kept.name(),
            exact: false,
            map: false,
        };
        let is_new = !matches!(found, Found::Marked(_));
        let attaching = Attaching { marks: self, mark, is_new, least, _lock: lock };
        if is_new {
            attaching.put()?;
        }
        Ok(attaching)
    }
}

fn in_use(place: &Path, e: io::Error) -> Error {
    match e.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::BUSY) => Error::Busy {
            path: place.into(),
            holder: None,
            way_out: "it is attached on this host, or about to be: stop that first".into(),
        },
        _ => failed(place, "locked", e),
    }
}

/// All marks that this host keeps in files.
pub(crate) fn marks_on_host() -> Result<Vec<Mark>> {
    let mut marks = Vec::new();
    for dir in keep::dirs(&super::state_dir()) {
        marks.extend(keep::marks_in(&dir).map_err(|e| failed(&dir, "looked for", e))?);
    }
    Ok(marks)
}

fn failed(place: &Path, what: &'static str, source: io::Error) -> Error {
    Error::Mark { origin: place.display().to_string(), what, source }
}

/// An origin that the module is about to attach, or has.
#[derive(Debug)]
pub struct Attaching {
    marks: OriginMarks,
    mark: Mark,
    is_new: bool,
    least: Option<u32>,
    _lock: keep::Claim,
}

impl Attaching {
    fn put(&self) -> Result<()> {
        let put = self.marks.kept.put(&self.mark).and_then(|()| self.marks.kept.sync());
        put.map_err(self.marks.fails("set"))
    }

    /// Options for the module: the mark's content, or that it was set just now.
    pub fn expected(&self) -> String {
        let Some(least) = self.least else { return "mark new".into() };
        let uuid = self.mark.volume_uuid.map(|uuid| format!(" mark_volume {uuid}"));
        format!("mark {least}{}", uuid.unwrap_or_default())
    }

    /// It was not attached.
    pub fn failed(self) -> Result<()> {
        let is_own =
            || Ok::<_, Error>(self.marks.find()? == Found::Marked(Box::new(self.mark.clone())));
        match self.is_new && is_own()? {
            true => self.marks.take_away(),
            false => Ok(()),
        }
    }

    /// It was; the record of the volume of this UUID has this number of marks now.  A copy of
    /// the pool from before is an older one from now on.
    pub fn attached(mut self, volume: Uuid, marks: u32) -> Result<()> {
        self.mark.volume_uuid = Some(volume);
        self.mark.least = marks & !1;
        self.put()
    }
}

/// The mark of the origin at a place, if this host can look for one without the network: that of an
/// NBD export is a file of the host.  What is not there has none.
pub(crate) fn mark_at(place: &Path, state: Option<&Path>) -> Result<Option<String>> {
    if origin::is_known_by_network(place) {
        return Ok(None);
    }
    told(OriginMarks::at(place, state).and_then(|marks| marks.find()))
}

/// The mark of the origin with this id that this host has, wherever the origin is.
pub(crate) fn mark_of(id: &str, state: Option<&Path>) -> Result<Option<String>> {
    let state = state.map_or_else(super::state_dir, PathBuf::from);
    let by = MarkedBy { name: id.into(), on: super::MarkedOn::Host };
    told(OriginMarks::of(Path::new(id), state, &by).and_then(|marks| marks.find()))
}

/// The mark of an open origin that has it itself.
pub(crate) fn mark_on(place: &Path, by: &MarkedBy<'_>) -> Result<Option<String>> {
    told(OriginMarks::of(place, super::state_dir(), by).and_then(|marks| marks.find()))
}

fn told(found: Result<Found>) -> Result<Option<String>> {
    match found {
        Ok(Found::Nothing) | Err(Error::NotFound { .. }) => Ok(None),
        Ok(Found::Marked(mark)) => Ok(Some(mark.to_string())),
        Ok(Found::Damaged(why)) => Ok(Some(format!("one that cannot be read ({why})"))),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex};

    use super::super::tests::turn;
    use super::*;
    use crate::media::{inspect, CreateOptions};
    use crate::overwrite::create;

    /// The module takes one of them; the other one leaves the mark as it is.
    #[test]
    fn of_two_that_attach_one_origin_at_once_one_is_marked() {
        let _turn = turn();
        let dir = std::env::temp_dir().join(format!("fby-attaching-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (origin, pool, state) = (dir.join("origin"), dir.join("pool"), dir.join("state"));
        std::fs::File::create(&origin).unwrap().set_len(1 << 20).unwrap();
        create(&pool, &CreateOptions { size_bytes: Some(16 << 20), ..Default::default() }).unwrap();
        let superblock = inspect(&pool).unwrap().superblock.unwrap();
        let at = || OriginMarks::at(&origin, Some(&state)).unwrap();
        let (mut busy, uuid) = (0, Uuid([7; 16]));
        for round in 0..200 {
            let (start, taken) = (Barrier::new(2), Mutex::new(false));
            let attach = || {
                start.wait();
                let attaching = match at().attaching(&superblock, &pool, "v", false) {
                    Ok(attaching) => attaching,
                    Err(e) => {
                        assert_eq!(e.exit_code(), 4, "{e}");
                        return 1;
                    }
                };
                match std::mem::replace(&mut *taken.lock().unwrap(), true) {
                    false => attaching.attached(uuid, 5).unwrap(),
                    true => attaching.failed().unwrap(),
                }
                0
            };
            busy += std::thread::scope(|s| {
                let both = [s.spawn(attach), s.spawn(attach)];
                both.map(|t| t.join().unwrap()).iter().sum::<u32>()
            });
            assert!(*taken.lock().unwrap(), "round {round}: nobody attached it");
            match at().find().unwrap() {
                Found::Marked(mark) => assert_eq!((mark.volume_uuid, mark.least), (Some(uuid), 4)),
                other => panic!("round {round}: attached, and {other:?}"),
            }
            at().take_away().unwrap();
        }
        println!("{busy} of 200 were refused");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
