//! What the UI knows: the snapshot that is shown, where the user looks, and what is being typed. Drawing reads it,
//! input changes it, nothing here touches the terminal.

pub mod console;
pub mod edit;
pub mod filter;
pub mod functions;
pub mod messages;
pub mod rates;
pub mod stream;

use std::sync::Arc;
use std::time::Duration;

use exotrace_patcher::control::{Command, Control, RunInfo, Snapshot};
use ratatui::layout::Rect;

use crate::layout::{Layout, Pane, Wish};
use crate::text;
use crate::theme::{Severity, Theme};

use console::ConsoleView;
use edit::LineEdit;
use functions::{FunctionList, Numbers};
use messages::Log;
use rates::RateWindow;
use stream::StreamView;

/// What the keys mean at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The key table.
    Normal,
    /// A filter is typed.
    Filter(LineEdit),
    /// A file name is typed.
    FileName(LineEdit),
    /// Keys go to the guest.
    ConsoleInput,
    /// The key table is shown, from this line on.
    Help(usize),
    /// The message log is shown, this many lines back from its end.
    Messages(usize),
    /// A function's details are shown.
    Details(u32),
    /// Detaching waits for a yes.
    ConfirmDetach,
}

/// The whole state.
pub struct App {
    pub(crate) control: Arc<dyn Control>,
    pub(crate) info: RunInfo,
    pub(crate) theme: Theme,
    pub(crate) now: Duration,
    /// The newest snapshot: what commands are decided on.
    pub(crate) latest: Arc<Snapshot>,
    /// What is shown instead while the display is frozen.
    pub(crate) frozen: Option<Arc<Snapshot>>,
    pub(crate) functions: FunctionList,
    pub(crate) rates: RateWindow,
    pub(crate) vcpu_rates: RateWindow,
    pub(crate) stream: StreamView,
    pub(crate) console: ConsoleView,
    /// First vCPU shown in the rings pane.
    pub(crate) rings_offset: usize,
    pub(crate) log: Log,
    pub(crate) mode: Mode,
    pub(crate) focus: Pane,
    pub(crate) zoom: bool,
    pub(crate) bottom: Pane,
    pub(crate) layout: Layout,
    pub(crate) quit: bool,
    /// Functions traced in the snapshot shown.
    pub(crate) active: usize,
}

impl App {
    /// A UI over a run.
    #[must_use]
    pub fn new(control: Arc<dyn Control>, theme: Theme) -> App {
        let info = control.info().clone();
        App {
            functions: FunctionList::new(info.functions.clone()),
            control,
            info,
            theme,
            now: Duration::ZERO,
            latest: Arc::new(Snapshot::default()),
            frozen: None,
            rates: RateWindow::default(),
            vcpu_rates: RateWindow::default(),
            stream: StreamView::default(),
            console: ConsoleView::default(),
            rings_offset: 0,
            log: Log::default(),
            mode: Mode::Normal,
            focus: Pane::Functions,
            zoom: false,
            bottom: Pane::Stream,
            layout: Layout::default(),
            quit: false,
            active: 0,
        }
    }

    /// Takes the news: events always, the numbers unless the display is frozen. `now` is the time since the start.
    pub fn tick(&mut self, now: Duration) {
        self.now = now;
        for event in self.control.poll_events() {
            self.log.event(now, &event);
        }
        self.latest = Arc::new(self.control.snapshot());
        if self.frozen.is_none() {
            self.rates.push(now, &self.latest.counts);
            let delivered: Vec<u64> = self.latest.vcpus.iter().map(|v| v.delivered).collect();
            self.vcpu_rates.push(now, &delivered);
            self.active = self.latest.active.iter().filter(|a| **a).count();
            let numbers = Numbers { snapshot: &self.latest, rates: &self.rates };
            self.functions.refresh(now, numbers);
        }
    }

    /// The snapshot that is shown.
    #[must_use]
    pub fn shown(&self) -> &Arc<Snapshot> {
        self.frozen.as_ref().unwrap_or(&self.latest)
    }

    /// The numbers that are shown.
    #[must_use]
    pub fn numbers(&self) -> Numbers<'_> {
        Numbers { snapshot: self.shown(), rates: &self.rates }
    }

    /// Changes the function list on the base of what is shown.
    pub(crate) fn with_functions(&mut self, change: impl FnOnce(&mut FunctionList, Numbers<'_>)) {
        let snapshot = self.frozen.as_ref().unwrap_or(&self.latest);
        change(&mut self.functions, Numbers { snapshot, rates: &self.rates });
    }

    /// Freezes the display, or lets it go on.
    pub(crate) fn toggle_freeze(&mut self) {
        if self.frozen.take().is_some() {
            // What happened meanwhile must not look like one second's worth.
            self.rates.reset();
            self.vcpu_rates.reset();
        } else {
            self.frozen = Some(self.latest.clone());
        }
    }

    /// Says something to the user.
    pub(crate) fn say(&mut self, severity: Severity, what: impl Into<String>) {
        self.log.push(self.now, severity, what);
    }

    /// Sends a command, unless there is no guest left to obey it.
    pub(crate) fn send(&mut self, command: Command) {
        let ended = self.latest.ended.is_some();
        match command {
            Command::Switch { .. }
            | Command::SwitchExactly { .. }
            | Command::Pause
            | Command::Resume
            | Command::Detach
            | Command::ConsoleInput(_)
                if ended =>
            {
                self.say(Severity::Warn, "the guest has ended; nothing in it can be changed any more");
            }
            command => self.control.send(command),
        }
    }

    /// Focuses a pane.
    pub(crate) fn focus(&mut self, pane: Pane) {
        self.focus = pane;
        if matches!(pane, Pane::Stream | Pane::Console) {
            self.bottom = pane;
        }
    }

    /// Lays out the screen and brings every view up to date with its size. Call before drawing.
    pub fn prepare(&mut self, screen: Rect) {
        let columns = usize::from(screen.width.saturating_sub(2));
        let wish = Wish {
            focus: self.focus,
            zoom: self.zoom,
            bottom: self.bottom,
            vcpus: self.shown().vcpus.len().min(64) as u16,
            banner: self.banner_lines(columns).len() as u16,
            status: self.status_lines(columns).len() as u16,
        };
        self.layout = Layout::new(screen, wish);
        let rows = |r: Rect| usize::from(r.height);
        self.functions.prepare(rows(self.layout.function_rows()));
        let stream_rows = rows(self.layout.body(Pane::Stream));
        let snapshot = self.shown().clone();
        self.stream.prepare(&snapshot.live, stream_rows);
        let console = self.layout.body(Pane::Console);
        if console.area() > 0 {
            let width = usize::from(console.width.saturating_sub(1));
            self.console.prepare(&snapshot.console, width, rows(console));
        }
        self.rings_offset = self.rings_offset.min(snapshot.vcpus.len().saturating_sub(1));
    }

    /// The banner's lines; none while the guest lives.
    #[must_use]
    pub fn banner_lines(&self, columns: usize) -> Vec<String> {
        let Some(end) = &self.latest.ended else { return Vec::new() };
        let file = if self.latest.file.is_some() { "w completes the file, " } else { "" };
        let what =
            format!("GUEST ENDED: {}. You can still look at everything; {file}q quits.", messages::end_text(end));
        text::wrap(&what, columns)
    }

    /// The last message's lines; refusals and errors are shown in full as long as they are the last.
    #[must_use]
    pub fn status_lines(&self, columns: usize) -> Vec<String> {
        match self.log.last() {
            Some(m) => text::wrap(&m.text, columns),
            None => vec![String::new()],
        }
    }
}
