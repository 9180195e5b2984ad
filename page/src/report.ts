// The data of a page as the command writes it.
import type { FlameModel, View } from "./flame/index.ts";

export interface BarPart {
  /** `busy`, or the word of a cause of idle time. */
  kind: string;
  label: string;
  ns: number;
}

export interface Bar {
  label: string;
  ns: number;
  parts: BarPart[];
}

export interface Finding {
  id: string;
  bad: boolean;
  /** Cost in percent of the steady part. */
  share: number | null;
  ns: number | null;
  what: string;
  why: string;
  culprit: string;
  command: string;
  view: string;
}

/** A name that has a short form, or one that has none. */
export type NameCell = string | [short: string, full: string];
export type Cell = NameCell | number | null;

export interface TableData {
  columns: { title: string; unit: "name" | "ns" | "percent" | "count" | "id" | "change" | "change_percent" }[];
  rows: Cell[][];
  /** Number of rows that the page leaves out. */
  more: number;
}

/** First step, number of steps, and per step: duration, work and communication in ns; index of the kind, or -1. */
export type StepGroup = [number: number, steps: number, ns: number, work: number, communication: number, kind: number];

export interface RankSteps {
  rank: number;
  kinds: { name: string; count: number; ns: number; p50: number; p95: number; max: number; longest: number }[];
  groups: StepGroup[];
  slowPercent: number;
}

/** Slices of a stream or of a launching thread, sorted by start, in ns. */
export interface TimelineRowData {
  label: string;
  thread: boolean;
  start: number[];
  length: number[];
  /** Index of the name; of several slices that were merged, of the longest. */
  name: number[];
  count: number[];
  busy: number[];
}

export interface TimelineData {
  end: number;
  /** Slices with smaller gaps are merged. */
  gap: number;
  /** Activities and rows that are left out. */
  skipped: number;
  left: number;
  names: string[];
  rows: TimelineRowData[];
}

export interface Panel {
  id: string;
  title: string;
  /** Why the panel is empty, and how to record its data. */
  why?: string;
  note?: string;
  table?: TableData;
  steps?: RankSteps[];
  heat?: RankSteps[];
  absent?: { id: string; label: string; why: string }[];
}

export interface PageView extends View {
  counts: string;
  merged?: { frames: number; value: number };
}

export interface Report extends FlameModel {
  version: number;
  title: string;
  firstLine: string;
  /** Sentences that name the culprit. */
  culprits: string[];
  /** Sentences about the change since the older run. */
  changes: string[];
  /** Views of the older run. */
  against?: FlameModel;
  answers: string[];
  complete: string;
  bars: Bar[];
  findings: Finding[];
  noneFound: string;
  notRecorded: { what: string; how: string }[];
  views: PageView[];
  panels: Panel[];
  timeline?: TimelineData;
}
