//! The timeline of a run: slices of each stream and of each launching thread. Slices that are close together are merged, so
//! that the page stays small.

use std::collections::BTreeMap;

use gpuflame_explain::join::{Launched, Origin, Sink};
use gpuflame_export::json::comma;
use gpuflame_export::work_name;
use gpuflame_model::profile::{Profile, add_to};
use gpuflame_model::record::{Activity, CorrelationId, StreamId, Work};

use super::json::{push_list, quoted};
use super::tracks::ThreadNames;

/// Maximum number of activities that are kept. They take 130 MB.
const MAX_ACTIVITIES: usize = 2_000_000;
/// Maximum number of slices of a page, over all rows.
const MAX_SLICES: usize = 120_000;
/// Maximum number of rows. Rows with less time are left out.
const MAX_ROWS: usize = 64;

/// Collects activities and their launches from joined rows.
#[derive(Debug, Default)]
pub struct TimelineActivities {
    list: Vec<(Activity, Option<Launched>)>,
    skipped: u64,
}

impl Sink for TimelineActivities {
    fn activity(&mut self, activity: &Activity, origin: Origin) {
        if activity.duration().is_none() {
            return;
        }
        if self.list.len() >= MAX_ACTIVITIES {
            self.skipped += 1;
            return;
        }
        let launched = match origin {
            Origin::Launch(launched) => Some(launched),
            Origin::Missing(_) => None,
        };
        self.list.push((*activity, launched));
    }

    fn pending(&mut self, _: CorrelationId, _: Launched) {}
}

/// One or several slices of a row without larger gaps.
#[derive(Clone, Copy, Debug)]
struct Slice {
    start: u64,
    end: u64,
    /// Number of slices, and the sum of their durations.
    count: u64,
    nanos: u64,
    /// Number of the name with the longest slice, and the duration of that slice.
    name: u32,
    longest: u64,
}

/// Slices of a stream or thread, by start.
#[derive(Debug, Default)]
struct TimelineRow {
    label: String,
    is_thread: bool,
    slices: Vec<Slice>,
}

/// Timeline of one or several runs. Each run has its own clock, so that times of different runs cannot be compared.
#[derive(Debug, Default)]
pub struct Timeline {
    rows: Vec<TimelineRow>,
    names: Vec<String>,
    skipped: u64,
}

impl Timeline {
    /// Adds the activities of a run.
    pub fn add_run(&mut self, profile: &Profile, activities: TimelineActivities, rank: Option<u32>) {
        let first = activities.list.iter().map(|(activity, launched)| {
            launched.map_or(activity.start.0, |launched| launched.time.0.min(activity.start.0))
        });
        let Some(zero) = first.min() else { return };
        self.skipped += activities.skipped;
        let threads = ThreadNames::new(profile);
        let before = rank.map_or_else(String::new, |rank| format!("rank {rank}, "));
        let (mut rows, mut names) = (BTreeMap::new(), BTreeMap::new());
        let launch_name = self.name("launching call".to_owned(), &mut names);
        for (activity, launched) in &activities.list {
            let StreamId(stream) = activity.stream;
            let label = format!("{before}GPU {}, stream {stream}", activity.device.0);
            let name = self.work_name(profile, activity.work(), &mut names);
            let times = (activity.start.0 - zero, activity.end.0.saturating_sub(zero));
            rows.entry((false, label)).or_insert_with(Vec::new).push(single(times, name));
            if let Some(launched) = launched {
                let context = profile.context(launched.context);
                let thread = context.map_or_else(|| "thread".to_owned(), |it| threads.name(it.thread));
                let start = launched.time.0 - zero;
                let times = (start, start + u64::from(launched.duration));
                rows.entry((true, before.clone() + &thread))
                    .or_insert_with(Vec::new)
                    .push(single(times, launch_name));
            }
        }
        for ((is_thread, label), mut slices) in rows {
            slices.sort_by_key(|slice: &Slice| (slice.start, slice.end));
            // A launch of several activities is one call.
            slices.dedup_by(|next, slice| is_thread && next.start == slice.start);
            self.rows.push(TimelineRow { label, is_thread, slices });
        }
    }

