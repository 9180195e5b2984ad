//! Tests the files that are written from hand-made profiles. If a file is small, the test compares its whole content.

use std::io::{self, Write};

use super::testing::{GEMM, RELU, Sketch, drawn};
use super::*;
use gpuflame_explain::join::Join;
use gpuflame_model::error::ErrorKind;
use gpuflame_model::profile::views::{GPU, IDLE};
use gpuflame_model::profile::{
    BusyIdle, Cause, DeviceTime, Leaf, LeafFrame, Profile, RootMark, Sample, SampleSite, ShownFrame,
    ShownFrameKind,
};
use gpuflame_model::record::testing::{Rng, copy, kernel, launch, named, set};
use gpuflame_model::record::{
    ContextFlags, ContextId, CopyKind, Created, DeviceId, Frame, LabelId, Loss, Missing, ModuleEpoch, NameId,
    Nanos, Row, ThreadId, Work,
};

fn folded(profile: &Profile, unit: Unit) -> String {
    drawn(&FOLDED, profile, &GPU, &Options { unit, ..Options::default() })
}

fn svg(profile: &Profile, options: &Options) -> String {
    drawn(&SVG, profile, &GPU, options)
}

fn titled(title: &str) -> Options {
    Options { title: Some(title.to_owned()), ..Options::default() }
}

