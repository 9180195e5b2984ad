//! What the join hands on, and to whom.

use crate::record::{Activity, ContextId, CorrelationId, Instant, MemoryCall, Missing, Nanos, Row, Unified};

/// What an activity's launch record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// When the API call began.
    pub time: Nanos,
    /// How long it took, in nanoseconds; `u32::MAX` = that long or longer; 0 = written when it began.
    pub duration: u32,
    /// Who launched. [`ContextId::NONE`] where the launch was seen but its stack was not kept: such
    /// activities are counted and shown as [`Missing::NoStack`], and still have the times of the call.
    pub context: ContextId,
}

/// Where an activity comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Its launch was found.
    Launch(Launched),
    /// It was not ([`Missing::LaunchedBefore`], [`Missing::DeviceGraph`] or [`Missing::NoStack`]).
    Missing(Missing),
}

impl Origin {
    /// The context to show the activity under, or the reason why there is none.
    pub fn context(self) -> Result<ContextId, Missing> {
        match self {
            Self::Launch(launched) if launched.context == ContextId::NONE => Err(Missing::NoStack),
            Self::Launch(launched) => Ok(launched.context),
            Self::Missing(missing) => Err(missing),
        }
    }
}

/// A consumer of joined rows. Activities come in the order in which they found their launch.
pub trait Sink {
    /// An activity, with its launch or the reason why it has none.
    fn activity(&mut self, activity: &Activity, origin: Origin);

    /// A launch that is given up without having had an activity.
    fn pending(&mut self, id: CorrelationId, launched: Launched);

    /// An activity launched while no window was open. It belongs in no output; only what must know that
    /// the GPU was busy (idle time) may want it.
    fn outside(&mut self, _activity: &Activity, _launched: Launched) {}

    /// A launch has its first activity, which is shown next; whether that is of a graph, so that more may come.
    fn met(&mut self, _launched: Launched, _is_graph: bool) {}

    /// A call allocated or freed memory.
    fn memory(&mut self, _call: &MemoryCall) {}

    /// Something happened to unified memory. It is joined with nothing, and for those who list single rows.
    fn unified(&mut self, _unified: &Unified) {}

    /// A call that waited or was about an event, or what the tracer says of one. It is joined with nothing either.
    fn host(&mut self, _row: &Row<'_>) {}

    /// The program marked an instant, which is for those who draw a timeline.
    fn instant(&mut self, _instant: &Instant<'_>) {}
}

impl<S: Sink + ?Sized> Sink for &mut S {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        (**self).activity(activity, origin);
    }

    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        (**self).pending(id, launched);
    }

    fn outside(&mut self, activity: &Activity, launched: Launched) {
        (**self).outside(activity, launched);
    }

    fn met(&mut self, launched: Launched, is_graph: bool) {
        (**self).met(launched, is_graph);
    }

    fn memory(&mut self, call: &MemoryCall) {
        (**self).memory(call);
    }

    fn unified(&mut self, unified: &Unified) {
        (**self).unified(unified);
    }

    fn host(&mut self, row: &Row<'_>) {
        (**self).host(row);
    }

    fn instant(&mut self, instant: &Instant<'_>) {
        (**self).instant(instant);
    }
}

/// Nobody: for those who only want the sums.
impl Sink for () {
    fn activity(&mut self, _activity: &Activity, _origin: Origin) {}

    fn pending(&mut self, _id: CorrelationId, _launched: Launched) {}
}

/// Two sinks as one: both are shown everything.
impl<A: Sink, B: Sink> Sink for (A, B) {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        self.0.activity(activity, origin);
        self.1.activity(activity, origin);
    }

    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        self.0.pending(id, launched);
        self.1.pending(id, launched);
    }

    fn outside(&mut self, activity: &Activity, launched: Launched) {
        self.0.outside(activity, launched);
        self.1.outside(activity, launched);
    }

    fn met(&mut self, launched: Launched, is_graph: bool) {
        self.0.met(launched, is_graph);
        self.1.met(launched, is_graph);
    }

    fn memory(&mut self, call: &MemoryCall) {
        self.0.memory(call);
        self.1.memory(call);
    }

    fn unified(&mut self, unified: &Unified) {
        self.0.unified(unified);
        self.1.unified(unified);
    }

    fn host(&mut self, row: &Row<'_>) {
        self.0.host(row);
        self.1.host(row);
    }

    fn instant(&mut self, instant: &Instant<'_>) {
        self.0.instant(instant);
        self.1.instant(instant);
    }
}

/// An optional sink.
impl<S: Sink> Sink for Option<S> {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        if let Some(sink) = self {
            sink.activity(activity, origin);
        }
    }

    fn pending(&mut self, id: CorrelationId, launched: Launched) {
        if let Some(sink) = self {
            sink.pending(id, launched);
        }
    }

    fn outside(&mut self, activity: &Activity, launched: Launched) {
        if let Some(sink) = self {
            sink.outside(activity, launched);
        }
    }

    fn met(&mut self, launched: Launched, is_graph: bool) {
        if let Some(sink) = self {
            sink.met(launched, is_graph);
        }
    }

    fn memory(&mut self, call: &MemoryCall) {
        if let Some(sink) = self {
            sink.memory(call);
        }
    }

    fn unified(&mut self, unified: &Unified) {
        if let Some(sink) = self {
            sink.unified(unified);
        }
    }

    fn host(&mut self, row: &Row<'_>) {
        if let Some(sink) = self {
            sink.host(row);
        }
    }

    fn instant(&mut self, instant: &Instant<'_>) {
        if let Some(sink) = self {
            sink.instant(instant);
        }
    }
}
