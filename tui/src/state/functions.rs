//! The function list: which functions are shown, in which order, and which one is selected.
//!
//! The list may have 50,000 rows and its keys change all the time, so the order is refreshed a few times a second, not
//! per frame, and a filter that only got longer looks at what the shorter one let through. Nothing moves
//! under the user's hand: for a while after a key or click the order stands, and the selection stays with its function
//! as long as that is on the screen (a function that was just switched off sinks by thousands of rows; following it there
//! would tear the list away).

use std::sync::Arc;
use std::time::Duration;

use exotrace_patcher::control::{FunctionInfo, Snapshot};
use exotrace_trace::ids::SiteId;

use super::filter::Filter;
use super::rates::RateWindow;

/// How long an order stands before it is refreshed.
const RESORT: Duration = Duration::from_millis(500);
/// How long it stands after the user has touched the list.
const HANDS_ON: Duration = Duration::from_millis(2000);

/// What the list is ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortBy {
    /// Calls per second, highest first.
    Rate,
    /// Calls, highest first.
    Total,
    /// Name.
    Name,
    /// Address.
    Address,
}

impl SortBy {
    /// The next in the cycle.
    #[must_use]
    pub fn next(self) -> SortBy {
        match self {
            SortBy::Rate => SortBy::Total,
            SortBy::Total => SortBy::Name,
            SortBy::Name => SortBy::Address,
            SortBy::Address => SortBy::Rate,
        }
    }

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SortBy::Rate => "rate",
            SortBy::Total => "total",
            SortBy::Name => "name",
            SortBy::Address => "address",
        }
    }

    fn highest_first(self) -> bool {
        matches!(self, SortBy::Rate | SortBy::Total)
    }
}

/// What the order and the filter are made from.
#[derive(Clone, Copy)]
pub struct Numbers<'a> {
    /// Totals and marks.
    pub snapshot: &'a Snapshot,
    /// Calls per second, by site.
    pub rates: &'a RateWindow,
}

impl Numbers<'_> {
    /// Calls of a function so far.
    #[must_use]
    pub fn total(&self, index: u32) -> u64 {
        self.snapshot.counts.get(index as usize).copied().unwrap_or(0)
    }
    /// Calls of a function per second.
    #[must_use]
    pub fn rate(&self, index: u32) -> f32 {
        self.rates.get(index as usize)
    }
    /// Whether a function is traced.
    #[must_use]
    pub fn active(&self, index: u32) -> bool {
        self.snapshot.active.get(index as usize).copied().unwrap_or(false)
    }
}

/// The function list's state.
#[derive(Debug)]
pub struct FunctionList {
    infos: Arc<[FunctionInfo]>,
    /// Position of each function in the order of names.
    name_rank: Vec<u32>,
    filter: Filter,
    filter_text: String,
    filter_error: Option<String>,
    only_traced: bool,
    sort: SortBy,
    reverse: bool,
    /// Indices of the functions shown, in order.
    view: Vec<u32>,
    /// The order's keys, kept for their memory.
    keys: Vec<(u64, u64, u32)>,
    /// Position of the selection in `view` (0 when the view is empty).
    cursor: usize,
    /// First row on the screen.
    offset: usize,
    /// Whether the user chose the selection; until then it is whatever is first.
    chosen: bool,
    rows: usize,
    sorted_at: Option<Duration>,
    /// The user has touched the list since the last refresh was asked for.
    touched: bool,
    /// Until when the order stands because of that.
    hands_on_until: Duration,
}

impl FunctionList {
    /// A list of all functions, by rate.
    #[must_use]
    pub fn new(infos: Arc<[FunctionInfo]>) -> FunctionList {
        let mut by_name: Vec<u32> = (0..infos.len() as u32).collect();
        by_name.sort_by(|a, b| infos[*a as usize].name.cmp(&infos[*b as usize].name));
        let mut name_rank = vec![0; infos.len()];
        for (rank, index) in by_name.iter().enumerate() {
            name_rank[*index as usize] = rank as u32;
        }
        FunctionList {
            view: (0..infos.len() as u32).collect(),
            infos,
            name_rank,
            filter: Filter::default(),
            filter_text: String::new(),
            filter_error: None,
            only_traced: false,
            sort: SortBy::Rate,
            reverse: false,
            keys: Vec::new(),
            cursor: 0,
            offset: 0,
            chosen: false,
            rows: 1,
            sorted_at: None,
            touched: false,
            hands_on_until: Duration::ZERO,
        }
    }