fn csv(profile: &Profile) -> String {
    let mut out = Vec::new();
    write_csv(profile, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn folded_lines_are_sorted_by_their_frames() {
    let profile = Sketch::new()
        .context(2, 0, &["main", "decode", "forward", "cudaLaunchKernel"])
        .context(3, 0, &["main", "decode", "cudaMemcpyAsync"])
        .ran(2, RELU, 1, 9)
        .ran(2, GEMM, 2, 3_099_632)
        .ran(3, Work::Copy(CopyKind::HTOD), 1, 70)
        .ran(3, Work::Set, 1, 5)
        .done();
    let expected = "\
main;decode;cudaMemcpyAsync;[GPU_Memcpy HtoD] 70
main;decode;cudaMemcpyAsync;[GPU_Memset] 5
main;decode;forward;cudaLaunchKernel;[GPU_Kernel]gemm 3099632
main;decode;forward;cudaLaunchKernel;[GPU_Kernel]relu 9
";
    assert_eq!(folded(&profile, Unit::Nanos), expected);
}

#[test]
fn contexts_that_look_the_same_share_a_line() {
    let profile = Sketch::new()
        .context(2, 0, &["main", "run"])
        .context(3, 0, &["main", "run"])
        .ran(2, GEMM, 1, 10)
        .ran(3, GEMM, 1, 11)
        .done();
    assert_eq!(folded(&profile, Unit::Nanos), "main;run;[GPU_Kernel]gemm 21\n");
}

/// Returns a profile with nodes of a CUDA graph. One stack launched the graph, and other stacks created its nodes.
fn graph() -> Profile {
    let node = |launch, created| SampleSite::Node { launch, created };
    let (launch, made) = (Ok(ContextId(2)), Created::Context(ContextId(3)));
    Sketch::new()
        .context(2, 0, &["main", "serve", "step", "cudaGraphLaunch"])
        .context(3, 0, &["main", "serve", "capture", "layer", "cudaLaunchKernel"])
        .context(4, ContextFlags::CUT, &["jit", "cudaLaunchKernel"])
        .sample(node(launch, made), Leaf::work(GEMM), Some(0), 10, 100)
        .sample(node(launch, Created::Context(ContextId(4))), Leaf::work(GEMM), Some(0), 1, 2)
        .sample(node(launch, Created::BeforeRecording), Leaf::work(GEMM), Some(0), 1, 3)
        .sample(node(launch, Created::Unknown), Leaf::untimed(RELU), Some(0), 1, 0)
        .sample(node(Err(Missing::DeviceGraph), made), Leaf::work(GEMM), Some(0), 1, 4)
        .sample(SampleSite::Context(ContextId(2)), Leaf::work(Work::Graph), Some(0), 1, 5)
        .done()
}

#[test]
fn a_graph_node_shows_its_launch_and_the_new_frames_of_its_creation() {
    let expected = "\
[device graph];[graph];main;serve;capture;layer;cudaLaunchKernel;[GPU_Kernel]gemm 4
main;serve;step;cudaGraphLaunch;[GPU_Graph] 5
main;serve;step;cudaGraphLaunch;[graph];[graph made before recording];[GPU_Kernel]gemm 3
main;serve;step;cudaGraphLaunch;[graph];[graph node unknown];[timestamp not collected];[GPU_Kernel]relu 0
main;serve;step;cudaGraphLaunch;[graph];[stack cut short];jit;cudaLaunchKernel;[GPU_Kernel]gemm 2
main;serve;step;cudaGraphLaunch;[graph];capture;layer;cudaLaunchKernel;[GPU_Kernel]gemm 100
";
    assert_eq!(folded(&graph(), Unit::Nanos), expected);
    let names: Vec<_> =
        graph().samples(&GPU).iter().map(|s| stack_names(&graph(), s.site).join(";")).collect();
    assert!(
        names.contains(&"main;serve;step;cudaGraphLaunch;[graph];capture;layer;cudaLaunchKernel".to_owned())
    );
    assert!(names.contains(&"[device graph];[graph];main;serve;capture;layer;cudaLaunchKernel".to_owned()));
}

#[test]
fn a_graph_node_shows_only_one_of_its_stacks_on_request() {
    let shown =
        |graph_stacks| drawn(&FOLDED, &graph(), &GPU, &Options { graph: graph_stacks, ..Options::default() });
    let launch = "\
[device graph];[GPU_Kernel]gemm 4
main;serve;step;cudaGraphLaunch;[GPU_Graph] 5
main;serve;step;cudaGraphLaunch;[GPU_Kernel]gemm 105
main;serve;step;cudaGraphLaunch;[timestamp not collected];[GPU_Kernel]relu 0
";
    assert_eq!(shown(GraphStacks::Launch), launch);
    let capture = "\
[stack cut short];jit;cudaLaunchKernel;[graph];[GPU_Kernel]gemm 2
main;serve;capture;layer;cudaLaunchKernel;[graph];[GPU_Kernel]gemm 104
main;serve;step;cudaGraphLaunch;[GPU_Graph] 5
main;serve;step;cudaGraphLaunch;[graph];[graph made before recording];[GPU_Kernel]gemm 3
main;serve;step;cudaGraphLaunch;[graph];[graph node unknown];[timestamp not collected];[GPU_Kernel]relu 0
";
    assert_eq!(shown(GraphStacks::Capture), capture);
}

/// The root of an assembled stack comes from another stack, which may be complete.
#[test]
fn a_stack_assembled_from_two_gets_no_truncation_marker_at_its_root() {
    let mut sketch = Sketch::new();
    sketch.context(3, ContextFlags::TRUNCATED, &[]);
    let stack = [
        (ShownFrameKind::Python, "step"),
        (ShownFrameKind::Marker, "[backward]"),
        (ShownFrameKind::Code, "node"),
    ]
    .map(|(kind, name)| {
        let frame = ShownFrame::new(kind, sketch.profile.intern(name));
        sketch.profile.intern_shown(frame)
    });
    sketch.profile.set_shown(ContextId(3), stack);
    let profile = sketch.ran(3, GEMM, 1, 7).done();
    assert_eq!(folded(&profile, Unit::Nanos), "step;[backward];node;[GPU_Kernel]gemm 7\n");
    assert!(
        svg(&profile, &titled("t")).contains("step") && !svg(&profile, &titled("t")).contains("truncated")
    );
}

#[test]
fn missing_and_lost_work_is_in_the_folded_file() {
    let profile = Sketch::new()
        .context(2, 0, &["main", "cudaLaunchKernel"])
        .context(3, ContextFlags::TRUNCATED, &["deep", "cudaLaunchKernel"])
        .context(4, ContextFlags::CUT, &["jit", "cudaLaunchKernel"])
        .sample(SampleSite::Context(ContextId(2)), Leaf::PENDING, None, 3, 0)
        .sample(SampleSite::Context(ContextId(2)), Leaf::untimed(GEMM), Some(0), 2, 0)
        .sample(SampleSite::Missing(Missing::NoStack), Leaf::work(GEMM), Some(0), 1, 123)
        .sample(SampleSite::Missing(Missing::LaunchedBefore), Leaf::work(GEMM), Some(0), 1, 5)
        .ran(3, GEMM, 1, 7)
        .ran(4, GEMM, 1, 8)
        .ran(99, GEMM, 1, 9)
        .lost(Loss::ActivitiesDropped, 4)
        .lost(Loss::StacksGuessed, 6)
        .done();
    let nanos = "\
# lost: 4 activities_dropped
# lost: 6 stacks_guessed
[GPU activities dropped] 0
[launched before recording];[GPU_Kernel]gemm 5
[no launch stack];[GPU_Kernel]gemm 132
[stack cut short];jit;cudaLaunchKernel;[GPU_Kernel]gemm 8
[stack truncated];deep;cudaLaunchKernel;[GPU_Kernel]gemm 7
main;cudaLaunchKernel;[GPU_Launch_Pending] 0
main;cudaLaunchKernel;[timestamp not collected];[GPU_Kernel]gemm 0
";
    assert_eq!(folded(&profile, Unit::Nanos), nanos);
    let count = folded(&profile, Unit::Count);
    assert!(count.contains("[GPU activities dropped] 4\n"), "{count}");
    assert!(count.contains("[GPU_Launch_Pending] 3\n"), "{count}");
    assert!(count.contains("[timestamp not collected];[GPU_Kernel]gemm 2\n"), "{count}");
    assert!(count.contains("[no launch stack];[GPU_Kernel]gemm 2\n"), "{count}");
}

#[test]
fn microseconds_are_rounded_half_up_line_by_line() {
    let mut sketch = Sketch::new();
    for (i, nanos) in [0, 499, 500, 1499, 1500, u64::MAX].into_iter().enumerate() {
        let id = 2 + i as u32;
        sketch.context(id, 0, &[&format!("f{i}")]).ran(id, GEMM, 1, nanos);
    }
    let weights: Vec<_> = folded(&sketch.samples_only(), Unit::Micros)
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .collect();
    assert_eq!(weights, [0, 0, 1, 1, 2, 18_446_744_073_709_552]);
}

impl Sketch {
    /// Like [`Sketch::done`], but without the sums, which would overflow.
    fn samples_only(&mut self) -> Profile {
        let mut profile = self.profile.clone();
        profile.set_samples(&GPU, self.samples.clone());
        profile
    }
}

#[test]
fn with_several_gpus_the_leaf_says_which() {
    let mut sketch = Sketch::new();
    sketch.devices = vec![0, 1];
    let site = SampleSite::Context(ContextId(2));
    let profile = sketch
        .context(2, 0, &["main"])
        .ran(2, GEMM, 1, 10)
        .sample(site, Leaf::work(GEMM), Some(1), 1, 20)
        .sample(site, Leaf::work(Work::Copy(CopyKind::DTOH)), Some(1), 1, 30)
        .sample(site, Leaf::work(Work::Set), Some(1), 1, 40)
        .done();
    let expected = "\
main;[GPU0_Kernel]gemm 10
main;[GPU1_Kernel]gemm 20
main;[GPU1_Memcpy DtoH] 30
main;[GPU1_Memset] 40
";
    assert_eq!(folded(&profile, Unit::Nanos), expected);
}

/// Returns the total weight of each kernel, keyed by full name. `short` maps short names in the lines to full names.
fn sums<'a>(text: &'a str, short: &[(&'a str, &'a str)]) -> std::collections::BTreeMap<&'a str, u64> {
    let mut sums = std::collections::BTreeMap::new();
    for line in text.lines() {
        let (stack, nanos) = line.rsplit_once(' ').unwrap();
        let name = stack.rsplit_once(']').unwrap().1;
        let whole = short.iter().find(|(short, _)| *short == name).map_or(name, |(_, whole)| whole);
        *sums.entry(whole).or_default() += nanos.parse::<u64>().unwrap();
    }
    sums
}

