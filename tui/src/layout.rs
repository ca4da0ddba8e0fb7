//! Where things are on the screen: a pure function of the size and of what the user asked for, so that drawing and
//! mouse handling can't disagree.

use ratatui::layout::{Position, Rect};

/// The panes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pane {
    /// The function list.
    Functions,
    /// The live records.
    Stream,
    /// vCPUs and rings.
    Rings,
    /// The guest's console.
    Console,
}

impl Pane {
    /// All, in the order of their numbers.
    pub const ALL: [Pane; 4] = [Pane::Functions, Pane::Stream, Pane::Rings, Pane::Console];

    /// Index in [`Pane::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Pane::Functions => 0,
            Pane::Stream => 1,
            Pane::Rings => 2,
            Pane::Console => 3,
        }
    }

    /// The title.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Pane::Functions => "functions",
            Pane::Stream => "records",
            Pane::Rings => "vCPUs and rings",
            Pane::Console => "console",
        }
    }
}

/// The smallest screen with panes on it, columns.
pub const MIN_WIDTH: u16 = 40;
/// The smallest screen with panes on it, rows.
pub const MIN_HEIGHT: u16 = 10;
/// Below this width or [`SPLIT_HEIGHT`] one pane is shown at a time, columns.
const SPLIT_WIDTH: u16 = 72;
/// See [`SPLIT_WIDTH`], rows.
const SPLIT_HEIGHT: u16 = 18;
/// From here on all four panes are shown, columns.
const WIDE_WIDTH: u16 = 110;
/// See [`WIDE_WIDTH`], rows.
const WIDE_HEIGHT: u16 = 22;
/// Width of the rings pane in the split screen, columns.
const RINGS_WIDTH: u16 = 34;

/// What the layout depends on besides the size.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// The focused pane.
    pub focus: Pane,
    /// The focused pane fills the screen.
    pub zoom: bool,
    /// What the bottom of a split screen shows: [`Pane::Stream`] or [`Pane::Console`].
    pub bottom: Pane,
    /// How many vCPUs there are.
    pub vcpus: u16,
    /// Lines wanted for the banner (0: none).
    pub banner: u16,
    /// Lines wanted for the status.
    pub status: u16,
}

/// Where things are. A rectangle without area is not shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The whole screen.
    pub screen: Rect,
    /// Too small for anything but a message.
    pub too_small: bool,
    /// First line.
    pub header: Rect,
    /// The guest has ended.
    pub banner: Rect,
    /// The last message or the text being typed.
    pub status: Rect,
    /// Key hints.
    pub hints: Rect,
    /// The line between left and right.
    pub separator: Rect,
    /// Whether the bottom's title shows both of its panes.
    pub tabs: bool,
    panes: [Rect; 4],
}

impl Layout {
    /// Lays the screen out.
    #[must_use]
    pub fn new(screen: Rect, wish: Wish) -> Layout {
        let mut l = Layout { screen, ..Layout::default() };
        if screen.width < MIN_WIDTH || screen.height < MIN_HEIGHT {
            l.too_small = true;
            return l;
        }
        let Rect { x, y, width, height } = screen;
        // Messages never take more than a third of the screen.
        let banner = wish.banner.min(height / 5);
        let status = wish.status.clamp(1, height / 4);
        l.header = Rect::new(x, y, width, 1);
        l.banner = Rect::new(x, y + 1, width, banner);
        l.hints = Rect::new(x, y + height - 1, width, 1);
        l.status = Rect::new(x, l.hints.y - status, width, status);
        let body = Rect::new(x, l.banner.bottom(), width, l.status.y - l.banner.bottom());
        if wish.zoom || width < SPLIT_WIDTH || height < SPLIT_HEIGHT {
            l.panes[wish.focus.index()] = body;
        } else if width >= WIDE_WIDTH && height >= WIDE_HEIGHT {
            l.wide(body, wish);
        } else {
            l.split(body, wish);
        }
        l
    }

    /// Functions and rings above, stream or console below.
    fn split(&mut self, body: Rect, wish: Wish) {
        let below = (body.height * 2 / 5).max(5);
        let above = body.height - below;
        let left = body.width - RINGS_WIDTH - 1;
        self.panes[Pane::Functions.index()] = Rect::new(body.x, body.y, left, above);
        self.separator = Rect::new(body.x + left, body.y, 1, above);
        self.panes[Pane::Rings.index()] = Rect::new(body.x + left + 1, body.y, RINGS_WIDTH, above);
        self.panes[wish.bottom.index()] = Rect::new(body.x, body.y + above, body.width, below);
        self.tabs = true;
    }

