//! Versions of CUPTI: the two schemes of version numbers, the capabilities of each version, and the known bugs.
//!
//! All of gpuflame's version checks are in this module. The version checks use the version number that the CUPTI
//! library itself reports.

use std::fmt;

/// The version number that `cuptiGetVersion` returns. Up to CUDA 12.9, the number is a counter, which ends at 28.
/// In later releases, the number has the form `MMmmpp` (major, minor and patch number).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(pub u32);

/// List of CUDA releases in ascending order: the first CUPTI version number of each release, and the release's major
/// and minor number. The CUDA releases 11.8, 12.0 and 12.1 share one CUPTI version number.
const COUNTER_VERSIONS: [(u32, u32, u32); 8] =
    [(18, 11, 8), (20, 12, 2), (21, 12, 3), (22, 12, 4), (23, 12, 5), (24, 12, 6), (26, 12, 8), (28, 12, 9)];

/// Smallest version number of the form `MMmmpp`.
const FIRST_RELEASE_NUMBER: u32 = 130_000;

impl Version {
    /// Oldest CUPTI version that gpuflame supports (CUDA 11.8). The activity records of this CUPTI version have all
    /// fields that gpuflame needs.
    pub const OLDEST: Self = Self(18);

    /// Returns the CUDA release that contains this CUPTI version, as a pair (major, minor). Returns `None` for versions
    /// before 11.8.
    ///
    /// The releases 11.8, 12.0 and 12.1 have the same version number and cannot be distinguished. For all three
    /// releases, returns (11, 8).
    pub fn cuda(self) -> Option<(u32, u32)> {
        if self.0 >= FIRST_RELEASE_NUMBER {
            return Some((self.0 / 10_000, self.0 / 100 % 100));
        }
        let newest = COUNTER_VERSIONS.iter().rfind(|(first, ..)| *first <= self.0)?;
        Some((newest.1, newest.2))
    }

    /// Whether this version belongs to a later major CUDA release than the driver supports. A CUPTI does not start if
    /// its major release is later than the driver's. A CUPTI with the same major release starts, even if its minor
    /// release is later. The argument `driver` is a CUDA version in the driver's encoding (12040 = 12.4).
    pub fn is_newer_than_driver(self, driver: u32) -> bool {
        self.cuda().is_some_and(|(major, _)| major > driver / 1000)
    }

    /// Whether this version reports CUPTI's own fatal errors. (They are in the STATE domain, which exists since 12.2.)
    pub fn has_state_callbacks(self) -> bool {
        self.0 >= 20
    }

    /// Whether several tools can record GPU work at the same time with this version. Recording by several tools at the
    /// same time requires CUPTI 13.3 or later, and driver r610 or later (CUDA 13.3). `driver` is a CUDA version in the
    /// driver's encoding.
    pub fn can_share(self, driver: u32) -> bool {
        self.0 >= 130_300 && driver >= 13_030
    }

    /// Whether CUPTI survives a refused request for a buffer. If CUPTI 12.9 or later gets no buffer, it drops the
    /// records and counts them. Earlier versions crash.
    pub fn survives_without_buffer(self) -> bool {
        self.0 >= 28
    }

    /// Returns the known bugs in this version that can affect a recording, for `doctor` and reports.
    pub fn known_bugs(self) -> impl Iterator<Item = &'static str> {
        KNOWN_BUGS.iter().filter(move |h| (h.from..h.fixed).contains(&self.0)).map(|h| h.text)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cuda() {
            _ if *self == Self::OLDEST => f.write_str("11.8 to 12.1"),
            Some((major, minor)) => write!(f, "{major}.{minor}"),
            None => write!(f, "older than 11.8 (API version {})", self.0),
        }
    }
}

/// A known bug in CUPTI. The bug affects the versions from `from` up to, but not including, `fixed`.
struct KnownBug {
    from: u32,
    fixed: u32,
    text: &'static str,
}

/// Known bugs in CUPTI, taken from NVIDIA's release notes and from the issue trackers of affected tools.
const KNOWN_BUGS: &[KnownBug] = &[
    KnownBug {
        from: 22,
        fixed: 23,
        text: "CUPTI 12.4 Update 1 records no kernels at all; fixed in 12.5 Update 1 (CUDA.jl#2328)",
    },
    KnownBug {
        from: FIRST_RELEASE_NUMBER,
        fixed: FIRST_RELEASE_NUMBER + 1,
        text: "CUPTI 13.0 can crash in a flush and in long runs with graphs; fixed in 13.0 Update 1",
    },
    KnownBug {
        from: 18,
        fixed: 130_101,
        text: "CUPTI before 13.1 Update 1 gives wrong correlation ids to graph launches in every recording after \
               the first of a process",
    },
    KnownBug {
        from: 18,
        fixed: 130_300,
        text: "CUPTI before 13.3 leaks memory while it traces graphs with copy or fill nodes",
    },
    KnownBug {
        from: 130_200,
        fixed: 130_300,
        text: "CUPTI 13.2 slows down with every call made to it; fixed in 13.3",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_version_numbering_schemes_name_the_cuda_release() {
        let shown = |number| Version(number).to_string();
        assert_eq!(shown(18), "11.8 to 12.1");
        assert_eq!(shown(20), "12.2");
        assert_eq!(shown(25), "12.6");
        assert_eq!(shown(28), "12.9");
        assert_eq!(shown(130_001), "13.0");
        assert_eq!(shown(130_401), "13.4");
        assert_eq!(shown(140_100), "14.1");
        assert_eq!(shown(17), "older than 11.8 (API version 17)");
    }

    #[test]
    fn only_a_later_major_release_is_newer_than_the_driver() {
        assert!(Version(130_001).is_newer_than_driver(12_090));
        assert!(!Version(28).is_newer_than_driver(12_020));
        assert!(!Version(28).is_newer_than_driver(13_000));
        assert!(Version(28).is_newer_than_driver(11_080));
        assert!(!Version(18).is_newer_than_driver(11_080));
    }

    #[test]
    fn a_version_lists_only_hazards_that_affect_it() {
        assert_eq!(Version(130_300).known_bugs().count(), 0);
        assert!(Version(22).known_bugs().any(|text| text.contains("12.4")));
        assert!(!Version(23).known_bugs().any(|text| text.contains("12.4")));
        assert!(!Version(130_001).known_bugs().any(|text| text.contains("13.0 Update 1")));
    }

    #[test]
    fn state_callbacks_exist_since_12_2() {
        assert!(!Version(18).has_state_callbacks() && Version(20).has_state_callbacks());
    }

    #[test]
    fn only_versions_from_12_9_on_may_get_no_buffer() {
        assert!(!Version(26).survives_without_buffer() && Version(28).survives_without_buffer());
    }
}
