//! Computes the longest paths of a simulated program from the simulator's log alone. The log contains the reason for
//! each wait of GPU work.
//!
//! This module follows all dependencies in the log repeatedly, until the computed time of no moment grows any more. If
//! each moment (begin or end of a call or of GPU work) then has the time that is in the log, the module misses no
//! dependency.
//!
//! The log contains the calls with which a thread waits for other threads. If a trace lacks these calls, it does not
//! show for which thread another thread waited. The waiting thread may have waited for any call of another thread that
//! ended after the waiting thread's own last call.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use super::random_program::number;
use super::ties::ties_of_default_stream;

/// Time in ns that each call takes if it does not wait.
const CALL_NS: u64 = 1_000;
/// Time from the begin of a call until the GPU work that it submits reaches the GPU, in ns.
pub(super) const LAUNCH_NS: u64 = 5_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    CallBegin(usize),
    CallEnd(usize),
    Begin(u64),
    End(u64),
}

/// Place where the time between the two moments of a dependency is spent: in a call, in a GPU operation, or in a
/// thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A call, given as its index in the log.
    Call(usize),
    /// A GPU operation, given as its id in the log.
    Op(u64),
    /// A thread, in the time between two of its calls.
    Host,
}

struct Dependency {
    from: Moment,
    to: Moment,
    /// Minimum time in ns between the moments `from` and `to`.
    nanos: u64,
    owners: [Owner; 2],
}

struct Call {
    /// Correlation id of a CUDA call; `None` for calls that wait for other threads.
    corr: Option<u64>,
    /// Name of the C library's function that waits for other threads; `None` for CUDA calls.
    thread_wait: Option<String>,
    thread: u64,
    begin: u64,
    end: u64,
}

/// Id of the first thread.
const MAIN_THREAD: u64 = 1_000;

/// The longest paths through the moments of a program.
pub(super) struct LogPaths {
    calls: Vec<Call>,
    /// Ids of GPU operations, keyed by begin, end and correlation id.
    ops: BTreeMap<(u64, u64, u64), Vec<u64>>,
    times: BTreeMap<Moment, u64>,
    dependencies: Vec<Dependency>,
    /// Moments that are on a longest path to the last moment.
    on_path: BTreeSet<Moment>,
    /// Time of the last moment, in ns.
    end: u64,
}

impl LogPaths {
    /// Creates the paths. `end` is the time of the program's last moment. `knows_threads`: whether the trace contains
    /// the calls with which threads wait for each other.
    pub(super) fn new(schedule: &[Value], end: u64, knows_threads: bool) -> Self {
        let rows = |what: &'static str| schedule.iter().filter(move |row| row["what"] == what);
        let call = |row: &Value| Call {
            corr: row["corr"].as_u64(),
            thread_wait: (row["what"] == "thread_wait").then(|| row["name"].as_str().unwrap().to_owned()),
            thread: number(row, "thread"),
            begin: number(row, "begin"),
            end: number(row, "end"),
        };
        let waits = rows("thread_wait").filter(|_| knows_threads);
        let mut calls: Vec<Call> = rows("call").chain(waits).map(call).collect();
        calls.sort_by_key(|call| (call.begin, call.end, call.thread));
        let mut paths = Self {
            calls,
            ops: BTreeMap::new(),
            times: BTreeMap::new(),
            dependencies: Vec::new(),
            on_path: BTreeSet::new(),
            end,
        };
        paths.add_calls();
        match knows_threads {
            true => paths.add_thread_waits(),
            false => paths.add_threads(),
        }
        let ops: Vec<&Value> = rows("op").collect();
        ops.iter().for_each(|op| paths.add_op(op));
        for (other, op) in ties_of_default_stream(schedule, &ops) {
            paths.add(Moment::End(other), Moment::Begin(op), 0, [Owner::Op(op); 2]);
        }
        paths.add_programmatic(&ops);
        rows("wait").for_each(|wait| paths.add_wait(wait));
        paths.check_times();
        paths.follow_back();
        paths
    }

    fn add(&mut self, from: Moment, to: Moment, nanos: u64, owners: [Owner; 2]) {
        self.dependencies.push(Dependency { from, to, nanos, owners });
    }

    fn add_calls(&mut self) {
        for (at, call) in self.calls.iter().enumerate() {
            self.times.insert(Moment::CallBegin(at), call.begin);
            self.times.insert(Moment::CallEnd(at), call.end);
            let (from, to) = (Moment::CallBegin(at), Moment::CallEnd(at));
            let nanos = if call.thread_wait.is_some() { 0 } else { CALL_NS };
            self.dependencies.push(Dependency { from, to, nanos, owners: [Owner::Call(at); 2] });
        }
    }

