//! Compares the dependencies in a recording with the truth file of the simulated CUDA stack. The recording must contain
//! exactly the CUDA events that the program recorded on streams, and the program's waits for these events. The
//! recording contains each recorded CUDA event and each wait twice: as an API call and as an activity record.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;

use crate::support::{Done, Run, Way, command, compile};
use gpuflame_explain::symbolize::{SymbolizeOptions, Symbolizer};
use gpuflame_export::stack_names;
use gpuflame_model::profile::{Profile, SampleSite};
use gpuflame_model::record::{
    ContextId, EventCall, EventRecord, EventUse, Reader, Row, SyncKind, SyncRecord, ThreadId, Wait,
};
use serde_json::Value;

fn run(variables: &[(&str, &str)]) -> Done {
    run_of("tests/programs/deps.c", variables)
}

fn run_of(source: &str, variables: &[(&str, &str)]) -> Done {
    let program = compile(source, &["-O2"]);
    let run =
        Run::new(&program, Way::Injected).env("GPUFLAME_FORMATS", "folded,gfr").env("GPUFLAME_DEPS", "1");
    let run = run.env("GPUSIM_CLOCK", "real").env("GPUSIM_TRUTH", "deps:deps.json,summary:truth.json");
    variables.iter().fold(run, |run, (name, value)| run.env(name, value)).ok()
}

/// The rows of a recording that this test checks, and the names of all stacks.
struct Recorded {
    profile: Profile,
    records: Vec<EventRecord>,
    syncs: Vec<SyncRecord>,
    calls: Vec<EventCall>,
    waits: Vec<Wait>,
    threads: BTreeMap<ContextId, ThreadId>,
}

impl Recorded {
    fn of(done: &Done) -> Self {
        let file = File::open(done.folder.join("out.gfr")).unwrap();
        let mut reader = Reader::new(BufReader::new(file)).unwrap();
        let (records, syncs, calls, waits) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (profile, threads) = (Profile::default(), BTreeMap::new());
        let mut found = Self { profile, records, syncs, calls, waits, threads };
        while let Some(row) = reader.next_row().unwrap() {
            found.profile.push(&row);
            match row {
                Row::EventRecord(record) => found.records.push(record),
                Row::Sync(sync) => found.syncs.push(sync),
                Row::EventCall(call) => found.calls.push(call),
                Row::Wait(wait) => found.waits.push(wait),
                Row::Context { id, thread, .. } => drop(found.threads.insert(id, thread)),
                _ => {}
            }
        }
        assert_eq!(reader.skipped(), 0);
        Symbolizer::new(SymbolizeOptions::default()).name(&mut found.profile);
        found
    }

    fn stack(&self, context: ContextId) -> String {
        stack_names(&self.profile, SampleSite::Context(context)).join(";")
    }
}

/// Returns the dependencies from the truth file. Queries that were answered with "not ready" are left out, because
/// gpuflame does not record them.
fn truth(done: &Done) -> Vec<Value> {
    let lines = done.file("deps.json");
    let all = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|line| line["result"] == 0).collect()
}

fn number(line: &Value, field: &str) -> Option<u64> {
    line[field].as_u64()
}

