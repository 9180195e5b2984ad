// Controls is the bar above the picture: views, order, split, search.
import { button, element } from "./dom.ts";
import type { Source, SplitKey } from "./model.ts";
import type { Order } from "./order.ts";

export interface ControlEvents {
  view(id: string): void;
  order(kind: "root" | "leaves"): void;
  split(key: SplitKey | null): void;
  width(isOld: boolean): void;
  search(text: string): void;
  step(by: 1 | -1): void;
  /** Leaves the search box for the picture. */
  leave(): void;
  reset(): void;
}

const SPLIT_WORDS: Record<SplitKey, string> = { rank: "rank", gpu: "GPU", stream: "stream", thread: "thread" };

export class Controls {
  private readonly views = element("div", { class: "fg-views", role: "group", "aria-label": "View" });
  private readonly order = element("select", { "aria-label": "Order of the stacks" });
  private readonly split = element("select", { "aria-label": "Split" });
  private readonly width = element("select", { "aria-label": "Width of the frames" });
  readonly input = element("input", {
    type: "search",
    placeholder: "Search: regular expression",
    "aria-label": "Search names, files and lines",
    spellcheck: "false",
    autocomplete: "off",
  });
  private readonly found = element("span", { class: "fg-found" });
  private readonly steps: HTMLElement;
  readonly box: HTMLElement;

  constructor(views: readonly Source[], isDiff: boolean, events: ControlEvents) {
    for (const view of views) {
      const press = button(view.label, `Show ${view.label}`, () => events.view(view.id));
      press.dataset["view"] = view.id;
      this.views.append(press);
    }
    this.width.append(option("new", "width: this run"), option("old", "width: the other run"));
    this.width.hidden = !isDiff;
    this.order.addEventListener("change", () => events.order(this.order.value as "root" | "leaves"));
    this.split.addEventListener("change", () => events.split((this.split.value || null) as SplitKey | null));
    this.width.addEventListener("change", () => events.width(this.width.value === "old"));
    this.input.addEventListener("input", () => events.search(this.input.value));
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") events.step(event.shiftKey ? -1 : 1);
      else if (event.key === "Escape") events.leave();
      else return;
      event.preventDefault();
    });
    this.steps = element(
      "span",
      { class: "fg-steps", hidden: true },
      button("‹", "Previous match: key N", () => events.step(-1)),
      button("›", "Next match: key n", () => events.step(1)),
    );
    const search = element("div", { class: "fg-search", role: "search" }, this.input, this.steps, this.found);
    const reset = button("Show all", "Key Escape: zooms out", () => events.reset());
    this.box = element("div", { class: "fg-bar" }, this.views, this.order, this.split, this.width, search, reset);
  }

  /** Shows the state of the picture. `around` is the name in the middle of it, or null. */
  update(view: string, order: Order, around: string | null, splits: readonly SplitKey[]): void {
    for (const press of this.views.querySelectorAll("button")) {
      press.setAttribute("aria-pressed", String(press.dataset["view"] === view));
    }
    this.views.hidden = this.views.childElementCount < 2;
    const orders = [option("root", "from the root"), option("leaves", "inverted: from the leaves")];
    if (around !== null) orders.push(option("around", `callers and callees of ${around.slice(0, 40)}`));
    this.order.replaceChildren(...orders);
    this.order.value = order.kind;
    const merged = option("", "merged");
    this.split.replaceChildren(merged, ...splits.map((key) => option(key, `split by ${SPLIT_WORDS[key]}`)));
    this.split.value = order.split ?? "";
    this.split.hidden = splits.length === 0;
  }

  showMatches(text: string, canStep: boolean): void {
    this.found.textContent = text;
    this.steps.hidden = !canStep;
  }
}

function option(value: string, label: string): HTMLOptionElement {
  return element("option", { value }, label);
}
