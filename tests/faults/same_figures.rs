//! Checks that each number in `gpuflame summary --format json` equals the number that the detailed verb prints, for
//! traces and for the default files of runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use gpuflame_model::profile::format_nanos;
use serde_json::Value;

use crate::cases::{cases, healthy};
use crate::measure::{is_gpu_work, slices, union_ns};
use crate::programs::{PROGRAMS, STRENGTHS};
use crate::support::command::gpuflame;
use crate::support::scratch;

fn json(folder: &Path, args: &[&str]) -> Value {
    let args = args.iter().chain(&["--format", "json"]);
    serde_json::from_str(&gpuflame(folder, args).ok().stdout).unwrap()
}

fn number(row: &Value, column: &str) -> u64 {
    row[column].as_u64().unwrap_or_else(|| panic!("no {column} in {row}"))
}

fn share(part: u64, all: u64) -> f64 {
    100.0 * part as f64 / all as f64
}

/// Name that `gpuflame info` prints before the number of launches without an activity.
const PENDING: &str = "launches launch pending";

/// The summary of a file and the tables of the detailed verbs.
struct Figures {
    folder: PathBuf,
    summary: Value,
    info: Value,
    top: Value,
    check: Value,
    /// Tables of `critical-path`. The tables are null for a file that gpuflame writes by default, because it has only
    /// sums.
    path: Value,
    /// Time since the first step that kernels run on GPU 0, in ns, added up from a trace.
    kernel_ns: Option<i64>,
    /// GPU of the stream that is busy longest, and the stream's busy time in ns, added up from a trace.
    longest_stream: Option<(u64, u64)>,
    wrong: Vec<String>,
}

impl Figures {
    fn read(folder: &Path, file: &str) -> Self {
        Self {
            folder: folder.to_owned(),
            summary: json(folder, &["summary", file]),
            info: json(folder, &["info", file]),
            top: json(folder, &["top", file, "-n", "0", "--by", "kernels,line,copies,idle"]),
            check: json(folder, &["check", file]),
            path: match file.ends_with(".json") {
                true => json(folder, &["critical-path", file, "-n", "0"]),
                false => Value::Null,
            },
            kernel_ns: file.ends_with(".json").then(|| kernel_ns(&folder.join(file))),
            longest_stream: file.ends_with(".json").then(|| longest_stream(&folder.join(file))),
            wrong: Vec::new(),
        }
    }

    fn rows(tables: &Value, table: &str) -> Vec<Value> {
        tables[table].as_array().cloned().unwrap_or_default()
    }

    fn expect(&mut self, is_right: bool, what: &str, row: &Value) {
        if !is_right {
            self.wrong.push(format!("{what}: {row}"));
        }
    }

    /// Returns the rows of `gpuflame info` about the steady part of the run, one per GPU.
    fn steady(&self) -> Vec<Value> {
        let mut parts = Self::rows(&self.info, "parts");
        parts.retain(|part| part["part"] != "start-up" && part["part"] != "shutdown");
        if parts.is_empty() { Self::rows(&self.info, "devices") } else { parts }
    }

    fn sum_of(rows: &[Value], column: &str) -> u64 {
        rows.iter().filter_map(|row| row[column].as_u64()).sum()
    }

    fn is_share(row: &Value, part: u64, all: u64) -> bool {
        row["share_percent"].as_f64().is_some_and(|found| (found - share(part, all)).abs() < 1e-4)
    }

    /// Compares the kernels. `top` has a row per kernel and GPU, and the summary has a row per kernel.
    fn work(&mut self) {
        let mut kernels: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for row in Self::rows(&self.top, "kernels") {
            let (nanos, count) = kernels.entry(row["name"].as_str().unwrap().to_owned()).or_default();
            *nanos += number(&row, "total_ns");
            *count += number(&row, "count");
        }
        let all = kernels.values().map(|(nanos, _)| nanos).sum();
        for row in Self::rows(&self.summary, "work") {
            let shown = row["name"].as_str().unwrap().trim_end_matches("...");
            let (nanos, count) = (number(&row, "total_ns"), number(&row, "count"));
            let is_known =
                kernels.iter().any(|(name, sums)| name.starts_with(shown) && *sums == (nanos, count));
            let is_right =
                is_known && number(&row, "avg_ns") == nanos / count && Self::is_share(&row, nanos, all);
            self.expect(is_right, "not in `top --by kernels`", &row);
        }
    }

