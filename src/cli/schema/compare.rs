//! JSON tables of the verbs that compare runs or ranks: `diff`, `merge-ranks`, `stragglers`.

use schemars::JsonSchema;

use super::look::critical_path::RankClockRow;
use super::look::tables::{IdleCauseRow, ImpossibleRow};

verbs! {
    /// `gpuflame diff`.
    Diff {
        total: TotalChangeRow,
        run: TimeChangeRow,
        matched: MatchedRow,
        ?
        kernels: ChangeRow,
        stacks: ChangeRow,
        modules: ChangeRow,
        impossible_durations_before: ImpossibleRow,
        impossible_durations_after: ImpossibleRow,
    }
    /// `gpuflame diff BASE... --new NEW...`.
    Gate {
        verdict: VerdictRow,
        changes: PairChangeRow,
        ?
    }
    /// `gpuflame merge-ranks`.
    MergeRanks {
        ranks: RankRow,
        last_to_collectives: ArrivalRow,
        kernels: RankKernelRow,
        stacks: RankStackRow,
        idle: IdleCauseRow,
        job: JobRow,
        ?
    }
    /// `gpuflame stragglers`. The table `clocks` is present if the inputs are the files of ranks.
    Stragglers {
        slowdown: SlowdownRow,
        shares: SlowdownShareRow,
        evened_out: EvenedRow,
        step_times: StepTimeRow,
        withheld: WithheldRow,
        assumptions: AssumptionRow,
        ?
        clocks: RankClockRow,
    }
}

