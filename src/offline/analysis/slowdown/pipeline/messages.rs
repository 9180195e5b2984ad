//! Matches the messages between stages of a pipeline. Each send and each receive is matched to the computation whose
//! data it moves, and each send is matched to a receive.
//!
//! Training frameworks also record sends and receives that move no data. Messages without data occur at the begin and
//! end of a step, and in the first and last part of the model. Messages that move no data have no matching operation on
//! another stage.

use std::collections::{BTreeMap, HashMap};

use super::ops::{OpKey, PipelineKind as Kind, PipelineOp};
use super::workers::Worker;
use crate::analysis::slowdown::model::{JobModel, ModelError};

/// Maximum difference between the clocks of two workers, in seconds.
const CLOCK_ERROR_SECONDS: f64 = 5e-5;

/// The four kinds of messages. Each entry is (kind of the message, kind of its computation, whether the message is a
/// send, offset of the peer's stage).
const MESSAGES: [(Kind, Kind, bool, i64); 4] = [
    (Kind::ForwardSend, Kind::ForwardCompute, true, 1),
    (Kind::ForwardRecv, Kind::ForwardCompute, false, -1),
    (Kind::BackwardSend, Kind::BackwardCompute, true, -1),
    (Kind::BackwardRecv, Kind::BackwardCompute, false, 1),
];

/// The send and the receive of each message, keyed by the kind of computation, the sequence number and the sender's
/// stage.
type Pairs = BTreeMap<(Kind, usize, i64), Vec<usize>>;

/// Adds the dependencies of the messages to the model, and a group for each message.
///
/// # Errors
/// Fails if the sends, the receives and the computations do not match each other.
pub(super) fn add_messages(
    model: &mut JobModel,
    workers: &[Worker],
    index: &HashMap<OpKey, usize>,
    global_chunks: i64,
) -> Result<(), ModelError> {
    let (mut pairs, mut single) = (Pairs::new(), Vec::new());
    for worker in workers {
        for message in MESSAGES {
            add_worker_messages(
                model,
                worker,
                index,
                (message, workers.len() as i64, global_chunks),
                &mut pairs,
                &mut single,
            )?;
        }
    }
    for ((kind, number, stage), members) in pairs {
        if members.len() != 2 {
            return Err(ModelError::new(format!(
                "message {number} of {} from stage {stage} has one side",
                kind.word()
            )));
        }
        model.add_group(members, false);
    }
    for at in single {
        model.add_group(vec![at], false);
    }
    Ok(())
}

type Message = (Kind, Kind, bool, i64);

fn add_worker_messages(
    model: &mut JobModel,
    worker: &Worker,
    index: &HashMap<OpKey, usize>,
    (message, stages, global_chunks): (Message, i64, i64),
    pairs: &mut Pairs,
    single: &mut Vec<usize>,
) -> Result<(), ModelError> {
    let (kind, computed_as, is_sent, to_peer) = message;
    let stage = i64::from(worker.stage);
    let computes: Vec<&PipelineOp> = worker.computes.iter().filter(|op| op.kind == computed_as).collect();
    let messages: Vec<&PipelineOp> = worker.messages.iter().filter(|op| op.kind == kind).collect();
    let is_used = used_messages(&computes, is_sent);
    let used = messages.iter().filter(|op| is_used(op)).count();
    let is_at_end = worker.stage == 0 || stage == stages - 1;
    if used != computes.len() && !(is_at_end && (used == 0 || used + 1 == computes.len())) {
        return Err(ModelError::new(format!(
            "stage {stage} has {} {} and {used} {}",
            computes.len(),
            computed_as.word(),
            kind.word()
        )));
    }
    let mut sequence = u32::from(!is_sent && used > 0 && used + 1 == computes.len());
    let mut number = 0;
    for op in messages {
        let at = index[&(kind, op.sequence, op.stage)];
        let mut has_peer = false;
        if is_used(op) {
            let compute = computes.iter().find(|compute| compute.sequence == sequence);
            let compute =
                compute.ok_or_else(|| ModelError::new(format!("stage {stage}: a computation is missing")))?;
            let peer_chunk = i64::from(compute.global_chunk) + to_peer;
            has_peer = (0..global_chunks).contains(&peer_chunk);
            add_compute_dependency(model, at, compute, is_sent, index);
            sequence += 1;
        }
        if has_peer {
            let sender = if is_sent { stage } else { (stage + to_peer + stages) % stages };
            pairs.entry((computed_as, number, sender)).or_default().push(at);
            number += 1;
        } else {
            single.push(at);
        }
    }
    Ok(())
}

/// Returns a predicate that selects the messages which belong to a computation. A receive is selected if it begins
/// before the start of the last computation. A send is selected if it ends after the end of the first computation.
fn used_messages(computes: &[&PipelineOp], is_sent: bool) -> impl Fn(&PipelineOp) -> bool + use<> {
    let last_start = computes.iter().map(|op| op.start).fold(f64::NEG_INFINITY, f64::max);
    let first_end = computes.iter().map(|op| op.start + op.duration).fold(f64::INFINITY, f64::min);
    move |op| match is_sent {
        true => op.start + op.duration >= first_end - CLOCK_ERROR_SECONDS,
        false => op.start <= last_start + CLOCK_ERROR_SECONDS,
    }
}

/// Adds the dependency between a message and its computation. A send depends on its computation. The computation of a
/// receive depends on the receive, and the receive depends on the previous computation of the same kind.
fn add_compute_dependency(
    model: &mut JobModel,
    message: usize,
    compute: &PipelineOp,
    is_sent: bool,
    index: &HashMap<OpKey, usize>,
) {
    let at = index[&(compute.kind, compute.sequence, compute.stage)];
    if is_sent {
        model.ops[message].after.push(at);
        return;
    }
    model.ops[at].after.push(message);
    let before = compute.sequence.checked_sub(1).map(|before| (compute.kind, before, compute.stage));
    if let Some(&before) = before.and_then(|key| index.get(&key)) {
        model.ops[message].after.push(before);
    }
}
