// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results of `forebay bench map`: files mapped onto a pool, compared with the kernel's
//! mappings; and of bench/map-run.sh: programs by `forebay map-run`, compared with plain ones.

use anyhow::Result;
use serde_json::Value;

use super::{figure, list, number, range, spread, text, three, Page};
use crate::plots::{self, Bar, Line, Text};

const SIDES: [(&str, &str); 3] =
    [("plain", "plain"), ("mapped", "by map-run"), ("library", "on the library")];

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
                let us = ["p50_us", "p90_us", "added_us_a_page", "kernel_p50_us", "ratio"];
                let which = [vec![text(r, "what")], row(r, &["mapping_mib", "dirty_pages"])];
                [which.concat(), row(r, &us)].concat()
            })
            .collect();
        let head =
            ["sync of", "MiB", "dirty pages", "us", "p90", "a page more", "msync, us", "ratio"];
        self.table(&head, &rows);
        let fields = ["threads", "block", "mib_per_s", "kernel_mib_per_s", "ratio"];
        let rows: Vec<_> = writes.iter().map(|r| row(r, &fields)).collect();
        self.table(&["threads", "bytes", "MiB/s", "msync, MiB/s", "ratio"], &rows);
        let rest = [
            ("first store to a page, us", "store_us", "kernel_store_us"),
            ("the same where nothing was stored for a while", "store_to_clean_segment_us", ""),
            ("the same where that is much", "store_to_watched_segment_us", ""),
            ("all pages of 2 MiB touched, nothing cached", "segment_us", "kernel_segment_us"),
            ("the same, the file cached", "segment_warm_us", "kernel_segment_warm_us"),
            ("loads, ns a KiB", "load_ns_per_kib", "memory_load_ns_per_kib"),
        ];
        let bars: Vec<_> = ["first store", "2 MiB, not cached", "2 MiB, cached", "loads"]
            .iter()
            .zip([0, 3, 4, 5].map(|i| rest[i]))
            .map(|(name, (_, ours, theirs))| (*name, number(&v, theirs) / number(&v, ours)))
            .filter(|(_, ratio)| ratio.is_finite())
            .map(|(name, value)| Bar { name: name.into(), low: value, value, high: value })
            .collect();
        let path = self.picture("map-rest", "first stores, segments brought in, and loads");
        let t = Text { caption: "What the kernel takes, over the pool's", x: "times", y: "" };
        plots::ratios(&path, &t, &bars)?;
        let rows = rest.map(|(name, ours, theirs)| {
            vec![name.to_string(), figure(number(&v, ours)), figure(number(&v, theirs))]
        });
        self.table(&["", "pool", "kernel, or memory"], &rows);
        self.command(&text(&v, "command"));
        Ok(())
    }

    pub(super) fn map_run(&mut self) -> Result<()> {
        let Some(v) = self.read("map-run")? else { return Ok(()) };
        let how = format!(
            "Programs as they are, with their files on {} ({}), plain and by forebay map-run, with a pool in memory, \
             in turns; fio, which writes 4 KiB at random with an msync each, also by an engine on \
             libforebay-map. Medians of {} rounds of {} s, lowest and highest.",
            text(&v, "dir"),
            text(&v, "file_system"),
            figure(number(&v, "rounds")),
            figure(number(&v, "seconds")),
        );
        self.heading("Programs by map-run", &how);
        let (mut bars, mut rows) = (Vec::new(), Vec::new());
        for program in list(&v, "programs") {
            let name = text(program, "program");
            for (side, title) in SIDES {
                let rate = format!("per_s/{side}");
                if program.pointer(&format!("/{rate}")).is_none() {
                    continue;
                }
                let [value, low, high] = three(program, &format!("over_plain/{side}"));
                if value.is_finite() {
                    bars.push(Bar { name: format!("{name}, {title}"), low, value, high });
                }
                rows.push(vec![
                    name.clone(),
                    title.into(),
                    spread(program, &rate),
                    text(program, "unit"),
                    figure(value),
                    spread(program, &format!("cpu_us/{side}")),
                ]);
            }
        }
        let path = self.picture("map-run", "programs by map-run over plain ones");
        plots::ratios(&path, &Text { caption: "Over plain", x: "times", y: "" }, &bars)?;
        if let Some(answer) = range(&bars) {
            self.answer("What does map-run make of programs that know of nothing?", answer);
        }
        self.table(&["", "", "a second", "of", "times plain", "us of CPU time each"], &rows);
        self.command(&text(&v, "command"));
        Ok(())
    }
}
