// The data of a flame graph as the command writes it: trees of frames, and rows that give nodes a value.

/** Origin of a row, by which the graph can be split. */
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

/** One aspect of a run. `parent[i] < i`; node 0 is the root and has the name -1. */
export interface View {
  id: string;
  label: string;
  unit: Unit;
  parent: number[];
  name: number[];
  /** Rows. Each row has the value of `node` itself, without its children, on one track. */
  node: number[];
  track: number[];
  value: number[];
  count: number[];
  /** Words after a count, such as `calls`. */
  counts?: string;
}

export interface FlameModel {
  /** Frame names, each once. Names are text, never HTML. */
  names: string[];
  /** Index into `KINDS`, for each name. */
  kinds: number[];
  /** `file:line` of each name. */
  places: (string | null)[];
  tracks: Track[];
  views: View[];
}

/** Kinds of frames, in the order of their numbers in the data. */
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

/** Kind of frames that the viewer adds: the root, and streams, threads, ranks and GPUs. */
export const KIND_ROOT = 7;

/** A view with rows of two runs. `old` and `oldCount` are values of the other run, or null if there is none. */
export interface Source extends View {
  old: Float64Array | null;
  oldCount: Float64Array | null;
  tracks: readonly Track[];
}
