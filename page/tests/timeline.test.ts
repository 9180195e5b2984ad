// Tests which part of the timeline is visible, and how it is drawn.
import assert from "node:assert/strict";
import { test } from "node:test";
import { nameColours, OTHER_COLOUR } from "../src/timeline_colours.ts";
import { pan, shown, sliceAt, ticks, zoom } from "../src/timeline_model.ts";
import { PixelLine } from "../src/timeline_pixels.ts";
import { levelFor, levels, merged, readRows, type Slices, withLatest } from "../src/timeline_slices.ts";

/** Returns slices with these starts, ends and names. */
function slicesOf(all: [start: number, end: number, name: number][]): Slices {
  const column = (of: (one: [number, number, number]) => number) => Float64Array.from(all, of);
  return withLatest({
    resolution: 0,
    start: column(([start]) => start),
    end: column(([, end]) => end),
    name: Uint32Array.from(all, ([, , name]) => name),
    count: Uint32Array.from(all, () => 1),
    busy: column(([start, end]) => end - start),
    latest: new Float64Array(all.length),
  });
}

// A row with slices from 0 to 100, from 10 to 20 (inside the first slice) and from 200 to 210.
const ROW = slicesOf([[0, 100, 0], [10, 20, 1], [200, 210, 1]]);

test("columns are read as the command writes them", () => {
  // The bytes are those in the command's own test: a slice from 300 to 310 that is busy for 13 ns, and a slice from 301
  // to 302 that is busy for 1 ns.
  const bytes = Uint8Array.from([0xac, 2, 1, 10, 1, 5, 0, 0, 0, 5, 0]);
  const [row] = readRows([{ label: "", kind: "stream", slices: 2 }], bytes, 0);
  const { start, end, name, count, busy, latest } = row!.levels[0]!;
  assert.deepEqual([start, end, name, count, busy, latest].map((column) => [...column]), [[300, 301], [310, 302], [5, 0], [1, 1], [13, 1], [310, 310]]);
});

test("neighbours are merged with their sums if they last no longer than the resolution", () => {
  const slices = slicesOf([[0, 10, 1], [12, 15, 2], [20, 40, 3], [100, 101, 1]]);
  const shape = (resolution: number) => {
    const { start, end, name, count, busy } = merged(slices, resolution);
    return [...start].map((_, at) => [start[at], end[at], count[at], busy[at], name[at]]);
  };
  assert.equal(shape(14).length, 4);
  assert.deepEqual(shape(15), [[0, 15, 2, 13, 1], [20, 40, 1, 20, 3], [100, 101, 1, 1, 1]]);
  assert.deepEqual(shape(40), [[0, 40, 3, 33, 3], [100, 101, 1, 1, 1]]);
});

test("a drawing of a million slices reads a few thousand, whose sums are those of all", () => {
  const finest = slicesOf(Array.from({ length: 1_000_000 }, (_, at) => [at * 10, at * 10 + 4, at % 3] as [number, number, number]));
  const row = { label: "", kind: "stream" as const, slices: 1_000_000, levels: levels(finest) };
  for (const width of [1e7, 1e6, 1e5, 1e4]) {
    const level = levelFor(row, width / 2000);
    const [first, last] = shown(level, { from: 0, to: width });
    // Neighbours that are not merged last longer together than the level's resolution, which is at least a quarter of a
    // pixel.
    assert.ok(last - first <= 16_100, `${last - first} slices of ${width} ns`);
    assert.equal(level.busy.reduce((sum, ns) => sum + ns, 0), 4_000_000);
  }
});

test("a pixel has the name with most of its time, and is as opaque as it is busy", () => {
  const line = new PixelLine(4);
  line.fill(slicesOf([[0, 60, 1], [60, 100, 2], [150, 152, 3], [200, 300, 1]]), { from: 0, to: 400 });
  assert.deepEqual([...line.cover].map((cover) => Number(cover.toFixed(3))), [1, 0.02, 1, 0]);
  assert.deepEqual([...line.name].slice(0, 3), [1, 3, 1]);
  const pixels = new Uint8ClampedArray(16);
  line.write(pixels, 0, Uint8Array.from([0, 0, 0, 10, 11, 12, 20, 21, 22, 30, 31, 32]));
  assert.deepEqual([...pixels], [10, 11, 12, 255, 30, 31, 32, 102, 10, 11, 12, 255, 0, 0, 0, 0]);
});

test("a range shows the slices that overlap it, even if a later one has ended", () => {
  assert.deepEqual(shown(ROW, { from: 50, to: 60 }), [0, 2]);
  assert.deepEqual(shown(ROW, { from: 100, to: 201 }), [2, 3]);
  assert.deepEqual(shown(ROW, { from: 300, to: 400 }), [3, 3]);
});

test("the slice at a time is the one that began last", () => {
  assert.deepEqual([5, 15, 50, 100, 205].map((time) => sliceAt(ROW, time)), [0, 1, 0, null, 2]);
});

test("zoom keeps the time under the pointer, and stays inside the run", () => {
  assert.deepEqual(zoom({ from: 0, to: 1000 }, 0.25, 0.5, 1000), { from: 125, to: 625 });
  assert.deepEqual(zoom({ from: 900, to: 1000 }, 1, 2, 1000), { from: 800, to: 1000 });
  assert.deepEqual(zoom({ from: 0, to: 1000 }, 0.5, 4, 1000), { from: 0, to: 1000 });
  assert.deepEqual(pan({ from: 100, to: 200 }, -2, 1000), { from: 0, to: 100 });
  assert.deepEqual(pan({ from: 800, to: 900 }, 5, 1000), { from: 900, to: 1000 });
});

test("marks of the axis are at round numbers", () => {
  assert.deepEqual(ticks({ from: 0, to: 1000 }, 5), [0, 200, 400, 600, 800, 1000]);
  assert.deepEqual(ticks({ from: 130, to: 430 }, 3), [200, 300, 400]);
});

test("the names with most time have colours of their own", () => {
  // The time of each name is its index + 1. Only the last name has no time.
  const colours = nameColours(Float64Array.from([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0]));
  assert.deepEqual(colours.map((colour) => colour === OTHER_COLOUR), [true, true, true, false, false, false, false, false, false, false, true]);
  assert.equal(new Set(colours.slice(3, 10)).size, 7);
});
