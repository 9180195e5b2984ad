// Tests what tables and the panel of steps compute before anything is drawn.
import assert from "node:assert/strict";
import { test } from "node:test";
import { readReport } from "../src/data.ts";
import type { RankSteps, TableData } from "../src/report.ts";
import { Selection } from "../src/selection.ts";
import { isIn, isSlow, medianOf } from "../src/steps.ts";
import { sorted, text, withoutUnknown } from "../src/table.ts";

const ROWS: (string | number | null)[][] = [["b", 2, null], ["a", 10, 7], ["c", 1, 3]];

test("rows are sorted by number or name, and unknown numbers are last in both orders", () => {
  const names = (column: number, falling: boolean) => sorted(ROWS, column, falling).map((row) => row[0]).join("");
  assert.equal(names(1, true), "abc");
  assert.equal(names(1, false), "cba");
  assert.equal(names(0, false), "abc");
  assert.equal(names(2, true), "acb");
  assert.equal(names(2, false), "cab");
  assert.equal(names(-1, true), "bac");
});

test("a column of which nothing is known is left out", () => {
  const columns: TableData["columns"] = [
    { title: "name", unit: "name" },
    { title: "p50", unit: "ns" },
    { title: "count", unit: "count" },
  ];
  const data = { columns, rows: [["x", null, 1], ["y", null, 2]], more: 0 };
  const kept = withoutUnknown(data);
  assert.deepEqual(kept.columns.map((column) => column.title), ["name", "count"]);
  assert.deepEqual(kept.rows, [["x", 1], ["y", 2]]);
});

test("numbers have units, and unknown ones are dashes", () => {
  assert.equal(text(1_234_567, "ns"), "1.23 ms");
  assert.equal(text(12.345, "percent"), "12.3 %");
  assert.equal(text(1_234_567, "count"), "1,234,567");
  assert.equal(text(null, "ns"), "–");
});

test("a step is slow if it takes more than a fifth longer than the median of its kind", () => {
  const kind = (p50: number) => ({ name: "step", count: 3, ns: 0, p50, p95: 0, max: 0, longest: 1 });
  const rank: RankSteps = { rank: 0, kinds: [kind(100), kind(1000)], groups: [], slowPercent: 20 };
  assert.equal(isSlow(rank, [1, 1, 121, 0, 0, 0]), true);
  assert.equal(isSlow(rank, [1, 1, 120, 0, 0, 0]), false);
  assert.equal(isSlow(rank, [1, 1, 1100, 0, 0, 1]), false);
  assert.equal(medianOf({ ...rank, kinds: [] }, [1, 1, 5, 0, 0, -1]), 0);
  assert.equal(isIn([10, 3, 0, 0, 0, 0], 12), true);
  assert.equal(isIn([10, 3, 0, 0, 0, 0], 13), false);
});

test("all panels learn of a selected step", () => {
  const selection = new Selection();
  const seen: (number | null)[] = [];
  selection.listen((step) => seen.push(step));
  selection.step = 7;
  selection.step = null;
  assert.deepEqual(seen, [7, null]);
});

test("the data is read out of base64 and zlib, and distances become numbers of nodes", async () => {
  // printf '%s' '{"version":1,"title":"é","views":[{"up":[1,1,1,2,4],"ahead":[2,0,1]}],"against":{"views":[{"up":[1,1],"ahead":[0]}]}}' |
  // python3 -c 'import base64,sys,zlib; print(base64.b64encode(zlib.compress(sys.stdin.buffer.read())).decode())'
  const report = await readReport("eJyrVipLLSrOzM9TsjLUUSrJLMlJVbJSOrxSSUepLDO1vFjJKrpaqbQASBnqgKCRjkmsjlJiRmpiClDMSMdAxzC2FiSSnpiZV1yiZFWNRR+SDgOg6tpaAJU7JMk=");
  const views = [{ parent: [-1, 0, 1, 1, 0], node: [2, 2, 3] }];
  assert.deepEqual({ ...report }, { version: 1, title: "é", views, against: { views: [{ parent: [-1, 0], node: [0] }] } });
});
