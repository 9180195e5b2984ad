//! Compares two records of the launches of a process, launch by launch. The probes saw the launches from outside the
//! process ("outside"), and the library recorded them in the process ("inside").

use std::collections::BTreeMap;

use crate::address_spaces::{FileLocation, Files};
use crate::probed_launches::{Launch, ProbedLaunches};
use crate::recorded_launches::{LaunchId, RecordedLaunch, RecordedLaunches};

/// Result of comparing the two stacks of a launch: the stack seen from outside, and the stack recorded inside. The
/// comparison begins at the function that called the launch function, and continues towards the root of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StackComparison {
    /// Both stacks have the same frames, from the function that called the launch function up to `main` or the thread's
    /// function.
    Same,
    /// The outside stack ends too early, because a frame pointer did not lead to the next frame. All frames of the
    /// outside stack are also in the inside stack.
    EndsEarly,
    /// The outside stack lacks the frames of functions that do not set up a frame pointer. The frames of the outside
    /// stack that point to code are also in the inside stack, in the same order.
    SkipsFrames,
    /// The library could not capture the complete inside stack, and has marked it as truncated.
    TruncatedInside,
    /// The outside stack contains addresses that do not point to code, because a frame pointer led to other data. The
    /// frames of the outside stack that point to code are also in the inside stack, in the same order.
    NonCodeAddress,
    /// The two stacks belong to different calls.
    Differ,
}

impl StackComparison {
    pub(crate) const ALL: [Self; 6] = [
        Self::Same,
        Self::EndsEarly,
        Self::SkipsFrames,
        Self::TruncatedInside,
        Self::NonCodeAddress,
        Self::Differ,
    ];

    /// Whether the result allows that the two stacks belong to the same call.
    pub(crate) fn is_consistent(self) -> bool {
        self != Self::Differ
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Same => "the same from main to call",
            Self::EndsEarly => "the same, but frame pointers end early",
            Self::SkipsFrames => "the same, but frame pointers skip frames",
            Self::TruncatedInside => "the same, but marked as truncated inside",
            Self::NonCodeAddress => "the same caller, then no frame pointers",
            Self::Differ => "different",
        }
    }
}

/// Result of comparing all launches that were seen outside with all launches that were recorded inside.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaunchComparison {
    /// Number of launches that were seen outside or recorded inside. If a launch was both seen outside and recorded
    /// inside, it counts once. Launches without an id that were seen outside are counted too.
    pub(crate) launches: u64,
    /// Number of launches that the probes saw from outside.
    pub(crate) probe: u64,
    /// Number of launches that the library recorded inside.
    pub(crate) inside: u64,
    /// Number of launches for which the probes and the library agree: same thread, same position among the thread's
    /// launches, and consistent stacks.
    pub(crate) agree: u64,
    /// Number of launches that have a correlation id and that only the probes saw.
    pub(crate) probe_only: u64,
    /// Number of launches that have no correlation id; only the probes can see these launches.
    pub(crate) without_id: u64,
    /// Number of launches that only the library recorded.
    pub(crate) inside_only: u64,
    /// Number of launches for which the probes and the library have different threads.
    pub(crate) other_thread: u64,
    /// Number of launches for which the probes and the library have different positions among the launches of their
    /// thread.
    pub(crate) other_order: u64,
    pub(crate) stacks: BTreeMap<StackComparison, u64>,
    /// For each launch that was both seen outside and recorded inside, the library's time minus the probe's time in ns.
    /// This list of delays is sorted.
    pub(crate) delays_ns: Vec<i64>,
    /// Id of one launch whose two stacks differ, which is shown as an example.
    pub(crate) example: Option<LaunchId>,
}

impl LaunchComparison {
    /// Whether the launches seen outside and the launches recorded inside are the same. Up to `explained` launches may
    /// be missing in the library's record. `explained` is the number of launches that the library counted as lost, or
    /// as made while no window was open.
    pub(crate) fn accounts_agree(&self, explained: u64) -> bool {
        let alone = self.probe_only + self.without_id;
        self.agree + alone == self.launches && alone <= explained && self.inside_only == 0
    }
}

