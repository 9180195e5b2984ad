//! Builds the model of a job from the GPU work of its ranks. The model consists of the collectives in which all ranks
//! meet, and of each rank's work between these collectives.
//!
//! A step lasts from the end of the previous step's last collective to the end of this step's last collective. All
//! ranks leave a collective together, so all durations of a rank can be measured on its own clock.

use super::model::{Average, JobModel, ModelError, Op};
use crate::analysis::rank_clocks::{ClocksRefused, GroupCollectives, RankClocks, align_groups, align_ranks};

/// GPU work of a rank.
#[derive(Clone, Debug, Default)]
pub struct RankTimeline {
    /// Id of the rank.
    pub rank: u32,
    /// Number of steps that the program ran, or 0 if it is unknown.
    pub steps: u64,
    /// Collectives of the rank, sorted by start.
    pub collectives: Vec<TimedCollective>,
    /// Times of GPU work other than collectives as (start, end) in ns, sorted by start, without overlaps.
    pub work: Vec<(i64, i64)>,
    /// Time in ns since 1970 to which the rank's times are relative, if it is known.
    pub clock_base: Option<i64>,
}

impl RankTimeline {
    /// Adds `shift` (in ns) to all times of the rank.
    pub fn shift_times(&mut self, shift: i64) {
        self.collectives.iter_mut().for_each(|collective| collective.shift_times(shift));
        for (start, end) in &mut self.work {
            (*start, *end) = (start.saturating_add(shift), end.saturating_add(shift));
        }
    }
}

/// A collective on one rank, with times in ns on the rank's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedCollective {
    /// Name of the collective's kernel.
    pub name: String,
    /// Time at which the collective starts.
    pub start: i64,
    /// Time at which the collective ends.
    pub end: i64,
}

impl TimedCollective {
    /// Adds `shift` (in ns) to the start and the end of the collective.
    pub fn shift_times(&mut self, shift: i64) {
        (self.start, self.end) = (self.start.saturating_add(shift), self.end.saturating_add(shift));
    }
}

/// Facts about ranks that are found while the model of their job is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankFacts {
    /// Clocks of the ranks, relative to the first rank.
    pub clocks: RankClocks,
    /// Reason why the whole run is treated as one step, or `None` if the steps are known.
    pub one_step_because: Option<String>,
}

/// Builds the model of a job from its ranks.
///
/// # Errors
/// Fails if the ranks do not run the same collectives, or if these collectives do not end together.
pub fn ranks_model(ranks: &[RankTimeline]) -> Result<(JobModel, RankFacts), ModelError> {
    if ranks.len() == 1 {
        return Err(ModelError::new("there is one rank; stragglers are found by comparing ranks"));
    }
    let clocks = align_timelines(ranks)?;
    let (steps, one_step_because) = find_steps(ranks);
    let model = Lanes { ranks, steps: &steps }.model()?;
    Ok((model, RankFacts { clocks, one_step_because }))
}

/// Aligns the clocks of ranks by means of their collectives.
///
/// # Errors
/// Fails if the ranks do not run the same collectives, or if these collectives do not end together.
pub fn align_timelines(ranks: &[RankTimeline]) -> Result<RankClocks, ModelError> {
    let [first, others @ ..] = ranks else { return Err(ModelError::new("there is no rank")) };
    for other in others {
        require_same_collectives(first, other)?;
    }
    let spans: Vec<Vec<(i64, i64)>> =
        ranks.iter().map(|rank| rank.collectives.iter().map(|one| (one.start, one.end)).collect()).collect();
    align_ranks(&spans).map_err(|refused| explain(refused, ranks))
}

/// Process group, which is a set of ranks that run the same collectives. The traces contain the names of process
/// groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessGroup {
    /// Name of the process group.
    pub name: String,
    /// For each rank of the group, the index of the rank and the positions that the group's collectives have in the
    /// list of this rank's collectives.
    pub members: Vec<(usize, Vec<usize>)>,
}

