//! Converts samples to sorted stacks, for formats that have a table of frames. A stack is a list of indexes into this
//! table.

use std::collections::{BTreeMap, HashMap};

use gpuflame_export::clean;
use gpuflame_export::compose::Composer;
use gpuflame_export::frame::ComposedFrame;
use gpuflame_export::options::Options;
use gpuflame_model::profile::{Profile, Values, View, add_values};
use gpuflame_model::record::DeviceId;

/// Frame table and stacks. Frames are sorted by name, and stacks are sorted by their frame indexes.
pub(super) struct SortedStacks {
    pub(super) frames: Vec<FrameRow>,
    pub(super) samples: Vec<StackRow>,
}

/// A row of the frame table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FrameRow {
    pub(super) name: String,
    /// Source file; empty if it is unknown.
    pub(super) file: String,
    /// Line in the source file; 0 if it is unknown.
    pub(super) line: u32,
    /// Mapped file that contains the frame's code; empty if the code is not in a file.
    pub(super) module: String,
}

/// A stack, root frame first, and the values of this stack on one device.
pub(super) struct StackRow {
    pub(super) frames: Vec<u32>,
    pub(super) device: Option<DeviceId>,
    pub(super) values: Values,
}

/// Whether frames with the same function but different lines are separate frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Granularity {
    /// Each line of a function is a separate frame.
    Lines,
    /// Each function is one frame. The line of the frame is the smallest line of this function that occurs in the data.
    Functions,
}

impl SortedStacks {
    pub(super) fn new(profile: &Profile, view: &View, options: &Options, granularity: Granularity) -> Self {
        let composer = Composer::new(profile, view, options);
        let mut table = FrameTable::default();
        let mut sums: HashMap<(Vec<u32>, Option<DeviceId>), Values> = HashMap::new();
        for sample in composer.samples() {
            let frames = composer.frames(&sample);
            let frames =
                frames.iter().map(|frame| table.intern(frame_row(profile, frame), granularity)).collect();
            add_values(sums.entry((frames, sample.device)).or_default(), sample.values);
        }
        let (frames, ranks) = table.into_sorted();
        let sorted: BTreeMap<_, _> = sums
            .into_iter()
            .map(|((stack, device), values)| {
                let stack: Vec<u32> = stack.into_iter().map(|number| ranks[number as usize]).collect();
                ((stack, device), values)
            })
            .collect();
        let stack = |((frames, device), values)| StackRow { frames, device, values };
        Self { frames, samples: sorted.into_iter().map(stack).collect() }
    }
}

fn frame_row(profile: &Profile, frame: &ComposedFrame<'_>) -> FrameRow {
    let text = |id| clean::text(profile.strings().get(id));
    let shown = frame.id.map(|id| profile.shown_frame(id));
    let source = shown.and_then(|shown| shown.source);
    FrameRow {
        name: clean::text(&frame.text),
        file: source.map_or_else(String::new, |source| text(source.file)),
        line: source.map_or(0, |source| source.line),
        module: shown.and_then(|shown| shown.module).map_or_else(String::new, text),
    }
}

/// Frames in the order of their first occurrence.
#[derive(Default)]
struct FrameTable {
    rows: Vec<FrameRow>,
    numbers: HashMap<FrameRow, u32>,
}

impl FrameTable {
    fn intern(&mut self, row: FrameRow, granularity: Granularity) -> u32 {
        let key = match granularity {
            Granularity::Lines => row.clone(),
            Granularity::Functions => FrameRow { line: 0, ..row.clone() },
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

    /// Returns the sorted frames, and the new index of each frame for each old index.
    fn into_sorted(self) -> (Vec<FrameRow>, Vec<u32>) {
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_unstable_by_key(|&at| &self.rows[at]);
        let mut ranks = vec![0; order.len()];
        order.iter().zip(0..).for_each(|(&at, rank)| ranks[at] = rank);
        (order.into_iter().map(|at| self.rows[at].clone()).collect(), ranks)
    }
}