    /// The facts of a function.
    #[must_use]
    pub fn info(&self, index: u32) -> Option<&FunctionInfo> {
        self.infos.get(index as usize)
    }

    /// The functions shown, in order.
    #[must_use]
    pub fn view(&self) -> &[u32] {
        &self.view
    }

    /// Functions in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.infos.len()
    }

    /// Whether the image has no functions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.infos.is_empty()
    }

    /// The selected function.
    #[must_use]
    pub fn selected(&self) -> Option<u32> {
        self.view.get(self.cursor).copied()
    }

    /// Position of the selection, and the first row shown.
    #[must_use]
    pub fn position(&self) -> (usize, usize) {
        (self.cursor, self.offset)
    }

    /// The order, and whether it is turned around.
    #[must_use]
    pub fn order(&self) -> (SortBy, bool) {
        (self.sort, self.reverse)
    }

    /// The filter as typed, and what is wrong with it.
    #[must_use]
    pub fn filter(&self) -> (&str, Option<&str>) {
        (&self.filter_text, self.filter_error.as_deref())
    }

    /// Whether only traced functions are listed.
    #[must_use]
    pub fn only_traced(&self) -> bool {
        self.only_traced
    }

    /// Whether every function is listed.
    #[must_use]
    pub fn shows_all(&self) -> bool {
        !self.only_traced && self.filter.is_empty()
    }

    /// The functions shown that can be traced.
    #[must_use]
    pub fn traceable(&self) -> Vec<SiteId> {
        self.view.iter().filter_map(|i| self.info(*i)).filter(|f| f.skipped.is_none()).map(|f| f.site).collect()
    }

    /// Takes a new filter text. One that does not parse leaves the list as it is.
    pub fn set_filter(&mut self, text: &str, numbers: Numbers<'_>) {
        if text == self.filter_text {
            return;
        }
        text.clone_into(&mut self.filter_text);
        match Filter::parse(text) {
            Err(why) => self.filter_error = Some(why),
            Ok(filter) => {
                self.filter_error = None;
                let narrows = filter.narrows(&self.filter);
                self.filter = filter;
                self.refilter(!narrows, numbers);
            }
        }
    }

    /// Lists only what is traced, or everything.
    pub fn toggle_only_traced(&mut self, numbers: Numbers<'_>) {
        self.only_traced = !self.only_traced;
        self.refilter(true, numbers);
    }

    /// Orders by a column; by the same one again turns the order around.
    pub fn sort_by(&mut self, sort: SortBy, numbers: Numbers<'_>) {
        if sort == self.sort {
            self.reverse = !self.reverse;
        } else {
            self.sort = sort;
            self.reverse = false;
        }
        self.resort(numbers);
    }

    /// Turns the order around.
    pub fn reverse(&mut self, numbers: Numbers<'_>) {
        self.reverse = !self.reverse;
        self.resort(numbers);
    }

    /// Refreshes the order if it is due.
    pub fn refresh(&mut self, now: Duration, numbers: Numbers<'_>) {
        if std::mem::take(&mut self.touched) {
            self.hands_on_until = now + HANDS_ON;
        }
        if now < self.hands_on_until || self.sorted_at.is_some_and(|t| now.saturating_sub(t) < RESORT) {
            return;
        }
        self.sorted_at = Some(now);
        let selected = self.selected();
        if self.only_traced {
            self.collect(true, numbers);
        } else if !self.sort.highest_first() {
            return;
        }
        self.arrange(numbers);
        if !self.chosen {
            (self.cursor, self.offset) = (0, 0);
        }
        let mut screen = self.view.iter().skip(self.offset).take(self.rows);
        if let Some(row) = screen.position(|i| Some(*i) == selected).filter(|_| self.chosen) {
            self.cursor = self.offset + row;
        }
        self.clamp();
    }

    fn refilter(&mut self, from_all: bool, numbers: Numbers<'_>) {
        let selected = self.selected();
        self.collect(from_all, numbers);
        self.arrange(numbers);
        self.reselect(selected);
    }

    /// Keeps what passes the filter, of everything or of what is shown.
    fn collect(&mut self, from_all: bool, numbers: Numbers<'_>) {
        if from_all {
            self.view.clear();
            self.view.extend(0..self.infos.len() as u32);
        }
        let (infos, filter, only_traced) = (&self.infos, &self.filter, self.only_traced);
        if !filter.is_empty() || only_traced {
            self.view.retain(|&i| {
                (!only_traced || numbers.active(i)) && infos.get(i as usize).is_some_and(|f| filter.matches(&f.name))
            });
        }
    }

    fn resort(&mut self, numbers: Numbers<'_>) {
        let selected = self.selected();
        self.arrange(numbers);
        self.reselect(selected);
    }

    fn arrange(&mut self, numbers: Numbers<'_>) {
        let descending = self.sort.highest_first() != self.reverse;
        self.keys.clear();
        for &i in &self.view {
            let (key, second) = match self.sort {
                // Thousandths of a call per second are fine enough; the cast saturates. Among equals (all that were
                // switched off) totals keep the list from being shuffled.
                SortBy::Rate => ((numbers.rate(i) * 1000.0) as u64, numbers.total(i)),
                SortBy::Total => (numbers.total(i), 0),
                SortBy::Name => (u64::from(self.name_rank[i as usize]), 0),
                SortBy::Address => (self.infos[i as usize].addr.0, 0),
            };
            self.keys.push(if descending { (!key, !second, i) } else { (key, second, i) });
        }
        self.keys.sort_unstable();
        self.view.clear();
        self.view.extend(self.keys.iter().map(|k| k.2));
    }

    /// Finds the selection again after the user has changed the view, and scrolls to it on its former row.
    fn reselect(&mut self, selected: Option<u32>) {
        let row = self.cursor.saturating_sub(self.offset);
        let found = selected.filter(|_| self.chosen).and_then(|s| self.view.iter().position(|i| *i == s));
        (self.cursor, self.offset) = found.map_or((0, 0), |at| (at, at.saturating_sub(row)));
        self.chosen = found.is_some();
        self.clamp();
    }

    /// Takes the number of rows on the screen.
    pub fn prepare(&mut self, rows: usize) {
        self.rows = rows.max(1);
        self.clamp();
    }

    fn clamp(&mut self) {
        self.cursor = self.cursor.min(self.view.len().saturating_sub(1));
        self.offset = self.offset.min(self.view.len().saturating_sub(self.rows));
        self.offset = self.offset.clamp(self.cursor.saturating_sub(self.rows - 1), self.cursor);
    }

    /// Selects a position of the view, if there is one.
    pub fn select(&mut self, position: usize) {
        self.cursor = position;
        self.choose();
        self.clamp();
    }

    /// Makes the selection the user's own, so that it no longer follows the top of the list.
    pub fn choose(&mut self) {
        self.chosen = true;
        self.touched = true;
    }

    /// Moves the selection.
    pub fn step(&mut self, lines: isize) {
        let last = self.view.len().saturating_sub(1);
        self.select(self.cursor.saturating_add_signed(lines).min(last));
    }

    /// To the top, where the selection follows whatever comes first.
    pub fn home(&mut self) {
        (self.cursor, self.offset) = (0, 0);
        (self.chosen, self.touched) = (false, false);
        self.hands_on_until = Duration::ZERO;
    }

    /// To the bottom.
    pub fn end(&mut self) {
        self.select(self.view.len().saturating_sub(1));
    }

    /// Scrolls without moving the selection unless it would leave the screen.
    pub fn scroll(&mut self, lines: isize) {
        let last = self.view.len().saturating_sub(self.rows);
        self.offset = self.offset.saturating_add_signed(lines).min(last);
        let bottom = (self.offset + self.rows).min(self.view.len()).saturating_sub(1);
        let kept = self.cursor.clamp(self.offset.min(bottom), bottom);
        if kept != self.cursor {
            self.cursor = kept;
            self.chosen = true;
        }
        self.touched = true;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use exotrace_trace::ids::Gva;

    fn list(names: &[&str]) -> FunctionList {
        let infos: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(i, n)| FunctionInfo {
                site: SiteId(i as u32),
                name: (*n).into(),
                addr: Gva(0x1000 + i as u64),
                skipped: None,
            })
            .collect();
        FunctionList::new(infos.into())
    }

    fn shown(l: &FunctionList) -> Vec<&str> {
        l.view().iter().map(|i| &*l.info(*i).unwrap().name).collect()
    }

    fn counts(counts: &[u64]) -> Snapshot {
        Snapshot { counts: counts.to_vec(), active: vec![false; counts.len()], ..Snapshot::default() }
    }

    #[test]
    fn all_four_orders_and_their_reverse() {
        let mut l = list(&["c", "a", "b"]);
        let snapshot = counts(&[5, 5, 9]);
        let mut rates = RateWindow::default();
        rates.push(Duration::ZERO, &[0, 0, 0]);
        rates.push(Duration::from_secs(1), &[1, 3, 2]);
        let n = Numbers { snapshot: &snapshot, rates: &rates };
        l.refresh(Duration::ZERO, n);
        assert_eq!(shown(&l), ["a", "b", "c"]);
        l.sort_by(SortBy::Total, n);
        assert_eq!(shown(&l), ["b", "c", "a"], "equal totals stay in the order of addresses");
        l.sort_by(SortBy::Name, n);
        assert_eq!(shown(&l), ["a", "b", "c"]);
        l.sort_by(SortBy::Name, n);
        assert_eq!(shown(&l), ["c", "b", "a"]);
        l.sort_by(SortBy::Address, n);
        assert_eq!(shown(&l), ["c", "a", "b"]);
    }

    #[test]
    fn a_chosen_selection_survives_what_the_user_does_and_an_unchosen_one_follows_the_top() {
        let mut l = list(&["a", "b", "c", "d"]);
        l.prepare(2);
        let (one, rates) = (counts(&[4, 3, 2, 1]), RateWindow::default());
        let n = Numbers { snapshot: &one, rates: &rates };
        l.sort_by(SortBy::Total, n);
        assert_eq!(l.selected(), Some(0));
        l.reverse(n);
        assert_eq!(l.selected(), Some(3), "not chosen: the first");
        l.choose();
        l.reverse(n);
        assert_eq!(l.selected(), Some(3), "chosen: the same function");
        let (cursor, offset) = l.position();
        assert!((offset..offset + 2).contains(&cursor));
    }

    #[test]
    fn the_order_stands_while_the_user_is_at_it_and_the_screen_does_not_jump() {
        let mut l = list(&["a", "b", "c", "d"]);
        l.prepare(2);
        let rates = RateWindow::default();
        let (one, two, three) = (counts(&[4, 3, 2, 1]), counts(&[3, 4, 2, 1]), counts(&[3, 0, 2, 1]));
        let numbers = |snapshot| Numbers { snapshot, rates: &rates };
        let second = Duration::from_secs;
        l.sort_by(SortBy::Total, numbers(&one));
        l.step(1);
        l.refresh(second(1), numbers(&two));
        assert_eq!(shown(&l), ["a", "b", "c", "d"], "hands on");
        l.refresh(second(4), numbers(&two));
        assert_eq!(shown(&l), ["b", "a", "c", "d"]);
        assert_eq!((l.selected(), l.position()), (Some(1), (0, 0)), "still on the screen: followed");
        l.refresh(second(5), numbers(&three));
        assert_eq!(shown(&l), ["a", "c", "d", "b"]);
        assert_eq!((l.selected(), l.position()), (Some(0), (0, 0)), "gone from the screen: not followed");
    }

    #[test]
    fn filters_narrow_widen_and_report_nonsense() {
        let mut l = list(&["vfs_read", "vfs_write", "ksys_read"]);
        let (snapshot, rates) = (counts(&[0, 0, 0]), RateWindow::default());
        let n = Numbers { snapshot: &snapshot, rates: &rates };
        l.set_filter("r", n);
        l.set_filter("re", n);
        assert_eq!(shown(&l), ["vfs_read", "ksys_read"]);
        l.set_filter("re[", n);
        assert!(l.filter().1.is_some());
        assert_eq!(l.view().len(), 2);
        l.set_filter("nothing has this", n);
        assert_eq!(l.selected(), None);
        l.step(1);
        l.scroll(-3);
        l.end();
        l.set_filter("", n);
        assert_eq!(l.view().len(), 3);
        assert!(l.selected().is_some());
    }
}
