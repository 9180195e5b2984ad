//! Refuses files that are not ranks of the same job, and lists the missing ranks of the job.

use std::collections::{BTreeMap, BTreeSet};

use super::console::Console;
use super::explain::Explained;
use super::ranks::SameJob;
use super::table_output::{Cell, Table};
use gpuflame_export::work_name;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::record::Work;
use gpuflame_offline::analysis::{JobDifference, JobMember, find_difference, find_missing};

/// Returns the facts by which a rank can be recognized as a member of the same job: the number of ranks and the
/// kernels.
pub(super) fn job_member(rank: u32, run: &Explained) -> JobMember {
    let kernels = run.profile.works().iter().map(|work| work.work);
    let kernels = kernels.filter(|work| matches!(work, Work::Kernel(_)));
    let kernels = kernels.map(|work| work_name(&run.profile, work).into_owned()).collect();
    JobMember { rank, world_size: run.facts.world_size, kernels }
}

/// Returns an error if the ranks in `members` ran different programs. `sources` are the files of the ranks in
/// `members`. If the user declared that the files are one job, prints a remark instead.
///
/// # Errors
/// Returns `Format`. The message of the error names two files, their difference and the next step for the user.
pub(super) fn refuse_different_jobs(
    members: &[JobMember],
    sources: &[String],
    same_job: SameJob,
    console: Console,
) -> Result<()> {
    let Some(difference) = find_difference(members) else { return Ok(()) };
    let named = |at: usize| format!("{} (rank {})", sources[at], members[at].rank);
    let what = match difference {
        JobDifference::WorldSize(one, other) => {
            let size = |at: usize| members[at].world_size.unwrap_or(0);
            format!(
                "{} is of a job of {}, {} of a job of {}",
                named(one),
                count_ranks(size(one).into()),
                named(other),
                count_ranks(size(other).into())
            )
        }
        JobDifference::NoCommonKernel(..) if same_job == SameJob::Recorded => return Ok(()),
        JobDifference::NoCommonKernel(one, other) => {
            format!("{} and {} are of different programs: no kernel runs in both", named(one), named(other))
        }
    };
    if same_job == SameJob::Declared {
        console.remark(what);
        return Ok(());
    }
    let next = "give the files of one job, or, if these are of one job, put a `ranks.json` ({\"FILE\": RANK}) next to them";
    Err(Error::new(ErrorKind::Format, format!("{what}; {next}")))
}

/// Prints how many ranks of the job are missing, and returns the table of present and missing ranks. If `are_guessed`
/// is set, the order of the files determined the ranks, so it is unknown which ranks are missing.
pub(super) fn report_missing(members: &[JobMember], are_guessed: bool, console: Console) -> Table {
    let ranks: BTreeSet<u32> = members.iter().map(|member| member.rank).collect();
    let world_size = members.iter().find_map(|member| member.world_size);
    let missing = world_size.and_then(|size| find_missing(&ranks, size));
    let mut table = Table::new("job", &["world_size", "ranks", "missing", "missing_ranks"]);
    let count = missing.as_deref().map(count_in_ranges);
    let listed = missing.as_deref().filter(|_| !are_guessed).map(list_ranges);
    table.add_row([
        world_size.map_or(Cell::Nothing, |size| Cell::Count(size.into())),
        Cell::Count(ranks.len() as u64),
        count.map_or(Cell::Nothing, Cell::Count),
        listed.clone().map_or(Cell::Nothing, Cell::Text),
    ]);
    describe_missing(&ranks, world_size, are_guessed).into_iter().for_each(|line| console.remark(line));
    table
}

/// Returns the sentence about the ranks of a job that are not in `ranks`. Returns `None` if no rank is missing, or if
/// the job's number of ranks is unknown. `are_guessed` has the same meaning as for [`report_missing`].
pub(super) fn describe_missing(
    ranks: &BTreeSet<u32>,
    world_size: Option<u32>,
    are_guessed: bool,
) -> Option<String> {
    let size = world_size?;
    let Some(missing) = find_missing(ranks, size) else {
        return Some(format!(
            "the files say that the job has {}, but number them otherwise: whether ranks are missing is unknown",
            count_ranks(size.into())
        ));
    };
    let count = count_in_ranges(&missing);
    let listed = if are_guessed { String::new() } else { format!(": {}", list_ranges(&missing)) };
    let (verb, pronoun) = if count == 1 { ("is", "it") } else { ("are", "them") };
    let all = count_ranks(size.into());
    (count > 0)
        .then(|| format!("{count} of {all} {verb} missing{listed}; the rest may have waited for {pronoun}"))
}

