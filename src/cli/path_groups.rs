//! Groups the parts of a critical path by class, function and name.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use super::path_names::PathNames;
use gpuflame_model::profile::SampleSite;
use gpuflame_offline::analysis::{PathClass, PathPart};

/// The parts of a critical path that have the same class, function and name.
#[derive(Debug)]
pub(super) struct PathGroup {
    pub(super) class: PathClass,
    pub(super) name: String,
    /// Innermost function of the user's code in the stacks of the parts.
    pub(super) function: Option<String>,
    pub(super) nanos: u64,
    /// Indices of the group's parts in the critical path.
    pub(super) parts: Vec<usize>,
}

/// Key of a group: class, index of the function, and name.
type Key<'a> = (PathClass, u32, Cow<'a, str>);

/// Groups the parts. Returns the groups sorted by time, longest first.
pub(super) fn path_groups(names: PathNames<'_>, parts: &[PathPart]) -> Vec<PathGroup> {
    let mut functions = Functions::default();
    let mut groups: HashMap<Key<'_>, (u64, Vec<usize>)> = HashMap::new();
    for (at, part) in parts.iter().enumerate() {
        let key = (part.class, functions.number(names, part), names.name(part));
        let (nanos, of_group) = groups.entry(key).or_default();
        *nanos += part.end - part.start;
        of_group.push(at);
    }
    let group = |((class, function, name), (nanos, parts)): (Key<'_>, (u64, _))| {
        let function: &Option<String> = &functions.names[function as usize];
        PathGroup { class, name: Cow::into_owned(name), function: function.clone(), nanos, parts }
    };
    let mut groups: Vec<PathGroup> = groups.into_iter().map(group).collect();
    let key = |group: &PathGroup| (Reverse(group.nanos), group.class);
    groups.sort_unstable_by(|a, b| {
        key(a).cmp(&key(b)).then_with(|| (&a.name, &a.function).cmp(&(&b.name, &b.function)))
    });
    groups
}

/// Interned names of functions. While parts are grouped, each part has the index of its function instead of the name,
/// because a path may have a million parts.
#[derive(Default)]
struct Functions {
    names: Vec<Option<String>>,
    by_name: HashMap<Option<String>, u32>,
    by_site: HashMap<Option<SampleSite>, u32>,
}

impl Functions {
    fn number(&mut self, names: PathNames<'_>, part: &PathPart) -> u32 {
        *self.by_site.entry(names.site(part)).or_insert_with(|| {
            let name = names.function(part);
            *self.by_name.entry(name).or_insert_with_key(|name| {
                self.names.push(name.clone());
                self.names.len() as u32 - 1
            })
        })
    }
}
