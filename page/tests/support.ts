// Makes views and trees from folded stacks, for the tests of the viewer's parts.
import type { FlameModel, Source, Track } from "../src/flame/model.ts";
import { createNames, type Names } from "../src/flame/names.ts";
import { sourcesOf } from "../src/flame/source.ts";
import type { Tree } from "../src/flame/tree.ts";

export type Row = [stack: string, value: number, stream?: string];

export function modelOf(rows: Row[]): FlameModel {
  const names: string[] = [];
  const tracks: Track[] = [];
  const view = { id: "gpu", label: "GPU time", unit: "ns" as const, parent: [-1], name: [-1] };
  const columns = { node: [] as number[], track: [] as number[], value: [] as number[], count: [] as number[] };
  for (const [stack, value, stream] of rows) {
    let node = 0;
    for (const frame of stack.split(";")) {
      if (!names.includes(frame)) names.push(frame);
      const name = names.indexOf(frame);
      let child = view.parent.findIndex((parent, at) => parent === node && view.name[at] === name);
      if (child < 0) {
        child = view.parent.push(node) - 1;
        view.name.push(name);
      }
      node = child;
    }
    if (!tracks.some((track) => track.stream === (stream ?? null))) {
      tracks.push({ rank: null, gpu: null, stream: stream ?? null, thread: null });
    }
    columns.node.push(node);
    columns.track.push(tracks.findIndex((track) => track.stream === (stream ?? null)));
    columns.value.push(value);
    columns.count.push(1);
  }
  const kinds = names.map(() => 0);
  return { names, kinds, places: names.map(() => null), tracks, views: [{ ...view, ...columns }] };
}

export function sourceOf(rows: Row[], against?: Row[]): { source: Source; names: Names } {
  const { views, names } = sourcesOf(modelOf(rows), against && modelOf(against));
  return { source: views[0]!, names };
}

export function all(source: Source): Uint8Array {
  return new Uint8Array(source.node.length).fill(1);
}

/** Returns a text `path total` for each frame, sorted. The texts of callers begin with `^`. */
export function described(tree: Tree, names: Names): string[] {
  const path = (node: number): string => {
    const name = names.text[tree.name[node]!] ?? "";
    return node === 0 ? name : `${path(tree.parent[node]!)};${name}`;
  };
  const lines = Array.from(tree.parent, (_, node) => `${node >= tree.callers ? "^" : ""}${path(node)} ${tree.total[node]}`);
  return lines.sort();
}

export function emptyNames(): Names {
  return createNames({ names: [], kinds: [], places: [], tracks: [], views: [] });
}
