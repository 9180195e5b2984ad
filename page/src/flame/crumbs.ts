// Crumbs shows the way from the root to the frame that fills the width. Of a long way both ends are shown.
import { button, element } from "./dom.ts";

const MAX_CRUMBS = 8;
const MAX_CHARS = 40;

export function fillCrumbs(list: HTMLElement, path: readonly number[], label: (node: number) => string, zoom: (node: number) => void): void {
  const crumb = (node: number, isLast: boolean) => {
    const name = label(node);
    const short = name.length > MAX_CHARS ? `${name.slice(0, MAX_CHARS - 1)}…` : name;
    const press = button(short, name, () => zoom(node));
    if (isLast) press.setAttribute("aria-current", "true");
    return element("li", {}, press);
  };
  const items = path.map((node, at) => () => crumb(node, at === path.length - 1));
  const omitted = path.length - MAX_CRUMBS;
  if (omitted > 0) {
    items.splice(2, omitted, () => element("li", {}, `… ${omitted} more …`));
  }
  list.replaceChildren(...items.map((make) => make()));
}
