//! The interface to the consumers of joined rows, and the types that the join passes to these consumers.

use gpuflame_model::record::{
    Activity, ContextId, CorrelationId, Instant, MemoryCall, Missing, Nanos, Row, Unified,
};

/// Time, duration and context of a launching API call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Time at which the API call began.
    pub time: Nanos,
    /// Duration of the API call in nanoseconds. The highest value, `u32::MAX`, means that the call took at least this
    /// long. The value 0 means that the launch was recorded when the call began.
    pub duration: u32,
    /// Launch context (stack and API call). [`ContextId::NONE`] if the launch was recorded without a stack. Activities
    /// of such a launch are counted and shown as [`Missing::NoStack`], although the time of the call is known.
    pub context: ContextId,
}

/// Origin of an activity: the launch that caused the activity, or the reason why this launch is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The launch was found.
    Launch(Launched),
    /// The launch was not found ([`Missing::LaunchedBefore`], [`Missing::DeviceGraph`] or
    /// [`Missing::NoStack`]).
    Missing(Missing),
}

impl Origin {
    /// Returns the launch that caused the activity, if it was found.
    pub fn launched(self) -> Option<Launched> {
        match self {
            Self::Launch(launched) => Some(launched),
            Self::Missing(_) => None,
        }
    }

    /// Returns the context under which the activity is shown, or the reason why there is no such context.
    pub fn context(self) -> Result<ContextId, Missing> {
        match self {
            Self::Launch(launched) if launched.context == ContextId::NONE => Err(Missing::NoStack),
            Self::Launch(launched) => Ok(launched.context),
            Self::Missing(missing) => Err(missing),
        }
    }
}

/// A consumer of the rows that the join has matched. An activity is passed to the sink when its launch is found, or
/// when the join stops waiting for the launch.
pub trait Sink {
    /// Receives an activity with its launch, or with the reason why the launch is unknown.
    fn activity(&mut self, activity: &Activity, origin: Origin);

    /// Receives a launch for which the join stopped waiting, because the launch never had an activity.
    fn pending(&mut self, id: CorrelationId, launched: Launched);

    /// Receives an activity that was launched while no window was open. No output shows an activity that was launched
    /// while no window was open. Sinks that compute idle time need activities from outside of windows to know when the
    /// GPU was busy.
    fn outside(&mut self, _activity: &Activity, _launched: Launched) {}

    /// Receives a launch when its first activity is found. The next call to the sink passes this first activity.
    /// `is_graph` means that the activity ran a graph node, so more activities may follow.
    fn matched(&mut self, _launched: Launched, _is_graph: bool) {}

    /// Notifies the sink that a launch has a second activity. The next call to the sink passes this second activity.
    /// This function is called once for each launch that has several activities.
    fn shared(&mut self) {}

    /// Receives a call that allocated or freed memory.
    fn memory(&mut self, _call: &MemoryCall) {}

    /// Receives a unified memory event. The join does not process unified memory events. Only sinks that list the
    /// individual rows use these events.
    fn unified(&mut self, _unified: &Unified) {}

    /// Receives one of these rows, which the join does not process:
    /// - an API call that waited or used a CUDA event, and CUPTI's record about such a call;
    /// - nodes and edges of graphs, copies of nodes, and runs of host functions in graphs;
    /// - in analyses of the host: the states of CPU threads between launches.
    fn host(&mut self, _row: &Row<'_>) {}

    /// Receives an instant that the program marked. Only sinks that draw a timeline use the marked instants.
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

    fn matched(&mut self, launched: Launched, is_graph: bool) {
        (**self).matched(launched, is_graph);
    }

    fn shared(&mut self) {
        (**self).shared();
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

/// A sink that discards everything. Callers that only need the sums use this sink.
impl Sink for () {
    fn activity(&mut self, _activity: &Activity, _origin: Origin) {}

    fn pending(&mut self, _id: CorrelationId, _launched: Launched) {}
}

/// A pair of sinks, each of which receives everything.
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

    fn matched(&mut self, launched: Launched, is_graph: bool) {
        self.0.matched(launched, is_graph);
        self.1.matched(launched, is_graph);
    }

    fn shared(&mut self) {
        self.0.shared();
        self.1.shared();
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

/// An optional sink, which discards everything if it is `None`.
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

    fn matched(&mut self, launched: Launched, is_graph: bool) {
        if let Some(sink) = self {
            sink.matched(launched, is_graph);
        }
    }

    fn shared(&mut self) {
        if let Some(sink) = self {
            sink.shared();
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
