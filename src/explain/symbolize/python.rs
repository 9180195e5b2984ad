//! Formats the names of Python frames, and finds the source line of a bytecode instruction.
//!
//! CPython has used three formats of line tables. CPython's files `Objects/lnotab_notes.txt` and `Objects/locations.md`
//! describe these formats. If a table is truncated or invalid, the first line of the function is used.

use gpuflame_model::record::CodeObject;

/// Formats a Python frame as `Block.forward (model.py:12)`, which consists of function, file name and `line`.
pub(super) fn text(code: &CodeObject<'_>, line: u32) -> String {
    if code.file.is_empty() {
        return code.name.to_owned();
    }
    let file = code.file.rsplit('/').next().filter(|file| !file.is_empty()).unwrap_or(code.file);
    format!("{} ({file}:{line})", code.name)
}

/// Parses the file and line in the name of a Python function from a trace. The name has the form `/srv/train.py(12):
/// step` if torch.profiler wrote the trace, or `step (train.py:12)` if gpuflame wrote it.
pub(super) fn parse_location(text: &str) -> Option<(&str, u32)> {
    let (file, line) = match text.split_once("): ") {
        Some((place, _)) => place.rsplit_once('(')?,
        None => text.strip_suffix(')')?.rsplit_once(" (")?.1.rsplit_once(':')?,
    };
    let is_place = !file.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit());
    is_place.then(|| Some((file, line.parse().ok()?))).flatten()
}

/// Returns the source line of the instruction at byte offset `at` in the function's bytecode.
pub(super) fn line(code: &CodeObject<'_>, at: u32) -> u32 {
    let first = i64::from(code.first_line);
    let found = match code.version {
        0x0309 => Some(line_in_pairs(code.lines, first, at)),
        0x030a => line_in_ranges(code.lines, first, at),
        0x030b..=0x030f => line_in_locations(code.lines, first, at),
        _ => None,
    };
    found.and_then(|line| u32::try_from(line).ok()).unwrap_or(code.first_line)
}

/// Looks up the line of an instruction in a line table of CPython 3.9. The table consists of pairs of bytes. Each pair
/// is the distance to the first instruction of the next line: first in bytes of code, then in lines.
fn line_in_pairs(table: &[u8], first: i64, at: u32) -> i64 {
    let (pairs, _) = table.as_chunks::<2>();
    let (mut start, mut line) = (0_u64, first);
    for [bytes, lines] in pairs {
        start += u64::from(*bytes);
        if start > u64::from(at) {
            break;
        }
        line += i64::from(*lines as i8);
    }
    line
}

/// Looks up the line of an instruction in a line table of CPython 3.10. The table consists of pairs of bytes. Each pair
/// describes an address range: the length in bytes, and the distance in lines from the previous range that has a line.
/// The distance -128 means that the range has no line.
fn line_in_ranges(table: &[u8], first: i64, at: u32) -> Option<i64> {
    let (pairs, _) = table.as_chunks::<2>();
    let (mut end, mut line) = (0_u64, first);
    for [bytes, lines] in pairs {
        end += u64::from(*bytes);
        let has_line = *lines as i8 != -128;
        if has_line {
            line += i64::from(*lines as i8);
        }
        if end > u64::from(at) {
            return has_line.then_some(line);
        }
    }
    None
}

/// Looks up the line of an instruction in a line table of CPython 3.11 or later. Each entry of the table begins with a
/// byte whose highest bit is set. In all further bytes of the entry, the highest bit is clear.
///
/// ```text
/// entry := 1:1 kind:4 units-1:3  rest     units are instructions of two bytes
/// kind  := 0 to 9: same line   10, 11, 12: kind - 10 lines down   13, 14: a signed number of lines down   15: no line
/// ```
fn line_in_locations(table: &[u8], first: i64, at: u32) -> Option<i64> {
    let (mut rest, mut end, mut line) = (table, 0_u64, first);
    while let [head, more @ ..] = rest {
        let tail = more.iter().position(|byte| byte & 0x80 != 0).unwrap_or(more.len());
        let kind = head >> 3 & 15;
        line += match kind {
            0..=9 | 15 => 0,
            10..=12 => i64::from(kind) - 10,
            _ => decode_signed(&more[..tail])?,
        };
        end += 2 * (u64::from(head & 7) + 1);
        if end > u64::from(at) {
            return (kind != 15).then_some(line);
        }
        rest = &more[tail..];
    }
    None
}

