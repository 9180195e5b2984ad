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
  columns: { title: string; unit: "name" | "ns" | "percent" | "count" | "id" }[];
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
  answers: string[];
  complete: string;
  bars: Bar[];
  findings: Finding[];
  noneFound: string;
  notRecorded: { what: string; how: string }[];
  views: PageView[];
  panels: Panel[];
}
