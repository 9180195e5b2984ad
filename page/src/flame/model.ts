// The data of a flame graph, as the command writes it: trees of frames, and rows that give values to nodes.

/** Where the value of a row comes from. The graph can be split by each of these fields. */
export interface Track {
  rank: string | null;
  gpu: string | null;
  stream: string | null;
  thread: string | null;
}

export type SplitKey = keyof Track;
export const SPLIT_KEYS: readonly SplitKey[] = ["rank", "gpu", "stream", "thread"];

export function trackWord(key: SplitKey): string {
  return key === "gpu" ? "GPU" : key;
}

export type Unit = "ns" | "samples" | "bytes";

/** One aspect of a run, such as GPU time. `parent[i] < i`. Node 0 is the root and has the name -1. */
export interface View {
  id: string;
  label: string;
  unit: Unit;
  parent: number[];
  name: number[];
  /** Rows. Each row has a value of `node` itself, without its children, on one track. */
  node: number[];
  track: number[];
  value: number[];
  count: number[];
  /** Words after a count, such as `calls`. */
  counts?: string;
}

export interface FlameModel {
  /** Names of frames. Each name occurs once. Names are text, never HTML. */
  names: string[];
  /** Index into `KINDS` for each name. */
  kinds: number[];
  /** File and line of each name, as `file:line`. */
  places: (string | null)[];
  tracks: Track[];
  views: View[];
}

/** Kinds of frames. The data contains their indices. */
export const KINDS: readonly string[] = [
  "host function",
  "Python",
  "range",
  "CUDA call",
  "GPU kernel",
  "GPU copy or fill",
  "idle or wait",
  "thread or process",
  "library or system",
];

/** Kind of the frames that the viewer adds: the root, and streams, threads, ranks and GPUs. */
export const KIND_ROOT = 7;

/** A view with the rows of two runs. `old` and `oldCount` are the values of the other run, or null if there is no other
 * run. */
export interface Source extends View {
  old: Float64Array | null;
  oldCount: Float64Array | null;
  tracks: readonly Track[];
}
