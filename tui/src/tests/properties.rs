//! Whatever is pressed, clicked, resized or told by the guest, in whatever order: no panic, a valid selection, and not
//! one character on the screen that a terminal could act on.

use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use exotrace_patcher::control::{Event as RunEvent, GuestEnd, LiveRecord, Snapshot};
use exotrace_trace::ids::{Gva, SiteId, Tsc, VcpuId};
use proptest::prelude::*;

use super::*;
use crate::keys::BINDINGS;
use crate::layout::Pane;

#[derive(Clone, Debug)]
enum Step {
    Table(usize),
    Key(KeyCode, bool),
    Mouse(u8, u16, u16),
    Resize(u16, u16),
    Paste(String),
    Pass(u16),
    Console(Vec<u8>),
    Happen(u8, String),
    Shrink(usize, usize),
    Numbers(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let code = prop_oneof![
        any::<char>().prop_map(KeyCode::Char),
        prop::sample::select(vec![
            KeyCode::Enter,
            KeyCode::Esc,
            KeyCode::Tab,
            KeyCode::Up,
            KeyCode::Down,
            KeyCode::Backspace,
            KeyCode::Delete,
            KeyCode::Left
        ]),
        prop::sample::select("/wimDy?zf*[!v_".chars().collect::<Vec<_>>()).prop_map(KeyCode::Char),
    ];
    prop_oneof![
        6 => (0..BINDINGS.len()).prop_filter("quitting ends nothing here", |i| BINDINGS[*i].label != "q").prop_map(Step::Table),
        4 => (code, prop::bool::weighted(0.1)).prop_map(|(c, ctrl)| Step::Key(c, ctrl)),
        4 => (any::<u8>(), 0..130u16, 0..50u16).prop_map(|(k, x, y)| Step::Mouse(k, x, y)),
        2 => (0..130u16, 0..50u16).prop_map(|(w, h)| Step::Resize(w, h)),
        1 => ".{0,40}".prop_map(Step::Paste),
        3 => (0..900u16).prop_map(Step::Pass),
        1 => prop::collection::vec(any::<u8>(), 0..300).prop_map(Step::Console),
        1 => (any::<u8>(), ".{0,60}").prop_map(|(k, s)| Step::Happen(k, s)),
        1 => (0..90usize, 0..20usize).prop_map(|(n, v)| Step::Shrink(n, v)),
        1 => any::<u64>().prop_map(Step::Numbers),
    ]
}

fn tamper_numbers(s: &mut Snapshot, n: u64) {
    for (i, c) in s.counts.iter_mut().enumerate() {
        *c = n.rotate_left(i as u32);
    }
    for v in &mut s.vcpus {
        (v.delivered, v.lost, v.corrupt, v.used, v.capacity, v.pending) =
            (n, n, n, n as u32, (n >> 32) as u32, n as u32);
    }
    let record = LiveRecord {
        vcpu: VcpuId(n as u8),
        tsc: Tsc(n),
        time_ns: n,
        site: n.is_multiple_of(2).then_some(SiteId(n as u32)),
        ip: Gva(n),
        parent: "\x1b]0;x\x07長".repeat(n as usize % 50).into(),
    };
    s.live = vec![record; n as usize % 40].into();
}

fn happen(kind: u8, text: String) -> RunEvent {
    match kind % 5 {
        0 => RunEvent::Refused { what: text.clone(), why: text },
        1 => RunEvent::Mark(u32::from(kind)),
        2 => RunEvent::FileFailed { path: text.clone().into(), why: text },
        3 => RunEvent::Ended(GuestEnd::Failed { why: text }),
        _ => RunEvent::Paused(kind > 100),
    }
}

fn run(desk: &mut Desk, step: Step) {
    match step {
        Step::Table(i) => {
            let (code, modifiers) = BINDINGS[i].keys[0];
            desk.event(&Event::Key(KeyEvent::new(code, modifiers)));
        }
        Step::Key(code, ctrl) => {
            let modifiers = if ctrl { KeyModifiers::CONTROL } else { KeyModifiers::NONE };
            desk.event(&Event::Key(KeyEvent::new(code, modifiers)));
        }
        Step::Mouse(kind, column, row) => {
            let kind = match kind % 4 {
                0 => MouseEventKind::ScrollUp,
                1 => MouseEventKind::ScrollDown,
                _ => MouseEventKind::Down(MouseButton::Left),
            };
            desk.event(&Event::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }));
        }
        Step::Resize(w, h) => {
            desk.size = (w, h);
            desk.event(&Event::Resize(w, h));
        }
        Step::Paste(text) => desk.event(&Event::Paste(text)),
        Step::Pass(ms) => desk.pass(ms.into()),
        Step::Console(bytes) => desk.mock.tamper(|s| s.console = bytes.into()),
        Step::Happen(kind, text) => desk.mock.happen(happen(kind, text)),
        Step::Shrink(functions, vcpus) => {
            // The mock itself needs its tables: what the UI sees is shorter for one frame.
            let mut kept = None;
            desk.mock.tamper(|s| {
                kept = Some(s.clone());
                s.counts.truncate(functions);
                s.active.truncate(functions);
                s.vcpus.resize(vcpus, Default::default());
            });
            desk.app.tick(desk.now);
            desk.screen();
            desk.mock.tamper(|s| *s = kept.unwrap());
        }
        Step::Numbers(n) => {
            desk.mock.tamper(|s| tamper_numbers(s, n));
            desk.app.tick(desk.now + Duration::from_millis(130));
            desk.screen();
            desk.mock.tamper(|s| tamper_numbers(s, 0));
        }
    }
}

fn check(desk: &mut Desk) {
    let screen = desk.screen();
    for cell in &screen.backend().buffer().content {
        assert!(
            !cell.symbol().chars().any(|c| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c)),
            "{:?}",
            cell.symbol()
        );
    }
    let f = &desk.app.functions;
    let (cursor, offset) = f.position();
    let rows = usize::from(desk.app.layout.function_rows().height).max(1);
    if f.view().is_empty() {
        assert_eq!((cursor, offset), (0, 0));
    } else {
        assert!(cursor < f.view().len());
        assert!((offset..offset + rows).contains(&cursor), "cursor {cursor}, offset {offset}, rows {rows}");
    }
    assert!(desk.app.layout.too_small || desk.app.layout.pane(desk.app.focus).area() > 0, "the focus is in sight");
    assert_eq!(Pane::ALL[desk.app.focus.index()], desk.app.focus);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_sequence_is_survived(hostile in any::<bool>(), steps in prop::collection::vec(step(), 1..60)) {
        let mut desk = Desk::new((80, 24), MockOptions { functions: 90, vcpus: 3, hostile, live: false });
        for step in steps {
            run(&mut desk, step);
            check(&mut desk);
        }
    }
}
