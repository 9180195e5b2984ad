//! Data of a report page: frames and trees for the views of one or several runs, small enough for a browser.
//!
//! Every view is a tree of folded stacks. A node has a value for each track (rank, GPU, stream and thread): the total
//! of the stacks that end at this node. Therefore, the sum of all values equals the sum of the folded stacks.

mod frame_names;
mod idle_gaps;
mod json;
mod reduced_view;
mod timeline;
mod timeline_slices;
mod tracks;
mod view_tree;

use gpuflame_export::Options;
use gpuflame_model::profile::views::{CPU, GPU, IDLE, MEMORY, OFF_CPU, WAITS};
use gpuflame_model::profile::{Profile, View};

use frame_names::FrameNames;
pub use json::{quoted, write_data};
pub use timeline::{Timeline, TimelineActivities, TimelineData};
use tracks::Tracks;
use view_tree::ViewTree;

/// Views of a page in the order of the page's menu, as (view, word, menu title).
const PAGE_VIEWS: [(&View, &str, &str); 6] = [
    (&GPU, "gpu", "GPU time"),
    (&IDLE, "idle", "GPU idle time"),
    (&WAITS, "waits", "Waits of the host"),
    (&CPU, "cpu", "CPU time"),
    (&OFF_CPU, "offcpu", "Off-CPU time"),
    (&MEMORY, "memory", "Memory"),
];

/// Views of all runs that a page shows.
#[derive(Debug)]
pub struct ReportViews {
    names: FrameNames,
    tracks: Tracks,
    trees: Vec<ViewTree>,
}

impl Default for ReportViews {
    fn default() -> Self {
        let trees = PAGE_VIEWS.iter().map(|_| ViewTree::default()).collect();
        Self { names: FrameNames::default(), tracks: Tracks::default(), trees }
    }
}

impl ReportViews {
    /// Adds all views of a run, drawn with `options`. `rank` is the rank of the run, if the page shows several ranks.
    pub fn add_run(&mut self, profile: &Profile, rank: Option<u32>, options: &Options) {
        let Self { names, tracks, trees } = self;
        for ((view, ..), tree) in PAGE_VIEWS.iter().zip(trees) {
            if *view == &GPU || profile.has(view) {
                view_tree::add_view(tree, (names, tracks), profile, (view, rank), options);
            }
        }
    }

    /// Returns the words and titles of the views that have no data.
    pub fn absent(&self) -> Vec<(&'static str, &'static str)> {
        let all = PAGE_VIEWS.iter().zip(&self.trees);
        all.filter(|(_, tree)| tree.is_empty()).map(|((_, word, label), _)| (*word, *label)).collect()
    }
}