#[test]
fn short_names_leave_sums_per_kernel_unchanged_even_across_gpus() {
    let mut sketch = Sketch::new();
    sketch.devices.push(1);
    let names = ["gemm<float>", "gemm<half>", "add<int>", "relu<int>"];
    for (id, text) in (11..).zip(names) {
        sketch.profile.push(&Row::Name { id: NameId(id), text });
    }
    sketch.context(1, 0, &["main", "a"]).context(2, 0, &["main", "b"]);
    let ran = [(1, 11, 0, 10), (1, 12, 1, 200), (2, 13, 0, 3000), (2, 13, 1, 40_000), (2, 14, 0, 500_000)];
    for (context, name, device, nanos) in ran {
        let site = SampleSite::Context(ContextId(context));
        sketch.sample(site, Leaf::work(Work::Kernel(NameId(name))), Some(device), 1, nanos);
    }
    let profile = sketch.done();
    let text = folded(&profile, Unit::Nanos);
    // The expected lines were computed by hand. Each of the GPUs has a kernel with the short name `gemm`, so this short
    // name is not unique. The profile also has a kernel whose full name is `relu`, but it is not in this picture.
    for line in ["main;a;[GPU0_Kernel]gemm<float> 10", "main;a;[GPU1_Kernel]gemm<half> 200"] {
        assert!(text.lines().any(|written| written == line), "{text}");
    }
    let expected = [("gemm<float>", 10), ("gemm<half>", 200), ("add<int>", 43_000), ("relu<int>", 500_000)];
    assert_eq!(sums(&text, &[("add", "add<int>"), ("relu", "relu<int>")]), expected.into());
    let whole = Options { unit: Unit::Nanos, whole_kernels: true, ..Options::default() };
    assert_eq!(sums(&drawn(&FOLDED, &profile, &GPU, &whole), &[]), expected.into());
}

