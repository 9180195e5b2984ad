//! The schedule of the stepped clock: the time at which each kernel, copy, fill or other GPU work begins, and the
//! reasons for its waits. The time of GPU work is computed when the program submits the work. At that moment the time
//! is known, because GPU work can only wait for work that was submitted earlier.

use crate::journal::Target;
use crate::stream::Stream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A mark: the time at which a stream, a CUDA event or a graph is done, and the id of the GPU work that determines this
/// time (0 if there is none).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Mark {
    pub time: u64,
    pub op: u64,
}

impl Mark {
    /// Returns the later of two marks.
    pub fn later(self, other: Mark) -> Mark {
        if other.time > self.time { other } else { self }
    }
}

/// Reason for a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The stream's earlier work.
    Stream,
    /// Work on the legacy default stream, for which the stream must wait. If the waiting work itself is on the legacy
    /// default stream: work on another stream.
    DefaultStream,
    /// A record of a CUDA event, made by the call with this correlation id.
    Event(u32),
    /// An edge of a graph: this node waits for other GPU work of its launch.
    Edge,
    /// The trigger of the previous kernel, for which a programmatic launch waits.
    Programmatic,
    /// The previous launch of the same graph, which must end first.
    Graph,
}

impl Why {
    /// Returns the name of the reason in the schedule file.
    pub fn name(self) -> &'static str {
        match self {
            Why::Stream => "stream",
            Why::DefaultStream => "default_stream",
            Why::Event(_) => "event",
            Why::Edge => "edge",
            Why::Programmatic => "programmatic",
            Why::Graph => "graph",
        }
    }
}

/// A reason why GPU work must wait, and the time at which this wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Wait {
    pub why: Why,
    pub until: u64,
    /// Id of the GPU work on whose end the wait depends, or 0 if unknown.
    pub op: u64,
}

impl Wait {
    /// Creates a wait until a mark is reached.
    pub fn until(why: Why, mark: Mark) -> Wait {
        Wait { why, until: mark.time, op: mark.op }
    }
}

/// State at the end of a stream's queue, after which the schedule places the next work.
#[derive(Debug, Default)]
pub struct Line {
    /// Time at which the stream's last work ends, and id of that work.
    last: Mark,
    /// If the stream's last work is a kernel, the time of its trigger: the earliest time at which a programmatic launch
    /// may begin.
    trigger: Option<u64>,
    /// Time at which everything on the stream is done, including waits for events.
    head: Mark,
    /// Waits for CUDA events that the stream's next work must observe.
    waits: Vec<Wait>,
}

/// Durations of GPU work that will be placed on the schedule.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// Time in ns from the begin of the work to its end, without waits in between.
    pub duration: u64,
    /// Time in ns from the begin of a kernel until the next kernel may begin, if that is launched programmatically.
    /// `None` if the work is not a kernel.
    pub trigger: Option<u64>,
    /// For a programmatically launched kernel: the time in ns for which it runs before it waits for the previous
    /// kernel.
    pub programmatic: Option<u64>,
}

/// GPU work with its place on the schedule.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Placed {
    pub op: u64,
    /// Time at which the API call that submitted the work began.
    pub enqueue: u64,
    /// Time at which all waits of the work are over.
    pub ready: u64,
    /// Time at which the launch arrives at the GPU.
    pub arrive: u64,
    pub begin: u64,
    pub end: u64,
    /// Time at which the next kernel may begin, if it is launched programmatically.
    pub trigger: Option<u64>,
    /// Whether the work is a kernel that may overlap the previous kernel.
    pub is_programmatic: bool,
    /// Waits of the work that were not over at `enqueue`.
    pub waits: Vec<Wait>,
}

impl Placed {
    /// Returns the reason why the work did not begin earlier.
    pub fn cause(&self) -> &'static str {
        if self.ready <= self.arrive {
            return "launch";
        }
        let last = self.waits.iter().find(|wait| wait.until == self.ready);
        last.map_or("launch", |wait| wait.why.name())
    }

    /// Returns the mark for the end of the work.
    pub fn done(&self) -> Mark {
        Mark { time: self.end, op: self.op }
    }
}

/// What submitted work waits for and, for a programmatic launch, the end of the previous kernel.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Found {
    pub waits: Vec<Wait>,
    pub kernel_before: Option<u64>,
}

