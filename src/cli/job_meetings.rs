//! Determines which collective kernels on different ranks of a job belong to the same collective.
//!
//! If all ranks run the same sequence of collectives, kernels at the same position of the sequence belong to the same
//! collective. If the ranks run different sequences, some collectives involve only a part of the ranks. If the
//! sequences differ, the process groups in the traces determine which ranks take part in each collective.

use std::collections::{BTreeMap, HashMap};

use super::input::Source;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_offline::analysis::{
    ModelError, ProcessGroup, RankClocks, RankTimeline, TimedCollective, align_process_groups,
    align_timelines,
};
use gpuflame_traces::execution::Kineto;
use gpuflame_traces::import::{Kind, Options};

/// A rank and the collectives that it ran.
#[derive(Clone, Copy)]
pub(super) struct MeetingRank<'a> {
    pub(super) number: u32,
    pub(super) source: &'a Source,
    /// Collectives of the rank, sorted by start, each with the index of its instruction. The times of the collectives
    /// are on the clock of the rank's file.
    pub(super) collectives: &'a [(TimedCollective, u32)],
}

/// The clocks of the ranks, and the collectives in which the ranks take part together.
pub(super) struct Meetings {
    pub(super) clocks: RankClocks,
    /// Index of each collective in the job, indexed by rank and by position among the rank's collectives.
    pub(super) numbers: Vec<Vec<usize>>,
}

impl Meetings {
    /// Finds the collectives in which the ranks take part together.
    ///
    /// # Errors
    /// Fails if the ranks run different collectives and the traces do not name the process groups.
    pub(super) fn find(ranks: &[MeetingRank<'_>]) -> Result<Self> {
        let timelines: Vec<RankTimeline> = ranks
            .iter()
            .map(|rank| RankTimeline {
                rank: rank.number,
                collectives: rank.collectives.iter().map(|(one, _)| one.clone()).collect(),
                ..RankTimeline::default()
            })
            .collect();
        let refused = match align_timelines(&timelines) {
            Ok(clocks) => {
                let numbers = timelines.iter().map(|rank| (0..rank.collectives.len()).collect()).collect();
                return Ok(Self { clocks, numbers });
            }
            Err(ModelError(why)) => why,
        };
        let Some(groups) = read_groups(ranks)? else {
            return Err(refuse(&format!("{refused}, and the traces do not name all process groups")));
        };
        let clocks = align_process_groups(&timelines, &groups).map_err(|ModelError(why)| refuse(&why))?;
        let numbers = number_collectives(&timelines, &groups, &clocks);
        Ok(Self { clocks, numbers })
    }
}

fn refuse(why: &str) -> Error {
    let what = format!(
        "the clocks of the ranks cannot be aligned: {why}; `gpuflame critical-path FILE` finds the path of one rank"
    );
    Error::new(ErrorKind::Format, what)
}

/// Numbers the collectives in the order of the times at which the last rank enters each collective.
fn number_collectives(
    ranks: &[RankTimeline],
    groups: &[ProcessGroup],
    clocks: &RankClocks,
) -> Vec<Vec<usize>> {
    let mut entered: Vec<(i64, usize, usize)> = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        let count = group.members.iter().map(|(_, positions)| positions.len()).min().unwrap_or(0);
        for nth in 0..count {
            let starts = group.members.iter().map(|(rank, positions)| {
                ranks[*rank].collectives[positions[nth]].start.saturating_sub(clocks.ahead[*rank])
            });
            entered.push((starts.max().unwrap_or(0), number, nth));
        }
    }
    entered.sort_unstable();
    let mut numbers: Vec<Vec<usize>> = ranks.iter().map(|rank| vec![0; rank.collectives.len()]).collect();
    for (collective, (_, group, nth)) in entered.into_iter().enumerate() {
        for (rank, positions) in &groups[group].members {
            numbers[*rank][positions[nth]] = collective;
        }
    }
    numbers
}

/// Reads the process groups of all collectives; `None` if a trace does not contain the group of each collective.
fn read_groups(ranks: &[MeetingRank<'_>]) -> Result<Option<Vec<ProcessGroup>>> {
    let mut groups: BTreeMap<String, Vec<(usize, Vec<usize>)>> = BTreeMap::new();
    for (at, rank) in ranks.iter().enumerate() {
        let Some(names) = group_names(rank)? else { return Ok(None) };
        let mut of_rank: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (position, name) in names.into_iter().enumerate() {
            of_rank.entry(name).or_default().push(position);
        }
        for (name, positions) in of_rank {
            groups.entry(name).or_default().push((at, positions));
        }
    }
    Ok(Some(groups.into_iter().map(|(name, members)| ProcessGroup { name, members }).collect()))
}

/// Returns the process group of each collective that a rank ran. Rows do not contain process groups, so the trace is
/// read again.
fn group_names(rank: &MeetingRank<'_>) -> Result<Option<Vec<String>>> {
    if *rank.source == Source::Stdin {
        return Ok(None);
    }
    let opened = rank.source.open()?;
    if opened.kind() != Kind::Chrome {
        return Ok(None);
    }
    let kineto = Kineto::read(opened, &Options::default()).map_err(|error| error.within(rank.source))?;
    let groups = kineto.work.iter().filter_map(|work| {
        let name = kineto.name(work.process_group?).to_owned();
        Some(((work.start, work.end, kineto.name(work.name)), name))
    });
    let groups: HashMap<(i64, i64, &str), String> = groups.collect();
    let names =
        rank.collectives.iter().map(|(one, _)| groups.get(&(one.start, one.end, &*one.name)).cloned());
    Ok(names.collect())
}