objects! {
    /// Slowdown of a job compared with a simulated job in which all workers take equally long. Times are means over the
    /// steps.
    SlowdownRow {
        /// Number of workers: the number of pipeline stages times the number of data-parallel ranks.
        workers: u64,
        /// Number of stages of the job's pipeline.
        stages: u64,
        /// Number of steps over which the times are averaged.
        steps: u64,
        /// Mean measured step time, in ns.
        measured_ns: u64,
        /// Mean step time of the simulation with the measured durations, in ns.
        simulated_ns: u64,
        /// Mean step time of the simulation in which all workers take equally long, in ns.
        ideal_ns: u64,
        /// Simulated step time divided by the ideal step time (`simulated_ns` / `ideal_ns`).
        slowdown: f64,
        /// Mean difference between the simulated and the measured time of a step, in percent.
        error_percent: f64,
    }
    /// Share of the slowdown that disappears if some workers take as long as the average worker.
    SlowdownShareRow {
        /// Share of the slowdown that disappears if these workers take as long as the average worker. Values below 0
        /// and above 100 are possible.
        share_percent: f64,
        /// Step time that is saved if these workers take as long as the average worker, in ns.
        saved_ns: i64,
        /// Slowdown if only these workers take their measured time and all other workers take equally long.
        slowdown_alone: f64,
        /// Workers that are evened out: `last stage (Ms)` or `worst 3 % of workers (Mw)`.
        evened_out: String,
        /// Index of the pipeline stage, or list of the ranks.
        members: String,
    }
    /// Effect on the step time if one part of a job is evened out, which means that it takes as long as the average.
    EvenedRow {
        /// Step time that is saved if the part is evened out, in ns; negative if the step takes longer.
        saved_ns: i64,
        /// Saved time as a share of the step time.
        saved_percent: f64,
        /// Slowdown if only this part takes its measured time and the rest of the job is evened out.
        slowdown_alone: f64,
        /// Kind of the part that is evened out: `stage`, `data-parallel rank`, `rank` or `kind`.
        part: String,
        /// Index of the stage or rank, or name of the kind of operation.
        name: String,
    }
    /// Measured and simulated times of a step.
    StepTimeRow {
        /// Number of the step in the input, as text.
        step: String,
        /// Measured time of the step, in ns.
        measured_ns: u64,
        /// Time of the step in the simulation with the measured durations, in ns.
        simulated_ns: u64,
        /// Difference between the simulated and the measured time, as a share of the measured time; null if the
        /// measured time is 0.
        error_percent: Option<f64>,
        /// Time of the step in the simulation in which all workers take equally long, in ns.
        ideal_ns: u64,
    }
    /// An answer that is withheld because the data does not support it.
    WithheldRow {
        /// Name of the withheld answer.
        answer: String,
        /// Reason why the answer is withheld.
        why: String,
    }
    /// An assumption of the simulation.
    AssumptionRow {
        /// Subject of the assumption.
        about: String,
        /// The assumption as a clause.
        why: String,
    }
    /// Change of the total time of all GPU work.
    TotalChangeRow {
        change_ns: i64, change_percent: Option<f64>, before_ns: u64, after_ns: u64, before_count: u64, after_count: u64,
    }
    /// Change of the busy or idle time, summed over all GPUs.
    TimeChangeRow {
        change_ns: Option<i64>, change_percent: Option<f64>, before_ns: Option<u64>, after_ns: Option<u64>,
        what: String,
    }
    /// Share of the GPU time that belongs to kernels, stacks or modules that occur in both runs.
    MatchedRow {
        /// Share of the GPU time of the run before the change. Only kernels, stacks or modules that occur in both runs
        /// count.
        before_percent: Option<f64>,
        /// Share of the GPU time of the run after the change. Only kernels, stacks or modules that occur in both runs
        /// count.
        after_percent: Option<f64>,
        /// Kind of the names that are compared: `kernels`, `stacks` or `modules`.
        by: String,
    }
    /// Change of the GPU time of a kernel, stack or module.
    ChangeRow {
        change_ns: i64, change_percent: Option<f64>, before_ns: u64, after_ns: u64, before_count: u64, after_count: u64,
        /// Change of the average duration of an activity, in percent; null if either run has no such activity.
        average_percent: Option<f64>,
        /// Whether the change of the average duration is statistically significant: `yes`, `no`, `too few` (durations),
        /// `new` or `gone`.
        sure: String,
        name: String,
    }
    /// Verdict of the comparison of several runs before a change with several runs after the change.
    VerdictRow {
        /// Verdict on the change: `same`, `faster`, `slower`, `inconclusive` or `invalid` (the runs cannot be
        /// compared).
        verdict: String,
        /// Whether the gate passes: `yes` or `no`.
        passes: String,
        /// Exit code of the command, which represents the verdict.
        exit_code: u64,
        /// Change of the row that decided the verdict, as a share of the value before the change; null if the runs were
        /// not compared.
        change_percent: Option<f64>,
        /// Lower end of the interval that contains the true change with a probability of 99 %, in percent.
        low_percent: Option<f64>,
        /// Upper end of the interval that contains the true change with a probability of 99 %, in percent.
        high_percent: Option<f64>,
        /// Change above which the gate fails, in percent.
        fail_above_percent: f64,
        /// Number of pairs of runs that would find or exclude a change of `fail_above_percent`. Null if the verdict is
        /// not `inconclusive`, or if more than 10,000 pairs are needed.
        pairs_needed: Option<u64>,
        /// Reason why the runs were not compared; null if they were compared.
        reason: Option<String>,
        /// The verdict as a sentence.
        sentence: String,
    }
    /// Change of one value between several runs before a change and several runs after the change.
    PairChangeRow {
        /// Change in ns per run, or per step if the runs have different numbers of steps. Steady drift between the runs
        /// is removed.
        change_ns: i64,
        /// Change as a share of the quantity that `share_of` names, in percent.
        change_percent: f64,
        /// Lower end of the interval that contains the true change with a probability of 99 %, in percent.
        low_percent: f64,
        /// Upper end of the interval that contains the true change with a probability of 99 %, in percent.
        high_percent: f64,
        /// Mean of the runs before the change, in ns per run or step.
        before_ns: u64,
        /// Mean of the runs after the change, in ns per run or step.
        after_ns: u64,
        /// Verdict on this value: `same`, `faster`, `slower` or `inconclusive`.
        verdict: String,
        /// Number of pairs of runs that would find or exclude a change of `--fail-above`. Null if the verdict is not
        /// `inconclusive`, or if more than 10,000 pairs are needed.
        pairs_needed: Option<u64>,
        /// Kind of object to which the value belongs: `total`, `step`, `time`, `kernel`, `stack` or `idle`.
        by: String,
        /// Denominator of the percentages: `row` (the row's value before the change), or `GPU work` or `wall` if the
        /// row's own value can be 0.
        share_of: String,
        name: String,
    }
    /// Times of one rank of a job.
    RankRow {
        rank: u32, busy_ns: u64, idle_ns: Option<u64>,
        /// Share of the time in which the rank's GPUs were busy, in percent.
        busy_share_percent: Option<f64>,
        /// GPU time of the rank except communication, in ns.
        work_ns: u64,
        /// GPU time of the rank's communication, in ns. Communication time includes waiting for other ranks.
        communication_ns: u64,
        /// Difference from the median rank, in percent.
        vs_median_percent: Option<f64>,
        /// Share of the activities that are matched to a launch, in percent.
        linked_percent: Option<f64>,
        /// Number of steps of the rank, or number of recording windows if there are no steps.
        steps: Option<u64>,
        /// Reason why the rank is the straggler; empty if it is not the straggler.
        straggler: String,
        /// Source line in which the straggler's host was late; null if the line is unknown or the rank is not the
        /// straggler.
        host_line: Option<String>,
        /// Names of the rank's files, separated by commas.
        source: String,
    }
    /// How often a rank was the last to enter a collective. If the arrivals are unknown, all keys except `ranks`,
    /// `collective` and `unknown_because` are null.
    ArrivalRow {
        rank: Option<u32>,
        /// Number of times that the rank entered the collective last.
        last: Option<u64>,
        /// Number of times that the collective ran. `last` counts a part of the times that `of` counts.
        of: Option<u64>,
        /// Sum of the times between the entry of the second last rank and the entry of this rank, in ns.
        behind_next_ns: Option<u64>,
        /// Total time that the other ranks waited for this rank, in ns.
        others_waited_ns: Option<u64>,
        /// Number of ranks that took part in the collective.
        ranks: u64,
        /// Name of the collective's kernel; null if the ranks have no kernel in common.
        collective: Option<String>,
        /// Reason why the arrivals are unknown; null if they are known.
        unknown_because: Option<String>,
    }
    /// GPU time of one kernel on one rank.
    RankKernelRow { rank: u32, total_ns: u64, name: String, }
    /// GPU time of one launching stack, summed over all ranks.
    RankStackRow {
        total_ns: u64, share_percent: Option<f64>,
        /// Number of ranks in which the stack occurs.
        ranks: u64,
        stack: String,
    }
    /// Present and missing ranks of the job.
    JobRow {
        /// Number of ranks of the job; null if the files do not contain this number.
        world_size: Option<u64>,
        /// Number of ranks whose files were given.
        ranks: u64,
        /// Number of ranks whose files were not given; null if unknown.
        missing: Option<u64>,
        /// List of the ranks whose files were not given (`1, 3 to 5`); null if unknown.
        missing_ranks: Option<String>,
    }
}
