// SPDX-License-Identifier: MIT OR Apache-2.0
//! The states that a tree may have after a replay.

use std::collections::BTreeMap;

use super::super::{printable, STAGING};
use super::sim::{Inode, State, ROOT_INO};
use crate::mark;
use crate::record::Kind;

/// For each byte of a file the values that it may have; the file is at least `min` long.
#[derive(Clone, Debug, Default)]
pub struct Bytes {
    pub allowed: Vec<Vec<u8>>,
    pub min: usize,
}

impl Bytes {
    pub fn exact(data: &[u8]) -> Bytes {
        Bytes { allowed: data.iter().map(|b| vec![*b]).collect(), min: data.len() }
    }

    /// A write without a sync.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.allowed.len() < end {
            self.allowed.resize(end, vec![0]);
        }
        for (allowed, b) in self.allowed[offset..end].iter_mut().zip(bytes) {
            allowed.push(*b);
        }
    }
}

/// A state that an allowed history has.
#[derive(Clone, Debug)]
pub struct Truth {
    pub state: State,
    pub bytes: BTreeMap<u64, Bytes>,
}

fn paths(state: &State) -> BTreeMap<Vec<u8>, u64> {
    let (mut all, mut left) = (BTreeMap::new(), vec![(Vec::new(), ROOT_INO)]);
    while let Some((path, ino)) = left.pop() {
        for (name, child) in &state.inodes[&ino].names {
            if ino == ROOT_INO && (name == STAGING || mark::is_own(name)) {
                continue;
            }
            let path = [&path[..], b"/", name].concat();
            all.insert(path.clone(), *child);
            left.push((path, *child));
        }
    }
    all
}

fn same(end: &State, truth: &Truth) -> Result<(), String> {
    let (is, wanted) = (paths(end), paths(&truth.state));
    let shown = |all: &BTreeMap<Vec<u8>, u64>| {
        all.iter().map(|(p, i)| format!("{}={i}", printable(p))).collect::<Vec<_>>().join(" ")
    };
    if !is.keys().eq(wanted.keys()) {
        return Err(format!("names are {}, and not {}", shown(&is), shown(&wanted)));
    }
    let (mut to, mut from) = (BTreeMap::new(), BTreeMap::new());
    for (path, ino) in &is {
        let other = wanted[path];
        if *to.entry(*ino).or_insert(other) != other || *from.entry(other).or_insert(*ino) != *ino {
            return Err(format!("links are {}, and not {}", shown(&is), shown(&wanted)));
        }
        let none = Bytes::default();
        let bytes = truth.bytes.get(&other).unwrap_or(&none);
        inode(&end.inodes[ino], &truth.state.inodes[&other], bytes)
            .map_err(|e| format!("{}: {e}", printable(path)))?;
    }
    Ok(())
}

fn inode(is: &Inode, wanted: &Inode, bytes: &Bytes) -> Result<(), String> {
    let what =
        |i: &Inode| (i.kind, i.mode, i.uid, i.gid, i.target.clone(), i.xattrs.clone(), i.nlink);
    if what(is) != what(wanted) {
        return Err(format!("it is {:?}, and not {:?}", what(is), what(wanted)));
    }
    if is.kind != Kind::File {
        return Ok(());
    }
    let size = is.data.len();
    if size < bytes.min || size > bytes.allowed.len() {
        return Err(format!("size {size}, not {} to {}", bytes.min, bytes.allowed.len()));
    }
    match is.data.iter().zip(&bytes.allowed).position(|(b, a)| !a.contains(b)) {
        Some(at) => Err(format!("byte {at} is {}, not {:?}", is.data[at], bytes.allowed[at])),
        None => Ok(()),
    }
}

pub fn judge(end: &State, truths: &[&Truth]) -> Result<(), String> {
    let mut all = Vec::new();
    for truth in truths {
        match same(end, truth) {
            Ok(()) => return Ok(()),
            Err(e) => all.push(e),
        }
    }
    Err(all.join("; nor: "))
}
