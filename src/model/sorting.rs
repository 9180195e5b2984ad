//! Sort functions for lists that are short or rarely sorted. The functions add little code to the program, because they
//! sort lists of all element types with one compiled instance of the standard library's sort.
//!
//! If the standard library's sort is called directly, it is compiled again for each element type and each comparison.
//! Each compiled instance of that sort has 3 to 13 KB of code. A use of this module adds about 300 bytes. The functions
//! sort a list of positions (4 bytes per element), and call a function pointer for each comparison. Use the standard
//! library's sort for a list with many thousand elements, or for a list that is sorted while rows are read.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Sorts `items`. Equal items keep their order.
pub fn sort<T: Ord>(items: &mut [T]) {
    sort_by(items, T::cmp);
}

/// Sorts `items` by `key`, which is called twice per comparison. Items with equal keys keep their order.
pub fn sort_by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    sort_by(items, |a, b| key(a).cmp(&key(b)));
}

/// Sorts `items` by `compare`. Items that compare as equal keep their order.
pub fn sort_by<T>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let positions = sorted_positions(items.len(), &|a, b| compare(&items[a], &items[b]));
    move_to_order(positions, &mut |a, b| items.swap(a, b));
}

/// Returns a map with the given entries. If a key occurs more than once, the last value is used. Entries are inserted
/// one by one, because `collect` would first sort the entries, with a sort that is compiled for their type.
pub fn into_map<K: Ord, V>(entries: impl IntoIterator<Item = (K, V)>) -> BTreeMap<K, V> {
    let mut map = BTreeMap::new();
    map.extend(entries);
    map
}

/// Returns a set with the given items. The items are inserted one by one, because `collect` would first sort them (see
/// [`into_map`]).
pub fn into_set<T: Ord>(items: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    let mut set = BTreeSet::new();
    set.extend(items);
    set
}

/// Returns the positions of all items, in the order in which the sorted list contains the items.
#[inline(never)]
fn sorted_positions(count: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<u32> {
    let count = u32::try_from(count).expect("a short list");
    let mut positions: Vec<u32> = (0..count).collect();
    positions.sort_unstable_by(|&a, &b| compare(a as usize, b as usize).then(a.cmp(&b)));
    positions
}

/// Reorders items by calling `swap`. After the call, index `n` contains the item that was at `positions[n]` before the
/// call.
#[inline(never)]
fn move_to_order(mut positions: Vec<u32>, swap: &mut dyn FnMut(usize, usize)) {
    for first in 0..positions.len() {
        let mut place = first;
        // To mark an index as done, its entry in the list of positions is set to the index itself.
        loop {
            let from = std::mem::replace(&mut positions[place], place as u32) as usize;
            if from == first {
                break;
            }
            swap(place, from);
            place = from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_sorted_and_equal_items_keep_their_order() {
        let mut items = ["d", "b1", "a1", "c", "b2", "a2", "b3"];
        sort_by_key(&mut items, |item| item.as_bytes()[0]);
        assert_eq!(items, ["a1", "a2", "b1", "b2", "b3", "c", "d"]);
        sort_by(&mut items, |a, b| b.as_bytes()[0].cmp(&a.as_bytes()[0]));
        assert_eq!(items, ["d", "c", "b1", "b2", "b3", "a1", "a2"]);
        sort(&mut items);
        assert_eq!(items, ["a1", "a2", "b1", "b2", "b3", "c", "d"]);
    }

    #[test]
    fn every_order_of_five_items_is_sorted() {
        for number in 0..5_usize.pow(5) {
            let digits: Vec<usize> = (0..5).map(|at| number / 5_usize.pow(at) % 5).collect();
            let count = |digit| digits.iter().filter(|other| **other == digit).count();
            let expected: Vec<usize> = (0..5).flat_map(|digit| vec![digit; count(digit)]).collect();
            let mut items = digits.clone();
            sort(&mut items);
            assert_eq!(items, expected, "{digits:?}");
        }
    }

    #[test]
    fn the_last_value_of_a_repeated_key_is_in_the_map() {
        let map = into_map([("b", 1), ("a", 2), ("b", 3)]);
        assert_eq!(map.into_iter().collect::<Vec<_>>(), [("a", 2), ("b", 3)]);
        assert_eq!(into_set([2, 1, 2]).into_iter().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn lists_of_no_item_and_of_one_item_are_unchanged() {
        sort::<u32>(&mut []);
        let mut one = ["a"];
        sort(&mut one);
        assert_eq!(one, ["a"]);
    }
}
