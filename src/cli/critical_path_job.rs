//! Finds the critical path of a job with several ranks, for `gpuflame critical-path`.

use std::cmp::Reverse;

use super::console::Console;
use super::found_job::FoundJob;
use super::found_path::{print_left_out, print_unexplained, stretch_of};
use super::input::Source;
use super::path_groups::{PathGroup, path_groups};
use super::path_names::PathNames;
use super::path_ranges::{TimeSums, parts_within};
use super::path_tables::{answer, class_table, group_names, group_sums, part_names, part_table, part_times};
use super::ranks::RankFlags;
use super::slack_table::slack_table_of;
use super::straggler_tables::clock_table;
use super::table_output::{Cell, Table, group_digits};
use gpuflame_model::error::Result;
use gpuflame_model::profile::format_nanos;
use gpuflame_offline::analysis::{LastRank, PathPart};

/// A part of the job's critical path.
struct JobPart {
    /// The part itself, as in the path of a single run. The times of this part are on the job's clock. The part refers
    /// to instructions by their indices in the list of the part's rank.
    part: PathPart,
    /// Index of the part's rank in `FoundJob::ranks`.
    rank: usize,
    saving: u64,
    last_rank: Option<LastRank>,
}

/// The shown part of a job's critical path.
pub(super) struct JobReport {
    found: FoundJob,
    parts: Vec<JobPart>,
    /// Start and end in ns of the time range that is shown.
    shown: (u64, u64),
}

impl JobReport {
    /// Reads the ranks, and finds the job's critical path between `from` and `to`. `from` and `to` count from the start
    /// of the job.
    ///
    /// # Errors
    /// Fails for the reasons of [`FoundJob::read`], and if the time range is empty.
    pub(super) fn read(
        sources: &[Source],
        flags: RankFlags,
        (from, to): (Option<i64>, Option<i64>),
        console: Console,
    ) -> Result<Self> {
        let found = FoundJob::read(sources, flags, console)?;
        let path = found.path.path();
        let shown = stretch_of(path.window(), from, to)?;
        let savings = path.savings();
        let parts = parts_within(path.parts(), shown);
        let parts = parts.iter().map(|part| {
            let (rank, local) = found.path.in_rank(part);
            JobPart { part: local, rank, saving: savings.of(part), last_rank: found.path.waited_for(part) }
        });
        Ok(Self { parts: parts.collect(), found, shown })
    }

    pub(super) fn total(&self) -> u64 {
        self.shown.1 - self.shown.0
    }