/// Aligns the clocks of ranks by means of the collectives in their process groups.
///
/// # Errors
/// Fails if the ranks of a group do not run the same collectives, or if these collectives do not end together. Also
/// fails if chains of groups do not connect all ranks.
pub fn align_process_groups(
    ranks: &[RankTimeline],
    groups: &[ProcessGroup],
) -> Result<RankClocks, ModelError> {
    let of_member = |(rank, positions): &(usize, Vec<usize>)| {
        let all = &ranks[*rank].collectives;
        positions.iter().map(|at| all[*at].clone()).collect::<Vec<_>>()
    };
    let mut found = Vec::new();
    for group in groups {
        let members = group.members.iter().map(|member| {
            let collectives = of_member(member);
            RankTimeline { rank: ranks[member.0].rank, collectives, ..RankTimeline::default() }
        });
        let members: Vec<RankTimeline> = members.collect();
        for other in members.iter().skip(1) {
            require_same_collectives(&members[0], other)
                .map_err(|ModelError(why)| ModelError(format!("process group {}: {why}", group.name)))?;
        }
        let spans = members.iter().map(|member| member.collectives.iter().map(|one| (one.start, one.end)));
        let spans = spans.map(Iterator::collect);
        let indexes = group.members.iter().map(|(rank, _)| *rank);
        found.push(GroupCollectives { members: indexes.zip(spans).collect() });
    }
    align_groups(ranks.len(), &found).map_err(|refused| explain(refused, ranks))
}

fn require_same_collectives(one: &RankTimeline, other: &RankTimeline) -> Result<(), ModelError> {
    let (count, other_count) = (one.collectives.len(), other.collectives.len());
    if count != other_count {
        return Err(ModelError::new(format!(
            "rank {} has {count} collectives, rank {} has {other_count}",
            one.rank, other.rank
        )));
    }
    let mut pairs = one.collectives.iter().zip(&other.collectives);
    match pairs.position(|(one, other)| one.name != other.name) {
        Some(at) => Err(ModelError::new(format!(
            "collective {at} of rank {} is {}, that of rank {} is {}",
            one.rank, one.collectives[at].name, other.rank, other.collectives[at].name
        ))),
        None => Ok(()),
    }
}

fn explain(refused: ClocksRefused, ranks: &[RankTimeline]) -> ModelError {
    ModelError::new(match refused {
        ClocksRefused::Apart(rank) => format!(
            "ranks {} and {} meet in no collective, not even through other ranks",
            ranks[0].rank, ranks[rank].rank
        ),
        ClocksRefused::NoCollectives => "no rank runs a collective".to_owned(),
        ClocksRefused::Counts((one, count), (other, other_count)) => format!(
            "rank {} has {count} collectives, rank {} has {other_count}",
            ranks[one].rank, ranks[other].rank
        ),
        ClocksRefused::Ends(nanos) => format!(
            "the ranks leave collectives {} us apart, so they are not the same collectives, or only part of the ranks \
             takes part in each",
            nanos / 1000
        ),
        ClocksRefused::Contradiction(one, other) => format!(
            "rank {} leaves a collective before rank {} enters it, so they are not the same collectives",
            ranks[one].rank, ranks[other].rank
        ),
    })
}

/// Indexes of three collectives that delimit a step: the last collective before the step, and the first and the last
/// collective in the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StepCollectives {
    before: usize,
    first: usize,
    last: usize,
}

/// Divides the collectives into steps. The first step is omitted, because no collective precedes this step.
fn find_steps(ranks: &[RankTimeline]) -> (Vec<StepCollectives>, Option<String>) {
    let names: Vec<&str> = ranks[0].collectives.iter().map(|one| one.name.as_str()).collect();
    let steps = ranks[0].steps;
    let count = usize::try_from(steps).unwrap_or(usize::MAX);
    let why = if ranks.iter().any(|rank| rank.steps != steps) {
        "the ranks have different numbers of steps".to_owned()
    } else if count < 2 {
        format!("the files have {}", if count == 1 { "one step" } else { "no steps" })
    } else if !names.len().is_multiple_of(count) || names.len() < count {
        format!("{} collectives cannot be divided over {steps} steps", names.len())
    } else if !repeats(&names, names.len() / count) {
        "the steps have different collectives".to_owned()
    } else {
        let length = names.len() / count;
        let step = |at: usize| StepCollectives {
            before: at * length - 1,
            first: at * length,
            last: (at + 1) * length - 1,
        };
        return ((1..count).map(step).collect(), None);
    };
    (vec![StepCollectives { before: 0, first: 1, last: names.len().saturating_sub(1) }], Some(why))
}

fn repeats(names: &[&str], length: usize) -> bool {
    names.iter().zip(&names[length..]).all(|(one, next)| one == next)
}

