//! Which rank of a job a file is from.

use std::path::Path;

use crate::error::Result;
use crate::import;

use super::console::usage;
use super::input::Source;

/// The rank of each source: what it says itself, or the number in its path behind the last `rank`, or behind the last
/// `worker`, or the last number of its name, if all of them have one and no two the same; else its place in the list.
pub(super) fn of(sources: &[Source]) -> Vec<u32> {
    type Guess = fn(&Path) -> Option<u32>;
    let guesses: [Guess; 4] =
        [stated, |path| behind(path, "rank"), |path| behind(path, "worker"), last_number];
    for guess in guesses {
        let ranks: Option<Vec<u32>> = sources
            .iter()
            .map(|source| match source {
                Source::File(path) => guess(path),
                Source::Stdin => None,
            })
            .collect();
        if let Some(ranks) = ranks.filter(|ranks| are_distinct(ranks)) {
            return ranks;
        }
    }
    (0..sources.len() as u32).collect()
}

fn are_distinct(ranks: &[u32]) -> bool {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1])
}

/// What a trace says before its events.
fn stated(path: &Path) -> Option<u32> {
    // A pipe can be read but once.
    if path.is_file() { import::open(path).ok()?.rank() } else { None }
}

/// `…/rank=3/x.gfr`, `rank-3.json`, `trace_rank_03.json.gz`; `worker3.1694128201554.pt.trace.json`.
fn behind(path: &Path, word: &str) -> Option<u32> {
    let text = path.to_str()?.to_ascii_lowercase();
    let behind = &text[text.rfind(word)? + word.len()..];
    digits(behind.trim_start_matches(['=', '-', '_', '.']))
}

/// `gpuflame-app.4711.gfr`, `run_r3.json`, `dlrm_kineto_3.json`: the last number of the name.
fn last_number(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let end = name.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = name[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    name[start..end].parse().ok()
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
                let mut files = Vec::new();
                for entry in
                    std::fs::read_dir(path).map_err(|error| crate::Error::from(error).within(source))?
                {
                    let path = entry?.path();
                    if path.is_file() && is_trace(&path) {
                        files.push(Source::File(path));
                    }
                }
                if files.is_empty() {
                    let message = format!(
                        "{source}: has no recording or trace in it (*.gfr, *.json, *.json.gz, *.sqlite)"
                    );
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
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = name.strip_suffix(".gz").unwrap_or(name);
    [".gfr", ".json", ".sqlite", ".sbt"].iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(names: &[&str]) -> Vec<u32> {
        of(&names.iter().map(|name| name.parse().unwrap()).collect::<Vec<_>>())
    }

    #[test]
    fn ranks_are_read_from_names() {
        assert_eq!(ranks(&["job/rank=2/a.gfr", "job/rank=10/a.gfr"]), [2, 10]);
        assert_eq!(ranks(&["rank-1.pt.trace.json.gz", "rank-0.pt.trace.json.gz"]), [1, 0]);
        assert_eq!(ranks(&["app.r3.gfr", "app.r1.gfr"]), [3, 1]);
        assert_eq!(ranks(&["worker7.json", "worker8.json"]), [7, 8]);
        let kineto =
            ["worker10_step_12.1694128201554.pt.trace.json", "worker2_step_12.1694128201545.pt.trace.json"];
        assert_eq!(ranks(&kineto), [10, 2]);
    }

    #[test]
    fn names_that_say_nothing_are_numbered_by_their_place() {
        assert_eq!(ranks(&["a.gfr", "b.gfr"]), [0, 1]);
        assert_eq!(ranks(&["x1.gfr", "y1.gfr"]), [0, 1], "both say 1");
        assert_eq!(ranks(&["-", "rank3.json"]), [0, 1]);
    }
}
