//! Writes one trace event with changes: categories, ids and times are converted to the form that torch.profiler uses.
//! Only three kinds of events are written this way: events in another tool's dialect of the format, events whose names
//! contain control characters, and GPU work that overlaps other work. Because these events are rare, this code need not
//! be fast.

use std::fmt::{Display, Formatter};

use super::super::strict_json::{put_printable, put_strict};
use gpuflame_model::profile::json_string;
use gpuflame_traces::import::json::document::{Document, Node};

/// Argument names in other tools' dialects of the format, each with the name that Kineto uses.
const ARGUMENTS: [(&str, &str); 9] = [
    ("correlation id", "correlation"),
    ("correlationId", "correlation"),
    ("correlation_id", "correlation"),
    ("external id", "External id"),
    ("deviceId", "device"),
    ("contextId", "context"),
    ("streamId", "stream"),
    ("graphId", "graph id"),
    ("graphNodeId", "graph node id"),
];

/// Changes to a trace event.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// New category, if another tool's dialect has a different name for the category.
    pub(super) category: Option<&'static str>,
    /// New name, without control characters.
    pub(super) name: Option<String>,
    /// New start and end in ns.
    pub(super) times: Option<(i64, i64)>,
    /// New track, which replaces the event's thread id.
    pub(super) track: Option<u32>,
    /// Arguments that an event with a new category needs.
    pub(super) ids: [(&'static str, Option<u64>); 3],
}

impl Changes {
    /// Whether the event can be copied without changes.
    pub(super) fn is_empty(&self) -> bool {
        self.category.is_none() && self.name.is_none() && self.times.is_none() && self.track.is_none()
    }

    /// Sets new times if the event has exact times in its arguments (`in_args`).
    pub(super) fn exact_times(&mut self, in_args: bool, start: i64, end: i64) {
        self.times = in_args.then_some((start, end));
    }

    /// Appends the event `text` with the changes. An event that cannot be parsed as a JSON object is copied unchanged.
    pub(super) fn write(&self, text: &[u8], out: &mut Vec<u8>) {
        let document = Document::from_bytes(text);
        let Ok(event) = document.root() else { return put_printable(out, text) };
        let mut members = Members::new(out);
        for (key, value) in event.entries() {
            let key = key.decode();
            match (&*key, &self.name, self.track, self.times) {
                ("cat", ..) if self.category.is_some() => {}
                ("name", Some(name), ..) => members.put("name", &json_string(name)),
                ("tid", _, Some(track), _) => members.put("tid", &track.to_string()),
                ("ts", .., Some((start, _))) => members.put("ts", &Micros(start).to_string()),
                ("dur", .., Some((start, end))) => {
                    members.put("dur", &Micros(end.saturating_sub(start)).to_string());
                }
                ("args", ..) if self.category.is_some() => members.put_args(value, &self.ids),
                _ => members.put_value(&key, value),
            }
        }
        if let Some(category) = self.category {
            members.put("cat", &json_string(category));
            let has_ids = self.ids.iter().any(|(_, id)| id.is_some());
            if has_ids && event.get("args").is_none() {
                members.put_ids(&self.ids);
            }
        }
        members.end();
    }
}

/// Writes the members of a JSON object.
struct Members<'a> {
    out: &'a mut Vec<u8>,
    has_any: bool,
}

impl<'a> Members<'a> {
    fn new(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, has_any: false }
    }

    fn key(&mut self, key: &str) {
        if std::mem::replace(&mut self.has_any, true) {
            self.out.push(b',');
        }
        self.out.extend_from_slice(json_string(key).as_bytes());
        self.out.push(b':');
    }

    fn put(&mut self, key: &str, value: &str) {
        self.key(key);
        self.out.extend_from_slice(value.as_bytes());
    }

    /// Copies a value from the trace unchanged. Words that are not valid JSON, for example `nan`, become strings.
    fn put_value(&mut self, key: &str, value: Node<'_>) {
        self.key(key);
        let raw = value.raw();
        if value.is_string() {
            self.out.push(b'"');
            put_printable(self.out, raw);
            self.out.push(b'"');
            return;
        }
        put_strict(self.out, raw);
    }

    fn put_args(&mut self, args: Node<'_>, ids: &[(&'static str, Option<u64>)]) {
        self.key("args");
        let mut inside = Members::new(self.out);
        let mut written: Vec<String> = Vec::new();
        for (key, value) in args.entries() {
            let key = key.decode();
            let kineto = ARGUMENTS.iter().find(|(other, _)| **other == *key).map(|(_, kineto)| *kineto);
            // An argument is renamed only if no other argument has Kineto's name already.
            let is_free =
                |name: &&str| args.get(name).is_none() && !written.iter().any(|known| known == name);
            let key = kineto.filter(is_free).unwrap_or(&key);
            inside.put_value(key, value);
            written.push(key.to_owned());
        }
        for (key, id) in ids {
            if let Some(id) = id.filter(|_| !written.iter().any(|known| known == key)) {
                inside.put(key, &id.to_string());
            }
        }
        inside.end();
    }

    fn put_ids(&mut self, ids: &[(&'static str, Option<u64>)]) {
        self.key("args");
        let mut inside = Members::new(self.out);
        for (key, id) in ids {
            if let Some(id) = id {
                inside.put(key, &id.to_string());
            }
        }
        inside.end();
    }

    fn end(self) {
        self.out.push(b'}');
    }
}

/// Time in nanoseconds, which is written as microseconds with three decimals.
struct Micros(i64);

impl Display for Micros {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let nanos = self.0.unsigned_abs();
        write!(f, "{sign}{}.{:03}", nanos / 1000, nanos % 1000)
    }
}
