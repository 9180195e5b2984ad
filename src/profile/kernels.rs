//! The names of kernels by their numbers. Those are given out one after another, so that each has its place in a row: at
//! the end all are looked up several times, in that order, and a look into a map of a hundred thousand takes 0.2 us each. A
//! file may say any number: those far beyond the row are in a map.

use super::StringId;
use crate::record::{IdMap, NameId, map_bytes};

/// So far beyond its end a number may be for the row to grow up to it.
const GAP: usize = 1024;

/// What a kernel is called.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelName {
    /// As the tracer gave it.
    pub(super) symbol: StringId,
    /// As it is shown: demangled, once somebody has said how.
    pub(super) shown: Option<StringId>,
}

impl KernelName {
    pub(super) fn text(&self) -> StringId {
        self.shown.unwrap_or(self.symbol)
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Kernels {
    row: Vec<Option<KernelName>>,
    far: IdMap<NameId, KernelName>,
}

impl Kernels {
    pub(super) fn get(&self, id: NameId) -> Option<&KernelName> {
        let near = self.row.get(id.0 as usize).and_then(Option::as_ref);
        near.or_else(|| self.far.get(&id))
    }

    pub(super) fn get_mut(&mut self, id: NameId) -> Option<&mut KernelName> {
        let near = self.row.get_mut(id.0 as usize).and_then(Option::as_mut);
        near.or_else(|| self.far.get_mut(&id))
    }

    /// Says what a kernel is called; of two that say it the first counts.
    pub(super) fn add(&mut self, id: NameId, name: KernelName) {
        let at = id.0 as usize;
        if self.get(id).is_some() {
            return;
        }
        if at >= self.row.len() + GAP {
            self.far.insert(id, name);
            return;
        }
        if at >= self.row.len() {
            self.row.resize(at + 1, None);
        }
        self.row[at] = Some(name);
    }

    pub(super) fn retain(&mut self, keep: impl Fn(NameId) -> bool) {
        for (at, name) in (0..).zip(&mut self.row) {
            *name = name.filter(|_| keep(NameId(at)));
        }
        let used = self.row.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.row.truncate(used);
        self.row.shrink_to_fit();
        self.far.retain(|id, _| keep(*id));
        self.far.shrink_to_fit();
    }

    /// In ascending order of their numbers, but for those far beyond, which come last and in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NameId, &KernelName)> {
        let near = (0..).zip(&self.row).filter_map(|(at, name)| Some((NameId(at), name.as_ref()?)));
        near.chain(self.far.iter().map(|(&id, name)| (id, name)))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut KernelName> {
        self.row.iter_mut().flatten().chain(self.far.values_mut())
    }

    pub(super) fn len(&self) -> usize {
        self.row.iter().flatten().count() + self.far.len()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.row.capacity() * size_of::<Option<KernelName>>() + map_bytes(&self.far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u32) -> KernelName {
        KernelName { symbol: StringId::at(number), shown: None }
    }

    #[test]
    fn whatever_numbers_they_have_they_are_found_and_the_first_name_counts() {
        // The third is far when it comes, and its place is in the row later.
        let ids = [0, 3, 2000, u32::MAX, 1, 1000, 1990, 2001];
        let mut kernels = Kernels::default();
        ids.into_iter().for_each(|id| kernels.add(NameId(id), name(id)));
        ids.into_iter().for_each(|id| kernels.add(NameId(id), name(7)));
        for id in ids {
            assert_eq!(kernels.get(NameId(id)).unwrap().symbol, StringId::at(id));
            assert_eq!(kernels.get_mut(NameId(id)).unwrap().symbol, StringId::at(id));
        }
        assert!([2, 999, 2002, u32::MAX - 1].iter().all(|id| kernels.get(NameId(*id)).is_none()));
        assert_eq!((kernels.len(), kernels.row.len(), kernels.far.len()), (8, 2002, 2));
        let mut all: Vec<u32> = kernels.iter().map(|(id, _)| id.0).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 3, 1000, 1990, 2000, 2001, u32::MAX]);
        kernels.retain(|id| [3, 2000].contains(&id.0));
        assert_eq!((kernels.len(), kernels.row.len(), kernels.values_mut().count()), (2, 4, 2));
    }
}