/// Compares the recording with the truth file, line by line. `has_ids`: this CUPTI version gives sequence numbers to
/// the activity records of CUDA events.
fn assert_exact(done: &Done, has_ids: bool) {
    let found = Recorded::of(done);
    let truth = truth(done);
    let mut handles: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut records, mut syncs, mut called, mut waited) = (0, 0, 0, 0);
    for line in &truth {
        let id = number(line, "corr").unwrap() as u32;
        let what = line["what"].as_str().unwrap();
        let sync_id = number(line, "sync_id").filter(|_| has_ids);
        let query = line["api"].as_str().unwrap().ends_with("Query");
        if what == "event_record" {
            let of: Vec<_> = found.records.iter().filter(|record| record.correlation.0 == id).collect();
            let [record] = of[..] else { panic!("{of:?} for {line}") };
            assert_eq!(u64::from(record.context.0), line["context"], "{line}");
            assert_eq!(u64::from(record.stream.0), line["stream"], "{line}");
            assert_eq!(u64::from(record.event.0), line["event"], "{line}");
            assert_eq!(record.sync.map(|sync| sync.0), sync_id, "{line}");
            records += 1;
        } else {
            let of: Vec<_> = found.syncs.iter().filter(|sync| sync.correlation.0 == id).collect();
            let [sync] = of[..] else { panic!("{of:?} for {line}") };
            assert_eq!(sync.kind.word(), what, "{line}");
            assert_eq!(
                (sync.start.0, sync.end.0),
                (number(line, "start").unwrap(), number(line, "end").unwrap())
            );
            assert_eq!(u64::from(sync.context.0), line["context"], "{line}");
            assert_eq!(sync.stream.map(|stream| stream.0.into()), number(line, "stream"), "{line}");
            assert_eq!(sync.event.map(|event| event.0.into()), number(line, "event"), "{line}");
            assert_eq!((sync.sync.map(|sync| sync.0), sync.result), (sync_id, 0), "{line}");
            syncs += 1;
        }
        let who = format!("{};{}", line["site"].as_str().unwrap(), line["api"].as_str().unwrap());
        let context = if matches!(what, "event_record" | "stream_wait") {
            let of: Vec<_> = found.calls.iter().filter(|call| call.correlation.0 == id).collect();
            let [call] = of[..] else { panic!("{of:?} for {line}") };
            let event_use = if what == "event_record" { EventUse::Record } else { EventUse::Wait };
            assert_eq!(call.event_use, event_use, "{line}");
            let handle = handles.entry(number(line, "event").unwrap()).or_insert(call.event);
            assert_eq!(call.event, *handle, "an event has one handle: {line}");
            let (start, end) = (number(line, "start").unwrap(), number(line, "end").unwrap());
            assert!(
                end == 0 || call.time.0 <= start && end <= call.time.0 + u64::from(call.duration),
                "{line}"
            );
            called += 1;
            Some(call.context)
        } else if query {
            None
        } else {
            let of: Vec<_> = found.waits.iter().filter(|wait| wait.correlation.0 == id).collect();
            let [wait] = of[..] else { panic!("{of:?} for {line}") };
            waited += 1;
            Some(wait.context)
        };
        if let Some(context) = context {
            assert_eq!(found.stack(context), who, "{line}");
            assert_eq!(u64::from(found.threads[&context].0), line["tid"], "{line}");
        }
    }
    assert_eq!((records, syncs), (found.records.len(), found.syncs.len()), "what nobody did");
    assert_eq!(waited, found.waits.len(), "the recording has waits that the program did not make");
    // For a CUDA event that is recorded during a graph capture, the recording has an API call but no activity record.
    // For a CUDA event that cannot be recorded because the call fails, the recording has neither.
    let mut drawn: Vec<_> = found.calls.iter().map(|call| found.stack(call.context)).collect();
    drawn.retain(|stack| stack.starts_with("main;captured"));
    assert_eq!(drawn.len(), 4, "{drawn:?}");
    assert_eq!(called + drawn.len(), found.calls.len());
    // In each of three rounds, the program records a reused CUDA event and a new CUDA event. The program also records a
    // CUDA event through the driver API, and the CUDA event that it queries.
    assert_eq!((records, called), (8, 8 + 8), "{}", done.stderr);
    assert!(handles.len() == 4 && handles.values().collect::<std::collections::BTreeSet<_>>().len() < 4);
}

#[test]
fn all_events_and_waits_are_recorded_under_their_callers_stacks() {
    let done = run(&[]);
    assert_exact(&done, true);
    let (calls, parts) = done.sum("event calls");
    assert_eq!((calls, parts["record"], parts["stream_wait"]), (20, 10, 10));
    assert_eq!(done.ledger("event records "), ["8"]);
    let (waits, parts) = done.sum("wait records");
    let truth = truth(&done);
    let of = |what: &str| truth.iter().filter(|line| line["what"] == what).count() as u64;
    for what in ["event", "stream_wait", "stream", "context"] {
        assert_eq!(parts[what], of(what), "{what}");
    }
    assert_eq!((waits, parts["other"]), (8 + 2 + 3 + 2, 0));
}

