//! `gpuflame causal`: computes how much faster the run would be if a function or a kernel were faster.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::thread;

use clap::Args;

use super::console::{Console, Outcome, usage_error};
use super::found_path::FoundPath;
use super::heading::heading;
use super::input::Source;
use super::output::Target;
use super::path_names::NameKey;
use super::replayed_steps::ReplayedStep;
use super::table_output::{Cell, ReportFlags, Table};
use gpuflame_export::compose::call;
use gpuflame_model::error::Result;
use gpuflame_model::profile::format_nanos;
use gpuflame_model::record::{ContextId, IdMap, Work};
use gpuflame_offline::analysis::{
    Edit, InstructionDetail, InstructionKind, PathClass, PathPart, Replay, Schedule, Selection, What,
};
use gpuflame_offline::formats::{FoldedStacks, write_lines_folded, write_lines_svg};

/// Speed-up for which the table shows the saved time. The speed-up is a share of the time that the function or kernel
/// itself takes.
const SPEED_UP: f64 = 0.1;
/// Additional speed-ups in percent. The time that the run saves is computed for each additional speed-up. These saved
/// times determine the largest speed-up up to which the saved time grows linearly.
const SPEED_UPS: [u32; 9] = [20, 30, 40, 50, 60, 70, 80, 90, 100];
/// Maximum relative difference between the saved time and a value that grows linearly with the speed-up. If the
/// difference is at most this large, the saved time counts as growing linearly.
const SLOPE_TOLERANCE: f64 = 0.02;

/// Compare functions and kernels: how much faster would the run be if one of them were 10 % faster?
///
/// Each function of the host and each kernel on the critical path is made 10 % faster in a replay. Functions and
/// kernels that are not on the critical path change nothing. docs/what-if.md states what the replay assumes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame causal trace.json.gz\n  \
    gpuflame causal run.gfr --step 3 -n 5\n  \
    gpuflame causal run.gfr --picture causal.svg")]
pub(super) struct Causal {
    /// Recording or trace (`-`: standard input).
    input: Source,
    /// Maximum number of functions and kernels; 0: all on the critical path.
    #[arg(short, long, default_value_t = 20)]
    number: usize,
    /// Measure the change of this step, counted from 1 (default: all steps; without steps, the run).
    #[arg(long, value_name = "N")]
    step: Option<usize>,
    /// Draw the saved time as a flame graph (`.svg`), or write it as folded stacks (`.folded`), in addition to the
    /// table.
    #[arg(long, value_name = "FILE")]
    picture: Option<Target>,
    #[command(flatten)]
    pub(super) report: ReportFlags,
}

/// A kernel or host function whose speed-up is evaluated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Candidate {
    /// All kernels, copies or fills with this name.
    Work(String),
    /// A host function: the CUDA calls that it makes, and the time that it takes before each call.
    Function(String),
}

/// A candidate and the effect of its speed-up.
struct Effect {
    candidate: Candidate,
    path_ns: u64,
    saved_ns: u64,
    /// Largest speed-up in percent up to which the saved time grows linearly.
    holds_to: u32,
}

