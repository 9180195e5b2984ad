//! Runs every verb on randomly damaged recordings. No verb may panic, regardless of the recording's contents.
//!
//! `GPUFLAME_MUTATIONS=50000 cargo test -p gpuflame-cli --bins mutated` takes half an hour; CI runs only a few
//! mutations. If a file makes a verb panic, the file is not deleted, and the test lists all such files at the end.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use clap::Parser;

use super::{Command, dispatch};
use gpuflame_explain::{Definitions, Explain};
use gpuflame_model::record::testing::{Rng, each_row_of_cycle};
use gpuflame_model::record::{CheckpointMark, Chunk, Nanos, SumsWriter, Writer};

const TAG_CHUNK: u8 = 25;
/// Turns (seeds of the random mutations) in which a verb has panicked in the past.
const REGRESSION_TURNS: [u64; 15] =
    [76, 534, 1476, 2872, 3276, 783, 5718, 7042, 7630, 20_966, 21_458, 27_572, 33_472, 49_268, 49_384];

/// Returns a recording that consists of rows, with a checkpoint mark.
fn rows_recording() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    (0..5).for_each(|turn| each_row_of_cycle(turn, &mut |row| writer.row(row).unwrap()));
    writer.mark(&CheckpointMark { began: Nanos(1), time: Nanos(2), ..CheckpointMark::default() }).unwrap();
    writer.finish().unwrap()
}

/// Returns a recording as written by a process that records sums instead of rows.
fn sums_recording() -> Vec<u8> {
    let mut explain = Explain::default();
    let (mut definitions, mut written) = (Definitions::default(), SumsWriter::default());
    let mut file = Chunk::file_header().to_vec();
    for turn in 0..5 {
        each_row_of_cycle(turn, &mut |row| explain.push(row, &mut ()));
        let mut chunk = Chunk::default();
        explain.write_definitions(&mut definitions, &mut chunk, usize::MAX);
        explain.write_sums(&[], &mut written, &mut chunk);
        chunk.mark(&CheckpointMark { began: Nanos(1), time: Nanos(2), ..CheckpointMark::default() });
        file.extend(chunk.take());
    }
    file
}

pub(super) fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..=rng.below(6) {
        let at = rng.below(bytes.len() as u64) as usize;
        let length = (rng.below(40) as usize).min(bytes.len() - at);
        match rng.below(6) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.next_u64() as u8,
            2 => bytes[at..at + length].fill(0xff),
            3 => drop(bytes.drain(at..at + length)),
            4 => {
                let copy = bytes[at..at + length].to_vec();
                bytes.splice(at..at, copy);
            }
            _ if bytes.len() > 100 && rng.below(8) == 0 => bytes.truncate(at.max(1)),
            _ => bytes[at..at + length].fill(0),
        }
    }
}

/// Corrects the checksums of damaged chunks, so that the reader does not skip the chunks' rows.
fn repair_checksums(bytes: &mut [u8]) {
    let mut at = 16;
    while let Some(head) = bytes.get(at..at + 9) {
        let (tag, length) = (head[0], u32::from_le_bytes(head[1..5].try_into().unwrap()) as usize);
        let end = at.saturating_add(5).saturating_add(length);
        if tag == TAG_CHUNK && length >= 4 && end <= bytes.len() {
            let sum = crc32fast::hash(&bytes[at + 9..end]);
            bytes[at + 5..at + 9].copy_from_slice(&sum.to_le_bytes());
        }
        at = end;
    }
}

