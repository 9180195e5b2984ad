// Details shows the selected frame below the picture, with what can be done with it: for keyboards and touch, which have no tooltip.
import { button, element } from "./dom.ts";
import type { Facts } from "./facts.ts";
import { lines } from "./tooltip.ts";

export interface FrameActions {
  copyName(): void;
  copyStack(): void;
  hide(): void;
  around(): void;
}

export class Details {
  private readonly facts = element("div", { class: "fg-facts" });
  private readonly buttons: HTMLElement;
  readonly box: HTMLElement;

  constructor(actions: FrameActions) {
    this.buttons = element(
      "div",
      { class: "fg-actions" },
      button("Copy name", "Key c", actions.copyName),
      button("Copy stack", "Key C", actions.copyStack),
      button("Callers and callees", "Key s", actions.around),
      button("Hide", "Key h: leaves this frame and all below it out", actions.hide),
    );
    this.box = element("section", { class: "fg-details", "aria-label": "Selected frame" }, this.facts, this.buttons);
  }

  show(facts: Facts, isRoot: boolean): void {
    this.facts.replaceChildren(element("strong", {}, facts.name), ...lines(facts));
    this.buttons.hidden = isRoot;
  }
}
