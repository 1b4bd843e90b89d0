// SPDX-License-Identifier: MIT OR Apache-2.0
//! Carries out a plan.

mod attributes;
mod narrow;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay::procfs;
use rustix::io::Errno;

use super::found::Found;
use super::history::{Change, File, Place};
use super::later;
use super::plan::{Plan, Step};
use super::planted::{planted, Bug};
use super::staging::{name_of, note_rights, First, Kept, Rights};
use super::{failed, shown, Action, ReplayError, ReplayOptions, Result};
use crate::mark;
use crate::record::{Allocate, Fid, Kind, SetAttr};
use crate::tree::{New, RenameHow, Tree};

/// The state of a run: steps need the inodes that earlier ones made.
struct Run<'p, 'a, T: Tree> {
    tree: &'p T,
    plan: &'p Plan<'a, T::Node>,
    entries: &'p [Vec<u8>],
    nodes: HashMap<Fid, T::Node>,
    staging: T::Node,
    /// The rights of inodes that were made writable for a process that is not root, or that users
    /// lost rights of.
    rights: BTreeMap<Fid, Rights>,
    /// Content was written that no sync covers.
    unsynced: bool,
    /// Directories that were made private, and are in the staging directory still.
    private: Vec<(Fid, Rights)>,
    /// Attributes of files before their content was written, where they count in the end.
    kept: BTreeMap<Fid, Kept>,
    options: &'p ReplayOptions,
    found: Found<'p, T::Node>,
    /// Files whose content could not be written, so that their times and rights would be wrong.
    unwritten: BTreeSet<Fid>,
    /// Files with leases of others, and the time until which they are tried again.
    leased: BTreeSet<Fid>,
    deadline: Option<Instant>,
    /// Differences from the log that remain, in words.
    disputes: Vec<String>,
    /// Disputes that the report does not have yet; and failed steps whose rest is done once it
    /// has.
    untold: Vec<String>,
    failed: Vec<Step<'a>>,
    done: &'p mut Done,
}

/// The number of steps that one sync of the report covers.
const BATCH: usize = 1024;

/// The reports of a finished replay.
pub struct Told {
    /// Lines of an earlier replay, which was interrupted or failed.
    pub earlier: Vec<String>,
    pub disputes: Vec<String>,
    pub found: Vec<String>,
}

/// How long the kernel lets the holder of a lease keep it, with a margin.
fn lease_time() -> Duration {
    let told = procfs::text("/proc/sys/fs/lease-break-time").ok();
    let seconds: u64 = told.and_then(|text| text.trim().parse().ok()).unwrap_or(45);
    Duration::from_secs(seconds.saturating_add(2).min(60))
}

/// The changes that a replay has made to the tree.
#[derive(Default)]
pub struct Done {
    pub actions: Vec<Action>,
    /// A replay that leaves an operation out repeats some of these.
    known: HashSet<(&'static str, String)>,
    /// The bytes of files whose content was written.
    pub written: BTreeMap<Fid, u64>,
}

impl Done {
    fn add<N: Clone + Send + Sync>(&mut self, plan: &Plan<'_, N>, step: &Step<'_>) {
        let action = plan.action(step);
        if self.known.insert((action.action, action.path.clone())) {
            self.actions.push(action);
        }
        if let Step::Content(fid) = *step {
            self.written.insert(fid, plan.written(fid));
        }
    }
}

/// The step that failed, if it was one.
pub struct Failed<'a> {
    pub step: Option<Step<'a>>,
    pub error: ReplayError,
}

impl From<ReplayError> for Failed<'_> {
    fn from(error: ReplayError) -> Self {
        Failed { step: None, error }
    }
}

