//! Reads the slices of a track from a Perfetto protobuf trace. The field numbers are from Perfetto's public
//! definitions.
#![allow(dead_code, unreachable_pub)] // Some test binaries use only a part of this module.

use std::collections::BTreeMap;

/// A slice (a named time range) on a track.
#[derive(Debug, Default)]
pub struct Slice {
    pub start: u64,
    pub end: u64,
    pub title: String,
    /// Annotations of the slice, keyed by name.
    pub notes: BTreeMap<String, String>,
    /// Ids of the flows that begin in the slice.
    pub flows: Vec<u64>,
    /// Ids of the flows that end in the slice.
    pub ending_flows: Vec<u64>,
}

/// Value of a field in a protobuf message.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

type Message<'a> = BTreeMap<u64, Vec<Field<'a>>>;

fn varint(data: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = data[0];
        *data = &data[1..];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

/// Decodes a message in protobuf's wire format. Returns the fields of the message, keyed by field number.
fn fields(mut data: &[u8]) -> Message<'_> {
    let mut all = Message::new();
    while !data.is_empty() {
        let key = varint(&mut data);
        let value = match key & 7 {
            0 => Field::Number(varint(&mut data)),
            1 => {
                let (bytes, rest) = data.split_first_chunk().unwrap();
                data = rest;
                Field::Number(u64::from_le_bytes(*bytes))
            }
            2 => {
                let size = varint(&mut data) as usize;
                let (bytes, rest) = data.split_at(size);
                data = rest;
                Field::Bytes(bytes)
            }
            wire => panic!("wire type {wire}"),
        };
        all.entry(key >> 3).or_default().push(value);
    }
    all
}

fn numbers(message: &Message<'_>, field: u64) -> Vec<u64> {
    let values = message.get(&field).map_or(&[][..], Vec::as_slice).iter();
    let number = |value: &Field<'_>| match value {
        Field::Number(value) => *value,
        Field::Bytes(_) => panic!("field {field} has bytes"),
    };
    values.map(number).collect()
}

fn number(message: &Message<'_>, field: u64) -> Option<u64> {
    numbers(message, field).first().copied()
}

fn bytes<'a>(message: &Message<'a>, field: u64) -> Vec<&'a [u8]> {
    let values = message.get(&field).map_or(&[][..], Vec::as_slice).iter();
    values.filter_map(|value| if let Field::Bytes(bytes) = value { Some(*bytes) } else { None }).collect()
}

fn text(message: &Message<'_>, field: u64) -> String {
    bytes(message, field).first().map(|text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default()
}

/// Returns the slices on the track with the name `track`. Field numbers: packet 1, timestamp 8, event 11, track
/// descriptor 60 with uuid 1 and name 2. Fields of an event: annotations 4, type 9, track 11, name 23, flows 47 and
/// ending flows 48. Fields of an annotation: number 3, text 6 and name 10.
pub fn slices_of(trace: &[u8], track: &str) -> Vec<Slice> {
    let trace = fields(trace);
    let packets: Vec<Message<'_>> = bytes(&trace, 1).into_iter().map(fields).collect();
    let tracks = packets.iter().flat_map(|packet| bytes(packet, 60)).map(fields);
    let named: Vec<u64> =
        tracks.filter(|one| text(one, 2) == track).map(|one| number(&one, 1).unwrap()).collect();
    let mut slices: Vec<Slice> = Vec::new();
    for packet in &packets {
        let Some(event) = bytes(packet, 11).first().map(|event| fields(event)) else { continue };
        if number(&event, 11).is_none_or(|track| !named.contains(&track)) {
            continue;
        }
        let time = number(packet, 8).unwrap();
        match number(&event, 9) {
            Some(1) => {
                let notes = bytes(&event, 4).into_iter().map(fields);
                let value =
                    |note: &Message<'_>| number(note, 3).map_or_else(|| text(note, 6), |it| it.to_string());
                slices.push(Slice {
                    start: time,
                    end: 0,
                    title: text(&event, 23),
                    notes: notes.map(|note| (text(&note, 10), value(&note))).collect(),
                    flows: numbers(&event, 47),
                    ending_flows: numbers(&event, 48),
                });
            }
            Some(2) => slices.last_mut().unwrap().end = time,
            other => panic!("type {other:?}"),
        }
    }
    slices
}
