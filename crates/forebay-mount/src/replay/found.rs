// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a replay puts what is in dispute: a directory in the tree's root, of the user who
//! replays and for nobody else, with a report of what happened.
//!
//! ```text
//! .forebay-found/N-NAME    what was in the way, what has no name that is certain, and what
//!                          the log has of files that are missing or were changed
//! .forebay-found/N-report  why, line by line
//! ```
//!
//! A line is durable before what it says is done, and the list of the staging directory has the
//! name of the report: one that goes on where an earlier replay was cut off, or failed, goes on
//! with its report.  Lines of many steps are made durable by one sync, before the first of the
//! steps; a name that a line promised, and that nothing got before the replay was cut off, is used
//! by the next one.  A promise that is not kept when the replay ends is withdrawn by another line.

use std::collections::{HashMap, HashSet, VecDeque};

use rustix::io::Errno;

use super::planted::{planted, Bug};
use super::staging::note_report;
use super::{failed, printable, Result};
use crate::record::Kind;
use crate::tree::{Attr, New, RenameHow, Tree};

const NAME: &str = ".forebay-found";

pub struct Found<'p, N> {
    name: String,
    node: Option<N>,
    /// The last number that was given out.
    number: u64,
    /// Of the log that is replayed.
    entries: Option<&'p [Vec<u8>]>,
    /// And its size.
    report: Option<(N, u64)>,
    /// What the report of an earlier replay of this log says.
    pub earlier: Vec<String>,
    /// What went there, in words.
    pub told: Vec<String>,
    /// All that the report says.
    lines: HashSet<String>,
    /// By path: names that are free, and that the report says already.
    reserved: HashMap<String, VecDeque<Place>>,
    /// Names that something else had got by the time that they were used.
    taken: Vec<Place>,
    /// Promises that are not kept, and the lines that withdraw them.
    withdrawn: HashSet<String>,
}

/// Where something goes.
struct Place {
    name: String,
    /// It promises that.
    line: String,
    /// It withdraws the promise.
    withdrawal: String,
}

impl Place {
    /// `shown` is the name as the report has it.
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
            name: name.into(),
            node: None,
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

    /// Goes on with the report of an earlier replay, which is at this path.
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
        // Later than all that it names.
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

    /// Durable when it returns: the report says them.
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
        let (report, size) = match self.report.take() {
            Some(report) => report,
            None => (self.new_report(tree)?, 0),
        };
        failed(tree.write(&report, size, text.as_bytes()), "write", shown)?;
        failed(tree.sync(&report), "sync", shown)?;
        self.report = Some((report, size + text.len() as u64));
        Ok(())
    }

    fn new_report<T: Tree<Node = N>>(&mut self, tree: &T) -> Result<N> {
        let dir = self.directory(tree)?;
        loop {
            self.number += 1;
            let name = format!("{}-report", self.number);
            let new = New::plain(Kind::File, 0o600);
            let node = match tree.create(&dir, name.as_bytes(), &new) {
                Err(Errno::EXIST) => continue,
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
        let first = self.name.clone();
        let mut more = 0;
        loop {
            let name = self.name.clone();
            let shown = || name.clone();
            let node = match failed(tree.lookup(&root, name.as_bytes()), "look up", shown)? {
                Some(node) => node,
                None => {
                    let new = New::plain(Kind::Directory, 0o700);
                    failed(tree.create(&root, name.as_bytes(), &new), "make", shown)?
                }
            };
            let seals = failed(tree.seals(&node), "look at", shown)?;
            if is_ours(&failed(tree.attr(&node), "look at", shown)?) && !seals.keeps_names() {
                self.node = Some(node.clone());
                return Ok(node);
            }
            more += 1;
            self.name = format!("{first}.{more}");
        }
    }

    /// A name that nothing has, and that is given to nothing else.
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

    /// The report says where what is at these paths goes, when it returns.
    pub fn reserve<T: Tree<Node = N>>(&mut self, tree: &T, paths: &[String]) -> Result<()> {
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

    /// Does this with a name that nothing has.
    fn named<T: Tree<Node = N>, R>(
        &mut self,
        tree: &T,
        path: &str,
        what: &'static str,
        act: impl Fn(&N, &[u8]) -> crate::tree::Result<R>,
    ) -> Result<R> {
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
                    // Another try has the same name.
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

    /// Nothing more is put aside: the promises that nothing has kept are withdrawn, durably.
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

    /// What is at `from`, which `path` tells in words.  Never over anything that is there.
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

    /// A new file, for nobody but its owner.
    pub fn make<T: Tree<Node = N>>(&mut self, tree: &T, path: &str) -> Result<N> {
        let new = New::plain(Kind::File, 0o600);
        self.named(tree, path, "make a copy of", |dir, name| tree.create(dir, name, &new))
    }
}

/// As much of the last part of the path as a name takes.
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

/// What has this name in the root, and is none of Forebay's making.
pub fn put_aside<T: Tree>(tree: &T, name: &[u8]) -> Result<()> {
    Found::new("", None).take(tree, (&tree.root(), name), &printable(name))
}
