//! Merges the sums of several contexts, or of several kernels, into one sum when memory is short. Merged stacks or
//! kernels can no longer be distinguished, but the totals stay the same.

use super::{Aggregate, Cell, LaunchOutcome, NODE, Series, add};
use gpuflame_model::profile::{LaunchDelays, SampleSite, Weight};
use gpuflame_model::record::{Caller, ContextId, Created, IdMap, NameId, Work, map_bytes};

impl Aggregate {
    /// Replaces each context by the result of `context`, and each kernel by the result of `kernel`, and recomputes the
    /// sums.
    pub fn rename(&mut self, context: impl Fn(ContextId) -> ContextId, kernel: impl Fn(NameId) -> NameId) {
        let Self { by_stream, has_squares, .. } = *self;
        let new = Self { by_stream, has_squares, devices: self.devices.clone(), ..Self::default() };
        let new = Self { copies: std::mem::take(&mut self.copies), ..new };
        let Self { lanes, series, cells, squares, nodes, .. } = std::mem::replace(self, new);
        let series: Vec<u32> = series.into_iter().map(|series| self.merge_series(series, &kernel)).collect();
        let lanes: Vec<u32> = match self.by_stream {
            true => lanes.iter().map(|lane| self.lane(series[lane.series as usize], lane.stream)).collect(),
            false => series,
        };
        for (at, (Cell { site, series }, weight)) in cells.into_iter().enumerate() {
            let site = if site.0 & NODE == 0 {
                let caller = Caller::from_bits(site.0);
                caller.launched().map_or(caller, |id| context(id).into()).into()
            } else {
                let SampleSite::Node { launch, created } = nodes[(site.0 & !NODE) as usize] else { continue };
                let created = match created {
                    Created::Context(by) => Created::Context(context(by)),
                    created => created,
                };
                self.node(launch.map(&context), created)
            };
            let cell = self.cell(Cell { site, series: lanes[series as usize] });
            add(&mut self.cells[cell as usize].1, weight);
            self.add_squares(cell, squares.get(at).copied().unwrap_or(0));
        }
    }

    /// Returns, for each context, the number of its pieces of GPU work, their total duration, and their total number of
    /// bytes. The work of a graph node counts for two contexts: the one that launched the graph and the one that
    /// created the node.
    pub fn by_context(&self) -> IdMap<ContextId, Weight> {
        let mut sums: IdMap<ContextId, Weight> = IdMap::default();
        for &(Cell { site, .. }, weight) in &self.cells {
            let (launch, created) = match self.site_of(site) {
                SampleSite::Node { launch, created: Created::Context(by) } => (launch.ok(), Some(by)),
                site => (site.launch().ok(), None),
            };
            for id in launch.into_iter().chain(created) {
                add(sums.entry(id).or_default(), weight);
            }
        }
        sums
    }

    /// Returns, for each kernel, the number of executions, their total duration, and their total number of bytes.
    pub fn by_kernel(&self) -> IdMap<NameId, Weight> {
        let mut sums: IdMap<NameId, Weight> = IdMap::default();
        for series in &self.series {
            if let LaunchOutcome::Work(Work::Kernel(id)) | LaunchOutcome::Untimed(Work::Kernel(id)) =
                series.outcome
            {
                add(sums.entry(id).or_default(), series.weight);
            }
        }
        sums
    }

    /// Returns the heap size in bytes of the sums per context.
    pub fn cell_bytes(&self) -> usize {
        map_bytes(&self.cell_index)
            + self.cells.capacity() * size_of::<(Cell, Weight)>()
            + self.squares.capacity() * size_of::<u128>()
            + map_bytes(&self.node_index)
            + self.nodes.capacity() * size_of::<SampleSite>()
    }

    /// Returns the heap size in bytes of the sums per kernel. The histogram of a kernel has a few dozen buckets, or one
    /// bucket if the kernel ran once.
    pub fn series_bytes(&self) -> usize {
        let delays = if self.has_squares { size_of::<LaunchDelays>() + 64 } else { 0 };
        map_bytes(&self.series_index) + self.series.capacity() * (size_of::<Series>() + 64 + delays)
    }

