//! Tests of the output formats, with profiles that the tests create themselves.

use std::io::Read as _;

use gpuflame_explain::events::JoinedRows;
use gpuflame_explain::join::Join;
use gpuflame_export::testing::{GEMM, Sketch, drawn};
use gpuflame_export::{Drawing, Options, Unit, Writes, write_csv};
use gpuflame_model::profile::views::{GPU, UNIFIED, VIEWS};
use gpuflame_model::profile::{Leaf, LeafFrame, Profile, Sample, SampleSite, ShownFrameKind};
use gpuflame_model::record::testing::{kernel, launch};
use gpuflame_model::record::{ContextId, DeviceId, Loss, Row, UnifiedKind};

use super::*;

fn folded(profile: &Profile, unit: Unit) -> String {
    drawn(&FOLDED, profile, &GPU, &Options { unit, ..Options::default() })
}

fn svg(profile: &Profile, options: &Options) -> String {
    drawn(&SVG, profile, &GPU, options)
}

fn csv(profile: &Profile) -> String {
    let mut out = Vec::new();
    write_csv(profile, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Returns a profile in which each view has a sample, and in which `loss` is the only kind of dropped data.
fn of_all_views(loss: Loss, count: u64) -> Profile {
    let mut profile = Sketch::new()
        .context(2, 0, &["main", "decode", "cudaLaunchKernel"])
        .stats(GEMM, 0, 1, 70, 0)
        .lost(loss, count)
        .done();
    for view in VIEWS {
        let tip =
            if *view == &UNIFIED { LeafFrame::Unified(UnifiedKind::HTOD) } else { LeafFrame::Work(GEMM) };
        let sample = Sample::new(SampleSite::Context(ContextId(2)), Leaf::new(&[tip]));
        let (device, values) = (Some(DeviceId(0)), [70, 1, 7, 3]);
        profile.set_samples(view, vec![Sample { device, values, ..sample }]);
    }
    profile
}

#[test]
fn losses_are_in_every_format_of_every_view_and_in_the_table() {
    let mut events = JoinedRows::default();
    let mut join = Join::default();
    [Row::Launch(launch(5, 2)), Row::Activity(kernel(5, 100, 110))]
        .iter()
        .for_each(|row| join.push(row, &mut events));
    join.final_tally(&mut events);
    events.sort();
    // The count of dropped data is a number that is unlikely to occur in a file by chance.
    let count = 918_273;
    for loss in Loss::ALL.into_iter().filter(|loss| *loss != Loss::LaunchesCaptured) {
        let profile = of_all_views(loss, count);
        let mut files = vec![("csv".to_owned(), csv(&profile).into_bytes())];
        for format in FORMATS {
            match format.writes {
                Writes::View(write) => files.extend(VIEWS.iter().map(|view| {
                    let mut out = Vec::new();
                    write(&Drawing::new(&profile, view, &Options::default()), &mut out).unwrap();
                    (format!("{} as {}", view.word, format.word), out)
                })),
                Writes::Events(write) => {
                    let mut out = Vec::new();
                    write(&profile, &events, &Options::default(), &mut out).unwrap();
                    files.push((format.word.to_owned(), out));
                }
            }
        }
        assert_eq!(files.len(), 1 + 4 * VIEWS.len() + FORMATS.len() - 4, "four formats are of views");
        for (name, bytes) in files {
            let text = readable(&bytes);
            let is_named = [loss.label().to_owned(), loss.label().replace('_', " ")];
            assert!(is_named.iter().any(|word| text.contains(word)), "{name} does not name {loss:?}");
            assert!(text.contains(&count.to_string()), "{name} does not say how many: {loss:?}");
        }
    }
}

/// Returns the readable text of a file, after unpacking it if it is gzipped.
fn readable(bytes: &[u8]) -> String {
    let mut unpacked = Vec::new();
    let bytes = match flate2::read::GzDecoder::new(bytes).read_to_end(&mut unpacked) {
        Ok(_) => &unpacked,
        Err(_) => bytes,
    };
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_view_may_add_several_frames_on_top_of_its_stacks() {
    let mut sketch = Sketch::new();
    let stall = LeafFrame::Named(ShownFrameKind::Marker, sketch.profile.intern("[stall: long scoreboard]"));
    let leaf = Leaf::new(&[LeafFrame::Work(GEMM), stall]);
    let profile = sketch
        .context(2, 0, &["main", "cudaLaunchKernel"])
        .sample(SampleSite::Context(ContextId(2)), leaf, Some(0), 1, 9)
        .done();
    let line = "main;cudaLaunchKernel;[GPU_Kernel]gemm;[stall: long scoreboard] 9\n";
    assert_eq!(folded(&profile, Unit::Nanos), line);
    let text = svg(&profile, &Options::default());
    assert!(
        text.contains("gemm [GPU_Kernel] (9 ns") && text.contains("[stall: long scoreboard] (9 ns"),
        "{text}"
    );
    let speedscope = drawn(&speedscope::SPEEDSCOPE, &profile, &GPU, &Options::default());
    let json: serde_json::Value = serde_json::from_str(&speedscope).unwrap();
    assert_eq!(json["profiles"][0]["samples"][0].as_array().unwrap().len(), 4);
}

#[test]
fn speedscope_has_a_frame_for_each_function_and_its_first_line() {
    let mut sketch = Sketch::new();
    for (id, line) in [(2, 40), (3, 12)] {
        sketch.located(id, "decode.c", line).ran(id, GEMM, 1, 5);
    }
    let text = drawn(&speedscope::SPEEDSCOPE, &sketch.done(), &GPU, &Options::default());
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let expected = serde_json::json!([
        { "name": "[GPU_Kernel]gemm" },
        { "name": "decode", "file": "decode.c", "line": 12 }
    ]);
    assert_eq!(json["shared"]["frames"], expected);
    assert_eq!(json["profiles"][0]["weights"], serde_json::json!([10]));
}

#[test]
fn calls_have_their_source_location() {
    let mut sketch = Sketch::new();
    let profile = sketch.located(2, "decode.c", 40).ran(2, GEMM, 1, 5).done();
    let mut events = JoinedRows::default();
    let mut join = Join::default();
    join.push(&Row::Launch(launch(5, 2)), &mut events);
    join.final_tally(&mut events);
    for format in [&perfetto::PERFETTO, &sbt::SBT] {
        let Writes::Events(write) = format.writes else { panic!("{format:?} is of events") };
        let mut out = Vec::new();
        write(&profile, &events, &Options::default(), &mut out).unwrap();
        assert!(readable(&out).contains("decode.c"), "{format:?}");
    }
}