impl Causal {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        if let Some(ending) = self.picture.as_ref().and_then(Target::ending)
            && !["svg", "folded", "txt"].contains(&ending)
        {
            return Err(usage_error(format!(
                "cannot draw as .{ending}; end the name of --picture in .svg or .folded"
            )));
        }
        let found = FoundPath::read(&self.input, console)?;
        let span = self.span(&found)?;
        let replay = Replay::new(&found.path, &found.list, &found.explained.profile);
        let functions = Functions::new(&found);
        let measured = self.measured(&found);
        let whole = length(&replay.identity(), measured);
        let on_path = self.candidates(&found, &functions, span);
        let effect = |(candidate, path_ns): (Candidate, u64)| {
            let mut edits = [functions.edit(&candidate)];
            let mut saved = |speed_up: f64| {
                edits[0].set_factor(1.0 - speed_up);
                whole.saturating_sub(length(&replay.edited(&edits), measured))
            };
            let saved_ns = saved(SPEED_UP);
            let mut keeps = |percent: &u32| {
                let speed_up = f64::from(*percent) / 100.0;
                let linear = saved_ns as f64 * speed_up / SPEED_UP;
                (saved(speed_up) as f64 - linear).abs() <= SLOPE_TOLERANCE * linear
            };
            let held = SPEED_UPS.iter().take_while(|percent| saved_ns > 0 && keeps(percent)).last();
            let holds_to = held.copied().unwrap_or(10);
            Effect { candidate, path_ns, saved_ns, holds_to }
        };
        let mut effects = map_in_parallel(on_path, &effect);
        effects.sort_by(|a, b| b.saved_ns.cmp(&a.saved_ns).then_with(|| a.candidate.cmp(&b.candidate)));
        if let Some(target) = &self.picture {
            draw(&found, &functions, &effects, target, console)?;
        }
        let lines = [heading(&self.input, &found.explained.profile), answer(&effects, whole)];
        self.report.write(console, &lines, &[effect_table(&effects, whole)])?;
        Ok(Outcome::Clean)
    }

    /// Returns the time range whose candidates are compared, or `None` for the whole run.
    fn span(&self, found: &FoundPath) -> Result<Option<(u64, u64)>> {
        let spans = found.explained.facts.steps.spans();
        match self.step {
            Some(step) => found.step(&self.input, step).map(Some),
            None => Ok(spans.first().zip(spans.last()).map(|(first, last)| (first.0, last.1))),
        }
    }

    /// Returns the time range whose change in duration is measured, or `None` for the whole run.
    fn measured(&self, found: &FoundPath) -> Option<ReplayedStep> {
        // The time before the first call and the time after the last call are included, although the path does not
        // cover these times.
        let spans = found.explained.facts.steps.spans();
        let span = match self.step {
            Some(step) => *spans.get(step.checked_sub(1)?)?,
            None => (spans.first()?.0, spans.last()?.1),
        };
        ReplayedStep::find(found, &[span]).first().copied()
    }

    /// Returns the candidates on the critical path within `span`, each with its time on the path in ns, largest time
    /// first.
    fn candidates(
        &self,
        found: &FoundPath,
        functions: &Functions<'_>,
        span: Option<(u64, u64)>,
    ) -> Vec<(Candidate, u64)> {
        let (from, to) = span.unwrap_or((0, u64::MAX));
        // The name of a candidate is computed once for all parts of the path that have the same key.
        let mut by_key: IdMap<_, (u64, &PathPart)> = IdMap::default();
        for part in found.path.parts() {
            let nanos = part.end.min(to).saturating_sub(part.start.max(from));
            if let Some(key) = functions.key(part).filter(|_| nanos > 0) {
                by_key.entry(key).or_insert((0, part)).0 += nanos;
            }
        }
        let mut sums: BTreeMap<Candidate, u64> = BTreeMap::new();
        for (nanos, part) in by_key.into_values() {
            if let Some(candidate) = functions.candidate(part) {
                *sums.entry(candidate).or_default() += nanos;
            }
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        sums.truncate(if self.number == 0 { usize::MAX } else { self.number });
        sums
    }
}

/// Returns the time in ns that the measured part of the recorded run takes in a schedule.
fn length(schedule: &Schedule, measured: Option<ReplayedStep>) -> u64 {
    let whole = || schedule.window().1 - schedule.window().0;
    measured.and_then(|step| step.duration_in(schedule)).unwrap_or_else(whole)
}

