//! Finds the fields of a trace event. The keys of an event may be in any order.

use super::super::Text;
use super::cursor::{self, Shape, Stop, Value, skip_blanks};
use super::mask::InstructionSet;

/// Fields of a trace event that the reader needs. If a key occurs twice in an event, the last value is used, as in
/// other JSON parsers.
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
    /// Id in `stackFrames` of the innermost frame of the event's stack.
    pub(super) frame: Value,
    /// `bp`: whether a flow ends in the slice that encloses the flow's end, and not in the next slice.
    pub(super) binding: Value,
    /// `bind_id`: id of a flow that starts or ends at the event.
    pub(super) flow: Value,
    /// `flow_in`: whether the flow with the id `bind_id` ends at the event.
    pub(super) flow_in: Value,
    /// `flow_out`: whether the flow with the id `bind_id` starts at the event.
    pub(super) flow_out: Value,
}

/// Packs the first bytes of a key into a number, so that a single instruction compares all of these bytes.
const fn packed<const N: usize>(key: &[u8; N]) -> u64 {
    let mut packed = 0;
    let mut at = N;
    while at > 0 {
        at -= 1;
        packed = packed << 8 | key[at] as u64;
    }
    packed
}

/// Finds the fields of the event that begins with the opening bracket at `at`. Returns the position after the event.
#[inline(always)]
pub(super) fn read_fields<L: InstructionSet>(
    bytes: &[u8],
    at: usize,
    fields: &mut Fields,
) -> Result<usize, Stop> {
    let mut at = skip_blanks(bytes, at + 1);
    if bytes[at] == b'}' {
        return Ok(at + 1);
    }
    loop {
        if bytes[at] != b'"' {
            return Err(Stop { at, expected: "a key" });
        }
        at += 1;
        // Eight bytes can always be loaded here, because 64 bytes of padding follow the text.
        let start = u64::from_le_bytes(*bytes[at..].first_chunk().expect("padding"));
        let (field, length) = match () {
            _ if start as u32 == packed(b"cat\"") as u32 => (Some(&mut fields.category), 4),
            _ if start as u32 == packed(b"pid\"") as u32 => (Some(&mut fields.process), 4),
            _ if start as u32 == packed(b"tid\"") as u32 => (Some(&mut fields.thread), 4),
            _ if start as u32 == packed(b"dur\"") as u32 => (Some(&mut fields.duration), 4),
            _ if start << 40 == packed(b"ph\"") << 40 => (Some(&mut fields.phase), 3),
            _ if start << 40 == packed(b"ts\"") << 40 => (Some(&mut fields.time), 3),
            _ if start << 24 == packed(b"name\"") << 24 => (Some(&mut fields.name), 5),
            _ if start << 24 == packed(b"args\"") << 24 => (Some(&mut fields.args), 5),
            _ if start << 40 == packed(b"id\"") << 40 => (Some(&mut fields.id), 3),
            _ if start << 40 == packed(b"sf\"") << 40 => (Some(&mut fields.frame), 3),
            _ if start << 40 == packed(b"bp\"") << 40 => (Some(&mut fields.binding), 3),
            _ if start == packed(b"bind_id\"") => (Some(&mut fields.flow), 8),
            _ if start == packed(b"flow_in\"") => (Some(&mut fields.flow_in), 8),
            _ if start == packed(b"flow_out") && bytes[at + 8] == b'"' => (Some(&mut fields.flow_out), 9),
            () => {
                let key = cursor::read_string::<L>(bytes, at)?;
                let field = if key.shape == Shape::Escaped { fields.by_name(key.slice(bytes)) } else { None };
                (field, key.end as usize + 1 - at)
            }
        };
        let (value, next) = cursor::read_value::<L>(bytes, cursor::skip_colon(bytes, at + length)?)?;
        if let Some(field) = field {
            *field = value;
        }
        // Check first for the separator that nearly every writer uses between fields.
        if bytes[next..].starts_with(b", \"") {
            at = next + 2;
            continue;
        }
        at = skip_blanks(bytes, next);
        match bytes[at] {
            b',' => at = skip_blanks(bytes, at + 1),
            b'}' => return Ok(at + 1),
            _ => return Err(Stop { at, expected: "a `,` or a `}`" }),
        }
    }
}

impl Fields {
    /// Returns the field for a key that contains escapes. Escaped keys are rare, because no known writer escapes keys.
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
            "bp" => Some(&mut self.binding),
            "bind_id" => Some(&mut self.flow),
            "flow_in" => Some(&mut self.flow_in),
            "flow_out" => Some(&mut self.flow_out),
            _ => None,
        }
    }
}