pub fn run<'a, T: Tree>(
    tree: &T,
    mut plan: Plan<'a, T::Node>,
    entries: &[Vec<u8>],
    options: &ReplayOptions,
    progress: &mut dyn FnMut(u64, u64),
    done: &mut Done,
) -> std::result::Result<Told, Failed<'a>> {
    let total = plan.steps.len() as u64 + 2;
    progress(0, total);
    let files = &plan.history.files;
    let gone = files.iter().filter(|(fid, f)| f.handle.is_some() && !plan.nodes.contains_key(fid));
    let gone: Vec<Fid> = gone.map(|(fid, _)| *fid).collect();
    let kept = attributes::kept(tree, &plan)?;
    let (changed, touched) = (&plan.changed_fids, &plan.touched);
    let first = First { gone, changed, touched, kept: &kept };
    let staging = plan.staging.begin(tree, &first, entries)?;
    progress(1, total);
    let mut run = Run {
        tree,
        entries,
        nodes: plan.nodes.clone(),
        rights: plan.staging.rights.clone(),
        unsynced: false,
        private: Vec::new(),
        kept,
        plan: &plan,
        staging,
        options,
        found: Found::new(&options.found, Some(entries)),
        unwritten: BTreeSet::new(),
        leased: BTreeSet::new(),
        deadline: None,
        disputes: Vec::new(),
        untold: Vec::new(),
        failed: Vec::new(),
        done,
    };
    run.found.resume(tree, plan.staging.report.as_deref())?;
    run.found.tell(tree, &[&options.accepted[..], &plan.report().of_names()].concat())?;
    run.narrow()?;
    let mut steps_done = 1;
    for batch in plan.steps.chunks(BATCH) {
        // The failure of another step is reported when it happens.
        let planned =
            |step: &&Step<'_>| matches!(step, Step::Aside(_) | Step::Find(_) | Step::Salvage(_));
        run.reserve(batch.iter().filter(planned))?;
        for step in batch {
            run.step_or_dispute(step).map_err(|error| Failed { step: Some(*step), error })?;
            steps_done += 1;
            progress(steps_done, total);
        }
        run.settle()?;
    }
    run.wait_for_leases()?;
    run.lock_again()?;
    run.settle()?;
    run.found.withdraw(tree)?;
    let found = run.found;
    let told = Told { earlier: found.earlier, disputes: run.disputes, found: found.told };
    if !planted(Bug::CheckpointTooEarly) {
        failed(tree.sync_all(), "sync", || ".".into())?;
    }
    progress(total, total);
    Ok(told)
}