    fn lines(&mut self) {
        let lines = Self::rows(&self.top, "line");
        let all = Self::sum_of(&lines, "total_ns");
        for row in Self::rows(&self.summary, "lines") {
            let line = row["line"].as_str().unwrap_or("[no line]");
            let of_line: Vec<Value> = lines.iter().filter(|other| other["line"] == line).cloned().collect();
            let nanos = number(&row, "total_ns");
            let is_right = Self::sum_of(&of_line, "total_ns") == nanos && Self::is_share(&row, nanos, all);
            self.expect(is_right, "not in `top --by line`", &row);
        }
    }

    fn equal_rows(&mut self) {
        let is_in = |tables: &Value, table: &str, row: &Value| Self::rows(tables, table).contains(row);
        for row in Self::rows(&self.summary, "copies") {
            self.expect(is_in(&self.top, "copies", &row), "not in `top --by copies`", &row);
        }
        for row in Self::rows(&self.summary, "steps") {
            self.expect(is_in(&self.info, "steps", &row), "not in `info`", &row);
        }
        for row in Self::rows(&self.summary, "gpus") {
            let is_same =
                |part: &Value| row.as_object().unwrap().iter().all(|(key, value)| part[key] == *value);
            self.expect(self.steady().iter().any(is_same), "not in `info`", &row);
        }
    }

    /// Asserts that the causes of idle time equal those that `top` prints, and that the idle time of each place is part
    /// of the idle time of a function or a call.
    fn idle(&mut self) {
        let idle = Self::sum_of(&self.steady(), "idle_ns");
        let causes = Self::rows(&self.top, "idle_causes");
        for row in Self::rows(&self.summary, "idle_causes") {
            let nanos = number(&row, "total_ns");
            let is_known = causes
                .iter()
                .any(|other| other["cause"] == row["cause"] && number(other, "total_ns") == nanos);
            self.expect(is_known && Self::is_share(&row, nanos, idle), "not in `top --by idle`", &row);
        }
        let stacks = Self::rows(&self.top, "idle");
        for row in Self::rows(&self.summary, "idle_places").iter().filter(|row| !row["place"].is_null()) {
            let (nanos, place) = (number(row, "total_ns"), row["place"].as_str().unwrap());
            let names = names_in(place);
            let has_all =
                |stack: &&Value| names.iter().all(|name| stack["stack"].as_str().unwrap().contains(name));
            let at_place: Vec<Value> = stacks.iter().filter(has_all).cloned().collect();
            let is_right = Self::sum_of(&at_place, "total_ns") >= nanos && Self::is_share(row, nanos, idle);
            self.expect(is_right, "more than in `top --by idle`", row);
        }
    }

    /// Asserts that `critical-path` prints all parts of the critical path that the summary names.
    fn path(&mut self) {
        let names = Self::rows(&self.path, "path_names");
        for row in Self::rows(&self.summary, "critical_path") {
            let shown = row["name"].as_str().unwrap().trim_end_matches("...");
            let is_same = |other: &Value| {
                other["name"].as_str().unwrap().starts_with(shown)
                    && ["class", "function", "parts", "time_ns", "share_percent"]
                        .iter()
                        .all(|column| other[column] == row[column])
            };
            self.expect(names.iter().any(is_same), "not in `critical-path`", &row);
        }
    }

    /// Returns the figures of the sentence about the critical path: its length, and the share of each kind of part.
    fn path_figures(&self) -> Vec<String> {
        let classes = Self::rows(&self.path, "path_classes");
        let all = Self::sum_of(&classes, "time_ns");
        // Classes of path parts that the summary's sentence combines into one kind.
        let kinds: [&[&str]; 7] = [
            &["kernel", "graph"],
            &["memory"],
            &["host_function"],
            &["call", "return"],
            &["host", "hand_off"],
            &["launch", "gap"],
            &["unexplained"],
        ];
        let of_kind = |kind: &&[&str]| -> Option<String> {
            let rows = classes.iter().filter(|row| kind.contains(&row["class"].as_str().unwrap()));
            let rows: Vec<Value> = rows.cloned().collect();
            // The sentence leaves out parts whose share would be 0.0 %.
            let part = share(Self::sum_of(&rows, "time_ns"), all);
            (part >= 0.05).then(|| format!("{part:.1}"))
        };
        let mut figures = vec![format_nanos(all)];
        figures.extend(kinds.iter().filter_map(of_kind));
        let on_host = ["host", "hand_off", "call", "return"];
        let host = classes.iter().filter(|row| on_host.contains(&row["class"].as_str().unwrap()));
        let host: u64 = host.map(|row| number(row, "time_ns")).sum();
        if let Some((device, work)) = self.longest_stream
            && 2 * host >= all
            && (all.div_ceil(2)..=all).contains(&work)
        {
            figures.extend([device.to_string(), format_nanos(work), format_nanos(all - work)]);
        }
        figures
    }

