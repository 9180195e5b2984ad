//! Encodes the steps of a run for a recording that contains sums instead of rows (see `checkpoint_sums`).
//!
//! | kind | key after the kind | values |
//! |---|---|---|
//! | groups | number of the part, 16 bits | 7 per group: number, time from the last group's beginning, duration, steps, kind or 255, work, communication |
//! | kind | index, and 0 | count, nanoseconds, longest duration, number of the longest, length of the name, the name's bytes, four per value |
//! | kind | index, and number of the part | pairs of bucket and count |
//! | launches | number of the part, 16 bits | 2 per group: launches that should have an activity, those without one |
//! | longest | index | number, time from the first step's beginning, duration, kind, work, communication |

use gpuflame_model::profile::{LaunchCoverage, SingleStep, StepGroup, StepKind, StepSeries};
use gpuflame_model::record::{Fields, Nanos, Payload};

/// Kinds of data about steps, which are stored under separate keys. The second byte of a key is the kind of data.
mod of {
    pub(super) const GROUPS: u8 = 1;
    pub(super) const KIND: u8 = 2;
    pub(super) const LONGEST: u8 = 3;
    pub(super) const LAUNCHES: u8 = 4;
}

/// Maximum number of values that are stored under one key.
const MAX_VALUES: usize = 250;
const VALUES_PER_GROUP: usize = 7;
/// Maximum number of groups of steps whose launches are stored under one key.
const GROUPS_OF_LAUNCHES: usize = MAX_VALUES / 2;
/// Value that is stored as the kind of a group if the group contains several kinds of steps.
const SEVERAL_KINDS: u64 = 255;
const BYTES_PER_VALUE: usize = 4;
const MAX_KINDS: usize = 255;

/// Passes each sum about the steps to `each`, as a key and its values. `first` is the time at which the first step
/// began.
pub(super) fn step_sums(series: &StepSeries, first: Nanos, kind: u8, each: &mut dyn FnMut(&[u8], &[u64])) {
    let mut key = Vec::new();
    let mut put = |of: u8, more: &[u8], values: &[u64]| {
        key.clear();
        Payload(&mut key).u8(kind).u8(of).0.extend(more);
        each(&key, values);
    };
    let (mut values, mut last) = (Vec::new(), first);
    for (part, groups) in (0_u16..).zip(series.groups.chunks(MAX_VALUES / VALUES_PER_GROUP)) {
        values.clear();
        for group in groups {
            let StepGroup { number, begin, steps, kind, work, communication, .. } = *group;
            let kind = kind.map_or(SEVERAL_KINDS, u64::from);
            let since = begin.0.saturating_sub(last.0);
            values.extend([number, since, group.nanos(), steps, kind, work, communication]);
            last = begin;
        }
        put(of::GROUPS, &part.to_le_bytes(), &values);
    }
    for (part, groups) in (0_u16..).zip(series.groups.chunks(GROUPS_OF_LAUNCHES)) {
        values.clear();
        values.extend(groups.iter().flat_map(|group| [group.coverage.launches, group.coverage.uncovered]));
        put(of::LAUNCHES, &part.to_le_bytes(), &values);
    }
    for (index, kind) in (0_u8..).zip(&series.kinds) {
        let StepKind { name, count, nanos, max, longest, durations } = kind;
        values.clear();
        values.extend([*count, *nanos, *max, *longest, name.len() as u64]);
        values.extend(
            name.as_bytes()
                .chunks(BYTES_PER_VALUE)
                .map(|bytes| bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))),
        );
        put(of::KIND, &[index, 0], &values);
        values.clear();
        values.extend(durations.buckets().flat_map(|(bucket, count)| [bucket.into(), count]));
        for (part, values) in (1_u8..).zip(values.chunks(MAX_VALUES)) {
            put(of::KIND, &[index, part], values);
        }
    }
    for (index, step) in (0_u8..).zip(&series.longest) {
        let SingleStep { number, begin, nanos, kind, work, communication } = *step;
        let since = begin.0.saturating_sub(first.0);
        put(of::LONGEST, &[index], &[number, since, nanos, kind.into(), work, communication]);
    }
}

