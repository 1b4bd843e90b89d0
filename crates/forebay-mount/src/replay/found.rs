// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory of found files: a directory in the tree's root for inodes in dispute, private
//! to the user who replays, with a report of what happened.
//!
//! ```text
//! .forebay-found/N-NAME    inodes that were in the way or have no certain name, and
//!                          the log's content of files that are missing or were changed
//! .forebay-found/N-report  the reasons, line by line
//! ```
//!
//! A line is durable before its action is done.  The list of the staging directory has the name
//! of the report, so a replay that continues an interrupted or failed one continues its report.
//! Lines of many steps are made durable by one sync, before the first of the steps; a promised
//! name that was not used before the replay was interrupted is used by the next one.  A promise
//! that is not kept when the replay ends is withdrawn by another line.

use std::collections::{HashMap, HashSet, VecDeque};

use rustix::io::Errno;

use super::planted::{planted, Bug};
use super::staging::note_report;
use super::{failed, printable, Result};
use crate::record::Kind;
use crate::tree::{Attr, New, RenameHow, Tree};

const NAME: &str = ".forebay-found";

pub struct Found<'p, N> {
    /// The first name for the directory, and how many names were passed over.
    first: String,
    more: u64,
    name: String,
    node: Option<N>,
    /// This replay has made the directory.
    made: bool,
    /// The last number given out.
    number: u64,
    /// The entries of the log that is replayed.
    entries: Option<&'p [Vec<u8>]>,
    /// The report and its size.
    report: Option<(N, u64)>,
    /// The lines of an earlier replay of this log.
    pub earlier: Vec<String>,
    /// The inodes that went there, in words.
    pub told: Vec<String>,
    /// All lines of the report.
    lines: HashSet<String>,
    /// For each path: free names that the report has already.
    reserved: HashMap<String, VecDeque<Place>>,
    /// Names that were taken by the time when they were to be used.
    taken: Vec<Place>,
    /// Promises that are not kept, and the lines that withdraw them.
    withdrawn: HashSet<String>,
}

/// The place of an inode.
struct Place {
    name: String,
    /// The line that promises it.
    line: String,
    /// The line that withdraws the promise.
    withdrawal: String,
}

impl Place {
    /// `shown` is the name in the report.
    fn of(path: &str, dir: &str, name: String, shown: &str) -> Place {
        let line = format!("{path}: now {dir}/{shown}");
        let withdrawal = format!("{path}: nothing went to {dir}/{shown}");
        Place { name, line, withdrawal }
    }
}

