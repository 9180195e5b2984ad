//! Parses the part of the protobuf format that Chakra's execution traces use. A file consists of messages, a message
//! consists of fields, and the length of each message is stored before the message. The file `et_def.proto` in
//! github.com/mlcommons/chakra defines the messages.

/// A field of a protobuf message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Field<'a> {
    /// A number, which is an integer or a truth value.
    Number(u64),
    /// A text, bytes, or a nested message.
    Bytes(&'a [u8]),
    /// A value of four or eight bytes. The importer reads no field of this type.
    Fixed,
}

/// Reads a variable-length number at the start of `bytes`. Returns the number and the bytes after the number, or `None`
/// if the number is incomplete.
pub(crate) fn read_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (at, &byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}

/// Splits `bytes` after the first message. The length of the message is stored before the message. Returns `None` if
/// this message is truncated.
pub(crate) fn split_message(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = read_varint(bytes)?;
    rest.split_at_checked(usize::try_from(length).ok()?)
}

/// Returns the fields of a message, each with its field number. For a damaged field, the item is `None`.
pub(crate) fn fields(mut bytes: &[u8]) -> impl Iterator<Item = Option<(u64, Field<'_>)>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let next = split_field(bytes);
        bytes = next.map_or(&[][..], |(_, rest)| rest);
        Some(next.map(|(field, _)| field))
    })
}

fn split_field(bytes: &[u8]) -> Option<((u64, Field<'_>), &[u8])> {
    let (key, rest) = read_varint(bytes)?;
    let (field, rest) = match key & 7 {
        0 => read_varint(rest).map(|(value, rest)| (Field::Number(value), rest))?,
        1 => (Field::Fixed, rest.get(8..)?),
        2 => split_message(rest).map(|(value, rest)| (Field::Bytes(value), rest))?,
        5 => (Field::Fixed, rest.get(4..)?),
        _ => return None,
    };
    (key >> 3 > 0).then_some(((key >> 3, field), rest))
}

/// Whether a file that begins with `head` is a Chakra execution trace. A Chakra trace begins with a `GlobalMetadata`
/// message (version and attributes) and the first node.
pub(super) fn is_chakra(head: &[u8]) -> bool {
    let Some((metadata, rest)) = split_message(head) else { return false };
    let is_metadata = fields(metadata).all(|field| match field {
        Some((1, Field::Bytes(version))) => version.is_ascii(),
        Some((2, Field::Bytes(attribute))) => fields(attribute).all(|field| field.is_some()),
        _ => false,
    });
    // The field numbers of a node are 1 to 10. The first field of a node is field 1 (the id). An id of 0 is not
    // written, so a node with this id begins with field 2.
    let is_node = match split_message(rest) {
        Some((node, _)) => {
            fields(node).all(|field| matches!(field, Some((1..=10, _))))
                && matches!(fields(node).next(), Some(Some((1, Field::Number(_)) | (2, Field::Bytes(_)))))
        }
        // Either the first node does not fit into `head`, or the file has no node.
        None => matches!(
            read_varint(rest).and_then(|(_, node)| split_field(node)),
            Some(((1, Field::Number(_)) | (2, Field::Bytes(_)), _))
        ),
    };
    is_metadata && (is_node || (rest.is_empty() && !metadata.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_recognised_by_their_first_two_messages() {
        // The test's trace is GlobalMetadata { version: "0.0.4" }, Node { id: 7, name: "mm" }.
        let trace = [&b"\x07\x0a\x050.0.4"[..], b"\x06\x08\x07\x12\x02mm"].concat();
        assert!(is_chakra(&trace));
        assert!(is_chakra(&trace[..8]), "a trace without nodes");
        for other in
            [&b"main;decode;gemm 12\n"[..], b"\x07\x0a\x050.0.4\x06\x20\x07\x12\x02mm", b"", b"\0\0\0\0\0"]
        {
            assert!(!is_chakra(other), "{other:?}");
        }
    }

    #[test]
    fn damaged_fields_end_a_message() {
        assert_eq!(fields(b"\x08\x96\x01").collect::<Vec<_>>(), [Some((1, Field::Number(150)))]);
        assert_eq!(fields(b"\x08\x80").collect::<Vec<_>>(), [None]);
        assert_eq!(fields(b"\x12\x05ab").collect::<Vec<_>>(), [None]);
        assert_eq!(read_varint(&[0xff; 11]), None);
    }
}
