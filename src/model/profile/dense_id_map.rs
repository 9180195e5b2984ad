//! A map for ids that are assigned consecutively, such as the ids of kernels. The map stores values in a vector that is
//! indexed by id. Look-ups must be fast, because at the end of a run every value is looked up several times, in
//! ascending order of id. A hash map with a hundred thousand entries would take 0.2 us per look-up. Ids far beyond the
//! end of the vector are stored in a hash map instead. A hostile file may contain ids far beyond the end.

use crate::record::{IdMap, NameId, map_bytes};

/// Maximum distance between a new id and the end of the vector for which the vector is extended. A new id that is
/// further beyond the end is stored in the hash map.
const MAX_GAP: usize = 1024;
/// Maximum number of vector slots per stored value. If values are removed until there are more slots per value, all
/// remaining values move to the hash map.
const MAX_SLOTS_PER_VALUE: usize = 4;

/// Map whose keys are mostly consecutive ids. See the module's documentation.
#[derive(Clone, Debug)]
pub struct DenseIdMap<T> {
    dense: Vec<Option<T>>,
    sparse: IdMap<NameId, T>,
}

impl<T> Default for DenseIdMap<T> {
    fn default() -> Self {
        Self { dense: Vec::new(), sparse: IdMap::default() }
    }
}

impl<T: Copy> DenseIdMap<T> {
    /// Returns the value of `id`.
    pub fn get(&self, id: NameId) -> Option<&T> {
        let near = self.dense.get(id.0 as usize).and_then(Option::as_ref);
        near.or_else(|| self.sparse.get(&id))
    }

    pub(super) fn get_mut(&mut self, id: NameId) -> Option<&mut T> {
        let near = self.dense.get_mut(id.0 as usize).and_then(Option::as_mut);
        near.or_else(|| self.sparse.get_mut(&id))
    }

    /// Adds a value. If the map already contains a value with this id, that value stays.
    pub fn add(&mut self, id: NameId, thing: T) {
        let at = id.0 as usize;
        if self.get(id).is_some() {
            return;
        }
        if at >= self.dense.len() + MAX_GAP {
            self.sparse.insert(id, thing);
            return;
        }
        if at >= self.dense.len() {
            self.dense.resize(at + 1, None);
        }
        self.dense[at] = Some(thing);
    }

    pub(super) fn retain(&mut self, keep: impl Fn(NameId) -> bool) {
        for (at, thing) in (0..).zip(&mut self.dense) {
            *thing = thing.filter(|_| keep(NameId(at)));
        }
        self.sparse.retain(|id, _| keep(*id));
        let used = self.dense.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.dense.truncate(used);
        // If few values remained in a long vector, its empty slots would take more memory than the values. A million
        // slots take 12 MB, and twice as much while the vector is reallocated.
        let near = self.dense.iter().flatten().count();
        if used > MAX_SLOTS_PER_VALUE * near + MAX_GAP {
            let row = (0..).zip(std::mem::take(&mut self.dense));
            self.sparse.extend(row.filter_map(|(at, thing)| Some((NameId(at), thing?))));
        }
        self.dense.shrink_to_fit();
        self.sparse.shrink_to_fit();
    }

    /// Returns the values and their ids, in ascending order of id. The values that are stored in the hash map come
    /// last, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NameId, &T)> {
        let near = (0..).zip(&self.dense).filter_map(|(at, thing)| Some((NameId(at), thing.as_ref()?)));
        near.chain(self.sparse.iter().map(|(&id, thing)| (id, thing)))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.dense.iter_mut().flatten().chain(self.sparse.values_mut())
    }

    pub(super) fn len(&self) -> usize {
        self.dense.iter().flatten().count() + self.sparse.len()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.dense.capacity() * size_of::<Option<T>>() + map_bytes(&self.sparse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_and_dense_ids_are_found_and_the_first_value_wins() {
        // The third id (2000) is far beyond the end of the vector at the time when this id is added. Later ids extend
        // the vector beyond position 2000.
        let ids = [0, 3, 2000, u32::MAX, 1, 1000, 1990, 2001];
        let mut numbered = DenseIdMap::default();
        ids.into_iter().for_each(|id| numbered.add(NameId(id), id));
        ids.into_iter().for_each(|id| numbered.add(NameId(id), 7));
        for id in ids {
            assert_eq!(numbered.get(NameId(id)), Some(&id));
            assert_eq!(numbered.get_mut(NameId(id)).copied(), Some(id));
        }
        assert!([2, 999, 2002, u32::MAX - 1].iter().all(|id| numbered.get(NameId(*id)).is_none()));
        assert_eq!((numbered.len(), numbered.dense.len(), numbered.sparse.len()), (8, 2002, 2));
        let mut all: Vec<u32> = numbered.iter().map(|(id, _)| id.0).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 3, 1000, 1990, 2000, 2001, u32::MAX]);
        numbered.retain(|id| [3, 2000].contains(&id.0));
        assert_eq!((numbered.len(), numbered.dense.len(), numbered.values_mut().count()), (2, 4, 2));
    }

    /// Models a program that generates new kernels as long as it runs, while the profile retains only a few kernels.
    #[test]
    fn memory_depends_on_retained_entries_not_on_the_number_added() {
        let held = |count: u32| {
            let mut numbered = DenseIdMap::default();
            for id in 0..count {
                numbered.add(NameId(id), u64::from(id));
                if id % 1000 == 999 {
                    numbered.retain(|id| id.0 % (count / 100) == 0);
                }
            }
            assert_eq!(numbered.len(), 100);
            assert!((0..count).all(|id| numbered.get(NameId(id)).is_some() == (id % (count / 100) == 0)));
            numbered.heap_bytes()
        };
        let (few, many) = (held(100_000), held(1_000_000));
        // The tested bound is higher by one value, which may still be in the vector.
        assert!(many <= few + 2 * size_of::<Option<u64>>(), "{few} and {many} bytes");
    }
}
