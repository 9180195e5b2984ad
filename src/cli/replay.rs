//! `gpuflame replay`: computes the times of a run from the dependencies between its calls and GPU work.

use clap::Args;
use sha2::{Digest, Sha256};

use super::console::{Console, Outcome, usage_error};
use super::found_path::FoundPath;
use super::heading::heading;
use super::input::Source;
use super::output::Target;
use super::path_names::why_words;
use super::replay_part::PartFlags;
use super::table_output::{Cell, ReportFlags, Table, group_digits, write_csv};
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::profile::format_nanos;
use gpuflame_offline::analysis::{
    EdgeKind, ExplainedStarts, LaunchAnchor, MomentKind, Replay, ReplayCheck, Schedule,
};

/// Minimum number of starts of GPU work for `--model`. 16 starts give 8 samples in each half of the run.
const MIN_STARTS: u64 = 16;

/// Replay a run: compute the time of every call and every piece of GPU work from its dependencies.
///
/// No kernel is executed, and the contents of memory are not known: the replay is arithmetic on recorded durations. The
/// replay shows to what extent the records explain the run. `gpuflame what-if` is based on the replay. docs/replay.md
/// states the rules.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame replay trace.json.gz\n  \
    gpuflame replay trace.json.gz --check\n  \
    gpuflame replay run.gfr --model\n  \
    gpuflame replay run.gfr --step 3 --schedule times.csv")]
pub(super) struct ReplayVerb {
    /// Recording or trace (`-`: standard input).
    input: Source,
    /// Predict the second half of the run with the typical delays of the first half, instead of the recorded delays.
    #[arg(long)]
    model: bool,
    /// Check that every replayed time equals the recorded time, in any order of computation, and that a second replay
    /// has the same result. The exit code is 1 if the check fails.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    part: PartFlags,
    /// File for the start and end of every piece of GPU work (`.csv`).
    #[arg(long, value_name = "FILE")]
    schedule: Option<Target>,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

impl ReplayVerb {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        if let Some(ending) = self.schedule.as_ref().and_then(Target::ending)
            && ending != "csv"
        {
            return Err(usage_error(format!(
                "cannot write the schedule as .{ending}; end the name of --schedule in .csv"
            )));
        }
        let found = FoundPath::read_to_replay(&self.input, console)?;
        let is_outside = self.part.outside(&self.input, &found)?;
        let profile = &found.explained.profile;
        let mut replay = Replay::new(&found.path, &found.list, profile);
        let starts = replay.explained_starts();
        let schedule = if self.model {
            if starts.count < MIN_STARTS {
                let what = format!(
                    "{} pieces of work are too few to predict one half from the other; at least {MIN_STARTS} are needed",
                    starts.count
                );
                return Err(Error::new(ErrorKind::Format, format!("{}: {what}", self.input)));
            }
            let half = half_of(&found);
            replay = Replay::fitted(&found.path, &found.list, profile, half);
            let is_given = self.part.is_given();
            replay.model(&|at, moment| is_outside(at, moment) || (!is_given && moment.time <= half))
        } else {
            replay.partial(&*is_outside)
        };
        if let Some(target) = &self.schedule {
            write_schedule(&found, &schedule, target, console)?;
        }
        let mut tables = vec![
            replay_table(&found, &schedule, &starts, self.model),
            lag_table(&replay),
            unexplained_table(&starts),
        ];
        let check = self.check.then(|| replay.check());
        let mut is_repeated = true;
        if let Some(check) = check {
            let again = Replay::new(&found.path, &found.list, profile).partial(&*is_outside);
            let first = Replay::new(&found.path, &found.list, profile).partial(&*is_outside);
            is_repeated = digest(&found, &first) == digest(&found, &again);
            tables.push(check_table(check, is_repeated));
        }
        tables.push(digest_table(&found, &schedule));
        let lines = [heading(&self.input, profile), answer(&found, &schedule, &starts, self.model)];
        self.report.write(console, &lines, &tables)?;
        match check {
            Some(check) if !check.holds() || !is_repeated => {
                let what = "the replay does not hold; `no` in the table of checks says where";
                Err(Error::new(ErrorKind::Format, format!("{}: {what}", self.input)))
            }
            _ => Ok(Outcome::Clean),
        }
    }
}