    fn work_name(&mut self, profile: &Profile, work: Work, known: &mut BTreeMap<String, u32>) -> u32 {
        self.name(work_name(profile, work).into_owned(), known)
    }

    fn name(&mut self, name: String, known: &mut BTreeMap<String, u32>) -> u32 {
        if let Some(number) = known.get(&name) {
            return *number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.clone());
        known.insert(name, number);
        number
    }

    /// Whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the timeline as JSON: rows with the starts, lengths, names and counts of their slices, in ns.
    pub fn json(&self) -> String {
        let mut kept: Vec<&TimelineRow> = self.rows.iter().collect();
        kept.sort_by_key(|row| std::cmp::Reverse(row.slices.iter().map(|slice| slice.nanos).sum::<u64>()));
        kept.truncate(MAX_ROWS);
        kept.sort_by(|a, b| (a.is_thread, &a.label).cmp(&(b.is_thread, &b.label)));
        let end = kept.iter().flat_map(|row| row.slices.iter().map(|slice| slice.end)).max().unwrap_or(0);
        // Slices with smaller gaps are merged. The smallest gap that makes them few enough is found by doubling.
        let mut gap = 0;
        let count = |gap: u64| kept.iter().map(|row| merged(&row.slices, gap).count()).sum::<usize>();
        while count(gap) > MAX_SLICES {
            gap = (gap * 2).max(100);
        }
        let names: Vec<String> = self.names.iter().map(|name| quoted(name)).collect();
        let mut rows = String::new();
        for (at, row) in kept.iter().enumerate() {
            let slices: Vec<Slice> = merged(&row.slices, gap).collect();
            rows += comma(at);
            rows += &format!("{{\"label\":{},\"thread\":{}", quoted(&row.label), row.is_thread);
            push_list(&mut rows, "start", slices.iter().map(|slice| slice.start));
            push_list(&mut rows, "length", slices.iter().map(|slice| slice.end - slice.start));
            push_list(&mut rows, "name", slices.iter().map(|slice| slice.name));
            push_list(&mut rows, "count", slices.iter().map(|slice| slice.count));
            push_list(&mut rows, "busy", slices.iter().map(|slice| slice.nanos));
            rows.push('}');
        }
        format!(
            "{{\"end\":{end},\"gap\":{gap},\"skipped\":{},\"left\":{},\"names\":[{}],\"rows\":[{rows}]}}",
            self.skipped,
            self.rows.len() - kept.len(),
            names.join(",")
        )
    }
}

fn single((start, end): (u64, u64), name: u32) -> Slice {
    let nanos = end.saturating_sub(start);
    Slice { start, end: end.max(start), count: 1, nanos, name, longest: nanos }
}

/// Merges slices whose gaps are smaller than `gap`. With a gap of 0 all slices stay as they are.
fn merged(slices: &[Slice], gap: u64) -> impl Iterator<Item = Slice> {
    let mut left = slices.iter().copied().peekable();
    std::iter::from_fn(move || {
        let mut slice = left.next()?;
        while let Some(next) = left.next_if(|next| next.start.saturating_sub(slice.end) < gap) {
            slice.end = slice.end.max(next.end);
            slice.count += next.count;
            add_to(&mut slice.nanos, next.nanos);
            if next.longest > slice.longest {
                (slice.name, slice.longest) = (next.name, next.longest);
            }
        }
        Some(slice)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_with_small_gaps_are_merged_with_their_sums() {
        let slices = [(0, 10, 1), (12, 15, 2), (20, 40, 3), (100, 101, 1)];
        let slices = slices.map(|(start, end, name)| single((start, end), name));
        let shown = |gap| -> Vec<_> {
            merged(&slices, gap).map(|it| (it.start, it.end, it.count, it.nanos, it.name)).collect()
        };
        assert_eq!(shown(0).len(), 4);
        assert_eq!(shown(3), [(0, 15, 2, 13, 1), (20, 40, 1, 20, 3), (100, 101, 1, 1, 1)]);
        assert_eq!(shown(6), [(0, 40, 3, 33, 3), (100, 101, 1, 1, 1)]);
        assert_eq!(shown(1000), [(0, 101, 4, 34, 3)]);
    }
}
