// The order determines how stacks become a tree: from the root, from the leaves, or around a name. Each of these trees
// can be split by track.
import type { Source, SplitKey, Track } from "./model.ts";
import type { Names } from "./names.ts";
import { aroundName, fromLeaves, fromRoot, type Tree } from "./tree.ts";
import { trackLabel, weigh, weighSplit } from "./weights.ts";

export interface Order {
  kind: "root" | "leaves" | "around";
  /** The name in the middle, if the tree is around a name. */
  name: number;
  split: SplitKey | null;
}

/** Returns the tree of the rows whose value in `keep` is not 0. */
export function treeOf(source: Source, names: Names, order: Order, keep: Uint8Array): Tree {
  const weights = order.split ? weighSplit(source, keep, order.split, names) : weigh(source, keep);
  if (order.kind === "leaves") return fromLeaves(weights);
  return order.kind === "around" ? aroundName(weights, order.name) : fromRoot(weights);
}

/** A frame of a tree, identified by the names on the path from the root. These names allow the viewer to find the frame
 * again with another filter, and in the other run. */
export interface Subtree {
  view: string;
  order: Order;
  path: number[];
  isCaller: boolean;
}

/** Returns 1 for each row that `keepTrack` accepts and that is not in a `removed` subtree. */
export function keepRows(source: Source, names: Names, keepTrack: (track: Track) => boolean, removed: Subtree[]): Uint8Array {
  const keptTracks = source.tracks.map(keepTrack);
  return Uint8Array.from(source.node, (_, row) => {
    const isKept = keptTracks[source.track[row]!] ?? true;
    return Number(isKept && !removed.some((subtree) => isInSubtree(source, names, subtree, row)));
  });
}

export function sumOf(source: Source, keep: Uint8Array): number {
  return source.value.reduce((sum, value, row) => sum + (keep[row] ? value : 0), 0);
}

function isInSubtree(source: Source, names: Names, { order, path, isCaller }: Subtree, row: number): boolean {
  const stack: number[] = [];
  for (let node = source.node[row]!; node > 0; node = source.parent[node]!) stack.push(source.name[node]!);
  if (order.kind !== "leaves") stack.reverse();
  if (order.split) stack.unshift(names.intern(trackLabel(source.tracks[source.track[row]!], order.split)));
  let from = 0;
  let step = 1;
  if (order.kind === "around") {
    from = stack.indexOf(order.name);
    step = isCaller ? -1 : 1;
  }
  return from >= 0 && path.every((name, at) => stack[from + at * step] === name);
}
