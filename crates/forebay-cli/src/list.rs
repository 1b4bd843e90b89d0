// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay list`: the devices of the kernel module.

use forebay::OriginUse;
use rustix::io::Errno;
use serde::Serialize;
use serde_json::{json, Value};

use crate::args::module::ListDevices;
use crate::module::{self, Control, Device, Error, Listed};
use crate::out::Table;
use crate::{out, status, units};

pub fn run(a: &ListDevices) -> anyhow::Result<u8> {
    let control = Device::new();
    let mut rows = Vec::new();
    for l in module::list(&control)? {
        match row(&control, &l) {
            Ok(row) => rows.push(row),
            // The device was detached meanwhile.
            Err(e) if e.errno() == Some(Errno::NODEV) => {}
            Err(e) => return Err(e.into()),
        }
    }
    if a.json.json {
        out::json(&rows)?;
    } else if rows.is_empty() {
        out::line("no devices; attach one: forebay attach POOL VOLUME ORIGIN")?;
    } else {
        out::line(table(&rows))?;
        remarks(&rows).iter().try_for_each(out::line)?;
    }
    Ok(0)
}

#[derive(Serialize)]
struct Row {
    device: String,
    volume: String,
    state: String,
    size_bytes: Option<u64>,
    cached_bytes: Option<u64>,
    pool: String,
    pool_uuid: Option<String>,
    origin: String,
    options: Value,
    counters: Value,
    /// `None` before the first request to the origin.
    origin_use: Option<OriginUse>,
}

/// The module's names of [`OriginUse`].
const USE: [&str; 3] =
    ["written_pages_per_request", "pages_per_request", "copies_per_written_page"];

fn origin_use(status: &module::Status) -> Option<OriginUse> {
    let ratio = |name| status.fields.get(name)?.parse().ok();
    Some(OriginUse {
        written_pages_per_request: ratio(USE[0])?,
        pages_per_request: ratio(USE[1])?,
        copies_per_written_page: ratio(USE[2])?,
    })
}

/// Returns the lines below the table.
fn remarks(rows: &[Row]) -> Vec<String> {
    let mut lines = Vec::new();
    for r in rows {
        lines.extend(r.origin_use.map(|origin_use| format!("{}: {origin_use}", r.device)));
        let eras = r.counters["eras_percent"].as_u64().unwrap_or(0);
        lines.extend(status::eras_text(eras as u32).map(|text| format!("{}: {text}", r.device)));
        let detached = r.counters["detached_bytes"].as_u64().filter(|n| *n > 0);
        lines.extend(detached.map(|n| {
            format!("{}: memory alone has {n} bytes of volumes of {} that are detached: attach each and detach it with --rescue", r.device, r.pool)
        }));
    }
    lines
}

fn row(control: &dyn Control, l: &Listed) -> Result<Row, Error> {
    let status = module::status(control, &l.device)?;
    let number = |text: &String| text.parse::<u64>().map_or_else(|_| json!(text), |n| json!(n));
    let option = |value: &Option<String>| value.as_ref().map_or(json!(true), number);
    let own = |name: &str| ["pool", "volume"].contains(&name) || USE.contains(&name);
    let counters = status.fields.iter().filter(|(name, _)| !own(name));
    Ok(Row {
        device: format!("/dev/{}", l.device),
        volume: l.volume.clone(),
        size_bytes: module::size_bytes(&l.device),
        cached_bytes: status.number("pages").map(|n| n * 4096),
        pool: module::device_path(&l.cache),
        pool_uuid: status.fields.get("pool").cloned(),
        origin: format!("/dev/{}", l.origin),
        options: l.options.iter().map(|(k, v)| (k.clone(), option(v))).collect(),
        origin_use: origin_use(&status),
        counters: counters.map(|(k, v)| (k.clone(), number(v))).collect(),
        state: status.state,
    })
}

fn table(rows: &[Row]) -> Table {
    let mut t = Table::new(&["device", "<volume", "size", "cached", "<state", "<pool", "<origin"]);
    for r in rows {
        let bytes = |n: Option<u64>| n.map_or("?".into(), units::bytes);
        t.row(vec![
            r.device.clone(),
            r.volume.clone(),
            bytes(r.size_bytes),
            bytes(r.cached_bytes),
            r.state.replace('_', " "),
            r.pool.clone(),
            r.origin.clone(),
        ]);
    }
    t
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::tests::Script;

    const LIST: &str = "ok\nforebay0 259:0 sdb data 1 cleaner\n";

    fn row_of(answer: &str) -> Row {
        let l = &module::list(&Script::new(&[("list", LIST)])).unwrap()[0];
        row(&Script::new(&[("status forebay0", answer)]), l).unwrap()
    }

    #[test]
    fn rows() {
        let answer = "ok lost_data pool=0-1 volume=data pages=3 writes=7 destage=idle\n";
        let r = row_of(answer);
        assert_eq!((r.state.as_str(), r.cached_bytes), ("lost_data", Some(12288)));
        assert_eq!(r.pool_uuid.as_deref(), Some("0-1"));
        assert_eq!(r.options, json!({ "cleaner": true }));
        assert_eq!(r.counters, json!({ "pages": 3, "writes": 7, "destage": "idle" }));
        let text = table(&[r]).to_string();
        assert!(text.contains("lost data") && text.contains("12 KiB"), "{text}");
    }

    #[test]
    fn what_is_said_below_the_table() {
        let answer = "ok ok written_pages_per_request=3.25 pages_per_request=2.50 \
             copies_per_written_page=0.75 slots=4 eras_percent=80\n";
        let r = row_of(answer);
        assert_eq!(r.counters, json!({ "slots": 4, "eras_percent": 80 }));
        let said = remarks(&[r]).join("\n");
        for text in [
            "forebay0: 3.25 pages written for each request",
            "2.50 in each, 0.75 copied",
            "80 % of its eras",
        ] {
            assert!(said.contains(text), "{said}");
        }
        let said = remarks(&[row_of("ok medium_failed detached_bytes=4096\n")]).join("\n");
        assert!(said.contains("alone has 4096 bytes"), "{said}");
        assert!(remarks(&[row_of("ok ok slots=4 eras_percent=2 writes=3\n")]).is_empty());
    }

    /// The module prints the same names.
    #[test]
    fn names_of_ratios() {
        let module = include_str!("../../../kernel/setup.c");
        for name in USE {
            assert!(module.contains(&format!("\"{name}\"")), "{name}");
        }
    }
}
