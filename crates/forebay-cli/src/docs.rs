// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay completions` and `forebay man`, from the command's definitions.

use std::io::Write;

use anyhow::Context;
use clap::CommandFactory;

use crate::args::{Cli, Completions, Man};
use crate::out;

pub fn completions(a: &Completions) -> anyhow::Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(a.shell, &mut Cli::command(), "forebay", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(0)
}

pub fn man(a: &Man) -> anyhow::Result<u8> {
    let directory = a.directory.display();
    std::fs::create_dir_all(&a.directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), &a.directory))
        .with_context(|| format!("{directory}: cannot write the man pages there"))?;
    out::line(format_args!(
        "{directory}: forebay.1 and a page for each subcommand; try man -l {directory}/forebay.1"
    ))?;
    Ok(0)
}
