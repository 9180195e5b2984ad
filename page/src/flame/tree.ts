// Tree is the picture's tree of frames with total values, in one of three orders: from the root, from the leaves, or the callers
// and callees of one name. Frames of the same name below the same frame are one.
import type { Weights } from "./weights.ts";

/** `parent[i] < i`; node 0 is the root. */
export interface Tree {
  parent: Int32Array;
  name: Int32Array;
  total: Float64Array;
  count: Float64Array;
  old: Float64Array | null;
  oldCount: Float64Array | null;
  /** Nodes from this one on are callers, drawn above the root. */
  callers: number;
}

/** Tree from the outermost callers to the leaves. */
export function fromRoot(weights: Weights): Tree {
  const builder = new Builder(weights);
  builder.add(-1, -1, [0]);
  builder.growDown(0, [0]);
  return builder.finish();
}

/** Tree that begins with the leaves; below each are its callers. Tracks stay at the top. */
export function fromLeaves(weights: Weights): Tree {
  const builder = new Builder(weights);
  builder.add(-1, -1, [0]);
  const leaves = indices(weights, (node) => node > 0 && hasSelf(weights, node));
  const values = new Selfs(weights);
  if (weights.isSplit) {
    for (const [top, group] of groupByTop(weights, leaves)) {
      builder.growUp(builder.addOne(0, weights.name[top]!, top), group, values);
    }
  } else {
    builder.growUp(0, leaves, values);
  }
  return builder.finish();
}

/** Callees of `name` below the root, its callers above. A stack counts once, from its outermost frame of that name. */
export function aroundName(weights: Weights, name: number): Tree {
  const isInside = new Uint8Array(weights.parent.length);
  const outermost = indices(weights, (node) => {
    if (node === 0) return false;
    const inside = isInside[weights.parent[node]!]!;
    isInside[node] = inside | Number(weights.name[node] === name);
    return weights.name[node] === name && !inside;
  });
  const builder = new Builder(weights);
  builder.add(-1, name, outermost);
  builder.growDown(0, outermost);
  const callers = builder.size;
  builder.growUp(0, outermost, null);
  return { ...builder.finish(), callers };
}

/** Names from below the root to `node`; in a tree around a name, that name comes first. */
export function pathOf(tree: Tree, node: number): number[] {
  const path: number[] = [];
  for (let at = node; at >= 0 && tree.name[at]! >= 0; at = tree.parent[at]!) path.push(tree.name[at]!);
  return path.reverse();
}

/** Node with this path, or the deepest one on the way to it. */
export function nodeAt(tree: Tree, path: readonly number[], isCaller: boolean): number {
  let node = 0;
  let depth = tree.name[0]! >= 0 ? 1 : 0;
  for (let at = isCaller ? tree.callers : 1; at < tree.parent.length && depth < path.length; at++) {
    if (tree.parent[at] === node && tree.name[at] === path[depth]) {
      node = at;
      depth++;
    }
  }
  return node;
}

function indices(weights: Weights, keep: (node: number) => boolean): number[] {
  const kept: number[] = [];
  for (let node = 0; node < weights.parent.length; node++) if (keep(node)) kept.push(node);
  return kept;
}

function hasSelf(weights: Weights, node: number): boolean {
  return weights.self[node] !== 0 || (weights.old !== null && weights.old[node] !== 0);
}

function groupByTop(weights: Weights, leaves: number[]): Map<number, number[]> {
  const top = new Int32Array(weights.parent.length);
  for (let node = 1; node < top.length; node++) {
    const parent = weights.parent[node]!;
    top[node] = parent === 0 ? node : top[parent]!;
  }
  const groups = new Map<number, number[]>();
  for (const leaf of leaves) {
    const group = groups.get(top[leaf]!);
    if (group) group.push(leaf);
    else groups.set(top[leaf]!, [leaf]);
  }
  return groups;
}

/** Values of nodes without their children's, as columns of a builder. */
class Selfs {
  readonly columns: (Float64Array | null)[];
  constructor(weights: Weights) {
    this.columns = [weights.self, weights.count, weights.old, weights.oldCount];
  }
}

class Builder {
  private readonly parent: number[] = [];
  private readonly name: number[] = [];
  private readonly sums: number[][] = [[], [], [], []];
  /** Values of the weights' nodes with their children's, in the order of `sums`. */
  private readonly totals: (Float64Array | null)[];
  private readonly firstChild: Int32Array;
  private readonly nextSibling: Int32Array;
  /** Scratch: the group of each name, while children are grouped. */
  private readonly groupOfName: Int32Array;

