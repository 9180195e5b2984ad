//! All at once, as a number has it: threads that launch, fork and are interrupted, a child from before there was CUDA,
//! records that come in any order, late, twice, damaged or not at all, another client that takes them, and many an end.
//! The program behaves as it does without us, to the last signal and to each descriptor that stays; the ledger adds up;
//! and sums are the truth less what is declared lost, to one, whether they are in files of an end or in what a process
//! leaves that has none.
//!
//! `GPUFLAME_CHAOS=500` runs so many numbers, as `.ci/long` does; `17-17` those from the first to the last.

use std::any::Any;
use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use gpuflame::ledger::{Ledger, Loss};
use gpuflame::record::{Mark, Reader};
use gpuflame::{DrawOptions, ReadOptions, views};
use serde_json::Value;

use crate::support::{Done, Run, Way, compile, plain};

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

const ENDS: [&str; 9] = ["return", "term", "kill", "return", "exit", "_exit", "term", "abort", "return"];
/// Of records. Which of them a piece of work has, the truth says.
const FAULTS: [&str; 12] = [
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
];
/// Of the whole stack.
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

/// What a number has come to: the program's arguments, and what the simulation is to do.
#[derive(Debug)]
struct Plan {
    seed: u64,
    how: &'static str,
    when: &'static str,
    linger: u64,
    child: &'static str,
    has_rival: bool,
    settings: Vec<(&'static str, String)>,
    formats: &'static str,
    way: Way,
}

impl Plan {
    fn of(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let how = ENDS[(seed % ENDS.len() as u64) as usize];
        let when = dice.pick(&["after", "after", "midst"]);
        // Long enough for no checkpoint, for some, and for what is flushed once a second.
        let linger = if is_without_a_word(how) { [0, 150, 400, 2500][dice.roll(4) as usize] } else { 0 };
        let child = dice.pick(&["-", "-", "return", "exit", "_exit", "kill", "abort", "term"]);
        let has_rival = dice.roll(12) == 0;
        let settings = Self::simulation(&mut dice, seed, has_rival);
        let formats = dice.pick(&FORMATS);
        let way = [Way::Injected, Way::Preloaded][dice.roll(2) as usize];
        Self { seed, how, when, linger, child, has_rival, settings, formats, way }
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
        // Work has the id of the nested call, if that has its own, so there must be one.
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
        // The rival's way of counting ends at what CUPTI itself does not know.
        faults.retain(|fault| !(has_rival && fault.starts_with("unknown_kind")));
        if dice.roll(3) == 0 {
            faults.push(dice.pick(&TROUBLES));
        }
        // It would read on the tracer's own thread, with us and without.
        faults.retain(|fault| !(has_rival && fault.starts_with("read_hangs")));
        settings.push(("GPUSIM_FAULTS", faults.join(",")));
        settings
    }

    fn run(&self, way: Way) -> Run {
        let [seed, linger] = [self.seed, self.linger].map(|number| number.to_string());
        let rival = if self.has_rival { "rival" } else { "-" };
        let run =
            Run::new(self.program(), way).args([&*seed, self.how, self.when, &linger, self.child, rival]);
        self.settings.iter().fold(run, |run, (name, value)| run.env(name, value))
    }

    fn program(&self) -> &'static Path {
        static PROGRAM: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
        PROGRAM.get_or_init(|| compile("tests/programs/chaos.c", &["-O2", "-pthread"]))
    }

    fn set(&self, name: &str) -> &str {
        self.settings.iter().find(|(of, _)| *of == name).map_or("", |(_, value)| value)
    }

    fn has(&self, fault: &str) -> bool {
        self.set("GPUSIM_FAULTS").split(',').any(|one| one.starts_with(fault))
    }

    /// Whether somebody never answers.
    fn hangs(&self) -> bool {
        self.has("flush_hangs") || self.has("read_hangs")
    }

    /// Whether all for which there is a buffer comes to us in the end, whatever is wrong with it.
    fn answers(&self) -> bool {
        !self.hangs() && !self.has("fatal") && !self.has_rival
    }

    /// Whether there is one for all.
    fn delivers_all(&self) -> bool {
        self.answers() && self.set("GPUSIM_MAX_BUFFERS").is_empty()
    }
}

