//! One event: where its fields stand, in whatever order they come.

use super::super::Text;
use super::cursor::{self, Shape, Stop, Value, blanks};
use super::mask::Level;

/// The fields of an event that we look at. Of a key that comes twice the last value counts, as for
/// everybody else.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fields {
    pub(super) phase: Value,
    pub(super) category: Value,
    pub(super) name: Value,
    pub(super) process: Value,
    pub(super) thread: Value,
    pub(super) time: Value,
    pub(super) duration: Value,
    pub(super) args: Value,
    pub(super) id: Value,
    /// Its innermost frame among `stackFrames`.
    pub(super) frame: Value,
}

/// The first letters of a key, for comparing it in one instruction.
const fn word<const N: usize>(key: &[u8; N]) -> u64 {
    let mut word = 0;
    let mut at = N;
    while at > 0 {
        at -= 1;
        word = word << 8 | key[at] as u64;
    }
    word
}

/// Reads the event that opens at `at`; gives the position behind it.
#[inline(always)]
pub(super) fn event<L: Level>(bytes: &[u8], at: usize, fields: &mut Fields) -> Result<usize, Stop> {
    let mut at = blanks(bytes, at + 1);
    if bytes[at] == b'}' {
        return Ok(at + 1);
    }
    loop {
        if bytes[at] != b'"' {
            return Err(Stop { at, wanted: "a key" });
        }
        at += 1;
        // There are 64 bytes of padding.
        let start = u64::from_le_bytes(*bytes[at..].first_chunk().expect("padding"));
        let (field, length) = match () {
            _ if start as u32 == word(b"cat\"") as u32 => (Some(&mut fields.category), 4),
            _ if start as u32 == word(b"pid\"") as u32 => (Some(&mut fields.process), 4),
            _ if start as u32 == word(b"tid\"") as u32 => (Some(&mut fields.thread), 4),
            _ if start as u32 == word(b"dur\"") as u32 => (Some(&mut fields.duration), 4),
            _ if start << 40 == word(b"ph\"") << 40 => (Some(&mut fields.phase), 3),
            _ if start << 40 == word(b"ts\"") << 40 => (Some(&mut fields.time), 3),
            _ if start << 24 == word(b"name\"") << 24 => (Some(&mut fields.name), 5),
            _ if start << 24 == word(b"args\"") << 24 => (Some(&mut fields.args), 5),
            _ if start << 40 == word(b"id\"") << 40 => (Some(&mut fields.id), 3),
            _ if start << 40 == word(b"sf\"") << 40 => (Some(&mut fields.frame), 3),
            () => {
                let key = cursor::string::<L>(bytes, at)?;
                let field = if key.shape == Shape::Escaped { fields.by_name(key.of(bytes)) } else { None };
                (field, key.end as usize + 1 - at)
            }
        };
        let (value, next) = cursor::value::<L>(bytes, cursor::colon(bytes, at + length)?)?;
        if let Some(field) = field {
            *field = value;
        }
        // As nearly everybody writes it.
        if bytes[next..].starts_with(b", \"") {
            at = next + 2;
            continue;
        }
        at = blanks(bytes, next);
        match bytes[at] {
            b',' => at = blanks(bytes, at + 1),
            b'}' => return Ok(at + 1),
            _ => return Err(Stop { at, wanted: "a `,` or a `}`" }),
        }
    }
}

impl Fields {
    /// A key that is written with escapes, as nobody does.
    #[cold]
    fn by_name(&mut self, key: &[u8]) -> Option<&mut Value> {
        match &*Text::json(key, true).decode() {
            "ph" => Some(&mut self.phase),
            "cat" => Some(&mut self.category),
            "name" => Some(&mut self.name),
            "pid" => Some(&mut self.process),
            "tid" => Some(&mut self.thread),
            "ts" => Some(&mut self.time),
            "dur" => Some(&mut self.duration),
            "args" => Some(&mut self.args),
            "id" => Some(&mut self.id),
            "sf" => Some(&mut self.frame),
            _ => None,
        }
    }
}
