//! The schedule of the stepped clock: when each piece of work begins, and its waits. Work is placed when it is submitted,
//! because work can only wait for work that was submitted earlier.

use crate::journal::Target;
use crate::stream::Stream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Time at which a stream, an event or a graph is done, and the number of the work that determines this time (0 if
/// there is none).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Mark {
    pub time: u64,
    pub op: u64,
}

impl Mark {
    /// The later one of two marks.
    pub fn later(self, other: Mark) -> Mark {
        if other.time > self.time { other } else { self }
    }
}

/// Reason for a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The earlier work of the same stream.
    Stream,
    /// The legacy default stream; for that stream's own work, another stream.
    DefaultStream,
    /// An event, recorded by the call with this correlation id.
    Event(u32),
    /// An edge of a graph.
    Edge,
    /// The trigger of the kernel before a programmatic launch.
    Programmatic,
    /// The graph's previous launch.
    Graph,
}

impl Why {
    /// Name of the reason in the log.
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

/// One reason for which work cannot begin yet, and the time at which the reason ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Wait {
    pub why: Why,
    pub until: u64,
    /// Work that is waited for; 0 if none is known.
    pub op: u64,
}

impl Wait {
    /// A wait until a mark.
    pub fn until(why: Why, mark: Mark) -> Wait {
        Wait { why, until: mark.time, op: mark.op }
    }
}

/// The end of a stream's queue.
#[derive(Debug, Default)]
pub struct Line {
    /// The stream's last work.
    last: Mark,
    /// Time at which the last work, a kernel, lets a programmatic launch begin.
    trigger: Option<u64>,
    /// Time at which everything on the stream is done, including waits for events.
    head: Mark,
    /// Events for which the stream's next work waits.
    waits: Vec<Wait>,
}

/// Work to be placed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// Time from the begin to the end, not counting waits in between.
    pub duration: u64,
    /// Time after the begin at which a programmatic launch that follows may begin; `None` if the work is not a kernel.
    pub trigger: Option<u64>,
    /// Whether this is a programmatic launch, and for how long it runs before it waits for the kernel before it.
    pub programmatic: Option<u64>,
}

/// Placed work.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Placed {
    pub op: u64,
    /// Begin of the call that submitted the work.
    pub enqueue: u64,
    /// Time at which everything is done that the work waits for.
    pub ready: u64,
    /// Time at which the launch has reached the GPU.
    pub arrive: u64,
    pub begin: u64,
    pub end: u64,
    /// Time at which a programmatic launch that follows may begin.
    pub trigger: Option<u64>,
    /// Whether the work is a kernel that may overlap the kernel before it.
    pub is_programmatic: bool,
    /// Waits that were not over at `enqueue`.
    pub waits: Vec<Wait>,
}

impl Placed {
    /// Reason why the work did not begin earlier.
    pub fn cause(&self) -> &'static str {
        if self.ready <= self.arrive {
            return "launch";
        }
        let last = self.waits.iter().find(|wait| wait.until == self.ready);
        last.map_or("launch", |wait| wait.why.name())
    }

    /// Mark of the work's end.
    pub fn done(&self) -> Mark {
        Mark { time: self.end, op: self.op }
    }
}

/// Waits of submitted work, and for a programmatic launch the end of the kernel before it.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Found {
    pub waits: Vec<Wait>,
    pub kernel_before: Option<u64>,
}

/// Computes the times of work that is submitted at `enqueue` and reaches the GPU at `arrive`.
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

/// The shape of an operation with the change that `GPUSIM_CHANGE` demands for it.
fn changed(op: u64, shape: Shape) -> Shape {
    match crate::settings::get().change {
        Some((changed, by)) if changed == op => {
            Shape { duration: shape.duration.saturating_add_signed(by), ..shape }
        }
        _ => shape,
    }
}

/// What work on this stream waits for if it is submitted now.
pub fn find(stream: &'static Stream, programmatic: bool) -> Found {
    let (mut found, last, trigger) = {
        let line = stream.line();
        let found = Found { waits: line.waits.clone(), kernel_before: None };
        (found, line.last, line.trigger)
    };
    // An event between the two kernels makes the launch an ordinary one.
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

/// The implicit waits: the legacy default stream waits for all blocking streams of its context, and they wait for it.
fn default_stream_waits(stream: &'static Stream) -> Vec<Wait> {
    let others: Vec<&'static Stream> = match (stream.is_legacy_default(), stream.is_blocking) {
        (true, _) => stream.context.blocking_streams(),
        (false, true) => vec![stream.context.default_stream()],
        (false, false) => Vec::new(),
    };
    others.iter().map(|other| Wait::until(Why::DefaultStream, other.line().head)).collect()
}

/// Makes placed work the last of its stream.
pub fn settle(stream: &'static Stream, last: Mark, trigger: Option<u64>) {
    let mut line = stream.line();
    line.last = last;
    line.trigger = trigger;
    line.waits.clear();
    line.head = line.head.later(last);
    drop(line);
    stream.hold_until(last.time);
}

/// Makes the stream's next work wait for an event.
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

/// Time at which all work submitted to the stream is done, including implicit waits.
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

    /// Submits a kernel of 1,000 ns at `now`; the launch takes 50 ns to reach the GPU.
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
        // The stream does not block, so it continues after its own 9,000 ns.
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
        // This kernel only waits for the work before it.
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
        // This kernel begins at 150 + 400, runs 300 ns to 850, waits for 1,150, and has 700 ns left.
        let second = submit(a, 200, Shape { programmatic: Some(300), ..KERNEL });
        assert_eq!(span(&second), (550, 550, 1_850, "programmatic"));
        // This kernel is launched as usual, so it waits for the end of the one before it.
        assert_eq!(span(&submit(a, 300, KERNEL)), (1_850, 1_850, 2_850, "stream"));
        // If the kernel before it has no trigger, a programmatic launch begins at its end.
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
