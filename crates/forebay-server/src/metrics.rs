// SPDX-License-Identifier: MIT OR Apache-2.0
//! The status of a pool as Prometheus metrics.

use std::fmt::Write;
use std::net::TcpListener;

use forebay::{Error, LogInfo, LogState, MediumStatus, PoolStatus, VolumeInfo};

use crate::http::Answer;
use crate::service::{Figure, ServerStatus, ServiceStatus};

/// A metric of the pool, a volume or a service: name, type, help, value.
pub type Row<T> = (&'static str, &'static str, &'static str, fn(&T) -> f64);

fn flag(b: bool) -> f64 {
    f64::from(u8::from(b))
}

const POOL: &[Row<PoolStatus>] = &[
    ("chunks", "gauge", "Chunks of the pool.", |s| f64::from(s.chunks)),
    ("chunks_used", "gauge", "Chunks that hold entries or are open.", |s| f64::from(s.chunks_used)),
    ("capacity_bytes", "gauge", "Data the pool can hold.", |s| s.capacity_bytes as f64),
    ("static_bytes", "gauge", "Room for static volumes, in addition.", |s| s.static_bytes as f64),
    ("static_cached_bytes", "gauge", "Data cached of static volumes.", |s| {
        s.static_cached_bytes as f64
    }),
    ("cached_bytes", "gauge", "Data the pool holds.", |s| s.cached_bytes as f64),
    ("memory_bytes", "gauge", "Memory of the engine and of destage.", |s| {
        (s.memory_bytes + s.destage_memory_bytes) as f64
    }),
    ("media_durable", "gauge", "1 if an acknowledged write survives a power cut.", |s| {
        flag(s.media.durable)
    }),
    ("recovery_seconds", "gauge", "Time the last opening took.", |s| s.recovery.seconds),
    ("recovery_clean", "gauge", "1 if the pool had been closed cleanly.", |s| {
        flag(s.recovery.clean)
    }),
    (
        "recovery_lost_groups",
        "gauge",
        "Groups that the pool's disk had said to be durable, and that the last opening missed.",
        |s| s.recovery.groups_lost as f64,
    ),
    ("uptime_seconds", "gauge", "Since the pool was opened.", |s| s.uptime_seconds),
    ("writes_total", "counter", "Writes taken in.", |s| s.counters.writes as f64),
    ("written_bytes_total", "counter", "Bytes taken in.", |s| s.counters.written_bytes as f64),
    ("merges_total", "counter", "Partial writes merged with a cached page.", |s| {
        s.counters.merges as f64
    }),
    ("commits_total", "counter", "Commits to the media; each is one fence.", |s| {
        s.counters.commits as f64
    }),
    ("media_bytes_total", "counter", "Bytes stored to the media.", |s| {
        s.counters.media_bytes as f64
    }),
    ("read_hit_bytes_total", "counter", "Bytes read from the cache.", |s| {
        s.counters.read_hit_bytes as f64
    }),
    ("read_miss_bytes_total", "counter", "Bytes read from origins.", |s| {
        s.counters.read_miss_bytes as f64
    }),
    ("discards_total", "counter", "Blocks discarded.", |s| s.counters.discards as f64),
    ("zeroes_total", "counter", "Blocks zeroed.", |s| s.counters.zeroes as f64),
    ("flushes_total", "counter", "Flushes; those owed for bypassed writes went on.", |s| {
        s.counters.flushes as f64
    }),
    ("waits_block_total", "counter", "Requests that found their block busy.", |s| {
        s.counters.waits_block as f64
    }),
    ("waits_slot_total", "counter", "Requests that found all slots busy.", |s| {
        s.counters.waits_slot as f64
    }),
    ("waits_space_total", "counter", "Requests that found the pool full.", |s| {
        s.counters.waits_space as f64
    }),
    ("damaged_pages_total", "counter", "Cached pages found damaged.", |s| {
        s.counters.damaged_pages as f64
    }),
    (
        "pool_file_lost",
        "gauge",
        "1 if the pool's file was removed, cut short or overwritten: nothing more is acknowledged.",
        |s| flag(s.file_trouble.as_ref().is_some_and(|found| found.what.is_loss())),
    ),
    (
        "pool_file_moved",
        "gauge",
        "1 if the pool's file has another name than that by which it was opened.",
        |s| flag(s.file_trouble.as_ref().is_some_and(|found| !found.what.is_loss())),
    ),
    ("destage_failed", "gauge", "1 if destage ended for an internal error.", |s| {
        flag(s.destage_failure.is_some())
    }),
];

const VOLUME: &[Row<VolumeInfo>] = &[
    ("attached", "gauge", "1 while the origin is attached.", |v| flag(v.attached)),
    ("size_bytes", "gauge", "Size of the volume.", |v| v.size_bytes as f64),
    ("cached_bytes", "gauge", "Data cached of the volume.", |v| v.cached_bytes as f64),
    ("static_bytes", "gauge", "Share of the pool of a static volume; 0: it is none.", |v| {
        v.static_bytes as f64
    }),
    ("static_slots", "gauge", "Slots of a static volume.", |v| f64::from(v.static_slots)),
    ("uncounted", "gauge", "1 while a static volume may hold more than is counted.", |v| {
        flag(v.uncounted)
    }),
    (
        "conflicts_total",
        "counter",
        "Writes that waited for another block of their slot to be on the origin.",
        |v| v.conflicts as f64,
    ),
    (
        "eras_used_ratio",
        "gauge",
        "Of a static volume: the part of its eras that is used; at 1 it takes no write.",
        |v| f64::from(v.eras_percent) / 100.0,
    ),
    ("lost_blocks", "gauge", "Blocks that answer an I/O error.", |v| v.lost_blocks as f64),
    ("lost_entries", "gauge", "Entries found lost and not accepted.", |v| v.holes as f64),
    ("origin_changed", "gauge", "1 if its origin is deleted, moved, or of another size.", |v| {
        flag(v.origin_changed.is_some())
    }),
    ("origin_away", "gauge", "1 if its origin, on the network, cannot be reached.", |v| {
        flag(v.origin_away.is_some())
    }),
    ("damaged", "gauge", "1 if the volume's record is damaged.", |v| flag(v.damaged)),
    ("writes_total", "counter", "Writes taken in.", |v| v.writes as f64),
    ("written_bytes_total", "counter", "Bytes taken in.", |v| v.written_bytes as f64),
    ("origin_writes_total", "counter", "Requests written to the origin.", |v| {
        v.origin_writes as f64
    }),
    ("origin_written_bytes_total", "counter", "Bytes of data written to the origin.", |v| {
        v.origin_written_bytes as f64
    }),
    ("origin_flushes_total", "counter", "Flushes of the origin.", |v| v.origin_flushes as f64),
    ("origin_errors_total", "counter", "Errors of the origin.", |v| v.origin_errors as f64),
    (
        "pages_refused",
        "gauge",
        "Pages that the origin refused and lacks; they stay in the pool.",
        |v| v.pages_refused as f64,
    ),
    (
        "pages_relocated_total",
        "counter",
        "Pages copied within the pool: kept by destage, or of mostly dead chunks.",
        |v| v.pages_relocated as f64,
    ),
    ("pages_destaged_total", "counter", "Pages written to the origin and released.", |v| {
        v.pages_destaged as f64
    }),
    ("rounds_total", "counter", "Destage rounds completed.", |v| v.rounds as f64),
    (
        "drain_bytes_per_second",
        "gauge",
        "Bytes released a second, over the last second or so.",
        |v| v.drain_bytes_per_s as f64,
    ),
    ("intake_limit_bytes_per_second", "gauge", "What may be written now; 0: no limit.", |v| {
        v.intake_limit_bytes_per_s.unwrap_or(0) as f64
    }),
    ("throttled_seconds_total", "counter", "Delay asked of writers.", |v| v.throttled_seconds),
    ("bypasses_total", "counter", "Writes that went past the cache.", |v| v.bypasses as f64),
    ("bypassed_bytes_total", "counter", "Bytes that went past the cache.", |v| {
        v.bypassed_bytes as f64
    }),
    ("flush_owed", "gauge", "1 while the next flush goes to the origin.", |v| flag(v.flush_owed)),
    ("origin_depth", "gauge", "Origin writes in flight that destage aims at.", |v| {
        f64::from(v.origin_depth)
    }),
];

const LOG: &[Row<LogInfo>] = &[
    ("entries", "gauge", "Entries of unsynced txgs; before a claim, all that were found.", |l| {
        l.entries as f64
    }),
    ("unsynced_txgs", "gauge", "Txgs with entries that are not synced; 0 before a claim.", |l| {
        l.unsynced_txgs as f64
    }),
    ("synced_txg", "gauge", "The last txg synced.", |l| l.synced_txg as f64),
    ("missing_entries", "gauge", "Entries that there were, and were not found.", |l| {
        l.missing as f64
    }),
    ("chunks", "gauge", "Chunks of the log.", |l| f64::from(l.chunks)),
    ("held_chunks", "gauge", "Of these, those held for a claim and replay.", |l| {
        f64::from(l.held_chunks)
    }),
    ("logging", "gauge", "1 while entries can be appended.", |l| {
        flag(l.state == LogState::Logging && l.claimed)
    }),
    ("appends_total", "counter", "Entries appended.", |l| l.appends as f64),
    ("appended_bytes_total", "counter", "Bytes of these entries.", |l| l.appended_bytes as f64),
];

/// Figures of a pool that is written in groups to a disk.
const MEDIUM: &[Row<MediumStatus>] = &[
    ("failed", "gauge", "1 if the pool's disk has failed: nothing more becomes durable.", |m| {
        flag(m.failed)
    }),
    (
        "unanswered_seconds",
        "gauge",
        "How long the oldest request to the pool's disk has had no answer; 0: none is under way.",
        |m| m.unanswered_seconds,
    ),
    ("groups_total", "counter", "Groups of entries that became durable.", |m| m.groups as f64),
    ("entries_total", "counter", "Entries in these groups.", |m| m.records as f64),
    ("writes_total", "counter", "Writes to the pool's disk.", |m| m.writes as f64),
    ("written_bytes_total", "counter", "Bytes of these writes.", |m| m.written_bytes as f64),
    ("flushes_total", "counter", "Flushes of the pool's disk.", |m| m.flushes as f64),
    ("write_errors_total", "counter", "Writes that the pool's disk refused.", |m| {
        m.write_errors as f64
    }),
    ("flush_errors_total", "counter", "Flushes that the pool's disk refused.", |m| {
        m.flush_errors as f64
    }),
    ("again_total", "counter", "Groups that were written again elsewhere, after an error.", |m| {
        m.again as f64
    }),
    ("held_total", "counter", "Groups that waited for entries that were expected.", |m| {
        m.held as f64
    }),
];

/// A label's value, escaped as the text format asks.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn latencies(text: &mut String, pool: &str, volumes: &[VolumeInfo]) {
    let name = "forebay_phase_seconds";
    head(
        text,
        name,
        "histogram",
        "How long the phases of requests took; sampled_one_in says of how many one was timed.",
    );
    for v in volumes {
        for l in &v.latency {
            let labels = format!(
                "{pool},volume=\"{}\",phase=\"{}\",sampled_one_in=\"{}\"",
                escaped(&v.label()),
                l.phase,
                l.sampled_one_in
            );
            for (end, n) in &l.buckets {
                let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{end:e}\"}} {n}");
            }
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", l.count);
            let _ = writeln!(text, "{name}_sum{{{labels}}} {}", l.total_seconds);
            let _ = writeln!(text, "{name}_count{{{labels}}} {}", l.count);
        }
    }
}

