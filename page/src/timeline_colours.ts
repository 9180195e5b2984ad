// Colours of the timeline. Each of the names with the most time has its own colour, and all other names are grey.
// Causes of idle time have the same colours as in the bars.
import { rgb } from "./flame/colours.ts";
import { element } from "./flame/dom.ts";
import { human } from "./flame/format.ts";
import type { KindName, TimelineData } from "./report.ts";
import { cutMiddle } from "./text.ts";
import type { Row } from "./timeline_slices.ts";

/** Colours that readers who cannot distinguish red and green can distinguish (Okabe and Ito). */
export const NAME_COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#d55e00", "#8fa3ff"];
export const OTHER_COLOUR = "#bcc3ca";
/** Colours of the causes of idle time. `page.css` contains the same colours. */
export const CAUSE_COLOURS: Record<string, string> = {
  host_late: "#e8603c",
  launch_latency: "#f5b133",
  dependency: "#8ecbf2",
  before_the_first: "#e39ac6",
  after_the_last: "#d9d2bf",
  unknown: "#545a60",
};
export const CLASS_COLOURS: Record<string, string> = {
  kernel: "#1fa487",
  memory: "#8ecbf2",
  graph: "#11644f",
  call: "#f4ec6a",
  return: "#c9b458",
  host: "#e8603c",
  hand_off: "#7d3f98",
  launch: "#f5b133",
  gap: "#e9d9e4",
  unexplained: "#5d646e",
};
/** Maximum length of a name in the legend, in characters. */
const MAX_NAME = 48;

/** Colours for each kind of row, by the index of the name. */
export type RowColours = Record<Row["kind"], string[]>;

/** Returns the time of each name in the rows of a kind. */
function times(rows: Row[], kind: Row["kind"], names: number): Float64Array {
  const sums = new Float64Array(names);
  for (const { levels } of rows.filter((row) => row.kind === kind)) levels[0]!.name.forEach((name, at) => (sums[name]! += levels[0]!.busy[at]!));
  return sums;
}

/** Returns the colour of each name. `sums` contains the time of each name. */
export function nameColours(sums: Float64Array): string[] {
  const order = [...sums.keys()].filter((name) => sums[name]! > 0).sort((a, b) => sums[b]! - sums[a]! || a - b);
  const colours = Array.from(sums, () => OTHER_COLOUR);
  order.slice(0, NAME_COLOURS.length).forEach((name, at) => (colours[name] = NAME_COLOURS[at]!));
  return colours;
}

export function rowColours(data: TimelineData, rows: Row[]): RowColours {
  const named = nameColours(times(rows, "stream", data.names.length));
  const of = (known: Record<string, string>, kinds: KindName[]) => kinds.map(({ kind }) => known[kind] ?? OTHER_COLOUR);
  return { stream: named, thread: named, idle: of(CAUSE_COLOURS, data.causes), critical: of(CLASS_COLOURS, data.classes) };
}

/** Returns the red, green and blue parts of the colours, as numbers from 0 to 255. */
export function channels(colours: string[]): Uint8Array {
  return Uint8Array.from(colours.flatMap((colour) => [...rgb(colour)]));
}

/** Returns a legend for each kind of row in the timeline. */
export function legends(data: TimelineData, rows: Row[], colours: RowColours): HTMLElement[] {
  const list = (title: string, kind: Row["kind"], labels: string[], shown: (name: number) => boolean) => {
    const sums = times(rows, kind, labels.length);
    const names = [...sums.keys()].filter((name) => sums[name]! > 0 && shown(name)).sort((a, b) => sums[b]! - sums[a]!);
    const items = names.map((name) => legendItem(labels[name]!, colours[kind][name]!, sums[name]!));
    return items.length > 0 ? element("ul", { class: "legend" }, element("li", { class: "legend-title" }, title), ...items) : null;
  };
  const labels = (kinds: KindName[]) => kinds.map(({ label }) => label);
  return [
    list("critical path:", "critical", labels(data.classes), () => true),
    list("idle:", "idle", labels(data.causes), () => true),
    list("work:", "stream", data.names, (name) => colours.stream[name] !== OTHER_COLOUR),
  ].filter((one) => one !== null);
}

function legendItem(text: string, colour: string, ns: number): HTMLElement {
  const swatch = element("span", { class: "swatch" });
  swatch.style.background = colour;
  return element("li", { title: text }, swatch, `${cutMiddle(text, MAX_NAME)} (${human(ns, "ns")})`);
}
