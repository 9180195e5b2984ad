//! Tests `Profile` with rows that are written by hand.

use super::*;
use crate::record::ModuleEpoch;

fn context(profile: &mut Profile, id: u32, frames: &[Frame]) {
    let row = Row::Context { id: ContextId(id), thread: ThreadId(9), flags: ContextFlags(0), frames };
    profile.push(&row);
}

fn frame(address: u64) -> Frame {
    Frame::native(address, ModuleEpoch(0))
}

fn frames_of(profile: &Profile, id: u32) -> Vec<Frame> {
    let stack = profile.context(ContextId(id)).unwrap().stack;
    profile.stack(stack).map(|frame| profile.frames()[frame.index()]).collect()
}

#[test]
fn a_stack_is_returned_as_it_was_pushed() {
    let mut profile = Profile::default();
    let stack = [Frame::label(LabelId(1)), frame(0x30), frame(0x20), frame(0x10)];
    context(&mut profile, 2, &stack);
    context(&mut profile, 3, &stack[1..]);
    context(&mut profile, 4, &[]);
    assert_eq!(frames_of(&profile, 2), stack);
    assert_eq!(frames_of(&profile, 3), stack[1..]);
    assert_eq!(frames_of(&profile, 4), []);
    assert_eq!(profile.contexts(), [2, 3, 4].map(ContextId));
}

#[test]
fn the_first_row_for_an_id_counts() {
    let mut profile = Profile::default();
    context(&mut profile, 2, &[frame(1)]);
    context(&mut profile, 2, &[frame(2)]);
    profile.push(&Row::Label { id: LabelId(5), text: "one" });
    profile.push(&Row::Label { id: LabelId(5), text: "two" });
    assert_eq!(frames_of(&profile, 2), [frame(1)]);
    assert_eq!(profile.label(LabelId(5)), Some("one"));
}

#[test]
fn losses_are_summed_per_kind_and_zero_kinds_are_omitted() {
    let mut profile = Profile::default();
    for (loss, count) in [(Loss::StacksCut, 2), (Loss::LaunchesDropped, 0), (Loss::StacksCut, 3)] {
        profile.push(&Row::Loss { loss, count });
    }
    assert_eq!(profile.losses().collect::<Vec<_>>(), [(Loss::StacksCut, 5)]);
}

#[test]
fn a_kernel_has_its_demangled_name_once_set() {
    let mut profile = Profile::default();
    assert_eq!(profile.kernel(NameId(1)), None);
    profile.push(&Row::Name { id: NameId(1), text: "_Z4gemmv" });
    assert_eq!(profile.kernel(NameId(1)), Some("_Z4gemmv"));
    let text = profile.intern("gemm");
    profile.set_shown_kernel(NameId(1), text);
    assert_eq!(profile.kernel(NameId(1)), Some("gemm"));
}

#[test]
fn a_context_costs_far_less_than_its_frames() {
    let mut profile = Profile::default();
    let mut stack: Vec<_> = (0..30).map(|i| frame(0x1000 + i)).collect();
    for id in 0..100_000_u32 {
        // The test's stacks have 10,000 distinct call sites. Each call site occurs in stacks with ten different
        // callers.
        stack[0] = frame(0x100_0000 + u64::from(id % 10_000));
        stack[1] = frame(0x200_0000 + u64::from(id / 10_000));
        context(&mut profile, id + 2, &stack);
    }
    let each = profile.heap_bytes() / 100_000;
    assert!(each < 128, "{each} bytes per context");
}

#[test]
fn a_thread_whose_first_stack_is_still_to_come_keeps_its_name() {
    let mut profile = Profile::default();
    let name = |profile: &mut Profile, id: u32| {
        profile.push(&Row::Thread { id: ThreadId(id), name: &format!("worker {id}") });
    };
    (1..=1_000).for_each(|id| name(&mut profile, id));
    context(&mut profile, 7, &[frame(0x1000)]);
    let named = profile.thread_count();
    assert_eq!(profile.keep_threads() + profile.thread_count(), named);
    assert_eq!(profile.thread(ThreadId(1_000)), Some("worker 1000"));
    assert_eq!(profile.thread(ThreadId(2)), None);
    // After 256 further threads were named, thread 1,000 no longer counts as recently named, and its name is dropped.
    (1_001..=2_000).for_each(|id| name(&mut profile, id));
    profile.keep_threads();
    assert_eq!(profile.thread(ThreadId(1_000)), None);
}
