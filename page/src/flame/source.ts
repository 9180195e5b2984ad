// Prepares the views of one model, or of two models that are compared. For a comparison, the trees of both models are
// united. Each row has its value for one run, and 0 for the other run.
import type { FlameModel, Source, View } from "./model.ts";
import { createNames, type Names } from "./names.ts";

export interface Sources {
  names: Names;
  views: Source[];
}

export function sourcesOf(model: FlameModel, against: FlameModel | undefined): Sources {
  const names = createNames(model);
  if (!against) {
    const views = model.views.map((view) => ({ ...view, old: null, oldCount: null, tracks: model.tracks }));
    return { names, views };
  }
  const nameOfOld = against.names.map((name, at) => names.intern(name, against.kinds[at], against.places[at]));
  const tracks = [...model.tracks, ...against.tracks];
  const ids = new Set([...model.views, ...against.views].map((view) => view.id));
  const views = [...ids].map((id) => {
    const view = model.views.find((view) => view.id === id);
    const old = against.views.find((view) => view.id === id);
    return { ...unite(view ?? empty(old!), old ?? empty(view!), nameOfOld, model.tracks.length), tracks };
  });
  return { names, views };
}

function empty(like: View): View {
  return { ...like, parent: [-1], name: [-1], node: [], track: [], value: [], count: [] };
}

function unite(view: View, old: View, nameOfOld: number[], firstOldTrack: number): Omit<Source, "tracks"> {
  const parent = view.parent.slice();
  const name = view.name.slice();
  const children = new Map<string, number>();
  for (let node = 1; node < parent.length; node++) children.set(`${parent[node]},${name[node]}`, node);
  const nodeOfOld = new Int32Array(old.parent.length);
  for (let at = 1; at < nodeOfOld.length; at++) {
    const above = nodeOfOld[old.parent[at]!]!;
    const called = nameOfOld[old.name[at]!]!;
    let node = children.get(`${above},${called}`);
    if (node === undefined) {
      node = parent.push(above) - 1;
      name.push(called);
      children.set(`${above},${called}`, node);
    }
    nodeOfOld[at] = node;
  }
  const nothing = (rows: View) => rows.node.map(() => 0);
  const before = (values: number[]) => [...values, ...nothing(old)];
  const after = (values: number[]) => Float64Array.from([...nothing(view), ...values]);
  return {
    ...view,
    parent,
    name,
    node: [...view.node, ...old.node.map((node) => nodeOfOld[node]!)],
    track: [...view.track, ...old.track.map((track) => track + firstOldTrack)],
    value: before(view.value),
    count: before(view.count),
    old: after(old.value),
    oldCount: after(old.count),
  };
}