/// Whether no exit handler runs, and no signal comes that we take.
fn is_without_a_word(how: &str) -> bool {
    ["_exit", "abort", "kill"].contains(&how)
}

/// A process that is over: a number's own, or the child that it forked first.
struct Ended<'a> {
    plan: &'a Plan,
    how: &'a str,
    process: u32,
    threads: u64,
    /// What it wrote, and where.
    done: Done,
}

/// A piece of work, as the truth has it.
struct Piece {
    site: String,
    leaf: String,
    nanos: u64,
    enter: u64,
    fault: Option<String>,
    fate: String,
}

impl Piece {
    fn of(line: &Value) -> Self {
        let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
        let fault = line["fault"].as_str().map(str::to_owned);
        let leaf = match (text("kind").as_str(), fault.as_deref()) {
            ("memset", _) => "[GPU_Memset]".to_owned(),
            (_, Some("name_null")) => "[GPU_Kernel][unnamed kernel]".to_owned(),
            (_, Some("name_bad_utf8")) => "[GPU_Kernel]_Z\u{fffd}\u{fffd}\u{fffd}kernel".to_owned(),
            (_, Some("name_4k")) => format!("[GPU_Kernel]{}", "k".repeat(4096)),
            _ => format!("[GPU_Kernel]{}", plain(&text("name"))),
        };
        let time = |field: &str| line[field].as_u64().unwrap();
        let nanos = time("end") - time("start");
        Self { site: text("site"), leaf, nanos, enter: time("enter"), fault, fate: text("delivered") }
    }

    fn has(&self, faults: &[&str]) -> bool {
        self.fault.as_deref().is_some_and(|fault| faults.contains(&fault))
    }

    fn is_fill(&self) -> bool {
        self.leaf == "[GPU_Memset]"
    }
}

/// With these a record has no time that can be.
const UNTIMED: [&str; 5] = ["zero_ts", "reversed", "epoch", "next_year", "endless"];
const NO_STACK: &str = "[no launch stack]";

/// Nanoseconds by call site and leaf.
type Sums = BTreeMap<(String, String), u64>;

/// What a ledger says and a picture shows, or what they must.
#[derive(Debug, Default, PartialEq, Eq)]
struct Account {
    launches: u64,
    matched: u64,
    pending: u64,
    /// Launched when the window was closed, as the process was about to end.
    outside: u64,
    launches_dropped: u64,
    activities: u64,
    activities_matched: u64,
    no_stack: u64,
    activities_outside: u64,
    /// Came once more.
    repeated: u64,
    activities_dropped: u64,
    untimed: u64,
    unreadable: u64,
    sums: Sums,
}

