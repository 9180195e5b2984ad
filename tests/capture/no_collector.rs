//! If there is no collector thread, a launch is recorded if there is room in the launching thread's chunks of memory.
//! If the chunks are full, launches are counted but not recorded. When the chunks have been read, launches are recorded
//! again.
//!
//! The process contains only this test, because all tests in a process would share the chunks.

#[path = "../support/api_call.rs"]
mod api_call;

use api_call::launch;
use gpuflame_model::record::{Loss, Row};
use gpuflame_recorder::capture;
use gpuflame_recorder::control::window;

fn lost(kind: Loss) -> u64 {
    capture::losses().filter(|(loss, _)| *loss == kind).map(|(_, count)| count).sum()
}

/// Reads and returns the ids of all launches that have not been read before.
fn read() -> Vec<u32> {
    let mut ids = Vec::new();
    while capture::drain(|row| {
        if let Row::Launch(launch) = row {
            ids.push(launch.correlation.0);
        }
    }) {}
    ids
}

#[test]
fn launches_without_buffer_space_are_counted_and_later_ones_recorded() {
    gpuflame_unwind::prepare();
    // No chunk has been prepared yet, so the first launch can only be counted.
    window::open();
    launch(1);
    assert_eq!((lost(Loss::LaunchesDropped), read().len()), (1, 0));

    capture::refill_chunks();
    const MANY: u32 = 1_500_000;
    (0..MANY).for_each(|id| launch(10 + id));
    let dropped = lost(Loss::LaunchesDropped) - 1;
    assert!(dropped > 0, "more than 32 MiB of launches found room");
    let kept = read();
    assert_eq!(kept.len() as u64 + dropped, u64::from(MANY));
    let first: Vec<_> = (10..10 + kept.len() as u32).collect();
    assert!(kept == first, "what found room are the first, in order");

    launch(7);
    assert_eq!(read(), [7]);
    assert_eq!(lost(Loss::LaunchesDropped), dropped + 1);

    // A chunk has room for about 2,700 launches.
    const EACH: usize = 3_000;
    (0..EACH as u32).for_each(launch);
    let middle = capture::now();
    (0..2 * EACH as u32).for_each(launch);
    let mut before = 0;
    while capture::drain_before(middle, |row| before += usize::from(matches!(row, Row::Launch(_)))) {}
    assert!(
        (EACH..3 * EACH).contains(&before),
        "{before} launches were read, of which {EACH} were asked for"
    );
    assert_eq!(before + read().len(), 3 * EACH);
}
