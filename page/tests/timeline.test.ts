// The timeline: what is visible of it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { nameColours, OTHER_COLOUR } from "../src/timeline_colours.ts";
import { pan, rowOf, shown, sliceAt, ticks, zoom } from "../src/timeline_model.ts";

// Slices from 0 to 100, 10 to 20 (inside the first) and 200 to 210.
const ROW = rowOf({ label: "", thread: false, start: [0, 10, 200], length: [100, 10, 10], name: [0, 1, 1], count: [1, 1, 1], busy: [100, 10, 10] });

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
  const names = Array.from({ length: 10 }, (_, at) => `k${at}`);
  const row = { label: "", thread: false, start: names.map((_, at) => at), length: names.map(() => 1), name: names.map((_, at) => at), count: names.map(() => 1), busy: names.map((_, at) => at) };
  const colours = nameColours({ end: 10, gap: 0, skipped: 0, left: 0, names, rows: [row] });
  assert.deepEqual(colours.map((colour) => colour === OTHER_COLOUR), [true, true, true, false, false, false, false, false, false, false]);
  assert.equal(new Set(colours.slice(3)).size, 7);
});
