//! Assigns GPU work to lanes: a lane is a track of one stream. Work that overlaps other work on its stream is put on an
//! additional track, because viewers silently drop one of two slices that overlap on a track.

use std::collections::{BTreeMap, BTreeSet};

use gpuflame_model::sorting;

/// Maximum number of tracks per stream. If all tracks are in use, further overlapping work is put on the last track.
const MAX_LANES: usize = 64;
/// Lowest id of an additional track. Track ids below this value are ids of streams.
const FIRST_TRACK: u32 = 1 << 30;

/// Assigns work to the lanes of its stream, as the module's documentation describes.
#[derive(Debug, Default)]
pub struct Lanes {
    streams: BTreeMap<(u32, u32), Vec<Lane>>,
    /// Next id for an additional track, keyed by GPU.
    next_tracks: BTreeMap<u32, u32>,
}

#[derive(Debug)]
struct Lane {
    track: u32,
    end: u64,
}

impl Lanes {
    /// Returns the track id for work that runs from `start` to `end`. `stream` contains the index of the GPU and the id
    /// of the stream. The first track of a stream has the id of the stream. Work must be passed in the order of start
    /// times. If work is passed after work with a later start, it may get an additional track even if it overlaps
    /// nothing.
    pub fn track(&mut self, stream: (u32, u32), start: u64, end: u64) -> u32 {
        let lanes = self.streams.entry(stream).or_default();
        let free = match lanes.iter().position(|lane| lane.end <= start) {
            Some(free) => free,
            None if lanes.len() == MAX_LANES => MAX_LANES - 1,
            None => {
                let track = match lanes.is_empty() {
                    true => stream.1,
                    false => {
                        let next = self.next_tracks.entry(stream.0).or_insert(FIRST_TRACK);
                        *next += 1;
                        *next - 1
                    }
                };
                lanes.push(Lane { track, end });
                lanes.len() - 1
            }
        };
        lanes[free].end = lanes[free].end.max(end);
        lanes[free].track
    }

    /// Returns the additional tracks of all streams, each as index of the GPU, track id and name.
    pub fn names(&self) -> BTreeSet<(u32, u32, String)> {
        let further = self.streams.iter().flat_map(|(&(device, stream), lanes)| {
            lanes.iter().skip(1).enumerate().map(move |(at, lane)| {
                let number = if at == 0 { String::new() } else { format!(" {}", at + 1) };
                (device, lane.track, format!("stream {stream} (overlapping{number})"))
            })
        });
        sorting::into_set(further)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_work_of_a_stream_is_on_further_tracks_with_names() {
        let mut lanes = Lanes::default();
        let tracks = [(7, 0, 10), (7, 8, 20), (7, 9, 12), (7, 12, 30), (9, 8, 10), (7, 20, 40)]
            .map(|(stream, start, end)| lanes.track((0, stream), start, end));
        assert_eq!(tracks, [7, 1 << 30, (1 << 30) + 1, 7, 9, 1 << 30]);
        let names: Vec<_> = lanes.names().into_iter().map(|(_, _, name)| name).collect();
        assert_eq!(names, ["stream 7 (overlapping)", "stream 7 (overlapping 2)"]);
    }
}
