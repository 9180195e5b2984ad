//! Stores the correlation ids of a file in about 2 bytes each, because the ids of consecutive calls are close to each
//! other.

use gpuflame_model::record::{Fields, Payload};

/// The correlation ids that a file contains. The index of an entry is the correlation id in the rows. An entry is 0 if
/// the file contains no id for the row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileIds {
    /// Encoded differences between consecutive ids.
    bytes: Vec<u8>,
    last: u64,
    len: usize,
}

impl FileIds {
    pub(super) fn push(&mut self, id: u64) {
        Payload(&mut self.bytes).difference(id, self.last);
        self.last = id;
        self.len += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the file's ids, in the order of the ids in the rows.
    pub fn iter(&self) -> impl Iterator<Item = u64> + use<'_> {
        let (mut fields, mut last) = (Fields(&self.bytes), 0);
        std::iter::from_fn(move || {
            last = fields.difference(last)?;
            Some(last)
        })
    }

    /// Returns the file's ids as a list.
    pub fn to_vec(&self) -> Vec<u64> {
        let mut ids = Vec::with_capacity(self.len);
        ids.extend(self.iter());
        ids
    }
}

impl Extend<u64> for FileIds {
    fn extend<T: IntoIterator<Item = u64>>(&mut self, ids: T) {
        ids.into_iter().for_each(|id| self.push(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_any_size_come_back_in_order() {
        let expected = [0, 7, 8, 9, 0, u64::MAX, 1 << 63, 3, 3];
        let mut ids = FileIds::default();
        ids.extend(expected);
        assert_eq!(ids.to_vec(), expected);
        assert_eq!(ids.len(), expected.len());
    }
}
