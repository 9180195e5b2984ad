// Tooltip with the facts of the frame under the pointer.
import { element } from "./dom.ts";
import type { Facts } from "./facts.ts";

const DISTANCE = 14;

export class Tooltip {
  readonly box = element("div", { class: "fg-tip", role: "tooltip", hidden: true });

  show(facts: Facts, x: number, y: number): void {
    this.box.replaceChildren(element("strong", {}, facts.name), ...lines(facts));
    this.box.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.box;
    const left = Math.min(x + DISTANCE, window.innerWidth - width - 4);
    const top = y + DISTANCE + height > window.innerHeight ? y - DISTANCE - height : y + DISTANCE;
    this.box.style.left = `${Math.max(4, left)}px`;
    this.box.style.top = `${Math.max(4, top)}px`;
  }

  hide(): void {
    this.box.hidden = true;
  }
}

/** Kind, place and numbers. */
export function lines(facts: Facts): HTMLElement[] {
  const numbers = facts.numbers.flatMap(([label, value]) => [element("dt", {}, label), element("dd", {}, value)]);
  const where = element("div", { class: "fg-kind" }, [facts.kind, facts.place].filter(Boolean).join(" · "));
  return [where, element("dl", {}, ...numbers)];
}
