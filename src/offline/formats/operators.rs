//! CPU operators in a torch.profiler trace, sorted by thread and time. The exporters use these operators to find the
//! operator that made an API call.

use std::cmp::Reverse;
use std::collections::HashMap;

use gpuflame_model::record::{Nanos, ThreadId};
use gpuflame_traces::import::{CpuKind, CpuOp, Event, Id, Sink, Wants};

/// A [`Sink`] that collects operators and annotations with an External id. The sink takes 40 bytes of memory per
/// operator or annotation. Call [`Operators::sort`] before the first look-up.
#[derive(Debug, Default)]
pub struct Operators {
    base: i64,
    threads: HashMap<(i64, i64), Thread>,
    unknown_base: Option<String>,
    spans: u64,
    works: u64,
}

#[derive(Debug, Default)]
struct Thread {
    operators: Innermost,
    annotations: Innermost,
}

/// Spans of a thread. The method `sort` also stores which span is the innermost at each time.
#[derive(Debug, Default)]
struct Innermost {
    spans: Vec<Span>,
    /// Times at which the innermost span changes, with the External id of the new span, or 0 if no span is open.
    changes: Vec<(i64, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    start: i64,
    end: i64,
    external: u64,
}

impl Operators {
    /// Returns the time to which all times of the trace are relative, in ns since 1970.
    pub fn base(&self) -> Nanos {
        Nanos(u64::try_from(self.base).unwrap_or(0))
    }

    /// If the base time of the trace is not a number of ns since 1970, returns the base time as text.
    pub fn unknown_base(&self) -> Option<&str> {
        self.unknown_base.as_deref()
    }

    /// Returns the number of operators and annotations.
    pub fn count(&self) -> u64 {
        self.spans
    }

    /// Returns the number of GPU operations in the trace.
    pub fn works(&self) -> u64 {
        self.works
    }

    /// Sorts the spans, so that look-ups become possible.
    pub fn sort(&mut self) {
        for thread in self.threads.values_mut() {
            thread.operators.sort();
            thread.annotations.sort();
        }
    }

    /// Returns the External id of the operator that `thread` executed at `time`. As in Kineto, the innermost operator
    /// is used. If no operator is open at that time, the innermost annotation is used.
    pub fn external_id(&self, process: u32, thread: ThreadId, time: Nanos) -> Option<u64> {
        let thread = self.threads.get(&(process.into(), thread.0.into()))?;
        let time = i64::try_from(time.0).ok()?.checked_sub(self.base)?;
        thread.operators.at(time).or_else(|| thread.annotations.at(time))
    }

    /// Returns the External id of the operator that made a call. The operator is looked up at the middle of the call,
    /// and not at its beginning, because a call may begin only 150 ns after its operator. The clock of the call's times
    /// and the clock of the operator's times differ by nearly 150 ns.
    pub(super) fn around(&self, process: u32, thread: ThreadId, begun: Nanos, nanos: u64) -> Option<u64> {
        self.external_id(process, thread, Nanos(begun.0.saturating_add(nanos / 2)))
    }

    fn add(&mut self, cpu: &CpuOp<'_>) {
        let (Id::Number(process), Id::Number(thread), Some(external)) =
            (cpu.process, cpu.thread, cpu.external)
        else {
            return;
        };
        // A profiler step encloses all operators of its time range, so a step does not identify an operator.
        if !matches!(cpu.kind, CpuKind::Operator | CpuKind::Range) {
            return;
        }
        self.spans += 1;
        let thread = self.threads.entry((process, thread)).or_default();
        let kind = match cpu.kind {
            CpuKind::Operator => &mut thread.operators,
            _ => &mut thread.annotations,
        };
        kind.spans.push(Span { start: cpu.start, end: cpu.end, external });
    }
}

impl Sink for Operators {
    fn wants(&self) -> Wants {
        let cpu = Wants::CPU.and(Wants::STEPS).and(Wants::DETAILS);
        cpu.and(Wants::OPS).and(Wants::NAMES)
    }

    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Cpu(cpu) => self.add(cpu),
            Event::Op(_) => self.works += 1,
            Event::Property(property) if property.key.raw() == b"baseTimeNanoseconds" => {
                match parse_base(property.value) {
                    Some(base) => self.base = base,
                    None => self.unknown_base = Some(String::from_utf8_lossy(property.value).into_owned()),
                }
            }
            _ => {}
        }
    }
}

/// Parses a whole number of ns since 1970. Some tools write the base time as a string or with decimals.
fn parse_base(value: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(value).ok()?.trim_matches('"');
    let whole = text.split_once('.').map_or(text, |(whole, decimals)| {
        if decimals.bytes().all(|digit| digit == b'0') { whole } else { text }
    });
    whole.parse().ok().filter(|base| *base >= 0)
}

impl Innermost {
    fn sort(&mut self) {
        let mut spans = std::mem::take(&mut self.spans);
        spans.sort_by_key(|span| (span.start, Reverse(span.end)));
        let mut open: Vec<Span> = Vec::new();
        for span in spans {
            self.close_until(&mut open, span.start);
            self.changes.push((span.start, span.external));
            open.push(span);
        }
        self.close_until(&mut open, i64::MAX);
    }

    fn close_until(&mut self, open: &mut Vec<Span>, time: i64) {
        while let Some(span) = open.pop_if(|span| span.end <= time) {
            // If an inner span ends after the span that encloses it, the end of the inner span is used for both spans.
            let end = self.changes.last().map_or(span.end, |(last, _)| span.end.max(*last));
            self.changes.push((end, open.last().map_or(0, |around| around.external)));
        }
    }

    fn at(&self, time: i64) -> Option<u64> {
        let after = self.changes.partition_point(|(from, _)| *from <= time);
        let (_, external) = self.changes.get(after.checked_sub(1)?)?;
        (*external != 0).then_some(*external)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_a_whole_number_of_ns() {
        for (text, base) in [
            ("1795439526859421389", Some(1_795_439_526_859_421_389)),
            ("\"1795439526859421389\"", Some(1_795_439_526_859_421_389)),
            ("1795439526859421389.0", Some(1_795_439_526_859_421_389)),
            ("0", Some(0)),
            ("1795439526859421389.5", None),
            ("1.795e18", None),
            ("-4", None),
            ("null", None),
        ] {
            assert_eq!(parse_base(text.as_bytes()), base, "{text}");
        }
    }

    /// ```text
    /// 0        10    20   30   40        60
    /// |--- 1 ---------------------|
    ///           |- 2 -----|
    ///                |-------- 3 -------|      outlives 2 and 1
    /// ```
    #[test]
    fn the_innermost_operator_is_found_at_every_time() {
        let mut operators = Innermost::default();
        for (start, end, external) in [(0, 40, 1), (10, 30, 2), (20, 60, 3), (70, 70, 4)] {
            operators.spans.push(Span { start, end, external });
        }
        operators.sort();
        for (time, external) in [
            (-1, None),
            (0, Some(1)),
            (9, Some(1)),
            (10, Some(2)),
            (19, Some(2)),
            (20, Some(3)),
            (59, Some(3)),
            (60, None),
            (70, None),
            (80, None),
        ] {
            assert_eq!(operators.at(time), external, "{time}");
        }
    }
}
