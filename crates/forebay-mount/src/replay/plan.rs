// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plans what is to be done to a tree: compares the log with the tree.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use rustix::io::Errno;

use super::history::{Change, File, History, Place};
use super::later;
use super::planted::{planted, Bug};
use super::staging::Staging;
use super::within::{self, Walked};
use super::{failed, printable, Action, Ahead, ReplayError, Report, Result};
use crate::mark::{self, Reached};
use crate::record::{Fid, Kind, Time, ROOT};
use crate::tree::{Attr, Handle, Tree, TreeIdentity};

/// One step, done by one or a few operations of the tree.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// A new inode, in the staging directory.
    Make(Fid),
    Content(Fid),
    Attributes(Fid),
    /// The log does not explain the entry: it goes to the directory of found files.
    Aside(Place<'a>),
    /// Moves a name that is in the wrong place to the staging directory.
    Stage(Fid, Place<'a>),
    Unlink(Place<'a>),
    RemoveDirectory(Place<'a>),
    /// Moves an inode from the staging directory to its name.
    Put(Fid, Place<'a>),
    /// Moves an inode without a certain name from the staging directory to the directory of
    /// found files.
    Find(Fid),
    /// Copies the content that the log has to the directory of found files.
    Salvage(Fid),
    Link(Fid, Place<'a>),
    /// Removes an unneeded inode from the staging directory: its name there, and whether it is
    /// a directory.
    Discard(Fid, bool),
}

impl Step<'_> {
    /// The directory in which the step changes a name.
    fn directory(&self) -> Option<Fid> {
        match *self {
            Step::Aside((dir, _))
            | Step::Stage(_, (dir, _))
            | Step::Unlink((dir, _))
            | Step::RemoveDirectory((dir, _))
            | Step::Put(_, (dir, _))
            | Step::Link(_, (dir, _)) => Some(dir),
            Step::Make(_)
            | Step::Content(_)
            | Step::Attributes(_)
            | Step::Find(_)
            | Step::Salvage(_)
            | Step::Discard(..) => None,
        }
    }
}

pub struct Plan<'a, N> {
    pub history: History<'a>,
    pub staging: Staging<N>,
    /// The inodes that the tree has, by fid.
    pub nodes: HashMap<Fid, N>,
    /// The names in the staging directory.
    pub staged: HashMap<Fid, Fid>,
    pub steps: Vec<Step<'a>>,
    pub missing: BTreeSet<Fid>,
    /// Inodes made from the log and moved to the directory of found files.
    found: BTreeSet<Fid>,
    /// Files whose content another program changed after the crash: the content stays.
    pub changed_fids: BTreeSet<Fid>,
    /// Files whose inode another program changed after the crash, with or without the content.
    pub touched: BTreeSet<Fid>,
    /// Modification times of files that were written after the time that the log has, and not
    /// synced.
    pub times: BTreeMap<Fid, Time>,
    /// Entries that remove directories that are not empty.
    pub not_empty: HashSet<u64>,
    conflicts: Vec<String>,
    pub changed: Vec<String>,
    /// The tree has changes of names and attributes that the log lacks, and all that it has.
    pub ahead: bool,
    reached: Reached,
    /// Attributes that the log replaces and that may have been set after the crash, in words.
    pub attributes: Vec<String>,
    moved_from: Option<String>,
    entries: u64,
}

/// The names that the log knows with their present inodes, and the derivation of the steps.
struct Look<'p, 'a, T: Tree> {
    tree: &'p T,
    plan: Plan<'a, T::Node>,
    walked: &'p mut Walked,
    by_handle: HashMap<Handle, Fid>,
    /// The files that will exist: found, or to be made.
    there: HashSet<Fid>,
    in_place: HashMap<Fid, u64>,
    /// Names with the wrong inode, and that inode (`None`: not known).
    wrong: Vec<(Place<'a>, Option<Fid>)>,
    unlinks: HashMap<Fid, u64>,
}

impl<'a, N: Clone + Send + Sync> Plan<'a, N> {
    pub fn of<T: Tree<Node = N>>(
        tree: &T,
        history: History<'a>,
        entries: &[Vec<u8>],
        walked: &mut Walked,
    ) -> Result<Plan<'a, N>> {
        let moved_from = which_tree(tree, &history.trees)?;
        let staging = Staging::find(tree, entries)?;
        let reached = failed(mark::reached(tree), "look at the mark in", || ".".into())?;
        let ahead = match reached {
            Reached::Entry(n) => n > history.last_number && !planted(Bug::NamesTwice),
            Reached::Nothing | Reached::Doubtful(_) => false,
        };
        let other = |name: &String| format!("{name} is not this replay's, and stays as it is");
        let mut history = history;
        history.disputes.extend(staging.others.iter().map(other));
        let plan = Plan {
            staging,
            history,
            nodes: HashMap::from([(ROOT, tree.root())]),
            staged: HashMap::new(),
            steps: Vec::new(),
            missing: BTreeSet::new(),
            found: BTreeSet::new(),
            changed_fids: BTreeSet::new(),
            touched: BTreeSet::new(),
            times: BTreeMap::new(),
            not_empty: HashSet::new(),
            conflicts: Vec::new(),
            changed: Vec::new(),
            ahead,
            reached,
            attributes: Vec::new(),
            moved_from,
            entries: entries.len() as u64,
        };
        let mut look = Look {
            tree,
            plan,
            walked,
            by_handle: HashMap::new(),
            there: HashSet::new(),
            in_place: HashMap::new(),
            wrong: Vec::new(),
            unlinks: HashMap::new(),
        };
        look.find_by_handle()?;
        if ahead {
            let nodes = &look.plan.nodes;
            look.plan.history.content_alone(|fid| nodes.contains_key(&fid));
        }
        look.find_staged()?;
        look.find_by_name()?;
        look.find_not_empty()?;
        look.find_missing();
        later::find(tree, &mut look.plan)?;
        look.compare()?;
        look.steps()?;
        Ok(look.plan)
    }

    pub fn report(&self) -> Report {
        let written = self.steps.iter().filter_map(|step| match step {
            Step::Content(fid) => Some(self.written(*fid)),
            _ => None,
        });
        Report {
            entries: self.entries,
            operations: self.history.operations,
            actions: self.steps.iter().map(|step| self.action(step)).collect(),
            files: written.clone().count() as u64,
            bytes: written.sum(),
            resumed: self.staging.resumed,
            missing: self.missing.iter().map(|fid| self.history.path(*fid)).collect(),
            conflicts: self.conflicts.clone(),
            changed: self.changed.clone(),
            attributes: self.attributes.clone(),
            moved_from: self.moved_from.clone(),
            ahead: match self.reached {
                // A log without entries is behind nothing.
                Reached::Entry(reached) if self.ahead && self.entries > 0 => {
                    Some(Ahead { reached, last: self.history.last_number })
                }
                _ => None,
            },
            mark: match self.reached {
                // A log without entries says nothing of names.
                Reached::Doubtful(why) if self.entries > 0 => Some(format!(
                    "the mark .forebay-mount does not say how far the tree is: {why}; names and \
                     attributes are made the log's"
                )),
                _ => None,
            },
            disputes: self.history.disputes.clone(),
            found: Vec::new(),
            salvaged: Vec::new(),
            left_out: Vec::new(),
            accepted: Vec::new(),
            earlier: Vec::new(),
        }
    }

    /// The bytes that the log has of a file's content.
    pub fn written(&self, fid: Fid) -> u64 {
        let bytes = |change: &Change<'_>| match change {
            Change::Write { bytes, .. } => bytes.len() as u64,
            _ => 0,
        };
        self.history.files[&fid].content.iter().map(bytes).sum()
    }

    /// The action of a step, for messages.
    pub fn action(&self, step: &Step<'_>) -> Action {
        let history = &self.history;
        let (action, path) = match *step {
            Step::Make(fid) => ("make", history.path(fid)),
            Step::Content(fid) => ("write", history.path(fid)),
            Step::Attributes(fid) => ("set attributes of", history.path(fid)),
            Step::Aside(place) => ("move aside", history.place(place)),
            Step::Stage(_, place) => ("move away", history.place(place)),
            Step::Unlink(place) => ("unlink", history.place(place)),
            Step::RemoveDirectory(place) => ("remove directory", history.place(place)),
            Step::Put(_, place) => ("put in place", history.place(place)),
            Step::Find(fid) => ("put where things are found", history.path(fid)),
            Step::Salvage(fid) => ("salvage what the log has of", history.path(fid)),
            Step::Link(_, place) => ("link", history.place(place)),
            Step::Discard(fid, _) => ("discard what an earlier replay left of", history.path(fid)),
        };
        let detail = match *step {
            Step::Content(fid) | Step::Salvage(fid) => {
                format!("{} changes", history.files[&fid].content.len())
            }
            Step::Stage(fid, _) => format!("to be {}", history.path(fid)),
            _ => String::new(),
        };
        Action { action, path, detail }
    }
}

/// Refuses another tree; says where this one was, if it was elsewhere.
fn which_tree<T: Tree>(tree: &T, logged: &[TreeIdentity]) -> Result<Option<String>> {
    let is = failed(tree.identity(), "look", || ".".into())?;
    let words = |t: &TreeIdentity| {
        let id: String = t.file_system.iter().map(|b| format!("{b:02x}")).collect();
        format!("{} (file system {id}, root {:?})", printable(&t.path), t.root)
    };
    for was in logged {
        let is_in = failed(tree.is_in(&was.file_system), "look", || ".".into())?;
        if !is_in || was.root != is.root {
            return Err(ReplayError::OtherTree { log: words(was), tree: words(&is) });
        }
    }
    Ok(logged.iter().find(|was| was.path != is.path).map(|was| printable(&was.path)))
}

impl<'a, T: Tree> Look<'_, 'a, T> {
    fn handle(&self, node: &T::Node, fid: Fid) -> Result<Handle> {
        failed(self.tree.handle(node), "look at", || self.plan.history.path(fid))
    }

    fn attr(&self, node: &T::Node, fid: Fid) -> Result<Attr> {
        failed(self.tree.attr(node), "look at", || self.plan.history.path(fid))
    }

    fn child(&self, dir: &T::Node, place: Place<'_>) -> Result<Option<T::Node>> {
        match self.tree.lookup(dir, place.1) {
            // Something is mounted there: nothing that the log knows.
            Err(Errno::XDEV) => Ok(None),
            found => failed(found, "look up", || self.plan.history.place(place)),
        }
    }

    fn take(&mut self, fid: Fid, node: T::Node, handle: Handle) {
        match self.by_handle.entry(handle) {
            // The second one is not there.
            Entry::Occupied(other) => {
                let what = format!("files {} and {fid} are one", other.get());
                self.plan.history.disputes.push(what);
            }
            Entry::Vacant(vacant) => {
                vacant.insert(fid);
                self.plan.nodes.insert(fid, node);
            }
        }
    }

    /// A handle is evidence and no proof: it may be that of another inode that was made after
    /// the crash, and it says nothing of where the inode lies.  Taken is what was made when
    /// the log says ([`is_it`](Look::is_it)), and lies in the tree ([`within::within`]).
    fn find_by_handle(&mut self) -> Result<()> {
        self.tree.begin_to_look();
        let root = self.tree.root();
        let handle = self.handle(&root, ROOT)?;
        self.by_handle.insert(handle, ROOT);
        let wanted: Vec<_> = self.plan.history.files.iter().map(|(f, i)| (*f, i.clone())).collect();
        let mut candidates = Vec::new();
        for (fid, file) in wanted {
            // An earlier replay has taken rights of it, and it had been there before: by its name it
            // would be taken for another one now.
            let noted = self.plan.staging.rights.get(&fid).and_then(|noted| noted.handle.clone());
            let logged = file.handle.filter(|_| !self.plan.staging.gone.contains(&fid));
            let Some(handle) = noted.clone().or(logged.map(|bytes| Handle(bytes.to_vec()))) else {
                continue;
            };
            let by_name = planted(Bug::ByName) && file.kind == Kind::File;
            let own = self.plan.staging.own.contains(&handle);
            if fid == ROOT || own || by_name {
                continue;
            }
            let node = match self.tree.open(&handle, &self.plan.history.hint(fid)) {
                // An invalid handle, or an inode on another mount.
                Err(Errno::INVAL | Errno::XDEV) => None,
                found => failed(found, "open", || self.plan.history.path(fid))?,
            };
            if let Some(node) = node {
                let known = File { born: file.born.filter(|_| noted.is_none()), ..file };
                if self.is_it(fid, &known, &node)? {
                    candidates.push((fid, node, handle));
                }
            }
        }
        let within = match planted(Bug::AnywhereTaken) {
            true => candidates.iter().map(|(fid, ..)| *fid).collect(),
            false => within::within(self.tree, &self.plan, &candidates, self.walked)?,
        };
        for (fid, node, handle) in candidates {
            if within.contains(&fid) {
                self.take(fid, node, handle);
            }
        }
        Ok(())
    }

    fn is_it(&self, fid: Fid, file: &File<'a>, node: &T::Node) -> Result<bool> {
        let attr = self.attr(node, fid)?;
        let born = failed(self.tree.born(node), "look at", || self.plan.history.path(fid))?;
        let another = file.born.is_some_and(|logged| born.is_some_and(|born| born != logged));
        // Not every file system tells it.
        let another = another && !planted(Bug::BirthIgnored) && !planted(Bug::GoneForgotten);
        Ok(attr.kind == file.kind && attr.nlink > 0 && !another)
    }

    /// The inode at the name of one whose handle the log does not know may belong to another
    /// program, which may have it open.  It is used only if no one loses by that: its owner and
    /// group are those that the log gave it, and it has no content or the same users may use
    /// it.
    fn may_be_taken(&self, fid: Fid, file: &File<'a>, node: &T::Node) -> Result<bool> {
        let (Some(made), attr) = (file.made, self.attr(node, fid)?) else { return Ok(true) };
        if attr.kind != file.kind {
            return Ok(false);
        }
        let last = (file.attr.uid.unwrap_or(made.uid), file.attr.gid.unwrap_or(made.gid));
        let owner = (attr.uid, attr.gid);
        let owned = owner == (made.uid, made.gid) || owner == last;
        let empty = match file.kind {
            Kind::File => attr.size == 0 && attr.nlink == 1,
            Kind::Directory => {
                let names = self.tree.names(node);
                failed(names, "list", || self.plan.history.path(fid))?.is_empty()
            }
            Kind::Symlink => {
                let target =
                    failed(self.tree.read_link(node), "read", || self.plan.history.path(fid))?;
                return Ok(target == made.target && (owned || planted(Bug::EmptyOfAnybody)));
            }
            Kind::CharDevice | Kind::BlockDevice => {
                return Ok(attr.device == made.device && (owned || planted(Bug::EmptyOfAnybody)))
            }
            Kind::Fifo | Kind::Socket => true,
        };
        // An owner's own rights may have been widened on the way.
        let others = |mode: u32| mode & 0o7077;
        let mode = others(attr.mode);
        let as_made = owner == (made.uid, made.gid) && mode == others(made.mode);
        let mode_last = file.with_acl(file.attr.mode.unwrap_or(made.mode));
        let as_last = owner == last && mode == others(mode_last);
        let empty = empty && (owned || planted(Bug::EmptyOfAnybody));
        Ok(empty || as_made || as_last || planted(Bug::AnybodysTaken))
    }

    /// Finds what an earlier replay was moving.
    fn find_staged(&mut self) -> Result<()> {
        for (name, node) in std::mem::take(&mut self.plan.staging.entries) {
            let handle = self.handle(&node, name)?;
            let attr = self.attr(&node, name)?;
            let directory = attr.kind == Kind::Directory;
            let files = &self.plan.history.files;
            let made = files.get(&name).is_some_and(|f| f.made.is_some() && f.kind == attr.kind);
            let fid = match self.by_handle.get(&handle) {
                Some(&known) => known,
                None if made && !self.plan.nodes.contains_key(&name) => {
                    self.take(name, node, handle);
                    name
                }
                None => {
                    self.plan.steps.push(Step::Discard(name, directory));
                    continue;
                }
            };
            let file = &self.plan.history.files[&fid];
            if file.names.is_empty() && !self.is_orphan(fid) {
                self.plan.steps.push(Step::Discard(name, directory));
            } else {
                self.plan.staged.insert(fid, name);
            }
        }
        Ok(())
    }

    /// An inode that was made since the tree's last sync and has no valid handle is identified
    /// by its name in the tree, unless another inode has that identity.
    fn find_by_name(&mut self) -> Result<()> {
        let by_directory = self.plan.history.by_directory();
        let mut directories: VecDeque<Fid> = self.plan.nodes.keys().copied().collect();
        let mut seen: HashSet<Fid> = directories.iter().copied().collect();
        while let Some(dir) = directories.pop_front() {
            let node = self.plan.nodes[&dir].clone();
            for &(name, fid) in by_directory.get(&dir).into_iter().flatten() {
                let file = &self.plan.history.files[&fid];
                // In the first replay an inode whose handle is known is found by that.
                let made =
                    file.made.is_some() && (file.handle.is_none() || self.plan.staging.resumed);
                let file = file.clone();
                let by_name =
                    planted(Bug::ByName) || planted(Bug::OldIdentityTaken) && file.made.is_some();
                if self.plan.nodes.contains_key(&fid) || !(made || by_name) {
                    continue;
                }
                let Some(found) = self.child(&node, (dir, name))? else { continue };
                let handle = self.handle(&found, fid)?;
                let known =
                    self.by_handle.contains_key(&handle) || self.plan.staging.own.contains(&handle);
                if planted(Bug::OldIdentityTaken) && known {
                    self.plan.nodes.insert(fid, found);
                    self.by_handle.insert(handle, fid);
                    continue;
                }
                if known || !self.may_be_taken(fid, &file, &found)? {
                    continue;
                }
                self.take(fid, found, handle);
                if seen.insert(fid) {
                    directories.push_back(fid);
                }
            }
        }
        Ok(())
    }

    /// Directories that the log says were removed, and that cannot have been.
    fn find_not_empty(&mut self) -> Result<()> {
        let by_directory = self.plan.history.by_directory();
        for (fid, file) in &self.plan.history.files {
            let (Kind::Directory, Some(number)) = (file.kind, file.lost_name_by) else { continue };
            if !file.names.is_empty() {
                continue;
            }
            let mut full = by_directory.contains_key(fid);
            if let (false, Some(node)) = (full, self.plan.nodes.get(fid)) {
                let names = failed(self.tree.names(node), "list", || self.plan.history.path(*fid))?;
                let names_known = &self.plan.history.names;
                let counts = |name: &[u8]| !mark::is_over(name);
                full = names
                    .iter()
                    .any(|name| counts(name) && !names_known.contains_key(&(*fid, &name[..])));
            }
            if full {
                self.plan.not_empty.insert(number);
            }
        }
        Ok(())
    }

    /// The log made it, nothing says that it is gone, and no name of it is certain.
    fn is_orphan(&self, fid: Fid) -> bool {
        let file = &self.plan.history.files[&fid];
        let doubtful = self.plan.history.has_place(fid);
        file.made.is_some() && file.names.is_empty() && (!file.is_removed() || doubtful)
    }

    fn find_missing(&mut self) {
        let history = &self.plan.history;
        let can_be_made = |fid: &Fid| {
            let file = &history.files[fid];
            file.made.is_some() && !file.synced
        };
        // A new inode needs a directory that exists.
        let by_directory = history.by_directory();
        let mut there: HashSet<Fid> = self.plan.nodes.keys().copied().collect();
        let fill = |there: &mut HashSet<Fid>, mut directories: VecDeque<Fid>| {
            while let Some(dir) = directories.pop_front() {
                for (_, fid) in by_directory.get(&dir).into_iter().flatten() {
                    if can_be_made(fid) && there.insert(*fid) {
                        directories.push_back(*fid);
                    }
                }
            }
        };
        let known = there.iter().copied().collect();
        fill(&mut there, known);
        let mut found = BTreeSet::new();
        for (fid, file) in &history.files {
            let wanted = !file.names.is_empty()
                || (!file.is_removed() && file.made.is_none() && file.is_changed())
                || by_directory.contains_key(fid)
                || self.is_orphan(*fid);
            if !wanted || there.contains(fid) {
                continue;
            }
            self.plan.missing.insert(*fid);
            // Not one whose directory is to be found itself.
            let in_lost = |(dir, _): &Place<'_>| history.files.contains_key(dir);
            let below = |dir: Fid| !there.contains(&dir) && can_be_made(&dir);
            let waits = file.names.iter().any(|place| in_lost(place) && below(place.0));
            if can_be_made(fid) && !waits && !planted(Bug::OrphanForgotten) {
                found.insert(*fid);
                there.insert(*fid);
                fill(&mut there, VecDeque::from([*fid]));
            }
        }
        self.plan.missing.retain(|fid| !there.contains(fid) || found.contains(fid));
        self.plan.found = found;
        self.there = there;
    }

    fn compare(&mut self) -> Result<()> {
        let places: Vec<_> = self.plan.history.names.iter().map(|(p, n)| (*p, n.clone())).collect();
        for (place, name) in places {
            let Some(dir) = self.plan.nodes.get(&place.0) else { continue };
            let Some(found) = self.child(&dir.clone(), place)? else { continue };
            let handle = self.handle(&found, place.0)?;
            match self.by_handle.get(&handle).copied() {
                found if name.doubtful && found != name.now => {}
                Some(fid) if name.now == Some(fid) => {
                    *self.in_place.entry(fid).or_default() += 1;
                }
                Some(fid) => {
                    let wanted = !self.plan.history.files[&fid].names.is_empty();
                    let explained = fid != ROOT && (wanted || name.ever.contains(&fid));
                    self.wrong.push((place, explained.then_some(fid)));
                }
                None => self.wrong.push((place, None)),
            }
        }
        Ok(())
    }

    fn steps(&mut self) -> Result<()> {
        let mut names = Vec::new();
        let mut directories = BTreeMap::new();
        let mut asides = Vec::new();
        for (place, who) in std::mem::take(&mut self.wrong) {
            let Some(fid) = who else {
                asides.push(Step::Aside(place));
                self.plan.conflicts.push(self.plan.history.place(place));
                continue;
            };
            let file = &self.plan.history.files[&fid];
            let wanted = file.names.iter().any(|(dir, _)| self.there.contains(dir));
            let at_home = self.in_place.contains_key(&fid) || self.plan.staged.contains_key(&fid);
            let stage = wanted && !at_home && !planted(Bug::UnlinkInsteadOfStaging);
            match (file.names.is_empty(), stage) {
                // The right place is missing, or no entry says that the inode lost this name.
                (false, false) if !wanted => asides.push(Step::Aside(place)),
                (true, _) if file.displaced && !file.is_removed() => {
                    asides.push(Step::Aside(place));
                    self.plan.conflicts.push(self.plan.history.place(place));
                }
                (_, true) => {
                    names.push(Step::Stage(fid, place));
                    self.plan.staged.insert(fid, fid);
                }
                _ if file.kind == Kind::Directory => {
                    directories.insert(fid, place);
                }
                _ => {
                    names.push(Step::Unlink(place));
                    *self.unlinks.entry(fid).or_default() += 1;
                }
            }
        }
        let discards = std::mem::take(&mut self.plan.steps);
        let made = self.there.iter().filter(|fid| !self.plan.nodes.contains_key(fid));
        let mut made: Vec<Fid> = made.copied().collect();
        made.sort_unstable();
        let mut steps: Vec<_> = made.iter().map(|fid| Step::Make(*fid)).collect();
        self.plan.staged.extend(made.iter().map(|fid| (*fid, *fid)));
        let changed = self.changed_files()?;
        steps.extend(changed.iter().filter(|f| self.is_written(f)).map(|f| Step::Content(*f)));
        let (mut dirs, others): (Vec<_>, Vec<_>) =
            changed.into_iter().partition(|f| self.plan.history.files[f].kind == Kind::Directory);
        steps.extend(others.into_iter().map(Step::Attributes));
        steps.extend(self.salvages());
        steps.extend(asides);
        steps.extend(names);
        steps.extend(deepest_first(directories));
        steps.extend(self.puts());
        steps.extend(discards);
        dirs.extend(self.directories_modified(&steps));
        dirs.sort_unstable();
        dirs.dedup();
        steps.extend(dirs.into_iter().map(Step::Attributes));
        self.plan.steps = steps;
        Ok(())
    }

    /// The directories to which these steps, or those of an earlier replay, give a later time
    /// than that of the last name that a program changed there.
    fn directories_modified(&self, steps: &[Step<'a>]) -> Vec<Fid> {
        let touched: HashSet<Fid> = steps.iter().filter_map(Step::directory).collect();
        let files = self.there.iter().map(|fid| (*fid, &self.plan.history.files[fid]));
        files
            .filter(|(_, file)| file.has_times_of_names())
            .filter(|(fid, _)| self.plan.staging.resumed || touched.contains(fid))
            .filter(|(_, file)| !(file.names.is_empty() && file.is_removed()))
            .map(|(fid, _)| fid)
            .collect()
    }

    /// Salvages files that are missing and cannot be made, and files that another program has
    /// changed.
    fn salvages(&self) -> Vec<Step<'a>> {
        let missing = self.plan.missing.difference(&self.plan.found);
        let all = missing.chain(&self.plan.changed_fids);
        all.filter(|fid| self.has_content(fid)).map(|fid| Step::Salvage(*fid)).collect()
    }

    fn is_written(&self, fid: &Fid) -> bool {
        self.has_content(fid) && !self.plan.changed_fids.contains(fid)
    }

    fn has_content(&self, fid: &Fid) -> bool {
        !self.plan.history.files[fid].content.is_empty()
    }

    /// The files that will have a name and of which the log has more than names.
    fn changed_files(&self) -> Result<Vec<Fid>> {
        let mut changed = Vec::new();
        for (fid, file) in &self.plan.history.files {
            if !file.is_changed() || !self.there.contains(fid) {
                continue;
            }
            if let (true, Some(node)) = (file.names.is_empty(), self.plan.nodes.get(fid)) {
                // Other names may be that the log does not speak of.
                let unlinks = self.unlinks.get(fid).copied().unwrap_or(0);
                let goes = match file.kind {
                    Kind::Directory => file.is_removed(),
                    _ => u64::from(self.attr(node, *fid)?.nlink) <= unlinks,
                };
                if goes {
                    continue;
                }
            }
            changed.push(*fid);
        }
        Ok(changed)
    }

    fn puts(&mut self) -> Vec<Step<'a>> {
        let mut steps = Vec::new();
        let mut used = HashSet::new();
        for (&place, name) in &self.plan.history.names {
            let Some(fid) = name.now.filter(|f| self.there.contains(f)) else { continue };
            if !self.there.contains(&place.0) || name.doubtful {
                continue;
            }
            if let Some(dir) = self.plan.nodes.get(&place.0) {
                let found = self.tree.lookup(dir, place.1).ok().flatten();
                let handle = found.and_then(|node| self.tree.handle(&node).ok());
                if handle.is_some_and(|h| self.by_handle.get(&h) == Some(&fid)) {
                    continue;
                }
            }
            let directory = self.plan.history.files[&fid].kind == Kind::Directory;
            let staged = self.plan.staged.contains_key(&fid);
            if staged && !self.in_place.contains_key(&fid) && used.insert(fid) {
                steps.push(Step::Put(fid, place));
            } else if directory {
                // It is somewhere that no history of the log explains.
                self.plan.conflicts.push(self.plan.history.place(place));
            } else {
                steps.push(Step::Link(fid, place));
            }
        }
        for fid in self.plan.staged.keys().copied().collect::<BTreeSet<_>>() {
            let homeless = self.plan.found.contains(&fid) || self.is_orphan(fid);
            if homeless && !self.in_place.contains_key(&fid) && used.insert(fid) {
                steps.push(Step::Find(fid));
            }
        }
        // A name in the staging directory that is not needed.
        for (fid, name) in &self.plan.staged {
            if !used.contains(fid) {
                let directory = self.plan.history.files[fid].kind == Kind::Directory;
                steps.push(Step::Discard(*name, directory));
            }
        }
        steps
    }
}

/// Directories that are to be removed, none before those in it.
fn deepest_first(places: BTreeMap<Fid, Place<'_>>) -> Vec<Step<'_>> {
    let mut depths: HashMap<Fid, u64> = HashMap::new();
    for &fid in places.keys() {
        let (mut way, mut at) = (Vec::new(), fid);
        let mut depth = loop {
            if let Some(known) = depths.get(&at) {
                break *known;
            }
            match places.get(&at) {
                Some((parent, _)) if way.len() <= places.len() => {
                    way.push(at);
                    at = *parent;
                }
                _ => break 0,
            }
        };
        for fid in way.into_iter().rev() {
            depth += 1;
            depths.insert(fid, depth);
        }
    }
    let mut steps: Vec<_> = places.into_iter().collect();
    steps.sort_by_key(|(fid, _)| std::cmp::Reverse(depths[fid]));
    steps.into_iter().map(|(_, place)| Step::RemoveDirectory(place)).collect()
}
