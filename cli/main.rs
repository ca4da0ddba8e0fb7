//! Parses the command line, runs the command, prints the error chain once.

use std::process::ExitCode;

use clap::Parser;
use exotrace::args::{Cli, Command};
use exotrace::exit::Exit;
use exotrace::{doctor, lab, report, run, signals, sites};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = signals::survive_file_limit().and_then(|()| dispatch(&cli));
    match done {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("exotrace: {error:#}");
            Exit::Error.into()
        }
    }
}

fn dispatch(cli: &Cli) -> anyhow::Result<Exit> {
    match &cli.command {
        None => run::run(&cli.run),
        Some(Command::Run(args)) => run::run(args),
        Some(Command::Report(args)) => report::run(args),
        Some(Command::Sites(args)) => sites::run(args),
        Some(Command::Doctor) => doctor::run(),
        Some(Command::Lab { args }) => lab::run(args),
    }
}
