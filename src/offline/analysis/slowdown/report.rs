//! Computes the slowdown of a job, and how much the stages, workers and kinds of operations contribute to the slowdown.

use std::cmp::Reverse;

use super::even::mean;
use super::model::{JobModel, Op};

/// Minimum slowdown of a job for which the contributions of its parts are computed. If the slowdown is smaller, the
/// contributions of parts are smaller than the error of the simulation.
pub const MIN_DECOMPOSED: f64 = 1.03;
/// Percentage of the workers that count as the worst workers. The number of worst workers is rounded up.
const WORST_WORKERS_PERCENT: usize = 3;

/// Slowdown of a job, and the contributions of its parts.
#[derive(Clone, Debug, Default)]
pub struct SlowdownReport {
    /// Measured, simulated and ideal duration of each step.
    pub steps: Vec<StepTime>,
    /// Mean simulated step duration, in ns.
    pub simulated: f64,
    /// Mean simulated step duration with even durations of operations, in ns.
    pub ideal: f64,
    /// Mean absolute difference between the simulated and the measured duration of a step, in percent of the measured
    /// duration.
    pub error_percent: f64,
    /// Share of the slowdown that is removed if the last stage gets even durations. The share is `None` if the job has
    /// only one stage, or if its slowdown is below [`MIN_DECOMPOSED`].
    pub last_stage: Option<Share>,
    /// Share of the slowdown that is removed if the worst workers get even durations. The share is `None` if the job
    /// has only one worker, or if its slowdown is below [`MIN_DECOMPOSED`].
    pub worst_workers: Option<Share>,
    /// Effects of single stages, replicas, workers and kinds of operations. The list of parts is empty if the slowdown
    /// is below [`MIN_DECOMPOSED`].
    pub parts: Vec<EvenedPart>,
}

/// Durations of a step, in ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTime {
    /// Id of the step.
    pub step: i64,
    /// Measured duration of the step.
    pub measured: f64,
    /// Simulated duration of the step with the measured durations of operations.
    pub simulated: f64,
    /// Simulated duration of the step with even durations of operations.
    pub ideal: f64,
}

/// Share of the slowdown that is removed if some workers get even durations.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Share of the slowdown that is removed. A share of 1 means the whole slowdown. The share can be below 0 or above
    /// 1, because with even durations some operations wait for different operations.
    pub share: f64,
    /// Reduction of the step duration, in ns.
    pub saved: f64,
    /// Slowdown if only these workers keep their measured durations, and the rest of the job has even durations.
    pub slowdown: f64,
    /// Index of the stage, or global ranks of the workers, whose durations are made even.
    pub members: Vec<u32>,
}

/// Kind of a part of a job. To find the effect of a part, the job is simulated twice: with even durations only in this
/// part, and with even durations only outside this part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartKind {
    /// All operations of one stage.
    Stage,
    /// All operations of one replica (data-parallel rank).
    Replica,
    /// All operations of one worker.
    Worker,
    /// All operations of one kind.
    Kind,
}

/// Effect of one part of the job on the slowdown.
#[derive(Clone, Debug, PartialEq)]
pub struct EvenedPart {
    /// Kind of the part.
    pub part: PartKind,
    /// Id or name of the part.
    pub name: String,
    /// Slowdown if only this part keeps its measured durations, and the rest of the job has even durations.
    pub slowdown: f64,
    /// Reduction of the step duration in ns if only this part gets even durations. The reduction is negative if the
    /// step takes longer.
    pub saved: f64,
}

/// Predicate that selects operations by operation and lane. The durations of selected operations are replaced.
type Selection<'a> = &'a dyn Fn(&Op, usize) -> bool;

/// Computes the slowdown of a job. At most `max_workers` workers are simulated one by one. Workers are simulated in
/// descending order of the slowdowns of their replica and stage.
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
    /// Returns the slowdown of the job, which is the simulated step duration divided by the ideal step duration.
    /// Returns 1 if the ideal step duration is 0.
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

    /// Returns the slowdown that remains if only the selected operations keep their measured durations.
    fn alone(&self, is_selected: Selection<'_>) -> f64 {
        let mixed = self.mix(&self.even, &self.model.durations, is_selected);
        mean(&self.model.simulate(&mixed)) / self.ideal
    }

    /// Returns the reduction of the step duration in ns if only the selected operations get even durations.
    fn saved(&self, is_selected: Selection<'_>) -> f64 {
        let mixed = self.mix(&self.model.durations, &self.even, is_selected);
        self.simulated - mean(&self.model.simulate(&mixed))
    }

    /// Returns the share of the slowdown that is removed if the selected operations get even durations.
    fn share(&self, is_selected: Selection<'_>, members: Vec<u32>) -> Share {
        let saved = self.saved(is_selected);
        let share = saved / (self.simulated - self.ideal);
        Share { share, saved, slowdown: self.alone(is_selected), members }
    }

    /// Returns a copy of `base` in which the selected operations have the durations from `selected`.
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
