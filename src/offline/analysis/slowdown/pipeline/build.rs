//! Builds the model of a job from the recorded operations of a pipeline.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::dependencies::Dependencies;
use super::ops::{OpKey, PipelineKind as Kind, PipelineOp};
use crate::analysis::slowdown::model::{JobModel, ModelError, Op};

/// Limit for negative transfer times, in ns. A transfer time that is not above this limit shows that the recorded times
/// are wrong, so it is replaced by 0. Negative transfer times above this limit are used as they are.
const MAX_NEGATIVE_NS: f64 = -10e6;
/// Maximum number of stages, and also maximum number of replicas. If a file has more stages or more replicas, it is
/// damaged.
const MAX_SIZE: u32 = 65_536;

/// Builds the model of a pipeline. `sequence_parallel` is the number of workers that share a sequence and therefore
/// also share weights, or 1 if this number is unknown.
///
/// # Errors
/// Fails if operations are missing, if the send and the receive of a message do not match, or if different steps have
/// different operations.
pub fn pipeline_model(ops: &[PipelineOp], sequence_parallel: u32) -> Result<JobModel, ModelError> {
    let first_step = ops.iter().map(|op| op.step).min().ok_or_else(|| ModelError::new("no operations"))?;
    let sample: Vec<PipelineOp> =
        ops.iter().filter(|op| op.step == first_step && op.replica == 0).copied().collect();
    let replicas = ops.iter().map(|op| op.replica).max().unwrap_or(0).saturating_add(1);
    let stages = ops.iter().map(|op| op.stage).max().unwrap_or(0).saturating_add(1);
    if replicas.max(stages) > MAX_SIZE {
        return Err(ModelError::new(format!("more than {MAX_SIZE} stages or data-parallel ranks")));
    }
    let shares_weights = u64::from(replicas) * u64::from(sequence_parallel) > 1;
    let keys: Vec<OpKey> = sample.iter().map(|op| (op.kind, op.sequence, op.stage)).collect();
    let steps: BTreeSet<i64> = ops.iter().map(|op| op.step).collect();
    // The number of operations is checked before the model is built, because a damaged file could lead to a model that
    // needs much more memory than the operations in the file.
    let expected = keys.len().checked_mul(steps.len()).and_then(|all| all.checked_mul(replicas as usize));
    if expected != Some(ops.len()) || (stages as usize) > keys.len() {
        return Err(ModelError::new("steps or data-parallel ranks have different operations"));
    }
    let index: HashMap<OpKey, usize> = keys.iter().enumerate().map(|(at, key)| (*key, at)).collect();
    if index.len() != keys.len() {
        return Err(ModelError::new("an operation occurs twice in one step of one worker"));
    }
    let mut model = JobModel {
        replicas: replicas as usize,
        stages: stages as usize,
        steps: steps.into_iter().collect(),
        ..JobModel::default()
    };
    set_kinds(&mut model, &keys);
    Dependencies::new(&sample, &index, stages, shares_weights).add_to(&mut model)?;
    model.workers = worker_ranks(ops, &model)?;
    set_times(&mut model, ops, &index)?;
    model.find_order()?;
    Ok(model)
}

fn set_kinds(model: &mut JobModel, keys: &[OpKey]) {
    let names: BTreeSet<&str> = Kind::ALL.into_iter().map(Kind::reported_as).collect();
    let names: Vec<&str> = names.into_iter().collect();
    let number = |kind: Kind| names.iter().position(|name| *name == kind.reported_as()).unwrap_or(0);
    model.ops = keys
        .iter()
        .map(|&(kind, _, stage)| Op {
            kind: number(kind),
            even_with: kind as usize,
            average: kind.average(),
            stage: stage as usize,
            ..Op::default()
        })
        .collect();
    model.kinds = names.into_iter().map(str::to_owned).collect();
}

fn worker_ranks(ops: &[PipelineOp], model: &JobModel) -> Result<Vec<u32>, ModelError> {
    let mut ranks: Vec<Option<u32>> = vec![None; model.replicas * model.stages];
    for op in ops {
        let known = &mut ranks[op.replica as usize * model.stages + op.stage as usize];
        if *known.get_or_insert(op.rank) != op.rank {
            return Err(ModelError::new(format!(
                "stage {} of data-parallel rank {} has several ranks",
                op.stage, op.replica
            )));
        }
    }
    ranks
        .into_iter()
        .collect::<Option<Vec<u32>>>()
        .ok_or_else(|| ModelError::new("a worker has no operations"))
}

/// Sets the durations of the operations and the measured step times. The duration of a communication operation is the
/// time from the last start of any operation in its group to its own end.
fn set_times(
    model: &mut JobModel,
    ops: &[PipelineOp],
    index: &HashMap<OpKey, usize>,
) -> Result<(), ModelError> {
    let lanes = model.lanes();
    let steps: BTreeMap<i64, usize> =
        model.steps.iter().enumerate().map(|(at, number)| (*number, at)).collect();
    let mut starts = vec![f64::NAN; model.ops.len() * lanes];
    let mut ends = starts.clone();
    let mut spans = vec![(f64::INFINITY, f64::NEG_INFINITY); model.steps.len()];
    for op in ops {
        let step = steps[&op.step];
        let lane = step * model.replicas + op.replica as usize;
        let key = (op.kind, op.sequence, op.stage);
        let at = *index.get(&key).ok_or_else(|| differs(op))?;
        let (start, end) = (op.start * 1e9, (op.start + op.duration) * 1e9);
        if !start.is_finite() || !end.is_finite() {
            return Err(ModelError::new(format!("step {}: {} has no usable time", op.step, op.kind.word())));
        }
        if !starts[at * lanes + lane].is_nan() {
            return Err(differs(op));
        }
        (starts[at * lanes + lane], ends[at * lanes + lane]) = (start, end);
        spans[step] = (spans[step].0.min(start), spans[step].1.max(end));
    }
    if starts.iter().any(|start| start.is_nan()) {
        return Err(ModelError::new("steps or data-parallel ranks have different operations"));
    }
    model.durations = ends.iter().zip(&starts).map(|(end, start)| end - start).collect();
    for group in &model.groups {
        let last = model.last_starts(group, &starts);
        for member in &group.members {
            for lane in 0..lanes {
                let transfer = ends[member * lanes + lane] - last[lane];
                let transfer = if transfer <= MAX_NEGATIVE_NS { 0.0 } else { transfer };
                model.durations[member * lanes + lane] = transfer;
            }
        }
    }
    model.measured = spans.into_iter().map(|(start, end)| end - start).collect();
    Ok(())
}

fn differs(op: &PipelineOp) -> ModelError {
    ModelError::new(format!(
        "step {}: {} {} of rank {} is not once in every step and data-parallel rank",
        op.step,
        op.kind.word(),
        op.sequence,
        op.rank
    ))
}