/// Computes the times of GPU work that is submitted at `enqueue` and reaches the GPU at `arrive`.
pub fn place(enqueue: u64, arrive: u64, found: Found, shape: Shape) -> Placed {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let op = NEXT.fetch_add(1, Relaxed);
    let shape = changed(op, shape);
    let Found { mut waits, kernel_before } = found;
    waits.retain(|wait| wait.until > enqueue);
    let ready = waits.iter().map(|wait| wait.until).max().unwrap_or(enqueue);
    let begin = arrive.max(ready);
    let end = match (shape.programmatic, kernel_before) {
        (Some(preamble), Some(kernel_before)) => {
            let preamble = preamble.min(shape.duration);
            kernel_before.max(begin + preamble) + (shape.duration - preamble)
        }
        _ => begin + shape.duration,
    };
    let trigger = shape.trigger.map(|after| end.min(begin.saturating_add(after)));
    let is_programmatic = shape.programmatic.is_some() && kernel_before.is_some();
    Placed { op, enqueue, ready, arrive, begin, end, trigger, is_programmatic, waits }
}

/// Returns the durations of an operation, with the change that `GPUSIM_CHANGE` specifies for this operation.
fn changed(op: u64, shape: Shape) -> Shape {
    match crate::settings::get().change {
        Some((changed, by)) if changed == op => {
            Shape { duration: shape.duration.saturating_add_signed(by), ..shape }
        }
        _ => shape,
    }
}

/// Returns the waits that apply to GPU work if it is submitted to this stream now.
pub fn find(stream: &'static Stream, programmatic: bool) -> Found {
    let (mut found, last, trigger) = {
        let line = stream.line();
        let found = Found { waits: line.waits.clone(), kernel_before: None };
        (found, line.last, line.trigger)
    };
    // If the stream waits for a CUDA event between the two kernels, the programmatic launch becomes an ordinary launch.
    match trigger.filter(|_| programmatic && found.waits.is_empty()) {
        Some(trigger) => {
            found.kernel_before = Some(last.time);
            found.waits.push(Wait { why: Why::Programmatic, until: trigger, op: last.op });
        }
        None => found.waits.push(Wait::until(Why::Stream, last)),
    }
    found.waits.extend(default_stream_waits(stream));
    found
}

/// Returns the implicit waits of a stream. The legacy default stream waits for all blocking streams of its context, and
/// the blocking streams wait for the legacy default stream.
fn default_stream_waits(stream: &'static Stream) -> Vec<Wait> {
    let others: Vec<&'static Stream> = match (stream.is_legacy_default(), stream.is_blocking) {
        (true, _) => stream.context.blocking_streams(),
        (false, true) => vec![stream.context.default_stream()],
        (false, false) => Vec::new(),
    };
    others.iter().map(|other| Wait::until(Why::DefaultStream, other.line().head)).collect()
}

/// Stores GPU work that has been placed on the schedule as the last work of its stream.
pub fn settle(stream: &'static Stream, last: Mark, trigger: Option<u64>) {
    let mut line = stream.line();
    line.last = last;
    line.trigger = trigger;
    line.waits.clear();
    line.head = line.head.later(last);
    drop(line);
    stream.hold_until(last.time);
}

/// Makes the stream's next work wait for a CUDA event.
pub fn hold(stream: &'static Stream, target: Target) {
    let (event, correlation) = (target.mark, target.record.map_or(0, |(correlation, _)| correlation));
    // A wait on the legacy default stream begins after the work of all blocking streams.
    let implied = head(stream);
    let mut line = stream.line();
    line.waits.push(Wait::until(Why::Event(correlation), event));
    line.head = implied.later(event);
    let time = line.head.time;
    drop(line);
    stream.hold_until(time);
}