/// Steps of a run that were read from a file. The times of the steps are relative to the beginning of the first step.
#[derive(Debug, Default)]
pub(super) struct StoredSteps(StepSeries);

impl StoredSteps {
    /// Adds a sum that was read from a file. Returns `None` if the values of the sum are impossible.
    pub(super) fn add(&mut self, key: &mut Fields<'_>, values: &[u64]) -> Option<()> {
        let series = &mut self.0;
        match (key.u8()?, values) {
            (of::GROUPS, _) => {
                for group in values.as_chunks::<VALUES_PER_GROUP>().0 {
                    let &[number, since, nanos, steps, kind, work, communication] = group;
                    let last = series.groups.last().map_or(0, |last| last.begin.0);
                    let begin = Nanos(last.checked_add(since)?);
                    let end = Nanos(begin.0.checked_add(nanos)?);
                    let kind = if kind == SEVERAL_KINDS { None } else { Some(u8::try_from(kind).ok()?) };
                    let coverage = LaunchCoverage::default();
                    let group = StepGroup { number, begin, end, steps, kind, work, communication, coverage };
                    series.groups.push(group);
                }
            }
            (of::LAUNCHES, _) => {
                let from = usize::from(key.u16()?) * GROUPS_OF_LAUNCHES;
                let groups = series.groups.get_mut(from..)?;
                for (group, &[launches, uncovered]) in groups.iter_mut().zip(values.as_chunks().0) {
                    group.coverage = LaunchCoverage { launches, uncovered: uncovered.min(launches) };
                }
            }
            (of::KIND, _) => self.add_kind(key, values)?,
            (of::LONGEST, &[number, since, nanos, kind, work, communication]) => {
                let (begin, kind) = (Nanos(since), u8::try_from(kind).ok()?);
                series.longest.push(SingleStep { number, begin, nanos, kind, work, communication });
            }
            _ => return None,
        }
        Some(())
    }

    fn add_kind(&mut self, key: &mut Fields<'_>, values: &[u64]) -> Option<()> {
        let (index, part) = (usize::from(key.u8()?), key.u8()?);
        let kinds = &mut self.0.kinds;
        if part == 0 {
            let &[count, nanos, max, longest, length, ref name @ ..] = values else { return None };
            if kinds.len() != index || index >= MAX_KINDS {
                return None;
            }
            let bytes =
                name.iter().flat_map(|value| (0..BYTES_PER_VALUE).map(move |at| (value >> (8 * at)) as u8));
            let bytes: Vec<u8> = bytes.take(usize::try_from(length).ok()?).collect();
            let name = String::from_utf8(bytes).ok()?;
            kinds.push(StepKind { name, count, nanos, max, longest, ..StepKind::default() });
            return Some(());
        }
        let durations = &mut kinds.get_mut(index)?.durations;
        for &[bucket, count] in values.as_chunks().0 {
            durations.add_bucket(bucket.try_into().ok()?, count).then_some(())?;
        }
        Some(())
    }

    /// Returns the steps with absolute times, which are the relative times in the file plus `first`. `first` is the
    /// time at which the first step began.
    pub(super) fn series(&self, first: Nanos) -> StepSeries {
        let StepSeries { mut groups, kinds, mut longest } = self.0.clone();
        let at = |time: Nanos| Nanos(first.0.saturating_add(time.0));
        groups.iter_mut().for_each(|group| (group.begin, group.end) = (at(group.begin), at(group.end)));
        longest.iter_mut().for_each(|step| step.begin = at(step.begin));
        let known = |kind: u8| usize::from(kind) < kinds.len();
        groups.retain(|group| group.kind.is_none_or(known));
        longest.retain(|step| known(step.kind));
        StepSeries { groups, kinds, longest }
    }
}
