// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results of bench/dynamic.sh: First Responder's dynamic load, and mail.

use serde_json::Value;

use anyhow::Result;

use super::{figure, list, number, spread, text, three, Page};
use crate::plots::{self, Bar, Line, Text};

const SIDES: [(&str, &str); 3] =
    [("origin", "the disk alone"), ("volume", "volume"), ("static", "static volume")];

impl Page {
    pub(super) fn dynamic(&mut self) -> Result<()> {
        let Some(v) = self.read("dynamic")? else { return Ok(()) };
        let how = format!(
            "First Responder's load of twelve files (FIO-12), a GB of the talk's as {} MiB: the files begin one \
             after the other, each with its own distribution, unit, reads, syncs and pauses. And a mail load for \
             {} s. On ext4 on the disk alone ({}), on a volume and on a static one, served, each with a pool of \
             {} MiB. Medians of {} interleaved rounds, lowest and highest.",
            figure(number(&v, "gb_mib")),
            figure(number(&v, "varmail_seconds")),
            text(&v, "disk"),
            figure(number(&v, "pool_mib")),
            figure(number(&v, "rounds")),
        );
        self.heading("A dynamic load, and mail", &how);
        let mut bars = Vec::new();
        let mut rows = Vec::new();
        for load in list(&v, "loads") {
            let name = text(load, "load");
            for (side, title) in &SIDES[1..] {
                let [value, low, high] = three(load, &format!("over_origin/{side}"));
                bars.push(Bar { name: format!("{name}, {title}"), low, value, high });
            }
            let [value, low, high] = three(load, "static_over_volume");
            bars.push(Bar { name: format!("{name}, static over volume"), low, value, high });
            for (side, title) in SIDES {
                rows.push(vec![
                    name.clone(),
                    title.into(),
                    spread(load, &format!("sides/{side}/value")),
                    text(load, "unit"),
                    spread(load, &format!("sides/{side}/seconds")),
                    figure(number(load, &format!("sides/{side}/conflicts"))),
                    text(load, &format!("sides/{side}/command")),
                ]);
            }
        }
        let path = self.picture("dynamic", "ratios of the dynamic load");
        plots::ratios(&path, &Text { caption: "Over the disk alone", x: "ratio", y: "" }, &bars)?;
        if let Some(load) = list(&v, "loads").iter().find(|l| text(l, "load") == "fio-12") {
            let path = self.picture("dynamic-timeline", "MB/s of all files, over time");
            let t = Text { caption: "FIO-12, the first round", x: "seconds", y: "MB/s" };
            let lines = SIDES.map(|(side, title)| Line {
                name: title.into(),
                points: points(load, &format!("sides/{side}/timeline")),
            });
            plots::lines(&path, &t, &lines, false)?;
        }
        let head = ["load", "", "rate", "unit", "seconds", "conflicts", "command"];
        self.table(&head, &rows);
        self.command(&text(&v, "command"));
        Ok(())
    }
}

fn points(v: &Value, path: &str) -> Vec<(f64, f64)> {
    list(v, path).iter().map(|p| (number(p, "0"), number(p, "1"))).collect()
}
