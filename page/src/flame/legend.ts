// Legend of the fills in use.
import { KIND_HATCHED, type Palette } from "./colours.ts";
import { element } from "./dom.ts";
import { KINDS } from "./model.ts";
import type { Names } from "./names.ts";
import type { Tree } from "./tree.ts";

/** Words for five of the fills that a comparison uses: the first, the middle and the last fill, and the two between
 * them. */
const CHANGES = ["gone", "less", "unchanged", "more", "new"];

export function legendOf(palette: Palette, tree: Tree, names: Names): HTMLElement[] {
  if (tree.old) {
    const step = (palette.changeFills.length - 1) / (CHANGES.length - 1);
    return CHANGES.map((label, at) => entry(palette.changeFills[at * step]!, label, false));
  }
  const kinds = new Set(Array.from(new Set(tree.name), (name) => names.kind[name] ?? -1));
  kinds.delete(-1);
  return [...kinds].sort().map((kind) => entry(palette.kinds[kind]!, KINDS[kind]!, kind === KIND_HATCHED));
}

function entry(colour: string, label: string, isHatched: boolean): HTMLElement {
  const patch = element("span", { class: isHatched ? "fg-patch fg-hatched" : "fg-patch" });
  patch.style.backgroundColor = colour;
  return element("li", {}, patch, label);
}
