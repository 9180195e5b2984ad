//! Reads the ranks of a job and finds the job's critical path. Several verbs use this module.

use super::console::Console;
use super::found_path::FoundPath;
use super::input::Source;
use super::job_meetings::{MeetingRank, Meetings};
use super::jobs::describe_missing;
use super::path_names::PathNames;
use super::ranks::{RankFlags, SameRank};
use gpuflame_export::work_name;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_offline::analysis::{
    CommunicationFilter, InstructionDetail, InstructionKind, JobPath, JobRank, RankClocks, RankCollective,
    TimedCollective, base_shifts,
};

/// A rank of a job, with the critical path of this rank alone.
pub(super) struct FoundRank {
    pub(super) number: u32,
    pub(super) found: FoundPath,
    source: Source,
    /// Collectives of the rank, sorted by start, each with the index of its instruction. The time of a collective is
    /// the time in the rank's file plus `shift`.
    collectives: Vec<(TimedCollective, u32)>,
    /// Time in ns that is added to the times in the rank's file. It is needed because the files of the ranks have
    /// different time bases.
    shift: i64,
}

/// The ranks of a job, sorted by rank number, and the job's critical path.
pub(super) struct FoundJob {
    pub(super) ranks: Vec<FoundRank>,
    pub(super) clocks: RankClocks,
    pub(super) path: JobPath,
}

impl FoundJob {
    /// Reads the ranks and finds the critical path of the job.
    ///
    /// # Errors
    /// Fails if a rank has no critical path, or if the clocks of the ranks cannot be aligned.
    pub(super) fn read(sources: &[Source], flags: RankFlags, console: Console) -> Result<Self> {
        let ranks = read_ranks(sources, flags, console)?;
        let members = ranks.iter().map(|rank| MeetingRank {
            number: rank.number,
            source: &rank.source,
            collectives: &rank.collectives,
        });
        let meetings = Meetings::find(&members.collect::<Vec<_>>())?;
        let path = join(&ranks, &meetings)?;
        Ok(Self { ranks, clocks: meetings.clocks, path })
    }

    /// Returns the rank that an instruction of the job belongs to, the name look-up of that rank, and the instruction's
    /// index in that rank.
    pub(super) fn instruction(&self, number: u32) -> (u32, PathNames<'_>, u32) {
        let (rank, number) = self.path.instruction(number);
        (self.ranks[rank].number, self.ranks[rank].found.names(), number)
    }

    /// Returns the rank that made a call of the job, and the name look-up of that rank.
    pub(super) fn call(&self, at: u32) -> (u32, PathNames<'_>) {
        let rank = self.path.call(at);
        (self.ranks[rank].number, self.ranks[rank].found.names())
    }
}

/// Reads the ranks. Returns the ranks sorted by rank number.
fn read_ranks(sources: &[Source], flags: RankFlags, console: Console) -> Result<Vec<FoundRank>> {
    let sources = flags.without_front_ends(sources.to_vec(), console);
    let numbers = flags.assign(&sources, SameRank::Refused)?;
    let read = |(source, number): (&Source, &u32)| {
        let found = FoundPath::read(source, console)?;
        let collectives = collectives(source, &found)?;
        Ok(FoundRank { number: *number, found, source: source.clone(), collectives, shift: 0 })
    };
    let mut ranks = sources.iter().zip(&numbers).map(read).collect::<Result<Vec<FoundRank>>>()?;
    ranks.sort_by_key(|rank| rank.number);
    add_bases(&mut ranks);
    let world_size = ranks.iter().find_map(|rank| rank.found.explained.facts.world_size);
    let missing = describe_missing(&numbers.into_iter().collect(), world_size, flags.assume_order);
    missing.into_iter().for_each(|line| console.remark(line));
    Ok(ranks)
}

/// Converts the collectives' times of all ranks to a common time base, if the base of each file is known.
fn add_bases(ranks: &mut [FoundRank]) {
    let base = |rank: &FoundRank| {
        rank.found.explained.facts.linked.as_ref().map_or(Some(0), |linked| linked.clock_base)
    };
    let bases: Vec<Option<i64>> = ranks.iter().map(base).collect();
    for (rank, shift) in ranks.iter_mut().zip(base_shifts(&bases)) {
        rank.shift = shift;
        for (collective, _) in &mut rank.collectives {
            collective.shift_times(shift);
        }
    }
}