#[test]
fn events_and_waits_are_exact_with_every_cupti_version_and_record_order() {
    for (version, has_ids) in [("11.8", false), ("12.9", true), ("13.4", true)] {
        assert_exact(&run(&[("GPUSIM_CUPTI_VERSION", version), ("GPUSIM_SHUFFLE", "7")]), has_ids);
    }
    assert_exact(&run(&[("GPUSIM_CORR", "distinct")]), true);
    assert_exact(&run(&[("GPUSIM_NESTED", "0"), ("GPUSIM_EARLY", "1")]), true);
}

#[test]
fn each_stream_wait_is_linked_to_exactly_one_event_record() {
    let found = Recorded::of(&run(&[]));
    let waits = found.syncs.iter().filter(|sync| sync.kind == SyncKind::STREAM_WAIT);
    for wait in waits {
        let of: Vec<_> = found.records.iter().filter(|record| record.sync == wait.sync).collect();
        let [record] = of[..] else { panic!("{of:?} for {wait:?}") };
        assert_eq!(Some(record.event), wait.event);
        assert!(record.correlation.is_before(wait.correlation), "{record:?} {wait:?}");
    }
}

#[test]
fn event_queries_that_fail_are_not_recorded() {
    let done = run(&[]);
    let refused = done.file("deps.json").lines().filter(|line| line.contains("\"result\":600")).count();
    assert!(refused > 0, "the program called in a loop");
    assert!(Recorded::of(&done).syncs.iter().all(|sync| sync.result == 0));
}

#[test]
fn without_the_deps_setting_no_events_or_waits_are_recorded() {
    let done = run(&[("GPUFLAME_DEPS", "0")]);
    let found = Recorded::of(&done);
    assert_eq!((found.records, found.syncs, found.calls, found.waits), (vec![], vec![], vec![], vec![]));
    for word in ["event calls", "event records", "wait records", "host waited"] {
        assert_eq!(done.ledger(word), Vec::<&str>::new());
    }
}

#[test]
fn the_deps_setting_does_not_change_the_flame_graph() {
    let weights = |deps: &str| {
        let mut all = run(&[("GPUFLAME_DEPS", deps)]).folded();
        all.sort();
        all
    };
    assert_eq!(weights("1"), weights("0"));
}

#[test]
fn info_and_view_count_the_event_records_and_check_reports_missing_ones() {
    let done = run(&[]);
    let info = command::gpuflame(&done.folder, ["info", "out.gfr", "--format", "csv"]).ok().stdout;
    for line in ["calls that record an event,10", "calls that have a stream wait,10", "event records,8"] {
        assert!(info.lines().any(|found| found == line), "{line}\n{info}");
    }
    assert!(info.lines().any(|line| line == "wait records context,2"), "{info}");
    let view = command::gpuflame(&done.folder, ["view", "out.gfr", "-n", "1"]);
    assert!(view.stderr.contains("not shown: 8 event records, 15 wait records"), "{}", view.stderr);
    let missed = |done: &Done| {
        let check = command::gpuflame(&done.folder, ["check", "out.gfr", "--format", "csv"]).ok().stdout;
        let line = check.lines().find(|line| line.contains("waits not recorded")).unwrap();
        line.split(',').next().unwrap().to_owned()
    };
    assert_eq!(missed(&done), "none");
    assert_eq!(missed(&run(&[("GPUFLAME_DEPS", "0")])), "note");
}

#[test]
fn the_deps_setting_without_a_recording_is_reported_in_one_line() {
    let done = run(&[("GPUFLAME_FORMATS", "folded")]);
    assert_eq!(done.ledger("GPUFLAME_DEPS=1 has no effect without a recording").len(), 1, "{}", done.stderr);
}

#[test]
fn events_are_recorded_in_a_program_without_launches() {
    let done = run_of("tests/programs/events.c", &[]);
    let found = Recorded::of(&done);
    assert_eq!((found.calls.len(), found.records.len(), found.waits.len()), (3, 3, 1), "{}", done.stderr);
}
