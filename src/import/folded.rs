//! Folded stacks (`main;decode;gemm 3099632`) and extended ones, which say when and where each stack was
//! taken (`TIME COMM PID TID CPU main;decode`).

use std::io::BufRead;

use super::json::number::{integer, unsigned};
use super::lines::{self, Line};
use super::{Event, Folded, Seen, Sink, StackLine, Text};
use crate::error::Result;

/// The frames and the weight of a line.
pub(super) fn weight(line: &[u8]) -> Option<(&[u8], u64)> {
    let at = line.iter().rposition(|&byte| byte == b' ' || byte == b'\t')?;
    let weight = unsigned(&line[at + 1..])?;
    let frames = line[..at].trim_ascii();
    (!frames.is_empty()).then_some((frames, weight))
}

/// A line of six parts. The program's name may hold blanks, which is why it is read from both ends: after it
/// come three numbers.
pub(super) fn extended(line: &[u8]) -> Option<StackLine<'_>> {
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let time = integer(words.next()?).filter(|&time| time >= 0)?;
    let comm_start = offset(line, words.next()?);
    let words: Vec<&[u8]> = words.collect();
    // The first three numbers in a row with something behind them.
    let at = words.windows(3).position(|three| three.iter().all(|word| integer(word).is_some()))?;
    let [process, thread, cpu] = [at, at + 1, at + 2].map(|at| integer(words[at]));
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

/// Where `part`, a part of `line`, begins in it.
fn offset(line: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - line.as_ptr() as usize
}

/// Reads folded stacks.
pub(super) fn read(input: impl BufRead, sink: &mut impl Sink) -> Result<Seen> {
    lines::each(input, |line: Line<'_>, seen| {
        if line.is_comment() {
            return Ok(());
        }
        let Some((frames, weight)) = weight(line.bytes) else {
            return Err(line.odd("no weight at its end"));
        };
        seen.events += 1;
        sink.event(&Event::Folded(Folded { frames: Text::plain(frames), weight }));
        Ok(())
    })
}

/// Reads extended folded stacks. As in the tool that began with them, a line of fewer parts is passed over;
/// how many there were is among what was seen.
pub(super) fn read_extended(input: impl BufRead, sink: &mut impl Sink) -> Result<Seen> {
    lines::each(input, |line: Line<'_>, seen| {
        if line.is_comment() {
            return Ok(());
        }
        seen.events += 1;
        match extended(line.bytes) {
            Some(stack) => sink.event(&Event::Stack(stack)),
            None => {
                seen.blank += 1;
                seen.first_blank.get_or_insert(line.number);
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_may_have_blanks_in_it() {
        let stack = extended(b"1700 pt_main thread 12 13 -1 main;operator new;f 3").unwrap();
        assert_eq!((stack.time, &*stack.comm.decode()), (1700, "pt_main thread"));
        assert_eq!((stack.process, stack.thread, stack.cpu), (12, 13, -1));
        assert_eq!(stack.frames.decode(), "main;operator new;f 3");
        assert_eq!(extended(b"1700 python 12 13 1"), None);
        assert_eq!(extended(b"x python 12 13 1 main"), None);
    }

    #[test]
    fn the_weight_is_the_last_word() {
        assert_eq!(weight(b"main;operator new 12"), Some((&b"main;operator new"[..], 12)));
        assert_eq!(weight(b"main"), None);
        assert_eq!(weight(b" 12"), None);
        assert_eq!(weight(b"main -1"), None);
    }
}
