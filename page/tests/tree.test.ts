// Tests trees in all orders. The expected sums are computed by hand.
import assert from "node:assert/strict";
import { test } from "node:test";
import { keepRows, type Order, sumOf, treeOf } from "../src/flame/order.ts";
import { nodeAt, pathOf } from "../src/flame/tree.ts";
import { all, described, type Row, sourceOf } from "./support.ts";

const ROWS: Row[] = [
  ["main;load;copy", 10, "7"],
  ["main;decode;gemm", 30, "7"],
  ["main;decode;gemm", 5, "13"],
  ["main;decode", 2, "13"],
];
const FROM_ROOT: Order = { kind: "root", name: -1, split: null };

function tree(order: Partial<Order>, rows: Row[] = ROWS, around = "") {
  const { source, names } = sourceOf(rows);
  const name = around ? names.text.indexOf(around) : -1;
  return { made: treeOf(source, names, { ...FROM_ROOT, ...order, name }, all(source)), names, source };
}

test("from the root each frame has the sum of its subtree", () => {
  const { made, names } = tree({});
  const expected = [" 47", ";main 47", ";main;decode 37", ";main;decode;gemm 35", ";main;load 10", ";main;load;copy 10"];
  assert.deepEqual(described(made, names), expected);
});

test("from the leaves callers are below the frame that spent the time", () => {
  const { made, names } = tree({ kind: "leaves" });
  assert.deepEqual(described(made, names), [
    " 47", ";copy 10", ";copy;load 10", ";copy;load;main 10", ";decode 2", ";decode;main 2",
    ";gemm 35", ";gemm;decode 35", ";gemm;decode;main 35",
  ]);
});

test("a split puts each stream below the root, in both directions", () => {
  const { made, names } = tree({ split: "stream" });
  assert.deepEqual(described(made, names), [
    " 47", ";stream 13 7", ";stream 13;main 7", ";stream 13;main;decode 7", ";stream 13;main;decode;gemm 5",
    ";stream 7 40", ";stream 7;main 40", ";stream 7;main;decode 30", ";stream 7;main;decode;gemm 30",
    ";stream 7;main;load 10", ";stream 7;main;load;copy 10",
  ]);
  const inverted = tree({ split: "stream", kind: "leaves" });
  const lines = described(inverted.made, inverted.names);
  assert.ok(lines.includes(";stream 13;gemm;decode;main 5") && lines.includes(";stream 13;decode;main 2"), lines.join("\n"));
  assert.equal(lines.filter((line) => /^;stream \d+ /.test(line)).join(), ";stream 13 7,;stream 7 40");
});

test("around a name a recursive stack counts once, from its outermost frame", () => {
  const rows: Row[] = [["a;f;g;f;h", 4], ["b;f", 3], ["a;x", 9], ["b;c;f;h", 1]];
  const { made, names } = tree({ kind: "around" }, rows, "f");
  assert.deepEqual(described(made, names), [
    "^f;a 4", "^f;b 3", "^f;c 1", "^f;c;b 1", "f 8", "f;g 4", "f;g;f 4", "f;g;f;h 4", "f;h 1",
  ]);
});

test("a hidden subtree takes its rows out of every order", () => {
  const { source, names } = sourceOf(ROWS);
  const left = (subtree: { order?: Partial<Order>; path: string[]; isCaller?: boolean }) => {
    const order = { ...FROM_ROOT, ...subtree.order };
    const path = subtree.path.map((name) => names.intern(name, name.startsWith("stream") ? 7 : 0));
    const hidden = { view: "gpu", order, path, isCaller: subtree.isCaller ?? false };
    return sumOf(source, keepRows(source, names, () => true, [hidden]));
  };
  const decode = names.text.indexOf("decode");
  assert.equal(left({ path: ["main", "decode"] }), 10);
  assert.equal(left({ path: ["main", "decode", "gemm"] }), 12);
  assert.equal(left({ order: { kind: "leaves" }, path: ["gemm"] }), 12);
  assert.equal(left({ order: { split: "stream" }, path: ["stream 13"] }), 40);
  assert.equal(left({ order: { split: "stream", kind: "leaves" }, path: ["stream 7", "gemm"] }), 17);
  assert.equal(left({ order: { kind: "around", name: decode }, path: ["decode", "gemm"] }), 12);
  assert.equal(left({ order: { kind: "around", name: decode }, path: ["decode", "main"], isCaller: true }), 10);
});

test("a filter of tracks leaves out their rows", () => {
  const { source, names } = sourceOf(ROWS);
  assert.equal(sumOf(source, keepRows(source, names, (track) => track.stream === "13", [])), 7);
});

test("two runs are united by name, whatever the order of their tables", () => {
  const { source, names } = sourceOf(ROWS, [["main;decode;gemm", 20], ["main;gone", 6]]);
  const made = treeOf(source, names, FROM_ROOT, all(source));
  const at = (...path: string[]) => nodeAt(made, path.map((name) => names.text.indexOf(name)));
  const pair = (node: number) => [made.total[node], made.old![node]];
  assert.deepEqual(pair(0), [47, 26]);
  assert.deepEqual(pair(at("main", "decode", "gemm")), [35, 20]);
  assert.deepEqual(pair(at("main", "gone")), [0, 6]);
  assert.deepEqual(pair(at("main", "load")), [10, 0]);
});

test("a path leads back to its frame", () => {
  const { made, names } = tree({});
  for (const node of made.parent.keys()) assert.equal(nodeAt(made, pathOf(made, node)), node);
  assert.equal(nodeAt(made, [names.text.indexOf("main"), names.text.indexOf("copy")]), 1, "the deepest frame on the way");
});

test("stacks 5,000 deep need no recursion", () => {
  const deep = Array.from({ length: 5000 }, (_, at) => `f${at % 50}`).join(";");
  for (const kind of ["root", "leaves"] as const) assert.equal(tree({ kind }, [[deep, 1]]).made.total.length, 5001);
});
