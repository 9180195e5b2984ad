// Weights puts the rows of a view on the nodes of its tree: rows that a filter removes are left out, and on request each stream,
// thread, rank or GPU gets a tree of its own below the root.
import { type Source, type SplitKey, type Track, trackWord } from "./model.ts";
import type { Names } from "./names.ts";

/** A prefix tree with the values of its nodes, without their children's. `parent[i] < i`. */
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

/** Puts the rows that are not 0 in `keep` on the nodes of the view. */
export function weigh(source: Source, keep: Uint8Array): Weights {
  const size = source.parent.length;
  const weights = emptyWeights(source.parent, source.name, size, source.old !== null);
  for (let row = 0; row < source.node.length; row++) {
    if (keep[row]) addRow(weights, source.node[row]!, source, row);
  }
  return weights;
}

/** Like `weigh`, with a frame for each value of `key` between the root and the stacks. */
export function weighSplit(source: Source, keep: Uint8Array, key: SplitKey, names: Names): Weights {
  const parent: number[] = [-1];
  const name: number[] = [-1];
  const nodeOfRow = new Int32Array(source.node.length);
  const copyOf = new Int32Array(source.parent.length); // node of the copied tree, while one group is copied
  for (const [label, rows] of groupRows(source, keep, key)) {
    const top = parent.push(0) - 1;
    name.push(names.intern(label));
    const touched = touchedNodes(source, rows, copyOf);
    copyOf[0] = top;
    for (const node of touched) {
      copyOf[node] = parent.push(copyOf[source.parent[node]!]!) - 1;
      name.push(source.name[node]!);
    }
    for (const row of rows) nodeOfRow[row] = copyOf[source.node[row]!]!;
    for (const node of touched) copyOf[node] = 0;
  }
  const weights = emptyWeights(parent, name, parent.length, source.old !== null);
  weights.isSplit = true;
  for (let row = 0; row < source.node.length; row++) {
    if (keep[row]) addRow(weights, nodeOfRow[row]!, source, row);
  }
  return weights;
}

/** Label of the frame that a track gets when the graph is split by `key`. */
export function trackLabel(track: Track | undefined, key: SplitKey): string {
  const word = trackWord(key);
  const value = track?.[key];
  if (value == null) return `no ${word}`;
  return value.toLowerCase().startsWith(word.toLowerCase()) ? value : `${word} ${value}`;
}

/** Values of `key` among the rows of `source`; a graph with fewer than two cannot be split. */
export function trackValues(source: Source, key: SplitKey): Set<string> {
  const used = new Set<number>();
  for (let row = 0; row < source.track.length; row++) used.add(source.track[row]!);
  return new Set([...used].map((track) => trackLabel(source.tracks[track], key)));
}

function groupRows(source: Source, keep: Uint8Array, key: SplitKey): [string, number[]][] {
  const groups = new Map<string, number[]>();
  const groupOfTrack = new Map<number, number[]>();
  for (let row = 0; row < source.node.length; row++) {
    if (!keep[row]) continue;
    const track = source.track[row]!;
    let group = groupOfTrack.get(track);
    if (group === undefined) {
      const label = trackLabel(source.tracks[track], key);
      group = groups.get(label) ?? [];
      groups.set(label, group);
      groupOfTrack.set(track, group);
    }
    group.push(row);
  }
  return [...groups];
}

/** Nodes that `rows` need, parents first, without the root. `mark` must be 0 for all nodes, and is changed. */
function touchedNodes(source: Source, rows: number[], mark: Int32Array): Int32Array {
  const touched: number[] = [];
  for (const row of rows) {
    for (let node = source.node[row]!; node > 0 && mark[node] === 0; node = source.parent[node]!) {
      mark[node] = -1;
      touched.push(node);
    }
  }
  return new Int32Array(touched).sort();
}

function emptyWeights(parent: ArrayLike<number>, name: ArrayLike<number>, size: number, hasOld: boolean): Weights {
  const zeros = () => new Float64Array(size);
  const [old, oldCount] = hasOld ? [zeros(), zeros()] : [null, null];
  return { parent, name, self: zeros(), count: zeros(), old, oldCount, isSplit: false };
}

function addRow(weights: Weights, node: number, source: Source, row: number): void {
  weights.self[node]! += source.value[row]!;
  weights.count[node]! += source.count[row]!;
  if (weights.old && source.old) {
    weights.old[node]! += source.old[row]!;
    weights.oldCount![node]! += source.oldCount![row]!;
  }
}
