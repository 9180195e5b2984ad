// Computes which part of the timeline is visible.
import type { Slices } from "./timeline_slices.ts";

export interface Range {
  from: number;
  to: number;
}

/** Smallest range that can be shown, in ns. */
const MIN_RANGE = 50;

/** Returns the first index for which `is` holds. `is` must hold for all later indices too. */
function firstIndex(count: number, is: (at: number) => boolean): number {
  let [low, high] = [0, count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (is(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Returns the index of the first visible slice, and the index after the last one. */
export function shown(slices: Slices, range: Range): [first: number, last: number] {
  const count = slices.start.length;
  return [firstIndex(count, (at) => slices.latest[at]! > range.from), firstIndex(count, (at) => slices.start[at]! >= range.to)];
}

/** Returns the last slice that begins before `time` and ends after it. */
export function sliceAt(slices: Slices, time: number): number | null {
  const last = firstIndex(slices.start.length, (at) => slices.start[at]! > time);
  for (let at = last - 1; at >= 0 && slices.latest[at]! > time; at--) if (time < slices.end[at]!) return at;
  return null;
}

/** Returns a range that is `factor` times as wide as `range`. The time at `share` of the width stays the same. */
export function zoom(range: Range, share: number, factor: number, end: number): Range {
  const width = Math.min(Math.max((range.to - range.from) * factor, MIN_RANGE), Math.max(end, MIN_RANGE));
  const time = range.from + share * (range.to - range.from);
  return inside({ from: time - share * width, to: time + (1 - share) * width }, end);
}

/** Returns the range after it is moved by a share of its width. */
export function pan(range: Range, share: number, end: number): Range {
  const move = share * (range.to - range.from);
  return inside({ from: range.from + move, to: range.to + move }, end);
}

function inside(range: Range, end: number): Range {
  const width = range.to - range.from;
  const from = Math.max(0, Math.min(range.from, end - width));
  return { from, to: from + width };
}

/** Returns the times of about `count` marks on the axis, at round numbers. */
export function ticks(range: Range, count: number): number[] {
  const raw = (range.to - range.from) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw) ?? raw;
  const all: number[] = [];
  for (let time = Math.ceil(range.from / step) * step; time <= range.to; time += step) all.push(time);
  return all;
}
