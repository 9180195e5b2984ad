//! The row sink receives every row from the pipeline, writes the row to the growing outputs, and then passes the row to
//! `Explain`.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;

use super::clock_guard::ClockGuard;
use super::edge_queue::EdgeQueue;
#[cfg(debug_assertions)]
use super::swap_fault::SwapFault;
use crate::capture;
use crate::control::window;
use crate::session::outputs::growing_outputs::GrowingOutputs;
use crate::session::sampler::Sampler;
use gpuflame_config::Outputs;
use gpuflame_config::settings::{Output, Settings};
use gpuflame_explain::{self as explain, Explain, symbolize};
use gpuflame_model::options::Root;
use gpuflame_model::record::{Activity, Nanos, Row, ThreadId};
use gpuflame_os::clocks::ClockPair;

/// Passes each row first to the growing outputs, and then to `Explain`.
pub(super) struct RowSink {
    pub(super) explain: Explain,
    pub(super) growing: GrowingOutputs,
    pub(super) threads: HashSet<ThreadId>,
    pub(super) sampler: Option<&'static Sampler>,
    pub(super) count: u64,
    /// Number of window edges, steps and names of generated code among the rows that `count` counts.
    pub(super) idle_count: u64,
    /// Time of the process's first launch. If an activity or a launch outside windows was the first row of GPU work,
    /// this is the time at which that row was read. No file is created before there is a launch or an activity.
    pub(super) first_work: Option<Nanos>,
    /// Whether recording has ended, so that further rows are ignored.
    pub(super) is_over: bool,
    pub(super) edges: Arc<EdgeQueue>,
    pub(super) clock_guard: ClockGuard,
    /// Whether each launch must be assigned to its window because windows have their own files. `window` is the state
    /// that the window had when a launch was last read.
    by_window: bool,
    window: window::WindowState,
    #[cfg(debug_assertions)]
    swap_fault: SwapFault,
}

impl RowSink {
    pub(super) fn new(settings: &Settings, outputs: &Outputs, ceiling: usize) -> Self {
        Self {
            explain: Explain::new(explain::Options {
                by_stream: settings.root.contains(&Root::Stream),
                merge_threads: settings.merges_threads(),
                has_squares: settings.formats.contains(&Output::Sums),
                ceiling: Some(ceiling),
                per_window: outputs.has_windows().then_some(settings.max_windows),
                without_culprits: false,
            }),
            growing: GrowingOutputs::open(&outputs.for_all_windows(), settings, ceiling),
            threads: HashSet::new(),
            sampler: None,
            count: 0,
            idle_count: 0,
            first_work: None,
            is_over: false,
            edges: Arc::default(),
            clock_guard: ClockGuard::default(),
            by_window: outputs.has_windows(),
            window: window::WindowState::NONE,
            #[cfg(debug_assertions)]
            swap_fault: SwapFault::from_environment(),
        }
    }

    /// Processes the window edges that are in the queue.
    pub(super) fn drain_window_edges(&mut self) {
        for edge in self.edges.drain() {
            self.idle_count += 1;
            self.push(&edge);
        }
    }

    /// Writes a row to the growing outputs, and explains it. Some rows are corrected before they are written.
    pub(super) fn push(&mut self, row: &Row<'_>) {
        match row {
            Row::Launch(_) if self.by_window && self.window != window::state() => {
                self.window = window::state();
                self.drain_window_edges();
                self.write_and_explain(row);
            }
            // The guard has found that the times of this activity are impossible. Therefore the activity is recorded
            // without times and counted as untimed.
            Row::Activity(activity) if !self.clock_guard.is_possible(activity.start, activity.end) => {
                let (start, end) = (Nanos(0), Nanos(0));
                self.write_and_explain(&Row::Activity(Activity { start, end, ..*activity }));
            }
            // The thread may have been renamed since this row was created.
            Row::Thread { id, name } => self.note_thread(*id, name),
            // Kernels are named at this point and not on exit, because there may be tens of thousands of kernels, and
            // the exit of the process waits for gpuflame.
            Row::Name { id, .. } => {
                self.write_and_explain(row);
                symbolize::name_kernel(self.explain.profile_mut(), *id);
            }
            _ => self.write_and_explain(row),
        }
    }

    /// Checks whether the system clock was set. If the clock was set, closes the open window at the time of the change,
    /// or opens the window again after the gap that the change has caused.
    pub(super) fn check_clocks(&mut self) {
        let Some(now) = ClockPair::now() else { return };
        for row in self.clock_guard.check(now) {
            self.drain_window_edges();
            if window::state().is_open() {
                self.count += 1;
                self.growing.write_row(&row);
                self.explain.push_clock_edge(&row);
            }
        }
    }

    fn write_and_explain(&mut self, row: &Row<'_>) {
        if self.is_over {
            return;
        }
        self.count += 1;
        if self.first_work.is_none() {
            self.note_first_work(row);
        }
        #[cfg(debug_assertions)]
        let swapped = self.swap_fault.replace_row(row);
        #[cfg(debug_assertions)]
        let row = swapped.as_ref().unwrap_or(row);
        self.growing.write_row(row);
        self.explain.push(row, &mut self.growing);
    }

    /// Notes the time of the first launch or activity, and creates the files of the growing outputs. Calls that only
    /// wait or allocate memory do not cause a file to be created.
    #[cold]
    fn note_first_work(&mut self, row: &Row<'_>) {
        self.first_work = match row {
            Row::Launch(launch) => Some(launch.time),
            Row::Outside(_) | Row::Activity(_) | Row::EventCall(_) => Some(capture::now()),
            _ => return,
        };
        self.growing.create_files();
    }

    /// Records a thread that is new. If the thread is still running, its current name is recorded, because many threads
    /// are renamed after they have started.
    fn note_thread(&mut self, id: ThreadId, at_first: &str) {
        if let Some(sampler) = self.sampler {
            sampler.request(id);
        }
        if self.threads.insert(id) {
            let now = fs::read_to_string(format!("/proc/self/task/{}/comm", id.0)).unwrap_or_default();
            let name = if now.is_empty() { at_first } else { now.trim_end() };
            self.write_and_explain(&Row::Thread { id, name });
        }
    }
}
