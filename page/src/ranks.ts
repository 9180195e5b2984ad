// The panel of ranks: a table with the straggler, and a heat map of ranks and steps.
import { element } from "./flame/dom.ts";
import { human } from "./flame/format.ts";
import type { RankSteps, TableData } from "./report.ts";
import { isIn } from "./steps.ts";
import type { Selection } from "./selection.ts";
import { table } from "./table.ts";

const ROW_HEIGHT = 16;
const MAX_WIDTH = 1200;

export function ranks(data: TableData, heat: RankSteps[], selection: Selection): HTMLElement {
  const panel = element("div", {}, table(data, "ranks"));
  if (heat.length > 1) panel.append(heatMap(heat, selection));
  return panel;
}

/** Returns the heat map, with a row for each rank and a column for each step. Cells of steps that took longer than the
 * median are dark. */
function heatMap(ranks: RankSteps[], selection: Selection): HTMLElement {
  const columns = Math.max(...ranks.map((rank) => rank.groups.length));
  const width = Math.max(1, Math.floor(MAX_WIDTH / columns));
  const canvas = element("canvas", { role: "img", "aria-label": "durations of steps by rank", class: "heat" });
  [canvas.width, canvas.height] = [columns * width, ranks.length * ROW_HEIGHT];
  const all = ranks.flatMap((rank) => rank.groups.map((group) => group[2])).sort((a, b) => a - b);
  const median = all[Math.floor(all.length / 2)] ?? 1;
  const details = element("p", { role: "status", class: "step-details" }, "Click a cell to select its step.");
  const draw = () => {
    const context = canvas.getContext("2d");
    if (!context) return;
    const style = getComputedStyle(canvas);
    const colour = (name: string) => style.getPropertyValue(name).trim();
    context.clearRect(0, 0, canvas.width, canvas.height);
    ranks.forEach((rank, row) =>
      rank.groups.forEach((group, column) => {
        const over = Math.min(Math.max(group[2] / Math.max(median, 1) - 0.75, 0) / 0.75, 1);
        context.globalAlpha = 0.12 + 0.88 * over;
        context.fillStyle = colour(over > 0.6 ? "--warn" : "--accent");
        context.fillRect(column * width, row * ROW_HEIGHT, Math.max(width - 1, 1), ROW_HEIGHT - 1);
        if (selection.step !== null && isIn(group, selection.step)) {
          context.globalAlpha = 1;
          context.strokeStyle = colour("--fg");
          context.strokeRect(column * width + 0.5, row * ROW_HEIGHT + 0.5, Math.max(width - 2, 1), ROW_HEIGHT - 2);
        }
      }),
    );
  };
  draw();
  selection.listen(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * ranks.length);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    const [rank, group] = [ranks[row], ranks[row]?.groups[column]];
    if (!rank || !group) return;
    selection.step = group[0];
    details.textContent = `Rank ${rank.rank}, step ${group[0]}: ${human(group[2], "ns")}, the median of all is ${human(median, "ns")}.`;
  });
  const labels = element("ol", { class: "heat-labels" }, ...ranks.map((rank) => element("li", {}, `rank ${rank.rank}`)));
  const caption = element("p", {}, "Steps from left to right. Light: as long as the median step or shorter. Dark: longer.");
  return element("div", {}, caption, element("div", { class: "heat-frame" }, labels, canvas), details);
}
