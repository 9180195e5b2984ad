//! Builds the table of `merge-ranks` that shows, for each collective, which rank entered last. All times in the table
//! are on the first rank's clock.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::console::Console;
use super::table_output::{Cell, Table};
use gpuflame_model::profile::format_nanos;
use gpuflame_offline::analysis::{
    CollectiveArrivals, CollectiveKernels, Lateness, MAX_END_SPREAD_NS, NotComparable, align_ranks,
    compare_arrivals,
};

/// Converts the collectives' times from every rank's clock to the clock of the first rank. Times are converted only if
/// the ranks' clocks differ and all ranks run the same collectives. Returns the maximum clock error in ns; 0 if no
/// times were changed.
pub(super) fn align_clocks(ranks: &mut BTreeMap<u32, CollectiveKernels>, console: Console) -> i64 {
    let all: Vec<Vec<(i64, i64, &str)>> = ranks.values().map(in_order).collect();
    let is_first =
        |rank: &Vec<(i64, i64, &str)>| rank.iter().map(|one| one.2).eq(all[0].iter().map(|one| one.2));
    if !all.iter().all(is_first) {
        return 0;
    }
    let spans: Vec<Vec<(i64, i64)>> =
        all.iter().map(|rank| rank.iter().map(|one| (one.0, one.1)).collect()).collect();
    let Ok(clocks) = align_ranks(&spans) else { return 0 };
    let apart = clocks.ahead.iter().max().unwrap_or(&0).abs_diff(*clocks.ahead.iter().min().unwrap_or(&0));
    if apart <= MAX_END_SPREAD_NS.unsigned_abs() {
        return 0;
    }
    for (rank, ahead) in ranks.values_mut().zip(&clocks.ahead) {
        for kernel in rank.values_mut().flatten() {
            kernel.start = kernel.start.saturating_sub(*ahead);
            kernel.end = kernel.end.saturating_sub(*ahead);
        }
    }
    console.remark(format!(
        "the clocks of the ranks are up to {} apart; they were aligned by {} collectives, with an error of at most {}",
        format_nanos(apart),
        clocks.collectives,
        format_nanos(clocks.error)
    ));
    i64::try_from(clocks.error).unwrap_or(i64::MAX)
}

/// Returns the start, end and name of each kernel, sorted by start.
fn in_order(kernels: &CollectiveKernels) -> Vec<(i64, i64, &str)> {
    let named =
        kernels.iter().flat_map(|(name, all)| all.iter().map(|one| (one.start, one.end, name.as_str())));
    let mut all: Vec<_> = named.collect();
    all.sort_unstable();
    all
}

/// Returns the table. If different sets of ranks ran a collective, the table has at most `most` ranks for each set.
/// `withheld` contains the names of collectives that cannot be compared, because at least one of their ranks has only
/// sums. Each name is mapped to the number of ranks that ran the collective. `clock_error` is the maximum clock error
/// in ns.
pub(super) fn arrival_table(
    ranks: &BTreeMap<u32, CollectiveKernels>,
    withheld: &BTreeMap<String, u64>,
    clock_error: i64,
    most: usize,
) -> Table {
    let columns = &[
        "rank",
        "last",
        "of",
        "behind_next_ns",
        "others_waited_ns",
        "ranks",
        "collective",
        "unknown_because",
    ];
    let mut table = Table::new("last_to_collectives", columns);
    let compared = compare_arrivals(ranks, clock_error);
    let add_unknown = |table: &mut Table, count: u64, name: Cell, reason: String| {
        let mut cells = vec![Cell::Nothing; 5];
        cells.extend([Cell::Count(count), name, Cell::Text(reason)]);
        table.add_row(cells);
    };
    for (name, count) in withheld {
        let reason =
            "needs single activities; record every rank with `gpuflame run --rows PROGRAM`".to_owned();
        add_unknown(&mut table, *count, Cell::Text(name.clone()), reason);
    }
    if compared.is_empty() && withheld.is_empty() {
        let reason = "no kernel that moves data between ranks ran on two ranks".to_owned();
        add_unknown(&mut table, ranks.len() as u64, Cell::Nothing, reason);
    }
    for (name, arrivals) in compared.into_iter().filter(|(name, _)| !withheld.contains_key(name)) {
        let sets = match arrivals {
            CollectiveArrivals::Known(sets) => sets,
            CollectiveArrivals::Unknown(reason) => {
                let with = ranks.values().filter(|kernels| kernels.contains_key(&name)).count();
                add_unknown(&mut table, with as u64, Cell::Text(name), explain(reason));
                continue;
            }
        };
        for (set, all) in sets {
            let mut late: Vec<(u32, Lateness)> = all.late.into_iter().collect();
            late.sort_by_key(|(rank, late)| (Reverse(late.others_waited), *rank));
            if late.is_empty() {
                let reason = format!("no rank was clearly the last to any of {}", all.count);
                add_unknown(&mut table, set.len() as u64, Cell::Text(name.clone()), reason);
            }
            for (rank, late) in late.into_iter().take(most) {
                table.add_row([
                    Cell::Id(rank.into()),
                    Cell::Count(late.count),
                    Cell::Count(all.count),
                    Cell::Nanos(late.behind_next),
                    Cell::Nanos(late.others_waited),
                    Cell::Count(set.len() as u64),
                    Cell::Text(name.clone()),
                    Cell::Nothing,
                ]);
            }
        }
    }
    table
}

fn explain(reason: NotComparable) -> String {
    match reason {
        NotComparable::Counts((one, count), (other, other_count)) => {
            format!("rank {one} has {count} such kernels, rank {other} has {other_count}")
        }
        NotComparable::Ends(one, other, nanos) => format!(
            "ends on ranks {one} and {other} are {} apart: their clocks differ, or they are different collectives",
            format_nanos(nanos)
        ),
        NotComparable::SeveralGpus(rank) => format!("rank {rank} has several GPUs"),
    }
}
