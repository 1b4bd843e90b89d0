// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `forebay bench map` measured: files mapped onto a pool, beside the kernel's mappings.

use anyhow::Result;
use serde_json::Value;

use super::{figure, list, number, text, Page};
use crate::plots::{self, Line, Text};

impl Page {
    pub(super) fn maps(&mut self) -> Result<()> {
        let Some(v) = self.read("bench-map")? else { return Ok(()) };
        let how = format!(
            "A sync of a mapped file, in turns with the kernel's msync of a file in {}: of one dirty page and its \
             range, and of the whole mapping. The pool is a {}. And writes at random, each with a sync of its \
             range, while what is dirty is written back.",
            text(&v, "dir"),
            text(&v, "media"),
        );
        self.heading("Files mapped onto a pool", &how);
        let sync = list(&v, "sync");
        let last = sync.last().map_or(f64::NAN, |r| number(r, "mapping_mib"));
        let line = |name: &str, x: &str, y: &str, rows: &dyn Fn(&Value) -> bool| Line {
            name: name.into(),
            points: sync.iter().filter(|r| rows(r)).map(|r| (number(r, x), number(r, y))).collect(),
        };
        let one = |what: &'static str| {
            move |r: &Value| text(r, "what") == what && number(r, "dirty_pages") == 1.0
        };
        let path = self.picture("map-sync", "time of a sync against the size of the mapping");
        let t = Text { caption: "One dirty page", x: "MiB mapped", y: "microseconds" };
        let lines = [
            line("of the page", "mapping_mib", "p50_us", &one("page")),
            line("of the whole", "mapping_mib", "p50_us", &one("whole")),
            line("msync of the page", "mapping_mib", "kernel_p50_us", &one("page")),
        ];
        plots::lines(&path, &t, &lines, true)?;
        let path = self.picture("map-pages", "time of a sync against its dirty pages");
        let caption = format!("The whole of {} MiB", figure(last));
        let t = Text { caption: &caption, x: "dirty pages", y: "microseconds" };
        let whole = |r: &Value| text(r, "what") == "whole" && number(r, "mapping_mib") == last;
        let lines = [
            line("sync", "dirty_pages", "p50_us", &whole),
            line("msync", "dirty_pages", "kernel_p50_us", &whole),
        ];
        plots::lines(&path, &t, &lines, true)?;
        let writes = list(&v, "writes");
        for (picture, x, caption, rows) in [
            ("map-threads", "threads", "4 KiB writes, each with a sync", true),
            ("map-blocks", "block", "writes by one thread, each with a sync", false),
        ] {
            let of = |y: &str| -> Vec<(f64, f64)> {
                let block = |r: &&Value| (number(r, "block") == 4096.0) || !rows;
                let threads = |r: &&Value| number(r, "threads") == 1.0 || rows;
                let all = writes.iter().filter(block).filter(threads);
                all.map(|r| (number(r, x), number(r, y))).collect()
            };
            let path = self.picture(picture, caption);
            let x = if rows { "threads" } else { "bytes" };
            let lines = [("mapped onto the pool", "mib_per_s"), ("msync", "kernel_mib_per_s")];
            let lines = lines.map(|(name, y)| Line { name: name.into(), points: of(y) });
            plots::lines(&path, &Text { caption, x, y: "MiB/s" }, &lines, true)?;
        }
        if let Some(page) = sync.iter().rfind(|r| one("page")(r)) {
            let answer = format!(
                "{} us for a page of {} MiB, {} times as fast as msync",
                figure(number(page, "p50_us")),
                figure(number(page, "mapping_mib")),
                figure(number(page, "ratio")),
            );
            self.answer("What does a sync of a mapped file cost?", answer);
        }
        let row = |r: &Value, fields: &[&str]| -> Vec<String> {
            fields.iter().map(|f| figure(number(r, f))).collect()
        };
        let rows: Vec<_> = sync
            .iter()
            .map(|r| {
                let rest =
                    ["mapping_mib", "dirty_pages", "p50_us", "p90_us", "kernel_p50_us", "ratio"];
                [vec![text(r, "what")], row(r, &rest)].concat()
            })
            .collect();
        self.table(&["sync of", "MiB", "dirty pages", "us", "p90", "msync, us", "ratio"], &rows);
        let fields = ["threads", "block", "mib_per_s", "kernel_mib_per_s", "ratio"];
        let rows: Vec<_> = writes.iter().map(|r| row(r, &fields)).collect();
        self.table(&["threads", "bytes", "MiB/s", "msync, MiB/s", "ratio"], &rows);
        let rows = [
            ("first store to a page, us", "store_us", "kernel_store_us"),
            ("the same where nothing was stored for a while", "store_to_clean_segment_us", ""),
            ("the same where that is much", "store_to_watched_segment_us", ""),
            ("all pages of 2 MiB touched, nothing cached", "segment_us", "kernel_segment_us"),
            ("the same, the file cached", "segment_warm_us", "kernel_segment_warm_us"),
            ("loads, ns a KiB", "load_ns_per_kib", "memory_load_ns_per_kib"),
        ]
        .map(|(name, ours, theirs)| {
            vec![name.to_string(), figure(number(&v, ours)), figure(number(&v, theirs))]
        });
        self.table(&["", "pool", "kernel, or memory"], &rows);
        self.command(&text(&v, "command"));
        Ok(())
    }
}
