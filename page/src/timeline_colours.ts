// Colours of a timeline: the names with most time have their own, all others are grey.
import { element } from "./flame/dom.ts";
import { human } from "./flame/format.ts";
import type { TimelineData } from "./report.ts";

/** Colours that differ for readers who see red and green alike (Okabe and Ito). */
const COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#d55e00", "#8fa3ff"];
export const OTHER_COLOUR = "#a7adb5";
/** Length of a name in the legend. */
const MAX_NAME = 48;

/** Time of each name in the rows of streams. */
function timeOfNames(data: TimelineData): Float64Array {
  const times = new Float64Array(data.names.length);
  for (const row of data.rows.filter((row) => !row.thread)) row.name.forEach((name, at) => (times[name]! += row.busy[at]!));
  return times;
}

/** Returns the colour of each name. */
export function nameColours(data: TimelineData): string[] {
  const times = timeOfNames(data);
  const order = [...times.keys()].filter((name) => times[name]! > 0).sort((a, b) => times[b]! - times[a]! || a - b);
  const colours = data.names.map(() => OTHER_COLOUR);
  order.slice(0, COLOURS.length).forEach((name, at) => (colours[name] = COLOURS[at]!));
  return colours;
}

export function legendOf(data: TimelineData, colours: string[]): HTMLElement {
  const times = timeOfNames(data);
  const named = COLOURS.map((colour) => colours.indexOf(colour)).filter((name) => name >= 0);
  const items = named.map((name) => {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = colours[name]!;
    const text = data.names[name]!;
    const short = text.length > MAX_NAME ? `${text.slice(0, MAX_NAME)}…` : text;
    return element("li", { title: text }, swatch, `${short} (${human(times[name]!, "ns")})`);
  });
  return element("ul", { class: "legend" }, ...items);
}