impl<'a, T: Tree> Run<'_, 'a, T> {
    fn node(&self, fid: Fid) -> &T::Node {
        // A step is planned only for what is there, or made by an earlier one.
        &self.nodes[&fid]
    }

    fn file(&self, fid: Fid) -> &File<'a> {
        &self.plan.history.files[&fid]
    }

    fn at(&self, fid: Fid) -> impl FnOnce() -> String + '_ {
        move || self.plan.history.path(fid)
    }

    /// Who owns a file or a directory may change it, whatever its mode says of him.
    fn step_as_owner(&mut self, step: &Step<'a>) -> Result<()> {
        match self.step(step) {
            Err(error @ ReplayError::Tree { cause: Errno::ACCESS, .. }) => {
                match self.unlock(step)? {
                    true => self.step(step),
                    false => Err(error),
                }
            }
            done => done,
        }
    }

    /// `true`: something that the step changes is writable now, and was not.
    fn unlock(&mut self, step: &Step<'a>) -> Result<bool> {
        let (moved, dir) = match *step {
            Step::Content(fid) | Step::Attributes(fid) => (Some(fid), None),
            // A directory that goes elsewhere has another `..`.
            Step::Stage(fid, (dir, _)) | Step::Put(fid, (dir, _)) => (Some(fid), Some(dir)),
            Step::Link(_, (dir, _))
            | Step::Unlink((dir, _))
            | Step::RemoveDirectory((dir, _))
            | Step::Aside((dir, _)) => (None, Some(dir)),
            Step::Make(_) | Step::Find(_) | Step::Salvage(_) | Step::Discard(..) => {
                return Ok(false)
            }
        };
        let mut any = false;
        for fid in moved.into_iter().chain(dir) {
            let Some(node) = self.nodes.get(&fid) else { continue };
            let attr = failed(self.tree.attr(node), "look at", self.at(fid))?;
            let mode = match attr.kind {
                Kind::Directory => attr.mode | 0o700,
                Kind::File => attr.mode | 0o600,
                _ => attr.mode,
            };
            if mode == attr.mode {
                continue;
            }
            if !self.rights.contains_key(&fid) {
                let before = Rights::of(self.tree, node, &attr);
                note_rights(self.tree, self.entries, &[(fid, before.clone())])?;
                self.rights.insert(fid, before);
            }
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            // Another user's inode stays as it is: the failure of the step reports it.
            any |= self.tree.set_attr(node, &set).is_ok();
        }
        Ok(any)
    }

    /// The failed step has notified the holder of the lease, who releases it; otherwise the
    /// kernel revokes it.  Other steps are done meanwhile.
    fn may_wait(&mut self, step: &Step<'a>) -> bool {
        let now = Instant::now();
        let deadline = *self.deadline.get_or_insert_with(|| now + lease_time());
        match step {
            Step::Content(fid) if now < deadline && !planted(Bug::LeaseNotAwaited) => {
                self.leased.insert(*fid);
                true
            }
            _ => false,
        }
    }

    /// Waits for leases.  All share one deadline, after which each file is left as it is.
    fn wait_for_leases(&mut self) -> std::result::Result<(), Failed<'a>> {
        while !self.leased.is_empty() {
            std::thread::sleep(Duration::from_millis(50));
            for fid in std::mem::take(&mut self.leased) {
                for step in [Step::Content(fid), Step::Attributes(fid)] {
                    let done = self.step_or_dispute(&step);
                    done.map_err(|error| Failed { step: Some(step), error })?;
                }
            }
            self.settle()?;
        }
        Ok(())
    }

    /// Runs a step.  If a change outside the mount has made the step impossible, whatever space
    /// and rights there are, only this step is lost.
    fn step_or_dispute(&mut self, step: &Step<'a>) -> Result<()> {
        if matches!(step, Step::Attributes(fid) if self.leased.contains(fid)) {
            return Ok(());
        }
        let (path, what, cause) = match self.step_as_owner(step) {
            Err(ReplayError::Tree { cause: Errno::AGAIN, .. }) if self.may_wait(step) => {
                return Ok(())
            }
            Err(ReplayError::Tree { path, what, cause, .. }) => (path, what, cause),
            Ok(()) => {
                self.done.add(self.plan, step);
                return Ok(());
            }
            failed => return failed,
        };
        let shape = [
            Errno::EXIST,
            Errno::NOENT,
            Errno::NOTEMPTY,
            Errno::INVAL,
            Errno::NOTDIR,
            Errno::ISDIR,
            Errno::LOOP,
            Errno::BUSY,
            // Another project, for which its owner has a quota.
            Errno::XDEV,
        ];
        let of_name = matches!(
            step,
            Step::Aside(_)
                | Step::Stage(..)
                | Step::Unlink(_)
                | Step::RemoveDirectory(_)
                | Step::Put(..)
                | Step::Link(..)
        );
        let costs_the_step = match step {
            _ if of_name => shape.contains(&cause) || self.is_sealed(step, cause)?,
            // The owner of a file can run it, or hold a lease of it, outside the mount.
            Step::Content(_) if !planted(Bug::BusyStopsAll) => {
                matches!(cause, Errno::TXTBSY | Errno::AGAIN) || self.is_sealed(step, cause)?
            }
            Step::Attributes(_) => self.is_sealed(step, cause)?,
            _ => false,
        };
        if !costs_the_step {
            // The ways out include the operator's word only where that is asked for.
            let asked = of_name || matches!(step, Step::Content(_) | Step::Attributes(_));
            let seal = asked && cause == Errno::PERM && !self.options.accept.sealed;
            return Err(ReplayError::Tree { path, what, cause, seal });
        }
        let stays = match step {
            Step::Content(_) => "its content stays as it is",
            _ => "it stays as it is",
        };
        self.untold.push(format!("{path}: cannot {what}: {cause}; {stays}"));
        if let Step::Content(fid) = *step {
            self.unwritten.insert(fid);
            let was = self.was(fid)?;
            let lost = later::rights_lost(self.file(fid), &was, &self.plan.history.path(fid));
            self.untold.extend(lost);
        }
        if matches!(step, Step::Content(_) | Step::Put(..)) {
            self.failed.push(*step);
        }
        Ok(())
    }

    /// A seal of an inode that the step changes is why the step fails.  The error alone does not
    /// prove that: EPERM is also a right that is lacking (CAP_FOWNER in a sticky directory, a
    /// server that maps root to nobody).  A seal that does not show is the operator's word
    /// ([`Accept::sealed`](super::Accept)).
    fn is_sealed(&self, step: &Step<'a>, cause: Errno) -> Result<bool> {
        if cause != Errno::PERM {
            return Ok(false);
        }
        if planted(Bug::AnyRefusalIsASeal) || self.options.accept.sealed {
            return Ok(true);
        }
        let (inode, place) = match *step {
            Step::Content(fid) | Step::Attributes(fid) => (Some(self.node(fid).clone()), None),
            Step::Stage(fid, place) | Step::Put(fid, place) | Step::Link(fid, place) => {
                (Some(self.node(fid).clone()), Some(place))
            }
            Step::Aside(place) | Step::Unlink(place) | Step::RemoveDirectory(place) => {
                let (dir, name) = (self.node(place.0), place.1);
                let found = self.tree.lookup(dir, name);
                let found = failed(found, "look up", || self.plan.history.place(place))?;
                (found, Some(place))
            }
            Step::Make(_) | Step::Find(_) | Step::Salvage(_) | Step::Discard(..) => {
                return Ok(false)
            }
        };
        let seals = |node: &T::Node| {
            let path = || self.plan.action(step).path;
            failed(self.tree.seals(node), "look at", path)
        };
        if let Some(node) = inode {
            let seals = seals(&node)?;
            let of_content = seals.verity && matches!(step, Step::Content(_));
            if seals.immutable || seals.append_only || of_content {
                return Ok(true);
            }
        }
        let Some((dir, _)) = place else { return Ok(false) };
        let seals = seals(self.node(dir))?;
        // An append-only directory takes new names.
        let adds = matches!(step, Step::Put(..) | Step::Link(..));
        Ok(seals.immutable || seals.append_only && !adds)
    }

    /// Promises the places of the inodes that these steps move in the report.
    fn reserve<'s>(&mut self, steps: impl IntoIterator<Item = &'s Step<'a>>) -> Result<()>
    where
        'a: 's,
    {
        let path = |step: &Step<'a>| match *step {
            Step::Aside(place) => Some(self.plan.history.place(place)),
            Step::Find(fid) | Step::Put(fid, _) => Some(self.plan.history.path(fid)),
            Step::Salvage(fid) | Step::Content(fid) if !self.is_salvaged(fid) => {
                Some(self.plan.history.path(fid))
            }
            _ => None,
        };
        let paths: Vec<_> = steps.into_iter().filter_map(path).collect();
        self.found.reserve(self.tree, &paths)
    }

    /// Adds all disputes to the report, and moves the inodes of failed steps to the directory
    /// of found files.
    fn settle(&mut self) -> std::result::Result<(), Failed<'a>> {
        let untold = std::mem::take(&mut self.untold);
        self.found.tell(self.tree, &untold)?;
        self.disputes.extend(untold);
        let mut steps = std::mem::take(&mut self.failed);
        let mut unmoved = BTreeSet::new();
        for step in &steps {
            if let Step::Put(fid, _) = *step {
                // An inode that was not moved away is where it was.
                if !self.is_staged(fid)? {
                    unmoved.insert(fid);
                }
            }
        }
        steps.retain(|step| !matches!(step, Step::Put(fid, _) if unmoved.contains(fid)));
        self.reserve(&steps)?;
        for step in steps {
            let (instead, placed) = match step {
                Step::Put(fid, _) => (Step::Find(fid), self.find(fid)),
                Step::Content(fid) => (Step::Salvage(fid), self.salvage(fid)),
                _ => continue,
            };
            placed.map_err(|error| Failed { step: Some(step), error })?;
            self.done.add(self.plan, &instead);
        }
        Ok(())
    }

    fn is_staged(&self, fid: Fid) -> Result<bool> {
        let name = name_of(self.plan.staged[&fid]);
        let found = self.tree.attr_of(&self.staging, &name);
        Ok(failed(found, "look for", self.at(fid))?.is_some())
    }

    /// Whether its content was written outside the tree.
    fn is_salvaged(&self, fid: Fid) -> bool {
        self.options.salvage.is_some() && self.plan.missing.contains(&fid)
    }

    /// Moves an inode from the staging directory to the directory of found files.
    fn find(&mut self, fid: Fid) -> Result<()> {
        let from = name_of(self.plan.staged[&fid]);
        let path = self.plan.history.path(fid);
        self.found.take(self.tree, (&self.staging, &from), &path)
    }

    /// Copies the log's content; the tree's file, if there is one, stays as it is.
    fn salvage(&mut self, fid: Fid) -> Result<()> {
        if self.is_salvaged(fid) {
            return Ok(());
        }
        let path = self.plan.history.path(fid);
        let node = self.found.make(self.tree, &path)?;
        let was = self.nodes.insert(fid, node);
        let done = self.content(fid);
        match was {
            Some(node) => drop(self.nodes.insert(fid, node)),
            None => drop(self.nodes.remove(&fid)),
        }
        done
    }

    fn step(&mut self, step: &Step<'a>) -> Result<()> {
        match *step {
            Step::Find(fid) => self.find(fid),
            Step::Salvage(fid) => self.salvage(fid),
            Step::Make(fid) => self.make(fid),
            Step::Content(fid) => {
                self.unsynced = true;
                match self.plan.ahead {
                    true => self.content_alone(fid),
                    false => self.content(fid),
                }
            }
            Step::Attributes(fid) => {
                // A file system may keep the new rights and lose the new content, and the old one is
                // not for them.
                if std::mem::take(&mut self.unsynced) && !planted(Bug::ContentNotSynced) {
                    failed(self.tree.sync_all(), "sync", || ".".into())?;
                }
                self.attributes(fid)
            }
            Step::Aside(place) => self.aside(place),
            Step::Stage(fid, (dir, name)) => {
                let (from, to) = (self.node(dir), name_of(fid));
                let moved =
                    self.tree.rename((from, name), (&self.staging, &to), RenameHow::NoReplace);
                failed(moved, "move away", || self.plan.history.place((dir, name)))
            }
            Step::Unlink(place) => self.unlink(place, false),
            Step::RemoveDirectory(place) => self.unlink(place, true),
            Step::Put(fid, (dir, name)) => {
                self.note_private()?;
                let from = name_of(self.plan.staged[&fid]);
                let to = (self.node(dir), name);
                let mut moved = self.tree.rename((&self.staging, &from), to, RenameHow::NoReplace);
                // It was made in the staging directory, and so has not the project of this one.
                let made = self.file(fid).made.is_some() && !planted(Bug::ProjectForgotten);
                if moved == Err(Errno::XDEV) && made {
                    let joined = self.tree.join_project(self.node(fid), to.0);
                    moved = joined.map_err(|_| Errno::XDEV).and_then(|()| {
                        self.tree.rename((&self.staging, &from), to, RenameHow::NoReplace)
                    });
                }
                failed(moved, "put in place", || self.plan.history.place((dir, name)))
            }
            Step::Link(fid, place) => self.link(fid, place),
            Step::Discard(name, directory) => {
                match self.tree.unlink(&self.staging, &name_of(name), directory) {
                    // An earlier step has put it in place.
                    Err(Errno::NOENT) => Ok(()),
                    done => failed(done, "discard", self.at(name)),
                }
            }
        }
    }

    fn make(&mut self, fid: Fid) -> Result<()> {
        let (file, kind) = (self.file(fid), self.file(fid).kind);
        let (Some(logged), Some(made)) = (file.made, file.made_first()) else { return Ok(()) };
        let new = New {
            kind,
            mode: made.mode,
            uid: made.uid,
            gid: made.gid,
            device: made.device,
            target: made.target,
            inherit_acl: false,
            no_acl_above: false,
        };
        let node = self.tree.create(&self.staging, &name_of(fid), &new);
        let node = failed(node, "make", self.at(fid))?;
        if (made.mode, made.uid) != (logged.mode, logged.uid) {
            let attr = failed(self.tree.attr(&node), "look at", self.at(fid))?;
            let handle = Some(failed(self.tree.handle(&node), "look at", self.at(fid))?);
            self.private.push((fid, Rights { handle, ..Rights::of(self.tree, &node, &attr) }));
        }
        self.nodes.insert(fid, node);
        Ok(())
    }

    /// In its place nothing but this says which it is, until it has its attributes.
    fn note_private(&mut self) -> Result<()> {
        let new = std::mem::take(&mut self.private);
        if new.is_empty() || planted(Bug::PrivateForgotten) {
            return Ok(());
        }
        note_rights(self.tree, self.entries, &new)?;
        self.rights.extend(new);
        Ok(())
    }

    fn content(&self, fid: Fid) -> Result<()> {
        self.file(fid).content.iter().try_for_each(|change| self.change(fid, change))
    }

    fn change(&self, fid: Fid, change: &Change<'_>) -> Result<()> {
        let node = self.node(fid);
        match *change {
            Change::Truncate { size } => {
                failed(self.tree.truncate(node, size), "truncate", self.at(fid))
            }
            Change::Allocate { mode, offset, length } => {
                failed(self.allocate(node, mode, offset, length), "allocate", self.at(fid))
            }
            Change::Write { offset, bytes, size } => {
                failed(self.tree.write(node, offset, bytes), "write", self.at(fid))?;
                let now = failed(self.tree.attr(node), "look at", self.at(fid))?.size;
                match now < size {
                    true => failed(self.tree.truncate(node, size), "truncate", self.at(fid)),
                    false => Ok(()),
                }
            }
        }
    }

    fn allocate(
        &self,
        node: &T::Node,
        mode: Allocate,
        offset: u64,
        length: u64,
    ) -> crate::tree::Result<()> {
        match (self.tree.allocate(node, mode, offset, length), mode) {
            // Blocks are an optimization; sizes and zeroes are content.
            (Err(Errno::NOSPC | Errno::OPNOTSUPP), Allocate::KeepSize) => Ok(()),
            (done, _) => done,
        }
    }

    fn unlink(&self, place: Place<'_>, directory: bool) -> Result<()> {
        let (dir, name) = (self.node(place.0), place.1);
        let unlink = || self.tree.unlink(dir, name, directory);
        let done = match self.tree.lookup(dir, name) {
            Ok(Some(node)) if directory => mark::emptied(self.tree, &node, unlink),
            _ => unlink(),
        };
        failed(done, "remove", || self.plan.history.place(place))
    }

    fn link(&mut self, fid: Fid, place: Place<'_>) -> Result<()> {
        let (node, dir) = (self.node(fid), self.node(place.0));
        if planted(Bug::LinkIsACopy) && self.file(fid).kind == Kind::File {
            let copy = || {
                let attr = self.tree.attr(node)?;
                let mut bytes = vec![0; attr.size as usize];
                self.tree.read(node, 0, &mut bytes)?;
                let new = New {
                    kind: Kind::File,
                    mode: attr.mode,
                    uid: attr.uid,
                    gid: attr.gid,
                    device: 0,
                    target: b"",
                    inherit_acl: false,
                    no_acl_above: false,
                };
                let made = self.tree.create(dir, place.1, &new)?;
                self.tree.write(&made, 0, &bytes)
            };
            return failed(copy(), "link", || self.plan.history.place(place));
        }
        failed(self.tree.link(node, dir, place.1), "link", || self.plan.history.place(place))
    }

    fn aside(&mut self, place: Place<'_>) -> Result<()> {
        let path = self.plan.history.place(place);
        let from = (self.node(place.0).clone(), place.1);
        self.found.take(self.tree, (&from.0, from.1), &path)
    }
}

