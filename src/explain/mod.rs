//! The one way from rows to a profile, whoever has the rows: a live session, or a file that is read again.
//!
//! ```text
//! rows -> contexts merged -> graph nodes resolved -> join -> aggregate, timeline, the caller's sink
//!                                                   others -> host sums, profile
//! ```
//!
//! It reads no file, writes none and knows no names of code: `session` and `cli` have those ways in and out.

mod contexts;

use crate::aggregate::{Aggregate, HostSums};
use crate::graphs::{self, Graphs};
use crate::join::{Join, Sink, Tally};
use crate::profile::Profile;
use crate::record::{Activity, Launch, MemoryCall, Row, Wait};
use crate::timeline::Timeline;
use contexts::Contexts;
pub use contexts::Stacks;

/// What is kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Options {
    /// Whether the streams of a device are. Default: no.
    pub by_stream: bool,
    /// Whether the same stack on two threads is one context. It has to be where the process lives on: one
    /// that makes a thread for every request must not grow by it. Default: no.
    pub merge_threads: bool,
}

/// All that is known of the rows so far. See the module's documentation.
#[derive(Debug, Default)]
pub struct Explain {
    graphs: Graphs,
    join: Join,
    aggregate: Aggregate,
    timeline: Timeline,
    host: HostSums,
    profile: Profile,
    contexts: Contexts,
}

impl Explain {
    /// One that has seen nothing.
    pub fn new(options: Options) -> Self {
        Self {
            aggregate: if options.by_stream { Aggregate::by_stream() } else { Aggregate::default() },
            contexts: Contexts::new(options.merge_threads),
            ..Self::default()
        }
    }

    /// Takes the next row; `sink` is shown what is joined by it.
    pub fn push(&mut self, row: &Row<'_>, sink: &mut impl Sink) {
        match row {
            Row::Launch(launch) => {
                let launch = &Launch { context: self.contexts.first(launch.context), ..*launch };
                self.join.push_launch(launch, &mut (&mut self.aggregate, (&mut self.timeline, sink)));
            }
            // A copy waits for the stores that made the row: some 12 ns, where nearly none needs one.
            Row::Activity(activity) if !graphs::is_node(activity) => self.join_activity(activity, sink),
            Row::Activity(activity) => {
                let mut activity = *activity;
                self.graphs.resolve(&mut activity);
                self.join_activity(&activity, sink);
            }
            Row::GraphNode { graph, node, context } => {
                let context = self.contexts.first(*context);
                self.graphs.push(&Row::GraphNode { graph: *graph, node: *node, context });
            }
            Row::GraphClone { .. } | Row::GraphUpdate { .. } | Row::GraphEnd { .. } => {
                self.graphs.push(row);
            }
            Row::Context { .. } => self.contexts.add(row, &mut self.profile),
            Row::Wait(wait) => {
                let context = self.contexts.first(wait.context);
                self.host.row(&Row::Wait(Wait { context, ..*wait }));
            }
            Row::Memory(call) => {
                let context = self.contexts.first(call.context);
                self.host.row(&Row::Memory(MemoryCall { context, ..*call }));
            }
            Row::Unified(unified) => {
                sink.unified(unified);
                self.host.row(row);
            }
            Row::EventRecord(_) | Row::Sync(_) | Row::EventCall(_) => self.host.row(row),
            Row::Window { .. } => {
                self.join.push(row, &mut (&mut self.aggregate, (&mut self.timeline, sink)));
                self.timeline.row(row);
                self.profile.push(row);
            }
            _ => self.profile.push(row),
        }
    }

    fn join_activity(&mut self, activity: &Activity, sink: &mut impl Sink) {
        self.join.push_activity(activity, &mut (&mut self.aggregate, (&mut self.timeline, sink)));
    }

    /// The tracer was flushed, and what it handed over was pushed: what was destroyed or is over by then
    /// can be forgotten.
    pub fn flushed(&mut self) {
        self.graphs.flushed();
        self.join.flushed();
    }

    /// Whether so much waits for a flush that one should come soon.
    pub fn wants_flush(&self) -> bool {
        self.join.wants_flush() || self.graphs.wants_flush()
    }

    /// Gives up on what has no partner yet; `sink` is shown it.
    pub fn finish(&mut self, sink: &mut impl Sink) {
        self.join.finish(&mut (&mut self.aggregate, (&mut self.timeline, sink)));
    }

    /// Puts all sums into the profile.
    pub fn fill(&mut self) {
        self.aggregate.fill(&mut self.profile);
        self.timeline.fill(&mut self.profile);
        self.host.fill(&mut self.profile);
    }

    /// What became of launches and activities so far.
    pub fn tally(&self) -> &Tally {
        self.join.tally()
    }

    /// What became of the nodes of graphs so far.
    pub fn nodes(&self) -> graphs::Tally {
        self.graphs.tally()
    }

    /// How many stacks there are so far, and how good they are.
    pub fn stacks(&self) -> Stacks {
        self.contexts.stacks()
    }

    /// Bytes that were allocated and not freed, and the most there were at once.
    pub fn memory(&self) -> (u64, u64) {
        self.host.held()
    }

    /// What the rows said, and the sums as of the last [`Explain::fill`].
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The same, to put names in.
    pub fn profile_mut(&mut self) -> &mut Profile {
        &mut self.profile
    }

    /// The profile, for good.
    pub fn into_profile(self) -> Profile {
        self.profile
    }
}
