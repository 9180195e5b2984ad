//! Determines the rank of a job to which an input file belongs.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use clap::Args;
use serde_json::Value;

use super::set_file::parse_path;
use gpuflame_config::settings::SET_SUFFIX;
use gpuflame_model::error::Result;
use gpuflame_traces::import::{self, Kind};
use gpuflame_traces::steps::Ops;

use super::console::{Console, usage_error};
use super::input::Source;

/// Command-line flags that determine how the files of a job are numbered.
#[derive(Debug, Default, Clone, Copy, Args)]
pub(super) struct RankFlags {
    /// Number the files of several ranks 0, 1, 2 ... in their order, regardless of their names.
    #[arg(long)]
    pub(super) assume_order: bool,
}

impl RankFlags {
    /// Returns the files in `inputs`, which can be files or folders. Leaves out the files of processes that only
    /// distribute work.
    pub(super) fn sources(self, inputs: &[Source], console: Console) -> Result<Vec<Source>> {
        Ok(self.without_front_ends(expand_folders(inputs)?, console))
    }

    /// Leaves out the files of processes that only distribute work, such as vLLM's front end. The file of a process
    /// that only distributes work has no rank and no GPU work, although other files have a rank.
    pub(super) fn without_front_ends(self, sources: Vec<Source>, console: Console) -> Vec<Source> {
        if self.assume_order { sources } else { without_front_ends(sources, console) }
    }

    /// Returns the rank of each source, by the rules of [`assign_ranks`].
    pub(super) fn assign(self, sources: &[Source], same_rank: SameRank) -> Result<Vec<u32>> {
        assign_ranks(sources, self.assume_order, same_rank)
    }

    /// Returns the flag `--assume-order` with a leading space, for a suggested command about the same files. Returns an
    /// empty text if the flag is not set.
    pub(super) fn as_text(self) -> &'static str {
        if self.assume_order { " --assume-order" } else { "" }
    }
}

/// Returns the rank of each source. If the contents of a source state a rank, that rank is used. If the contents state
/// no rank, the rank is the number after the last `rank`, `worker` or `r` in the source's path. A single source that
/// states no rank is rank 0.
///
/// # Errors
/// Returns `Setting` if several sources have the same rank. Equal ranks are allowed only if `same_rank` permits them, and
/// an index next to the sources or the sources' set files assign the ranks. Also returns `Setting` if a source has no
/// rank and `assume_order` is not set.
pub(super) fn assign_ranks(sources: &[Source], assume_order: bool, same_rank: SameRank) -> Result<Vec<u32>> {
    let in_order = || (0..sources.len() as u32).collect();
    if assume_order {
        return Ok(in_order());
    }
    if let [source] = sources {
        let stated = ranks_from_index(sources)?.and_then(|ranks| ranks.first().copied());
        return Ok(vec![stated.or_else(|| find_rank(source)).unwrap_or(0)]);
    }
    let mut twice = None;
    let stated_ranks = match ranks_from_index(sources)? {
        Some(ranks) => Some(ranks),
        None => ranks_from_set_files(sources),
    };
    if let Some(ranks) = stated_ranks {
        match find_duplicate(&ranks) {
            Some(pair) if same_rank == SameRank::Refused => twice = Some((pair, ranks[pair.0])),
            _ => return Ok(ranks),
        }
    }
    for (at, guess) in GUESSES.into_iter().enumerate() {
        let ranks: Option<Vec<u32>> = sources
            .iter()
            .map(|source| match source {
                Source::File(path) => guess(path),
                Source::Stdin => None,
            })
            .collect();
        let Some(ranks) = ranks else { continue };
        match find_duplicate(&ranks) {
            None => return Ok(ranks),
            Some(pair) => twice = twice.or(Some((pair, ranks[pair.0]))),
        }
        // If two traces state the same rank in their contents, the ranks in their file names are not used, because a
        // copy of a trace may have a different file name.
        if at == 0 {
            break;
        }
    }
    Err(usage_error(match twice {
        Some(((one, other), rank)) => format!(
            "{} and {} both have rank {rank}; give one file per rank; if the ranks differ, use \
             `--assume-order`; if the files are windows or processes of one run, put a `ranks.json` \
             ({{\"FILE\": RANK}}) next to them",
            sources[one], sources[other]
        ),
        None => {
            let silent = |source: &&Source| !has_rank(source);
            format!(
                "cannot determine the rank of {} (from `distributedInfo` in a trace, or `rank3` or `worker3` \
                 in a name); put the ranks into the file names, or number the files in their order with \
                 `--assume-order`",
                sources.iter().find(silent).unwrap_or(&sources[0])
            )
        }
    }))
}

