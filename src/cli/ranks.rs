//! Which rank of a job a file is from.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde_json::Value;

use crate::error::Result;
use crate::explain::path_of;
use crate::import;
use crate::settings::ABOUT;

use super::console::usage;
use super::input::Source;

/// The rank of each source: what it says itself, or the number in its path behind the last `rank`, `worker` or `r`.
/// A single source is rank 0.
///
/// # Errors
/// `Setting` where several are of one rank, unless an index beside them says so and they may be; and where nothing says which rank they are of, unless their order is to say.
pub(super) fn of(sources: &[Source], assume_order: bool, same_rank: SameRank) -> Result<Vec<u32>> {
    type Guess = fn(&Path) -> Option<u32>;
    let guesses: [Guess; 4] =
        [stated, |path| behind(path, "rank"), |path| behind(path, "worker"), |path| behind(path, "r")];
    let in_order = || (0..sources.len() as u32).collect();
    if assume_order || sources.len() == 1 {
        return Ok(in_order());
    }
    let mut twice = None;
    let told = match indexed(sources)? {
        Some(ranks) => Some(ranks),
        None => beside(sources),
    };
    if let Some(ranks) = told {
        match same(&ranks) {
            Some(pair) if same_rank == SameRank::Refused => twice = Some((pair, ranks[pair.0])),
            _ => return Ok(ranks),
        }
    }
    for guess in guesses {
        let ranks: Option<Vec<u32>> = sources
            .iter()
            .map(|source| match source {
                Source::File(path) => guess(path),
                Source::Stdin => None,
            })
            .collect();
        let Some(ranks) = ranks else { continue };
        match same(&ranks) {
            None => return Ok(ranks),
            Some(pair) => twice = twice.or(Some((pair, ranks[pair.0]))),
        }
    }
    Err(usage(match twice {
        Some(((one, other), rank)) => format!(
            "{} and {} are both of rank {rank}; give one file a rank, `--assume-order` for files of several ranks, or a \
             `ranks.json` beside them ({{\"FILE\": RANK}}) for windows or processes of one run",
            sources[one], sources[other]
        ),
        None => {
            let says =
                |path: &Path| about(path).is_some() || guesses.iter().any(|guess| guess(path).is_some());
            let silent = |source: &&Source| !matches!(source, Source::File(path) if says(path));
            format!(
                "nothing says which rank {} is of (`distributedInfo` in a trace, `rank3` or `worker3` in a name); name the \
                 files of the ranks, or `--assume-order` takes all in their order",
                sources.iter().find(silent).unwrap_or(&sources[0])
            )
        }
    }))
}

/// What becomes of several files of one rank that the index names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SameRank {
    /// They are windows or processes of one run.
    Together,
    /// There is room for one only.
    Refused,
}

/// The file that says which rank each file beside it is of: `{"a.json": 0, "b.json": 0, "c.json": 1}`. Who names two files of
/// one rank says that they are parts of one run.
const INDEX: &str = "ranks.json";

/// The ranks that an index beside the files gives, where it names all of them.
fn indexed(sources: &[Source]) -> Result<Option<Vec<u32>>> {
    let mut ranks = Vec::new();
    for source in sources {
        let Source::File(path) = source else { return Ok(None) };
        let index = path.with_file_name(INDEX);
        let Ok(text) = std::fs::read(&index) else { return Ok(None) };
        let known: BTreeMap<String, u32> = serde_json::from_slice(&text).map_err(|error| {
            let what = format!("is no index of ranks ({{\"FILE\": RANK, ...}}): {error}");
            crate::Error::new(crate::ErrorKind::Format, what).within(index.display())
        })?;
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(rank) = known.get(name) else { return Ok(None) };
        ranks.push(*rank);
    }
    Ok(Some(ranks))
}

/// The ranks that the files beside recordings say (`x.set.json` for `x.gfr`), where each has one. Processes that nobody
/// gave a rank are ranks in the order of their files.
fn beside(sources: &[Source]) -> Option<Vec<u32>> {
    let ranks = sources.iter().map(|source| match source {
        Source::File(path) => about(path),
        Source::Stdin => None,
    });
    let ranks: Vec<Option<u32>> = ranks.collect::<Option<_>>()?;
    match ranks.iter().all(Option::is_none) {
        true => Some((0..ranks.len() as u32).collect()),
        false => ranks.into_iter().collect(),
    }
}