    fn findings(&mut self) {
        let checks = Self::rows(&self.check, "findings");
        let wall = self.steady().iter().map(|part| number(part, "window_ns")).max().unwrap();
        for row in Self::rows(&self.summary, "findings") {
            let culprit = row["culprit"].as_str().unwrap();
            let is_same = |other: &&Value| {
                (&other["id"], &other["cost_ns"]) == (&row["id"], &row["cost_ns"])
                    && other["culprit"].as_str().unwrap().starts_with(culprit.trim_end_matches("..."))
            };
            let is_cost = row["cost_ns"].as_u64().is_none_or(|cost| Self::is_share(&row, cost, wall));
            self.expect(checks.iter().any(|other| is_same(&other)) && is_cost, "not in `check`", &row);
        }
    }

    /// Compares all numbers in a sentence with the expected numbers.
    fn sentence(&mut self, sentence: &str, expected: &[String]) {
        let found = numbers(sentence);
        let expected: Vec<String> = expected.iter().flat_map(|text| numbers(text)).collect();
        let (found_only, missing) = (without(&found, &expected), without(&expected, &found));
        if !found_only.is_empty() || !missing.is_empty() {
            self.wrong.push(format!("`{sentence}` has {found_only:?} and lacks {missing:?}"));
        }
    }

    fn fact(&self, what: &str) -> Value {
        let facts = Self::rows(&self.info, "facts");
        facts.iter().find(|fact| fact["what"] == what).map_or(Value::Null, |fact| fact["value"].clone())
    }

    /// Returns the texts about single places that the sentence about idle time must contain. The sentence may also name
    /// a place that is not in the table, because it names a place within the largest cause.
    fn places_in(&self, answer: &str) -> Vec<String> {
        let places = Self::rows(&self.summary, "idle_places");
        let idle = Self::sum_of(&self.steady(), "idle_ns");
        let of_row = |row: &Value| {
            let place = row["place"].as_str()?;
            let after = answer
                .split_once(" late (")
                .map_or("", |(_, rest)| rest)
                .split_once(&format!("% {place})"))?
                .1;
            // The share is computed again, because `share_percent` is already rounded.
            Some(vec![format!("{:.1} {place}", share(number(row, "total_ns"), idle)), after.to_owned()])
        };
        let rest = || answer.split_once('(').map(|(_, rest)| rest.to_owned()).into_iter().collect();
        places.iter().find_map(of_row).unwrap_or_else(rest)
    }

    /// Returns the values of these facts that are not 0, in the form in which a sentence shows them.
    fn counts(&self, facts: &[&str]) -> Vec<String> {
        facts
            .iter()
            .map(|what| self.fact(what))
            .filter(|count| *count != 0)
            .map(|count| grouped(&count))
            .collect()
    }

    fn answers(&mut self) {
        for row in Self::rows(&self.summary, "answers") {
            let answer = row["answer"].as_str().unwrap().to_owned();
            if let Some(gain) = predicted_gain(&answer) {
                self.gain(gain);
                continue;
            }
            let expected = self.expected(&answer);
            match expected {
                Some(expected) => self.sentence(&answer, &expected),
                None => self.wrong.push(format!("no verb is known for `{answer}`")),
            }
        }
    }

    /// Compares a predicted gain with the output of the command that the sentence names.
    fn gain(&mut self, Gain { saved, arguments }: Gain) {
        let what_if = json(&self.folder, &arguments.iter().map(|word| &**word).collect::<Vec<_>>());
        let change = Self::rows(&what_if, "total")[0]["change_ns"].as_i64().unwrap();
        let nanos = u64::try_from(-change).unwrap_or(0);
        let wall = self.steady().iter().map(|part| number(part, "window_ns")).max().unwrap();
        self.sentence(&saved, &[format_nanos(nanos), format!("{:.1}", share(nanos, wall))]);
    }

