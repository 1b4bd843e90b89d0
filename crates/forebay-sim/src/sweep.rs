// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs in threads, and the report of what came of them: a table's rows, or JSON.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::Instant;

use serde::Serialize;

pub const NO_PANIC: &str = "no thread panics";

/// Runs the worker in so many threads, until each has ended.
pub fn in_threads(threads: usize, worker: impl Fn() + Sync) {
    std::thread::scope(|s| {
        for _ in 0..threads.max(1) {
            s.spawn(&worker);
        }
    });
}

/// Calls `f` for each job, in threads.
pub fn each<J: Sync>(threads: usize, jobs: &[J], f: impl Fn(usize, &J) + Sync) {
    let next = AtomicUsize::new(0);
    in_threads(threads, || loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        let Some(job) = jobs.get(n) else { return };
        f(n, job);
    });
}

/// A result that is added up from several jobs, or stands alone.
pub trait Row: Serialize + Send {
    /// Names of the columns; the first two are words, the others numbers.
    const COLUMNS: &'static [&'static str];
    fn cells(&self) -> Vec<String>;
    /// True if the other's numbers were added to this one's: they are of one kind.
    fn merge(&mut self, _: &Self) -> bool {
        false
    }
}

#[derive(Serialize)]
pub struct Report<R> {
    rows: Vec<R>,
    seconds: f64,
    violations: Vec<String>,
}

impl<R: Row> Report<R> {
    /// Runs all jobs; rows are in the order of the jobs.
    pub fn run<J: Sync>(
        threads: usize,
        jobs: &[J],
        job: impl Fn(&J) -> Result<R, String> + Sync,
    ) -> Self {
        let start = Instant::now();
        let (done, violations) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        each(threads, jobs, |n, j| match job(j) {
            Ok(row) => done.lock().expect(NO_PANIC).push((n, row)),
            Err(e) => violations.lock().expect(NO_PANIC).push(e),
        });
        let mut done = done.into_inner().expect(NO_PANIC);
        done.sort_by_key(|(n, _)| *n);
        let mut rows: Vec<R> = Vec::new();
        for (_, row) in done {
            if !rows.iter_mut().any(|r| r.merge(&row)) {
                rows.push(row);
            }
        }
        let violations = violations.into_inner().expect(NO_PANIC);
        Self { rows, seconds: start.elapsed().as_secs_f64(), violations }
    }

    /// Prints it; false if there is a violation.
    pub fn print(&self, json: bool) -> bool {
        if json {
            println!("{}", serde_json::to_string(self).expect("plain data"));
            return self.violations.is_empty();
        }
        let columns = R::COLUMNS.iter().map(ToString::to_string).collect();
        for cells in std::iter::once(columns).chain(self.rows.iter().map(Row::cells)) {
            let line: Vec<String> = cells
                .iter()
                .enumerate()
                .map(|(i, c)| if i < 2 { format!("{c:11}") } else { format!("{c:>9}") })
                .collect();
            println!("{}", line.join(" "));
        }
        println!("{:.1} s", self.seconds);
        self.violations.iter().for_each(|v| println!("VIOLATION: {v}"));
        self.violations.is_empty()
    }
}