/// Returns the mark at which all work submitted to the stream is done, including implicit waits.
pub fn head(stream: &'static Stream) -> Mark {
    let own = stream.line().head;
    let implied = default_stream_waits(stream).into_iter();
    implied.fold(own, |head, wait| head.later(Mark { time: wait.until, op: wait.op }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;

    const KERNEL: Shape = Shape { duration: 1_000, trigger: Some(u64::MAX), programmatic: None };

    /// Submits a kernel at `now`. The launch takes 50 ns to reach the GPU.
    fn submit(stream: &'static Stream, now: u64, shape: Shape) -> Placed {
        let found = find(stream, shape.programmatic.is_some());
        let placed = place(now, now + 50, found, shape);
        settle(stream, placed.done(), placed.trigger);
        placed
    }

    fn span(placed: &Placed) -> (u64, u64, u64, &'static str) {
        (placed.ready, placed.begin, placed.end, placed.cause())
    }

    fn streams() -> [&'static Stream; 4] {
        let context = Context::create(0).unwrap();
        let new = |blocking| Stream::create(context, 0, blocking);
        [context.default_stream(), new(true), new(true), new(false)]
    }

    #[test]
    fn work_of_one_stream_runs_in_order_and_work_of_two_streams_at_the_same_time() {
        let [_, a, b, _] = streams();
        assert_eq!(span(&submit(a, 100, KERNEL)), (100, 150, 1_150, "launch"));
        assert_eq!(span(&submit(a, 200, KERNEL)), (1_150, 1_150, 2_150, "stream"));
        assert_eq!(span(&submit(b, 300, KERNEL)), (300, 350, 1_350, "launch"));
    }

    #[test]
    fn the_default_stream_waits_for_blocking_streams_and_they_for_it() {
        let [legacy, a, b, free] = streams();
        let first = submit(a, 100, KERNEL);
        submit(free, 100, Shape { duration: 9_000, ..KERNEL });
        let second = submit(legacy, 200, KERNEL);
        assert_eq!(span(&second), (1_150, 1_150, 2_150, "default_stream"));
        assert_eq!(second.waits, [Wait { why: Why::DefaultStream, until: 1_150, op: first.op }]);
        assert_eq!(span(&submit(b, 300, KERNEL)), (2_150, 2_150, 3_150, "default_stream"));
        // This stream is non-blocking, so its kernel waits only for the earlier work on the same stream, which takes
        // 9,000 ns.
        assert_eq!(span(&submit(free, 300, KERNEL)), (9_150, 9_150, 10_150, "stream"));
        assert_eq!(head(legacy).time, 3_150);
    }

    #[test]
    fn a_stream_waits_for_an_event_of_another_stream_once() {
        let [_, a, b, _] = streams();
        let first = submit(a, 100, KERNEL);
        hold(b, Target { mark: head(a), record: Some((77, a.id)) });
        let second = submit(b, 200, KERNEL);
        assert_eq!(second.waits, [Wait { why: Why::Event(77), until: 1_150, op: first.op }]);
        assert_eq!(span(&second), (1_150, 1_150, 2_150, "event"));
        // This kernel waits only for the previous work on its stream.
        let third = submit(b, 300, KERNEL);
        assert_eq!(third.waits, [Wait { why: Why::Stream, until: 2_150, op: second.op }]);
        assert_eq!(span(&submit(b, 4_000, KERNEL)), (4_000, 4_050, 5_050, "launch"));
    }

    #[test]
    fn a_wait_on_the_default_stream_holds_the_blocking_streams() {
        let [legacy, a, b, free] = streams();
        submit(free, 100, KERNEL);
        hold(legacy, Target { mark: head(free), record: Some((5, free.id)) });
        assert_eq!(span(&submit(a, 200, KERNEL)), (1_150, 1_150, 2_150, "default_stream"));
        assert_eq!((head(b).time, head(legacy).time), (1_150, 2_150));
    }

    #[test]
    fn a_programmatic_launch_begins_at_the_trigger_and_waits_for_the_end_after_its_preamble() {
        let [_, a, b, _] = streams();
        let early = Shape { trigger: Some(400), ..KERNEL };
        submit(a, 100, early);
        // This kernel begins at 150 + 400 = 550, runs for 300 ns until 850, waits until 1,150, and runs for its
        // remaining 700 ns.
        let second = submit(a, 200, Shape { programmatic: Some(300), ..KERNEL });
        assert_eq!(span(&second), (550, 550, 1_850, "programmatic"));
        // This kernel is launched in the usual way, so it waits for the end of the previous kernel.
        assert_eq!(span(&submit(a, 300, KERNEL)), (1_850, 1_850, 2_850, "stream"));
        // If the previous kernel has no trigger, a programmatic launch begins at that kernel's end.
        submit(b, 100, KERNEL);
        assert_eq!(
            span(&submit(b, 200, Shape { programmatic: Some(300), ..KERNEL })),
            (1_150, 1_150, 2_150, "programmatic")
        );
    }

    #[test]
    fn a_short_programmatic_launch_does_not_end_before_the_kernel_before_it() {
        let [_, a, ..] = streams();
        submit(a, 100, Shape { trigger: Some(100), ..KERNEL });
        let second = submit(a, 200, Shape { duration: 20, trigger: None, programmatic: Some(20) });
        assert_eq!(span(&second), (250, 250, 1_150, "launch"));
    }
}
