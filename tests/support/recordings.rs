//! Compares recordings of the probe (tests/gpu/probe), which contain CUPTI's callbacks and records as a client received
//! them. The comparison covers the order of callbacks, their ids, and the fields of records, and lists every
//! difference. Times and addresses differ between runs, so they are left out; ids are renumbered.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use serde_json::Value;

/// A recording, converted to lines of text. Two runs of the same program must have the same lines.
pub(crate) struct Recording {
    /// One line per callback, in the order of the callbacks.
    pub(crate) callbacks: Vec<String>,
    /// One line per activity record, sorted, because the order of records and their distribution to buffers are random.
    pub(crate) records: Vec<String>,
}

impl Recording {
    pub(crate) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let parse = |line: &str| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{}: {error}: {line}", path.display()))
        };
        Self::from_rows(&text.lines().map(parse).collect::<Vec<_>>())
    }

    pub(crate) fn from_rows(rows: &[Value]) -> Self {
        let mut ids = Ids::default();
        let callbacks = rows.iter().filter_map(|row| callback(row, &mut ids)).collect();
        let mut records: Vec<String> = rows
            .iter()
            .filter(|row| row.get("buffer").is_some())
            .flat_map(|row| records_of(row, &mut ids))
            .collect();
        records.sort();
        Self { callbacks, records }
    }

    /// Returns the lines that only this recording has (marked `-`), and the lines that only the recording `other` has
    /// (marked `+`). If the recordings agree, the returned list is empty.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = diff("callback", &self.callbacks, &other.callbacks);
        found.extend(diff("record", &self.records, &other.records));
        found
    }
}

