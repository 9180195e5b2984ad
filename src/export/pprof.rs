//! pprof: the profile format of Go's tools, which `go tool pprof`, Grafana, Parca and speedscope read.
//!
//! Samples have the values of their view: of GPU time `gpu_time` in nanoseconds, `launches` (activities; a launch
//! without one counts as well) and `bytes`. Frames are functions without addresses, since GPU work has none and names
//! are known already. The file is gzipped, as the format asks.

use std::io::Write;

use flate2::{Compression, GzBuilder};
use prost::Message;

use super::format::{Format, Writes};
use super::options::Options;
use super::stacks::Stacks;
use crate::error::{Error, ErrorKind, Result};
use crate::profile::{Measure, Profile, View};

/// `profile.proto` of github.com/google/pprof, the fields that are used here.
mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Profile {
        #[prost(message, repeated, tag = "1")]
        pub(super) sample_type: Vec<ValueType>,
        #[prost(message, repeated, tag = "2")]
        pub(super) sample: Vec<Sample>,
        #[prost(message, repeated, tag = "4")]
        pub(super) location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub(super) function: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        pub(super) string_table: Vec<String>,
        #[prost(int64, tag = "9")]
        pub(super) time_nanos: i64,
        #[prost(int64, tag = "10")]
        pub(super) duration_nanos: i64,
        #[prost(message, optional, tag = "11")]
        pub(super) period_type: Option<ValueType>,
        #[prost(int64, tag = "12")]
        pub(super) period: i64,
        #[prost(int64, repeated, tag = "13")]
        pub(super) comment: Vec<i64>,
        #[prost(int64, tag = "14")]
        pub(super) default_sample_type: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct ValueType {
        #[prost(int64, tag = "1")]
        pub(super) kind: i64,
        #[prost(int64, tag = "2")]
        pub(super) unit: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Sample {
        /// Leaf first.
        #[prost(uint64, repeated, tag = "1")]
        pub(super) location_id: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        pub(super) value: Vec<i64>,
        #[prost(message, repeated, tag = "3")]
        pub(super) label: Vec<Label>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Label {
        #[prost(int64, tag = "1")]
        pub(super) key: i64,
        #[prost(int64, tag = "2")]
        pub(super) str: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Location {
        #[prost(uint64, tag = "1")]
        pub(super) id: u64,
        #[prost(message, repeated, tag = "4")]
        pub(super) line: Vec<Line>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Line {
        #[prost(uint64, tag = "1")]
        pub(super) function_id: u64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Function {
        #[prost(uint64, tag = "1")]
        pub(super) id: u64,
        #[prost(int64, tag = "2")]
        pub(super) name: i64,
        #[prost(int64, tag = "3")]
        pub(super) system_name: i64,
    }
}

/// Gzipped pprof. The samples' device is their label `gpu`; what is missing or lost is in frames, as
/// everywhere, and in comments.
pub(super) static PPROF: Format = Format {
    word: "pprof",
    about: "Go's profile format: gpu_time, launches, bytes (.pb.gz, .pprof)",
    endings: &[".pb.gz", ".pprof"],
    is_binary: true,
    writes: Writes::View(write),
};

fn write(profile: &Profile, view: &View, options: &Options, out: &mut dyn Write) -> Result<()> {
    let Stacks { names, samples } = Stacks::of(profile, view, options);
    // The format wants an empty string first; the frames' names follow, and then the rest.
    let mut strings = vec![String::new()];
    strings.extend(names.iter().cloned());
    let mut string = |text: &str| {
        strings.push(text.to_owned());
        strings.len() as i64 - 1
    };
    let mut units: Vec<(Measure, i64)> = Vec::new();
    let mut sample_type = Vec::new();
    for value in view.values {
        let unit = match units.iter().find(|(unit, _)| *unit == value.unit) {
            Some((_, known)) => *known,
            None => string(value.unit.word()),
        };
        units.push((value.unit, unit));
        sample_type.push(proto::ValueType { kind: string(value.name), unit });
    }
    let first_type = sample_type[0];
    let key = string("gpu");
    let devices: Vec<_> = profile
        .devices()
        .iter()
        .map(|device| (device.device, string(&device.device.0.to_string())))
        .collect();
    let comments = comments(profile, view).iter().map(|comment| string(comment)).collect();
    let sample = samples
        .iter()
        .map(|sample| proto::Sample {
            location_id: sample.frames.iter().rev().map(|&name| u64::from(name) + 1).collect(),
            value: sample.values[..view.values.len()]
                .iter()
                .map(|&value| i64::try_from(value).unwrap_or(i64::MAX))
                .collect(),
            label: devices
                .iter()
                .filter(|(device, _)| sample.device == Some(*device))
                .map(|&(_, str)| proto::Label { key, str })
                .collect(),
        })
        .collect();
    let ids = 1..=names.len() as u64;
    let first = profile.times().iter().map(|time| time.first.0).min().unwrap_or(0);
    let last = profile.times().iter().map(|time| time.last.0).max().unwrap_or(0);
    let message = proto::Profile {
        sample_type,
        sample,
        location: ids
            .clone()
            .map(|id| proto::Location { id, line: vec![proto::Line { function_id: id }] })
            .collect(),
        function: ids.map(|id| proto::Function { id, name: id as i64, system_name: id as i64 }).collect(),
        time_nanos: first as i64,
        duration_nanos: last.saturating_sub(first) as i64,
        period_type: Some(first_type),
        period: 1,
        comment: comments,
        default_sample_type: first_type.kind,
        string_table: strings,
    };
    // Without a name and a time in the header, so that the same profile is the same bytes.
    let mut gz = GzBuilder::new().write(out, Compression::default());
    gz.write_all(&message.encode_to_vec())?;
    gz.finish()?;
    Ok(())
}

fn comments(profile: &Profile, view: &View) -> Vec<String> {
    let mut comments = (view.notes)(profile);
    let unit = match view.values[0].unit {
        Measure::Nanos => "ns",
        unit => unit.word(),
    };
    comments.extend(
        profile
            .missing(view)
            .map(|(missing, [amount, count, ..])| format!("{}: {count} ({amount} {unit})", missing.word())),
    );
    comments.extend(profile.lost().map(|(loss, count)| format!("lost: {} {count}", loss.label())));
    comments
}

impl From<prost::EncodeError> for Error {
    fn from(error: prost::EncodeError) -> Self {
        Self::new(ErrorKind::Io, error.to_string())
    }
}