#[test]
fn hostile_names_cannot_forge_frames_lines_or_weights() {
    let mut sketch = Sketch::new();
    sketch.profile.push(&Row::Name { id: NameId(3), text: "bad;kernel\n[GPU_Kernel]fake 77" });
    sketch.profile.push(&Row::Name { id: NameId(4), text: "" });
    let profile = sketch
        .context(2, 0, &["# comment", "a;b", "", "c\r\nd 5"])
        .ran(2, Work::Kernel(NameId(3)), 1, 10)
        .ran(2, Work::Kernel(NameId(4)), 1, 20)
        .ran(2, Work::Kernel(NameId(9)), 1, 30)
        .done();
    let expected = "\
_# comment;a\u{ff1b}b;?;c  d_5;[GPU_Kernel] 20
_# comment;a\u{ff1b}b;?;c  d_5;[GPU_Kernel][kernel without a name: 9] 30
_# comment;a\u{ff1b}b;?;c  d_5;[GPU_Kernel]bad\u{ff1b}kernel [GPU_Kernel]fake_77 10
";
    assert_eq!(folded(&profile, Unit::Nanos), expected);
}

#[test]
fn without_names_addresses_and_labels_are_shown() {
    let mut sketch = Sketch::new();
    sketch.profile.push(&Row::Label { id: LabelId(1), text: "cudaLaunchKernel" });
    let frames = [
        Frame::label(LabelId(1)),
        Frame::native(0x1235, ModuleEpoch(0)),
        Frame::label(LabelId(2)),
        Frame(9 << 60),
    ];
    let id = ContextId(2);
    sketch.profile.push(&Row::Context { id, thread: ThreadId(1), flags: ContextFlags(0), frames: &frames });
    let profile = sketch.ran(2, GEMM, 1, 10).done();
    let expected = "[frame of unknown kind: 9];[label lost];0x1234;cudaLaunchKernel;[GPU_Kernel]gemm 10\n";
    assert_eq!(folded(&profile, Unit::Nanos), expected);
}

#[test]
fn a_stack_of_a_million_frames_needs_no_deep_recursion() {
    let mut sketch = Sketch::new();
    let frames: Vec<_> = (0..1_000_000).map(|i| Frame::native(1 + i % 10, ModuleEpoch(0))).collect();
    let id = ContextId(2);
    sketch.profile.push(&Row::Context { id, thread: ThreadId(1), flags: ContextFlags(0), frames: &frames });
    let profile = sketch.ran(2, GEMM, 1, 10).done();
    assert_eq!(folded(&profile, Unit::Nanos).matches(';').count(), 1_000_000);
}

#[test]
fn an_empty_profile_gives_an_empty_folded_file_and_a_table_of_one_line() {
    assert_eq!(folded(&Profile::default(), Unit::Nanos), "");
    assert_eq!(csv(&Profile::default()).lines().count(), 1);
}

#[test]
fn the_table_has_a_row_for_each_work_and_device_and_for_each_loss() {
    let profile = Sketch::new()
        .stats(RELU, 0, 3, 10, 0)
        .stats(GEMM, 0, 2, 60, 0)
        .stats(GEMM, 1, 1, 20, 0)
        .stats(Work::Copy(CopyKind::HTOD), 0, 1, 10, 4096)
        .sample(SampleSite::Missing(Missing::NoStack), Leaf::work(GEMM), Some(0), 1, 20)
        .sample(SampleSite::Missing(Missing::NoStack), Leaf::untimed(GEMM), Some(0), 1, 0)
        .sample(SampleSite::Missing(Missing::NoStack), Leaf::PENDING, None, 2, 0)
        .ran(99, RELU, 1, 5)
        .lost(Loss::LaunchesDropped, 5)
        .done();
    let expected = "\
kind,name,device,count,total_ns,avg_ns,min_ns,max_ns,p50_ns,p95_ns,p99_ns,share_percent,bytes,symbol
kernel,gemm,0,2,60,30,1,9,4,8,9,60.0000,0,gemm
kernel,gemm,1,1,20,20,1,9,4,8,9,20.0000,0,gemm
copy,HtoD,0,1,10,10,1,9,4,8,9,10.0000,4096,
kernel,relu,0,3,10,3,1,9,4,8,9,10.0000,0,relu
missing,[no launch stack],,3,25,,,,,,,25.0000,,
missing,[timestamp not collected],,1,0,,,,,,,0.0000,,
missing,[GPU_Launch_Pending],,2,0,,,,,,,0.0000,,
lost,launches_dropped,,5,0,,,,,,,0.0000,,
";
    assert_eq!(csv(&profile), expected);
}

