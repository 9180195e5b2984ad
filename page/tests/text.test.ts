// Tests words, numbers, keys and the search.
import assert from "node:assert/strict";
import { test } from "node:test";
import { factsOf } from "../src/flame/facts.ts";
import { change, exact, human, percent, shorten } from "../src/flame/format.ts";
import { commandOf } from "../src/flame/keyboard.ts";
import { layOut } from "../src/flame/layout.ts";
import { fitted, visible } from "../src/flame/names.ts";
import { treeOf } from "../src/flame/order.ts";
import { compile, find } from "../src/flame/search.ts";
import { all, type Row, sourceOf } from "./support.ts";

test("values have human units with three digits, and exact digits", () => {
  const times = [999, 1000, 1234567, 12345678, 123456789, 1e9, 59_994_000_000].map((value) => human(value, "ns"));
  assert.deepEqual(times, ["999 ns", "1 us", "1.23 ms", "12.3 ms", "123 ms", "1 s", "60 s"]);
  assert.equal(human(1, "samples"), "1 sample");
  assert.equal(human(1536, "bytes"), "1.5 KiB");
  assert.equal(human(3 * 2 ** 30, "bytes"), "3 GiB");
  assert.equal(human(-1500, "ns"), "-1.5 us");
  assert.equal(exact(1234567, "ns"), "1,234,567 ns");
  assert.equal(exact(9007199254740991, "ns"), "9,007,199,254,740,991 ns");
});

test("shares and changes", () => {
  assert.equal(percent(1, 3), "33.3 %");
  assert.equal(percent(1, 1_000_000), "< 0.01 %");
  assert.equal(percent(0, 5), "0 %");
  assert.equal(percent(5, 0), "0 %");
  assert.deepEqual([change(15, 10), change(5, 10), change(1, 0), change(0, 1), change(3, 3)], ["+50 %", "-50 %", "new", "gone", "unchanged"]);
});

test("facts of a frame: total, count, average, shares", () => {
  const rows: Row[] = [["main;gemm", 30], ["main;gemm", 10], ["main;copy", 60]];
  const { source, names } = sourceOf(rows);
  const tree = treeOf(source, names, { kind: "root", name: -1, split: null }, all(source));
  const node = tree.name.indexOf(names.text.indexOf("gemm"));
  const facts = factsOf(tree, node, names, "all", source, 200);
  assert.deepEqual(facts.numbers, [["total", "40 ns"], ["count", "2"], ["average", "20 ns"], ["of its parent", "40 %"], ["of all", "20 %"]]);
});

test("characters that hide or reorder text are visible", () => {
  assert.equal(visible("a\u202eb\u0000c\nd"), "a\ufffdb\ufffdc\ufffdd");
  assert.equal(visible("<img onerror=x> ü 漢"), "<img onerror=x> ü 漢");
});

test("labels that do not fit end in an ellipsis", () => {
  assert.equal(shorten("gemm", 4), "gemm");
  assert.equal(shorten("gemms", 4), "gem…");
});

test("a frame shows a name without its mark, and without its place if there is no room", () => {
  assert.equal(fitted("gemm<float> [GPU0_Kernel]", 40), "gemm<float>");
  assert.equal(fitted("torch/nn/module.py(1779): _call_impl", 40), "torch/nn/module.py(1779): _call_impl");
  assert.equal(fitted("torch/nn/module.py(1779): _call_impl", 12), "_call_impl");
  assert.equal(fitted("nn.Module: GptOss_0", 5), "GptO…");
});

test("search: regular expressions, plain text if they are invalid, case if it is given", () => {
  assert.ok(compile("^ge.m$").matches("GEMM"));
  assert.ok(!compile("GEMM").matches("gemm"));
  const broken = compile("gemm<(");
  assert.match(broken.problem!, /group/i);
  assert.ok(broken.matches("void gemm<(int)1>"));
  assert.equal(compile("\\bload").problem, null);
});

test("a match below a match counts once", () => {
  const { source, names } = sourceOf([["f;g;f", 5], ["h;f", 2], ["h", 3]]);
  const tree = treeOf(source, names, { kind: "root", name: -1, split: null }, all(source));
  const found = find(layOut(tree, tree.total), names, compile("f"));
  assert.equal(found.sum, 7);
  assert.equal(found.topmost.length, 2);
  assert.equal(found.isMatch.reduce((sum, match) => sum + match), 3);
});

test("a search finds files and lines", () => {
  const { source, names } = sourceOf([["f", 5], ["g", 2]]);
  names.place[1] = "train.py:42";
  const tree = treeOf(source, names, { kind: "root", name: -1, split: null }, all(source));
  assert.equal(find(layOut(tree, tree.total), names, compile("train.py:42")).sum, 2);
});

test("keys with Ctrl, Alt or Cmd belong to the browser", () => {
  const press = (key: string, ctrlKey = false) => commandOf({ key, ctrlKey, metaKey: false, altKey: false });
  assert.deepEqual(["ArrowUp", "Enter", "/", "N", "x"].map((key) => press(key)), ["up", "zoom", "search", "previous", null]);
  assert.equal(press("c", true), null);
});