/// Returns the time, in ns, at which half of the pieces of GPU work have begun.
fn half_of(found: &FoundPath) -> u64 {
    let begins: Vec<u64> = found
        .path
        .moments()
        .iter()
        .filter(|moment| moment.kind == MomentKind::Begin)
        .map(|moment| moment.time)
        .collect();
    begins.get(begins.len() / 2).copied().unwrap_or(0)
}

/// Returns the difference between the replayed and the recorded end of the run, and the length of the predicted time
/// range, both in ns.
fn end_difference(found: &FoundPath, schedule: &Schedule, is_model: bool) -> (i64, u64) {
    let (from, to) = found.path.window();
    let start = if is_model { half_of(found).max(from) } else { from };
    (schedule.window().1 as i64 - to as i64, to - start)
}

fn percent(part: i64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

fn answer(found: &FoundPath, schedule: &Schedule, starts: &ExplainedStarts, is_model: bool) -> String {
    let (difference, predicted) = end_difference(found, schedule, is_model);
    let explained = starts
        .share()
        .map_or_else(|| "no starts".to_owned(), |share| format!("{share:.1} % of the starts explained"));
    let end = match (is_model, difference) {
        (true, _) => format!(
            "second half of {} predicted with {:+.2} %",
            format_nanos(predicted),
            percent(difference, predicted)
        ),
        (false, 0) => "every time as recorded".to_owned(),
        (false, _) => format!("the end differs by {difference} ns"),
    };
    format!("replay of {}: {end}; {explained}", format_nanos(found.path.window().1 - found.path.window().0))
}

fn replay_table(found: &FoundPath, schedule: &Schedule, starts: &ExplainedStarts, is_model: bool) -> Table {
    let (difference, predicted) = end_difference(found, schedule, is_model);
    let mut table = Table::new(
        "replay",
        &[
            "predicted_ns",
            "difference_ns",
            "difference_percent",
            "streams",
            "starts",
            "explained",
            "explained_percent",
        ],
    );
    table.add_row([
        Cell::Nanos(predicted.saturating_add_signed(difference)),
        Cell::Change(difference),
        Cell::Share(percent(difference, predicted)),
        Cell::Count(starts.streams as u64),
        Cell::Count(starts.count),
        Cell::Count(starts.explained),
        starts.share().map_or(Cell::Nothing, Cell::Share),
    ]);
    table
}

/// Returns the table of typical lags between a cause and its effect, such as a launch and the start of its kernel.
fn lag_table(replay: &Replay<'_>) -> Table {
    let mut table = Table::new("lags", &["lag_ns", "samples", "of", "submitted", "from", "function"]);
    for row in replay.lags().rows() {
        let from = match (row.anchor, row.kind) {
            (Some(LaunchAnchor::End), _) => "end of the call",
            (Some(LaunchAnchor::Begin), _) => "begin of the call",
            (None, EdgeKind::Programmatic) => "begin",
            (None, _) => "end",
        };
        table.add_row([
            Cell::Change(row.nanos),
            Cell::Count(row.samples as u64),
            row.kind.word().into(),
            row.submitted.map_or(Cell::Nothing, Into::into),
            from.into(),
            row.function.map_or(Cell::Nothing, Cell::Text),
        ]);
    }
    table
}

/// Returns a table of GPU work whose start the records do not explain. The table has one row per cause.
fn unexplained_table(starts: &ExplainedStarts) -> Table {
    let mut table = Table::new("unexplained_starts", &["time_ns", "starts", "cause", "meaning"]);
    let mut rows: Vec<_> = starts.late.iter().collect();
    rows.sort_by_key(|(why, (_, nanos))| (std::cmp::Reverse(*nanos), **why));
    for (why, (count, nanos)) in rows {
        table.add_row([Cell::Nanos(*nanos), Cell::Count(*count), why.word().into(), why_words(*why).into()]);
    }
    let others = [
        (starts.early, "early", "the work began more than 2 us earlier than its dependencies say"),
        (starts.unknown, "no_dependency", "nothing is recorded that the work depends on"),
    ];
    for (count, word, meaning) in others.into_iter().filter(|(count, ..)| *count > 0) {
        table.add_row([Cell::Nothing, Cell::Count(count), word.into(), meaning.into()]);
    }
    table
}

fn check_table(check: ReplayCheck, is_repeated: bool) -> Table {
    let mut table = Table::new("checks", &["holds", "check"]);
    let differing = match check.different {
        0 => "all times equal the recorded ones".to_owned(),
        count => format!(
            "{} of {} times equal the recorded ones; the largest difference is {}",
            group_digits(check.moments - count),
            group_digits(check.moments),
            format_nanos(check.largest_ns)
        ),
    };
    let overlaps = match check.overlaps {
        0 => "work of one stream does not overlap, except by programmatic launch".to_owned(),
        count => {
            format!("{} pieces of work overlap the work before them on their stream", group_digits(count))
        }
    };
    let rows = [
        (check.different == 0, differing),
        (check.any_order, "another order of computation gives the same times".to_owned()),
        (is_repeated, "two replays give the same schedule, byte by byte".to_owned()),
        (check.overlaps == 0, overlaps),
        (check.adds_up, "for every stream, busy and idle time add up to the window".to_owned()),
    ];
    for (holds, what) in rows {
        table.add_row([if holds { "yes" } else { "no" }.into(), Cell::Text(what)]);
    }
    table
}

/// Returns the schedule as a table with one row per kernel, copy or fill.
fn schedule_table(found: &FoundPath, schedule: &Schedule) -> Table {
    let zero = found.path.window().0;
    let moment = |time: u64| Cell::Moment(time as i64 - zero as i64);
    let id = |id: Option<u32>| id.map_or(Cell::Nothing, |id| Cell::Id(id.into()));
    let columns = &[
        "instruction",
        "device",
        "stream",
        "start_ns",
        "end_ns",
        "recorded_start_ns",
        "recorded_end_ns",
        "name",
    ];
    let mut table = Table::new("schedule", columns);
    for work in schedule.works(found.path.moments(), &found.list) {
        let instruction = found.list.get(work.instruction);
        let (start, end) = instruction.ran.unwrap_or_default();
        table.add_row([
            Cell::Id(work.instruction.into()),
            id(instruction.device.map(|device| device.0)),
            id(instruction.stream.map(|stream| stream.0)),
            moment(work.start),
            moment(work.end),
            moment(start.0),
            moment(end.0),
            Cell::Text(found.names().instruction(work.instruction).into_owned()),
        ]);
    }
    table
}

fn write_schedule(found: &FoundPath, schedule: &Schedule, target: &Target, console: Console) -> Result<()> {
    let table = schedule_table(found, schedule);
    target.write(console, |out| write_csv(std::slice::from_ref(&table), out))
}

/// Returns the SHA-256 digest of the starts and ends of all GPU work, in the order of the recorded starts.
fn digest(found: &FoundPath, schedule: &Schedule) -> String {
    let mut hash = Sha256::new();
    for work in schedule.works(found.path.moments(), &found.list) {
        hash.update(format!("{},{},{}\n", work.instruction, work.start, work.end));
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digest_table(found: &FoundPath, schedule: &Schedule) -> Table {
    let mut table = Table::new("digest", &["sha256"]);
    table.add_row([Cell::Text(digest(found, schedule))]);
    table
}