/// What the file beside a recording says of its rank, if there is one.
fn about(path: &Path) -> Option<Option<u32>> {
    let name = path.file_name()?;
    let stem = name.as_bytes().strip_suffix(b".gfr")?;
    let set = path.with_file_name(OsStr::from_bytes(&[stem, ABOUT.as_bytes()].concat()));
    let set: Value = serde_json::from_slice(&std::fs::read(set).ok()?).ok()?;
    let is_of = set["files"].as_array()?.iter().any(|file| path_of(file).is_some_and(|path| path == name));
    is_of.then(|| set["rank"].as_str().and_then(|rank| rank.parse().ok()))
}

/// The first two that are the same.
fn same(ranks: &[u32]) -> Option<(usize, usize)> {
    let earlier = |at: usize| ranks[..at].iter().position(|rank| *rank == ranks[at]);
    (0..ranks.len()).find_map(|at| Some((earlier(at)?, at)))
}

/// What a trace says before its events.
fn stated(path: &Path) -> Option<u32> {
    // A pipe can be read but once.
    if path.is_file() { import::open(path).ok()?.rank() } else { None }
}

/// `…/rank=3/x.gfr`, `rank-3.json`, `trace_rank_03.json.gz`; `worker3.1694128201554.pt.trace.json`; `run.r3.json`. The
/// word stands by itself: `h100_bert` is of no rank.
fn behind(path: &Path, word: &str) -> Option<u32> {
    let text = path.to_string_lossy().to_ascii_lowercase();
    let is_word = |at: &usize| !text[..*at].chars().next_back().is_some_and(char::is_alphanumeric);
    let numbers = text.match_indices(word).map(|(at, _)| at).filter(is_word);
    let numbers =
        numbers.filter_map(|at| digits(text[at + word.len()..].trim_start_matches(['=', '-', '_', '.'])));
    numbers.last()
}

fn digits(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// All files below the folders among `sources`, sorted by name, and the other sources as they are.
///
/// # Errors
/// Where a folder cannot be listed, or there is nothing in it.
pub(super) fn expand(sources: &[Source]) -> Result<Vec<Source>> {
    let mut all = Vec::new();
    for source in sources {
        match source {
            Source::File(path) if path.is_dir() => {
                let (mut files, mut sets) = (Vec::new(), 0);
                for entry in
                    std::fs::read_dir(path).map_err(|error| crate::Error::from(error).within(source))?
                {
                    let path = entry?.path();
                    sets += usize::from(path.to_string_lossy().ends_with(ABOUT));
                    if path.is_file() && is_trace(&path) {
                        files.push(Source::File(path));
                    }
                }
                if files.is_empty() {
                    let message = match sets {
                        0 => format!(
                            "{source}: has no recording or trace in it (*.gfr, *.json, *.json.gz, *.sqlite)"
                        ),
                        _ => format!(
                            "{source}: has {sets} sets of files, and no recording in them; record with `gfr` in \
                             GPUFLAME_FORMATS"
                        ),
                    };
                    return Err(crate::Error::new(crate::ErrorKind::Io, message));
                }
                files.sort();
                all.append(&mut files);
            }
            _ => all.push(source.clone()),
        }
    }
    if all.is_empty() {
        return Err(usage("name at least one recording or trace, or a folder of them"));
    }
    Ok(all)
}

fn is_trace(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name != INDEX
        && !name.ends_with(ABOUT)
        && [".gfr", ".json", ".sqlite", ".sbt"].iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn ranks(names: &[&str], assume_order: bool) -> Result<Vec<u32>> {
        let sources: Vec<Source> = names.iter().map(|name| Source::from(OsString::from(name))).collect();
        of(&sources, assume_order, SameRank::Together)
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
        ] {
            assert_eq!(ranks(&names, false).unwrap(), expected, "{names:?}");
        }
    }

    #[test]
    fn what_is_no_rank_is_not_taken_for_one() {
        for names in [
            &["h100_bert.json", "h200_bert.json"][..],
            &["a.gfr", "b.gfr"],
            &["x1.gfr", "y2.gfr"],
            &["gpuflame-app.4711.gfr", "gpuflame-app.4712.gfr"],
            &["crank1.json", "crank2.json"],
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