    /// Adds dependencies that keep the order of the calls within each thread. The calls are sorted by their begin.
    fn add_threads(&mut self) {
        let mut last: BTreeMap<u64, usize> = BTreeMap::new();
        let mut found = Vec::new();
        for (at, call) in self.calls.iter().enumerate() {
            let own = last.get(&call.thread).copied();
            let since = own.map_or(0, |own| self.calls[own].end);
            let others = last.iter().filter(|(thread, _)| **thread != call.thread).map(|(_, other)| *other);
            let others = others.filter(|other| (since..=call.begin).contains(&self.calls[*other].end));
            found.extend(own.into_iter().chain(others).map(|before| (before, at)));
            last.insert(call.thread, at);
        }
        for (before, at) in found {
            let nanos = self.calls[at].begin - self.calls[before].end;
            self.add(Moment::CallEnd(before), Moment::CallBegin(at), nanos, [Owner::Host; 2]);
        }
    }

    /// Adds dependencies that keep the order of the calls within each thread, and dependencies for threads that wait
    /// for each other. A thread begins when the first thread, which creates it, has ended its latest call.
    fn add_thread_waits(&mut self) {
        let mut last: BTreeMap<u64, usize> = BTreeMap::new();
        // Number of calls that have been read so far, keyed by function and thread.
        let mut counts: BTreeMap<(&str, u64), usize> = BTreeMap::new();
        let mut meetings: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let (mut order, mut causes) = (Vec::new(), Vec::new());
        for (at, call) in self.calls.iter().enumerate() {
            let is_creator = |other: &Call| other.thread == MAIN_THREAD && other.end <= call.begin;
            let created = || self.calls[..at].iter().rposition(is_creator);
            let before = last.get(&call.thread).copied().or_else(created);
            order.extend(before.map(|before| (before, at)));
            last.insert(call.thread, at);
            let Some(name) = &call.thread_wait else { continue };
            let count = counts.entry((name, call.thread)).or_default();
            match name.as_str() {
                "pthread_barrier_wait" => meetings.entry(*count).or_default().push(at),
                "pthread_join" => causes.extend(self.end_of_thread(MAIN_THREAD + 1 + *count as u64, at)),
                "pthread_mutex_lock" => causes.extend(self.release_for(at)),
                _ => {}
            }
            *count += 1;
        }
        for meeting in meetings.values() {
            let begins = meeting.iter().map(|at| Moment::CallBegin(*at));
            causes.extend(begins.flat_map(|begin| meeting.iter().map(move |at| (begin, *at))));
        }
        for (before, at) in order {
            let nanos = self.calls[at].begin - self.calls[before].end;
            self.add(Moment::CallEnd(before), Moment::CallBegin(at), nanos, [Owner::Host; 2]);
        }
        for (cause, at) in causes {
            self.add(cause, Moment::CallEnd(at), 0, [Owner::Call(at); 2]);
        }
    }

    /// Returns the end of the last call of a thread, together with `joining`, the index of the call that waits for the
    /// thread's end.
    fn end_of_thread(&self, thread: u64, joining: usize) -> Option<(Moment, usize)> {
        let last = self.calls.iter().rposition(|call| call.thread == thread)?;
        Some((Moment::CallEnd(last), joining))
    }

    /// Returns the begin of the call that released a lock, and `locking`, the index of the call that waited for the
    /// lock and got it.
    fn release_for(&self, locking: usize) -> Option<(Moment, usize)> {
        let lock = &self.calls[locking];
        let is_release = |call: &Call| {
            call.thread_wait.as_deref() == Some("pthread_mutex_unlock")
                && call.thread != lock.thread
                && call.begin == lock.end
        };
        let release = self.calls.iter().position(is_release).filter(|_| lock.end > lock.begin)?;
        Some((Moment::CallBegin(release), locking))
    }

