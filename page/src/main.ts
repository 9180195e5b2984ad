// The page: replaces the plain text by the first screen, the flame graph and the panels.
import "./page.css";
import { readReport } from "./data.ts";
import { firstScreen } from "./first_screen.ts";
import { element } from "./flame/dom.ts";
import { type FlameHandle, mountFlame } from "./flame/index.ts";
import { panel } from "./panels.ts";
import type { Report } from "./report.ts";
import { Selection } from "./selection.ts";
import { timeline } from "./timeline.ts";

function draw(app: HTMLElement, report: Report): void {
  const selection = new Selection();
  const host = element("div", { class: "flame-host" });
  const graph = element("section", { id: "flame", class: "panel" }, element("h2", {}, "Flame graph"), host);
  let handle: FlameHandle | undefined;
  const show = (view: string) => {
    if (report.views.some((known) => known.id === view)) handle?.show(view);
    graph.scrollIntoView();
  };
  // Tables are about GPU time.
  const find = (name: string) => {
    if (report.views.some((known) => known.id === "gpu")) handle?.show("gpu");
    handle?.search(escapePattern(name));
    graph.scrollIntoView();
  };
  const panels = report.panels.filter((one) => !one.absent || one.absent.length > 0);
  const sections = panels.map((data) => panel(data, selection, find));
  const slices = sections.find((section) => section.id === "timeline");
  if (report.timeline && slices) slices.append(timeline(report.timeline));
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
}

/** Returns the view that shows what costs most. A comparison opens with its GPU time. */
function firstView(report: Report): { view?: string } {
  const view = report.against ? undefined : report.findings[0]?.view;
  return view !== undefined && report.views.some((known) => known.id === view) ? { view } : {};
}

/** Returns a regular expression that finds the text itself. */
function escapePattern(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

async function start(): Promise<void> {
  const [app, data] = [document.getElementById("app"), document.getElementById("data")];
  if (!app || !data) return;
  try {
    draw(app, await readReport(data.textContent ?? ""));
    document.documentElement.dataset["ready"] = "true";
  } catch (error) {
    app.append(element("p", { class: "why-empty" }, `The rest of the page cannot be shown in this browser: ${String(error)}`));
    throw error;
  }
}

void start();
