// The tree of frames in the picture, with total values, in one of three orders: from the root, from the leaves, or with
// the callers and callees of one name. Frames with the same name below the same frame are merged.
import type { Weights } from "./weights.ts";

/** A tree of frames. `parent[i] < i`, and node 0 is the root. */
export interface Tree {
  parent: Int32Array;
  name: Int32Array;
  total: Float64Array;
  count: Float64Array;
  old: Float64Array | null;
  oldCount: Float64Array | null;
  /** Index of the first caller node. Callers are drawn above the root. */
  callers: number;
}

/** Returns the tree from the outermost callers to the leaves. */
export function fromRoot(weights: Weights): Tree {
  const builder = createBuilder(weights, -1, [0]);
  builder.growDown([0]);
  return builder.finish();
}

/** Returns the tree that begins with the leaves. The callers of each leaf are below it. Tracks stay at the top. */
export function fromLeaves(weights: Weights): Tree {
  const builder = createBuilder(weights, -1, [0]);
  const leaves = indices(weights, (node) => weights.self[node] !== 0 || !!weights.old?.[node]);
  if (weights.isSplit) {
    for (const [top, group] of groupByTop(weights, leaves)) {
      builder.growUp(builder.add(0, weights.name[top]!, [top]), group, true);
    }
  } else {
    builder.growUp(0, leaves, true);
  }
  return builder.finish();
}

/** Returns the tree with the callees of `name` below the root, and its callers above the root. A stack with several
 * frames of that name counts once, from the outermost of these frames. */
export function aroundName(weights: Weights, name: number): Tree {
  const isInside = new Uint8Array(weights.parent.length);
  const outermost = indices(weights, (node) => {
    const above = isInside[weights.parent[node]!]!;
    isInside[node] = above | Number(weights.name[node] === name);
    return isInside[node] > above;
  });
  const builder = createBuilder(weights, name, outermost);
  builder.growDown(outermost);
  const callers = builder.size();
  builder.growUp(0, outermost, false);
  return { ...builder.finish(), callers };
}

/** Returns the names on the path to `node`, without the root. In a tree around a name, this name is the first. */
export function pathOf(tree: Tree, node: number): number[] {
  return ancestors(tree, node).map((at) => tree.name[at]!).filter((name) => name >= 0);
}

/** Returns the nodes on the path from the root to `node`. */
export function ancestors(tree: Tree, node: number): number[] {
  const path: number[] = [];
  for (let at = node; at >= 0; at = tree.parent[at]!) path.push(at);
  return path.reverse();
}

/** Returns the node below the root with this path, or the deepest existing node on this path. */
export function nodeAt(tree: Tree, path: readonly number[]): number {
  let node = 0;
  let depth = tree.name[0]! < 0 ? 0 : 1;
  for (let at = 1; at < tree.callers && depth < path.length; at++) {
    if (tree.parent[at] === node && tree.name[at] === path[depth]) {
      node = at;
      depth++;
    }
  }
  return node;
}

/** Returns the nodes, without the root, for which `keep` is true. */
function indices(weights: Weights, keep: (node: number) => boolean): number[] {
  const kept: number[] = [];
  for (let node = 1; node < weights.parent.length; node++) if (keep(node)) kept.push(node);
  return kept;
}

/** Returns the leaves that belong to each track. */
function groupByTop(weights: Weights, leaves: number[]): Map<number, number[]> {
  const groups = new Map<number, number[]>();
  const top: number[] = [];
  for (let node = 1; node < weights.parent.length; node++) top[node] = top[weights.parent[node]!] ?? node;
  for (const leaf of leaves) {
    if (!groups.get(top[leaf]!)?.push(leaf)) groups.set(top[leaf]!, [leaf]);
  }
  return groups;
}

type Columns = (Float64Array | null)[];