/// Functions that find the rank of a file, in descending order of reliability.
const GUESSES: [fn(&Path) -> Option<u32>; 5] = [
    rank_from_content,
    |path| rank_after_word(path, "rank"),
    |path| rank_after_word(path, "worker"),
    |path| rank_after_word(path, "r"),
    rank_of_tensor_parallelism,
];

/// Whether the rank of a source can be found in its contents, its path, or the files next to it.
fn has_rank(source: &Source) -> bool {
    let has_set_file = |path: &Path| rank_from_set_file(path).is_some();
    matches!(source, Source::File(path) if has_set_file(path)) || find_rank(source).is_some()
}

/// Returns the rank of a source from its own contents, its path, or the files next to it; `None` if no rank is found.
fn find_rank(source: &Source) -> Option<u32> {
    let Source::File(path) = source else { return None };
    rank_from_set_file(path).flatten().or_else(|| GUESSES.iter().find_map(|guess| guess(path)))
}

/// Evidence, other than the contents of the sources, that the sources are ranks of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SameJob {
    /// The user has declared that the sources are one job, by a `ranks.json` next to the sources.
    Declared,
    /// All sources are recordings with a file that lists their set (`x.set.json`), so each process has the rank that
    /// its launcher gave it.
    Recorded,
    /// There is no other evidence, so only the contents of the sources can show that they are ranks of one job.
    Unknown,
}

impl SameJob {
    pub(super) fn from_sources(sources: &[Source]) -> Self {
        match () {
            () if matches!(ranks_from_index(sources), Ok(Some(_))) => Self::Declared,
            () if ranks_from_set_files(sources).is_some() => Self::Recorded,
            () => Self::Unknown,
        }
    }
}

/// Removes the sources that have no rank and no GPU work, if other sources have a rank.
fn without_front_ends(sources: Vec<Source>, console: Console) -> Vec<Source> {
    let ranked: Vec<bool> = sources.iter().map(has_rank).collect();
    if ranked.iter().all(|has_rank| *has_rank) || ranked.iter().all(|has_rank| !has_rank) {
        return sources;
    }
    let is_kept = |(source, has_rank): &(Source, bool)| {
        let is_kept = *has_rank || has_work(source);
        if !is_kept {
            console.remark(format!(
                "{source}: left out because it is not a rank: neither its name nor its contents give one, and it has no \
                 GPU work"
            ));
        }
        is_kept
    };
    sources.into_iter().zip(ranked).filter(is_kept).map(|(source, _)| source).collect()
}

/// Whether a file contains GPU work. Returns true if the file cannot be read, so that the file is kept and the error is
/// printed later.
fn has_work(source: &Source) -> bool {
    let Source::File(path) = source else { return true };
    let Some(opened) = path.is_file().then(|| import::open(path)).and_then(|opened| opened.ok()) else {
        return true;
    };
    if opened.kind() == Kind::Recording {
        return true;
    }
    let mut ops = Ops::default();
    opened.read(&import::Options::default(), &mut ops).is_err() || ops.total > 0
}

/// Treatment of several files to which `ranks.json` assigns the same rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SameRank {
    /// Combine the files, because they are recording windows or processes of the same rank.
    Together,
    /// Return an error, because each rank can have only one file.
    Refused,
}

/// Name of the index file, which assigns ranks to files. The index is in the same folder as the files and contains the
/// rank of each file: `{"a.json": 0, "b.json": 0, "c.json": 1}`. Files to which the index assigns the same rank are
/// parts of one run.
const INDEX_FILE: &str = "ranks.json";

