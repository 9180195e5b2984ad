//! Sums and loss counts of a chaos program: the expected values, and the values that gpuflame reported.

use std::collections::BTreeMap;

use gpuflame_explain::Ledger;
use gpuflame_model::record::Loss;
use serde_json::Value;

use crate::support::{Done, plain};

/// A kernel, copy or fill, as listed in the simulated stack's truth file.
pub(super) struct Piece {
    pub(super) site: String,
    pub(super) leaf: String,
    pub(super) nanos: u64,
    pub(super) enter: u64,
    pub(super) fault: Option<String>,
    pub(super) fate: String,
}

impl Piece {
    pub(super) fn of(line: &Value) -> Self {
        let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
        let fault = line["fault"].as_str().map(str::to_owned);
        let leaf = match (text("kind").as_str(), fault.as_deref()) {
            ("memset", _) => "[GPU_Memset]".to_owned(),
            (_, Some("name_null")) => "[GPU_Kernel][unnamed kernel]".to_owned(),
            (_, Some("name_bad_utf8")) => "[GPU_Kernel]_Z\u{fffd}\u{fffd}\u{fffd}kernel".to_owned(),
            (_, Some("name_4k")) => format!("[GPU_Kernel]{}", "k".repeat(4096)),
            _ => format!("[GPU_Kernel]{}", plain(&text("name"))),
        };
        let time = |field: &str| line[field].as_u64().unwrap();
        let nanos = time("end") - time("start");
        Self { site: text("site"), leaf, nanos, enter: time("enter"), fault, fate: text("delivered") }
    }

    pub(super) fn has(&self, faults: &[&str]) -> bool {
        self.fault.as_deref().is_some_and(|fault| faults.contains(&fault))
    }

    pub(super) fn is_fill(&self) -> bool {
        self.leaf == "[GPU_Memset]"
    }
}

/// Faults that make the times in an activity record unusable for sums.
const UNTIMED: [&str; 5] = ["zero_ts", "reversed", "epoch", "next_year", "endless"];
pub(super) const NO_STACK: &str = "[no launch stack]";

/// GPU time in nanoseconds, keyed by call site and leaf frame.
pub(super) type Sums = BTreeMap<(String, String), u64>;

/// Counts that the ledger contains, and sums that the flame graph contains. The counts and sums in an account are
/// either the expected ones or the reported ones.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) launches: u64,
    pub(super) matched: u64,
    pub(super) pending: u64,
    /// Number of launches that were made while no window was open, because the process was about to end.
    pub(super) outside: u64,
    pub(super) launches_dropped: u64,
    pub(super) activities: u64,
    pub(super) activities_matched: u64,
    pub(super) no_stack: u64,
    pub(super) activities_outside: u64,
    /// Number of activity records that CUPTI delivered a second time.
    pub(super) repeated: u64,
    /// Number of activities whose correlation id is not the id of any call.
    pub(super) of_no_call: u64,
    pub(super) activities_dropped: u64,
    pub(super) untimed: u64,
    pub(super) unreadable: u64,
    pub(super) sums: Sums,
}