impl Account {
    /// What must be said of this work, where these of it are dropped and those delivered.
    fn of<'a>(
        work: impl IntoIterator<Item = &'a Piece>,
        is_dropped: impl Fn(&Piece) -> bool,
        is_delivered: impl Fn(&Piece) -> bool,
    ) -> Self {
        let mut all = Self::default();
        for piece in work {
            all.launches += 1;
            all.activities_dropped += u64::from(is_dropped(piece));
            if !is_delivered(piece) {
                all.pending += 1;
                continue;
            }
            all.matched += 1;
            all.activities_matched += 1;
            all.repeated += u64::from(piece.has(&["dup_corr"]));
            all.unreadable += u64::from(piece.has(&["unknown_kind"]));
            if piece.has(&UNTIMED) {
                all.untimed += 1;
            } else {
                *all.sums.entry((piece.site.clone(), piece.leaf.clone())).or_default() += piece.nanos;
            }
            if piece.has(&["unmatched_corr"]) {
                // The copy of the record whose id is none: its time is shown as nobody's.
                all.no_stack += 1;
                *all.sums.entry((NO_STACK.to_owned(), piece.leaf.clone())).or_default() += piece.nanos;
            }
        }
        all.activities = all.activities_matched + all.no_stack + all.activities_dropped;
        all
    }

    /// What stderr says of the run, and the picture that it wrote.
    fn told(done: &Done, folded: &str) -> Self {
        let (launches, became) = done.sum("launches");
        let (activities, found) = done.sum("activities");
        let twice = done.ledger("CUPTI delivered ").first().and_then(|line| line.split(' ').next());
        let lost = done.ledger("lost: ");
        let lost = |word: &str| {
            let mut parts = lost[0].split(", ").map(|part| part.rsplit_once(' ').unwrap());
            parts.find(|(name, _)| *name == word).map(|(_, count)| count.parse::<u64>().unwrap()).unwrap()
        };
        assert_eq!(found["device_graph"], 0);
        Self {
            launches,
            matched: became["matched"],
            pending: became["launch_pending"],
            outside: became["outside"],
            launches_dropped: became["dropped"],
            activities,
            activities_matched: found["matched"],
            no_stack: found["no_launch_stack"] + found["launched_before_recording"],
            activities_outside: found["outside"],
            repeated: twice.map_or(0, |count| count.parse().unwrap()),
            activities_dropped: found["dropped"],
            untimed: lost("timestamp_not_collected"),
            unreadable: lost("activities_unreadable"),
            sums: sums(done.folded_file(folded)),
        }
    }

    /// What a recording says that is read again.
    fn read(ledger: &Ledger, folded: Vec<(Vec<String>, u64)>) -> Self {
        for sum in ledger.sums() {
            assert!(sum.holds(), "{sum}");
        }
        let (launches, activities) = (ledger.tally.launches, ledger.tally.activities);
        assert_eq!(activities.device_graph, 0);
        Self {
            launches: ledger.launches().total,
            matched: launches.matched,
            pending: launches.pending,
            outside: launches.outside,
            launches_dropped: ledger.launches().total - launches.seen,
            activities: ledger.activities().total,
            activities_matched: activities.matched,
            no_stack: activities.no_stack + activities.launched_before,
            activities_outside: activities.outside,
            repeated: activities.repeated,
            activities_dropped: ledger.lost(Loss::ActivitiesDropped),
            untimed: activities.untimed,
            unreadable: ledger.lost(Loss::ActivitiesUnreadable),
            sums: sums(folded),
        }
    }
}

/// By the function that launched it, which is the name of its site.
fn sums(folded: Vec<(Vec<String>, u64)>) -> Sums {
    let mut sums = Sums::new();
    for (mut frames, nanos) in folded.into_iter().filter(|(_, nanos)| *nanos > 0) {
        let leaf = frames.pop().unwrap();
        // An id that never was may be lower than all that were.
        if frames[0] == "[launched before recording]" {
            frames[0] = NO_STACK.to_owned();
        }
        let sites = ["launch", "interrupted_launch", "fill", NO_STACK];
        let site = sites.into_iter().find(|site| frames.iter().any(|frame| frame == site));
        let site = site.unwrap_or_else(|| panic!("launched at none of the sites: {frames:?};{leaf} {nanos}"));
        *sums.entry((site.to_owned(), leaf)).or_default() += nanos;
    }
    sums
}

/// The clock of the truth and ours differ by less.
const CLOCKS: u64 = 1_000_000;
/// By so much a checkpoint may come late: two processors have several of these programs at once.
const SLACK_MS: u64 = 1000;

