// SPDX-License-Identifier: MIT OR Apache-2.0
//! `forebay completions` and `forebay man`, from the command's definitions.

use std::io;
use std::path::Path;

use anyhow::Context;
use clap::{Arg, Command, CommandFactory};
use clap_mangen::roff::{bold, italic, roman, Inline, Roff};
use clap_mangen::Man;

use crate::args;
use crate::args::Cli;
use crate::out;

pub fn completions(a: &args::Completions) -> anyhow::Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(a.shell, &mut Cli::command(), "forebay", &mut script);
    out::whole(&script)?;
    Ok(0)
}

pub fn man(a: &args::Man) -> anyhow::Result<u8> {
    let directory = a.directory.display();
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    std::fs::create_dir_all(&a.directory)
        .and_then(|()| pages(&command, &a.directory))
        .with_context(|| format!("{directory}: cannot write the man pages there"))?;
    out::line(format_args!(
        "{directory}: forebay.1 and a page for each subcommand; try man -l {directory}/forebay.1"
    ))?;
    Ok(0)
}

fn pages(command: &Command, directory: &Path) -> io::Result<()> {
    command.get_subcommands().try_for_each(|sub| pages(sub, directory))?;
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    synopsis(command).to_writer(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    page.render_extra_section(&mut text)?;
    page.render_version_section(&mut text)?;
    out::replace_file(&directory.join(page.get_filename()), &text, 0o644)
}

/// The synopsis of a command, with the value of each option.  The synopsis of clap_mangen lacks the
/// values.
fn synopsis(command: &Command) -> Roff {
    let mut line = vec![bold(command.get_bin_name().unwrap_or(command.get_name()))];
    let shown = command.get_arguments().filter(|a| !a.is_hide_set() && !a.is_positional());
    for arg in shown.chain(command.get_positionals()) {
        let (open, close) = if arg.is_required_set() { (" ", "") } else { (" [", "]") };
        line.push(roman(open));
        line.extend(argument(arg));
        line.push(roman(close));
    }
    if command.has_subcommands() {
        line.extend([roman(" "), italic("COMMAND")]);
    }
    let mut roff = Roff::default();
    roff.control("SH", ["SYNOPSIS"]).text(line);
    roff
}

fn argument(arg: &Arg) -> Vec<Inline> {
    let name = match (arg.get_long(), arg.get_short()) {
        (Some(long), _) => Some(bold(format!("--{long}"))),
        (None, Some(short)) => Some(bold(format!("-{short}"))),
        (None, None) => None,
    };
    let mut line: Vec<_> = name.into_iter().collect();
    let count = arg.get_num_args().expect("the command is built");
    if !count.takes_values() {
        return line;
    }
    let values = arg.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
    let values = italic(values.trim_matches(['<', '>']).to_string());
    line.extend(match (arg.is_positional(), count.min_values()) {
        (true, _) => vec![values],
        (false, 0) => vec![roman("[="), values, roman("]")],
        (false, _) => vec![roman(" "), values],
    });
    let again = matches!(arg.get_action(), clap::ArgAction::Append);
    if again || count.max_values() > 1 {
        line.push(roman("..."));
    }
    line
}