/// Lanes of the model. Each pair of a rank and a step is a lane.
struct Lanes<'a> {
    ranks: &'a [RankTimeline],
    steps: &'a [StepCollectives],
}

impl Lanes<'_> {
    fn model(&self) -> Result<JobModel, ModelError> {
        let first = self.steps[0];
        if first.first > first.last {
            return Err(ModelError::new(
                "there is one collective; a step needs one before it and one at its end",
            ));
        }
        let mut model = JobModel {
            kinds: vec!["GPU work".to_owned(), "GPU idle".to_owned()],
            replicas: self.ranks.len(),
            stages: 1,
            steps: (0..self.steps.len() as i64).map(|step| step + i64::from(self.steps.len() > 1)).collect(),
            workers: self.ranks.iter().map(|rank| rank.rank).collect(),
            measured: self.steps.iter().map(|step| self.measured(step)).collect(),
            ..JobModel::default()
        };
        for position in 0..=first.last - first.first {
            self.add_collective(&mut model, position)?;
        }
        model.find_order()?;
        Ok(model)
    }

    /// Adds a collective, and each rank's work and idle time before this collective.
    fn add_collective(&self, model: &mut JobModel, position: usize) -> Result<(), ModelError> {
        let before = self.collective_before(position);
        let (mut work, mut idle, mut transfer) = (Vec::new(), Vec::new(), Vec::new());
        for step in self.steps {
            for rank in self.ranks {
                let one = &rank.collectives[step.first + position];
                let free = rank.collectives[before.map_or(step.before, |at| step.first + at)].end;
                if free > one.start {
                    return Err(ModelError::new(format!(
                        "rank {} begins a collective before it has left the last one of the step before",
                        rank.rank
                    )));
                }
                let busy = busy_within(&rank.work, free, one.start);
                work.push(busy as f64);
                idle.push(one.start.saturating_sub(free).saturating_sub(busy) as f64);
            }
            let durations = self.ranks.iter().map(|rank| &rank.collectives[step.first + position]);
            let shortest = durations.map(|one| one.end.saturating_sub(one.start)).min().unwrap_or(0).max(0);
            transfer.extend(std::iter::repeat_n(shortest as f64, self.ranks.len()));
        }
        let name = &self.ranks[0].collectives[self.steps[0].first + position].name;
        let kind = model.kinds.iter().position(|kind| kind == name).unwrap_or_else(|| {
            model.kinds.push(name.clone());
            model.kinds.len() - 1
        });
        let mut after: Vec<usize> = before.map(|at| 3 * at + 2).into_iter().collect();
        for (kind, average, durations) in
            [(0, Average::Mean, work), (1, Average::Mean, idle), (kind, Average::Median, transfer)]
        {
            let at = model.ops.len();
            model.ops.push(Op { kind, even_with: at, average, after, ..Op::default() });
            model.durations.extend(durations);
            after = vec![at];
        }
        model.add_group(after, true);
        Ok(())
    }

    /// Returns the position of the last collective that ends before the collective at `position` begins, on all ranks
    /// and in all steps. The returned position can be less than `position - 1`, because collectives on different
    /// streams may overlap.
    fn collective_before(&self, position: usize) -> Option<usize> {
        (0..position).rev().find(|&at| {
            self.steps.iter().all(|step| {
                self.ranks.iter().all(|rank| {
                    rank.collectives[step.first + at].end <= rank.collectives[step.first + position].start
                })
            })
        })
    }

    /// Returns the duration of a step in ns, as the mean over the ranks.
    fn measured(&self, step: &StepCollectives) -> f64 {
        let time = |rank: &RankTimeline| {
            let ends = rank.collectives[step.first..=step.last].iter().map(|one| one.end);
            ends.max().unwrap_or(0).saturating_sub(rank.collectives[step.before].end) as f64
        };
        self.ranks.iter().map(time).sum::<f64>() / self.ranks.len() as f64
    }
}

/// Returns the total time in ns between `from` and `to` in which work ran.
fn busy_within(work: &[(i64, i64)], from: i64, to: i64) -> i64 {
    let first = work.partition_point(|span| span.1 <= from);
    let inside = work[first..].iter().take_while(|span| span.0 < to);
    inside.map(|span| span.1.min(to).saturating_sub(span.0.max(from))).fold(0, i64::saturating_add)
}
