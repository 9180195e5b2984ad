// The slices of the timeline: columns with their data, and coarser levels in which slices are merged. With these
// levels, drawing two million slices takes as long as drawing a few thousand.
import type { TimelineRowData } from "./report.ts";

/** Slices of a row, sorted by start. Times are in ns. */
export interface Slices {
  /** Maximum duration of a merged slice, from the start of the first slice in it to the end of the last one. */
  resolution: number;
  start: Float64Array;
  end: Float64Array;
  /** Index of the name. A merged slice has the name of the longest slice in it. */
  name: Uint32Array;
  count: Uint32Array;
  /** Total duration of the slices that were merged. */
  busy: Float64Array;
  /** Latest end of this slice and all slices before it. */
  latest: Float64Array;
}

export interface Row extends TimelineRowData {
  /** Levels of the slices. The first level has all slices, and each next level is coarser. */
  levels: Slices[];
}

/** Maximum number of slices of the coarsest level, so that it can be drawn at any zoom. */
const MAX_COARSE_SLICES = 2_000;
/** Ratio between the resolutions of two consecutive levels. */
const LEVEL_FACTOR = 4;

function room(count: number, resolution: number): Slices {
  const times = () => new Float64Array(count);
  return { resolution, start: times(), end: times(), name: new Uint32Array(count), count: new Uint32Array(count), busy: times(), latest: times() };
}

function first(slices: Slices, count: number): Slices {
  const { resolution, start, end, name, count: counts, busy, latest } = slices;
  return {
    resolution,
    start: start.slice(0, count),
    end: end.slice(0, count),
    name: name.slice(0, count),
    count: counts.slice(0, count),
    busy: busy.slice(0, count),
    latest: latest.slice(0, count),
  };
}

/** Reads the columns of all rows. `src/offline/report/timeline_slices.rs` describes them. */
export function readRows(rows: TimelineRowData[], bytes: Uint8Array, resolution: number): Row[] {
  let at = 0;
  const next = (): number => {
    let [value, factor] = [0, 1];
    for (;;) {
      const byte = bytes[at++] ?? 0;
      // The value is multiplied and not shifted, because times may have more than 32 bits.
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) return value;
      factor *= 0x80;
    }
  };
  return rows.map((data) => {
    const all = room(data.slices, resolution);
    const { start, end, name, count, busy } = all;
    let before = 0;
    for (let slice = 0; slice < data.slices; slice++) start[slice] = before += next();
    for (let slice = 0; slice < data.slices; slice++) end[slice] = start[slice]! + next();
    for (let slice = 0; slice < data.slices; slice++) name[slice] = next();
    for (let slice = 0; slice < data.slices; slice++) count[slice] = next() + 1;
    for (let slice = 0; slice < data.slices; slice++) {
      const idle = next();
      busy[slice] = end[slice]! - start[slice]! - (idle % 2 === 0 ? idle / 2 : -(idle + 1) / 2);
    }
    return { ...data, levels: levels(withLatest(all)) };
  });
}

export function withLatest(slices: Slices): Slices {
  let end = 0;
  slices.end.forEach((own, at) => (slices.latest[at] = end = Math.max(end, own)));
  return slices;
}

export function levels(finest: Slices): Slices[] {
  const all = [finest];
  const count = finest.start.length;
  const span = (finest.latest[count - 1] ?? 0) - (finest.start[0] ?? 0);
  let resolution = Math.max((LEVEL_FACTOR * span) / Math.max(count, 1), 1);
  for (let last = finest; last.start.length > MAX_COARSE_SLICES && resolution < span; resolution *= LEVEL_FACTOR) {
    const coarser = merged(last, resolution);
    // If all slices are long, merging removes few of them. A coarser level is kept only if it has clearly fewer slices.
    if (coarser.start.length < last.start.length * 0.75) all.push((last = coarser));
  }
  return all;
}

/** Merges neighbouring slices if they and the gaps between them last at most `resolution` together. */
export function merged(slices: Slices, resolution: number): Slices {
  const { start, end, name, count, busy } = slices;
  const to = room(start.length, resolution);
  let [made, longest] = [-1, 0];
  for (let at = 0; at < start.length; at++) {
    const until = Math.max(end[at]!, made < 0 ? 0 : to.end[made]!);
    if (made < 0 || until - to.start[made]! > resolution) {
      made++;
      [to.start[made], to.end[made], to.name[made]] = [start[at]!, end[at]!, name[at]!];
      longest = busy[at]!;
    } else {
      to.end[made] = until;
      if (busy[at]! > longest) [to.name[made], longest] = [name[at]!, busy[at]!];
    }
    to.count[made]! += count[at]!;
    to.busy[made]! += busy[at]!;
  }
  return withLatest(first(to, made + 1));
}

/** Returns the coarsest level in which slices of `ns` are not merged with their neighbours. */
export function levelFor(row: Row, ns: number): Slices {
  let best = row.levels[0]!;
  for (const level of row.levels) if (level.resolution <= ns) best = level;
  return best;
}
