//! Samples as sorted stacks of numbered frames: what formats with a table of frames are made of.

use std::collections::{BTreeMap, HashMap};

use super::clean;
use super::compose::Composer;
use super::frame::Frame;
use super::options::Options;
use crate::profile::{Profile, Values, View, add_values};
use crate::record::DeviceId;

/// See the module's documentation. Frames are numbered in the order of their names, stacks stand in that of
/// their frames.
pub(super) struct Stacks {
    pub(super) frames: Vec<Row>,
    pub(super) samples: Vec<Stack>,
}

/// A frame of the table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) name: String,
    /// The source file; empty where it is not known.
    pub(super) file: String,
    /// The line in it; 0 where it is not known.
    pub(super) line: u32,
    /// The file that was mapped; empty where there was none.
    pub(super) module: String,
}

/// A stack, root first, and how much of it there is on a device.
pub(super) struct Stack {
    pub(super) frames: Vec<u32>,
    pub(super) device: Option<DeviceId>,
    pub(super) values: Values,
}

/// What tells two frames apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Apart {
    /// A frame is a line of a function.
    Lines,
    /// A frame is a function; its line is the first of those that were seen.
    Functions,
}

impl Stacks {
    pub(super) fn of(profile: &Profile, view: &View, options: &Options, apart: Apart) -> Self {
        let composer = Composer::new(profile, view, options);
        let mut table = Table::default();
        let mut sums: HashMap<(Vec<u32>, Option<DeviceId>), Values> = HashMap::new();
        for sample in composer.samples() {
            let frames = composer.frames(&sample);
            let frames = frames.iter().map(|frame| table.number(row(profile, frame), apart)).collect();
            add_values(sums.entry((frames, sample.device)).or_default(), sample.values);
        }
        let (frames, ranks) = table.sorted();
        let sorted: BTreeMap<_, _> = sums
            .into_iter()
            .map(|((stack, device), values)| {
                let stack: Vec<u32> = stack.into_iter().map(|number| ranks[number as usize]).collect();
                ((stack, device), values)
            })
            .collect();
        let stack = |((frames, device), values)| Stack { frames, device, values };
        Self { frames, samples: sorted.into_iter().map(stack).collect() }
    }
}

fn row(profile: &Profile, frame: &Frame<'_>) -> Row {
    let text = |id| clean::text(profile.strings().get(id));
    let shown = frame.id.map(|id| profile.shown_frame(id));
    let source = shown.and_then(|shown| shown.source);
    Row {
        name: clean::text(&frame.text),
        file: source.map_or_else(String::new, |source| text(source.file)),
        line: source.map_or(0, |source| source.line),
        module: shown.and_then(|shown| shown.module).map_or_else(String::new, text),
    }
}

/// Frames in order of first sight.
#[derive(Default)]
struct Table {
    rows: Vec<Row>,
    numbers: HashMap<Row, u32>,
}

impl Table {
    fn number(&mut self, row: Row, apart: Apart) -> u32 {
        let key = match apart {
            Apart::Lines => row.clone(),
            Apart::Functions => Row { line: 0, ..row.clone() },
        };
        let next = self.rows.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        match self.rows.get_mut(number as usize) {
            Some(known) if row.line > 0 && (known.line == 0 || row.line < known.line) => {
                known.line = row.line
            }
            Some(_) => {}
            None => self.rows.push(row),
        }
        number
    }

    /// The frames in their order, and the place in it of each number.
    fn sorted(self) -> (Vec<Row>, Vec<u32>) {
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_unstable_by_key(|&at| &self.rows[at]);
        let mut ranks = vec![0; order.len()];
        order.iter().zip(0..).for_each(|(&at, rank)| ranks[at] = rank);
        (order.into_iter().map(|at| self.rows[at].clone()).collect(), ranks)
    }
}
