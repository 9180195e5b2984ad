// Tests positions, look-ups and moves in a picture of 47 ns: main(47) = decode(37: gemm 35) + load(10: copy 10).
import assert from "node:assert/strict";
import { test } from "node:test";
import { frameAt, lastRowWithin, layOut, neighbour, rowOf } from "../src/flame/layout.ts";
import type { Names } from "../src/flame/names.ts";
import { treeOf } from "../src/flame/order.ts";
import { revealing, shifted, zoomAt } from "../src/flame/zoom.ts";
import { all, type Row, sourceOf } from "./support.ts";

const ROWS: Row[] = [["main;load;copy", 10], ["main;decode;gemm", 35], ["main;decode", 2]];

function layout(around = "") {
  const { source, names } = sourceOf(ROWS);
  const kind = around ? "around" : "root";
  const tree = treeOf(source, names, { kind, name: names.text.indexOf(around), split: null }, all(source));
  const made = layOut(tree, tree.total);
  return { made, names, named: (text: string) => nodeOf(made, names, text) };
}

function nodeOf(made: ReturnType<typeof layOut>, names: Names, text: string): number {
  return made.tree.name.findIndex((name) => names.text[name] === text);
}

test("siblings are side by side, the largest first", () => {
  const { made, named } = layout();
  const place = (name: string) => [rowOf(made, named(name)), made.starts[named(name)], made.width[named(name)]];
  assert.deepEqual(place("main"), [1, 0, 47]);
  assert.deepEqual(place("decode"), [2, 0, 37]);
  assert.deepEqual(place("load"), [2, 37, 10]);
  assert.deepEqual(place("copy"), [3, 37, 10]);
});

test("a look-up finds the frame, and nothing outside the stacks", () => {
  const { made, named } = layout();
  assert.equal(frameAt(made, 2, 36.9), named("decode"));
  assert.equal(frameAt(made, 2, 37), named("load"));
  assert.equal(frameAt(made, 3, 36), -1, "the 2 ns of decode itself");
  assert.equal(frameAt(made, 4, 1), -1);
  assert.equal(frameAt(made, -1, 1), -1);
});

test("arrows lead to parents, largest children and neighbours", () => {
  const { made, named } = layout();
  assert.equal(neighbour(made, 0, "down"), named("main"));
  assert.equal(neighbour(made, named("main"), "down"), named("decode"));
  assert.equal(neighbour(made, named("decode"), "right"), named("load"));
  assert.equal(neighbour(made, named("load"), "left"), named("decode"));
  assert.equal(neighbour(made, named("load"), "up"), named("main"));
  assert.equal(neighbour(made, named("copy"), "down"), named("copy"));
  assert.equal(neighbour(made, 0, "up"), 0);
});

test("callers are above the name", () => {
  const { made, named } = layout("decode");
  assert.equal(made.rootRow, 1);
  assert.equal(rowOf(made, named("main")), 0);
  assert.equal(rowOf(made, named("gemm")), 2);
  assert.equal(neighbour(made, 0, "up"), named("main"));
  assert.equal(neighbour(made, named("main"), "down"), 0);
  assert.equal(frameAt(made, 0, 5), named("main"));
});

test("the picture is as deep as its visible stacks", () => {
  const { made } = layout();
  assert.equal(lastRowWithin(made, { low: 0, high: 47 }), 3);
  assert.equal(lastRowWithin(made, { low: 35, high: 37 }), 2);
});

test("zoom keeps the point under the pointer and stays inside", () => {
  const whole = { low: 0, high: 100 };
  assert.deepEqual(zoomAt(whole, whole, 25, 2), { low: 12.5, high: 62.5 });
  assert.deepEqual(zoomAt({ low: 12.5, high: 62.5 }, whole, 25, 0.25), whole);
  assert.deepEqual(shifted({ low: 80, high: 90 }, whole, 50), { low: 90, high: 100 });
  assert.deepEqual(revealing({ low: 0, high: 10 }, whole, { low: 50, high: 51 }), { low: 50, high: 60 });
  assert.deepEqual(revealing({ low: 0, high: 10 }, whole, { low: 5, high: 90 }), { low: 0, high: 10 });
});