    fn merge_series(&mut self, old: Series, kernel: impl Fn(NameId) -> NameId) -> u32 {
        let of = |work| match work {
            Work::Kernel(id) => Work::Kernel(kernel(id)),
            work => work,
        };
        let outcome = match old.outcome {
            LaunchOutcome::Work(work) => LaunchOutcome::Work(of(work)),
            LaunchOutcome::Untimed(work) => LaunchOutcome::Untimed(of(work)),
            LaunchOutcome::Pending => LaunchOutcome::Pending,
        };
        let at = self.series(outcome, old.device);
        let new = &mut self.series[at as usize];
        add(&mut new.weight, old.weight);
        new.min = new.min.min(old.min);
        new.max = new.max.max(old.max);
        new.durations.add(old.durations);
        if let Some(delays) = old.delays {
            new.delays.get_or_insert_default().add(*delays);
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::profile::views::GPU;
    use gpuflame_model::profile::{Leaf, Profile};
    use gpuflame_model::record::testing::{copy, kernel, launch, named};
    use gpuflame_model::record::{Activity, CopyKind, Row};

    /// Merges contexts 11 and 12 into `[other stacks]`, and kernel 2 into `[other kernels]`.
    fn renamed(mut sums: Aggregate, rows: &[Row<'_>]) -> Profile {
        let mut join = crate::join::Join::default();
        rows.iter().for_each(|row| join.push(row, &mut sums));
        join.final_tally(&mut sums);
        sums.rename(
            |id| if id == ContextId(12) || id == ContextId(11) { ContextId::OTHERS } else { id },
            |id| if id == NameId(2) { NameId::OTHERS } else { id },
        );
        let mut profile = Profile::default();
        sums.fill(&mut profile);
        profile
    }

    #[test]
    fn renaming_merges_the_sums_of_equal_keys_and_keeps_the_rest() {
        let created = |context, start| {
            let created = Some(Created::Context(ContextId(context)));
            Row::Activity(Activity { created, ..kernel(3, start, start + 2) })
        };
        let profile = renamed(
            Aggregate::default(),
            &[
                Row::Launch(launch(1, 11)),
                Row::Launch(launch(2, 12)),
                Row::Launch(launch(3, 13)),
                Row::Launch(launch(4, 12)),
                Row::Activity(kernel(1, 100, 110)),
                Row::Activity(kernel(2, 200, 207)),
                Row::Activity(named(2, kernel(2, 300, 301))),
                Row::Activity(copy(2, CopyKind::HTOD, 4096, 400, 450)),
                created(11, 500),
                created(12, 510),
                created(13, 520),
            ],
        );
        let others = SampleSite::Context(ContextId::OTHERS);
        let gemm = Leaf::work(Work::Kernel(NameId(1)));
        let node =
            |by| SampleSite::Node { launch: Ok(ContextId(13)), created: Created::Context(ContextId(by)) };
        let expected = [
            (others, gemm, 2, 17, 0),
            (others, Leaf::work(Work::Kernel(NameId::OTHERS)), 1, 1, 0),
            (others, Leaf::work(Work::Copy(CopyKind::HTOD)), 1, 50, 4096),
            (others, Leaf::PENDING, 1, 0, 0),
            (node(13), gemm, 1, 2, 0),
            (node(ContextId::OTHERS.0), gemm, 2, 4, 0),
        ];
        let cells: Vec<_> = profile
            .samples(&GPU)
            .iter()
            .map(|s| (s.site, s.leaf, s.values[1], s.values[0], s.values[2]))
            .collect();
        assert_eq!(cells, expected);
        assert_eq!(profile.devices().iter().map(|device| device.nanos).sum::<u64>(), 74);
    }

    #[test]
    fn durations_of_kernels_renamed_to_others_form_one_distribution() {
        let rows: Vec<Row<'_>> = (1..=100)
            .flat_map(|i| {
                let ran = named(1 + u32::from(i % 2 == 0), kernel(i, 1000, 1000 + u64::from(i)));
                [Row::Launch(launch(i, 11)), Row::Activity(ran)]
            })
            .collect();
        let mut sums = Aggregate::default();
        let mut join = crate::join::Join::default();
        rows.iter().for_each(|row| join.push(row, &mut sums));
        assert_eq!(sums.works().len(), 2);
        sums.rename(|id| id, |_| NameId::OTHERS);
        let [all] = sums.works()[..] else { panic!("{:?}", sums.works()) };
        assert_eq!((all.work, all.weight.count, all.weight.nanos), (Work::Kernel(NameId::OTHERS), 100, 5050));
        assert_eq!((all.min, all.max, all.percentiles), (1, 100, [50, 95, 99]));
    }
}