  constructor(private readonly weights: Weights) {
    const size = weights.parent.length;
    const columns = [weights.self, weights.count, weights.old, weights.oldCount];
    this.totals = columns.map((column) => column && sumSubtrees(weights.parent, column));
    this.firstChild = new Int32Array(size);
    this.nextSibling = new Int32Array(size);
    let lastName = 0;
    for (let node = size - 1; node > 0; node--) {
      const parent = weights.parent[node]!;
      this.nextSibling[node] = this.firstChild[parent]!;
      this.firstChild[parent] = node;
      lastName = Math.max(lastName, weights.name[node]!);
    }
    this.groupOfName = new Int32Array(lastName + 1).fill(-1);
  }

  get size(): number {
    return this.parent.length;
  }

  /** Adds a node with the sums of `nodes`. */
  add(parent: number, name: number, nodes: number[]): number {
    return this.push(parent, name, nodes, this.totals);
  }

  addOne(parent: number, name: number, node: number): number {
    return this.push(parent, name, [node], this.totals);
  }

  /** Adds all that is called from `nodes`, which became the node `top`. */
  growDown(top: number, nodes: number[]): void {
    const open: [number, number[]][] = [[top, nodes]];
    for (let next = open.pop(); next; next = open.pop()) {
      const [at, members] = next;
      const children: number[] = [];
      for (const member of members) {
        for (let child = this.firstChild[member]!; child > 0; child = this.nextSibling[child]!) {
          if (this.totals[0]![child] !== 0 || (this.totals[2] && this.totals[2][child] !== 0)) children.push(child);
        }
      }
      for (const group of this.groupByName(children, children)) {
        open.push([this.add(at, this.weights.name[group[0]!]!, group), group]);
      }
    }
  }

  /**
   * Adds the callers of `nodes` below `top`. With `selfs` the nodes themselves come first, each with its own value; without,
   * `top` already represents them, and each caller gets the totals of the nodes that it called.
   */
  growUp(top: number, nodes: number[], selfs: Selfs | null): void {
    const columns = selfs ? selfs.columns : this.totals;
    const { parent, name, isSplit } = this.weights;
    const isEnd = (node: number) => node === 0 || (selfs !== null && isSplit && parent[node] === 0);
    const open: [number, number[], number[]][] = [[top, nodes, selfs ? nodes : nodes.map((node) => parent[node]!)]];
    for (let next = open.pop(); next; next = open.pop()) {
      const [at, origins, places] = next;
      const going: number[] = [];
      const goingFrom: number[] = [];
      places.forEach((place, index) => {
        if (isEnd(place)) return;
        going.push(place);
        goingFrom.push(origins[index]!);
      });
      if (going.length === 1) {
        this.addChain(at, goingFrom, going[0]!, columns, isEnd);
        continue;
      }
      const groups = this.groupByName(going, going.map((_, index) => index));
      for (const group of groups) {
        const members = group.map((index) => goingFrom[index]!);
        const node = this.push(at, name[going[group[0]!]!]!, members, columns);
        open.push([node, members, group.map((index) => parent[going[index]!]!)]);
      }
    }
  }

  finish(): Tree {
    const [total, count, old, oldCount] = this.sums.map((sums) => (sums.length ? new Float64Array(sums) : null));
    return {
      parent: new Int32Array(this.parent),
      name: new Int32Array(this.name),
      total: total!,
      count: count!,
      old: old ?? null,
      oldCount: oldCount ?? null,
      callers: this.size,
    };
  }

  /** The callers of a single origin, one below the other. */
  private addChain(
    top: number,
    origin: number[],
    first: number,
    columns: (Float64Array | null)[],
    isEnd: (node: number) => boolean,
  ): void {
    let at = top;
    for (let place = first; !isEnd(place); place = this.weights.parent[place]!) {
      at = this.push(at, this.weights.name[place]!, origin, columns);
    }
  }

  private push(parent: number, name: number, nodes: number[], columns: (Float64Array | null)[]): number {
    columns.forEach((column, index) => {
      if (column === null) return;
      let sum = 0;
      for (const node of nodes) sum += column[node]!;
      this.sums[index]!.push(sum);
    });
    this.name.push(name);
    return this.parent.push(parent) - 1;
  }

  /** Groups `items` by the names of the `nodes` at the same positions, in the order in which names first appear. */
  private groupByName(nodes: number[], items: number[]): number[][] {
    const groups: number[][] = [];
    nodes.forEach((node, index) => {
      const name = this.weights.name[node]!;
      let group = this.groupOfName[name]!;
      if (group < 0) {
        group = groups.push([]) - 1;
        this.groupOfName[name] = group;
      }
      groups[group]!.push(items[index]!);
    });
    for (const node of nodes) this.groupOfName[this.weights.name[node]!] = -1;
    return groups;
  }
}

function sumSubtrees(parent: ArrayLike<number>, self: Float64Array): Float64Array {
  const total = self.slice();
  for (let node = total.length - 1; node > 0; node--) total[parent[node]!]! += total[node]!;
  return total;
}
