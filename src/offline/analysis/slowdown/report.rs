//! The slowdown of a job, and the shares that stages, workers and kinds of operations have in it.

use std::cmp::Reverse;

use super::even::mean;
use super::model::{JobModel, Op};

/// Minimum slowdown that is decomposed. Below it, the parts are smaller than the error of the simulation.
pub const MIN_DECOMPOSED: f64 = 1.03;
/// Share of the workers that count as the worst ones, in percent, rounded up to whole workers.
const WORST_WORKERS_PERCENT: usize = 3;

/// Slowdown of a job, and its parts.
#[derive(Clone, Debug, Default)]
pub struct SlowdownReport {
    /// Step times: measured, simulated and ideal.
    pub steps: Vec<StepTime>,
    /// Mean simulated step time, in ns.
    pub simulated: f64,
    /// Mean simulated step time with even durations, in ns.
    pub ideal: f64,
    /// Mean difference between a simulated and a measured step time, in percent of the measured one.
    pub error_percent: f64,
    /// Share of the slowdown that evening out the last stage removes. `None` if there is one stage, or the slowdown is
    /// too small.
    pub last_stage: Option<Share>,
    /// Share of the slowdown that evening out the worst workers removes. `None` if there is one worker, or the slowdown
    /// is too small.
    pub worst_workers: Option<Share>,
    /// Effects of single stages, replicas, workers and kinds; empty if the slowdown is too small.
    pub parts: Vec<EvenedPart>,
}

/// Times of a step, in ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTime {
    /// Number of the step.
    pub step: i64,
    /// Measured time.
    pub measured: f64,
    /// Simulated time with the measured durations.
    pub simulated: f64,
    /// Simulated time with even durations.
    pub ideal: f64,
}

/// Share of the slowdown that evening out some workers removes.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Share: 1 if the whole slowdown is removed. It can be below 0 or above 1, because evening out changes which
    /// operations are waited for.
    pub share: f64,
    /// Step time in ns that is saved.
    pub saved: f64,
    /// Slowdown if only these workers have their measured durations, and the rest of the job is even.
    pub slowdown: f64,
    /// Number of the stage, or numbers of the workers.
    pub members: Vec<u32>,
}

/// Part of a job whose durations are evened out or restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartKind {
    /// All operations of a stage.
    Stage,
    /// All operations of a replica.
    Replica,
    /// All operations of a worker.
    Worker,
    /// All operations of a kind.
    Kind,
}

/// Effect of one part of the job.
#[derive(Clone, Debug, PartialEq)]
pub struct EvenedPart {
    /// Kind of the part.
    pub part: PartKind,
    /// Number or name of the part.
    pub name: String,
    /// Slowdown if only this part has its measured durations, and the rest of the job is even.
    pub slowdown: f64,
    /// Step time in ns that is saved if only this part is evened out; negative if the step takes longer.
    pub saved: f64,
}

/// Cells of the job's table of durations whose values are exchanged.
type Selection<'a> = &'a dyn Fn(&Op, usize) -> bool;

/// Computes the slowdown of a job. At most `max_workers` workers are simulated one by one, those with the largest
/// slowdown of their replica and stage first.
pub fn slowdown_report(model: &JobModel, max_workers: usize) -> SlowdownReport {
    let even = model.even_durations();
    let (simulated, ideal) = (model.simulate(&model.durations), model.simulate(&even));
    let steps: Vec<StepTime> = (0..model.steps.len())
        .map(|at| StepTime {
            step: model.steps[at],
            measured: model.measured[at],
            simulated: simulated[at],
            ideal: ideal[at],
        })
        .collect();
    let errors: Vec<f64> = steps
        .iter()
        .filter(|step| step.measured > 0.0)
        .map(|step| 100.0 * (step.simulated - step.measured).abs() / step.measured)
        .collect();
    let mut report = SlowdownReport {
        steps,
        simulated: mean(&simulated),
        ideal: mean(&ideal),
        error_percent: mean(&errors),
        ..SlowdownReport::default()
    };
    if report.slowdown() > MIN_DECOMPOSED {
        Decomposition { model, even, simulated: report.simulated, ideal: report.ideal }
            .add_to(&mut report, max_workers);
    }
    report
}

impl SlowdownReport {
    /// Returns the slowdown: the simulated step time divided by the ideal one; 1 without time.
    pub fn slowdown(&self) -> f64 {
        if self.ideal > 0.0 { self.simulated / self.ideal } else { 1.0 }
    }
}