/// The one metric of a pool that does not answer.
pub fn up(answers: bool) -> String {
    let mut text = String::new();
    head(&mut text, "forebay_up", "gauge", UP);
    let _ = writeln!(text, "forebay_up {}", flag(answers));
    text
}

const UP: &str = "1 if the pool could be asked, or looked at.";

/// The figures in a service's status.
pub fn figures<T>(rows: &[Row<T>], of: &T) -> Vec<Figure> {
    let figure = |(name, _, help, value): &Row<T>| Figure {
        name: (*name).into(),
        help: (*help).into(),
        value: value(of),
    };
    rows.iter().map(figure).collect()
}

/// Those of one name side by side, as the format asks.
fn of_services(text: &mut String, pool: &str, services: &[ServiceStatus]) {
    let mut told = Vec::new();
    for (kind, figure) in services.iter().flat_map(|s| s.figures.iter().map(move |f| (&s.kind, f)))
    {
        let name = format!("forebay_{kind}_{}", figure.name);
        if told.contains(&name) {
            continue;
        }
        let counts = figure.name.ends_with("_total");
        head(text, &name, if counts { "counter" } else { "gauge" }, &figure.help);
        for s in services.iter().filter(|s| s.kind == *kind) {
            for f in s.figures.iter().filter(|f| f.name == figure.name) {
                let _ =
                    writeln!(text, "{name}{{{pool},name=\"{}\"}} {}", escaped(&s.name), f.value);
            }
        }
        told.push(name);
    }
}