    /// Functions on the left, everything else on the right.
    fn wide(&mut self, body: Rect, wish: Wish) {
        let left = (body.width * 9 / 20).min(100);
        let right = Rect::new(body.x + left + 1, body.y, body.width - left - 1, body.height);
        // Title, heads, a line each, the sum, and five lines of facts.
        let rings = (wish.vcpus.saturating_add(8)).min(body.height / 2);
        let console = (body.height - rings) * 2 / 5;
        let stream = body.height - rings - console;
        self.panes[Pane::Functions.index()] = Rect { width: left, ..body };
        self.separator = Rect::new(body.x + left, body.y, 1, body.height);
        self.panes[Pane::Rings.index()] = Rect { height: rings, ..right };
        self.panes[Pane::Stream.index()] = Rect { y: right.y + rings, height: stream, ..right };
        self.panes[Pane::Console.index()] = Rect { y: right.y + rings + stream, height: console, ..right };
    }

    /// A pane with its title line.
    #[must_use]
    pub fn pane(&self, pane: Pane) -> Rect {
        self.panes[pane.index()]
    }

    /// A pane below its title line.
    #[must_use]
    pub fn body(&self, pane: Pane) -> Rect {
        let r = self.pane(pane);
        Rect { y: r.y.saturating_add(1), height: r.height.saturating_sub(1), ..r }
    }

    /// The rows of the function list (below the column heads).
    #[must_use]
    pub fn function_rows(&self) -> Rect {
        let r = self.body(Pane::Functions);
        Rect { y: r.y.saturating_add(1), height: r.height.saturating_sub(1), ..r }
    }

    /// Which pane is under the pointer.
    #[must_use]
    pub fn pane_at(&self, at: Position) -> Option<Pane> {
        Pane::ALL.into_iter().find(|p| self.pane(*p).contains(at))
    }
}

/// The columns of the function list, as offsets from its left edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionColumns {
    /// Where the names start.
    pub name: u16,
    /// Columns for a name.
    pub name_width: u16,
    /// Where the rates start ([`FunctionColumns::NUMBER`] columns).
    pub rate: u16,
    /// Where the totals start ([`FunctionColumns::NUMBER`] columns).
    pub total: u16,
    /// Where the addresses start, if there is room.
    pub address: Option<u16>,
}

impl FunctionColumns {
    /// Columns of a number with the space before it.
    pub const NUMBER: u16 = 8;
    /// Columns of an address with the space before it.
    pub const ADDRESS: u16 = 20;

    /// The columns of a list of this width (the last column is the scroll bar's).
    #[must_use]
    pub fn new(width: u16) -> FunctionColumns {
        let inner = width.saturating_sub(2);
        let address = if inner >= 66 { Self::ADDRESS } else { 0 };
        let name = 2;
        let name_width = inner.saturating_sub(name + 2 * Self::NUMBER + address);
        let rate = name + name_width;
        let total = rate + Self::NUMBER;
        FunctionColumns { name, name_width, rate, total, address: (address > 0).then_some(total + Self::NUMBER) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_or_leaves_the_screen_at_any_size() {
        for width in 0..140 {
            for height in 0..50 {
                for (i, focus) in Pane::ALL.into_iter().enumerate() {
                    let bottom = if i % 2 == 0 { Pane::Stream } else { Pane::Console };
                    let wish = Wish { focus, zoom: i == 3, bottom, vcpus: 16, banner: 3, status: 9 };
                    let screen = Rect::new(0, 0, width, height);
                    let l = Layout::new(screen, wish);
                    if l.too_small {
                        continue;
                    }
                    let mut all = vec![l.header, l.banner, l.status, l.hints, l.separator];
                    all.extend(Pane::ALL.map(|p| l.pane(p)));
                    all.retain(|r| r.area() > 0);
                    for (n, a) in all.iter().enumerate() {
                        assert_eq!(a.intersection(screen), *a, "{width}x{height}");
                        for b in &all[n + 1..] {
                            assert_eq!(a.intersection(*b).area(), 0, "{width}x{height}: {a} {b}");
                        }
                    }
                    assert_eq!(all.iter().map(|r| r.area()).sum::<u32>(), screen.area(), "{width}x{height} has holes");
                }
            }
        }
    }
}
