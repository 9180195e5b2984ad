//! Findings about a run: doubtful rows, and time that the GPUs lost. Each finding is produced by its own function, and
//! all findings are collected in one list.
//!
//! ```text
//! records: counts, losses, clocks          -> findings about records
//! lost_time: gaps, divided among causes    -> host: why the host was late
//! steps, streams: durations over time      -> steps, kernels and GPUs that differ
//! ```
//!
//! Costs are given for the steady part of a run, which excludes the run's start-up and shutdown. If no steady part is
//! known, costs are given for the whole run.

mod clocks;
mod collective_waits;
mod host;
mod host_states;
mod launched;
mod lost_time;
mod marks;
mod names;
mod pieces;
mod places;
mod ranks;
mod reads;
mod records;
mod rules;
mod steps;
mod stream_limit;
mod streams;
mod thresholds;

pub use host_states::HostStates;
pub use ranks::{RankRun, job_findings};
pub use records::{Evidence, count_unset_times, record_findings};
pub use rules::{RunCosts, RunEvidence, cost_findings, run_costs};

use std::borrow::Cow;
use std::rc::Rc;

use launched::LaunchedWork;
use places::{Place, Places};

use gpuflame_model::profile::{Profile, SampleSite};
use gpuflame_model::record::{ContextId, DeviceId};

/// Finds the innermost function of user code in each stack.
pub struct UserFunctions<'a>(Places<'a>);

impl<'a> UserFunctions<'a> {
    /// Creates the table of user functions from the names in a run.
    pub fn new(profile: &'a Profile) -> Self {
        Self(Places::new(profile))
    }

    /// Returns the innermost function of user code in a stack, or an empty string if it is unknown.
    pub fn of(&self, context: ContextId) -> Rc<str> {
        self.0.of(SampleSite::Context(context)).function.clone()
    }
}

/// A check and its outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Stable id of the check, for programs.
    pub id: &'static str,
    /// Severity of the finding.
    pub severity: Severity,
    /// Number of occurrences and total number, for example 3 of 40 activities, or `None` if the check does not count.
    pub figures: Option<Figures>,
    /// Time in ns that the GPUs lost, or `None` if the check does not measure it. The times of different findings may
    /// overlap, so their sum is not meaningful.
    pub cost: Option<u64>,
    /// Short description of the check.
    pub what: &'static str,
    /// Place in the code, or GPU, that is responsible. The text is empty if no place or GPU is responsible.
    pub culprit: String,
    /// Innermost function of the culprit, with the name that the function has in stacks. The name is empty if the
    /// function is unknown, or if the culprit is not a single function.
    pub function: String,
    /// Rank that the finding is about, or `None` if the finding is about a single run or about several ranks.
    pub rank: Option<u32>,
    /// Text that states why the finding matters. The text is empty if the check found nothing.
    pub why: Cow<'static, str>,
}

/// Severity of a finding. The severities are ordered from worst to best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The finding makes results wrong: sums, links or orders are wrong for more than a thousandth of the operations or
    /// of the busy time.
    Bad,
    /// The finding costs time.
    Cost,
    /// The finding is useful information, but does not make results wrong and has no cost.
    Note,
    /// The input lacks the data for the check.
    Unknown,
    /// The check looked for occurrences and found none.
    Absent,
    /// The finding states a fact and not a problem.
    Fine,
}

impl Severity {
    /// Returns the severity as a word for reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Bad => "BAD",
            Self::Cost => "cost",
            Self::Note => "note",
            Self::Unknown => "unknown",
            Self::Absent => "none",
            Self::Fine => "ok",
        }
    }
}

/// Number of occurrences and total number, as in "3 of 40".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Number of occurrences.
    pub count: u64,
    /// Total number of items that were checked, or 0 if this number is unknown.
    pub of: u64,
}

/// Time that the GPUs lost for one reason.
#[derive(Clone, Debug, Default)]
struct Cost {
    id: &'static str,
    nanos: u64,
    count: u64,
    why: String,
    /// Description of the place in the code. The fields after `words` contain the user's function and the executed
    /// line.
    words: String,
    function: String,
    line: String,
    device: Option<DeviceId>,
    /// Rank that a finding about a job refers to, if it refers to a single rank.
    rank: Option<u32>,
    /// Launch context whose place in the code is reported as the culprit, if the finding names no place.
    launched_by: Option<ContextId>,
}

impl Cost {
    fn at(place: &Place) -> Self {
        Self::within(place, &[])
    }

    /// Returns a cost at `place`. `shares` contains innermost functions or ranges, each with its percentage of the
    /// cost. If `shares` is empty, the innermost function and range of `place` are named.
    fn within(place: &Place, shares: &[(&str, f64)]) -> Self {
        let Place { words, function, line, within, caller, range, .. } = place;
        let mut words = words.clone();
        if !shares.is_empty() {
            let named = shares.iter().map(|(name, share)| format!("{name} ({share:.0} %)"));
            words += &format!(", in {}", named.collect::<Vec<_>>().join(" and "));
        } else {
            if !range.is_empty() && !words.contains(&**range) {
                words += &format!(", in the range {range}");
            }
            if !function.is_empty() && !within.is_empty() && !words.contains(&**within) {
                words += &format!(", in {within}");
            }
        }
        if !caller.is_empty() && caller != "main" && !words.contains(&**caller) {
            words += &format!(", called by {caller}");
        }
        Self { words, function: function.to_string(), line: line.clone(), ..Self::default() }
    }

    /// Returns a description of the culprit: the place with its line, or the GPU.
    fn culprit(&self) -> String {
        let mut parts = Vec::new();
        if !self.words.is_empty() {
            parts.push(self.words.clone());
        }
        if !self.function.is_empty() && !self.words.contains(&self.function) {
            parts.push(format!("in {}", self.function));
        }
        if !self.line.is_empty() && !self.function.contains(&self.line.replacen(':', "(", 1)) {
            parts.push(format!("({})", self.line));
        }
        if let Some(device) = self.device {
            parts.push(format!("on GPU {}", device.0));
        }
        parts.join(" ")
    }
}

/// Facts about a run on which the findings about lost time are based.
struct Lost<'a> {
    places: &'a Places<'a>,
    work: LaunchedWork,
    /// Two flags about pageable host memory: whether most bytes that are copied to GPUs come from pageable memory, and
    /// whether most bytes that are copied from GPUs go to pageable memory.
    pageable: (bool, bool),
    /// Duration of the steady part, in ns.
    wall: u64,
    /// Whether the data contains single activities in addition to sums.
    has_rows: bool,
    /// Whether lost time is all time without kernels (`true`), or idle time, in which neither a kernel nor a copy runs
    /// (`false`).
    is_kernel_time: bool,
}
