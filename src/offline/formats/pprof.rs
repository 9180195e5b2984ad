//! Writes pprof, the profile format of Go's tools. `go tool pprof`, Grafana, Parca and speedscope can read this format.
//!
//! The values of a sample depend on the view. In the GPU view, the values are `gpu_time` in nanoseconds, `launches`
//! (number of activities), `bytes`, and `pending` (number of launches without an activity so far). A frame is a line of
//! a function. Frames are written without addresses, because GPU work has no addresses and the names of all frames are
//! already known. The file is gzipped, as the format requires.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use flate2::{Compression, GzBuilder};
use prost::Message;

use super::sorted_stacks::{FrameRow, Granularity, SortedStacks, StackRow};
use gpuflame_export::format::{Drawing, Format};
use gpuflame_export::options::Options;
use gpuflame_model::error::Result;
use gpuflame_model::profile::views::GPU;
use gpuflame_model::profile::{Measure, Profile, View};
use gpuflame_model::record::Missing;

/// The fields of `profile.proto` (github.com/google/pprof) that gpuflame writes.
mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Profile {
        #[prost(message, repeated, tag = "1")]
        pub(super) sample_type: Vec<ValueType>,
        #[prost(message, repeated, tag = "2")]
        pub(super) sample: Vec<Sample>,
        #[prost(message, repeated, tag = "3")]
        pub(super) mapping: Vec<Mapping>,
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
        /// Ids of the locations of the stack's frames, leaf first.
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

    /// A mapped file. The flags of a mapped file tell readers of the profile that the file's functions need no further
    /// symbolization.
    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Mapping {
        #[prost(uint64, tag = "1")]
        pub(super) id: u64,
        #[prost(int64, tag = "5")]
        pub(super) filename: i64,
        #[prost(int64, tag = "6")]
        pub(super) build_id: i64,
        #[prost(bool, tag = "7")]
        pub(super) has_functions: bool,
        #[prost(bool, tag = "8")]
        pub(super) has_filenames: bool,
        #[prost(bool, tag = "9")]
        pub(super) has_line_numbers: bool,
        #[prost(bool, tag = "10")]
        pub(super) has_inline_frames: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Location {
        #[prost(uint64, tag = "1")]
        pub(super) id: u64,
        #[prost(uint64, tag = "2")]
        pub(super) mapping_id: u64,
        #[prost(message, repeated, tag = "4")]
        pub(super) line: Vec<Line>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Line {
        #[prost(uint64, tag = "1")]
        pub(super) function_id: u64,
        #[prost(int64, tag = "2")]
        pub(super) line: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Function {
        #[prost(uint64, tag = "1")]
        pub(super) id: u64,
        #[prost(int64, tag = "2")]
        pub(super) name: i64,
        #[prost(int64, tag = "3")]
        pub(super) system_name: i64,
        #[prost(int64, tag = "4")]
        pub(super) filename: i64,
    }
}

/// Gzipped pprof. The label `gpu` contains the device of a sample. As in every format, missing and dropped work is
/// shown as frames. Missing and dropped work is also listed in comments.
pub(super) static PPROF: Format = Format::of_views(
    "pprof",
    &[".pb.gz", ".pprof"],
    write,
    "Go's profile format: gpu_time, launches, bytes, pending (.pb.gz, .pprof)",
)
.binary();

fn write(drawing: &Drawing<'_>, out: &mut dyn Write) -> Result<()> {
    let &Drawing { profile, view, options, .. } = drawing;
    // The gzip header contains no name and no time, so that equal profiles give equal bytes.
    let mut gz = GzBuilder::new().write(out, Compression::default());
    gz.write_all(&build_profile(profile, view, options).encode_to_vec())?;
    gz.finish()?;
    Ok(())
}

fn build_profile(profile: &Profile, view: &View, options: &Options) -> proto::Profile {
    let SortedStacks { frames, samples } = SortedStacks::new(profile, view, options, Granularity::Lines);
    let mut strings = StringTable::default();
    let mut sample_type: Vec<_> = view
        .values
        .iter()
        .map(|value| proto::ValueType {
            kind: strings.intern(value.name),
            unit: strings.intern(value.unit.word()),
        })
        .collect();
    let has_pending = view == &GPU;
    if has_pending {
        sample_type.push(proto::ValueType { kind: strings.intern("pending"), unit: strings.intern("count") });
    }
    let pending = frames.iter().position(|frame| frame.name == Missing::Pending.label()).map(|at| at as u32);
    let first_type = sample_type[0];
    let gpu = strings.intern("gpu");
    let devices: Vec<_> = profile
        .devices()
        .iter()
        .map(|device| (device.device, strings.intern(&device.device.0.to_string())))
        .collect();
    let sample = samples
        .iter()
        .map(|sample| proto::Sample {
            location_id: sample.frames.iter().rev().map(|&frame| u64::from(frame) + 1).collect(),
            value: sample_values(sample, view, has_pending.then_some(pending)),
            label: devices
                .iter()
                .filter(|(device, _)| sample.device == Some(*device))
                .map(|&(_, str)| proto::Label { key: gpu, str })
                .collect(),
        })
        .collect();
    let mut code =
        LocationTable { profile, strings, mapping: Vec::new(), function: Vec::new(), ids: BTreeMap::new() };
    let location = frames.iter().zip(1..).map(|(frame, id)| code.add_location(frame, id)).collect();
    let LocationTable { mut strings, mapping, function, .. } = code;
    let first = profile.times().iter().map(|time| time.first.0).min().unwrap_or(0);
    let last = profile.times().iter().map(|time| time.last.0).max().unwrap_or(0);
    proto::Profile {
        sample_type,
        sample,
        mapping,
        location,
        function,
        time_nanos: first as i64,
        duration_nanos: last.saturating_sub(first) as i64,
        period_type: Some(first_type),
        period: 1,
        comment: comments(profile, view).iter().map(|comment| strings.intern(comment)).collect(),
        default_sample_type: first_type.kind,
        string_table: strings.all,
    }
}

/// Returns the values of a sample. `pending` is the index of the frame for launches without an activity; `None` if such
/// launches are not counted separately.
fn sample_values(sample: &StackRow, view: &View, pending: Option<Option<u32>>) -> Vec<i64> {
    let shown = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let mut values: Vec<i64> = sample.values[..view.values.len()].iter().map(|&value| shown(value)).collect();
    if let Some(pending) = pending {
        let is_pending = pending.is_some() && sample.frames.last().copied() == pending;
        let launches = if is_pending { std::mem::take(&mut values[1]) } else { 0 };
        values.push(launches);
    }
    values
}

/// String table. The pprof format requires the empty string at index 0 of the string table.
struct StringTable {
    all: Vec<String>,
    ids: HashMap<String, i64>,
}

impl Default for StringTable {
    fn default() -> Self {
        Self { all: vec![String::new()], ids: [(String::new(), 0)].into() }
    }
}

impl StringTable {
    fn intern(&mut self, text: &str) -> i64 {
        if let Some(&id) = self.ids.get(text) {
            return id;
        }
        let id = self.all.len() as i64;
        self.all.push(text.to_owned());
        self.ids.insert(text.to_owned(), id);
        id
    }
}

/// Tables of functions and mapped files.
struct LocationTable<'a> {
    profile: &'a Profile,
    strings: StringTable,
    mapping: Vec<proto::Mapping>,
    function: Vec<proto::Function>,
    /// Ids of functions, keyed by name and file.
    ids: BTreeMap<(i64, i64), u64>,
}

impl LocationTable<'_> {
    fn add_location(&mut self, frame: &FrameRow, id: u64) -> proto::Location {
        let (name, filename) = (self.strings.intern(&frame.name), self.strings.intern(&frame.file));
        let next = self.function.len() as u64 + 1;
        let function_id = *self.ids.entry((name, filename)).or_insert(next);
        if function_id == next {
            self.function.push(proto::Function { id: next, name, system_name: name, filename });
        }
        let line = vec![proto::Line { function_id, line: frame.line.into() }];
        proto::Location { id, mapping_id: self.intern_mapping(&frame.module), line }
    }

    /// Returns the id of a mapped file, or 0 if the frame's code is not in a file.
    fn intern_mapping(&mut self, module: &str) -> u64 {
        if module.is_empty() {
            return 0;
        }
        let filename = self.strings.intern(module);
        if let Some(known) = self.mapping.iter().find(|known| known.filename == filename) {
            return known.id;
        }
        let id = self.mapping.len() as u64 + 1;
        let module = self.profile.modules().iter().find(|known| known.path.to_string_lossy() == module);
        let build_id = module.map_or_else(String::new, |module| {
            module.build_id.iter().map(|byte| format!("{byte:02x}")).collect()
        });
        self.mapping.push(proto::Mapping {
            id,
            filename,
            build_id: self.strings.intern(&build_id),
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            has_inline_frames: true,
        });
        id
    }
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
    comments.extend(profile.provenance().map(|(what, text)| format!("{}: {text}", what.word())));
    comments.extend(profile.lost().map(|(loss, count)| format!("lost: {} {count}", loss.label())));
    comments
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::profile::views::GPU;
    use gpuflame_model::profile::{Leaf, Sample, SampleSite, ShownFrame, ShownFrameKind, SourceLocation};
    use gpuflame_model::record::{ContextFlags, ContextId, Module, ModuleEpoch, Row, ThreadId, Work};

    /// Returns a profile in which `decode` is called from two different lines of a file.
    fn profile() -> Profile {
        let mut profile = Profile::default();
        let (epoch, path, build_id) = (ModuleEpoch(0), "/opt/app".into(), vec![0xab, 1]);
        profile.push(&Row::Module(Module { epoch, start: 0, end: 9, bias: 0, path, build_id }));
        for (id, line) in [(2, 40), (3, 12)] {
            let (id, thread, flags) = (ContextId(id), ThreadId(1), ContextFlags(0));
            profile.push(&Row::Context { id, thread, flags, frames: &[] });
            let source = Some(SourceLocation { file: profile.intern("decode.c"), line });
            let module = Some(profile.intern("/opt/app"));
            let frame = ShownFrame {
                source,
                module,
                ..ShownFrame::new(ShownFrameKind::Code, profile.intern("decode"))
            };
            let frame = profile.intern_shown(frame);
            profile.set_shown(id, [frame]);
        }
        let sample = |id| Sample {
            values: [5, 1, 0, 0],
            ..Sample::new(SampleSite::Context(ContextId(id)), Leaf::work(Work::Set))
        };
        profile.set_samples(&GPU, vec![sample(2), sample(3)]);
        profile
    }

    #[test]
    fn a_location_is_a_line_of_a_function_in_a_mapped_file() {
        let message = build_profile(&profile(), &GPU, &Options::default());
        let text = |id: i64| message.string_table[id as usize].as_str();
        let names: Vec<_> = message.function.iter().map(|it| (text(it.name), text(it.filename))).collect();
        assert_eq!(names, [("[GPU_Memset]", ""), ("decode", "decode.c")]);
        let lines: Vec<_> = message
            .location
            .iter()
            .map(|it| (it.mapping_id, it.line[0].function_id, it.line[0].line))
            .collect();
        assert_eq!(lines, [(0, 1, 0), (1, 2, 12), (1, 2, 40)]);
        let mapped: Vec<_> =
            message.mapping.iter().map(|it| (text(it.filename), text(it.build_id))).collect();
        assert_eq!(mapped, [("/opt/app", "ab01")]);
        let samples: Vec<_> =
            message.sample.iter().map(|it| (it.location_id.clone(), it.value.clone())).collect();
        assert_eq!(samples, [(vec![1, 2], vec![5, 1, 0, 0]), (vec![1, 3], vec![5, 1, 0, 0])]);
    }
}