#[test]
fn a_table_keeps_hostile_names_on_one_line_and_in_one_field() {
    let mut sketch = Sketch::new();
    sketch.profile.push(&Row::Name { id: NameId(3), text: "a,b\"c\";d\ne" });
    let text = csv(&sketch.stats(Work::Kernel(NameId(3)), 0, 1, 10, 0).done());
    let row = text.lines().nth(1).unwrap();
    assert_eq!(row, "kernel,\"a,b\"\"c\"\";d e\",0,1,10,10,1,9,4,8,9,100.0000,0,\"a,b\"\"c\"\";d e\"");
}

fn picture() -> Profile {
    Sketch::new()
        .context(2, 0, &["main", "forward<a && b>", "cudaLaunchKernel"])
        .ran(2, GEMM, 1, 3_000)
        .ran(2, Work::Copy(CopyKind::HTOD), 1, 1_000)
        .ran(2, Work::Set, 1, 500)
        .sample(SampleSite::Missing(Missing::LaunchedBefore), Leaf::work(RELU), Some(0), 1, 500)
        .lost(Loss::ActivitiesDropped, 4)
        .done()
}

#[test]
fn the_picture_states_its_unit_and_the_missing_work() {
    let text = svg(&picture(), &titled("a < b"));
    assert!(text.contains("a &lt; b"), "the title is escaped");
    assert!(text.contains(
        "5.000 us of GPU time, 7 activities on 1 GPU, 1 [launched before recording], 4 activities dropped"
    ));
    assert!(text.contains("gemm [GPU_Kernel] (3.000 us, 60.00 %)"));
    assert!(text.contains("forward&lt;a &amp;&amp; b&gt;"), "names are escaped");
}

#[test]
fn the_same_profile_gives_the_same_picture() {
    let options = Options::default();
    assert_eq!(svg(&picture(), &options), svg(&picture(), &options));
}

#[test]
fn an_empty_picture_states_that_nothing_was_recorded() {
    let text = svg(&Profile::default(), &titled("a & b\0"));
    assert!(text.contains("No GPU activity was recorded.") && text.contains("a &amp; b<"), "{text}");
    let untimed = Sketch::new()
        .sample(SampleSite::Missing(Missing::NoStack), Leaf::untimed(GEMM), Some(0), 1, 0)
        .done();
    let text = svg(&untimed, &Options::default());
    assert!(text.contains("none has any width") && text.contains("1 [timestamp not collected]"), "{text}");
}

#[test]
fn narrow_frames_are_merged_and_the_total_stays_exact() {
    let mut sketch = Sketch::new();
    sketch.context(2, 0, &["main", "large"]).ran(2, GEMM, 1, 100_000_000);
    for i in 0..2000 {
        let id = 3 + i;
        sketch.context(id, 0, &["main", &format!("small{i}")]).ran(id, GEMM, 1, 100);
    }
    let text = svg(&sketch.done(), &Options::default());
    assert!(text.contains("all (100.200 ms, 100.00 %)"));
    // Each of the 2,000 narrow stacks has two frames that no other stack shares: its function and its kernel. All 4,000
    // frames are merged.
    assert!(text.contains("[4000 more frames, too small to show] (200.000 us"));
    assert!(text.contains("\"Matched of the frames shown:\"") && !text.contains("small7"));
}

