// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of which one thread at a time opens or closes each, by identity.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::locked::lock;

/// The files that are being opened or closed.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    all: Mutex<BTreeSet<Vec<u8>>>,
    ended: Condvar,
}

/// A file that this thread opens or closes.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    of: &'a Claims,
    identity: Vec<u8>,
}

impl Claims {
    /// Waits for the thread that has claimed this file, and for no other.
    pub fn claim(&self, identity: &[u8]) -> Claim<'_> {
        let mut all = lock(&self.all);
        while all.contains(identity) {
            all = self.ended.wait(all).unwrap_or_else(PoisonError::into_inner);
        }
        all.insert(identity.to_vec());
        Claim { of: self, identity: identity.to_vec() }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        lock(&self.of.all).remove(&self.identity);
        self.of.ended.notify_all();
    }
}
