//! Turns a seed into a plan: the arguments of a chaos program, and the faults of the simulated CUDA stack.

use std::path::{Path, PathBuf};

use crate::support::{Run, Way, compile};

/// A pseudo-random sequence of choices. The field is the state of the random number generator; the initial state is the
/// seed.
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

const ENDS: [&str; 9] = ["return", "term", "kill", "return", "exit", "_exit", "term", "abort", "return"];
/// Faults in records and callbacks. For each piece of GPU work, the truth file lists which of these faults affected it.
const FAULTS: [&str; 14] = [
    "zero_ts:every=11",
    "reversed:every=13",
    "early_start:every=17",
    "epoch:every=19",
    "next_year:every=23",
    "endless:every=29",
    "unknown_kind:every=31",
    "unmatched_corr:every=37",
    "dup_corr:every=41",
    "name_null:every=7",
    "name_bad_utf8:every=43",
    "name_4k:every=47",
    "null_data:every=5",
    "buffer_twice:every=2",
];
/// Faults that affect the whole simulated CUDA stack.
const TROUBLES: [&str; 6] = [
    "launch_fail:every=21",
    "fatal:after=300",
    "flush_hangs:after=2",
    "read_hangs:after=300",
    "enable:2=35",
    "enable:10=35",
];
const FORMATS: [&str; 4] =
    ["folded", "folded,svg,csv,idle", "folded,activities,gfr", "folded,chrome,wait,alloc"];

/// Plan for one seed: the program's arguments and the simulation's settings.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) how: &'static str,
    pub(super) when: &'static str,
    pub(super) linger: u64,
    pub(super) child: &'static str,
    /// Whether another CUPTI client takes over the activity records.
    pub(super) has_rival: bool,
    /// Whether the other CUPTI client is in a plugin. During the run, the plugin is repeatedly loaded, finishes its
    /// work and is unloaded.
    passes: bool,
    pub(super) settings: Vec<(&'static str, String)>,
    pub(super) formats: &'static str,
    pub(super) way: Way,
}

impl Plan {
    pub(super) fn of(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let how = ENDS[(seed % ENDS.len() as u64) as usize];
        let when = dice.pick(&["after", "after", "midst"]);
        // Time in ms that the process waits before it ends. The time is 0, too short for a checkpoint, long enough for
        // a few checkpoints, or long enough for gpuflame's flush, which runs once per second.
        let linger = if is_without_a_word(how) { [0, 150, 400, 2500][dice.roll(4) as usize] } else { 0 };
        let child = dice.pick(&["-", "-", "return", "exit", "_exit", "kill", "abort", "term"]);
        let passes = passes(seed);
        let has_rival = dice.roll(12) == 0 || passes;
        let settings = Self::simulation(&mut dice, seed, has_rival);
        let formats = dice.pick(&FORMATS);
        let way = [Way::Injected, Way::Preloaded][dice.roll(2) as usize];
        Self { seed, how, when, linger, child, has_rival, passes, settings, formats, way }
    }