#[test]
fn deep_stacks_without_common_frames_are_shown_up_to_the_maximum_number_of_frames() {
    let stacks = |count: u32, nanos: &dyn Fn(u32) -> u64| {
        let mut sketch = Sketch::new();
        for stack in 0..count {
            let names: Vec<_> = (0..60).map(|depth| format!("f{stack}_{depth}")).collect();
            let frames: Vec<_> = ["main"].into_iter().chain(names.iter().map(String::as_str)).collect();
            sketch.context(2 + stack, 0, &frames).ran(2 + stack, GEMM, 1, nanos(stack));
        }
        svg(&sketch.done(), &Options::default())
    };
    let count = |text: &str, what: &str| text.matches(what).count();
    // There are 60 stacks with 61 frames each, and the frame `main`, which they share.
    let all = stacks(60, &|_| 1000);
    assert_eq!((count(&all, "<title>"), count(&all, "more frame")), (2 + 3660, 0));
    assert!(all.contains("\"Matched:\""));
    // The 600 stacks have equal weights. Six frames of each stack are shown. Together with `main`, 3,601 frames are
    // shown, which is within the limit of 3,700.
    let equal = stacks(600, &|_| 1000);
    assert_eq!(count(&equal, "<title>[55 more frames, too small to show] (1.000 us, 0.17 %)"), 600);
    assert_eq!(count(&equal, "<title>"), 2 + 600 * 7);
    assert!(equal.contains("<title>f7_5 (1.000 us, 0.17 %)") && !equal.contains("f7_6 "));
    // There are 100 stacks. The 50 heavier stacks are shown completely. Twelve frames of each lighter stack are shown.
    let unequal = stacks(100, &|stack| 1000 + u64::from(stack % 2));
    assert_eq!(count(&unequal, "<title>[49 more frames, too small to show] (1.000 us"), 50);
    assert!(unequal.contains("f7_59") && !unequal.contains("f8_12") && unequal.contains("f8_11"));
    assert!(unequal.contains("all (100.050 us, 100.00 %)"));
}

