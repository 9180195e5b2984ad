// The layout gives each frame a row and a start, in the unit of its value. Siblings are side by side from the start of
// their parent, from the largest to the smallest. Frames in a row are sorted by start, so that a frame can be found by
// binary search.
import type { Tree } from "./tree.ts";

/** Range of values that the canvas shows from left to right. */
export interface Span {
  low: number;
  high: number;
}

export interface Layout {
  tree: Tree;
  /** Width of each frame: its total value in this run or in the other run. */
  width: Float64Array;
  starts: Float64Array;
  depth: Int32Array;
  /** Nodes in each row, from the top of the picture to its bottom. */
  rows: Int32Array[];
  /** Index of the root's row. Callers are above it. */
  rootRow: number;
}

export function layOut(tree: Tree, width: Float64Array): Layout {
  const size = tree.parent.length;
  const starts = new Float64Array(size);
  const depth = new Int32Array(size);
  const children = childrenBySize(tree, width);
  const place = (first: number, end: number) => {
    const rows: Int32Array[] = [];
    for (let row = new Int32Array([0]); row.length > 0; row = nextRow(row, first, end)) rows.push(row);
    return rows;
  };
  const nextRow = (row: Int32Array, first: number, end: number) => {
    const next: number[] = [];
    for (const node of row) {
      let at = starts[node]!;
      for (let index = children.first[node]!; index < children.first[node + 1]!; index++) {
        const child = children.nodes[index]!;
        if (child < first || child >= end) continue;
        starts[child] = at;
        depth[child] = depth[node]! + 1;
        at += width[child]!;
        if (width[child]! > 0) next.push(child);
      }
    }
    return new Int32Array(next);
  };
  const down = place(1, tree.callers);
  const up = place(tree.callers, size).slice(1).reverse();
  return { tree, width, starts, depth, rows: [...up, ...down], rootRow: up.length };
}

/** Returns the children of all nodes, parent after parent. The children of a parent are sorted from the largest to the
 * smallest. */
function childrenBySize(tree: Tree, width: Float64Array): { first: Int32Array; nodes: Int32Array } {
  const size = tree.parent.length;
  const first = new Int32Array(size + 2);
  for (let node = 1; node < size; node++) first[tree.parent[node]! + 2]!++;
  for (let node = 2; node < size + 2; node++) first[node]! += first[node - 1]!;
  const nodes = new Int32Array(Math.max(size - 1, 0));
  for (let node = 1; node < size; node++) nodes[first[tree.parent[node]! + 1]!++] = node;
  const bySize = (a: number, b: number) => width[b]! - width[a]! || tree.name[a]! - tree.name[b]!;
  for (let node = 0; node < size; node++) {
    if (first[node + 1]! - first[node]! > 1) nodes.subarray(first[node]!, first[node + 1]!).sort(bySize);
  }
  return { first, nodes };
}

export function isCaller(layout: Layout, node: number): boolean {
  return node >= layout.tree.callers;
}

export function rowOf(layout: Layout, node: number): number {
  return layout.rootRow + (isCaller(layout, node) ? -1 : 1) * layout.depth[node]!;
}

/** Returns the range of values that a frame covers. */
export function extentOf(layout: Layout, node: number): Span {
  return { low: layout.starts[node]!, high: layout.starts[node]! + layout.width[node]! };
}

/** Returns the deepest row below the root that has a frame in `span`. */
export function lastRowWithin(layout: Layout, span: Span): number {
  let last = layout.rootRow;
  for (let row; (row = layout.rows[last + 1]); last++) {
    const node = row[firstEndingAfter(layout, row, span.low)];
    if (node === undefined || layout.starts[node]! >= span.high) break;
  }
  return last;
}

/** Returns the position in `row` of the first frame that ends after `x`. */
export function firstEndingAfter(layout: Layout, row: Int32Array, x: number): number {
  let low = 0;
  let high = row.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    const node = row[middle]!;
    if (layout.starts[node]! + layout.width[node]! > x) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Returns the frame at `x` in a row, or -1. */
export function frameAt(layout: Layout, rowIndex: number, x: number): number {
  const row = layout.rows[rowIndex] ?? new Int32Array();
  const node = row[firstEndingAfter(layout, row, x)] ?? -1;
  return layout.starts[node]! <= x ? node : -1;
}

export type Direction = "up" | "down" | "left" | "right";

/** Returns the frame to which an arrow key moves from `node`, or `node` if there is no such frame. */
export function neighbour(layout: Layout, node: number, direction: Direction): number {
  const step = { up: -1, down: 1, left: 0, right: 0 }[direction];
  const isBack = node !== 0 && step === (isCaller(layout, node) ? 1 : -1);
  if (isBack) return layout.tree.parent[node]!;
  const row = layout.rows[rowOf(layout, node) + step] ?? new Int32Array();
  const at = firstEndingAfter(layout, row, layout.starts[node]!);
  if (!step) return row[at + (direction === "left" ? -1 : 1)] ?? node;
  return layout.tree.parent[row[at]!] === node ? row[at]! : node;
}
