//! The `exotrace` program: argument parsing and wiring. What is done is done in the other crates.

pub mod args;
pub mod doctor;
pub mod exit;
pub mod headless;
pub mod lab;
pub mod report;
pub mod run;
pub mod signals;
pub mod sites;
