// The panel of steps, with a bar for each step. Slow steps are marked in it.
import { element } from "./flame/dom.ts";
import { human } from "./flame/format.ts";
import type { RankSteps, StepGroup } from "./report.ts";
import type { Selection } from "./selection.ts";
import { table } from "./table.ts";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 140;
/** Number of steps in the table of the slowest steps. */
const SLOWEST = 10;

/** Returns the panel of steps. If there are several ranks, a menu selects one of them. */
export function steps(ranks: RankSteps[], selection: Selection): HTMLElement {
  const chart = element("div", { class: "steps" });
  const draw = (rank: RankSteps) => chart.replaceChildren(...rankSteps(rank, selection));
  draw(ranks[0]!);
  if (ranks.length === 1) return chart;
  const menu = element("select", { "aria-label": "rank" });
  menu.append(...ranks.map((rank, at) => element("option", { value: String(at) }, `rank ${rank.rank}`)));
  menu.addEventListener("change", () => draw(ranks[Number(menu.value)]!));
  return element("div", {}, element("p", {}, menu), chart);
}

/** Returns the median duration of all steps of the same kind. */
export function medianOf(rank: RankSteps, group: StepGroup): number {
  return rank.kinds[Math.max(group[5], 0)]?.p50 ?? 0;
}

/** Returns whether a step takes clearly longer than the median step of its kind. */
export function isSlow(rank: RankSteps, group: StepGroup): boolean {
  const median = medianOf(rank, group);
  return median > 0 && group[2] > median * (1 + rank.slowPercent / 100);
}

function rankSteps(rank: RankSteps, selection: Selection): HTMLElement[] {
  const slow = rank.groups.filter((group) => isSlow(rank, group));
  const details = element("p", { class: "step-details", role: "status" });
  const tell = (step: number | null) => {
    const group = rank.groups.find((one) => step !== null && step >= one[0] && step < one[0] + one[1]);
    details.textContent = group ? describe(rank, group) : "Click a step, or use the arrow keys.";
  };
  tell(selection.step);
  selection.listen(tell);
  const kinds = rank.kinds.map((kind) =>
    element("li", {}, `${kind.name}: ${kind.count} steps, median ${human(kind.p50, "ns")}, p95 ${human(kind.p95, "ns")}, ` +
      `longest ${human(kind.max, "ns")} (step ${kind.longest})`),
  );
  const verdict = slow.length === 0
    ? `No step took more than ${rank.slowPercent} % longer than the median.`
    : `${slow.length} of ${rank.groups.length} steps took more than ${rank.slowPercent} % longer than the median; the chart marks them.`;
  return [element("ul", {}, ...kinds), element("p", {}, verdict), chart(rank, selection), details, slowest(rank)];
}

function describe(rank: RankSteps, group: StepGroup): string {
  const [number, count, ns, work, communication] = group;
  const median = medianOf(rank, group);
  const name = count === 1 ? `Step ${number}` : `Steps ${number} to ${number + count - 1}, on average`;
  const ratio = median > 0 ? `, ${(ns / median).toFixed(2)} times the median` : "";
  const other = communication > 0 ? `, communication ${human(communication, "ns")}` : "";
  return `${name}: ${human(ns, "ns")}${ratio}; GPU work ${human(work, "ns")}${other}.`;
}

function chart(rank: RankSteps, selection: Selection): HTMLElement {
  const longest = Math.max(...rank.groups.map((group) => group[2]), 1);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${rank.groups.length} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `durations of ${rank.groups.length} steps, the longest ${human(longest, "ns")}`);
  const bars = rank.groups.map((group, at) => {
    const bar = document.createElementNS(SVG, "rect");
    const height = Math.max((HEIGHT * group[2]) / longest, 1);
    const gap = rank.groups.length <= 400 ? 0.15 : 0;
    const shape = { x: at + gap / 2, y: HEIGHT - height, width: 1 - gap, height };
    for (const [key, value] of Object.entries(shape)) bar.setAttribute(key, String(value));
    bar.setAttribute("class", isSlow(rank, group) ? "step slow" : "step");
    const title = document.createElementNS(SVG, "title");
    title.textContent = describe(rank, group);
    bar.append(title);
    bar.addEventListener("click", () => (selection.step = group[0]));
    return bar;
  });
  svg.append(...bars);
  const mark = (step: number | null) =>
    bars.forEach((bar, at) => bar.classList.toggle("selected", step !== null && isIn(rank.groups[at]!, step)));
  mark(selection.step);
  selection.listen(mark);
  const scale = element("p", { class: "scale" }, `${human(longest, "ns")} high, ${rank.groups.length} ${rank.groups.some((group) => group[1] > 1) ? "groups of steps" : "steps"}`);
  const frame = element("div", { class: "step-chart", tabindex: "0", role: "group", "aria-label": "steps; arrow keys select one" });
  frame.append(svg);
  frame.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const step = selection.step;
    const at = step === null ? -1 : rank.groups.findIndex((group) => isIn(group, step));
    const next = Math.min(Math.max(at + move, 0), rank.groups.length - 1);
    selection.step = rank.groups[next]![0];
  });
  return element("div", {}, frame, scale);
}

export function isIn(group: StepGroup, step: number): boolean {
  return step >= group[0] && step < group[0] + group[1];
}

function slowest(rank: RankSteps): HTMLElement {
  const rows = [...rank.groups]
    .sort((a, b) => b[2] - a[2])
    .slice(0, SLOWEST)
    .map((group) => {
      const median = medianOf(rank, group);
      return [group[0], group[2], median > 0 ? 100 * (group[2] / median - 1) : null, group[3], group[4]];
    });
  const columns = [
    { title: "step", unit: "id" as const },
    { title: "duration", unit: "ns" as const },
    { title: "over the median", unit: "percent" as const },
    { title: "GPU work", unit: "ns" as const },
    { title: "communication", unit: "ns" as const },
  ];
  return element("details", {}, element("summary", {}, "Slowest steps"), table({ columns, rows, more: 0 }, "slowest steps"));
}
