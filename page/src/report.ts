// The types of the page's data, as the command writes it.
import type { FlameModel, View } from "./flame/index.ts";

export interface BarPart {
  /** `busy`, or the word for a cause of idle time. */
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
  /** Cost of the finding, in percent of the part of the run that `part` names. The duration of this part is `wall`. */
  share: number | null;
  ns: number | null;
  what: string;
  why: string;
  /** How to repair the cause of the finding. The text is empty if the finding is that the data is wrong. */
  remedy: string;
  /** Code that causes the finding. `at` is the same text, cut to a maximum length. */
  culprit: string;
  at: string;
  command: string;
  view: string;
}

/** A name that has no short form, or a short and a full name. */
export type NameCell = string | [short: string, full: string];
export type Cell = NameCell | number | null;

export interface TableData {
  columns: { title: string; unit: "name" | "ns" | "percent" | "count" | "id" | "change" | "change_percent" }[];
  rows: Cell[][];
  /** Number of table rows that the page leaves out. */
  more: number;
}

/** A group of similar steps: number of its first step; number of steps; duration, GPU work and communication per step
 * in ns; index of the kind, or -1. */
export type StepGroup = [number: number, steps: number, ns: number, work: number, communication: number, kind: number];

export interface RankSteps {
  rank: number;
  kinds: { name: string; count: number; ns: number; p50: number; p95: number; max: number; longest: number }[];
  groups: StepGroup[];
  slowPercent: number;
}

/** A row of the timeline. A row's slices are in a separate element. */
export interface TimelineRowData {
  label: string;
  /** Kind of the row, which decides what its slices are called: by `names` for streams and threads, by `causes` for
   * idle time, and by `classes` for the critical path. */
  kind: "critical" | "idle" | "stream" | "thread";
  /** Number of slices in the row. */
  slices: number;
}

/** A cause of idle time, or a class of parts of the critical chain of events. */
export interface KindName {
  kind: string;
  label: string;
}

export interface TimelineData {
  end: number;
  /** Maximum duration in ns of slices that were merged into one, or 0 if no slices were merged. */
  resolution: number;
  /** Number of activities that the page leaves out. The next field is the number of rows that are left out. */
  skipped: number;
  left: number;
  names: string[];
  causes: KindName[];
  classes: KindName[];
  rows: TimelineRowData[];
}

/** All parts of the critical chain of events that have the same class, function and name. */
export interface CriticalPart extends KindName {
  ns: number;
  count: number;
  name: string;
  full: string;
  function: string | null;
  /** Rank of the part, in a job of several ranks. The timeline does not show parts of such a job. */
  rank?: number;
  /** Start and end, in ns, of the longest occurrence of the part. */
  longest: [start: number, end: number] | null;
  /** Start and length of each occurrence, one after the other, in ns. Occurrences that are close to each other are
   * merged into one. */
  marks: number[];
}

export interface Panel {
  id: string;
  title: string;
  /** Reason why the panel is empty, and how to record the data for it. */
  why?: string;
  note?: string;
  table?: TableData;
  steps?: RankSteps[];
  heat?: RankSteps[];
  critical?: { answer: string; ns: number; parts: CriticalPart[] };
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
  wall: number;
  /** The part of the run to which shares refer, such as `the steady part`. */
  part: string;
  checksWithoutData: number;
  /** Number of entries of `notRecorded` that are not about checks. */
  otherFacts: number;
  views: PageView[];
  panels: Panel[];
  timeline?: TimelineData;
}