/// Renumbers ids in the order of their first appearance.
#[derive(Default)]
struct Ids(HashMap<(&'static str, u64), usize>, BTreeMap<&'static str, usize>);

impl Ids {
    fn rename(&mut self, what: &'static str, id: u64) -> usize {
        let next = self.1.entry(what).or_insert(0);
        *self.0.entry((what, id)).or_insert_with(|| {
            *next += 1;
            *next
        })
    }

    /// Renumbers an id. The id 0 stays 0, because 0 means that there is no id.
    fn rename_some(&mut self, what: &'static str, id: u64) -> usize {
        if id == 0 { 0 } else { self.rename(what, id) }
    }

    /// Renumbers a stream id. The default stream's id 7 stays, because it is 7 in all recordings.
    fn stream(&mut self, id: i64) -> String {
        match id {
            -1 => "none".to_owned(),
            7 => "default".to_owned(),
            _ => self.rename("stream", id as u64).to_string(),
        }
    }
}

/// Id of the resource callback whose field `original` is a graph. In all other resource callbacks, `original` is a
/// graph node.
const GRAPH_CLONED: u32 = 11;

fn number(row: &Value, field: &str) -> u64 {
    row[field].as_u64().unwrap_or(0)
}

fn callback(row: &Value, ids: &mut Ids) -> Option<String> {
    let thread = row["thread"]
        .as_u64()
        .filter(|_| row.get("buffer").is_none())
        .map_or(0, |id| ids.rename("thread", id));
    if let Some(site) = row["call"].as_str() {
        let correlation = ids.rename("correlation", number(row, "corr"));
        return Some(format!(
            "{site} {}:{} {} correlation {correlation} thread {thread} symbol {} context {} stream {} slot {} instance {} from graph {} result {}",
            row["domain"],
            row["id"],
            row["name"].as_str().unwrap_or_default(),
            row["symbol"],
            row["context"],
            ids.stream(row["stream"].as_i64().unwrap_or(-1)),
            if number(row, "slot") == 0 { "empty" } else { "kept" },
            ids.rename_some("instance", number(row, "handle")),
            ids.rename_some("graph", number(row, "graph")),
            row["result"],
        ));
    }
    if row.get("resource").is_some() {
        return Some(format!(
            "resource {} in correlation {} thread {thread} graph {} node {} from {} exec {} instance {}",
            row["resource"],
            ids.rename_some("correlation", number(row, "corr")),
            ids.rename_some("graph", number(row, "graph")),
            ids.rename_some("node", number(row, "node")),
            ids.rename_some(
                if row["resource"] == GRAPH_CLONED { "graph" } else { "node" },
                number(row, "original")
            ),
            ids.rename_some("graph", number(row, "exec")),
            ids.rename_some("instance", number(row, "handle")),
        ));
    }
    if let Some(result) = row.get("flush") {
        return Some(format!("flush {result} dropped {}", row["dropped"]));
    }
    row.get("state").map(|state| format!("state {state}"))
}

/// A field of an activity record: its name, its offset, and its size in bytes. Fields with times are not in the lists
/// below, because times differ between runs.
type Field = (&'static str, usize, usize);
const KERNEL: &[Field] = &[
    ("device", 40, 4),
    ("context", 44, 4),
    ("stream", 48, 4),
    ("gridX", 52, 4),
    ("gridY", 56, 4),
    ("gridZ", 60, 4),
    ("blockX", 64, 4),
    ("blockY", 68, 4),
    ("blockZ", 72, 4),
    ("shared", 80, 4),
    ("correlation", 92, 4),
    ("node", 144, 8),
    ("graph", 156, 4),
];
const COPY: &[Field] = &[
    ("copyKind", 4, 1),
    ("from", 5, 1),
    ("to", 6, 1),
    ("flags", 7, 1),
    ("bytes", 8, 8),
    ("device", 32, 4),
    ("context", 36, 4),
    ("stream", 40, 4),
    ("correlation", 44, 4),
    ("node", 64, 8),
    ("graph", 72, 4),
];
const FILL: &[Field] = &[
    ("value", 4, 4),
    ("bytes", 8, 8),
    ("device", 32, 4),
    ("context", 36, 4),
    ("stream", 40, 4),
    ("correlation", 44, 4),
    ("flags", 48, 2),
    ("memory", 50, 2),
    ("node", 64, 8),
    ("graph", 72, 4),
];

fn records_of(row: &Value, ids: &mut Ids) -> Vec<String> {
    let hex = row["hex"].as_str().unwrap();
    let bytes: Vec<u8> =
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
    let places = row["at"].as_array().unwrap().iter().map(|at| at.as_u64().unwrap() as usize);
    let names = row["names"].as_array().unwrap();
    // The driver makes overhead records (kind 17) for its own work, such as loading a module. The number of overhead
    // records differs from run to run, and gpuflame does not enable them. Therefore the comparison skips overhead
    // records.
    let is_overhead = |at: &usize| bytes[*at..].starts_with(&17_u32.to_le_bytes());
    places
        .zip(names)
        .filter(|(at, _)| !is_overhead(at))
        .map(|(at, name)| record(&bytes[at..], name, ids))
        .collect()
}

fn record(bytes: &[u8], name: &Value, ids: &mut Ids) -> String {
    let value = |offset: usize, size: usize| {
        let mut value = [0; 8];
        value[..size].copy_from_slice(&bytes[offset..offset + size]);
        u64::from_le_bytes(value)
    };
    let (kind, fields) = match value(0, 4) {
        10 => ("kernel", KERNEL),
        1 => ("copy", COPY),
        2 => ("fill", FILL),
        other => return format!("kind {other}"),
    };
    let mut text = format!("{kind} {name}");
    for (field, offset, size) in fields {
        let value = value(*offset, *size);
        let shown = match *field {
            "correlation" | "node" | "graph" => ids.rename_some(field, value).to_string(),
            "stream" => ids.stream(value as i64),
            _ => value.to_string(),
        };
        text += &format!(" {field} {shown}");
    }
    let is_timed = value(16, 8) != 0 && value(16, 8) <= value(24, 8);
    text + if is_timed { " timed" } else { " not timed" }
}

/// Returns those lines that are not part of a longest common subsequence of both lists.
fn diff(what: &str, one: &[String], other: &[String]) -> Vec<String> {
    let width = other.len() + 1;
    let mut longest = vec![0_u32; (one.len() + 1) * width];
    for i in (0..one.len()).rev() {
        for k in (0..other.len()).rev() {
            longest[i * width + k] = if one[i] == other[k] {
                longest[(i + 1) * width + k + 1] + 1
            } else {
                longest[(i + 1) * width + k].max(longest[i * width + k + 1])
            };
        }
    }
    let (mut i, mut k, mut found) = (0, 0, Vec::new());
    while i < one.len() || k < other.len() {
        if i < one.len() && k < other.len() && one[i] == other[k] {
            (i, k) = (i + 1, k + 1);
        } else if k == other.len()
            || (i < one.len() && longest[(i + 1) * width + k] >= longest[i * width + k + 1])
        {
            found.push(format!("- {what} {}: {}", i + 1, one[i]));
            i += 1;
        } else {
            found.push(format!("+ {what} {}: {}", k + 1, other[k]));
            k += 1;
        }
    }
    found
}
