//! All at once, as a number has it: threads that launch, fork and are interrupted, records that come in any order, late,
//! twice, damaged or not at all, and many an end. The program behaves as it does without us, to the last signal and
//! to each descriptor that stays; the ledger adds up; and sums are the truth, or less by what is declared lost.
//!
//! `GPUFLAME_CHAOS=500` runs so many numbers, as `.ci/long` does.

use std::path::Path;

use crate::support::{Done, Run, Way, compile};

/// A number's own sequence of choices.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.roll(from.len() as u64) as usize]
    }
}

const ENDS: [&str; 7] = ["return", "return", "exit", "_exit", "abort", "term", "kill"];
const FAULTS: [&str; 8] = [
    "zero_ts",
    "reversed",
    "unknown_kind",
    "name_null:every=7",
    "name_bad_utf8",
    "fatal:after=300",
    // Records of work that there was not.
    "unmatched_corr",
    "dup_corr",
];
const FORMATS: [&str; 4] =
    ["folded", "folded,svg,csv,idle", "folded,activities,gfr", "folded,chrome,wait,alloc"];

/// What the simulation is to do, for the run with us and the one without.
fn simulation(dice: &mut Dice, seed: u64) -> Vec<(&'static str, String)> {
    let mut settings = vec![("GPUSIM_LAUNCH_NS", "4000".to_owned())];
    let mut sometimes = |name, value: String, dice: &mut Dice| {
        if dice.roll(3) == 0 {
            settings.push((name, value));
        }
    };
    sometimes("GPUSIM_SHUFFLE", seed.to_string(), dice);
    sometimes("GPUSIM_EARLY", "1".to_owned(), dice);
    sometimes("GPUSIM_EMPTY_BUFFERS", "1".to_owned(), dice);
    sometimes("GPUSIM_CORR", "distinct".to_owned(), dice);
    sometimes("GPUSIM_CORR_START", "4294967000".to_owned(), dice);
    sometimes("GPUSIM_MAX_BUFFERS", (1 + seed % 3).to_string(), dice);
    let faults = dice.pick(&FAULTS).to_owned();
    sometimes("GPUSIM_FAULTS", faults, dice);
    settings
}

fn run(program: &Path, way: Way, args: [&str; 2], settings: &[(&str, String)]) -> Run {
    let run = Run::new(program, way).args(args);
    settings.iter().fold(run, |run, (name, value)| run.env(name, value))
}

/// What must hold of a process that returned from its main.
fn assert_adds_up(done: &Done, settings: &[(&str, String)], shown: &str) {
    let nanos: u64 = done.folded().iter().map(|(_, nanos)| nanos).sum();
    let truth = done.truth().count("total_ns");
    let of = |name: &str| settings.iter().find(|(of, _)| *of == name).map_or("", |(_, value)| value);
    let right = match of("GPUSIM_FAULTS") {
        "unmatched_corr" | "dup_corr" => true,
        "" if of("GPUSIM_MAX_BUFFERS").is_empty() => nanos == truth,
        _ => nanos <= truth,
    };
    assert!(right, "{nanos} of {truth}: {shown}");
}

fn one(program: &Path, seed: u64) {
    let mut dice = Dice(seed);
    let end = ENDS[(seed % 7) as usize];
    let settings = simulation(&mut dice, seed);
    let args = [&*seed.to_string(), end];
    let without = run(program, Way::None, args, &settings).done();
    let way = [Way::Injected, Way::Preloaded][dice.roll(2) as usize];
    let formats = dice.pick(&FORMATS);
    let with = run(program, way, args, &settings).env("GPUFLAME_FORMATS", formats);
    let with = with.env("GPUFLAME_CHECKPOINT", "0.05").done();
    let shown = format!("seed {seed}, {end}, {way:?}, {formats}, {settings:?}\n{}", with.stderr);
    assert_eq!((with.code, with.signal), (without.code, without.signal), "{shown}");
    assert_eq!(with.stdout, without.stdout, "{shown}");
    assert!(!with.stderr.contains("panicked") && !with.stderr.contains("bug"), "{shown}");
    if !["return", "exit"].contains(&end) {
        return;
    }
    for word in ["launches", "activities"] {
        // Its parts are what it says they come to.
        with.sum(word);
    }
    // What is launched while the process ends may be in neither.
    if end == "return" {
        assert_adds_up(&with, &settings, &shown);
    }
}

#[test]
fn whatever_comes_together_the_program_behaves_as_without_us_and_the_ledger_adds_up() {
    let program = compile("tests/programs/chaos.c", &["-O2", "-pthread"]);
    let seeds = std::env::var("GPUFLAME_CHAOS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(35);
    (1..=seeds).for_each(|seed| one(&program, seed));
}