/** Builds a tree whose root has the sums of `origin`. */
function createBuilder(weights: Weights, rootName: number, origin: number[]) {
  const size = weights.parent.length;
  const parents: number[] = [];
  const names: number[] = [];
  const sums: number[][] = [[], [], [], []];
  const selfs: Columns = [weights.self, weights.count, weights.old, weights.oldCount];
  const totals: Columns = selfs.map((column) => column && sumSubtrees(weights.parent, column));
  const firstChild = new Int32Array(size);
  const nextSibling = new Int32Array(size);
  for (let node = size - 1; node > 0; node--) {
    nextSibling[node] = firstChild[weights.parent[node]!]!;
    firstChild[weights.parent[node]!] = node;
  }
  /** Index of the group for each name. It is used only while nodes are grouped. */
  const groupOfName: number[] = [];
  push(-1, rootName, origin, totals);

  function push(parent: number, name: number, nodes: number[], columns: Columns): number {
    columns.forEach((column, index) => {
      if (!column) return;
      let sum = 0;
      for (const node of nodes) sum += column[node]!;
      sums[index]!.push(sum);
    });
    names.push(name);
    return parents.push(parent) - 1;
  }

  /** Adds all callees of `nodes`, which are the root of the tree. */
  function growDown(nodes: number[]): void {
    const open: [number, number[]][] = [[0, nodes]];
    for (let next = open.pop(); next; next = open.pop()) {
      const [at, members] = next;
      const children: number[] = [];
      for (const member of members) {
        for (let child = firstChild[member]!; child > 0; child = nextSibling[child]!) {
          if (totals[0]![child] !== 0 || totals[2]?.[child]) children.push(child);
        }
      }
      for (const group of groupByName(children, children)) {
        open.push([push(at, weights.name[group[0]!]!, group, totals), group]);
      }
    }
  }

  /**
     Adds the callers of `nodes` below `top`. If `areLeaves`, the nodes themselves are added first, each with its own
     value. If not, `top` represents them, and each caller gets the sum of its callees.
   */
  function growUp(top: number, nodes: number[], areLeaves: boolean): void {
    const columns = areLeaves ? selfs : totals;
    const { parent, name } = weights;
    const isEnd = (node: number) => node === 0 || (areLeaves && weights.isSplit && parent[node] === 0);
    const open: [number, number[], number[]][] = [[top, nodes, areLeaves ? nodes : nodes.map((node) => parent[node]!)]];
    for (let next = open.pop(); next; next = open.pop()) {
      const [at, origins, places] = next;
      const going = [...places.keys()].filter((index) => !isEnd(places[index]!));
      const groups = groupByName(going.map((index) => places[index]!), going);
      for (const group of groups) {
        const members = group.map((index) => origins[index]!);
        const node = push(at, name[places[group[0]!]!]!, members, columns);
        open.push([node, members, group.map((index) => parent[places[index]!]!)]);
      }
    }
  }

  /** Groups `items` by the names of the `nodes` at the same positions, in the order in which names first appear. */
  function groupByName(nodes: number[], items: number[]): number[][] {
    const groups: number[][] = [];
    nodes.forEach((node, index) => {
      const group = (groupOfName[weights.name[node]!] ??= groups.push([]) - 1);
      groups[group]!.push(items[index]!);
    });
    for (const node of nodes) delete groupOfName[weights.name[node]!];
    return groups;
  }

  function finish(): Tree {
    const [total, count, old, oldCount] = sums.map((column) => (column.length ? new Float64Array(column) : null));
    return {
      parent: new Int32Array(parents),
      name: new Int32Array(names),
      total: total!,
      count: count!,
      old: old!,
      oldCount: oldCount!,
      callers: parents.length,
    };
  }

  return {
    add: (parent: number, name: number, nodes: number[]) => push(parent, name, nodes, totals),
    growDown,
    growUp,
    finish,
    size: () => parents.length,
  };
}

function sumSubtrees(parent: ArrayLike<number>, self: Float64Array): Float64Array {
  const total = self.slice();
  for (let node = total.length - 1; node > 0; node--) total[parent[node]!]! += total[node]!;
  return total;
}
