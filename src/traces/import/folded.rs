//! Reads folded stacks such as `main;decode;gemm 3099632`. Also reads extended folded stacks. Lines of extended folded
//! stacks also contain the time, the program's name, the process, the thread and the processor (`TIME COMM PID TID CPU
//! main;decode`).

use std::io::BufRead;

use super::json::number::{parse_integer, parse_unsigned};
use super::lines::{self, Line};
use super::{Event, Folded, ReadCounts, Sink, StackLine, Text};
use gpuflame_model::error::Result;

/// Splits a line into its frames and its weight.
pub(super) fn split_weight(line: &[u8]) -> Option<(&[u8], u64)> {
    let at = line.iter().rposition(|&byte| byte == b' ' || byte == b'\t')?;
    let weight = parse_unsigned(&line[at + 1..])?;
    let frames = line[..at].trim_ascii();
    (!frames.is_empty()).then_some((frames, weight))
}

/// Splits a line that ends with two counts into its frames and the two counts.
pub(super) fn split_two_counts(line: &[u8]) -> Option<(&[u8], [u64; 2])> {
    let (rest, second) = split_weight(line)?;
    let (frames, first) = split_weight(rest)?;
    Some((frames, [first, second]))
}

/// Describes the number at the end of a line, if this number cannot be a weight.
pub(super) fn describe_weight(line: &[u8]) -> Option<String> {
    let at = line.iter().rposition(|&byte| byte == b' ' || byte == b'\t')?;
    let frames = line[..at].trim_ascii();
    let word = std::str::from_utf8(&line[at + 1..]).ok()?;
    if frames.is_empty() || !word.bytes().any(|byte| byte.is_ascii_digit()) {
        return None;
    }
    word.parse::<f64>().ok()?;
    let what =
        if word.starts_with('-') { "a negative weight" } else { "a weight that is not a whole number" };
    Some(format!("{what} ({word}); weights are whole numbers of samples or time"))
}

/// Parses a line of an extended folded-stack file, which has six fields. The program's name may contain blanks. So the
/// name ends before the first three consecutive numbers (process, thread and processor).
pub(super) fn parse_extended(line: &[u8]) -> Option<StackLine<'_>> {
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let time = parse_integer(words.next()?).filter(|&time| time >= 0)?;
    let comm_start = offset(line, words.next()?);
    let words: Vec<&[u8]> = words.collect();
    // Find the first three consecutive numbers that are followed by a word.
    let at = words.windows(3).position(|three| three.iter().all(|word| parse_integer(word).is_some()))?;
    let [process, thread, cpu] = [at, at + 1, at + 2].map(|at| parse_integer(words[at]));
    let frames = line[offset(line, words.get(at + 3)?)..].trim_ascii_end();
    let comm = line[comm_start..offset(line, words[at])].trim_ascii_end();
    Some(StackLine {
        time,
        comm: Text::plain(comm),
        process: u32::try_from(process?).ok()?,
        thread: u32::try_from(thread?).ok()?,
        cpu: i32::try_from(cpu?).ok()?,
        frames: Text::plain(frames),
    })
}

/// Returns the offset of `part` in `line`. `part` must be a subslice of `line`.
fn offset(line: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - line.as_ptr() as usize
}

/// Reads a folded-stack file.
pub(super) fn read(input: impl BufRead, accept_cut: bool, sink: &mut impl Sink) -> Result<ReadCounts> {
    lines::for_each_line(input, accept_cut, |line: Line<'_>, counts| {
        if line.is_comment() {
            return Ok(());
        }
        let Some((frames, weight)) = split_weight(line.bytes) else {
            let what = describe_weight(line.bytes);
            return Err(line.error(what.as_deref().unwrap_or("no weight at its end")));
        };
        counts.events += 1;
        sink.event(&Event::Folded(Folded { frames: Text::plain(frames), weight }));
        Ok(())
    })
}

/// Reads an extended folded-stack file. Lines with fewer fields are skipped and counted in [`ReadCounts::non_events`].
/// The tool that defined the format skips lines with fewer fields, too.
pub(super) fn read_extended(
    input: impl BufRead,
    accept_cut: bool,
    sink: &mut impl Sink,
) -> Result<ReadCounts> {
    lines::for_each_line(input, accept_cut, |line: Line<'_>, counts| {
        if line.is_comment() {
            return Ok(());
        }
        counts.events += 1;
        match parse_extended(line.bytes) {
            Some(stack) => sink.event(&Event::Stack(stack)),
            None => {
                counts.non_events += 1;
                counts.first_non_event_line.get_or_insert(line.number);
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_may_contain_blanks() {
        let stack = parse_extended(b"1700 pt_main thread 12 13 -1 main;operator new;f 3").unwrap();
        assert_eq!((stack.time, &*stack.comm.decode()), (1700, "pt_main thread"));
        assert_eq!((stack.process, stack.thread, stack.cpu), (12, 13, -1));
        assert_eq!(stack.frames.decode(), "main;operator new;f 3");
        assert_eq!(parse_extended(b"1700 python 12 13 1"), None);
        assert_eq!(parse_extended(b"x python 12 13 1 main"), None);
    }

    #[test]
    fn the_weight_is_the_last_word() {
        assert_eq!(split_weight(b"main;operator new 12"), Some((&b"main;operator new"[..], 12)));
        assert_eq!(split_weight(b"main"), None);
        assert_eq!(split_weight(b" 12"), None);
        assert_eq!(split_weight(b"main -1"), None);
        assert_eq!(split_two_counts(b"main;a 5 7"), Some((&b"main;a"[..], [5, 7])));
        assert_eq!(split_two_counts(b"main;a 7"), None);
    }

    #[test]
    fn numbers_that_cannot_be_weights_are_described() {
        let describe = |line: &str| describe_weight(line.as_bytes());
        assert!(describe("main;b -3").unwrap().starts_with("a negative weight (-3)"));
        assert!(describe("main;b 1.5").unwrap().starts_with("a weight that is not a whole number (1.5)"));
        assert_eq!([describe("main;b x"), describe("main"), describe("main inf")], [None, None, None]);
    }
}
