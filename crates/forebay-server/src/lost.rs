// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file of a served pool is removed, replaced, cut short or moved.
//!
//! Nobody can open a lost file after a crash.  So nothing more is acknowledged, and what the pool
//! holds goes to origins and trees at once, while this process still has the file.

use std::ops::ControlFlow;
use std::sync::PoisonError;

use forebay::FileTrouble;

use crate::server::Shared;
use crate::warn;

impl Shared {
    /// Says each once.  After a loss it returns when origins and trees have everything, or the server
    /// stops.
    pub(crate) fn look_at_file(&self) {
        let found = self.pool().look_at_file();
        let told = {
            let mut told = self.told_of_file.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *told, found.clone())
        };
        let Some(trouble) = found.filter(|found| told.as_ref() != Some(found)) else { return };
        warn(format_args!("pool {}: {trouble}", self.pool().path().display()));
        if trouble.what.is_loss() {
            self.bring_home(&trouble);
        }
    }

    fn bring_home(&self, lost: &FileTrouble) {
        let pool = self.pool();
        if pool.read_only() {
            return;
        }
        // The disks of trees and origins differ: none of them waits for another.
        std::thread::scope(|scope| {
            for service in self.running() {
                let of_service = service.clone();
                let lose = move || of_service.pool_lost(&lost.cause);
                if std::thread::Builder::new().spawn_scoped(scope, lose).is_err() {
                    service.pool_lost(&lost.cause);
                }
            }
            if pool.is_set_back() || pool.at_stake().is_empty() {
                return;
            }
            let drained = pool.drain(None, &mut |_, _| match self.is_stopping() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            });
            let path = pool.path().display();
            match drained {
                Ok(judged) if judged.iter().all(|c| c.complete) => warn(format_args!(
                    "pool {path}: the origins of its volumes have everything; end the server, and make a new pool"
                )),
                Ok(judged) => judged
                    .iter()
                    .filter(|c| !c.complete)
                    .for_each(|c| warn(format_args!("volume {}: {c}", c.volume))),
                Err(_) if self.is_stopping() => {}
                Err(e) => warn(e),
            }
        });
    }
}