    fn names(&self, rank: usize) -> PathNames<'_> {
        self.found.ranks[rank].found.names()
    }

    /// Returns the rank number of the rank at an index of `FoundJob::ranks`.
    fn number(&self, rank: usize) -> u32 {
        self.found.ranks[rank].number
    }

    fn local_parts(&self) -> Vec<PathPart> {
        self.parts.iter().map(|one| one.part).collect()
    }

    /// Returns the collectives on the path in which ranks waited for the rank that entered last.
    fn last_ranks(&self) -> impl Iterator<Item = LastRank> {
        self.parts.iter().filter_map(|one| one.last_rank)
    }

    /// Returns the lines that are printed above the tables.
    pub(super) fn lines(&self) -> [String; 3] {
        let changes = group_digits(self.last_ranks().count() as u64);
        let path = format!("the path changes to the last rank at {changes} collectives{}", self.doubt());
        [self.alignment(), path, answer(&self.local_parts(), self.total())]
    }

    fn alignment(&self) -> String {
        format!(
            "the clocks of {} ranks are aligned by {} collectives, with an error of at most {}",
            self.found.ranks.len(),
            group_digits(self.found.clocks.collectives as u64),
            format_nanos(self.found.clocks.error),
        )
    }

    /// Returns a clause with the number of collectives for which it is uncertain which rank entered last. The clause is
    /// empty if the last rank is certain for every collective.
    fn doubt(&self) -> String {
        match self.last_ranks().filter(|last| !last.is_sure).count() {
            0 => String::new(),
            count => {
                let count = group_digits(count as u64);
                format!("; at {count} collectives, two ranks entered last within this error")
            }
        }
    }

    /// Prints the remarks on the clocks, on records that were left out, and on the causes of unexplained time.
    pub(super) fn print_remarks(&self, console: Console) {
        console.remark(self.alignment() + &self.doubt());
        for rank in &self.found.ranks {
            print_left_out(&format!("rank {}", rank.number), &rank.found, console);
        }
        print_unexplained("the job", &self.local_parts(), console);
    }

    /// Returns one folded stack for each part of the path, with the duration of the part in ns.
    pub(super) fn folded(&self) -> impl Iterator<Item = (String, u64)> {
        self.parts.iter().map(|one| {
            let stack = self.names(one.rank).folded(&one.part);
            (format!("rank {};{stack}", self.number(one.rank)), one.part.end - one.part.start)
        })
    }

    /// Returns the tables, with at most `most` rows each. If `has_list` is set, one of the tables is the list of the
    /// path's parts.
    pub(super) fn tables(&self, most: usize, has_list: bool) -> Vec<Table> {
        let find = |number: u32| {
            let (_, names, number) = self.found.instruction(number);
            (names, number)
        };
        let numbers: Vec<u32> = self.found.ranks.iter().map(|rank| rank.number).collect();
        let mut tables = vec![
            self.rank_table(),
            class_table(&self.local_parts(), self.total()),
            self.name_table(most),
            slack_table_of(self.found.path.path(), &find, most),
            clock_table(&numbers, &self.found.clocks),
        ];
        tables.extend(has_list.then(|| self.part_table(most)));
        tables
    }

    /// Returns the table of time on the path per rank. The times of all ranks add up to the duration of the shown time
    /// range.
    fn rank_table(&self) -> Table {
        let columns = &[
            "rank",
            "share_percent",
            "time_ns",
            "gpu_ns",
            "host_ns",
            "latency_ns",
            "unexplained_ns",
            "waited_for",
        ];
        let mut table = Table::new("path_ranks", columns);
        let sums = |shown: &dyn Fn(usize) -> bool| {
            TimeSums::of(self.parts.iter().filter(|one| shown(one.rank)).map(|one| &one.part))
        };
        let waited_for = |shown: &dyn Fn(usize) -> bool| {
            Cell::Count(self.last_ranks().filter(|last| shown(last.rank)).count() as u64)
        };
        for (at, rank) in self.found.ranks.iter().enumerate() {
            let sums = sums(&|one| one == at);
            let share = Cell::share(sums.total(), self.total());
            let head = [Cell::Id(rank.number.into()), share];
            table.add_row(head.into_iter().chain(sums.cells()).chain([waited_for(&|one| one == at)]));
        }
        let head = ["total".into(), Cell::share(self.total(), self.total())];
        table.set_total(head.into_iter().chain(sums(&|_| true).cells()).chain([waited_for(&|_| true)]));
        table
    }

    /// Groups the parts by rank, class, function and name. Returns each group together with the number of its rank. The
    /// groups are sorted by time in descending order.
    pub(super) fn groups(&self) -> Vec<(u32, PathGroup)> {
        let mut groups: Vec<(u32, PathGroup)> = Vec::new();
        for rank in 0..self.found.ranks.len() {
            let of_rank = self.parts.iter().filter(|one| one.rank == rank).map(|one| one.part);
            let of_rank: Vec<PathPart> = of_rank.collect();
            let of_rank = path_groups(self.names(rank), &of_rank).into_iter();
            groups.extend(of_rank.map(|group| (self.number(rank), group)));
        }
        // Sorting by time is stable, so groups with equal times stay in the order of the ranks.
        groups.sort_by_key(|(_, group)| Reverse(group.nanos));
        groups
    }

    /// Returns the table of time on the path, grouped by rank, class and name.
    fn name_table(&self, most: usize) -> Table {
        let groups = self.groups();
        let columns = &["time_ns", "share_percent", "parts", "rank", "class", "function", "name"];
        let mut table = Table::new("path_names", columns);
        table.set_all_rows(groups.len());
        for (rank, group) in groups.into_iter().take(most) {
            let rank = Cell::Id(rank.into());
            let sums = group_sums(&group, self.total()).into_iter();
            table.add_row(sums.chain([rank]).chain(group_names(group)));
        }
        table
    }

    /// Returns the table with the parts of the path, in chronological order.
    fn part_table(&self, most: usize) -> Table {
        let mut table = part_table(true);
        table.set_all_rows(self.parts.len());
        let zero = self.found.path.path().window().0;
        for (at, one) in self.parts.iter().take(most).enumerate() {
            let before = at.checked_sub(1).map(|at| &self.parts[at]).filter(|before| before.rank == one.rank);
            let names = self.names(one.rank);
            let reason = match one.last_rank {
                Some(last) => self.reason(&names.name(&one.part), last),
                None => names.reason(before.map(|before| &before.part), &one.part),
            };
            let rank = Cell::Id(self.number(one.rank).into());
            let times = part_times(&one.part, zero).into_iter();
            table.add_row(times.chain([rank]).chain(part_names(names, &one.part, one.saving, reason)));
        }
        table
    }

    fn reason(&self, name: &str, last: LastRank) -> String {
        let rank = self.number(last.rank);
        let unsure =
            if last.is_sure { "" } else { ", or for a rank that entered within the error of the clocks" };
        format!("collective `{name}` {} waited for rank {rank}{unsure}", last.collective + 1)
    }
}
