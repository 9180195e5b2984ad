//! Parts of a critical path, grouped by class, function and name.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::path_names::PathNames;
use gpuflame_offline::analysis::{PathClass, PathPart};

/// Parts of a path with the same class, function and name.
#[derive(Debug)]
pub(super) struct PathGroup {
    pub(super) class: PathClass,
    pub(super) name: String,
    /// Innermost function of the user's code.
    pub(super) function: Option<String>,
    pub(super) nanos: u64,
    /// Positions of the parts in the path.
    pub(super) parts: Vec<usize>,
}

/// Class, name and function.
type Key = (PathClass, String, Option<String>);

/// Groups the parts. The group with most time comes first.
pub(super) fn path_groups(names: PathNames<'_>, parts: &[PathPart]) -> Vec<PathGroup> {
    let mut groups: BTreeMap<Key, (u64, Vec<usize>)> = BTreeMap::new();
    let mut functions: HashMap<_, Option<String>> = HashMap::new();
    for (at, part) in parts.iter().enumerate() {
        let site = names.site(part);
        let function = functions.entry(site).or_insert_with(|| names.function(part)).clone();
        let (nanos, of_group) =
            groups.entry((part.class, names.name(part).into_owned(), function)).or_default();
        *nanos += part.end - part.start;
        of_group.push(at);
    }
    let group = |((class, name, function), (nanos, parts))| PathGroup { class, name, function, nanos, parts };
    let mut groups: Vec<PathGroup> = groups.into_iter().map(group).collect();
    // The map is in the order of keys, and the sort is stable.
    groups.sort_by_key(|group| Reverse(group.nanos));
    groups
}
