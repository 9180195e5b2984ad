// Legend of the fills in use.
import { element } from "./dom.ts";
import { KIND_HATCHED, type Palette } from "./colours.ts";
import { KINDS } from "./model.ts";

export function kindLegend(palette: Palette, kinds: ReadonlySet<number>): HTMLElement[] {
  return [...kinds].sort((a, b) => a - b).map((kind) => entry(palette.kinds[kind]!, KINDS[kind]!, kind === KIND_HATCHED));
}

export function changeLegend(palette: Palette, word: string): HTMLElement[] {
  const steps = palette.changes;
  const labels = ["gone", `less ${word}`, "unchanged", `more ${word}`, "new"];
  return labels.map((label, at) => entry(steps[Math.round((at * (steps.length - 1)) / (labels.length - 1))]!, label, false));
}

function entry(colour: string, label: string, isHatched: boolean): HTMLElement {
  const patch = element("span", { class: isHatched ? "fg-patch fg-hatched" : "fg-patch", "aria-hidden": "true" });
  patch.style.backgroundColor = colour;
  return element("li", {}, patch, label);
}
