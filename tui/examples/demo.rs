//! The UI over a made-up run: `cargo run -p exotrace-tui --example demo -- [functions=N] [vcpus=N] [hostile] [end=SECONDS] [panic=SECONDS]`.
//!
//! `end` lets the guest panic, `panic` a thread of this program (to see that the terminal comes back).

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use exotrace_patcher::control::{Event, GuestEnd};
use exotrace_tui::mock::{MockControl, MockOptions};

fn main() -> ExitCode {
    let mut options = MockOptions { live: true, ..MockOptions::default() };
    let (mut end, mut panic) = (None, None);
    for argument in std::env::args().skip(1) {
        let (key, value) = argument.split_once('=').unwrap_or((&argument, "1"));
        let Ok(number) = value.parse::<u32>() else {
            eprintln!("{argument}: not a number");
            return ExitCode::from(2);
        };
        match key {
            "functions" => options.functions = number,
            "vcpus" => options.vcpus = number.min(16) as u8,
            "hostile" => options.hostile = true,
            "end" => end = Some(number),
            "panic" => panic = Some(number),
            _ => {
                eprintln!("{argument}: unknown; see the example's source");
                return ExitCode::from(2);
            }
        }
    }
    let control = Arc::new(MockControl::new(options));
    if let Some(seconds) = end {
        let control = control.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(seconds.into()));
            control.happen(Event::Ended(GuestEnd::Panic));
        });
    }
    if let Some(seconds) = panic {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(seconds.into()));
            panic!("a thread panics, as asked");
        });
    }
    match exotrace_tui::run(control, exotrace_tui::Options::default()) {
        Ok(outcome) => {
            println!("ended: {outcome:?}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
