// The panels below the flame graph. A panel without data shows the reason why it has none.
import { critical, type PathActions } from "./critical.ts";
import { element } from "./flame/dom.ts";
import { ranks } from "./ranks.ts";
import type { Panel } from "./report.ts";
import type { Selection } from "./selection.ts";
import { steps } from "./steps.ts";
import { table } from "./table.ts";
import { sentence } from "./text.ts";

/** Returns a panel. `find` searches for a name in the flame graph. */
export function panel(data: Panel, selection: Selection, find: (name: string) => void, actions: PathActions): HTMLElement {
  const section = element("section", { id: data.id, class: "panel" }, element("h2", {}, data.title));
  if (data.why !== undefined) {
    section.append(element("p", { class: "why-empty" }, ...sentence(data.why)));
    return section;
  }
  if (data.note !== undefined) section.append(element("p", { class: "note" }, ...sentence(data.note)));
  if (data.critical) section.append(critical(data.critical, actions));
  if (data.steps) section.append(steps(data.steps, selection));
  else if (data.table && data.heat) section.append(ranks(data.table, data.heat, selection));
  else if (data.table) section.append(table(data.table, data.title.toLowerCase(), find));
  if (data.absent) {
    const items = data.absent.map(({ label, why }) => element("li", {}, `${label}: `, ...sentence(why)));
    section.append(element("ul", {}, ...items));
  }
  return section;
}
