//! Finds the arguments of a trace event, which are the keys and values of the object `args`.

use super::cursor::{self, Shape, Value, skip_blanks, to_text};
use super::mask::InstructionSet;

/// Key and value of an argument.
pub(super) type Arg = (Value, Value);

/// Calls `take` with the key and value of each argument in an object. `found` contains the arguments if an earlier scan
/// has found them. The loop ends at the first syntax error. The object may contain syntax errors, because the scanner
/// has skipped the object without parsing it.
#[inline(always)]
pub(super) fn for_each<L: InstructionSet>(
    bytes: &[u8],
    object: Value,
    found: Option<&[Arg]>,
    mut take: impl FnMut(&[u8], Value),
) {
    let mut args = Args::new(bytes, object);
    let (mut found, is_found) = (found.unwrap_or_default().iter(), found.is_some());
    // One loop passes on both the arguments that were found before and the arguments that are found now, so that the
    // code of `take` is inlined only once.
    while let Some((key, value)) = if is_found { found.next().copied() } else { args.next::<L>() } {
        match key.shape {
            Shape::Escaped => take(to_text(bytes, key).decode().as_bytes(), value),
            _ => take(key.slice(bytes), value),
        }
    }
}

/// Finds the arguments in an object, and appends them to `list`.
#[inline(always)]
pub(super) fn find<L: InstructionSet>(bytes: &[u8], object: Value, list: &mut Vec<Arg>) {
    let mut args = Args::new(bytes, object);
    while let Some(arg) = args.next::<L>() {
        list.push(arg);
    }
}

/// Iterator over the arguments of an object that were not returned yet.
struct Args<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Args<'a> {
    #[inline(always)]
    fn new(bytes: &'a [u8], object: Value) -> Self {
        let (start, end) = (object.start as usize, object.end as usize);
        match object.shape == Shape::Nested && bytes[start] == b'{' {
            true => Self { bytes, at: skip_blanks(bytes, start + 1), end },
            false => Self { bytes, at: 0, end: 0 },
        }
    }

    #[inline(always)]
    fn next<L: InstructionSet>(&mut self) -> Option<Arg> {
        let bytes = self.bytes;
        if self.at >= self.end || bytes[self.at] != b'"' {
            return None;
        }
        let key = cursor::read_string::<L>(bytes, self.at + 1).ok()?;
        let after = cursor::skip_colon(bytes, key.end as usize + 1).ok()?;
        let (value, next) = cursor::read_value::<L>(bytes, after).ok()?;
        let at = skip_blanks(bytes, next);
        self.at = if bytes[at] == b',' { skip_blanks(bytes, at + 1) } else { self.end };
        Some((key, value))
    }
}
