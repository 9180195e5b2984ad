//! Reads the collectives and the other GPU work of each rank of a job.

use std::collections::BTreeMap;

use super::console::{Console, usage_error};
use super::explain::{Explained, explain_sums_with};
use super::input::Source;
use super::jobs::describe_missing;
use super::op_collector::OpCollector;
use super::ranks::{RankFlags, SameRank};
use gpuflame_export::work_name;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::record::Work;
use gpuflame_offline::analysis::{CommunicationFilter, RankTimeline, TimedCollective, base_shifts};
use gpuflame_offline::run::ReadOptions;

/// Reads the ranks of a job. Returns the ranks sorted by rank number.
///
/// # Errors
/// Fails if a file cannot be read, has only sums, contains work on several GPUs, or has an unknown rank.
pub(super) fn read_ranks(inputs: &[Source], flags: RankFlags, console: Console) -> Result<Vec<RankTimeline>> {
    let sources = flags.sources(inputs, console)?;
    if sources.is_empty() {
        return Err(usage_error("name the files of the ranks"));
    }
    let numbers = flags.assign(&sources, SameRank::Refused)?;
    let mut world_size = None;
    let read = |(source, rank): (&Source, &u32)| read_rank(source, *rank, &mut world_size, console);
    let mut all = sources.iter().zip(&numbers).map(read).collect::<Result<Vec<_>>>()?;
    let missing = describe_missing(&numbers.into_iter().collect(), world_size, flags.assume_order);
    // If only one rank is read, it is not compared with other ranks, so missing ranks do not matter.
    missing.into_iter().filter(|_| all.len() > 1).for_each(|line| console.remark(line));
    all.sort_by_key(|rank| rank.rank);
    let bases: Vec<Option<i64>> = all.iter().map(|rank| rank.clock_base).collect();
    all.iter_mut().zip(base_shifts(&bases)).for_each(|(rank, shift)| rank.shift_times(shift));
    Ok(all)
}

/// Reads a rank. Sets `world_size` to the number of ranks of the job, if the file contains this number.
fn read_rank(
    source: &Source,
    rank: u32,
    world_size: &mut Option<u32>,
    console: Console,
) -> Result<RankTimeline> {
    let mut ops = OpCollector::default();
    let explained = explain_sums_with(source, ReadOptions::default(), console, &mut ops)?;
    explained.facts.require_rows(source)?;
    explained.facts.require_work(source)?;
    *world_size = world_size.or(explained.facts.world_size);
    if let Some(device) = ops.0.first().map(|op| op.3)
        && let Some(other) = ops.0.iter().map(|op| op.3).find(|&other| other != device)
    {
        let why = format!("{source}: has work of GPUs {device} and {other}; a rank has one GPU");
        return Err(Error::new(ErrorKind::Format, why));
    }
    let mut timeline = timeline(ops, &explained);
    (timeline.rank, timeline.steps) = (rank, explained.profile.step_count());
    Ok(timeline)
}

fn timeline(ops: OpCollector, explained: &Explained) -> RankTimeline {
    let filter = CommunicationFilter::default();
    let mut names: BTreeMap<Work, Option<String>> = BTreeMap::new();
    let offset = explained.facts.linked.as_ref().map_or(0, |linked| linked.offset);
    let clock_base = explained.facts.linked.as_ref().map_or(Some(0), |linked| linked.clock_base);
    let mut timeline = RankTimeline { clock_base, ..RankTimeline::default() };
    for (start, nanos, work, _) in ops.0 {
        let start = i64::try_from(start).unwrap_or(i64::MAX).saturating_sub(offset);
        let end = start.saturating_add(i64::try_from(nanos).unwrap_or(i64::MAX));
        let name = names.entry(work).or_insert_with(|| {
            let name = work_name(&explained.profile, work).into_owned();
            let is_collective = matches!(work, Work::Kernel(_)) && filter.is_communication(work, &name);
            is_collective.then_some(name)
        });
        match name {
            Some(name) => timeline.collectives.push(TimedCollective { name: name.clone(), start, end }),
            None => timeline.work.push((start, end)),
        }
    }
    timeline.collectives.sort_by(|a, b| (a.start, a.end, &a.name).cmp(&(b.start, b.end, &b.name)));
    timeline.work = without_overlaps(timeline.work);
    timeline
}

/// Merges time spans that overlap or touch.
fn without_overlaps(mut spans: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    spans.sort_unstable();
    let mut joined: Vec<(i64, i64)> = Vec::new();
    for (start, end) in spans {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_spans_are_joined() {
        let spans = vec![(5, 9), (0, 4), (2, 3), (9, 10), (20, 21)];
        assert_eq!(without_overlaps(spans), [(0, 4), (5, 10), (20, 21)]);
    }
}