/// Returns the ranks that the index next to the files contains; `None` if there is no index or the index does not list
/// all files.
fn ranks_from_index(sources: &[Source]) -> Result<Option<Vec<u32>>> {
    let mut ranks = Vec::new();
    for source in sources {
        let Source::File(path) = source else { return Ok(None) };
        let index = path.with_file_name(INDEX_FILE);
        let Ok(text) = std::fs::read(&index) else { return Ok(None) };
        let known: BTreeMap<String, u32> = serde_json::from_slice(&text).map_err(|error| {
            let what = format!("not an index of ranks ({{\"FILE\": RANK, ...}}): {error}");
            gpuflame_model::error::Error::new(gpuflame_model::error::ErrorKind::Format, what)
                .within(index.display())
        })?;
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(rank) = known.get(name) else { return Ok(None) };
        ranks.push(*rank);
    }
    Ok(Some(ranks))
}

/// Returns the ranks from the files next to recordings (`x.set.json` for `x.gfr`); `None` if a recording has no such
/// file. If no process has a rank, the files are numbered in the given order.
fn ranks_from_set_files(sources: &[Source]) -> Option<Vec<u32>> {
    let ranks = sources.iter().map(|source| match source {
        Source::File(path) => rank_from_set_file(path),
        Source::Stdin => None,
    });
    let ranks: Vec<Option<u32>> = ranks.collect::<Option<_>>()?;
    match ranks.iter().all(Option::is_none) {
        true => Some((0..ranks.len() as u32).collect()),
        false => ranks.into_iter().collect(),
    }
}

/// Returns the rank from the `.set.json` file next to a recording. The outer `None` means that there is no `.set.json`
/// file. The inner `None` means that the file contains no rank.
fn rank_from_set_file(path: &Path) -> Option<Option<u32>> {
    let name = path.file_name()?;
    let stem = name.as_bytes().strip_suffix(b".gfr")?;
    let set = path.with_file_name(OsStr::from_bytes(&[stem, SET_SUFFIX.as_bytes()].concat()));
    let set: Value = serde_json::from_slice(&std::fs::read(set).ok()?).ok()?;
    let is_of = set["files"].as_array()?.iter().any(|file| parse_path(file).is_some_and(|path| path == name));
    is_of.then(|| set["rank"].as_str().and_then(|rank| rank.parse().ok()))
}

/// Returns the indices of the first two ranks that are equal.
fn find_duplicate(ranks: &[u32]) -> Option<(usize, usize)> {
    let earlier = |at: usize| ranks[..at].iter().position(|rank| *rank == ranks[at]);
    (0..ranks.len()).find_map(|at| Some((earlier(at)?, at)))
}

/// Returns the rank that a trace states at its beginning, before its trace events.
fn rank_from_content(path: &Path) -> Option<u32> {
    // A pipe can be read only once, so this function does not open pipes.
    if path.is_file() { import::open(path).ok()?.rank() } else { None }
}

/// Returns the number after `word` in a path, such as 3 in `…/rank=3/x.gfr`, `rank-3.json`, `trace_rank_03.json.gz`,
/// `worker3.1694128201554.pt.trace.json` or `run.r3.json`. The word must not be part of a longer word, so `h100_bert` has no
/// rank.
fn rank_after_word(path: &Path, word: &str) -> Option<u32> {
    let text = path.to_string_lossy().to_ascii_lowercase();
    let is_word = |at: &usize| !text[..*at].chars().next_back().is_some_and(char::is_alphanumeric);
    let numbers = text.match_indices(word).map(|(at, _)| at).filter(is_word);
    let numbers = numbers
        .filter_map(|at| leading_number(text[at + word.len()..].trim_start_matches(['=', '-', '_', '.'])));
    numbers.last()
}

/// Returns the rank in a file name that sglang chose, such as `1764000000.5-TP-3.trace.json.gz`. Returns `None` if the
/// name also contains another kind of parallelism. In names with two kinds of parallelism, it is unknown how the ranks
/// are counted.
fn rank_of_tensor_parallelism(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_string_lossy();
    let (before, rank) = name.rsplit_once("-TP-")?;
    let is_alone =
        !["-DP-", "-PP-", "-EP-"].iter().any(|other| before.contains(other) || rank.contains(other));
    leading_number(rank).filter(|_| is_alone)
}

fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Replaces each folder in `sources` by all files below the folder, sorted by name. Sources that are not folders are
/// returned unchanged.
///
/// # Errors
/// Fails if a folder cannot be listed or is empty.
pub(super) fn expand_folders(sources: &[Source]) -> Result<Vec<Source>> {
    let mut all = Vec::new();
    for source in sources {
        match source {
            Source::File(path) if path.is_dir() => {
                let (mut files, mut sets) = (Vec::new(), 0);
                for entry in std::fs::read_dir(path)
                    .map_err(|error| gpuflame_model::error::Error::from(error).within(source))?
                {
                    let path = entry?.path();
                    sets += usize::from(path.to_string_lossy().ends_with(SET_SUFFIX));
                    if path.is_file() && is_trace(&path) {
                        files.push(Source::File(path));
                    }
                }
                if files.is_empty() {
                    let message = match sets {
                        0 => format!(
                            "{source}: contains no recording or trace (*.gfr, *.json, *.json.gz, *.json.zst, \
                             *.sqlite, *.db, *.rpd)"
                        ),
                        _ => format!(
                            "{source}: contains {sets} sets of files but no recording; record with `gfr` in \
                             GPUFLAME_FORMATS"
                        ),
                    };
                    return Err(gpuflame_model::error::Error::new(
                        gpuflame_model::error::ErrorKind::Io,
                        message,
                    ));
                }
                files.sort();
                all.append(&mut files);
            }
            _ => all.push(source.clone()),
        }
    }
    if all.is_empty() {
        return Err(usage_error("name at least one recording, trace or folder"));
    }
    Ok(all)
}

fn is_trace(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = [".gz", ".zst"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
    name != INDEX_FILE
        && !name.ends_with(SET_SUFFIX)
        && [".gfr", ".json", ".sqlite", ".sbt", ".db", ".rpd"].iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn ranks(names: &[&str], assume_order: bool) -> Result<Vec<u32>> {
        let sources: Vec<Source> = names.iter().map(|name| Source::from(OsString::from(name))).collect();
        assign_ranks(&sources, assume_order, SameRank::Together)
    }

    #[test]
    fn ranks_are_read_from_names() {
        for (names, expected) in [
            (["job/rank=2/a.gfr", "job/rank=10/a.gfr"], [2, 10]),
            (["rank-1.pt.trace.json.gz", "rank-0.pt.trace.json.gz"], [1, 0]),
            (["app.r3.gfr", "app.r1.gfr"], [3, 1]),
            (["worker7.json", "worker8.json"], [7, 8]),
            (
                [
                    "worker10_step_12.1694128201554.pt.trace.json",
                    "worker2_step_12.1694128201545.pt.trace.json",
                ],
                [10, 2],
            ),
            (["rank0/worker4.json", "rank0/worker5.json"], [4, 5]),
            (["1764.5-TP-1.trace.json.gz", "1764.5-TP-0.trace.json.gz"], [1, 0]),
        ] {
            assert_eq!(ranks(&names, false).unwrap(), expected, "{names:?}");
        }
    }

    #[test]
    fn names_without_a_rank_require_assume_order() {
        for names in [
            &["h100_bert.json", "h200_bert.json"][..],
            &["a.gfr", "b.gfr"],
            &["x1.gfr", "y2.gfr"],
            &["app.4711.gfr", "app.4712.gfr"],
            &["crank1.json", "crank2.json"],
            &["1764.5-TP-0-DP-1.trace.json.gz", "1764.5-TP-0-DP-0.trace.json.gz"],
            &["bench_tp4.json", "bench_tp8.json"],
            &["-", "rank3.json"],
        ] {
            let message = ranks(names, false).unwrap_err().to_string();
            assert!(message.contains("--assume-order"), "{message}");
            assert_eq!(ranks(names, true).unwrap(), [0, 1]);
        }
        assert_eq!(ranks(&["h100_bert.json"], false).unwrap(), [0], "one file is one rank");
    }

    #[test]
    fn two_files_of_one_rank_are_refused_by_name() {
        let message =
            ranks(&["rank1/a.json", "rank3/a.json", "rank3/b.json"], false).unwrap_err().to_string();
        for word in ["rank3/a.json", "rank3/b.json", "rank 3"] {
            assert!(message.contains(word), "{message}");
        }
    }
}