impl Ended<'_> {
    fn lines(&self, name: &str) -> Vec<Piece> {
        let path = self.done.folder.join(format!("{name}-{}.jsonl", self.process));
        let Ok(text) = fs::read_to_string(path) else { return Vec::new() };
        // The last line may be cut short.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.map(|line| Piece::of(&line)).collect()
    }

    /// Each piece of work that was begun.
    fn started(&self) -> Vec<Piece> {
        self.lines("started")
    }

    /// What the program itself has kept: whether it came to its end and when, what had been launched by then, and what the
    /// rival has.
    fn kept(&self) -> [u64; 3] {
        let bytes = fs::read(self.done.folder.join(format!("done-{}", self.process))).unwrap();
        let mut words = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
        std::array::from_fn(|_| words.next().unwrap())
    }

    fn has(&self, suffix: &str) -> bool {
        self.path(suffix).exists()
    }

    fn path(&self, suffix: &str) -> PathBuf {
        self.done.folder.join(format!("out-{}.{suffix}", self.process))
    }

    fn is_at_rest(&self) -> bool {
        self.plan.when == "after"
    }

    fn assert_right(&self) {
        let [ended, ..] = self.kept();
        assert!(ended > 0, "it did not come to its end");
        let said = &self.done.stderr;
        assert!(!said.contains("panicked") && !said.contains("a bug of its own"));
        if self.plan.set("GPUSIM_OTHER_SUBSCRIBER") == "1" {
            let lines = self.done.ledger("");
            assert!(lines.len() == 1 && lines[0].starts_with("not recording: "), "{lines:?}");
            assert!(!self.has("folded") && !self.has("gfr"));
        } else if is_without_a_word(self.how) || (self.plan.has("read_hangs") && !self.has("folded")) {
            self.assert_leaves();
        } else {
            self.assert_writes();
        }
    }

    /// Of an end that writes all files.
    fn assert_writes(&self) {
        let found = Account::told(&self.done, &format!("out-{}.folded", self.process));
        let started = self.started();
        self.assert_balanced(&found, &started);
        if self.has("gfr") {
            let (read, _, remarks) = self.read();
            assert!(remarks.is_empty(), "{remarks:?}");
            assert_eq!(read, found, "what is recorded is what was told");
        }
        let [_, launched, rivals] = self.kept();
        let said_no_answer = self.done.stderr.contains("the tracer did not answer within 0.3 s");
        let is_traced =
            |piece: &Piece| !self.plan.has(if piece.is_fill() { "enable:2=" } else { "enable:10=" });
        if self.how == "return" && self.is_at_rest() && !self.plan.has("read_hangs") {
            self.assert_exact(found, rivals);
        } else if self.how == "term" && self.is_at_rest() && self.plan.delivers_all() {
            assert_eq!(found, Account::of(&started, |_| false, is_traced));
        } else if self.plan.answers() {
            // What is launched while the process ends may be there or not, what was before must, or be among the dropped. A
            // thread that is interrupted in the midst of a launch may hold a lock that the tracer waits for.
            let untraced = started.iter().filter(|piece| !is_traced(piece)).count() as u64;
            let kept = if said_no_answer { found.pending } else { 0 };
            let lost = found.activities_dropped + untraced + kept;
            assert!(found.launches >= launched, "{} of {launched}", found.launches);
            assert!(found.matched + lost >= launched, "{} of {launched}, {lost} are lost", found.matched);
        }
    }

    /// The truth knows what became of each record of a process that returned from its main and had nothing under way.
    fn assert_exact(&self, found: Account, rivals: u64) {
        let work = self.lines("truth");
        assert_eq!(work.len(), self.started().len());
        let mut expected =
            Account::of(&work, |piece| piece.fate == "dropped", |piece| piece.fate == "delivered");
        if self.plan.has("fatal") {
            // Of launches that were under way then the ends may be told or not, and a buffer that was handed over and not
            // read until then is one that cannot be read.
            assert!(found.launches >= 299 - self.threads, "{}", found.launches);
            let ours = found.activities_matched + found.no_stack;
            let all = expected.activities_matched + expected.no_stack;
            let all_is_read = found.unreadable == 0 && !self.plan.has_rival;
            assert!(if all_is_read { ours == all } else { ours <= all }, "{found:?} {expected:?}");
        } else if self.plan.has_rival {
            // What the rival has is not among ours, and nothing is with nobody.
            assert_eq!(found.launches, expected.launches);
            let ours = found.activities_matched + found.no_stack;
            assert_eq!(ours + rivals, expected.activities_matched + expected.no_stack);
        } else {
            let failed = self.summary("failed_launches");
            assert_eq!(self.lost("launches_failed"), failed, "launches that failed");
            if !self.plan.has("flush_hangs") {
                assert!(work.iter().all(|piece| piece.fate != "pending"));
            }
            assert_eq!(found.launches_dropped, 0);
            expected.launches_dropped = found.launches_dropped;
            assert_eq!(found, expected);
        }
    }

    fn summary(&self, what: &str) -> u64 {
        let text = self.done.file(&format!("summary-{}.json", self.process));
        let totals: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        totals["totals"][what].as_u64().unwrap()
    }

    fn lost(&self, word: &str) -> u64 {
        let line = self.done.ledger("lost: ")[0];
        let mut parts = line.split(", ").map(|part| part.rsplit_once(' ').unwrap());
        parts.find(|(name, _)| *name == word).map(|(_, count)| count.parse().unwrap()).unwrap()
    }

    /// Whatever was lost: nothing is there that was not begun, and what there is comes to as many activities as it says that
    /// it has times of, each of its own duration.
    fn assert_balanced(&self, found: &Account, started: &[Piece]) {
        let most = Account::of(started, |_| false, |_| true);
        assert!(found.launches <= most.launches, "{found:?}");
        assert!(found.activities <= most.activities, "{found:?}");
        assert!(found.activities_matched <= most.activities_matched, "{found:?}");
        assert!(found.repeated <= most.repeated, "{found:?}");
        // One is without its stack that a thread was launching when the process ended.
        assert!(found.no_stack <= most.no_stack + found.launches_dropped + self.threads + 1, "{found:?}");
        let nanos_of = |sums: &Sums, leaf: &str| -> u64 {
            sums.iter().filter(|((_, of), _)| of == leaf).map(|(_, nanos)| nanos).sum()
        };
        let mut rest = found.activities_matched + found.no_stack - found.untimed;
        let mut unnamed = found.sums.values().sum::<u64>();
        let fill = started.iter().find(|piece| piece.is_fill()).map_or(1, |piece| piece.nanos);
        for (leaf, each) in
            [("[GPU_Kernel]add_d301", 301), ("[GPU_Kernel]mul_d1200", 1200), ("[GPU_Memset]", fill)]
        {
            let nanos = nanos_of(&found.sums, leaf);
            assert!(nanos.is_multiple_of(each), "{leaf} {nanos}");
            assert!(nanos <= nanos_of(&most.sums, leaf), "{leaf} {nanos}: {:?}", most.sums);
            rest = rest.checked_sub(nanos / each).unwrap_or_else(|| panic!("more than it counts: {found:?}"));
            unnamed -= nanos;
        }
        // Those without a name are short or long ones: so many must be long.
        let long = unnamed.checked_sub(301 * rest).map(|more| (more / 899, more % 899));
        assert!(
            long.is_some_and(|(long, odd)| odd == 0 && long <= rest),
            "{rest} in {unnamed} ns: {found:?}"
        );
        for ((site, leaf), nanos) in found.sums.iter().filter(|((site, _), _)| site != NO_STACK) {
            let most = most.sums.get(&(site.clone(), leaf.clone())).copied().unwrap_or(0);
            assert!(*nanos <= most, "{site} {leaf}: {nanos} of {most}");
        }
    }

    /// Its `NAME.gfr`: what it says, the moment that it is of, and what is to be known of it.
    fn read(&self) -> (Account, Option<Mark>, Vec<String>) {
        let path = self.path("gfr");
        let mut reader = Reader::new(std::io::BufReader::new(fs::File::open(&path).unwrap())).unwrap();
        // A chunk may be cut short.
        while !matches!(reader.next_row(), Ok(None)) {}
        let mark = reader.mark().copied();
        let run = gpuflame::read(&path, &ReadOptions::default()).unwrap();
        let mut text = Vec::new();
        let folded = gpuflame::format("folded").unwrap();
        run.draw(&views::GPU, folded, &DrawOptions::default(), &mut text).unwrap();
        fs::write(self.path("read.folded"), text).unwrap();
        let folded = self.done.folded_file(&format!("out-{}.read.folded", self.process));
        (Account::read(run.ledger(), folded), mark, run.remarks().to_vec())
    }

    /// Of an end without a word: all but what was done last is in a file, which says how much that may be.
    fn assert_leaves(&self) {
        assert!(!self.has("folded") && !self.has("svg"));
        let [ended, ..] = self.kept();
        if !self.has("gfr") {
            assert!(self.plan.linger < 1000, "it lived for {} ms and left nothing", self.plan.linger);
            return;
        }
        let (found, mark, remarks) = self.read();
        let has_rows = self.plan.formats.contains("gfr");
        let started = self.started();
        self.assert_balanced(&found, &started);
        let [remark] = &remarks[..] else { panic!("one remark, not {remarks:?}") };
        let under_way = self.threads + 1;
        let before = |time: u64| started.iter().filter(|piece| piece.enter + CLOCKS < time).count() as u64;
        let (moment, interval_ms) = match mark {
            Some(mark) => {
                let missing = format!(
                    "at most {} s of what it did, and {} activities that CUPTI still held, are missing",
                    f64::from(mark.interval_ms) / 1e3,
                    mark.open
                );
                // Rows that come after the mark may be of what was open then, or be open.
                assert!(has_rows || found.pending == mark.open, "{found:?}");
                assert!(remark.contains("its process ended without its exit hooks, after "), "{remark}");
                assert!(remark.contains(&missing), "{missing}: {remark}");
                (mark.time.0, u64::from(mark.interval_ms))
            }
            // Rows, which are written as they come.
            None => {
                let missing =
                    "launches of the last second, and activities that CUPTI had not handed over, are missing";
                assert!(remark.contains(missing), "{remark}");
                (0, 1000)
            }
        };
        if !self.plan.has("fatal") && !self.plan.has("read_hangs") {
            let least = before(moment.max(ended.saturating_sub((interval_ms + SLACK_MS) * 1_000_000)));
            assert!(found.launches + under_way >= least, "{} of {least} launches", found.launches);
        }
    }
}