/// Decodes a signed number that is stored with six bits per byte, lowest bits first. The lowest bit of the decoded
/// value is the sign.
fn decode_signed(bytes: &[u8]) -> Option<i64> {
    let mut value = 0_u64;
    for (byte, shift) in bytes.iter().zip((0..60).step_by(6)) {
        value |= u64::from(byte & 63) << shift;
        if byte & 64 == 0 {
            let size = (value >> 1) as i64;
            return Some(if value & 1 != 0 { -size } else { size });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_model::record::CodeId;

    fn code(version: u16, lines: &[u8]) -> CodeObject<'_> {
        CodeObject {
            id: CodeId(1),
            version,
            first_line: 10,
            file: "/srv/model.py",
            name: "Block.forward",
            lines,
        }
    }

    /// Returns the line of each instruction. The instructions are at even offsets.
    fn lines(version: u16, table: &[u8], bytes: u32) -> Vec<u32> {
        (0..bytes).step_by(2).map(|at| line(&code(version, table), at)).collect()
    }

    /// The line tables are from a function on lines 10 to 13 that has no code on line 12: `def f(x):`, `y = x` and
    /// `return y`. The first line table is the function's `co_lnotab`, and the others are its `co_linetable` in later
    /// versions of CPython.
    #[test]
    fn line_tables_of_each_version_give_pythons_own_lines() {
        assert_eq!(lines(0x0309, &[0, 1, 4, 2], 8), [11, 11, 13, 13]);
        assert_eq!(lines(0x030a, &[4, 1, 4, 2], 8), [11, 11, 13, 13]);
        // This line table begins with an instruction on the line of the `def` statement.
        let table = [128, 0, 216, 8, 9, 128, 65, 224, 11, 12, 128, 72];
        for version in [0x030b, 0x030c, 0x030d, 0x030e, 0x030f] {
            assert_eq!(lines(version, &table, 10), [10, 11, 11, 13, 13]);
        }
    }

    #[test]
    fn code_without_a_line_uses_the_functions_first_line() {
        assert_eq!(lines(0x030a, &[2, 1, 2, 0x80, 2, 1], 8), [11, 10, 12, 10]);
        assert_eq!(lines(0x030c, &[0xf8, 0xd8, 1, 2], 6), [10, 11, 10]);
        assert_eq!(lines(0x0310, &[0, 1, 4, 2], 2), [10], "the version's table is not known");
        assert_eq!(lines(0x030b, &[], 2), [10]);
    }

    #[test]
    fn line_deltas_may_be_negative_and_large() {
        // In this line table, the line increases by 5 and then decreases by 7; both differences are encoded as signed
        // numbers of one byte. In the last entry of the table, the line increases by 1000, encoded in two bytes.
        assert_eq!(lines(0x030b, &[0xe8, 10, 0xe8, 15, 0xf0, 0x50, 0x1f, 0, 1, 2], 6), [15, 8, 1008]);
        assert_eq!(lines(0x0309, &[0, 5, 2, 0xf9], 4), [15, 8]);
        assert_eq!(lines(0x030d, &[0xe8, 0x40], 2), [10], "the number has no end");
    }

    #[test]
    fn function_labels_in_traces_are_parsed_into_file_and_line() {
        assert_eq!(parse_location("/srv/train.py(12): step"), Some(("/srv/train.py", 12)));
        assert_eq!(parse_location("a (b)/c.py(3): <lambda>"), Some(("a (b)/c.py", 3)));
        assert_eq!(parse_location("Block.forward (model.py:44)"), Some(("model.py", 44)));
        for other in [
            "",
            "nn.Module: Linear_0",
            "<built-in method run_backward of torch._C._EngineBase object at 0x7f19a0c3d2e0>",
            "call (1, 2)",
            "(12): f",
            "a.py(x): f",
            "a.py(99999999999): f",
            "f (:1)",
        ] {
            assert_eq!(parse_location(other), None, "{other}");
        }
    }

    #[test]
    fn a_python_frame_is_shown_with_its_file_name_and_line() {
        let text = |file| text(&CodeObject { file, ..code(0x030b, &[]) }, 12);
        assert_eq!(text("/srv/model.py"), "Block.forward (model.py:12)");
        assert_eq!(text("<stdin>"), "Block.forward (<stdin>:12)");
        assert_eq!(text(""), "Block.forward");
        assert_eq!(text("folder/"), "Block.forward (folder/:12)");
    }
}
