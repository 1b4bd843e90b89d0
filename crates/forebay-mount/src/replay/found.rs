// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a replay puts what is in dispute: a directory in the tree's root, of the user who
//! replays and for nobody else, with a report of what happened.
//!
//! ```text
//! .forebay-found/N-NAME    what was in the way, what has no name that is certain, and what
//!                          the log has of files that are missing or were changed
//! .forebay-found/N-report  why, line by line
//! ```

use rustix::io::Errno;

use super::{failed, printable, Result};
use crate::record::Kind;
use crate::tree::{New, RenameHow, Tree};

const NAME: &str = ".forebay-found";

pub struct Found<N> {
    name: String,
    node: Option<N>,
    /// The last number that was given out.
    number: u64,
    /// What went there, in words.
    pub told: Vec<String>,
}

impl<N: Clone + Send + Sync> Found<N> {
    pub fn new(name: &str) -> Found<N> {
        let name = if name.is_empty() { NAME } else { name };
        Found { name: name.into(), node: None, number: 0, told: Vec::new() }
    }

    /// Another may have made something of that name before: nothing goes where he can read
    /// it, or take it away.
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
            let attr = failed(tree.attr(&node), "look at", shown)?;
            let ours = New::plain(Kind::Directory, 0o700);
            if attr.kind == ours.kind && attr.uid == ours.uid && attr.mode & 0o077 == 0 {
                self.node = Some(node.clone());
                return Ok(node);
            }
            more += 1;
            self.name = format!("{first}.{more}");
        }
    }

    /// Does this with one name after the other, until there is one that nothing has.
    fn named<R>(
        &mut self,
        path: &str,
        what: &'static str,
        act: impl Fn(&[u8]) -> crate::tree::Result<R>,
    ) -> Result<R> {
        // As much of the last part of the path as a name takes.
        let last = path.rsplit('/').next().unwrap_or_default();
        let mut end = last.len().min(200);
        while !last.is_char_boundary(end) {
            end -= 1;
        }
        loop {
            self.number += 1;
            let name = format!("{}-{}", self.number, &last[..end]);
            match act(name.as_bytes()) {
                Err(Errno::EXIST) => {}
                done => {
                    let done = failed(done, what, || path.into())?;
                    self.told.push(format!(
                        "{path}: now {}/{}",
                        self.name,
                        printable(name.as_bytes())
                    ));
                    return Ok(done);
                }
            }
        }
    }

    /// What is at `from`, which `path` tells in words.  Never over anything that is there.
    pub fn take<T: Tree<Node = N>>(
        &mut self,
        tree: &T,
        from: (&N, &[u8]),
        path: &str,
    ) -> Result<()> {
        let dir = self.directory(tree)?;
        self.named(path, "move aside", |name| tree.rename(from, (&dir, name), RenameHow::NoReplace))
    }

    /// A new file, for nobody but its owner.
    pub fn make<T: Tree<Node = N>>(&mut self, tree: &T, path: &str) -> Result<N> {
        let dir = self.directory(tree)?;
        let new = New::plain(Kind::File, 0o600);
        self.named(path, "make a copy of", |name| tree.create(&dir, name, &new))
    }
}

/// Writes what there is to tell, if there is anything.
pub fn report<T: Tree>(tree: &T, name: &str, lines: &[&str]) -> Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut found = Found::new(name);
    let node = found.make(tree, "report")?;
    let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    failed(tree.write(&node, 0, text.as_bytes()), "write", || "report".into())
}

/// What has this name in the root, and is none of Forebay's making.
pub fn put_aside<T: Tree>(tree: &T, name: &[u8]) -> Result<()> {
    let mut found = Found::new("");
    found.take(tree, (&tree.root(), name), &printable(name))?;
    let lines: Vec<&str> = found.told.iter().map(String::as_str).collect();
    report(tree, "", &lines)
}
