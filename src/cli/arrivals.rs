//! The table of `merge-ranks` that shows which rank came last to each collective.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::table_output::{Cell, Table};
use gpuflame_model::profile::format_nanos;
use gpuflame_offline::analysis::{
    CollectiveArrivals, CollectiveKernels, Lateness, NotComparable, compare_arrivals,
};

/// Returns the table, with at most `most` ranks for each collective and set of ranks. `withheld` contains the collectives
/// that cannot be compared because a rank that ran them has only sums, with the number of ranks that ran them.
pub(super) fn arrival_table(
    ranks: &BTreeMap<u32, CollectiveKernels>,
    withheld: &BTreeMap<String, u64>,
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
    let compared = compare_arrivals(ranks);
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
