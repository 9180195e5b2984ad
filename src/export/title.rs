//! Creates the title of a picture. The title contains the names of the view and of the run, because a picture is often
//! passed on without its file name.

use std::fmt::Write as _;

use gpuflame_model::profile::{DeviceTime, Profile, View, format_nanos, saturating_sum};
use gpuflame_model::record::Provenance;

/// Maximum length of the program's name in a title, in characters.
const MAX_PROGRAM_CHARS: usize = 40;

/// Returns the title of a picture of `view`: `GPU time by launching stack: train, rank 3, GPU 0 busy 34.5 % of 3.700 s,
/// 2026-11-23T02:45:09Z`. Facts that are unknown are omitted from the title. Traces of other tools do not contain the
/// name of the program, so pictures of such traces have only the title of the view.
pub(super) fn picture_title(profile: &Profile, view: &View) -> String {
    let mut title = view.title.to_owned();
    let Some((_, program)) = profile.process().filter(|(_, program)| !program.is_empty()) else {
        return title;
    };
    title.push_str(": ");
    title.extend(program.chars().take(MAX_PROGRAM_CHARS));
    if program.chars().nth(MAX_PROGRAM_CHARS).is_some() {
        title.push('…');
    }
    title.push_str(&run_facts(profile, ", ", false));
    title
}

/// Returns facts about a run, which headings show after the name of the program: `, rank 3: GPU 0 busy 34.5 % of 3.700
/// s of steps, 2026-11-23T02:45:09Z`. `before_gpus` is the text before the list of GPUs. If `names_part` is true, the
/// text names the steady part of the run (`of steps`).
pub fn run_facts(profile: &Profile, before_gpus: &str, names_part: bool) -> String {
    let mut text = String::new();
    let facts = |wanted| profile.provenance().filter(move |(what, _)| *what == wanted).map(|(_, text)| text);
    match facts(Provenance::RANK).count() {
        0 => {}
        1 => facts(Provenance::RANK).for_each(|rank| {
            let _ = write!(text, ", rank {rank}");
        }),
        ranks => {
            let _ = write!(text, ", {ranks} ranks");
        }
    }
    if let [first, rest @ ..] = profile.times() {
        let _ = match rest.len() {
            0 => write!(text, "{before_gpus}GPU {}", first.device.0),
            more => write!(text, "{before_gpus}{} GPUs", more + 1),
        };
        text.push_str(&busy_words(profile, names_part));
    }
    if let Some(start) = facts(Provenance::START).next() {
        let _ = write!(text, ", {start}");
    }
    text
}

/// Returns a text with the share of busy time of all GPUs in the steady part of the run, and the duration of that part.
/// If idle time is unknown, the text contains only the duration.
fn busy_words(profile: &Profile, names_part: bool) -> String {
    let sum = |of: fn(&DeviceTime) -> u64| saturating_sum(profile.times().iter().map(of));
    let longest = profile.times().iter().map(|time| time.steady().window()).max().unwrap_or_default();
    let (busy, window) = (sum(|time| time.steady().busy), sum(|time| time.steady().window()));
    let length = match profile.steady().filter(|_| names_part) {
        Some(steady) => format!("{} of {}", format_nanos(longest), steady.rule.words()),
        None => format_nanos(longest),
    };
    match profile.idle_doubt().is_none() && window > 0 {
        true => format!(" busy {:.1} % of {length}", 100.0 * busy as f64 / window as f64),
        false => format!(", {length}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::profile::views::GPU;
    use gpuflame_model::profile::{BusyIdle, Coverage, LaunchCoverage};
    use gpuflame_model::record::{DeviceId, Nanos, Row};

    fn device_time(device: u32, busy: u64, idle: u64) -> DeviceTime {
        DeviceTime {
            device: DeviceId(device),
            window: busy + idle,
            busy,
            idle,
            late: 0,
            late_count: 0,
            early: 0,
            early_count: 0,
            first: Nanos(0),
            last: Nanos(busy + idle),
            start_up: BusyIdle { busy: 0, idle: 20 },
            shutdown: BusyIdle::default(),
        }
    }

    fn recorded(name: &str, facts: &[(Provenance, &str)]) -> Profile {
        let mut profile = Profile::default();
        profile.push(&Row::Process { id: 7, name });
        for &(what, text) in facts {
            profile.push(&Row::Provenance { what, text });
        }
        profile
    }

    #[test]
    fn a_picture_names_program_rank_gpu_busy_share_length_and_date() {
        let facts = [(Provenance::RANK, "3"), (Provenance::START, "2026-11-23T02:45:09Z")];
        let mut profile = recorded("train", &facts);
        // The GPU was busy for 30 of the 100 ns that follow the start-up.
        profile.set_times(vec![device_time(0, 30, 90)], Vec::new());
        let expected =
            "GPU time by launching stack: train, rank 3, GPU 0 busy 30.0 % of 100 ns, 2026-11-23T02:45:09Z";
        assert_eq!(picture_title(&profile, &GPU), expected);
    }

    #[test]
    fn unknown_facts_are_omitted_from_titles() {
        assert_eq!(picture_title(&Profile::default(), &GPU), GPU.title);
        assert_eq!(picture_title(&recorded("app", &[]), &GPU), "GPU time by launching stack: app");
        let long = "x".repeat(41);
        let expected = format!("GPU time by launching stack: {}…", &long[1..]);
        assert_eq!(picture_title(&recorded(&long, &[]), &GPU), expected);
        let mut profile = recorded("app", &[]);
        profile.set_times(vec![device_time(1, 30, 90)], Vec::new());
        let all = LaunchCoverage { launches: 2, uncovered: 1 };
        profile.set_coverage(Coverage { all, ..Coverage::default() });
        assert_eq!(picture_title(&profile, &GPU), "GPU time by launching stack: app, GPU 1, 100 ns");
    }

    #[test]
    fn several_ranks_and_gpus_are_counted() {
        let mut profile = recorded("app", &[(Provenance::RANK, "0"), (Provenance::RANK, "1")]);
        profile.set_times(vec![device_time(0, 100, 20), device_time(1, 20, 100)], Vec::new());
        let expected = "GPU time by launching stack: app, 2 ranks, 2 GPUs busy 60.0 % of 100 ns";
        assert_eq!(picture_title(&profile, &GPU), expected);
    }
}