    /// Returns texts with the numbers that a sentence of the summary must contain; the numbers are from the tables of
    /// the detailed verbs.
    fn expected(&self, answer: &str) -> Option<Vec<String>> {
        let steady = self.steady();
        let percent = |part: u64, all: u64| format!("{:.1}", share(part, all));
        let (idle, window, busy) =
            ["idle_ns", "window_ns", "busy_ns"].map(|column| Self::sum_of(&steady, column)).into();
        let mut causes = Self::rows(&self.top, "idle_causes");
        causes.retain(|row| row["cause"] != "start_up" && row["cause"] != "shutdown");
        let cause = |name: &str, column: &str| {
            causes.iter().find(|row| row["cause"] == name).map_or(0, |row| number(row, column))
        };
        let parts = Self::rows(&self.info, "parts");
        let apart = |part: &str, column: &str| {
            parts.iter().filter(|row| row["part"] == part).map(|row| number(row, column)).collect::<Vec<_>>()
        };
        let starts = |start: &str| answer.starts_with(start);
        match () {
            () if starts("critical path of ") => Some(self.path_figures()),
            // The summary withholds this figure, because the trace lacks some GPU work.
            () if starts("critical path: unknown, ") => Some(Vec::new()),
            () if starts("GPU work, lines and copies below") => {
                let busy: u64 = ["start-up", "shutdown"].iter().flat_map(|part| apart(part, "busy_ns")).sum();
                Some(vec![format_nanos(busy)])
            }
            () if starts("GPU ") => {
                let mut texts: Vec<String> = Vec::new();
                for part in &steady {
                    texts.push(part["device"].to_string());
                    texts.push(percent(number(part, "busy_ns"), number(part, "window_ns")));
                    texts.push(format_nanos(number(part, "window_ns")));
                }
                if answer.contains("the median step") {
                    let steps = &Self::rows(&self.info, "steps")[0];
                    texts.push(steps["longest_step"].to_string());
                    texts.extend(["max_ns", "p50_ns"].map(|column| format_nanos(number(steps, column))));
                }
                for part in ["start-up", "shutdown"] {
                    // The sentence omits parts of 0 ns.
                    let longest = apart(part, "window_ns").into_iter().max().filter(|nanos| *nanos > 0);
                    texts.extend(longest.map(format_nanos));
                }
                Some(texts)
            }
            () if starts("idle ") && !starts("idle time") => {
                let most = causes.iter().map(|row| number(row, "total_ns")).max().unwrap_or(0);
                let mut texts = vec![format_nanos(idle), percent(most, idle)];
                texts.extend(self.places_in(answer));
                Some(texts)
            }
            () if starts("launch-bound: ") || starts("host-bound: ") => {
                let gaps = match cause("launch_latency", "gaps") {
                    0 => cause("host_late", "gaps"),
                    gaps => gaps,
                };
                let host = cause("host_late", "total_ns") + cause("launch_latency", "total_ns");
                Some(vec![percent(host, idle), format_nanos(idle / gaps.max(1))])
            }
            () if starts("not launch-bound: ") => Some(vec![percent(cause("dependency", "total_ns"), idle)]),
            () if starts("bound by GPU work: ") => Some(vec![percent(busy, window)]),
            () if starts("kernels ran for ") => {
                self.kernel_ns.map(|nanos| vec![percent(nanos.unsigned_abs(), window), "0".to_owned()])
            }
            () if starts("idle time is unknown: ") => Some(vec![self.fact("idle time").to_string()]),
            () if starts("complete: ") => Some(self.counts(&["launches", PENDING])),
            () if answer.contains("of the GPU time is linked to launches") => {
                let mut texts = self.counts(&["launches", "activities", PENDING]);
                texts.push(format!("{:.1}", self.fact("GPU time linked").as_f64()?));
                Some(texts)
            }
            () => None,
        }
    }
}

/// A predicted gain, as a sentence of the summary states it.
pub(crate) struct Gain {
    /// The saved time and its share of the run: `takes 1.234 ms less (5.6 % of the steady part)`.
    pub(crate) saved: String,
    /// Arguments of the command that predicts this gain.
    pub(crate) arguments: Vec<String>,
}

