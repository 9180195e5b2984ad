// The panel of the critical path, with the parts of the path that take the most time. A click on a part shows the part
// in the timeline.
import { element } from "./flame/dom.ts";
import { human, percent } from "./flame/format.ts";
import type { CriticalPart, Panel } from "./report.ts";
import { CLASS_COLOURS, OTHER_COLOUR } from "./timeline_colours.ts";

/** Actions for a click on a part of the critical path: mark all its occurrences in the timeline, or show its longest
 * occurrence. */
export interface PathActions {
  markAll(part: CriticalPart): void;
  showLongest(part: CriticalPart): void;
}

export function critical({ answer, ns, parts }: NonNullable<Panel["critical"]>, actions: PathActions): HTMLElement {
  const items = parts.map((part) => item(part, ns, actions));
  return element("div", {}, element("p", {}, answer), element("ol", { class: "path-parts" }, ...items));
}

/** Returns a part of the critical path as text, such as `kernel: gemm in forward`. */
export function partText({ label, name, function: caller, rank }: CriticalPart): string {
  return `${rank === undefined ? "" : `rank ${rank}, `}${label}${name === "" ? "" : `: ${name}`}${caller === null || caller === name ? "" : ` in ${caller}`}`;
}

function item(part: CriticalPart, whole: number, actions: PathActions): HTMLElement {
  const bar = element("span", { class: "path-bar" });
  bar.style.width = `${(100 * part.ns) / Math.max(whole, 1)}%`;
  bar.style.background = CLASS_COLOURS[part.kind] ?? OTHER_COLOUR;
  const action = (text: string, act: () => void) => element("button", { type: "button", class: "link", click: act }, text);
  const count = part.count === 1 ? "1 part" : `${part.count.toLocaleString("en")} parts`;
  const hasPlaces = part.longest !== null;
  const all = part.count === 1 || !hasPlaces ? null : action("show all in the timeline", () => actions.markAll(part));
  return element(
    "li",
    {},
    element("span", { class: "path-track", role: "img", "aria-label": `${percent(part.ns, whole)} of the path` }, bar),
    element("strong", {}, percent(part.ns, whole)),
    ` ${human(part.ns, "ns")} `,
    element("span", { class: "path-name", title: part.full }, partText(part)),
    ` (${count}) `,
    all,
    all === null ? null : " ",
    !hasPlaces ? null : action(part.count === 1 ? "show in the timeline" : "show the longest", () => actions.showLongest(part)),
  );
}