struct Decomposition<'a> {
    model: &'a JobModel,
    even: Vec<f64>,
    simulated: f64,
    ideal: f64,
}

impl Decomposition<'_> {
    fn add_to(&self, report: &mut SlowdownReport, max_workers: usize) {
        let model = self.model;
        let (replicas, stages) = (model.replicas, model.stages);
        let of_stage: Vec<f64> = (0..stages).map(|stage| self.alone(&|op, _| op.stage == stage)).collect();
        let of_replica: Vec<f64> =
            (0..replicas).map(|replica| self.alone(&|_, lane| lane % replicas == replica)).collect();
        let mut workers: Vec<(usize, f64)> = (0..replicas * stages)
            .map(|at| (at, of_replica[at / stages].min(of_stage[at % stages])))
            .collect();
        workers.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| model.workers[a.0].cmp(&model.workers[b.0])));
        if stages > 1 {
            let last = stages - 1;
            report.last_stage = Some(self.share(&|op, _| op.stage == last, vec![last as u32]));
            for (stage, &slowdown) in of_stage.iter().enumerate() {
                let saved = self.saved(&|op, _| op.stage == stage);
                report.parts.push(part(PartKind::Stage, stage, slowdown, saved));
            }
        }
        if replicas > 1 && stages > 1 {
            for (replica, &slowdown) in of_replica.iter().enumerate() {
                let saved = self.saved(&|_, lane| lane % replicas == replica);
                report.parts.push(part(PartKind::Replica, replica, slowdown, saved));
            }
        }
        if workers.len() > 1 {
            let count = (workers.len() * WORST_WORKERS_PERCENT).div_ceil(100);
            let mut worst = vec![false; workers.len()];
            workers[..count].iter().for_each(|(at, _)| worst[*at] = true);
            let members = workers[..count].iter().map(|(at, _)| model.workers[*at]).collect();
            let is_worst = |op: &Op, lane: usize| worst[lane % replicas * stages + op.stage];
            report.worst_workers = Some(self.share(&is_worst, members));
            for &(at, _) in workers.iter().take(max_workers) {
                let is_worker = |op: &Op, lane: usize| lane % replicas * stages + op.stage == at;
                let (slowdown, saved) = (self.alone(&is_worker), self.saved(&is_worker));
                report.parts.push(part(PartKind::Worker, model.workers[at], slowdown, saved));
            }
        }
        for (kind, name) in model.kinds.iter().enumerate() {
            let is_kind = |op: &Op, _: usize| op.kind == kind;
            if model.ops.iter().any(|op| op.kind == kind) {
                report.parts.push(part(PartKind::Kind, name, self.alone(&is_kind), self.saved(&is_kind)));
            }
        }
        report.parts.sort_by_key(|part| (part.part, Reverse(part.saved as i64)));
    }

    /// Returns the slowdown if only the selected operations have their measured durations.
    fn alone(&self, is_selected: Selection<'_>) -> f64 {
        let mixed = self.mix(&self.even, &self.model.durations, is_selected);
        mean(&self.model.simulate(&mixed)) / self.ideal
    }

    /// Returns the step time that is saved if only the selected operations are evened out.
    fn saved(&self, is_selected: Selection<'_>) -> f64 {
        let mixed = self.mix(&self.model.durations, &self.even, is_selected);
        self.simulated - mean(&self.model.simulate(&mixed))
    }

    /// Returns the share of the slowdown that evening out the selected operations removes.
    fn share(&self, is_selected: Selection<'_>, members: Vec<u32>) -> Share {
        let saved = self.saved(is_selected);
        let share = saved / (self.simulated - self.ideal);
        Share { share, saved, slowdown: self.alone(is_selected), members }
    }

    /// Returns the durations of `base`, with those of the selected operations from `selected`.
    fn mix(&self, base: &[f64], selected: &[f64], is_selected: Selection<'_>) -> Vec<f64> {
        let lanes = self.model.lanes();
        let mut mixed = base.to_vec();
        for (at, op) in self.model.ops.iter().enumerate() {
            for lane in (0..lanes).filter(|&lane| is_selected(op, lane)) {
                mixed[at * lanes + lane] = selected[at * lanes + lane];
            }
        }
        mixed
    }
}

fn part(part: PartKind, name: impl ToString, slowdown: f64, saved: f64) -> EvenedPart {
    EvenedPart { part, name: name.to_string(), slowdown, saved }
}
