// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `forebay`.  Each subcommand is a function in a file of its name; its output and
//! exit code are decided here.
#![deny(unsafe_code)]
// The print macros panic when the reader has gone.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod attach;
mod awaited;
mod bench;
mod bench_map;
mod bench_mount;
mod bench_ssd;
mod check;
mod config;
mod create;
mod demo;
mod docs;
mod drain;
mod dump;
mod exporter;
mod generator;
mod inherited;
mod interrupt;
mod list;
mod log;
mod map;
mod map_drain;
mod map_run;
mod map_wait;
mod media_info;
mod media_test;
mod module;
mod mount;
mod mount_bed;
mod open;
mod origin;
mod out;
mod removal;
mod replay;
mod serve;
mod set;
mod status;
mod top;
mod units;
mod volume;

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::ExitCode;

use args::{Cli, Command, Internal, InternalCommand};
use clap::Parser;
use forebay_mount::Question;
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};

fn main() -> ExitCode {
    forebay_mount::asks_by(|question, path| {
        let word = match question {
            Question::FreeSpace => "look",
            Question::WriteBack => "write-back",
        };
        own_command(word, path)
    });
    let signals = inherited::take_all().and_then(|()| interrupt::outlive_file_size_limit());
    forebay_mount::guards_by(|server| own_command("guard", server.to_string()));
    let ran = match Internal::asked() {
        Some(internal) => run_internal(internal.command),
        None => match Cli::try_parse() {
            Ok(cli) => signals.map_err(Into::into).and_then(|()| run(cli.command)),
            Err(error) => return usage(&error),
        },
    };
    let code = match ran {
        Ok(code) => code,
        Err(error) => {
            let (text, code) = (text(&error), exit_code(&error));
            out::warn(format_args!("forebay: {}", forebay::printable(&text)));
            if args::wants_json() {
                out::json_error(&text, code);
            }
            code
        }
    };
    forebay::diagnostics::flush(out::PATIENCE);
    ExitCode::from(code)
}

/// Prints a mistake on the command line, or the help that was asked for.
fn usage(error: &clap::Error) -> ExitCode {
    // clap prints in colours.  A command line with control characters is printed without.
    match std::env::args_os().any(|word| word.to_string_lossy().contains(char::is_control)) {
        true => out::warn(forebay::printable(&error.to_string())),
        false => match error.print().and_then(|()| std::io::stdout().flush()) {
            // A missing reader of the help is no error, as in `out::whole`.
            Err(e) if !error.use_stderr() && e.kind() != std::io::ErrorKind::BrokenPipe => {
                let error = anyhow::Error::from(e).context("standard output cannot be written");
                out::warn(format_args!("forebay: {}", text(&error)));
                return ExitCode::from(exit_code(&error));
            }
            _ => {}
        },
    }
    let code = error.exit_code() as u8;
    if error.use_stderr() && args::wants_json() {
        out::json_error(error.to_string().trim_end(), code);
    }
    ExitCode::from(code)
}

fn run(command: Command) -> anyhow::Result<u8> {
    forebay::check_directories()?;
    // A program that map-run executes keeps the limits of its caller.
    if !matches!(command, Command::MapRun(_)) {
        forebay::raise_file_size();
    }
    match command {
        Command::Create(a) => create::run(&a),
        Command::Volume(a) => volume::run(&a),
        Command::Log(a) => log::run(&a),
        Command::Map(a) => map::run(&a),
        Command::MapRun(a) => map_run::run(&a),
        Command::Serve(a) => serve::run(&a),
        Command::Mount(a) => mount::run(&a),
        Command::Replay(a) => replay::run(&a),
        Command::Umount(a) => mount::umount(&a),
        Command::Unmark(a) => replay::unmark(&a),
        Command::Origin(a) => origin::run(&a),
        Command::Attach(a) => attach::run(&a),
        Command::Detach(a) => attach::detach(&a),
        Command::List(a) => list::run(&a),
        Command::Status(a) => status::run(&a),
        Command::Top(a) => top::run(&a),
        Command::Set(a) => set::run(&a),
        Command::Exporter(a) => exporter::run(&a),
        Command::MediaInfo(a) => media_info::run(&a),
        Command::MediaTest(a) => media_test::run(&a),
        Command::Check(a) => check::run(&a),
        Command::Dump(a) => dump::run(&a),
        Command::Drain(a) => drain::run(&a),
        Command::Bench(a) => bench::run(&a),
        Command::Demo(a) => demo::run(&a),
        Command::Completions(a) => docs::completions(&a),
        Command::Man(a) => docs::man(&a),
    }
}

fn run_internal(command: InternalCommand) -> anyhow::Result<u8> {
    match command {
        InternalCommand::Look { path } => ask(Question::FreeSpace, &path),
        InternalCommand::WriteBack { path } => ask(Question::WriteBack, &path),
        InternalCommand::Guard { server } => guard(server),
        InternalCommand::DemoWriter(a) => demo::writer::run(&a),
        InternalCommand::SystemdGenerator(a) => generator::run(&a),
    }
}

/// Runs the same program, even after an update has replaced its file.
fn own_command(word: &str, argument: impl AsRef<OsStr>) -> std::process::Command {
    let mut command = std::process::Command::new("/proc/self/exe");
    command.arg0("forebay").arg(word).arg(argument);
    command
}

/// It ends with its server, whatever signals they get.
fn guard(server: u32) -> anyhow::Result<u8> {
    let ignored = std::sync::Arc::default();
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGPIPE] {
        signal_hook::flag::register(signal, std::sync::Arc::clone(&ignored))?;
    }
    forebay_mount::guard_as_process(server);
    Ok(0)
}

fn ask(question: Question, path: &Path) -> anyhow::Result<u8> {
    out::line(forebay_mount::ask_as_process(question, path)).map(|()| 0)
}

/// Joins an error with its causes, except those that a previous text names already.
fn text(error: &anyhow::Error) -> String {
    let all = error.chain().map(ToString::to_string);
    let all = all.fold(String::new(), |all, cause| match &all[..] {
        "" => cause,
        all if all.contains(&cause) => all.into(),
        all => format!("{all}: {cause}"),
    });
    // Any call may meet a limit of the process.
    let limit = error.chain().find_map(|e| forebay::limit_way_out(e.downcast_ref()?));
    match limit.filter(|_| !all.contains("ulimit")) {
        Some(way_out) => format!("{all}; {way_out}"),
        None => all,
    }
}

/// The exit code, from the table at the end of `forebay --help`.
fn exit_code(error: &anyhow::Error) -> u8 {
    let code = |e: &(dyn std::error::Error + 'static)| {
        let module = e.downcast_ref::<module::Error>();
        let library = e.downcast_ref::<forebay::Error>();
        let server = e.downcast_ref::<forebay_server::Error>();
        (module.map(module::Error::exit_code))
            .or(library.map(forebay::Error::exit_code))
            .or(server.map(forebay_server::Error::exit_code))
            .or(e.downcast_ref().map(forebay_map::Error::exit_code))
            .or(e.downcast_ref().map(forebay_map_server::Error::exit_code))
            // An I/O error of the library may not concern a device here.
            .or(e.downcast_ref().map(forebay::io_exit_code).filter(|code| *code != 7))
    };
    error.chain().find_map(code).unwrap_or(1)
}
