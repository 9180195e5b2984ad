// Draws the page: replaces its plain text with the first screen, the flame graph and the panels.
import "./page.css";
import { partText, type PathActions } from "./critical.ts";
import { readBytes, readReport } from "./data.ts";
import { firstScreen } from "./first_screen.ts";
import { element } from "./flame/dom.ts";
import { type FlameHandle, mountFlame } from "./flame/index.ts";
import { panel } from "./panels.ts";
import type { CriticalPart, Report } from "./report.ts";
import { Selection } from "./selection.ts";
import { TimelineView } from "./timeline.ts";

/** Draws the page. Returns a function that adds the timeline. */
function draw(app: HTMLElement, report: Report): (slices: Uint8Array) => void {
  const selection = new Selection();
  const host = element("div", { class: "flame-host" });
  const graph = element("section", { id: "flame", class: "panel" }, element("h2", {}, "Flame graph"), host);
  let handle: FlameHandle | undefined;
  const show = (view: string) => {
    if (report.views.some((known) => known.id === view)) handle?.show(view);
    graph.scrollIntoView();
  };
  // The names in tables are about GPU time, so the view of GPU time is opened first.
  const find = (name: string) => {
    if (report.views.some((known) => known.id === "gpu")) handle?.show("gpu");
    handle?.search(escapePattern(name));
    graph.scrollIntoView();
  };
  const panels = report.panels.filter((one) => !one.absent || one.absent.length > 0);
  let view: TimelineView | undefined;
  const inTimeline = (act: (view: TimelineView, part: CriticalPart) => void) => (part: CriticalPart) => {
    if (!view) return;
    act(view, part);
    view.root.scrollIntoView();
  };
  const actions: PathActions = {
    markAll: inTimeline((to, part) => to.mark(part.marks, partText(part))),
    showLongest: inTimeline((to, part) => part.longest && to.showPart(part.marks, part.longest)),
  };
  const sections = panels.map((data) => panel(data, selection, find, actions));
  const links = [graph, ...sections].map((section) => {
    const go = element("button", { type: "button" }, section.querySelector("h2")?.textContent ?? "");
    go.addEventListener("click", () => section.scrollIntoView());
    return element("li", {}, go);
  });
  const menu = element("nav", { "aria-label": "Parts of the page" }, element("ul", {}, ...links));
  app.replaceChildren(firstScreen(report, show), menu, graph, ...sections);
  const isEmpty = report.views.length === 0 && !report.against?.views.length;
  if (isEmpty) host.append("There is no flame graph: nothing was recorded that has a value.");
  else handle = mountFlame(host, report, { ...(report.against ? { against: report.against } : {}), ...firstView(report) });
  return (slices) => {
    if (!report.timeline) return;
    view = new TimelineView(report.timeline, slices);
    sections.find((section) => section.id === "timeline")?.append(view.root);
  };
}

/** Returns the view to show first, which is that of the most expensive finding. A comparison opens with the view of its
 * GPU time. */
function firstView(report: Report): { view?: string } {
  const view = report.against ? undefined : report.findings[0]?.view;
  return view !== undefined && report.views.some((known) => known.id === view) ? { view } : {};
}

/** Returns a regular expression that matches exactly this text. */
function escapePattern(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

async function start(): Promise<void> {
  const [app, data] = [document.getElementById("app"), document.getElementById("data")];
  if (!app || !data) return;
  try {
    const addTimeline = draw(app, await readReport(data.textContent ?? ""));
    const slices = document.getElementById("slices")?.textContent;
    if (slices) addTimeline(await readBytes(slices));
    document.documentElement.dataset["ready"] = "true";
  } catch (error) {
    app.append(element("p", { class: "why-empty" }, `The rest of the page cannot be shown in this browser: ${String(error)}`));
    throw error;
  }
}

void start();
