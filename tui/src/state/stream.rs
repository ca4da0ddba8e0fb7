//! The live record stream: the newest at the bottom, or held still while the guest goes on.

use std::sync::Arc;

use exotrace_patcher::control::LiveRecord;

/// The stream pane's state.
#[derive(Debug, Default)]
pub struct StreamView {
    held: Option<Arc<[LiveRecord]>>,
    /// Records between the last one shown and the end.
    back: usize,
}

impl StreamView {
    /// Holds the stream, or follows it again.
    pub fn toggle(&mut self, live: &Arc<[LiveRecord]>) {
        if self.held.is_some() {
            self.follow();
        } else {
            self.held = Some(live.clone());
        }
    }

    /// Follows the guest again.
    pub fn follow(&mut self) {
        self.held = None;
        self.back = 0;
    }

    /// Scrolls, negative is back in time. Scrolling back holds the stream; coming to the end does not let it go (the
    /// user may be comparing), End does.
    pub fn scroll(&mut self, lines: isize, live: &Arc<[LiveRecord]>) {
        if self.held.is_none() {
            if lines >= 0 {
                return;
            }
            self.held = Some(live.clone());
        }
        self.back = self.back.saturating_add_signed(lines.saturating_neg());
    }

    /// Keeps the position inside what there is.
    pub fn prepare(&mut self, live: &Arc<[LiveRecord]>, rows: usize) {
        self.back = self.back.min(self.records(live).len().saturating_sub(rows));
    }

    /// Whether the stream is held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// What is looked at: held, or the newest.
    #[must_use]
    pub fn records<'a>(&'a self, live: &'a Arc<[LiveRecord]>) -> &'a Arc<[LiveRecord]> {
        self.held.as_ref().unwrap_or(live)
    }

    /// The range of records to show in `rows` rows.
    #[must_use]
    pub fn visible(&self, live: &Arc<[LiveRecord]>, rows: usize) -> (usize, usize) {
        let end = self.records(live).len().saturating_sub(self.back);
        (end.saturating_sub(rows), end)
    }
}
