// The crumbs show the path from the root to the frame that fills the width. If the path is long, only its two ends are shown.
import { button, element } from "./dom.ts";
import { shorten } from "./format.ts";

const MAX_CRUMBS = 8;
const MAX_CHARS = 40;

export function fillCrumbs(list: HTMLElement, path: readonly number[], label: (node: number) => string, zoom: (node: number) => void): void {
  const crumb = (node: number) => {
    const name = label(node);
    const press = button(shorten(name, MAX_CHARS), name, () => zoom(node));
    if (node === path.at(-1)) press.setAttribute("aria-current", "true");
    return element("li", {}, press);
  };
  const omitted = path.length - MAX_CRUMBS;
  const shown = omitted > 0 ? [...path.slice(0, 2), -1, ...path.slice(omitted + 2)] : path;
  list.replaceChildren(...shown.map((node) => (node < 0 ? element("li", {}, `… ${omitted} more …`) : crumb(node))));
}
