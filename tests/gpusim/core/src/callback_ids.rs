//! Names of CUPTI's callback ids. The real lists contain about 1,400 names. The simulation knows the names of the
//! functions for launches, copies, graphs and captures, and of every function that it exports. All other callback ids
//! have made-up names, so that a client that enumerates the ids from 1 upwards finds no gap.

use crate::version::CuptiVersion;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

/// The driver API's callback domain.
pub const DRIVER: u32 = 1;
/// The runtime API's callback domain.
pub const RUNTIME: u32 = 2;

/// Returns the name of a callback id, as `cuptiGetCallbackName` does, or `None` if the id is higher than the last id of
/// this CUPTI version.
pub fn name(version: CuptiVersion, domain: u32, id: u32) -> Option<&'static CStr> {
    if id == 0 || id > version.last_callback(domain) {
        return None;
    }
    names().get(&(domain, id)).map(CString::as_c_str)
}

/// Returns the entries of `callback_ids.txt`, whose lines have the form `domain id name`.
pub fn known() -> impl Iterator<Item = (u32, u32, &'static str)> {
    include_str!("callback_ids.txt").lines().filter(|l| !l.starts_with('#')).map(|line| {
        let mut words = line.split(' ');
        let mut word = || words.next().expect("three words a line");
        (word().parse().expect("a domain"), word().parse().expect("an id"), word())
    })
}

fn names() -> &'static HashMap<(u32, u32), CString> {
    static NAMES: OnceLock<HashMap<(u32, u32), CString>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let newest = CuptiVersion::V13_4;
        let driver = (1..=newest.last_callback(DRIVER)).map(|i| ((DRIVER, i), format!("cuReserved{i}")));
        let runtime =
            (1..=newest.last_callback(RUNTIME)).map(|i| ((RUNTIME, i), format!("cudaReserved{i}_v3020")));
        let known = known().map(|(d, i, n)| ((d, i), n.to_owned()));
        let no_nul = |(key, name): (_, String)| (key, CString::new(name).expect("no NUL in a name"));
        driver.chain(runtime).chain(known).map(no_nul).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callback_ids_have_no_gaps_up_to_each_versions_last() {
        for version in CuptiVersion::ALL {
            for domain in [DRIVER, RUNTIME] {
                let last = version.last_callback(domain);
                assert!((1..=last).all(|id| name(version, domain, id).is_some()));
                assert_eq!(name(version, domain, last + 1), None);
            }
        }
    }

    #[test]
    fn launches_have_their_documented_callback_ids() {
        let at = |domain, id| name(CuptiVersion::V13_0, domain, id).unwrap().to_str().unwrap();
        assert_eq!(at(RUNTIME, 211), "cudaLaunchKernel_v7000");
        assert_eq!(at(RUNTIME, 505), "__cudaLaunchKernel_v13000");
        assert_eq!(at(DRIVER, 307), "cuLaunchKernel");
        assert_eq!(at(DRIVER, 652), "cuLaunchKernelEx");
    }

    #[test]
    fn no_reserved_name_looks_like_a_launch() {
        let names = names().values().map(|n| n.to_str().unwrap()).filter(|n| n.contains("Reserved"));
        assert!(names.into_iter().all(|n| !n.contains("Launch") && !n.contains("Mem")));
    }
}