    fn add_op(&mut self, op: &Value) {
        let (id, begin, end, corr) =
            (number(op, "op"), number(op, "begin"), number(op, "end"), number(op, "corr"));
        self.ops.entry((begin, end, corr)).or_default().push(id);
        self.times.insert(Moment::Begin(id), begin);
        self.times.insert(Moment::End(id), end);
        if op["programmatic"] == false {
            self.add(Moment::Begin(id), Moment::End(id), end - begin, [Owner::Op(id); 2]);
        }
        let call = self.call_of(corr);
        self.add(Moment::CallBegin(call), Moment::Begin(id), LAUNCH_NS, [Owner::Call(call), Owner::Op(id)]);
        for wait in op["waits"].as_array().unwrap().iter().filter(|wait| wait["why"] != "programmatic") {
            self.add_until(number(wait, "op"), number(wait, "until"), Moment::Begin(id));
        }
        // The operation is a copy, and the call that submitted it waits until the copy ends.
        if self.calls[call].end == end {
            self.add(Moment::End(id), Moment::CallEnd(call), 0, [Owner::Call(call); 2]);
        }
    }

    fn call_of(&self, corr: u64) -> usize {
        self.calls.iter().position(|call| call.corr == Some(corr)).unwrap()
    }

    /// Adds a dependency on the end of an operation or, if a CUDA event was recorded while its stream was idle, on that
    /// event.
    fn add_until(&mut self, op: u64, until: u64, to: Moment) {
        let owner = match to {
            Moment::CallEnd(at) => Owner::Call(at),
            Moment::Begin(id) | Moment::End(id) => Owner::Op(id),
            Moment::CallBegin(_) => Owner::Host,
        };
        if self.times.get(&Moment::End(op)) == Some(&until) {
            self.add(Moment::End(op), to, 0, [owner; 2]);
            return;
        }
        let is_record = |call: &Call| call.begin == until && call.thread_wait.is_none();
        let records: Vec<usize> = (0..self.calls.len()).filter(|at| is_record(&self.calls[*at])).collect();
        records.into_iter().for_each(|at| self.add(Moment::CallBegin(at), to, 0, [owner; 2]));
    }

    /// Adds the waits of programmatic launches. The name of a kernel contains up to three times in ns. After `_t500`,
    /// that is 500 ns, the next kernel may begin; after `_s200`, the kernel waits for the previous kernel; `_d900` is
    /// the kernel's duration.
    fn add_programmatic(&mut self, ops: &[&Value]) {
        let by_id: HashMap<u64, &Value> = ops.iter().map(|op| (number(op, "op"), *op)).collect();
        for op in ops {
            let id = number(op, "op");
            for wait in op["waits"].as_array().unwrap().iter().filter(|wait| wait["why"] == "programmatic") {
                let before = number(wait, "op");
                match part_of_name(by_id[&before], "_t") {
                    Some(nanos) => {
                        self.add(Moment::Begin(before), Moment::Begin(id), nanos, [Owner::Op(before); 2])
                    }
                    None => self.add(Moment::End(before), Moment::Begin(id), 0, [Owner::Op(before); 2]),
                }
            }
            if op["programmatic"] == true {
                let nanos = part_of_name(op, "_d").unwrap();
                let preamble = part_of_name(op, "_s").unwrap_or(nanos);
                self.add(Moment::Begin(id), Moment::End(id), nanos, [Owner::Op(id); 2]);
                for before in kernels_before(op, ops) {
                    self.add(Moment::End(before), Moment::End(id), nanos - preamble, [Owner::Op(id); 2]);
                }
            }
        }
    }

    fn add_wait(&mut self, wait: &Value) {
        let is_of_host = ["event", "stream", "context"].iter().any(|kind| wait["kind"] == *kind);
        let call = self.call_of(number(wait, "corr"));
        if is_of_host && number(wait, "until") > self.calls[call].begin + CALL_NS && wait["result"] == 0 {
            self.add_until(number(wait, "op"), number(wait, "until"), Moment::CallEnd(call));
        }
    }

    /// Asserts that the computed longest paths give each moment the time that is in the log.
    fn check_times(&self) {
        let later: BTreeSet<Moment> = self.dependencies.iter().map(|one| one.to).collect();
        let mut longest: BTreeMap<Moment, u64> =
            self.times.iter().map(|(at, time)| (*at, if later.contains(at) { 0 } else { *time })).collect();
        let mut has_changed = true;
        while has_changed {
            has_changed = false;
            for one in &self.dependencies {
                let time = longest[&one.from] + one.nanos;
                if time > longest[&one.to] {
                    longest.insert(one.to, time);
                    has_changed = true;
                }
            }
        }
        for (at, time) in &self.times {
            assert_eq!(longest[at], *time, "the log does not explain {at:?}");
        }
    }