/// Command lines of the verbs to test, without the program's name.
const VERBS: [&str; 46] = [
    "info in.gfr -o out",
    "check in.gfr -o out",
    "top in.gfr --by kernels,stacks,idle -o out",
    "top in.gfr --by delay -o out",
    "flamegraph in.gfr -o out.svg --root process,thread,device,stream",
    "flamegraph in.gfr -o out.folded --view alloc",
    "flamegraph in.gfr -o out.folded --view unified",
    "flamegraph in.gfr -o out.svg --idle",
    "flamegraph --diff in.gfr in.gfr -o out.svg",
    "states in.gfr --intervals --culprits -n 0 -o out",
    "states in.gfr --from 1ns --to 1s --step 1ms --format json -o out",
    "instructions in.gfr -n 0 -o out",
    "instructions in.gfr --by start --format jsonl -o out",
    "instructions in.gfr --count --from 1ns --format csv -o out",
    "critical-path in.gfr --list -n 0 -o out --picture out-path.svg",
    "critical-path in.gfr --from 1ns --to 1s --format json -o out",
    "replay in.gfr --check -o out --schedule out-times.csv",
    "replay in.gfr --model --format json -o out",
    "what-if in.gfr --scale .=0.5 --launch-ns 100 --graphs --streams +1 -o out",
    "what-if in.gfr --remove . --gpu-speed 3 -o out",
    "what-if in.gfr --no-sync -o out",
    "causal in.gfr -o out --picture out-causal.svg",
    "critical-path in.gfr --range . --list -o out",
    "deps in.gfr -o out.json",
    "deps in.gfr --from 1ns -o out.dot",
    "view in.gfr -o out",
    "view in.gfr --timeline -o out",
    "timeline in.gfr --step 1ms -o out",
    "states in.gfr --as-hta -o out",
    "diff in.gfr in.gfr -o out",
    "merge-ranks in.gfr -o out.folded",
    "stragglers in.gfr in.gfr --assume-order -n 0 -o out",
    "stragglers in.gfr in.gfr --assume-order --format json -o out",
    "convert in.gfr --to chrome -o out",
    "convert in.gfr --to perfetto -o out",
    "convert in.gfr --to perfetto --critical-path --states -o out",
    "convert in.gfr --to perfetto --states -o out",
    "top in.gfr --by slack -o out",
    "convert in.gfr --to pprof -o out",
    "convert in.gfr --to speedscope -o out",
    "convert in.gfr --to sbt -o out",
    "convert in.gfr --to cupti-text -o out",
    "convert in.gfr --to parquet -o out.parquet",
    "extract in.gfr out 0,100",
    "stats in.gfr out none 1",
    "recover in.gfr --alive",
];

/// Runs the command lines in `lines` on files in `folder`, and ignores the exit status of each verb.
pub(super) fn run_verbs(folder: &Path, lines: &[&str]) {
    for line in lines {
        let in_folder = |word: &str| match word.contains("in.") || word.contains("out") {
            true => folder.join(word).display().to_string(),
            false => word.to_owned(),
        };
        let args = ["gpuflame", "-q"].into_iter().map(str::to_owned).chain(line.split(' ').map(in_folder));
        let command = Command::try_parse_from(args).unwrap_or_else(|error| panic!("{line}: {error}"));
        let _ = dispatch(&command);
    }
}

/// Runs all verbs on the recording in `folder`, and removes the files that the verbs wrote next to the recording.
fn run_all_verbs(folder: &Path) {
    run_verbs(folder, &VERBS);
    for suffix in ["folded", "svg", "csv", "idle.folded", "idle.svg", "set.json"] {
        let _ = fs::remove_file(folder.join(format!("in.{suffix}")));
    }
}

#[test]
fn no_verb_panics_on_a_damaged_recording() {
    let turns = std::env::var("GPUFLAME_MUTATIONS").map_or(60, |text| text.parse().unwrap());
    let folder = std::env::temp_dir().join(format!("gpuflame-mutated-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("in.gfr");
    let seeds = [rows_recording(), sums_recording()];
    let mut panicked = Vec::new();
    for turn in (0..turns).chain(REGRESSION_TURNS) {
        let mut rng = Rng::new(turn + 1);
        let mut bytes = seeds[turn as usize % 2].clone();
        if turn >= 2 {
            mutate(&mut bytes, &mut rng);
            if rng.below(4) > 0 {
                repair_checksums(&mut bytes);
            }
        }
        fs::write(&file, &bytes).unwrap();
        let ran = catch_unwind(AssertUnwindSafe(|| run_all_verbs(&folder)));
        if ran.is_err() {
            panicked.push(folder.join(format!("turn-{turn}.gfr")));
            fs::write(panicked.last().unwrap(), &bytes).unwrap();
        }
    }
    assert!(panicked.is_empty(), "{panicked:?}");
    fs::remove_dir_all(folder).unwrap();
}