impl Account {
    /// Returns the counts and sums that a run with this GPU work must report. `is_dropped` and `is_delivered` tell
    /// whether the record of a kernel, copy or fill was dropped or delivered.
    pub(super) fn of<'a>(
        work: impl IntoIterator<Item = &'a Piece>,
        is_dropped: impl Fn(&Piece) -> bool,
        is_delivered: impl Fn(&Piece) -> bool,
    ) -> Self {
        let mut all = Self::default();
        for piece in work {
            all.launches += 1;
            all.activities_dropped += u64::from(is_dropped(piece));
            if !is_delivered(piece) {
                all.pending += 1;
                continue;
            }
            all.matched += 1;
            all.activities_matched += 1;
            all.repeated += u64::from(piece.has(&["dup_corr"]));
            all.unreadable += u64::from(piece.has(&["unknown_kind"]));
            if piece.has(&UNTIMED) {
                all.untimed += 1;
            } else {
                *all.sums.entry((piece.site.clone(), piece.leaf.clone())).or_default() += piece.nanos;
            }
            // With the fault `unmatched_corr`, CUPTI delivers a second copy of the record, whose correlation id belongs
            // to no call.
            all.of_no_call += u64::from(piece.has(&["unmatched_corr"]));
        }
        all.activities = all.activities_matched + all.no_stack + all.activities_dropped;
        all
    }

    /// Returns the counts and sums that a run reported: those of the ledger on stderr, and those in its folded file.
    pub(super) fn told(done: &Done, folded: &str) -> Self {
        let (launches, became) = done.sum("launches");
        let (activities, found) = done.sum("activities");
        let delivered = |which: &str| -> u64 {
            let counts = done.ledger("CUPTI delivered ");
            let count = counts.iter().find_map(|line| {
                Some(line.split_once(" activities ")?).filter(|(_, rest)| rest.starts_with(which))
            });
            count.map_or(0, |(count, _)| count.parse().unwrap())
        };
        let lost = done.ledger("lost: ");
        let lost = |word: &str| {
            let mut parts = lost[0].split(", ").map(|part| part.rsplit_once(' ').unwrap());
            parts.find(|(name, _)| *name == word).map(|(_, count)| count.parse::<u64>().unwrap()).unwrap()
        };
        assert_eq!(found["device_graph"], 0);
        Self {
            launches,
            matched: became["matched"],
            pending: became["launch_pending"],
            outside: became["outside"],
            launches_dropped: became["dropped"],
            activities,
            activities_matched: found["matched"],
            no_stack: found["no_launch_stack"] + found["launched_before_recording"],
            activities_outside: found["outside"],
            repeated: delivered("twice"),
            of_no_call: delivered("with impossible correlation ids"),
            activities_dropped: found["dropped"],
            untimed: lost("timestamp_not_collected"),
            unreadable: lost("activities_unreadable"),
            sums: sums(done.folded_file(folded)),
        }
    }

    /// Returns the counts and sums in the recording, which the test reads after the run.
    pub(super) fn read(ledger: &Ledger, folded: Vec<(Vec<String>, u64)>) -> Self {
        for sum in ledger.sums() {
            assert!(sum.holds(), "{sum}");
        }
        let (launches, activities) = (ledger.tally.launches, ledger.tally.activities);
        assert_eq!(activities.device_graph, 0);
        Self {
            launches: ledger.launches().total,
            matched: launches.matched,
            pending: launches.pending,
            outside: launches.outside,
            launches_dropped: ledger.launches().total - launches.seen,
            activities: ledger.activities().total,
            activities_matched: activities.matched,
            no_stack: activities.no_stack + activities.launched_before,
            activities_outside: activities.outside,
            repeated: activities.repeated,
            of_no_call: activities.of_no_call,
            activities_dropped: ledger.lost(Loss::ActivitiesDropped),
            untimed: activities.untimed,
            unreadable: ledger.lost(Loss::ActivitiesUnreadable),
            sums: sums(folded),
        }
    }
}

/// Returns the GPU time for each call site (the launching function) and leaf frame.
fn sums(folded: Vec<(Vec<String>, u64)>) -> Sums {
    let mut sums = Sums::new();
    for (mut frames, nanos) in folded.into_iter().filter(|(_, nanos)| *nanos > 0) {
        let leaf = frames.pop().unwrap();
        // If a correlation id never existed, it may be lower than all real ids, and gpuflame then labels its activity
        // as launched before the recording.
        if frames[0] == "[launched before recording]" {
            frames[0] = NO_STACK.to_owned();
        }
        let sites = ["launch", "interrupted_launch", "fill", NO_STACK];
        let site = sites.into_iter().find(|site| frames.iter().any(|frame| frame == site));
        let site = site.unwrap_or_else(|| panic!("launched at none of the sites: {frames:?};{leaf} {nanos}"));
        *sums.entry((site.to_owned(), leaf)).or_default() += nanos;
    }
    sums
}
