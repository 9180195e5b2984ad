// Shows the busy and idle time of each GPU as a bar, with the figures as text.
import { element } from "./flame/dom.ts";
import { human, percent } from "./flame/format.ts";
import type { Bar } from "./report.ts";

/** Number of bars to show at first. */
const FIRST_BARS = 8;
/** Minimum share of a bar, in percent, that a part needs to get a label. The second value is for narrow screens. */
const [LABEL_PERCENT, NARROW_LABEL_PERCENT] = [9, 20];

/** Returns the bars, with one legend for all bars. `part` names the part of the run that a bar shows. The result is empty if
 * there are no bars, because the times are unknown. */
export function bars(all: Bar[], part: string): HTMLElement {
  const list = element("div", { class: "bars" });
  if (all.length === 0) return list;
  const add = (some: Bar[]) => some.forEach((bar) => list.append(row(bar)));
  add(all.slice(0, FIRST_BARS));
  const rest = all.slice(FIRST_BARS);
  if (rest.length > 0) {
    const more = element("button", { type: "button", class: "more" }, `${rest.length} more GPUs`);
    more.addEventListener("click", () => {
      more.remove();
      add(rest);
      list.append(legend(all, part));
    });
    list.append(more);
  }
  list.append(legend(all, part));
  return list;
}

function row(bar: Bar): HTMLElement {
  const track = element("div", { class: "bar", role: "img", "aria-label": words(bar) });
  for (const part of bar.parts) {
    if (part.ns <= 0) continue;
    const share = (100 * part.ns) / Math.max(bar.ns, 1);
    const label = share >= LABEL_PERCENT ? percent(part.ns, bar.ns) : "";
    const width = share < NARROW_LABEL_PERCENT ? " narrow" : "";
    const piece = element("span", { class: `part ${part.kind}${width}`, title: `${part.label}: ${human(part.ns, "ns")}` }, label);
    piece.style.width = `${share}%`;
    track.append(piece);
  }
  return element("div", { class: "bar-row" }, element("span", { class: "bar-label" }, bar.label), track, element("span", { class: "bar-time" }, human(bar.ns, "ns")));
}

function words(bar: Bar): string {
  const parts = bar.parts.filter((part) => part.ns > 0);
  return `${bar.label}: ${parts.map((part) => `${percent(part.ns, bar.ns)} ${part.label}`).join(", ")}`;
}

/** Returns the legend, which names the colours. If there is only one bar, the legend also contains the bar's
 * figures. */
function legend(all: Bar[], part: string): HTMLElement {
  const kinds = new Map<string, { label: string; ns: number }>();
  for (const part of all.flatMap((bar) => bar.parts).filter((part) => part.ns > 0)) {
    const known = kinds.get(part.kind) ?? { label: part.label, ns: 0 };
    known.ns += part.ns;
    kinds.set(part.kind, known);
  }
  const whole = all.reduce((sum, bar) => sum + bar.ns, 0);
  const items = [...kinds].map(([kind, { label, ns }]) =>
    element("li", {}, element("span", { class: `swatch ${kind}` }), `${label} ${percent(ns, whole)} (${human(ns, "ns")})`),
  );
  const base = element("li", { class: "legend-title" }, `of ${part}:`);
  return element("ul", { class: "legend" }, base, ...items);
}