/// Calls `make` with each item, on as many threads as processors are available. Returns the results in the order of the
/// items.
fn map_in_parallel<T: Send, R: Send>(items: Vec<T>, make: &(impl Fn(T) -> R + Sync)) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    if threads <= 1 {
        return items.into_iter().map(make).collect();
    }
    let queue = Mutex::new(items.into_iter().enumerate());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || std::iter::from_fn(next).map(|(at, item)| (at, make(item))).collect::<Vec<_>>();
    let mut results: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut results = work();
        for worker in workers {
            results.extend(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        results
    });
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Key of a candidate. Several keys of parts may belong to the same candidate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum CandidateKey<'a> {
    Work(NameKey<'a>),
    /// Context whose stack contains the function: the launch context of a call, or a stack between two calls.
    Function(ContextId),
}

/// Finds the function that made a CUDA call, and the name of a kernel, copy or fill.
struct Functions<'a> {
    found: &'a FoundPath,
    /// Function whose speed-up is evaluated, keyed by a context. The context is that of a call, or of a stack between
    /// two calls. `None` if the stack contains no named function.
    of_context: IdMap<ContextId, Option<String>>,
    /// Time in ns that a function takes before each of its calls, keyed by the function's name and the index of the
    /// call.
    before: HashMap<String, IdMap<u32, u64>>,
}

impl<'a> Functions<'a> {
    fn new(found: &'a FoundPath) -> Self {
        let (names, calls) = (found.names(), found.path.calls());
        let mut of_context = IdMap::default();
        for host in calls {
            let of_call = || call(&found.explained.profile, host.context).to_owned();
            let function = || Some(names.function_of(host.context).unwrap_or_else(of_call));
            of_context.entry(host.context).or_insert_with(function);
        }
        // The host times are summed per stack first, because there are fewer stacks than host times.
        let mut by_context: IdMap<ContextId, IdMap<u32, u64>> = IdMap::default();
        found.path.each_time_between(&found.history, &mut |call, context, nanos| {
            let function = |context: ContextId| {
                names.function_of(context).or_else(|| names.innermost(context).map(str::to_owned))
            };
            let known = context
                .filter(|context| of_context.entry(*context).or_insert_with(|| function(*context)).is_some());
            let context = known.unwrap_or(calls[call as usize].context);
            *by_context.entry(context).or_default().entry(call).or_default() += nanos;
        });
        let mut before: HashMap<String, IdMap<u32, u64>> = HashMap::new();
        for (context, times) in by_context {
            let function = of_context.get(&context).cloned().flatten().unwrap_or_default();
            let of_function = before.entry(function).or_default();
            times.into_iter().for_each(|(call, nanos)| *of_function.entry(call).or_default() += nanos);
        }
        Self { found, of_context, before }
    }

    fn function(&self, context: ContextId) -> Option<&String> {
        self.of_context.get(&context)?.as_ref()
    }

