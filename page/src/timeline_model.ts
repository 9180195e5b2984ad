// What of a timeline is visible.
import type { TimelineRowData } from "./report.ts";

export interface Range {
  from: number;
  to: number;
}

/** A row with, for each slice, the latest end of it and all slices before it. */
export interface Row extends TimelineRowData {
  latest: Float64Array;
}

/** Smallest range in ns. */
const MIN_RANGE = 50;

export function rowOf(data: TimelineRowData): Row {
  const latest = new Float64Array(data.start.length);
  let end = 0;
  data.start.forEach((start, at) => {
    end = Math.max(end, start + data.length[at]!);
    latest[at] = end;
  });
  return { ...data, latest };
}

/** Returns the first index from which `is` holds, if it holds for all later ones. */
function firstIndex(count: number, is: (at: number) => boolean): number {
  let [low, high] = [0, count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (is(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Returns the first visible slice, and the one after the last. */
export function shown(row: Row, range: Range): [first: number, last: number] {
  const count = row.start.length;
  return [firstIndex(count, (at) => row.latest[at]! > range.from), firstIndex(count, (at) => row.start[at]! >= range.to)];
}

/** Returns the last slice that begins before a time and lasts beyond it. */
export function sliceAt(row: Row, time: number): number | null {
  const [first, last] = shown(row, { from: time, to: time + 1 });
  for (let at = last - 1; at >= first; at--) if (row.start[at]! <= time && time < row.start[at]! + row.length[at]!) return at;
  return null;
}

/** Returns a range whose width is `factor` times that of `range`, with the same time at `share` of its width. */
export function zoom(range: Range, share: number, factor: number, end: number): Range {
  const width = Math.min(Math.max((range.to - range.from) * factor, MIN_RANGE), Math.max(end, MIN_RANGE));
  const time = range.from + share * (range.to - range.from);
  return inside({ from: time - share * width, to: time + (1 - share) * width }, end);
}

/** Returns the range, moved by a share of its width. */
export function pan(range: Range, share: number, end: number): Range {
  const move = share * (range.to - range.from);
  return inside({ from: range.from + move, to: range.to + move }, end);
}

function inside(range: Range, end: number): Range {
  const width = range.to - range.from;
  const from = Math.max(0, Math.min(range.from, end - width));
  return { from, to: from + width };
}

/** Returns the times of about `count` marks, at round numbers. */
export function ticks(range: Range, count: number): number[] {
  const raw = (range.to - range.from) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw) ?? raw;
  const all: number[] = [];
  for (let time = Math.ceil(range.from / step) * step; time <= range.to; time += step) all.push(time);
  return all;
}