    fn simulation(dice: &mut Dice, seed: u64, has_rival: bool) -> Vec<(&'static str, String)> {
        let truth = "truth-%p.jsonl,started:started-%p.jsonl,summary:summary-%p.json";
        let mut settings = vec![("GPUSIM_LAUNCH_NS", "4000".to_owned()), ("GPUSIM_TRUTH", truth.to_owned())];
        let mut sometimes = |one_in, name, value: String, dice: &mut Dice| {
            if dice.roll(one_in) == 0 {
                settings.push((name, value));
            }
        };
        sometimes(3, "GPUSIM_SHUFFLE", seed.to_string(), dice);
        sometimes(3, "GPUSIM_EARLY", "1".to_owned(), dice);
        sometimes(3, "GPUSIM_EMPTY_BUFFERS", "1".to_owned(), dice);
        sometimes(5, "GPUSIM_ODD_SIZE", "1".to_owned(), dice);
        // With `GPUSIM_CORR=distinct`, an activity has the correlation id of the nested driver call, so nested calls
        // must have callbacks. Therefore the plan has `GPUSIM_NESTED=0` or `GPUSIM_CORR=distinct`, but not both.
        let (name, value) =
            if dice.roll(4) == 0 { ("GPUSIM_NESTED", "0") } else { ("GPUSIM_CORR", "distinct") };
        sometimes(2, name, value.to_owned(), dice);
        sometimes(3, "GPUSIM_CORR_START", "4294967000".to_owned(), dice);
        sometimes(5, "GPUSIM_FRAMES", "fp".to_owned(), dice);
        sometimes(5, "GPUSIM_FORK", "inject".to_owned(), dice);
        sometimes(4, "GPUSIM_MAX_BUFFERS", (1 + seed % 3).to_string(), dice);
        if !has_rival {
            let version = dice.pick(&["11.8", "12.0", "12.9", "13.2", "13.4"]);
            sometimes(4, "GPUSIM_CUPTI_VERSION", version.to_owned(), dice);
            sometimes(20, "GPUSIM_OTHER_SUBSCRIBER", "1".to_owned(), dice);
        }
        let mut faults: Vec<_> = FAULTS.iter().filter(|_| dice.roll(6) == 0).copied().collect();
        // Two faults also break the other CUPTI client, so the plan omits them if there is such a client. The other
        // CUPTI client stops counting at a record of a kind that CUPTI itself does not know. The other CUPTI client
        // also frees every buffer that it gets, even a buffer that it gets twice.
        let is_for_both =
            |fault: &str| !fault.starts_with("unknown_kind") && !fault.starts_with("buffer_twice");
        faults.retain(|fault| !has_rival || is_for_both(fault));
        if dice.roll(3) == 0 {
            faults.push(dice.pick(&TROUBLES));
        }
        // With the fault `read_hangs`, if the other CUPTI client read a record, it would block CUPTI's own thread
        // forever, even without gpuflame.
        faults.retain(|fault| !(has_rival && fault.starts_with("read_hangs")));
        // With the fault `flush_hangs`, the flush of the other CUPTI client would never return, even without gpuflame.
        faults.retain(|fault| !(passes(seed) && fault.starts_with("flush_hangs")));
        settings.push(("GPUSIM_FAULTS", faults.join(",")));
        settings
    }

    pub(super) fn run(&self, way: Way) -> Run {
        let [seed, linger] = [self.seed, self.linger].map(|number| number.to_string());
        let rival = match self.has_rival {
            true if self.passes => Self::passing_client().to_str().unwrap(),
            true => "rival",
            false => "-",
        };
        let run =
            Run::new(self.program(), way).args([&*seed, self.how, self.when, &linger, self.child, rival]);
        self.settings.iter().fold(run, |run, (name, value)| run.env(name, value))
    }

    fn program(&self) -> &'static Path {
        static PROGRAM: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
        PROGRAM.get_or_init(|| compile("tests/programs/chaos.c", &["-O2", "-pthread"]))
    }

    fn passing_client() -> &'static Path {
        static CLIENT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
        CLIENT.get_or_init(|| compile("tests/programs/passing_client.c", &["-O2", "-shared", "-fPIC"]))
    }

    pub(super) fn set(&self, name: &str) -> &str {
        self.settings.iter().find(|(of, _)| *of == name).map_or("", |(_, value)| value)
    }

    pub(super) fn has(&self, fault: &str) -> bool {
        self.set("GPUSIM_FAULTS").split(',').any(|one| one.starts_with(fault))
    }

    /// Returns whether the plan contains a fault with which a call into CUPTI never returns.
    pub(super) fn hangs(&self) -> bool {
        self.has("flush_hangs") || self.has("read_hangs")
    }

    /// Returns whether gpuflame eventually gets every record that CUPTI could store in a buffer, damaged or not.
    pub(super) fn answers(&self) -> bool {
        !self.hangs() && !self.has("fatal") && !self.has_rival
    }

    /// Returns whether CUPTI can store every record in a buffer and gpuflame gets it.
    pub(super) fn delivers_all(&self) -> bool {
        self.answers() && self.set("GPUSIM_MAX_BUFFERS").is_empty()
    }
}

/// Returns whether a CUPTI client is loaded, finishes and is unloaded during the run. If the seed is a multiple of 3,
/// the result is false, because threads of the program fork. A forked child may then inherit a lock that the client's
/// thread holds in CUPTI or in the dynamic linker, even without gpuflame.
fn passes(seed: u64) -> bool {
    seed % 11 == 5 && !seed.is_multiple_of(3)
}

/// Returns whether a process that ends in the way `how` neither runs an exit handler nor gets a signal that gpuflame
/// catches.
pub(super) fn is_without_a_word(how: &str) -> bool {
    ["_exit", "abort", "kill"].contains(&how)
}