/// Compares the launches seen outside with the launches recorded inside. `ahead` is `CLOCK_REALTIME` minus
/// `CLOCK_MONOTONIC`, in ns.
pub(crate) fn compare(probed: &ProbedLaunches, inside: &RecordedLaunches, ahead: i64) -> LaunchComparison {
    let mut verdict =
        LaunchComparison { inside: inside.launches.len() as u64, ..LaunchComparison::default() };
    let outermost: Vec<&Launch> = probed.launches.iter().filter(|launch| !launch.nested).collect();
    verdict.probe = outermost.len() as u64;
    let with_id: BTreeMap<LaunchId, &Launch> =
        outermost.iter().filter_map(|launch| Some(((launch.pid, launch.correlation?), *launch))).collect();
    verdict.without_id = outermost.iter().filter(|launch| launch.correlation.is_none()).count() as u64;
    let out_of_order = find_out_of_order(&with_id, inside);
    for (id, launch) in &with_id {
        let Some(recorded) = inside.launches.get(id) else {
            verdict.probe_only += 1;
            continue;
        };
        let outer = probed.stacks.get(launch.stack);
        let stacks = compare_stacks(outer, recorded, &probed.files);
        *verdict.stacks.entry(stacks).or_default() += 1;
        if !stacks.is_consistent() && verdict.example.is_none() {
            verdict.example = Some(*id);
        }
        let same_thread = launch.tid == recorded.tid;
        let in_order = !out_of_order.contains(id);
        verdict.other_thread += u64::from(!same_thread);
        verdict.other_order += u64::from(!in_order);
        verdict.agree += u64::from(stacks.is_consistent() && same_thread && in_order);
        verdict.delays_ns.push(recorded.time as i64 - (launch.time as i64 + ahead));
    }
    verdict.inside_only = inside.launches.keys().filter(|id| !with_id.contains_key(id)).count() as u64;
    verdict.launches = verdict.probe + verdict.inside_only;
    verdict.delays_ns.sort_unstable();
    verdict
}

/// Sorts the launches of each thread in two ways: by the times from the probes, and by the times from the library.
/// Returns the launches whose position in one of these two orders differs from their position in the other order.
fn find_out_of_order(
    outer: &BTreeMap<LaunchId, &Launch>,
    inside: &RecordedLaunches,
) -> std::collections::HashSet<LaunchId> {
    type Times = (u64, u64, LaunchId);
    let mut threads: BTreeMap<(u32, u32), Vec<Times>> = BTreeMap::new();
    for (id, launch) in outer {
        if let Some(recorded) = inside.launches.get(id) {
            threads.entry((id.0, launch.tid)).or_default().push((launch.time, recorded.time, *id));
        }
    }
    let mut wrong = std::collections::HashSet::new();
    for mut launches in threads.into_values() {
        launches.sort_unstable_by_key(|(probe, ..)| *probe);
        let mut by_inside = launches.clone();
        // The sort is stable, so launches with equal times in the library's record stay in the order in which the
        // probes saw them.
        by_inside.sort_by_key(|(_, inside, _)| *inside);
        let both = launches.iter().zip(&by_inside);
        wrong.extend(both.filter(|(one, other)| one.2 != other.2).map(|(one, _)| one.2));
    }
    wrong
}

/// Compares the two stacks of one launch. In the outside stack, the first frame is the probed function, and the second
/// frame is the function that called it. The second frame is always right, because the call instruction has pushed its
/// return address onto the stack.
pub(crate) fn compare_stacks(
    outer: &[FileLocation],
    recorded: &RecordedLaunch,
    files: &Files,
) -> StackComparison {
    let user: Vec<FileLocation> =
        outer.iter().filter(|place| place.file != FileLocation::KERNEL).skip(1).copied().collect();
    let inner = &recorded.stack;
    let Some(caller) = user.first() else { return StackComparison::EndsEarly };
    // If the library could not omit CUDA's own frames, these frames are between the leaf and the calling function.
    let Some(at) = inner.iter().position(|place| place == caller) else { return StackComparison::Differ };
    if !inner[..at].iter().all(|place| is_cuda(*place, files)) {
        return StackComparison::Differ;
    }
    let inner = &inner[at..];
    let own = without_libc_frames(inner, files);
    if recorded.is_complete && user.starts_with(own) && is_below_main(&user[own.len()..], files) {
        return StackComparison::Same;
    }
    let are_in_order = |places: &[FileLocation]| {
        let mut left = inner.iter();
        places.iter().all(|place| left.any(|other| other == place))
    };
    let code: Vec<FileLocation> =
        user.iter().filter(|place| place.file != FileLocation::UNKNOWN).copied().collect();
    if inner.starts_with(&user) {
        StackComparison::EndsEarly
    } else if are_in_order(&user) {
        StackComparison::SkipsFrames
    } else if !recorded.is_complete && user.starts_with(inner) {
        StackComparison::TruncatedInside
    } else if are_in_order(&code) {
        StackComparison::NonCodeAddress
    } else {
        StackComparison::Differ
    }
}