/// Runs it, and says which process it was.
fn over(run: Run) -> (u32, Done) {
    let (mut command, folder) = run.into_command();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let process = child.id();
    (process, Done::of(child.wait_with_output().unwrap(), folder))
}

/// The numbers of processes that have files of which the name begins so.
fn processes(folder: &Path, prefix: &str) -> Vec<u32> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let number = |name: String| name.strip_prefix(prefix)?.split('.').next()?.parse().ok();
    let mut all: Vec<u32> = names.filter_map(number).collect();
    all.sort();
    all.dedup();
    all
}

fn one(seed: u64) {
    let plan = Plan::of(seed);
    let without = over(plan.run(Way::None)).1;
    let run = plan.run(plan.way).env("GPUFLAME_FORMATS", plan.formats).env("GPUFLAME_OUTPUT", "out-%p");
    let run = run.env("GPUFLAME_CHECKPOINT", "0.05");
    let run = if plan.hangs() { run.env("GPUFLAME_EXIT_LIMIT", "1") } else { run };
    let (process, with) = over(run);
    let folder = with.folder.clone();
    let shown = format!("{plan:?}\n{}\n{}", folder.display(), with.stderr);
    let checked = catch_unwind(AssertUnwindSafe(|| {
        assert_eq!((with.code, with.signal), (without.code, without.signal));
        assert_eq!(with.stdout, without.stdout);
        let mut expected = processes(&folder, "stderr-");
        assert_eq!(expected.len(), usize::from(plan.child != "-"));
        for child in &expected {
            let mut done = Done::of_folder(&folder);
            done.stderr = done.file(&format!("stderr-{child}"));
            Ended { plan: &plan, how: plan.child, process: *child, threads: 1, done }.assert_right();
        }
        Ended { plan: &plan, how: plan.how, process, threads: 3, done: with }.assert_right();
        expected.push(process);
        // Those that were forked later have none.
        let others = processes(&folder, "out-").into_iter().find(|other| !expected.contains(other));
        assert_eq!(others, None, "a process has files that can have no CUDA");
    }));
    if let Err(why) = checked {
        panic!("{}\n{shown}", said(&*why));
    }
    [folder, without.folder].iter().for_each(|folder| fs::remove_dir_all(folder).unwrap());
}

/// What a panic says.
fn said(why: &(dyn Any + Send)) -> &str {
    let text = why.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| why.downcast_ref::<&str>().copied()).unwrap_or("a panic without words")
}

/// From the first number to the last.
fn numbers() -> (u64, u64) {
    let asked = std::env::var("GPUFLAME_CHAOS").unwrap_or_else(|_| "35".to_owned());
    let (first, last) = asked.split_once('-').unwrap_or(("1", &asked));
    (first.parse().unwrap(), last.parse().unwrap())
}

/// So many programs at once: most of the time they wait.
const AT_ONCE: usize = 4;

#[test]
fn whatever_comes_together_the_program_behaves_as_without_us_and_the_ledger_adds_up() {
    let (first, last) = numbers();
    let (next, wrong) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > last {
                return;
            }
            if let Err(why) = catch_unwind(|| one(seed)) {
                wrong.lock().unwrap().push(format!("seed {seed}: {}", said(&*why)));
            }
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {} numbers\n{}", wrong.len(), last + 1 - first, wrong.join("\n\n"));
}
