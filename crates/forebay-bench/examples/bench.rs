// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs one benchmark with its defaults: `bench engine|reads|recovery [rounds]`.

use forebay_bench::{
    engine, reads, recovery, BenchError, EngineOptions, ReadOptions, RecoveryOptions,
};
use serde::Serialize;

fn print(report: Result<impl Serialize, BenchError>) -> Result<(), Box<dyn std::error::Error>> {
    println!("{}", serde_json::to_string_pretty(&report?)?);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rounds = args.get(1).map(|rounds| rounds.parse()).transpose()?;
    match args.first().map(String::as_str) {
        Some("engine") => {
            let mut options = EngineOptions::default();
            if let Some(dir) = args.get(2) {
                options.media = forebay_bench::MediaChoice::File(dir.into());
            }
            options.rounds = rounds.unwrap_or(options.rounds);
            print(engine(&options))
        }
        Some("reads") => {
            let mut options = ReadOptions::default();
            options.rounds = rounds.unwrap_or(options.rounds);
            print(reads(&options))
        }
        Some("recovery") => {
            let mut options = RecoveryOptions::default();
            options.rounds = rounds.unwrap_or(options.rounds);
            print(recovery(&options))
        }
        _ => Err("usage: bench engine|reads|recovery [rounds]".into()),
    }
}
