//! Finds, for each host call, the index of the called API function. Function names are compared once per launch context
//! (stack and API call), not once per call.

use std::collections::HashMap;

use super::graph::HostCall;
use gpuflame_export::compose::call;
use gpuflame_model::profile::Profile;
use gpuflame_model::record::{ContextId, IdMap};

/// Names of the API functions that the host called, and the function of each call.
pub(in super::super) struct Functions<'a> {
    /// Names of the functions, without duplicates.
    pub(in super::super) names: Vec<&'a str>,
    /// For each call, the index of its function in `names`.
    pub(in super::super) of_call: Vec<u32>,
}

impl<'a> Functions<'a> {
    pub(in super::super) fn new(calls: &[HostCall], profile: &'a Profile) -> Self {
        let mut names = Vec::new();
        let mut by_name: HashMap<&str, u32> = HashMap::new();
        let mut by_context: IdMap<ContextId, u32> = IdMap::default();
        let mut number = |context: ContextId| {
            let name = call(profile, context);
            *by_name.entry(name).or_insert_with(|| {
                names.push(name);
                names.len() as u32 - 1
            })
        };
        let of_call =
            calls.iter().map(|one| *by_context.entry(one.context).or_insert_with(|| number(one.context)));
        let of_call = of_call.collect();
        Self { names, of_call }
    }
}