fn activity_table(rows: &[Row<'_>]) -> Vec<String> {
    let mut table = ActivityTable::new(Vec::new(), |name| name.to_uppercase()).unwrap();
    let mut join = Join::default();
    for row in rows {
        table.row(row);
        join.push(row, &mut table);
    }
    join.final_tally(&mut table);
    let text = String::from_utf8(table.finish().unwrap()).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn every_activity_has_a_row_with_all_its_ids() {
    let lines = activity_table(&[
        Row::Name { id: NameId(1), text: "gemm" },
        Row::Launch(launch(5, 11)),
        Row::Launch(launch(6, 0)),
        Row::Launch(launch(7, 12)),
        Row::Activity(kernel(5, 100, 110)),
        Row::Activity(named(2, kernel(6, 120, 0))),
        Row::Activity(copy(5, CopyKind::HTOD, 64, 130, 131)),
        Row::Activity(set(3, 32, 140, 145)),
    ]);
    let expected = [
        "kernel,GEMM,5,0,1,7,,100,110,10,0,0,0,4,1,1,32,1,1,16,0,0,,,,,,,,11,50,5,,",
        "kernel,,6,0,1,7,,120,0,,0,0,0,4,1,1,32,1,1,16,0,0,,,,,,,,,60,5,,no_launch_stack timestamp_not_collected",
        "copy,HtoD,5,0,1,7,,130,131,1,64,0,0,,,,,,,,,,pageable,device,,,,1,1,11,50,5,,",
        "set,memset,3,0,1,7,,140,145,5,32,0,0,,,,,,,,,,,device,,,0,0,,,,,,launched_before_recording",
    ];
    assert_eq!(lines[1..], expected, "a launch without an activity has no row");
}

#[test]
fn activities_launched_outside_of_a_window_are_not_in_the_table() {
    let lines = activity_table(&[Row::Launch(launch(5, 1)), Row::Activity(kernel(5, 100, 110))]);
    assert_eq!(lines.len(), 1);
}

/// A simulated disk. The value is the number of free bytes.
struct Disk(usize);

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_io_error() {
    let profile = picture();
    for room in [0, 10, 100] {
        assert!(FOLDED.draw(&profile, &GPU, &Options::default(), &mut Disk(room)).is_err());
        assert!(SVG.draw(&profile, &GPU, &Options::default(), &mut Disk(room)).is_err());
        assert!(write_csv(&profile, &mut Disk(room)).is_err());
        let mut table = ActivityTable::new(Disk(room), str::to_owned).unwrap();
        let mut join = Join::default();
        (0..10_000).for_each(|id| join.push_activity(&kernel(id, 1, 2), &mut table));
        join.final_tally(&mut table);
        assert_eq!(table.finish().err().map(|error| error.kind()), Some(ErrorKind::Io));
    }
}

#[test]
#[ignore = "draws a picture to look at: cargo test -p gpuflame-export --lib visual_inspection -- --ignored --nocapture"]
fn a_picture_for_visual_inspection() {
    let mut sketch = Sketch::new();
    let (mut rng, mut id) = (Rng::new(7), 2);
    for layer in ["attention", "mlp", "rmsnorm", "softmax"] {
        for call in 0..6 {
            let call = format!("{layer}_step{call}");
            let work = if call.ends_with('1') { RELU } else { GEMM };
            sketch.context(id, 0, &["main", "decode", "forward", layer, &call, "cudaLaunchKernel"]);
            sketch.ran(id, work, 10, 1_000_000 + rng.below(9_000_000));
            id += 1;
        }
    }
    sketch.context(id, 0, &["main", "load", "cudaMemcpyAsync"]);
    sketch.ran(id, Work::Copy(CopyKind::HTOD), 3, 20_000_000).ran(id, Work::Set, 3, 8_000_000);
    sketch.context(id + 1, ContextFlags::TRUNCATED, &["deep<&T, \"x\">", "cudaLaunchKernel"]);
    sketch.ran(id + 1, GEMM, 1, 6_000_000);
    sketch.sample(SampleSite::Missing(Missing::LaunchedBefore), Leaf::work(GEMM), Some(0), 2, 7_000_000);
    let path = std::env::temp_dir().join("gpuflame-picture.svg");
    let text = svg(&sketch.lost(Loss::ActivitiesDropped, 3).done(), &Options::default());
    std::fs::write(&path, text).unwrap();
    eprintln!("{}", path.display());
}

/// Returns a profile of two GPUs, in which the second GPU waited for the first GPU.
fn idle() -> Profile {
    let mut sketch = Sketch::new();
    sketch.devices = vec![0, 1];
    let mut profile = sketch.context(2, 0, &["main", "load_batch", "cudaMemcpyAsync"]).done();
    let time = |device, idle, late_count| DeviceTime {
        device: DeviceId(device),
        window: 10_000_000,
        busy: 10_000_000 - idle,
        idle,
        late: 7 * late_count,
        late_count,
        early: 0,
        early_count: 0,
        first: Nanos(1),
        last: Nanos(2),
        start_up: BusyIdle::default(),
        shutdown: BusyIdle::default(),
    };
    let of = |device, root_mark, site, frame, gaps, nanos| {
        let (device, values) = (Some(DeviceId(device)), [nanos, gaps, 0, 0]);
        Sample { root_mark, device, values, ..Sample::new(site, Leaf::new(&[frame])) }
    };
    let (site, outside) = (SampleSite::Context(ContextId(2)), SampleSite::Missing(Missing::Outside));
    let (opening, closing) = (Some(RootMark::Opening), Some(RootMark::Closing));
    let samples = vec![
        of(0, None, site, LeafFrame::Idle(Cause::HostLate), 3, 4_000_000),
        of(0, None, outside, LeafFrame::Idle(Cause::Dependency), 1, 30),
        of(0, closing, SampleSite::NoStack, LeafFrame::IdleUntilClose, 1, 500),
        of(1, opening, site, LeafFrame::Idle(Cause::HostLate), 1, 2_000_000),
        of(1, None, site, LeafFrame::Idle(Cause::LaunchLatency), 2, 9_000),
        of(1, closing, SampleSite::NoStack, LeafFrame::IdleUntilClose, 1, 20),
    ];
    profile.set_samples(&IDLE, samples);
    profile.set_times(vec![time(0, 4_000_530, 0), time(1, 2_009_020, 3)], Vec::new());
    profile
}

#[test]
fn folded_idle_time_has_at_most_the_wanted_frames_and_keeps_its_sum() {
    let mut sketch = Sketch::new();
    let mut idle = Vec::new();
    for id in 1..=300 {
        let names: Vec<String> = (0..50).map(|depth| format!("f{id}_{depth}")).collect();
        let names: Vec<&str> = ["main"].into_iter().chain(names.iter().map(String::as_str)).collect();
        sketch.context(id, 0, &names);
        let leaf = Leaf::new(&[LeafFrame::Idle(Cause::HostLate)]);
        let values = [u64::from(id), 1, 0, 0];
        let site = SampleSite::Context(ContextId(id));
        idle.push(Sample { device: Some(DeviceId(0)), values, ..Sample::new(site, leaf) });
    }
    sketch.profile.set_samples(&IDLE, idle);
    let draw = |max_idle_frames| {
        let options = Options { max_idle_frames, ..Options::default() };
        drawn(&FOLDED, &sketch.profile, &IDLE, &options)
    };
    let (all, bounded) = (draw(None), draw(Some(1_000)));
    let sum = |text: &str| {
        let weights =
            text.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').unwrap().1);
        weights.map(|weight| weight.parse::<u64>().unwrap()).sum::<u64>()
    };
    // The sum of all weights is 1 + 2 + ... + 300.
    assert_eq!([sum(&all), sum(&bounded)], [45_150; 2]);
    assert!(all.contains("f1_49") && !bounded.contains("f1_0") && bounded.contains("f300_49"), "{bounded}");
    assert!(bounded.len() < all.len() / 8, "{} of {} bytes", bounded.len(), all.len());
}

#[test]
fn idle_time_is_under_the_stack_that_ended_it() {
    let expected = "\
# GPU 0: window 10000000 ns = busy 5999470 ns + idle 4000530 ns; late 0 ns
# GPU 1: window 10000000 ns = busy 7990980 ns + idle 2009020 ns; late 21 ns
[launched outside the window];[GPU0_Idle dependency or sync] 30
[since the window opened];main;load_batch;cudaMemcpyAsync;[GPU1_Idle host late] 2000000
[until the window closed];[GPU0_Idle] 500
[until the window closed];[GPU1_Idle] 20
main;load_batch;cudaMemcpyAsync;[GPU0_Idle host late] 4000000
main;load_batch;cudaMemcpyAsync;[GPU1_Idle launch latency] 9000
";
    assert_eq!(drawn(&FOLDED, &idle(), &IDLE, &Options::default()), expected);
    let gaps = Options { unit: Unit::Count, ..Options::default() };
    assert!(drawn(&FOLDED, &idle(), &IDLE, &gaps).contains("cudaMemcpyAsync;[GPU0_Idle host late] 3\n"));
}

#[test]
fn the_idle_picture_states_duration_and_causes() {
    let text = drawn(&SVG, &idle(), &IDLE, &Options::default());
    let expected = "6.010 ms idle of 20.000 ms on 2 GPUs, 66.6 % host late, 0.1 % launch latency, 0.0 % dependency \
                    or sync, 33.3 % before the first work, 0.0 % after the last, 3 activities came too late to \
                    count as busy";
    assert!(text.contains(expected), "{text}");
    let text = drawn(&SVG, &Sketch::new().done(), &IDLE, &Options::default());
    assert!(text.contains("No GPU activity was recorded."));
}

#[test]
fn truncated_stacks_of_graph_nodes_are_composed_identically_in_all_formats() {
    let node = |launch, made| SampleSite::Node {
        launch: Ok(ContextId(launch)),
        created: Created::Context(ContextId(made)),
    };
    let profile = Sketch::new()
        .context(2, ContextFlags::CUT, &["serve", "step", "cudaGraphLaunch"])
        .context(3, ContextFlags::CUT, &["serve", "capture", "cudaLaunchKernel"])
        .context(4, 0, &["serve", "capture", "cudaLaunchKernel"])
        .sample(node(2, 3), Leaf::work(GEMM), Some(0), 1, 1)
        .sample(node(2, 4), Leaf::work(GEMM), Some(0), 1, 2)
        .sample(node(4, 3), Leaf::work(GEMM), Some(0), 1, 3)
        .sample(node(2, 99), Leaf::work(GEMM), Some(0), 1, 4)
        .done();
    // Two truncated stacks may begin at the same frame. It is unknown which frames a truncated stack and a complete
    // stack share.
    let both = "\
[stack cut short];serve;step;cudaGraphLaunch;[graph];[graph node unknown];[GPU_Kernel]gemm 4
[stack cut short];serve;step;cudaGraphLaunch;[graph];capture;cudaLaunchKernel;[GPU_Kernel]gemm 1
[stack cut short];serve;step;cudaGraphLaunch;[graph];serve;capture;cudaLaunchKernel;[GPU_Kernel]gemm 2
serve;capture;cudaLaunchKernel;[graph];[stack cut short];serve;capture;cudaLaunchKernel;[GPU_Kernel]gemm 3
";
    assert_eq!(folded(&profile, Unit::Nanos), both);
    let mut names: Vec<_> = profile
        .samples(&GPU)
        .iter()
        .map(|s| format!("{};[GPU_Kernel]gemm {}\n", stack_names(&profile, s.site).join(";"), s.amount()))
        .collect();
    names.sort();
    assert_eq!(names.concat(), both, "tables and pictures agree");
    let capture = Options { graph: GraphStacks::Capture, ..Options::default() };
    let lost =
        "[stack cut short];serve;step;cudaGraphLaunch;[graph];[graph node unknown];[GPU_Kernel]gemm 4\n";
    assert!(
        drawn(&FOLDED, &profile, &GPU, &capture).contains(lost),
        "if the capture is unknown, the launch and the reason are shown"
    );
}