/// Whether the given frames at the root of an outside stack may be frames below `main`. The frames below `main` begin
/// with frames of the C library. Any frames may follow the C library's frames, because wrong frame pointers may have
/// led to unrelated data.
fn is_below_main(places: &[FileLocation], files: &Files) -> bool {
    places.first().is_none_or(|place| place.file == FileLocation::UNKNOWN || is_libc(*place, files))
}

/// Returns a stack without the C library's frames below `main` or below a thread's function. The omitted frames belong
/// to functions that do not use frame pointers.
fn without_libc_frames<'a>(stack: &'a [FileLocation], files: &Files) -> &'a [FileLocation] {
    let is_libc = |place: &FileLocation| is_libc(*place, files);
    let below = match stack {
        // The frame `_start` belongs to the program, and no function calls `_start`.
        [above @ .., last, _start] if is_libc(last) && !is_libc(_start) => &stack[..above.len() + 1],
        _ => stack,
    };
    let end = below.iter().rposition(|place| !is_libc(place)).map_or(0, |at| at + 1);
    &below[..end]
}

fn is_libc(place: FileLocation, files: &Files) -> bool {
    let name = files.get(place.file).and_then(|file| file.path.file_name()).unwrap_or_default();
    let name = name.to_string_lossy();
    ["libc.so", "libc-", "libpthread", "ld-"].iter().any(|it| name.starts_with(it))
}

fn is_cuda(place: FileLocation, files: &Files) -> bool {
    files.get(place.file).is_none_or(|file| file.api.contains(place.offset))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    fn place(offset: u64) -> FileLocation {
        FileLocation { file: 0, offset }
    }

    fn verdict(outer: &[u64], inner: &[u64], is_complete: bool) -> StackComparison {
        let files = Files::with_unopened("/bin/app");
        let outer: Vec<FileLocation> =
            std::iter::once(place(1)).chain(outer.iter().copied().map(place)).collect();
        let stack = Rc::new(inner.iter().copied().map(place).collect());
        let recorded = RecordedLaunch { time: 0, tid: 0, stack, is_complete, work: None };
        compare_stacks(&outer, &recorded, &files)
    }

    #[test]
    fn stack_verdicts_distinguish_the_losses_of_frame_pointer_walks() {
        assert_eq!(verdict(&[10, 20, 30], &[10, 20, 30], true), StackComparison::Same);
        assert_eq!(verdict(&[10, 20], &[10, 20, 30], true), StackComparison::EndsEarly);
        assert_eq!(verdict(&[10, 30], &[10, 20, 30], true), StackComparison::SkipsFrames);
        assert_eq!(verdict(&[10, 20, 30], &[10, 20], false), StackComparison::TruncatedInside);
        assert_eq!(verdict(&[10, 20, 30], &[10, 20], true), StackComparison::Differ);
    }

    #[test]
    fn frames_of_the_c_library_below_main_are_ignored() {
        let mut files = Files::with_unopened("/bin/app");
        files.add_unopened("/lib/libc.so.6");
        let libc = |offset| FileLocation { file: 1, offset };
        let recorded = RecordedLaunch {
            time: 0,
            tid: 0,
            stack: Rc::new(vec![place(10), libc(5), place(20), libc(7), libc(8), place(30)]),
            is_complete: true,
            work: None,
        };
        let astray = FileLocation { file: FileLocation::UNKNOWN, offset: 1 };
        let outer = [place(1), place(10), libc(5), place(20), libc(7), astray];
        assert_eq!(compare_stacks(&outer, &recorded, &files), StackComparison::Same);
        assert_eq!(compare_stacks(&outer[..3], &recorded, &files), StackComparison::EndsEarly);
    }

    #[test]
    fn a_different_caller_or_root_makes_a_different_stack() {
        assert_eq!(verdict(&[10, 20], &[11, 20], true), StackComparison::Differ);
        assert_eq!(verdict(&[10, 20, 30], &[10, 20, 31], true), StackComparison::Differ);
        assert_eq!(verdict(&[10, 30, 20], &[10, 20, 30], true), StackComparison::Differ);
    }
}
