// Order is how stacks become a tree: from the root, from the leaves, or around a name; with or without a split by track.
import type { Source, SplitKey } from "./model.ts";
import type { Names } from "./names.ts";
import { aroundName, fromLeaves, fromRoot, type Tree } from "./tree.ts";
import { type Keep, trackLabel, weigh, weighSplit } from "./weights.ts";

export interface Order {
  kind: "root" | "leaves" | "around";
  /** The name for `around`, else -1. */
  name: number;
  split: SplitKey | null;
}

export function treeOf(source: Source, names: Names, order: Order, keep: Keep): Tree {
  const weights = order.split ? weighSplit(source, keep, order.split, names) : weigh(source, keep);
  if (order.kind === "leaves") return fromLeaves(weights);
  return order.kind === "around" ? aroundName(weights, order.name) : fromRoot(weights);
}

/** A frame of a tree, by the names on the way to it: it survives another filter, and applies to both runs. */
export interface Subtree {
  view: string;
  order: Order;
  path: number[];
  isCaller: boolean;
}

/** Clears `keep` for the rows of `subtree`. Returns the number of rows that it cleared. */
export function removeRows(source: Source, names: Names, subtree: Subtree, keep: Uint8Array): number {
  let removed = 0;
  for (let row = 0; row < keep.length; row++) {
    if (keep[row] && isInSubtree(source, names, subtree, row)) {
      keep[row] = 0;
      removed++;
    }
  }
  return removed;
}

function isInSubtree(source: Source, names: Names, { order, path, isCaller }: Subtree, row: number): boolean {
  const stack: number[] = [];
  for (let node = source.node[row]!; node > 0; node = source.parent[node]!) stack.push(source.name[node]!);
  const track = order.split ? [names.intern(trackLabel(source.tracks[source.track[row]!], order.split))] : [];
  let seen: number[];
  if (order.kind === "leaves") {
    seen = [...track, ...stack];
  } else {
    const fromTop = [...track, ...stack.reverse()];
    const outermost = order.kind === "around" ? fromTop.indexOf(order.name) : 0;
    if (outermost < 0) return false;
    seen = isCaller ? fromTop.slice(0, outermost + 1).reverse() : fromTop.slice(outermost);
  }
  return path.every((name, at) => seen[at] === name);
}
