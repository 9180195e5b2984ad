//! Findings about a run: doubtful records, and time that the GPUs lost. Each finding is a function, and all are one list.
//!
//! ```text
//! records: counts, losses, clocks          -> findings about records
//! lost_time: gaps, divided among causes    -> host: why the host was late
//! steps, streams: durations over time      -> steps, kernels and GPUs that differ
//! ```

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

/// Innermost functions of user code, by stack.
pub struct UserFunctions<'a>(Places<'a>);

impl<'a> UserFunctions<'a> {
    /// Prepares the names of a run.
    pub fn new(profile: &'a Profile) -> Self {
        Self(Places::new(profile))
    }

    /// Returns the innermost function of user code in a stack; empty if it is unknown.
    pub fn of(&self, context: ContextId) -> Rc<str> {
        self.0.of(SampleSite::Context(context)).function.clone()
    }
}

/// A check and the result of the check.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Stable name of the check, for programs.
    pub id: &'static str,
    /// Severity of the finding.
    pub severity: Severity,
    /// Number of occurrences, if the check counts occurrences.
    pub figures: Option<Figures>,
    /// Time that the GPUs lost, in ns, if the check measures it. Times of different findings may overlap, so they do not
    /// add up.
    pub cost: Option<u64>,
    /// Short description of the check.
    pub what: &'static str,
    /// Place in the code, or the GPU, that is responsible; empty if there is none.
    pub culprit: String,
    /// Innermost function of the culprit, as stacks name it; empty if it is unknown or not one function.
    pub function: String,
    /// Rank that the finding is about; `None` if it is about a run alone or about several ranks.
    pub rank: Option<u32>,
    /// Reason why the finding matters; empty if nothing was found.
    pub why: Cow<'static, str>,
}

/// Severity of a finding, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The finding makes sums, links or orders wrong, for more than a thousandth of the operations or of the busy
    /// time.
    Bad,
    /// The finding costs time.
    Cost,
    /// The finding is worth knowing.
    Note,
    /// The input lacks the data for the check.
    Unknown,
    /// The check looked for occurrences and found none.
    Absent,
    /// The finding is a fact, not a problem.
    Fine,
}

impl Severity {
    /// Word for the severity in reports.
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

/// A count of occurrences and the total that contains them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Number of occurrences.
    pub count: u64,
    /// Total that the occurrences are part of; 0 if unknown.
    pub of: u64,
}

/// Time that the GPUs lost for one reason.
#[derive(Clone, Debug, Default)]
struct Cost {
    id: &'static str,
    nanos: u64,
    count: u64,
    why: String,
    /// The place in words, the user's function and the executed line.
    words: String,
    function: String,
    line: String,
    device: Option<DeviceId>,
    /// The rank that a finding of a job is about, if it is about one.
    rank: Option<u32>,
    /// Context whose place is the culprit, if no place is given.
    launched_by: Option<ContextId>,
}

impl Cost {
    fn at(place: &Place) -> Self {
        let Place { words, function, line, within, caller, range, .. } = place;
        let mut words = words.clone();
        if !range.is_empty() && !words.contains(&**range) {
            words += &format!(", in the range {range}");
        }
        if !function.is_empty() && !within.is_empty() && !words.contains(&**within) {
            words += &format!(", in {within}");
        }
        if !caller.is_empty() && caller != "main" && !words.contains(&**caller) {
            words += &format!(", called by {caller}");
        }
        Self { words, function: function.to_string(), line: line.clone(), ..Self::default() }
    }

    /// Returns the culprit in words: the place with its line, or the GPU.
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

/// Facts about a run that the findings about lost time need.
struct Lost<'a> {
    places: &'a Places<'a>,
    work: LaunchedWork,
    /// Whether most bytes that are copied to and from GPUs are in pageable memory.
    pageable: (bool, bool),
    /// Length of the steady part, in ns.
    wall: u64,
    /// Whether single activities are known.
    has_rows: bool,
    /// Whether the lost time is all time without kernels. If not, it is idle time, in which no copy runs either.
    is_kernel_time: bool,
}