/// Writes the log's content of files that the tree lacks.
pub fn salvage<N>(plan: &Plan<'_, N>, dir: &Path) -> Result<Vec<String>> {
    let mut salvaged = Vec::new();
    for fid in &plan.missing {
        let file = &plan.history.files[fid];
        if file.kind != Kind::File || file.content.is_empty() {
            continue;
        }
        let words = plan.history.path(*fid);
        let safe: String = words
            .chars()
            .map(|c| if c.is_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' })
            .take(100)
            .collect();
        let mut path = dir.join(format!("{fid}-{safe}"));
        let mut write = || {
            fs::create_dir_all(dir)?;
            let out = new_file(&mut path)?;
            file.content.iter().try_for_each(|change| salvage_change(&out, change))?;
            out.sync_all()
        };
        let written = write();
        written.map_err(|cause| ReplayError::Salvage { path: shown(&path), cause })?;
        salvaged.push(format!("{words}: {}", shown(&path)));
    }
    Ok(salvaged)
}

/// A new file that only its owner may read.  What has the name already, a link of somebody else or
/// the file of an earlier replay, stays as it is, and the path gets a number.
fn new_file(path: &mut PathBuf) -> io::Result<fs::File> {
    let first = path.clone();
    let mut number = 1;
    loop {
        match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&*path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && number < 1000 => {
                number += 1;
                let mut name = first.clone().into_os_string();
                name.push(format!(".{number}"));
                *path = name.into();
            }
            done => return done,
        }
    }
}

fn salvage_change(out: &fs::File, change: &Change<'_>) -> io::Result<()> {
    match *change {
        Change::Truncate { size } => out.set_len(size),
        Change::Write { offset, bytes, size } => {
            out.write_all_at(bytes, offset)?;
            match out.metadata()?.len() < size {
                true => out.set_len(size),
                false => Ok(()),
            }
        }
        Change::Allocate { mode, offset, length } => {
            let size = out.metadata()?.len();
            let end = match mode {
                Allocate::KeepSize => return Ok(()),
                Allocate::Extend => return out.set_len(size.max(offset + length)),
                Allocate::Zero => size.max(offset + length),
                Allocate::Punch | Allocate::ZeroKeepSize => size,
            };
            // Zeroes that need no memory for all bytes; bytes after them are kept aside.
            let range = offset.min(size)..(offset + length).min(size);
            let zeroes = vec![0; 1 << 16];
            let mut at = range.start;
            while at < range.end {
                let n = zeroes.len().min((range.end - at) as usize);
                out.write_all_at(&zeroes[..n], at)?;
                at += n as u64;
            }
            out.set_len(end)
        }
    }
}
