//! Compares the outputs of a process that has ended with the truth file.

use std::fs;
use std::path::PathBuf;

use gpuflame_export::Options;
use gpuflame_model::profile::views;
use gpuflame_model::record::{CheckpointMark, Reader};
use gpuflame_offline::run::{self, ReadOptions};
use serde_json::Value;

use super::account::{Account, NO_STACK, Piece, Sums};
use super::plan::{Plan, is_without_a_word};
use crate::support::Done;

/// A process that has ended: either the process that the test started, or the first child that it forked.
pub(super) struct Ended<'a> {
    pub(super) plan: &'a Plan,
    pub(super) how: &'a str,
    pub(super) process: u32,
    pub(super) threads: u64,
    /// Output of the run, and the folder to which the run wrote files.
    pub(super) done: Done,
}

/// Upper bound on the difference between the truth file's clock and gpuflame's clock, in ns.
const CLOCKS: u64 = 1_000_000;
/// Maximum delay of a checkpoint, in ms. The limit is long because several chaos programs share two processors.
const SLACK_MS: u64 = 1000;

impl Ended<'_> {
    fn lines(&self, name: &str) -> Vec<Piece> {
        let path = self.done.folder.join(format!("{name}-{}.jsonl", self.process));
        let Ok(text) = fs::read_to_string(path) else { return Vec::new() };
        // The last line of the truth file may be truncated.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.map(|line| Piece::of(&line)).collect()
    }

    /// Returns all GPU work that was started, according to the truth file.
    fn started(&self) -> Vec<Piece> {
        self.lines("started")
    }

    /// Returns three values that the program recorded. The first value is the time at which the program ended (0 if it
    /// was killed earlier), and the second value is the number of launches until then. The third value is the number of
    /// records that the rival (another CUPTI client) received.
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

    pub(super) fn assert_right(&self) {
        let [ended, ..] = self.kept();
        assert!(ended > 0, "the program did not reach its end");
        let said = &self.done.stderr;
        assert!(!said.contains("panicked") && !said.contains("a bug in gpuflame"));
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

    /// Checks a process that wrote all files at its end.
    fn assert_writes(&self) {
        let found = Account::told(&self.done, &format!("out-{}.folded", self.process));
        let started = self.started();
        self.assert_balanced(&found, &started);
        if self.has("gfr") {
            let (read, _, remarks) = self.read();
            assert!(remarks.is_empty(), "{remarks:?}");
            assert_eq!(read, found, "the recording and the reported result differ");
        }
        let [_, launched, rivals] = self.kept();
        let said_no_answer = self.done.stderr.contains("CUPTI did not answer within 0.3 s");
        let is_traced =
            |piece: &Piece| !self.plan.has(if piece.is_fill() { "enable:2=" } else { "enable:10=" });
        if self.how == "return" && self.is_at_rest() && !self.plan.has("read_hangs") {
            self.assert_exact(found, rivals);
        } else if self.how == "term" && self.is_at_rest() && self.plan.delivers_all() {
            assert_eq!(found, Account::of(&started, |_| false, is_traced));
        } else if self.plan.answers() {
            // If launches were made while the process ended, they may be missing. Earlier launches must be present or
            // counted as dropped. If a thread is interrupted in the middle of a launch, it may hold a lock for which
            // CUPTI waits.
            let untraced = started.iter().filter(|piece| !is_traced(piece)).count() as u64;
            let kept = if said_no_answer { found.pending } else { 0 };
            let lost = found.activities_dropped + untraced + kept;
            assert!(found.launches >= launched, "{} of {launched}", found.launches);
            assert!(found.matched + lost >= launched, "{} of {launched}, {lost} are lost", found.matched);
        }
    }

    /// Checks that the sums are exact for a process that returned from `main` with no GPU work in flight. For such a
    /// process, the truth file tells for each activity record whether it was delivered.
    fn assert_exact(&self, found: Account, rivals: u64) {
        let work = self.lines("truth");
        assert_eq!(work.len(), self.started().len());
        let mut expected =
            Account::of(&work, |piece| piece.fate == "dropped", |piece| piece.fate == "delivered");
        if self.plan.has("fatal") {
            // gpuflame may miss the exit callbacks of launches that were in flight when CUPTI reported the fatal error.
            // If a buffer was delivered but not yet read at that time, it counts as unreadable.
            assert!(found.launches >= 299 - self.threads, "{}", found.launches);
            let ours = found.activities_matched + found.no_stack;
            let all = expected.activities_matched + expected.no_stack;
            let all_is_read = found.unreadable == 0 && !self.plan.has_rival;
            assert!(if all_is_read { ours == all } else { ours <= all }, "{found:?} {expected:?}");
        } else if self.plan.has_rival {
            // Each activity record was delivered either to the other CUPTI client (the rival) or to gpuflame.
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

    /// Checks a run in which any activity record may have been lost. The outputs must not contain any GPU work that was
    /// not started. The sums must be possible for the number of activities with usable times that the run reported.
    fn assert_balanced(&self, found: &Account, started: &[Piece]) {
        let most = Account::of(started, |_| false, |_| true);
        assert!(found.launches <= most.launches, "{found:?}");
        assert!(found.activities <= most.activities, "{found:?}");
        assert!(found.activities_matched <= most.activities_matched, "{found:?}");
        assert!(found.repeated <= most.repeated && found.of_no_call <= most.of_no_call, "{found:?}");
        // If a thread was in a launch call when the process ended, it may add one launch without a stack.
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
        // If the name of an activity was lost, the activity takes either 301 ns (short) or 1,200 ns (long). Therefore
        // the total time of the activities without names determines how many of these activities are long.
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

    /// Reads the file `NAME.gfr` of the process. Returns the counts and sums in the file, the last checkpoint mark, and
    /// the remarks of the reader.
    fn read(&self) -> (Account, Option<CheckpointMark>, Vec<String>) {
        let path = self.path("gfr");
        let mut reader = Reader::new(std::io::BufReader::new(fs::File::open(&path).unwrap())).unwrap();
        // The last chunk of the recording may be truncated.
        while !matches!(reader.next_row(), Ok(None)) {}
        let mark = reader.mark().copied();
        let run = run::read(&path, &ReadOptions::default()).unwrap();
        let mut text = Vec::new();
        let folded = gpuflame_offline::formats::format("folded").unwrap();
        run.draw(&views::GPU, folded, &Options::default(), &mut text).unwrap();
        fs::write(self.path("read.folded"), text).unwrap();
        let folded = self.done.folded_file(&format!("out-{}.read.folded", self.process));
        (Account::read(run.ledger(), folded), mark, run.remarks().to_vec())
    }

    /// Checks a process that ended without running its exit handlers. The recording of such a process contains all GPU
    /// work except the latest, and states how much may be missing.
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
                    "at most the last {} s, and {} activities that CUPTI still held, are missing",
                    f64::from(mark.interval_ms) / 1e3,
                    mark.open
                );
                // Rows that follow the checkpoint mark may match activities with launches that were pending at the
                // mark, or may add pending launches.
                assert!(has_rows || found.pending == mark.open, "{found:?}");
                assert!(remark.contains("its process ended without its exit hooks, after "), "{remark}");
                assert!(remark.contains(&missing), "{missing}: {remark}");
                (mark.time.0, u64::from(mark.interval_ms))
            }
            // A recording with rows is written while rows arrive, so it has no checkpoint mark.
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