/// All metrics, in Prometheus' text format.
pub fn metrics(served: &ServerStatus) -> String {
    let s = &served.pool;
    let mut text = up(true);
    let pool = format!("pool=\"{}\"", escaped(&s.uuid.to_string()));
    for (name, kind, help, value) in POOL {
        let name = format!("forebay_{name}");
        head(&mut text, &name, kind, help);
        let _ = writeln!(text, "{name}{{{pool}}} {}", value(s));
    }
    for (name, kind, help, value) in VOLUME {
        let name = format!("forebay_volume_{name}");
        head(&mut text, &name, kind, help);
        for v in &s.volumes {
            let volume = escaped(&v.label());
            let _ = writeln!(text, "{name}{{{pool},volume=\"{volume}\"}} {}", value(v));
        }
    }
    for (name, kind, help, value) in LOG {
        let name = format!("forebay_log_{name}");
        head(&mut text, &name, kind, help);
        for l in &s.logs {
            let log = escaped(&l.name);
            let _ = writeln!(text, "{name}{{{pool},log=\"{log}\"}} {}", value(l));
        }
    }
    for (name, kind, help, value) in MEDIUM.iter().filter(|_| s.medium.is_some()) {
        let name = format!("forebay_medium_{name}");
        head(&mut text, &name, kind, help);
        if let Some(m) = &s.medium {
            let _ = writeln!(text, "{name}{{{pool}}} {}", value(m));
        }
    }
    latencies(&mut text, &pool, &s.volumes);
    of_services(&mut text, &pool, &served.services);
    text
}

