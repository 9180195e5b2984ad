//! Tables of the verbs that compare: `diff`, `merge-ranks`, `stragglers`.

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
    /// `gpuflame stragglers`. `clocks` is present for files of ranks.
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
    /// Slowdown of a job. Times are means over the steps.
    SlowdownRow {
        /// Number of workers: stages times data-parallel ranks.
        workers: u64,
        /// Number of stages of the pipeline.
        stages: u64,
        /// Number of steps.
        steps: u64,
        /// Measured step time, in ns.
        measured_ns: u64,
        /// Simulated step time, in ns.
        simulated_ns: u64,
        /// Simulated step time with even durations, in ns.
        ideal_ns: u64,
        /// Simulated step time divided by the ideal one.
        slowdown: f64,
        /// Mean difference between a simulated and a measured step time.
        error_percent: f64,
    }
    /// Share of the slowdown that evening out some workers removes.
    SlowdownShareRow {
        /// Share of the slowdown; below 0 and above 100 are possible.
        share_percent: f64,
        /// Step time that is saved, in ns.
        saved_ns: i64,
        /// Slowdown if only these workers are as measured, and the rest even.
        slowdown_alone: f64,
        /// `last stage (Ms)` or `worst 3 % of workers (Mw)`.
        evened_out: String,
        /// Number of the stage, or numbers of the ranks.
        members: String,
    }
    /// Effect of one part of a job.
    EvenedRow {
        /// Step time that is saved if the part is evened out, in ns; negative if the step takes longer.
        saved_ns: i64,
        /// Share of the step time.
        saved_percent: f64,
        /// Slowdown if only this part is as measured, and the rest even.
        slowdown_alone: f64,
        /// `stage`, `data-parallel rank`, `rank` or `kind`.
        part: String,
        /// Number of the part, or name of the kind.
        name: String,
    }
    /// Times of a step.
    StepTimeRow {
        /// Number of the step.
        step: String,
        /// Measured time, in ns.
        measured_ns: u64,
        /// Simulated time, in ns.
        simulated_ns: u64,
        /// Difference between the two; null if the measured time is 0.
        error_percent: Option<f64>,
        /// Simulated time with even durations, in ns.
        ideal_ns: u64,
    }
    /// Answer that the data does not support.
    WithheldRow {
        /// Name of the answer.
        answer: String,
        /// Reason.
        why: String,
    }
    /// Assumption of a simulation.
    AssumptionRow {
        /// Subject of the assumption.
        about: String,
        /// What is assumed.
        why: String,
    }
    /// Change of the total GPU work.
    TotalChangeRow {
        change_ns: i64, change_percent: Option<f64>, before_ns: u64, after_ns: u64, before_count: u64, after_count: u64,
    }
    /// Change of busy or idle time, over all GPUs.
    TimeChangeRow {
        change_ns: Option<i64>, change_percent: Option<f64>, before_ns: Option<u64>, after_ns: Option<u64>,
        what: String,
    }
    /// Share of GPU time whose names occur in both runs.
    MatchedRow {
        /// Share of the GPU time of the run before.
        before_percent: Option<f64>,
        /// Share of the GPU time of the run after.
        after_percent: Option<f64>,
        /// `kernels`, `stacks` or `modules`.
        by: String,
    }
    /// Change of a kernel, stack or module.
    ChangeRow {
        change_ns: i64, change_percent: Option<f64>, before_ns: u64, after_ns: u64, before_count: u64, after_count: u64,
        /// Change of the average duration.
        average_percent: Option<f64>,
        /// Whether the change of the average is statistically significant: `yes`, `no`, `too few`, `new` or `gone`.
        sure: String,
        name: String,
    }
    /// Verdict on several runs before and after a change.
    VerdictRow {
        /// `same`, `faster`, `slower`, `inconclusive` or `invalid`.
        verdict: String,
        /// Whether the gate passes: `yes` or `no`.
        passes: String,
        /// Exit code of the command.
        exit_code: u64,
        /// Change of the row that decided, as a share of the value before; null if the runs were not compared.
        change_percent: Option<f64>,
        /// Lower end of the interval that contains the true change with a probability of 99 %.
        low_percent: Option<f64>,
        /// Upper end of the interval.
        high_percent: Option<f64>,
        /// Change above which the gate fails.
        fail_above_percent: f64,
        /// Number of pairs of runs that would find or exclude a change of `fail_above_percent`; null unless the verdict is
        /// `inconclusive`, or if it takes more than 10,000.
        pairs_needed: Option<u64>,
        /// Why the runs were not compared; null if they were.
        reason: Option<String>,
        /// The verdict as a sentence.
        sentence: String,
    }
    /// Change of one value between several runs before and after a change.
    PairChangeRow {
        /// Change per run, or per step if runs have different numbers of steps, in ns, without drift.
        change_ns: i64,
        /// Change as a share of the value before, or of the sum named by `share_of`.
        change_percent: f64,
        /// Lower end of the interval that contains the true change with a probability of 99 %.
        low_percent: f64,
        /// Upper end of the interval.
        high_percent: f64,
        /// Mean before the change, in ns.
        before_ns: u64,
        /// Mean after the change, in ns.
        after_ns: u64,
        /// `same`, `faster`, `slower` or `inconclusive`.
        verdict: String,
        /// Number of pairs of runs that would find or exclude a change of `--fail-above`; null unless the verdict is
        /// `inconclusive`, or if it takes more than 10,000.
        pairs_needed: Option<u64>,
        /// `total`, `step`, `time`, `kernel`, `stack` or `idle`.
        by: String,
        /// What percentages are shares of: `row`, or `GPU work` or `wall` if the row's own value can be 0.
        share_of: String,
        name: String,
    }
    /// Time of one rank.
    RankRow {
        rank: u32, busy_ns: u64, idle_ns: Option<u64>,
        /// Share of the time in which the rank's GPUs were busy.
        busy_share_percent: Option<f64>,
        /// GPU time except communication, in ns.
        work_ns: u64,
        /// GPU time of communication, in ns.
        communication_ns: u64,
        /// Difference from the median rank.
        vs_median_percent: Option<f64>,
        /// Share of the activities that are linked to a launch.
        linked_percent: Option<f64>,
        /// Number of steps or windows.
        steps: Option<u64>,
        /// Why the rank is the straggler; empty if it is not.
        straggler: String,
        /// Source line in which the straggler's host was late; null if unknown or no straggler.
        host_line: Option<String>,
        /// Files of the rank.
        source: String,
    }
    /// Number of times that a rank came last to a collective. If it is unknown, all keys except `ranks`,
    /// `collective` and `unknown_because` are null.
    ArrivalRow {
        rank: Option<u32>,
        /// Number of times that the rank came last.
        last: Option<u64>,
        /// Number of times that the collective ran.
        of: Option<u64>,
        /// Sum of the times by which the rank came after the second last rank, in ns.
        behind_next_ns: Option<u64>,
        /// Time that the other ranks waited, in ns.
        others_waited_ns: Option<u64>,
        /// Number of ranks that took part.
        ranks: u64,
        /// Name of the kernel; null if no kernel is common.
        collective: Option<String>,
        /// Why the arrivals are unknown; null if they are known.
        unknown_because: Option<String>,
    }
    /// A kernel of one rank.
    RankKernelRow { rank: u32, total_ns: u64, name: String, }
    /// GPU work of one launching stack, over all ranks.
    RankStackRow {
        total_ns: u64, share_percent: Option<f64>,
        /// Number of ranks in which the stack occurs.
        ranks: u64,
        stack: String,
    }
    /// Ranks of the job.
    JobRow {
        /// Number of ranks that the job has; null if the files do not contain it.
        world_size: Option<u64>,
        /// Number of ranks that were given.
        ranks: u64,
        /// Number of ranks that were not given; null if unknown.
        missing: Option<u64>,
        /// Numbers of the missing ranks (`1, 3 to 5`); null if unknown.
        missing_ranks: Option<String>,
    }
}
