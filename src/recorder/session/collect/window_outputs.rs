//! If a window has its own files, passes the sums of the window to the thread that draws these files. The sums are
//! passed on once all GPU work that was launched in the window has finished.

use std::collections::BTreeMap;

use crate::capture;
use crate::session::outputs::window_output_queue::{WindowOutput, WindowOutputQueue};
use crate::session::process::messages::print_from_own;
use gpuflame_config::Outputs;
use gpuflame_config::settings::Settings;
use gpuflame_explain::{Definitions, Explain, PerWindowSums, WindowSums};
use gpuflame_model::record::{CheckpointMark, Chunk, Loss, Nanos};

/// Sums of windows, on their way from the pipeline to the drawing thread.
pub(super) struct WindowOutputs {
    pub(super) queue: &'static WindowOutputQueue,
    /// Definitions that the pipeline has already sent to the drawing thread. `forgotten` is the value that
    /// [`Explain::dropped_count`] had when these definitions were sent. When the value of [`Explain::dropped_count`]
    /// changes, all definitions are sent again.
    definitions: Definitions,
    forgotten: Option<u64>,
    /// For each kind of loss, the number of losses that the files of earlier windows report.
    lost: BTreeMap<Loss, u64>,
    /// Number of windows, counted from the first window, whose launches all precede the last mark in the logs. `None`
    /// if no mark is pending.
    marked_windows: Option<u64>,
    is_full: bool,
}

impl WindowOutputs {
    pub(super) fn new(settings: &Settings, outputs: &Outputs) -> Self {
        Self {
            queue: Box::leak(Box::new(WindowOutputQueue::new(settings, outputs))),
            definitions: Definitions::default(),
            forgotten: None,
            lost: BTreeMap::new(),
            marked_windows: None,
            is_full: false,
        }
    }

    /// Notes which windows have no unread launches any more. A launch call in flight counts as an unread launch of the
    /// window in which the call began. All earlier launches of the thread with this call are already in the thread's
    /// log.
    pub(super) fn mark_windows_read(&mut self, apart: &mut PerWindowSums) {
        if apart.is_full() && !std::mem::replace(&mut self.is_full, true) {
            print_from_own(
                "GPUFLAME_MAX_WINDOWS is reached; later windows are merged into the last set of files",
            );
        }
        if self.marked_windows.is_some() && capture::marked_is_read() {
            self.marked_windows.take().into_iter().for_each(|windows| apart.note_windows_read(windows));
        }
        if self.marked_windows.is_none()
            && let Some(closed) = apart.unread_windows()
        {
            self.marked_windows = Some(closed.min(capture::windows_without_pending_launches().into()));
            capture::mark_unread();
        }
    }

    /// Passes on the sums of one window. `all` contains the losses in the whole run so far.
    pub(super) fn hand_over(&mut self, part: WindowSums, all: &[(Loss, u64)], explain: &mut Explain) {
        // Each loss is reported in the files of only one window, because the losses of all windows must add up to the
        // losses of the run.
        let lost = |&(loss, count): &(Loss, u64)| {
            let before = self.lost.insert(loss, count).unwrap_or(0);
            (count > before).then_some((loss, count - before))
        };
        let lost: Vec<_> = all.iter().filter_map(lost).collect();
        let forgotten = explain.dropped_count();
        let is_fresh = self.forgotten.replace(forgotten) != Some(forgotten);
        if is_fresh {
            self.definitions = Definitions::default();
        }
        let mut chunk = Chunk::default();
        explain.write_definitions(&mut self.definitions, &mut chunk, usize::MAX);
        let (number, began) = (part.number, part.edges.first().map_or(Nanos(0), |(_, time)| *time));
        let open = explain.write_window_sums(part, &lost, &mut chunk);
        chunk.mark(&CheckpointMark { began, time: capture::now(), interval_ms: 0, open });
        let bytes = [&Chunk::file_header()[..], &chunk.take()].concat();
        self.queue.push(WindowOutput { number, is_fresh, bytes });
    }
}