impl<'p, N: Clone + Send + Sync> Found<'p, N> {
    pub fn new(name: &str, entries: Option<&'p [Vec<u8>]>) -> Found<'p, N> {
        let name = if name.is_empty() { NAME } else { name };
        Found {
            first: name.into(),
            more: 0,
            name: name.into(),
            node: None,
            made: false,
            number: 0,
            entries,
            report: None,
            earlier: Vec::new(),
            told: Vec::new(),
            lines: HashSet::new(),
            reserved: HashMap::new(),
            taken: Vec::new(),
            withdrawn: HashSet::new(),
        }
    }

    /// Continues the report of an earlier replay at this path.
    pub fn resume<T: Tree<Node = N>>(&mut self, tree: &T, path: Option<&str>) -> Result<()> {
        const MOST: u64 = 1 << 26;
        let Some((dir, name)) = path.and_then(|path| path.split_once('/')) else { return Ok(()) };
        let shown = || format!("{dir}/{name}");
        let look = |at: &N, name: &str| failed(tree.lookup(at, name.as_bytes()), "look up", shown);
        let Some(found) = look(&tree.root(), dir)? else { return Ok(()) };
        if !is_ours(&failed(tree.attr(&found), "look at", shown)?) {
            return Ok(());
        }
        let sealed = failed(tree.seals(&found), "look at", shown)?.keeps_names();
        let Some(report) = look(&found, name)? else { return Ok(()) };
        let attr = failed(tree.attr(&report), "look at", shown)?;
        if attr.kind != Kind::File || attr.size > MOST {
            return Ok(());
        }
        let mut text = vec![0; attr.size as usize];
        let read = failed(tree.read(&report, 0, &mut text), "read", shown)?;
        let end = text[..read].iter().rposition(|b| *b == b'\n').map_or(0, |last| last + 1);
        let text = String::from_utf8_lossy(&text[..end]).into_owned();
        self.earlier = text.lines().map(String::from).collect();
        if sealed {
            return Ok(());
        }
        self.lines = self.earlier.iter().cloned().collect();
        // The number is higher than all that the report names.
        self.number = self.earlier.len() as u64 + 1;
        let promised = format!(": now {dir}/");
        for line in &self.earlier {
            let Some((path, place)) = line.rsplit_once(&promised) else { continue };
            let number = place.split_once('-').and_then(|(number, _)| number.parse().ok());
            let Some(name) = number.map(|number| name_of(number, path)) else { continue };
            let is_it = printable(name.as_bytes()) == place;
            if !is_it || look(&found, &name)?.is_some() {
                continue;
            }
            let place = Place::of(path, dir, name, place);
            if self.lines.contains(&place.withdrawal) {
                self.withdrawn.extend([place.line, place.withdrawal]);
                continue;
            }
            self.reserved.entry(path.into()).or_default().push_back(place);
        }
        (self.name, self.node, self.report) = (dir.into(), Some(found), Some((report, end as u64)));
        Ok(())
    }

    /// Adds lines to the report, durably.
    pub fn tell<T: Tree<Node = N>>(&mut self, tree: &T, lines: &[String]) -> Result<()> {
        if planted(Bug::ToldAtTheEnd) {
            return Ok(());
        }
        let mut text = String::new();
        for line in lines {
            if self.lines.insert(line.clone()) {
                text += line;
                text.push('\n');
            }
        }
        if text.is_empty() {
            return Ok(());
        }
        let shown = || "report".into();
        self.make_report(tree)?;
        let (report, size) = self.report.take().expect("it was just made");
        failed(tree.write(&report, size, text.as_bytes()), "write", shown)?;
        failed(tree.sync(&report), "sync", shown)?;
        self.report = Some((report, size + text.len() as u64));
        Ok(())
    }

    /// Makes the report before anything is promised a place next to it.
    fn begin<T: Tree<Node = N>>(&mut self, tree: &T) -> Result<()> {
        match planted(Bug::ToldAtTheEnd) {
            true => Ok(()),
            false => self.make_report(tree),
        }
    }

    fn make_report<T: Tree<Node = N>>(&mut self, tree: &T) -> Result<()> {
        if self.report.is_none() {
            self.report = Some((self.new_report(tree)?, 0));
        }
        Ok(())
    }

    fn new_report<T: Tree<Node = N>>(&mut self, tree: &T) -> Result<N> {
        loop {
            let dir = self.directory(tree)?;
            self.number += 1;
            let name = format!("{}-report", self.number);
            let new = New::plain(Kind::File, 0o600);
            let node = match tree.create(&dir, name.as_bytes(), &new) {
                Err(Errno::EXIST) => continue,
                // It is sealed, where that does not show.
                Err(Errno::PERM) if !self.made => {
                    self.pass_over();
                    continue;
                }
                made => failed(made, "make", || name.clone())?,
            };
            if let Some(entries) = self.entries {
                note_report(tree, entries, &format!("{}/{name}", self.name))?;
            }
            return Ok(node);
        }
    }

    /// Another may have made something of that name before: nothing goes where he can read
    /// it, or take it away.  Nothing goes into a sealed one, either.
    fn directory<T: Tree<Node = N>>(&mut self, tree: &T) -> Result<N> {
        if let Some(node) = &self.node {
            return Ok(node.clone());
        }
        let root = tree.root();
        loop {
            let name = self.name.clone();
            let shown = || name.clone();
            let node = match failed(tree.lookup(&root, name.as_bytes()), "look up", shown)? {
                Some(node) => node,
                None => {
                    let new = New::plain(Kind::Directory, 0o700);
                    self.made = true;
                    failed(tree.create(&root, name.as_bytes(), &new), "make", shown)?
                }
            };
            let seals = failed(tree.seals(&node), "look at", shown)?;
            if is_ours(&failed(tree.attr(&node), "look at", shown)?) && !seals.keeps_names() {
                self.node = Some(node.clone());
                return Ok(node);
            }
            self.pass_over();
        }
    }

    /// The directory of this name is not used.
    fn pass_over(&mut self) {
        self.more += 1;
        (self.node, self.made) = (None, false);
        self.name = format!("{}.{}", self.first, self.more);
    }

    /// A free name, which is given to nothing else.
    fn free<T: Tree<Node = N>>(&mut self, tree: &T, path: &str) -> Result<Place> {
        let dir = self.directory(tree)?;
        loop {
            self.number += 1;
            let name = name_of(self.number, path);
            if failed(tree.lookup(&dir, name.as_bytes()), "look up", || name.clone())?.is_none() {
                let shown = printable(name.as_bytes());
                return Ok(Place::of(path, &self.name, name, &shown));
            }
        }
    }

    /// Promises places for the inodes at these paths in the report, durably.
    pub fn reserve<T: Tree<Node = N>>(&mut self, tree: &T, paths: &[String]) -> Result<()> {
        if paths.is_empty() {
            return Ok(());
        }
        self.begin(tree)?;
        let mut wanted: HashMap<&str, usize> = HashMap::new();
        let mut lines = Vec::new();
        for path in paths {
            let wanted = wanted.entry(path).or_default();
            *wanted += 1;
            if self.reserved.get(path).is_some_and(|places| places.len() >= *wanted) {
                continue;
            }
            let place = self.free(tree, path)?;
            lines.push(place.line.clone());
            self.reserved.entry(path.clone()).or_default().push_back(place);
        }
        self.tell(tree, &lines)
    }

    /// Runs `f` with a free name.
    fn named<T: Tree<Node = N>, R>(
        &mut self,
        tree: &T,
        path: &str,
        what: &'static str,
        act: impl Fn(&N, &[u8]) -> crate::tree::Result<R>,
    ) -> Result<R> {
        self.begin(tree)?;
        let dir = self.directory(tree)?;
        loop {
            let place = match self.reserved.get_mut(path).and_then(VecDeque::pop_front) {
                Some(place) => place,
                None => {
                    let place = self.free(tree, path)?;
                    self.tell(tree, std::slice::from_ref(&place.line))?;
                    place
                }
            };
            match act(&dir, place.name.as_bytes()) {
                Err(Errno::EXIST) => self.taken.push(place),
                Err(e) => {
                    // Another attempt uses the same name.
                    self.reserved.entry(path.into()).or_default().push_front(place);
                    return failed(Err(e), what, || path.into());
                }
                Ok(done) => {
                    self.told.push(place.line);
                    return Ok(done);
                }
            }
        }
    }

    /// Ends the moves to the directory: promises that were not kept are withdrawn, durably.
    pub fn withdraw<T: Tree<Node = N>>(&mut self, tree: &T) -> Result<()> {
        let reserved = std::mem::take(&mut self.reserved).into_values().flatten();
        let mut unkept: Vec<Place> = reserved.chain(self.taken.drain(..)).collect();
        unkept.sort_by(|a, b| a.withdrawal.cmp(&b.withdrawal));
        if planted(Bug::PromisesUnkept) {
            return Ok(());
        }
        let lines: Vec<String> = unkept.iter().map(|place| place.withdrawal.clone()).collect();
        self.tell(tree, &lines)?;
        self.withdrawn.extend(unkept.into_iter().flat_map(|place| [place.line, place.withdrawal]));
        let withdrawn = &self.withdrawn;
        self.earlier.retain(|line| !withdrawn.contains(line));
        Ok(())
    }

    /// Moves the inode at `from`, which `path` describes in words.  Never replaces anything.
    pub fn take<T: Tree<Node = N>>(
        &mut self,
        tree: &T,
        from: (&N, &[u8]),
        path: &str,
    ) -> Result<()> {
        self.named(tree, path, "move aside", |dir, name| {
            tree.rename(from, (dir, name), RenameHow::NoReplace)
        })
    }

    /// Makes a new file, private to its owner.
    pub fn make<T: Tree<Node = N>>(&mut self, tree: &T, path: &str) -> Result<N> {
        let new = New::plain(Kind::File, 0o600);
        self.named(tree, path, "make a copy of", |dir, name| tree.create(dir, name, &new))
    }
}

/// As much of the path's last component as a name can have.
fn name_of(number: u64, path: &str) -> String {
    let last = path.rsplit('/').next().unwrap_or_default();
    let mut end = last.len().min(200);
    while !last.is_char_boundary(end) {
        end -= 1;
    }
    format!("{number}-{}", &last[..end])
}

fn is_ours(attr: &Attr) -> bool {
    let ours = New::plain(Kind::Directory, 0o700);
    attr.kind == ours.kind && attr.uid == ours.uid && attr.mode & 0o077 == 0
}

/// Moves an inode with this name in the root that Forebay did not make.
pub fn put_aside<T: Tree>(tree: &T, name: &[u8]) -> Result<()> {
    Found::new("", None).take(tree, (&tree.root(), name), &printable(name))
}
