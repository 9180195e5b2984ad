//! Defines the part of a run to which shares of time refer. Shares refer to the steady part, or to the whole run if no
//! steady part is known.

use gpuflame_model::profile::Profile;

/// The part of a run, or of the runs of a job, to which shares of time refer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MeasuredPart {
    /// Length of the measured part in ns. For several runs, the length of the longest part.
    pub(super) nanos: u64,
    name: Option<&'static str>,
}

impl MeasuredPart {
    pub(super) fn of(profile: &Profile) -> Self {
        let nanos = profile.times().iter().map(|time| time.steady().window()).max().unwrap_or(0);
        Self { nanos, name: Some(profile.steady().map_or(WHOLE_RUN, |_| STEADY_PART)) }
    }

    /// Combines the measured parts of two runs into the measured part of a job that consists of both runs.
    pub(super) fn and(self, other: Self) -> Self {
        let name = match (self.name, other.name) {
            (Some(one), Some(another)) if one != another => Some(EITHER),
            (one, another) => one.or(another),
        };
        Self { nanos: self.nanos.max(other.nanos), name }
    }

    /// Returns the name of the part, such as `the steady part`.
    pub(super) fn name(self) -> &'static str {
        self.name.unwrap_or(WHOLE_RUN)
    }
}

const STEADY_PART: &str = "the steady part";
const WHOLE_RUN: &str = "the whole run";
/// Name of the part for a job in which only some runs have a steady part.
const EITHER: &str = "the steady part, or of the whole run where there is none";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_named_after_the_parts_of_its_runs() {
        let part = |nanos, name| MeasuredPart { nanos, name: Some(name) };
        let of =
            |parts: &[MeasuredPart]| parts.iter().fold(MeasuredPart::default(), |all, part| all.and(*part));
        let steady = of(&[part(5, STEADY_PART), part(9, STEADY_PART), part(7, STEADY_PART)]);
        assert_eq!((steady.nanos, steady.name()), (9, "the steady part"));
        let mixed = of(&[part(5, STEADY_PART), part(9, WHOLE_RUN), part(7, WHOLE_RUN)]);
        assert_eq!(mixed.name(), "the steady part, or of the whole run where there is none");
        assert_eq!(of(&[]).name(), "the whole run");
    }
}