/// Returns the gain that an answer predicts, or `None` if the answer predicts no gain.
pub(crate) fn predicted_gain(answer: &str) -> Option<Gain> {
    let rest = answer.strip_prefix("predicted: ")?;
    let saved = &rest[rest.find("takes ")?..rest.find(" if ")?];
    let command = rest.split_once("`gpuflame ")?.1.strip_suffix("` shows more")?;
    // A shell removes quotes. The names in these traces contain no quotes, and no spaces outside of quotes.
    let mut arguments = vec![String::new()];
    let mut is_quoted = false;
    for c in command.chars() {
        match c {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => arguments.push(String::new()),
            _ => arguments.last_mut().unwrap().push(c),
        }
    }
    Some(Gain { saved: saved.to_owned(), arguments })
}

fn grouped(value: &Value) -> String {
    let digits = value.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

fn longest_stream(trace: &Path) -> (u64, u64) {
    let slices = slices(&std::fs::read_to_string(trace).unwrap());
    let places: BTreeSet<_> =
        slices.iter().filter(|slice| is_gpu_work(slice)).map(|slice| slice.place).collect();
    let time = |place: &(u64, u64)| union_ns(&slices, |slice| slice.place == *place) as u64;
    places.iter().map(|place| (place.0, time(place))).max_by_key(|(_, nanos)| *nanos).unwrap()
}

fn kernel_ns(trace: &Path) -> i64 {
    let mut slices = slices(&std::fs::read_to_string(trace).unwrap());
    let first =
        slices.iter().filter(|slice| slice.name.starts_with("ProfilerStep")).map(|step| step.start).min();
    slices.retain(|slice| slice.category == "kernel" && Some(slice.start) >= first);
    union_ns(&slices, |_| true)
}

/// Returns the calls and functions that the name of a place contains. If the place is a time between two calls, a stack
/// contains these calls, but may lack some of the functions.
fn names_in(place: &str) -> Vec<&str> {
    let place = place.split(" object at").next().unwrap_or(place);
    let is_between = place.starts_with("between");
    place.split(' ').filter(|word| word.len() > 7 && (!is_between || word.starts_with("cuda"))).collect()
}

/// Returns the numbers in a text, written as in the text.
fn numbers(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    text.split(|c| !is_part(c))
        .map(|number| number.trim_matches(['.', ',']).to_owned())
        .filter(|number| !number.is_empty())
        .collect()
}

/// Returns the numbers that occur in `list` more often than in `other`. Each number is returned as many times as it
/// occurs more often.
fn without(list: &[String], other: &[String]) -> Vec<String> {
    let mut left = other.to_vec();
    let is_left = |number: &&String| match left.iter().position(|known| known == *number) {
        Some(at) => {
            left.remove(at);
            false
        }
        None => true,
    };
    list.iter().filter(is_left).cloned().collect()
}

fn mistakes(folder: &Path, file: &str) -> Vec<String> {
    let mut figures = Figures::read(folder, file);
    figures.work();
    figures.lines();
    figures.equal_rows();
    figures.idle();
    figures.path();
    figures.findings();
    figures.answers();
    figures.wrong
}

#[test]
fn summaries_of_traces_have_the_figures_of_the_detailed_verbs() {
    let mut wrong = Vec::new();
    let healthy = healthy();
    // The cases with impossible times are skipped. Impossible times are years long, so the test cannot add them up.
    let middle =
        cases().iter().filter(|case| case.name.ends_with("-middle") && !case.name.starts_with("impossible"));
    let chosen = middle.chain(&healthy);
    for case in chosen {
        let folder = scratch("same-figures");
        for file in case.write(&folder) {
            wrong.extend(
                mistakes(&folder, &file).into_iter().map(|mistake| format!("{} {file} {mistake}", case.name)),
            );
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn summaries_of_default_files_have_the_figures_of_the_detailed_verbs() {
    let mut wrong = Vec::new();
    for program in PROGRAMS {
        let recorded = program.record_sums(STRENGTHS[1]);
        let found = mistakes(&recorded.done.folder, "out.gfr");
        wrong.extend(found.into_iter().map(|mistake| format!("{} {mistake}", program.id)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