    /// Returns the key of the candidate to which a part of the path belongs, or `None` for waits, launches and gaps.
    fn key(&self, part: &PathPart) -> Option<CandidateKey<'a>> {
        let of_call =
            |at: u32| Some(CandidateKey::Function(self.found.path.calls().get(at as usize)?.context));
        match (part.class, part.what) {
            (PathClass::Kernel | PathClass::Memory | PathClass::Graph, What::Instruction(_)) => {
                Some(CandidateKey::Work(self.found.names().key(part)))
            }
            (PathClass::Call, What::Call(at)) | (PathClass::Host, What::Between(_, at)) => of_call(at),
            (PathClass::Call | PathClass::Host, What::Stack { before, context, .. }) => {
                match self.function(context) {
                    Some(_) => Some(CandidateKey::Function(context)),
                    None => of_call(before),
                }
            }
            _ => None,
        }
    }

    /// Returns the candidate to which a part of the path belongs, or `None` for waits, launches and gaps.
    fn candidate(&self, part: &PathPart) -> Option<Candidate> {
        match self.key(part)? {
            CandidateKey::Work(_) => Some(Candidate::Work(self.found.names().name(part).into_owned())),
            CandidateKey::Function(context) => self.function(context).cloned().map(Candidate::Function),
        }
    }

    /// Returns the change that makes a candidate faster. The returned change has the factor 1, which the caller
    /// replaces.
    fn edit(&self, candidate: &Candidate) -> Edit {
        match candidate {
            Candidate::Work(name) => {
                let list = &self.found.list;
                let names = self.found.names();
                let mut matches: IdMap<(InstructionKind, Work), bool> = IdMap::default();
                let work = Selection::new(list.len(), |number| {
                    let InstructionDetail::Work { activity, .. } = list.get(number).detail else {
                        return false;
                    };
                    let is_match = || names.instruction(number).as_ref() == name.as_str();
                    *matches.entry((list.kind(number), activity.work())).or_insert_with(is_match)
                });
                Edit::Scale { work, factor: 1.0 }
            }
            Candidate::Function(name) => {
                let is_own =
                    |(context, own): (&ContextId, &Option<String>)| (*context, own.as_ref() == Some(name));
                let is_own: IdMap<ContextId, bool> = self.of_context.iter().map(is_own).collect();
                let calls = self.found.path.calls();
                let calls = Selection::new(calls.len(), |at| is_own[&calls[at as usize].context]);
                let before = self.before.get(name).cloned().unwrap_or_default();
                Edit::ScaleHost { calls, before, factor: 1.0 }
            }
        }
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

fn answer(effects: &[Effect], whole: u64) -> String {
    match effects.first().filter(|first| first.saved_ns > 0) {
        Some(first) => {
            let (Candidate::Work(name) | Candidate::Function(name)) = &first.candidate;
            let shorter = percent(first.saved_ns, whole);
            let length = format_nanos(whole);
            format!("`{name}` 10 % faster makes {length} {shorter:.2} % shorter, more than anything else")
        }
        None => format!("nothing on the critical path of {} gets faster by itself", format_nanos(whole)),
    }
}

fn effect_table(effects: &[Effect], whole: u64) -> Table {
    let mut table = Table::new(
        "causal",
        &["saved_percent", "saved_ns", "on_path_ns", "holds_to_percent", "kind", "name"],
    );
    for effect in effects {
        let (kind, name) = match &effect.candidate {
            Candidate::Work(name) => ("work", Cell::Kernels(vec![name.clone()])),
            Candidate::Function(name) => ("function", Cell::Text(name.clone())),
        };
        table.add_row([
            Cell::Share(percent(effect.saved_ns, whole)),
            Cell::Nanos(effect.saved_ns),
            Cell::Nanos(effect.path_ns),
            Cell::Count(effect.holds_to.into()),
            kind.into(),
            name,
        ]);
    }
    table
}

/// Draws the time that would be saved if each function and kernel were 10 % faster. The saved time of a function or
/// kernel is drawn under the stacks in which the function or kernel occurs on the path.
fn draw(
    found: &FoundPath,
    functions: &Functions<'_>,
    effects: &[Effect],
    target: &Target,
    console: Console,
) -> Result<()> {
    let saved: HashMap<&Candidate, &Effect> =
        effects.iter().map(|effect| (&effect.candidate, effect)).collect();
    let mut lines = FoldedStacks::default();
    for part in found.path.parts() {
        let Some(candidate) = functions.candidate(part) else { continue };
        let Some(effect) = saved.get(&candidate) else { continue };
        let share = effect.saved_ns as f64 / effect.path_ns.max(1) as f64;
        let nanos = ((part.end - part.start) as f64 * share).round() as u64;
        // The time between two calls is attributed to the function that made the second call, so this time is drawn
        // under that function.
        let what = if let What::Between(_, at) = part.what { What::Call(at) } else { part.what };
        lines.add_folded(&found.names().folded(&PathPart { what, ..*part }), nanos);
    }
    let title = "Time saved if each function and kernel were 10 % faster".to_owned();
    let options = gpuflame_export::Options { title: Some(title), ..gpuflame_export::Options::default() };
    match target.ending() {
        Some("svg") => target.write(console, |out| write_lines_svg(&lines, &options, out)),
        _ => target.write(console, |out| write_lines_folded(&lines, options.unit, out)),
    }
}