/// Returns the collectives of a rank, sorted by start.
///
/// # Errors
/// Returns `Format` if the rank's collectives run on several GPUs.
fn collectives(source: &Source, found: &FoundPath) -> Result<Vec<(TimedCollective, u32)>> {
    let (filter, profile) = (CommunicationFilter::default(), &found.explained.profile);
    let (mut all, mut device) = (Vec::new(), None);
    for number in 0..found.list.len() as u32 {
        let instruction = found.list.get(number);
        let InstructionDetail::Work { activity, .. } = instruction.detail else { continue };
        let Some((start, end)) = instruction.ran.filter(|_| instruction.kind == InstructionKind::Kernel)
        else {
            continue;
        };
        let name = work_name(profile, activity.work());
        if !filter.is_communication_kernel(&name) {
            continue;
        }
        let first = *device.get_or_insert(activity.device.0);
        if first != activity.device.0 {
            let why = format!(
                "{source}: has collectives on GPUs {first} and {}; a rank has one GPU",
                activity.device.0
            );
            return Err(Error::new(ErrorKind::Format, why));
        }
        let of_file = |time: u64| i64::try_from(time).unwrap_or(i64::MAX).saturating_sub(offset(found));
        let (start, end) = (of_file(start.0), of_file(end.0));
        all.push((TimedCollective { name: name.into_owned(), start, end }, number));
    }
    all.sort_by(|(a, _), (b, _)| (a.start, a.end, &a.name).cmp(&(b.start, b.end, &b.name)));
    Ok(all)
}

/// Returns the time in ns by which the rank's times are ahead of the times in the rank's file.
fn offset(found: &FoundPath) -> i64 {
    found.explained.facts.linked.as_ref().map_or(0, |linked| linked.offset)
}

/// Finds the critical path of the job. The times on the job's path are on the clock of the first rank.
fn join(ranks: &[FoundRank], Meetings { clocks, numbers }: &Meetings) -> Result<JobPath> {
    let ahead_of_job = |rank: &FoundRank| offset(&rank.found).saturating_sub(rank.shift);
    let first = ahead_of_job(&ranks[0]);
    let shifts = ranks
        .iter()
        .zip(&clocks.ahead)
        .map(|(rank, ahead)| first.saturating_sub(ahead_of_job(rank)).saturating_sub(*ahead));
    let shifts: Vec<i64> = shifts.collect();
    // Times are unsigned numbers, so they cannot be negative. If a rank begins before the first rank's time 0, the
    // times of all ranks are increased by the same amount, so that no time is negative.
    let starts = ranks.iter().zip(&shifts).map(|(rank, shift)| {
        i64::try_from(rank.found.path.window().0).unwrap_or(i64::MAX).saturating_add(*shift)
    });
    let up = starts.min().unwrap_or(0).min(0).saturating_neg();
    let collectives = ranks.iter().zip(numbers).map(|(rank, numbers)| {
        let all = numbers.iter().zip(&rank.collectives);
        all.map(|(number, (_, instruction))| RankCollective {
            collective: *number,
            instruction: *instruction,
        })
    });
    let collectives: Vec<Vec<RankCollective>> = collectives.map(Iterator::collect).collect();
    let members = ranks.iter().zip(&collectives).zip(&shifts).map(|((rank, collectives), shift)| JobRank {
        path: &rank.found.path,
        list: &rank.found.list,
        history: &rank.found.history,
        profile: &rank.found.explained.profile,
        collectives,
        shift: shift.saturating_add(up),
    });
    let members: Vec<JobRank<'_>> = members.collect();
    JobPath::new(&members, clocks.error).ok_or_else(|| {
        let what =
            "the ranks have more than 4,294,967,295 calls and pieces of work together; name fewer ranks";
        Error::new(ErrorKind::Format, what)
    })
}
