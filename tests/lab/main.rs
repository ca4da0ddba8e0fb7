//! Tests in the lab: exotrace on real KVM (AMD SVM with nested paging, emulated by QEMU), on any x86-64 machine.
//!
//! One boot of a lab serves many tests; two labs run side by side, one per core. Without qemu or without network (for
//! the first download) each test is reported as ignored, with the reason. A lab that panics is told from a failed test.
#![allow(clippy::unwrap_used, missing_docs)]

mod bench;
mod embedded;
mod emulator;
mod linux;
mod recipes;
mod tracing;

use std::sync::LazyLock;

use bench::Bench;
use libtest_mimic::{Arguments, Failed, Trial};

static BENCH: LazyLock<Bench> = LazyLock::new(Bench::default);

/// A lab has one CPU and so occupies one core.
const MOST_LABS: usize = 2;

/// The embedded guest's integration tests, by program. A test that is not here runs nowhere at CPL 0: keep it complete.
const INTEGRATION: &[(&str, &[&str])] = &[
    (
        "ground_truth",
        &[
            "block_mode_has_every_call_on_1_vcpu",
            "block_mode_has_every_call_on_2_vcpus",
            "block_mode_has_every_call_on_4_vcpus",
            "drop_mode_counts_what_it_loses",
            "overwrite_mode_keeps_the_last_records",
        ],
    ),
    (
        "switching",
        &[
            "a_thousand_switches_leave_no_trace",
            "a_paused_guest_stands_still_and_can_be_switched",
            "a_site_that_differs_refuses_the_whole_plan",
            "only_what_was_asked_for_is_traced",
        ],
    ),
];

fn main() {
    let mut args = Arguments::from_args();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    args.test_threads = Some(args.test_threads.unwrap_or(cores).clamp(1, MOST_LABS));
    let conclusion = libtest_mimic::run(&args, trials());
    BENCH.close();
    conclusion.exit();
}

/// A test in a lab that others use as well.
fn shared(name: String, test: impl FnOnce(&mut emulator::Lab) -> Result<(), Failed> + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || BENCH.test(test))
}

fn trials() -> Vec<Trial> {
    let mut trials = vec![shared("kvm_is_svm_with_nested_paging".into(), embedded::doctor)];
    // The long ones first, so that no lab idles at the end.
    for (program, tests) in INTEGRATION {
        for test in *tests {
            trials.push(shared(format!("embedded::{program}::{test}"), move |lab| {
                embedded::integration(lab, program, test)
            }));
        }
    }
    for vcpus in [1, 2, 4] {
        let name = format!("embedded::workloads_lose_nothing_on_{vcpus}_vcpus");
        trials.push(shared(name, move |lab| embedded::workloads(lab, vcpus)));
    }
    for (workload, code) in [("panic", 10), ("hang", 11), ("triplefault", 12)] {
        trials.push(shared(format!("embedded::{workload}_is_told"), move |lab| embedded::bad_end(lab, workload, code)));
    }
    // 6.12-rt prints its log too slowly on the serial console for the tests that read it; see docs/linux.md.
    for flavour in ["6.12-cloud", "6.1-cloud"] {
        for vcpus in [2, 4] {
            let name = format!("linux::{flavour}_boots_and_powers_off_with_{vcpus}_vcpus");
            trials.push(shared(name, move |lab| linux::boots(lab, flavour, vcpus)));
        }
        trials.push(shared(format!("tracing::{flavour}_twenty_switches_leave_no_trace"), move |lab| {
            tracing::switches(lab, flavour)
        }));
    }
    for flavour in bench::FLAVOURS {
        trials.push(shared(format!("tracing::{flavour}_100000_calls_are_100000_records"), move |lab| {
            tracing::getppid(lab, flavour)
        }));
    }
    trials.push(shared("tracing::6.12-cloud_everything_beside_the_guest_s_own_tools".into(), |lab| {
        tracing::everything(lab, "6.12-cloud")
    }));
    trials.push(shared("linux::6.12-cloud_chooses_its_place".into(), |lab| linux::kaslr(lab, "6.12-cloud")));
    trials.push(shared("linux::6.12-cloud_panics".into(), |lab| linux::panic(lab, "6.12-cloud")));
    for (program, tests) in INTEGRATION {
        trials.push(shared(format!("embedded::{program}::all_of_its_tests_run_here"), move |lab| {
            recipes::complete(lab, program, tests)
        }));
    }
    trials.push(shared("lab::a_step_that_takes_too_long_is_ended".into(), recipes::slow_step));
    trials.push(shared("lab::its_own_panic_is_told_from_a_failure".into(), |_| recipes::panic_is_told()));
    trials.push(shared("lab::a_command_s_exit_code_and_files_come_out".into(), |_| recipes::command_mode()));
    trials
}
