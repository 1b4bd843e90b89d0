// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dangers that an operator may accept, one by one: consent to one is not consent to
//! another.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The accepted kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Accept {
    /// The tree is at another path.  Nothing is lost by that.
    pub moved: bool,
    /// The tree is an older copy: changes between it and the log are lost.
    pub older_tree: bool,
    /// The tree's number is missing or proves nothing, so an older copy is not recognized.
    pub no_group: bool,
    /// The tree has no mark of the log, so later changes may be undone.
    pub unmarked: bool,
    /// The last operation, which the tree now refuses, is left out.
    pub under_way: bool,
    /// Entries of the log are lost, and everything that depends on them is left out.
    pub lost_entries: bool,
    /// The tree refuses a change as not permitted, and shows no seal: one that does not show, as on
    /// NFS, is taken for the reason.
    pub sealed: bool,
}

/// A kind's name and its field.
type Kind = (&'static str, fn(&mut Accept) -> &mut bool);

const KINDS: [Kind; 7] = [
    ("moved", |a| &mut a.moved),
    ("older-tree", |a| &mut a.older_tree),
    ("no-group", |a| &mut a.no_group),
    ("unmarked", |a| &mut a.unmarked),
    ("under-way", |a| &mut a.under_way),
    ("lost-entries", |a| &mut a.lost_entries),
    ("sealed", |a| &mut a.sealed),
];

impl Accept {
    /// For tests of dangers that no one may accept.
    pub fn all() -> Accept {
        let mut all = Accept::default();
        KINDS.iter().for_each(|(_, kind)| *kind(&mut all) = true);
        all
    }

    /// A kind by its name.
    pub fn has(mut self, name: &str) -> bool {
        KINDS.iter().any(|(known, kind)| *known == name && *kind(&mut self))
    }
}

/// A line of the report.
pub(crate) fn accepted(kind: &str, what: impl fmt::Display) -> String {
    format!("accepted ({kind}): {what}")
}

/// Whether a line of a report is of [`accepted`].
pub(crate) fn is_accepted(line: &str) -> bool {
    line.starts_with("accepted (")
}

impl fmt::Display for Accept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut given = *self;
        let names = KINDS.iter().filter(|(_, kind)| *kind(&mut given)).map(|(name, _)| *name);
        f.write_str(&names.collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Accept {
    type Err = String;

    fn from_str(names: &str) -> Result<Accept, String> {
        let mut accept = Accept::default();
        for given in names.split(',').filter(|name| !name.is_empty()) {
            let Some((_, kind)) = KINDS.iter().find(|(name, _)| *name == given) else {
                let known: Vec<_> = KINDS.iter().map(|(name, _)| *name).collect();
                return Err(format!("{given} is nothing to accept: use {}", known.join(", ")));
            };
            *kind(&mut accept) = true;
        }
        Ok(accept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_kind_is_no_other() {
        for (name, _) in KINDS {
            let one: Accept = name.parse().expect("a kind");
            assert_eq!(one.to_string(), name);
            for (other, _) in KINDS {
                assert_eq!(one.has(other), name == other);
            }
        }
        assert_eq!("".parse::<Accept>(), Ok(Accept::default()));
        let all = KINDS.map(|(name, _)| name).join(",");
        assert_eq!((all.parse::<Accept>(), Accept::all().to_string()), (Ok(Accept::all()), all));
        assert!("all".parse::<Accept>().is_err_and(|e| e.contains("older-tree")));
    }
}