/// On HOST:PORT.
pub fn listen(address: &str) -> Result<TcpListener, Error> {
    use std::io::ErrorKind::*;
    TcpListener::bind(address).map_err(|source| match (source.kind(), source.raw_os_error()) {
        (AddrInUse, _) => Error::Busy {
            path: address.into(),
            holder: None,
            way_out: "name another port, or 0 for one that is free".into(),
        },
        (PermissionDenied, _) => Error::Permission {
            path: address.into(),
            doing: "listening there",
            way_out: "name a port from 1024 on".into(),
        },
        // No address, or no name of one, or somebody else's.
        (InvalidInput | AddrNotAvailable, _) | (_, None) => Error::Usage {
            what: format!("cannot listen on {address:?}: {source}"),
            way_out: "write HOST:PORT, such as 127.0.0.1:9757, with an address of this machine"
                .into(),
        },
        _ => Error::Io {
            path: address.into(),
            doing: "listening there",
            source,
            way_out: "see the system log for its cause".into(),
        },
    })
}

/// To a request for the target; a collector may add parameters, which nothing is here
/// for.  `ask` asks the pool, or says why it cannot be asked.
pub fn answer(
    target: &str,
    ask: impl FnOnce() -> std::result::Result<ServerStatus, String>,
) -> Answer {
    match target.split_once('?').map_or(target, |(path, _)| path) {
        "/metrics" => match ask() {
            Ok(s) => Answer {
                status: "200 OK",
                content_type: "text/plain; version=0.0.4; charset=utf-8",
                body: metrics(&s),
            },
            Err(why) => Answer::text("503 Service Unavailable", format!("{why}\n")),
        },
        "/" => Answer::text("200 OK", "Forebay: see /metrics\n"),
        _ => Answer::text("404 Not Found", "not here: see /metrics\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::FIGURES;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }

    #[test]
    fn docs_list_each_metric() {
        let docs = include_str!("../../../docs/manual/metrics.md");
        let rows = POOL.iter().map(|r| ("forebay_", r.0, r.1, r.2));
        let rows = rows.chain(VOLUME.iter().map(|r| ("forebay_volume_", r.0, r.1, r.2)));
        let rows = rows.chain(LOG.iter().map(|r| ("forebay_log_", r.0, r.1, r.2)));
        let rows = rows.chain(MEDIUM.iter().map(|r| ("forebay_medium_", r.0, r.1, r.2)));
        let exports = FIGURES.iter().map(|r| ("forebay_exports_", r.0, r.1, r.2));
        let rows = rows.chain(exports).chain([("forebay_", "up", "gauge", UP)]);
        for (prefix, name, kind, help) in rows {
            let row = format!("| `{prefix}{name}` | {kind} | {help} |");
            assert!(docs.contains(&row), "docs/manual/metrics.md lacks: {row}");
        }
        assert!(docs.contains("`forebay_phase_seconds` | histogram"));
    }

    #[test]
    fn names_are_unique_and_counters_end_in_total() {
        let all = POOL.iter().map(|r| (format!("forebay_{}", r.0), r.1));
        let all = all.chain(VOLUME.iter().map(|r| (format!("forebay_volume_{}", r.0), r.1)));
        let all = all.chain(LOG.iter().map(|r| (format!("forebay_log_{}", r.0), r.1)));
        let all = all.chain(MEDIUM.iter().map(|r| (format!("forebay_medium_{}", r.0), r.1)));
        let exports = FIGURES.iter().map(|r| (format!("forebay_exports_{}", r.0), r.1));
        let all: Vec<_> = all.chain(exports).collect();
        for (i, (name, kind)) in all.iter().enumerate() {
            assert_eq!(*kind == "counter", name.ends_with("_total"), "{name}");
            assert!(all[..i].iter().all(|(n, _)| n != name), "{name}");
        }
    }
}