/// The ranks of a job whose files have no GPU work, usually because their profiler did not record the GPU.
#[derive(Default)]
pub(super) struct RanksWithoutWork {
    /// The error about the file of each of these ranks.
    errors: BTreeMap<u32, Error>,
}

impl RanksWithoutWork {
    pub(super) fn add(&mut self, rank: u32, error: Error) {
        self.errors.insert(rank, error);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Prints why these ranks are left out. `others` is the number of other ranks.
    ///
    /// # Errors
    /// `Format`, about the first file without GPU work, if fewer than two ranks are left: these are no job.
    pub(super) fn leave_out(&mut self, others: usize, console: Console) -> Result<()> {
        if others < 2
            && let Some((_, error)) = self.errors.pop_first()
        {
            return Err(error);
        }
        self.errors.values().for_each(|error| console.remark(error));
        Ok(())
    }

    /// Returns the sentence about these ranks; `None` if there are none.
    pub(super) fn sentence(&self) -> Option<String> {
        let listed = list_ranges(&ranges_of(self.errors.keys().copied()));
        match self.errors.len() {
            0 => None,
            1 => Some(format!("rank {listed}: no GPU work was recorded; the rest may have waited for it")),
            _ => Some(format!("ranks {listed}: no GPU work was recorded; the rest may have waited for them")),
        }
    }
}

/// Returns the sentence about ranks with several files; `None` if each rank has one file.
pub(super) fn describe_several_files(ranks: &[u32]) -> Option<String> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    ranks.iter().for_each(|rank| *counts.entry(*rank).or_default() += 1);
    let several = ranges_of(counts.iter().filter(|(_, count)| **count > 1).map(|(rank, _)| *rank));
    let subject = match count_in_ranges(&several) {
        0 => return None,
        1 => format!("rank {} has", list_ranges(&several)),
        _ => format!("ranks {} have", list_ranges(&several)),
    };
    Some(format!(
        "{subject} several files, whose times are added up: they must be windows or processes of one run; give the \
         files of another run apart"
    ))
}

/// Returns ascending numbers as ranges, each with its first and last number.
fn ranges_of(numbers: impl Iterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut().filter(|(_, last)| *last + 1 == number) {
            Some((_, last)) => *last = number,
            None => ranges.push((number, number)),
        }
    }
    ranges
}

fn count_ranks(count: u64) -> String {
    format!("{count} {}", if count == 1 { "rank" } else { "ranks" })
}

fn count_in_ranges(ranges: &[(u32, u32)]) -> u64 {
    ranges.iter().map(|(first, last)| u64::from(last - first) + 1).sum()
}

/// Returns ranges of rank numbers as text: `0, 2 to 7`.
fn list_ranges(ranges: &[(u32, u32)]) -> String {
    const MAX_LISTED: usize = 8;
    let range = |(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first} to {last}"),
    };
    let mut listed: Vec<String> = ranges.iter().take(MAX_LISTED).map(range).collect();
    listed.extend((ranges.len() > MAX_LISTED).then(|| "...".to_owned()));
    listed.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_listed_and_counted() {
        let ranges = [(0, 0), (2, 3), (6, 9)];
        assert_eq!((list_ranges(&ranges), count_in_ranges(&ranges)), ("0, 2, 3, 6 to 9".to_owned(), 7));
        let many: Vec<_> = (0..20).map(|at| (2 * at, 2 * at)).collect();
        assert_eq!(describe_several_files(&[0, 1, 2]), None);
        let several = describe_several_files(&[0, 1, 2, 1, 2, 2, 3]).unwrap();
        assert!(several.starts_with("ranks 1, 2 have several files"), "{several}");
        assert!(describe_several_files(&[5, 5]).unwrap().starts_with("rank 5 has several"));
        assert_eq!(ranges_of([1, 2, 3, 7].into_iter()), [(1, 3), (7, 7)]);
        assert!(list_ranges(&many).ends_with("14, ..."), "{}", list_ranges(&many));
    }
}