    /// Collects the moments from which a path without slack leads to the last moment of the program.
    fn follow_back(&mut self) {
        let last = self.times.iter().filter(|(_, time)| **time == self.end).map(|(at, _)| *at);
        let mut left: Vec<Moment> = last.collect();
        while let Some(at) = left.pop() {
            if self.on_path.insert(at) {
                let before =
                    self.dependencies.iter().filter(|one| one.to == at && self.has_no_spare_time(one));
                left.extend(before.map(|one| one.from));
            }
        }
    }

    fn has_no_spare_time(&self, one: &Dependency) -> bool {
        self.times[&one.from] + one.nanos == self.times[&one.to]
    }

    /// Returns whether a longest path spends the time from `start` to `end` in `owner`.
    pub(super) fn spends(&self, owner: Owner, start: u64, end: u64) -> bool {
        self.dependencies.iter().any(|one| {
            one.owners.contains(&owner)
                && self.on_path.contains(&one.to)
                && self.has_no_spare_time(one)
                && self.times[&one.from] <= start
                && end <= self.times[&one.to]
        })
    }

    /// Returns whether a longest path spends the time from `start` to `end` on the thread between two calls. `end` is
    /// the time at which the thread begins its next call.
    pub(super) fn spends_on_host(&self, thread: u64, start: u64, end: u64) -> bool {
        let is_next = |call: &Call| call.thread == thread && call.begin == end;
        let Some(mut at) = self.calls.iter().position(is_next) else { return false };
        loop {
            if !self.on_path.contains(&Moment::CallBegin(at)) {
                return false;
            }
            let Some(before) = self.calls[..at].iter().rposition(|call| call.thread == thread) else {
                return false;
            };
            if self.calls[before].end <= start {
                return self.calls[before].end == start;
            }
            at = before;
        }
    }

    /// Returns whether a longest path may lead from the end of another thread's call, at `start`, to the begin of a
    /// call of `thread`, at `end`.
    pub(super) fn hands_off(&self, thread: u64, start: u64, end: u64) -> bool {
        let is_next = |at: usize| self.calls[at].thread == thread && self.calls[at].begin == end;
        let is_before = |at: usize| self.calls[at].thread != thread && self.calls[at].end == start;
        self.dependencies.iter().any(|one| match (one.from, one.to) {
            (Moment::CallEnd(from), Moment::CallBegin(to)) => {
                is_before(from) && is_next(to) && self.on_path.contains(&one.to)
            }
            _ => false,
        })
    }

    /// Returns the calls of a thread that begin at the given time.
    pub(super) fn calls(&self, thread: u64, begin: u64) -> Vec<Owner> {
        let found = self.calls.iter().enumerate();
        let found = found.filter(|(_, call)| call.thread == thread && call.begin == begin);
        found.map(|(at, _)| Owner::Call(at)).collect()
    }

    /// Returns the GPU operations with the given times and correlation id.
    pub(super) fn ops(&self, begin: u64, end: u64, corr: u64) -> Vec<Owner> {
        self.ops.get(&(begin, end, corr)).into_iter().flatten().map(|id| Owner::Op(*id)).collect()
    }

    /// Returns the GPU operations with a given correlation id that begin at a given time.
    pub(super) fn ops_beginning(&self, begin: u64, corr: u64) -> Vec<Owner> {
        let begun = self.ops.iter().filter(|((at, _, id), _)| (*at, *id) == (begin, corr));
        begun.flat_map(|(_, ids)| ids).map(|id| Owner::Op(*id)).collect()
    }
}

/// Returns the number that follows the text `mark` in the name of a kernel.
fn part_of_name(op: &Value, mark: &str) -> Option<u64> {
    let (_, rest) = op["name"].as_str()?.split_once(mark)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// Returns the kernels for whose end a programmatic launch waits. In a graph, these kernels are the sources of the
/// node's edges. Outside a graph, this is only the previous kernel on the stream.
fn kernels_before(op: &Value, ops: &[&Value]) -> Vec<u64> {
    if op["graph"] != 0 {
        let waits = op["waits"].as_array().unwrap().iter().filter(|wait| wait["why"] == "programmatic");
        return waits.map(|wait| number(wait, "op")).collect();
    }
    let is_before = |other: &&&Value| {
        number(other, "op") < number(op, "op")
            && (&other["context"], &other["stream"]) == (&op["context"], &op["stream"])
    };
    ops.iter().filter(is_before).map(|other| number(other, "op")).max().into_iter().collect()
}
