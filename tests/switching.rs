//! Switching functions while the guest runs.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Kernel, command, run_to_end, start, wait_end};
use exotrace_guest::abi;
use exotrace_patcher::control::{Command, Control, Event, GuestEnd, Selection};
use exotrace_patcher::machine::{Machine, Stopped};
use exotrace_trace::ids::Gpa;

const LOAD: &str = "workload=mix seed=77 threads=6 hz=1000 nmi_hz=100 quiet";

/// 1,000 live switches of all sites under load: the guest computes what it computes untraced, and its text is
/// afterwards what it was.
#[test]
fn a_thousand_switches_leave_no_trace() {
    let kernel = Kernel::embedded();
    let untraced = run_to_end(&["--cpus", "2"], &format!("{LOAD} iters=20"));
    let expected = kernel.variable(untraced.target(), "selfcheck_sum");
    drop(untraced);

    // Endless load for the switches, so that every one of them meets a busy guest …
    let busy = start(&["--cpus", "2", "--ring", "4096"], &format!("{LOAD} iters=0"));
    let sites = kernel.sites.patchable_len();
    // The guest runs between any two switches: some function was called meanwhile, by the guest's own count.
    let calls = || kernel.ground_truth(busy.target(), 2).iter().flatten().sum::<u64>();
    let mut before = calls();
    for n in 0..1000 {
        let until = std::time::Instant::now() + common::PATIENCE;
        while calls() < before + 1000 {
            assert!(std::time::Instant::now() < until, "the guest does not run between switches");
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        before = calls();
        let on = n % 2 == 0;
        match command(&busy, Command::Switch { what: Selection::All, on }) {
            Event::Switched { on: turned_on, off, active, .. } => {
                let expected = if on { (sites, 0, sites) } else { (0, sites, 0) };
                assert_eq!((turned_on, off, active), expected, "switch {n}");
            }
            other => panic!("switch {n}: {other:?}"),
        }
    }
    assert!(busy.snapshot().vcpus.iter().any(|v| v.delivered > 0), "nothing was traced");
    assert_eq!(command(&busy, Command::Detach), Event::Detached { sites });
    assert_eq!(kernel.text_differences(busy.target()), Vec::<String>::new());
    assert_eq!(kernel.variable(busy.target(), "selfcheck_failures"), 0);
    match command(&busy, Command::Switch { what: Selection::All, on: true }) {
        Event::Refused { why, .. } => assert!(why.contains("detached"), "{why}"),
        other => panic!("{other:?}"),
    }
    drop(busy);

    // … and a finite one, switched until it ends, whose result must be that of the untraced run.
    let finite = start(&["--cpus", "2", "--ring", "4096"], &format!("{LOAD} iters=20"));
    let mut switches = 0;
    let end = 'run: loop {
        finite.send(Command::Switch { what: Selection::All, on: switches % 2 == 0 });
        switches += 1;
        for event in finite.wait_events(common::PATIENCE) {
            match event {
                Event::Ended(end) => break 'run end,
                Event::Switched { .. } | Event::Mark(_) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(end, GuestEnd::PowerOff, "{}", String::from_utf8_lossy(&finite.snapshot().console));
    assert!(switches > 10, "only {switches} switches met the workload");
    assert_eq!(kernel.variable(finite.target(), "selfcheck_sum"), expected);
    assert_eq!(kernel.variable(finite.target(), "selfcheck_failures"), 0);
}

/// A site whose bytes are not what they should be: nothing is written, the site is named.
#[test]
fn a_site_that_differs_refuses_the_whole_plan() {
    let kernel = Kernel::embedded();
    let guest = start(&["--cpus", "2"], &format!("{LOAD} iters=0"));
    let (_, victim) = kernel.sites.iter().nth(kernel.sites.len() / 2).unwrap();
    let gpa = Gpa(victim.addr.0 - abi::VIRT_OFFSET);
    let before = kernel.text_differences(guest.target());
    // Another 5-byte nop, so that the guest itself does not mind.
    let mut stopped = guest.target().stop().unwrap();
    stopped.write(gpa, &[0x3e, 0x0f, 0x1f, 0x40, 0x00]).unwrap();
    drop(stopped);
    let poisoned = kernel.text_differences(guest.target());

    match command(&guest, Command::Switch { what: Selection::All, on: true }) {
        Event::Refused { why, .. } => {
            assert!(why.contains(&*victim.name), "{why}");
            assert!(why.contains(&victim.addr.to_string()), "{why}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(kernel.text_differences(guest.target()), poisoned, "something was written");
    assert_eq!(guest.snapshot().active.iter().filter(|a| **a).count(), 0);

    // With the bytes back, the same command works.
    let mut stopped = guest.target().stop().unwrap();
    stopped.write(gpa, &[0x0f, 0x1f, 0x44, 0x00, 0x00]).unwrap();
    drop(stopped);
    assert_eq!(kernel.text_differences(guest.target()), before);
    assert!(matches!(command(&guest, Command::Switch { what: Selection::All, on: true }), Event::Switched { .. }));
}

/// Filters select what they say, by command and from the first instruction on.
#[test]
fn only_what_was_asked_for_is_traced() {
    let kernel = Kernel::embedded();
    let controller = run_to_end(
        &["--cpus", "2", "--trace", "vfs_*,!vfs_read", "--policy", "block"],
        "workload=fs seed=5 iters=10 threads=4 hz=250 quiet",
    );
    let counts = controller.snapshot().counts;
    let truth = kernel.ground_truth(controller.target(), 2);
    let mut traced = 0;
    for (id, site) in kernel.sites.iter() {
        let wanted = site.name.starts_with("vfs_") && &*site.name != "vfs_read";
        let expected = if wanted { truth[id.index()].unwrap() } else { 0 };
        assert_eq!(counts[id.index()], expected, "{}", site.name);
        traced += expected;
    }
    assert!(traced > 0);
}

/// Paused means paused; switching works meanwhile; then it goes on.
#[test]
fn a_paused_guest_stands_still_and_can_be_switched() {
    let guest = start(&["--cpus", "2"], &format!("{LOAD} iters=0"));
    command(&guest, Command::Switch { what: Selection::All, on: true });
    assert_eq!(command(&guest, Command::Pause), Event::Paused(true));
    let sum = |c: &dyn Control| c.snapshot().vcpus.iter().map(|v| v.delivered).sum::<u64>();
    let before = sum(&guest);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(sum(&guest), before);
    assert!(matches!(command(&guest, Command::Switch { what: Selection::All, on: false }), Event::Switched { .. }));
    assert!(matches!(command(&guest, Command::Switch { what: Selection::All, on: true }), Event::Switched { .. }));
    assert_eq!(command(&guest, Command::Resume), Event::Paused(false));
    let until = std::time::Instant::now() + common::PATIENCE;
    while sum(&guest) == before {
        assert!(std::time::Instant::now() < until, "the guest did not go on");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    guest.send(Command::Quit);
    assert_eq!(wait_end(&guest), GuestEnd::Quit);
}
