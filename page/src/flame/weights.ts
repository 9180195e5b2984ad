// Adds the values of a view's rows to the nodes of its tree. Rows that a filter removes do not count. If the graph is
// split, each stream, thread, rank or GPU gets its own tree below the root.
import { type Source, type SplitKey, type Track, trackWord } from "./model.ts";
import type { Names } from "./names.ts";

/** A prefix tree with a value for each node. The value does not include the node's children. `parent[i] < i`. */
export interface Weights {
  parent: ArrayLike<number>;
  name: ArrayLike<number>;
  self: Float64Array;
  count: Float64Array;
  old: Float64Array | null;
  oldCount: Float64Array | null;
  /** Whether the nodes directly below the root are tracks. */
  isSplit: boolean;
}

/** Adds the values of the rows for which `keep` is not 0 to the nodes of the view. */
export function weigh(source: Source, keep: Uint8Array): Weights {
  return addRows(source, keep, source.parent, source.name, source.node);
}

/** Does the same as `weigh`, but puts a frame for each value of `key` between the root and the stacks. */
export function weighSplit(source: Source, keep: Uint8Array, key: SplitKey, names: Names): Weights {
  const parent: number[] = [-1];
  const name: number[] = [-1];
  const nodeOfRow = new Int32Array(source.node.length);
  const copyOf = new Int32Array(source.parent.length); // node of the copied tree, while one group is copied
  for (const [label, rows] of groupRows(source, keep, key)) {
    copyOf[0] = parent.push(0) - 1;
    name.push(names.intern(label));
    const touched = touchedNodes(source, rows, copyOf);
    for (const node of touched) {
      copyOf[node] = parent.push(copyOf[source.parent[node]!]!) - 1;
      name.push(source.name[node]!);
    }
    for (const row of rows) nodeOfRow[row] = copyOf[source.node[row]!]!;
    for (const node of touched) copyOf[node] = 0;
  }
  return { ...addRows(source, keep, parent, name, nodeOfRow), isSplit: true };
}

/** Returns the label of a track's frame in a graph that is split by `key`. */
export function trackLabel(track: Track | undefined, key: SplitKey): string {
  const word = trackWord(key);
  const value = track?.[key];
  if (value == null) return `no ${word}`;
  return value.toLowerCase().startsWith(word.toLowerCase()) ? value : `${word} ${value}`;
}

/** Returns the values of `key` in the rows of `source`. A graph with fewer than two values cannot be split. */
export function trackValues(source: Source, key: SplitKey): Set<string> {
  return new Set(Array.from(new Set(source.track), (track) => trackLabel(source.tracks[track], key)));
}

function groupRows(source: Source, keep: Uint8Array, key: SplitKey): Map<string, number[]> {
  const labels = source.tracks.map((track) => trackLabel(track, key));
  const groups = new Map<string, number[]>(labels.map((label) => [label, []]));
  for (let row = 0; row < keep.length; row++) {
    if (keep[row]) groups.get(labels[source.track[row]!]!)?.push(row);
  }
  for (const [label, rows] of groups) if (!rows.length) groups.delete(label);
  return groups;
}

/** Returns the nodes that `rows` need, without the root. Parents come before their children. `mark` must be 0 for these
 * nodes, and is changed. */
function touchedNodes(source: Source, rows: number[], mark: Int32Array): Int32Array {
  const touched: number[] = [];
  for (const row of rows) {
    for (let node = source.node[row]!; node > 0 && !mark[node]; node = source.parent[node]!) {
      mark[node] = -1;
      touched.push(node);
    }
  }
  return new Int32Array(touched).sort();
}

function addRows(
  source: Source,
  keep: Uint8Array,
  parent: ArrayLike<number>,
  name: ArrayLike<number>,
  nodeOfRow: ArrayLike<number>,
): Weights {
  const sum = (values: ArrayLike<number>) => {
    const sums = new Float64Array(parent.length);
    for (let row = 0; row < keep.length; row++) if (keep[row]) sums[nodeOfRow[row]!]! += values[row]!;
    return sums;
  };
  const { value, count, old, oldCount } = source;
  return { parent, name, self: sum(value), count: sum(count), old: old && sum(old), oldCount: oldCount && sum(oldCount), isSplit: false };
}
