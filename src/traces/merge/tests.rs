use super::*;
use gpuflame_model::record::testing::Rng;

/// Returns the least cost of all assignments that preserve the order of the points, computed by dynamic programming.
fn least_cost(ours: &[i64], theirs: &[i64], limit: u64) -> u64 {
    let mut row = vec![0_u64; theirs.len() + 1];
    for (count, &our) in (1..).zip(ours) {
        let mut next = vec![count * limit; theirs.len() + 1];
        for (at, &their) in theirs.iter().enumerate() {
            let pair = row[at] + our.abs_diff(their);
            next[at + 1] = pair.min(next[at]).min(row[at + 1] + limit);
        }
        row = next;
    }
    row[theirs.len()]
}

fn cost(ours: &[i64], theirs: &[i64], limit: u64, pairs: &[(usize, usize)]) -> u64 {
    let paired: u64 = pairs.iter().map(|&(our, their)| ours[our].abs_diff(theirs[their])).sum();
    paired + (ours.len() - pairs.len()) as u64 * limit
}

#[test]
fn the_assignment_has_the_least_cost_of_all_assignments() {
    for seed in 0..3000 {
        let mut rng = Rng::new(seed);
        let mut points = |most: u64, range: u64| {
            let mut points: Vec<i64> = (0..rng.below(most)).map(|_| rng.below(range) as i64).collect();
            points.sort_unstable();
            points
        };
        let (ours, theirs) = (points(14, 60), points(14, 60));
        let limit = 1 + seed % 40;
        let pairs = assign(&ours, &theirs, limit);
        assert!(
            pairs.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 < two[1].1),
            "one to one, in order"
        );
        assert!(pairs.iter().all(|&(our, their)| ours[our].abs_diff(theirs[their]) < limit));
        let expected = least_cost(&ours, &theirs, limit);
        assert_eq!(cost(&ours, &theirs, limit, &pairs), expected, "{ours:?} {theirs:?} within {limit}");
    }
}

#[test]
fn the_best_assignment_need_not_pair_nearest_points() {
    // The point 11 is nearest to both 10 and 12, but it can be paired with only one of them.
    assert_eq!(assign(&[10, 12], &[0, 11, 13], 100), [(0, 1), (1, 2)]);
    // In this case, no point has a partner within the limit.
    assert_eq!(assign(&[0], &[10], 10), []);
    assert_eq!(assign(&[0, 10, 20], &[], 10), []);
}

fn stack(time: i64, thread: i64, correlation: Option<u64>) -> Stack {
    Stack { time, process: 1, thread, correlation, frames: 0 }
}

fn launch(time: i64, thread: i64, correlation: u64) -> Launch {
    Launch { time, process: Some(1), thread: Some(thread), correlation }
}

fn found(pairs: &[Option<(usize, Method)>]) -> Vec<Option<usize>> {
    pairs.iter().map(|pair| pair.map(|(at, _)| at)).collect()
}

#[test]
fn threads_are_matched_separately_even_if_their_times_interleave() {
    let stacks = [stack(0, 7, None), stack(10, 8, None), stack(20, 7, None)];
    let launches = [launch(1, 8, 1), launch(2, 7, 2), launch(21, 7, 3)];
    let (pairs, report) = merge(&stacks, &launches, &Options::default());
    assert_eq!(found(&pairs), [Some(1), Some(0), Some(2)]);
    assert_eq!(report.matched, [0, 3, 0]);
}

#[test]
fn threads_with_other_numbers_are_matched_within_their_process() {
    let stacks = [stack(0, 1, None), stack(10, 1, None), stack(20, 1, None)];
    let launches = [launch(1, 0x7f00, 1), launch(11, 0x7f01, 2)];
    let (pairs, report) = merge(&stacks, &launches, &Options { tolerance: 5, offset: 0 });
    assert_eq!(found(&pairs), [Some(0), Some(1), None]);
    assert_eq!((report.matched, report.unmatched, report.launches_left), ([0, 0, 2], 1, 0));
}

#[test]
fn matching_by_id_survives_clock_skew_and_matching_by_time_reports_its_doubts() {
    let count = 1000;
    let launches: Vec<_> = (0..count).map(|at| launch(at * 15_000, 7, at as u64 + 1)).collect();
    let off_by = |at: i64, id| stack(at * 15_000 - 20_000, 7, id);
    let with_ids: Vec<_> = (0..count).map(|at| off_by(at, Some(at as u64 + 1))).collect();
    let (pairs, report) = merge(&with_ids, &launches, &Options::default());
    assert_eq!(found(&pairs), (0..count as usize).map(Some).collect::<Vec<_>>());
    assert_eq!((report.matched, report.ambiguous, report.doubtful), ([1000, 0, 0], 0, 0));
    // This list has one stack fewer than there are launches, so the stacks cannot be matched by order.
    let without: Vec<_> = (1..count).map(|at| off_by(at, None)).collect();
    let (_, report) = merge(&without, &launches, &Options::default());
    assert_eq!(report.matched, [0, 0, 999]);
    assert_eq!(report.ambiguous, 999);
    assert!(report.doubtful > 900, "{report:?}");
    assert_eq!(report.median_gap, 15_000);
}

#[test]
fn a_known_offset_corrects_matching_by_time() {
    let launches: Vec<_> = (0..100).map(|at| launch(at * 15_000, 7, at as u64 + 1)).collect();
    let stacks: Vec<_> = (1..100).map(|at| stack(at * 15_000 - 20_000, 7, None)).collect();
    let (pairs, report) = merge(&stacks, &launches, &Options { offset: 20_000, ..Options::default() });
    assert_eq!(found(&pairs), (1..100).map(Some).collect::<Vec<_>>());
    assert_eq!((report.clock_distance, report.doubtful), (0, 0));
}

#[test]
fn clock_skew_is_detected_even_if_every_pair_is_close() {
    // In this test, the gaps between launches are 2 to 32 us, one stack in a hundred is missing, and the clock of the
    // stacks is 20 us behind. So many stacks are matched to a wrong launch: the wrong launch is only a few us away from
    // the stack, and is one or two launches before the right launch. Nine in ten matches are wrong, so the report must
    // not state that the matches are certain.
    let (mut state, mut time) = (7_u64, 0_i64);
    let mut gap = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        2_000 + (state >> 33) as i64 % 30_000
    };
    let mut launches = Vec::new();
    for at in 0..5_000 {
        time += gap();
        launches.push(launch(time, 7, at + 1));
    }
    let kept = (0..launches.len()).filter(|at| at % 100 != 7);
    let stacks: Vec<_> = kept.clone().map(|at| stack(launches[at].time - 20_000, 7, None)).collect();
    let (pairs, report) = merge(&stacks, &launches, &Options::default());
    let right =
        pairs.iter().zip(kept.clone()).filter(|(pair, at)| pair.is_some_and(|(found, _)| found == *at));
    assert!(right.count() < 1_000, "most matches are right, so the skew is too small for this test");
    assert_eq!(report.clock_distance, 20_000);
    assert!(report.doubtful > 4_000, "{report:?}");
    let options = Options { offset: report.clock_distance, ..Options::default() };
    let (pairs, report) = merge(&stacks, &launches, &options);
    assert_eq!(found(&pairs), kept.map(Some).collect::<Vec<_>>());
    assert_eq!((report.clock_distance, report.doubtful), (0, 0));
}
