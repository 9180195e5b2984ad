// Tooltip with the facts of the frame under the pointer.
import { element } from "./dom.ts";
import { type Facts, factLines } from "./facts.ts";

const DISTANCE = 14;
const MARGIN = 4;

export function createTooltip() {
  const box = element("div", { class: "fg-tip", role: "tooltip", hidden: true });

  function show(facts: Facts, x: number, y: number): void {
    box.replaceChildren(...factLines(facts));
    box.hidden = false;
    const left = Math.min(x + DISTANCE, innerWidth - box.offsetWidth - MARGIN);
    const below = y + DISTANCE;
    const top = below + box.offsetHeight > innerHeight ? y - DISTANCE - box.offsetHeight : below;
    box.style.left = `${Math.max(MARGIN, left)}px`;
    box.style.top = `${Math.max(MARGIN, top)}px`;
  }

  return { box, show, hide: () => (box.hidden = true) };
}
