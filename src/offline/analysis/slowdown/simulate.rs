//! Simulates the steps of a job. An operation starts when all operations on which it depends have ended. The members of
//! a group end only after the last member has started.

use super::model::{Group, JobModel};

impl JobModel {
    /// Returns the duration of each step in ns if the operations have the given durations. Every step starts at time 0
    /// on all workers, and ends when the step's last operation ends.
    pub(super) fn simulate(&self, durations: &[f64]) -> Vec<f64> {
        let lanes = self.lanes();
        let (mut starts, mut ends) = (vec![0.0; self.ops.len() * lanes], vec![0.0; self.ops.len() * lanes]);
        let mut started = vec![0; self.groups.len()];
        for &at in &self.order {
            let op = &self.ops[at];
            for &before in &op.after {
                for lane in 0..lanes {
                    let end: f64 = ends[before * lanes + lane];
                    let start: &mut f64 = &mut starts[at * lanes + lane];
                    *start = start.max(end);
                }
            }
            match op.group {
                None => (0..lanes).map(|lane| at * lanes + lane).for_each(|place| {
                    ends[place] = starts[place] + durations[place];
                }),
                Some(group) => {
                    started[group] += 1;
                    let group_members = &self.groups[group];
                    if started[group] == group_members.members.len() {
                        self.end_group(group_members, &starts, durations, &mut ends);
                    }
                }
            }
        }
        self.step_times(&ends)
    }

    /// Sets the end times of a group's members. Each member ends at the latest start of any member plus the own
    /// duration of the member.
    fn end_group(&self, group: &Group, starts: &[f64], durations: &[f64], ends: &mut [f64]) {
        let lanes = self.lanes();
        let last = self.last_starts(group, starts);
        for &member in &group.members {
            for lane in 0..lanes {
                ends[member * lanes + lane] = last[lane] + durations[member * lanes + lane];
            }
        }
    }

    /// For each lane, returns the latest start of any member of the group.
    pub(super) fn last_starts(&self, group: &Group, starts: &[f64]) -> Vec<f64> {
        let lanes = self.lanes();
        let latest = |lane: usize| {
            group.members.iter().map(|member| starts[member * lanes + lane]).fold(f64::NEG_INFINITY, f64::max)
        };
        let mut last: Vec<f64> = (0..lanes).map(latest).collect();
        if group.spans_replicas {
            for step in last.chunks_mut(self.replicas) {
                let latest = step.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                step.fill(latest);
            }
        }
        last
    }

    fn step_times(&self, ends: &[f64]) -> Vec<f64> {
        let mut times = vec![0.0; self.steps.len()];
        for op in ends.chunks(self.lanes()) {
            for (lane, &end) in op.iter().enumerate() {
                let time: &mut f64 = &mut times[lane / self.replicas];
                *time = time.max(end);
            }
        }
        times
    }
}
