// The controls are the bar above the picture, which selects the view, the order, the split and the search.
import { button, element } from "./dom.ts";
import { shorten } from "./format.ts";
import { type Source, type SplitKey, trackWord } from "./model.ts";
import type { Order } from "./order.ts";

export interface ControlEvents {
  view(id: string): void;
  order(kind: Order["kind"]): void;
  split(key: SplitKey | null): void;
  width(isOld: boolean): void;
  search(text: string): void;
  step(by: 1 | -1): void;
  /** Moves the focus from the search box to the picture. */
  leave(): void;
  reset(): void;
}

const MAX_OPTION_CHARS = 40;

export function createControls(sources: readonly Source[], isDiff: boolean, events: ControlEvents) {
  const presses = sources.map((view) => {
    const press = button(view.label, "", () => events.view(view.id));
    press.dataset["view"] = view.id;
    return press;
  });
  const views = element("div", { class: "fg-views", role: "group", "aria-label": "View" }, ...presses);
  const order = select("Order", (value) => events.order(value as Order["kind"]));
  const split = select("Split", (value) => events.split((value || null) as SplitKey | null));
  const width = select("Width", (value) => events.width(value === "old"));
  const input = element("input", {
    type: "search",
    placeholder: "Search: regular expression",
    "aria-label": "Search",
    input: () => events.search(input.value),
    keydown,
  });
  const found = element("span", { class: "fg-found" });
  const steps = element(
    "span",
    { class: "fg-steps" },
    button("‹", "Previous: key N", () => events.step(-1)),
    button("›", "Next: key n", () => events.step(1)),
  );
  const search = element("div", { class: "fg-search", role: "search" }, input, steps, found);
  const reset = button("Show all", "Key Escape", events.reset);
  const box = element("div", { class: "fg-bar" }, views, order, split, width, search, reset);
  views.hidden = sources.length < 2;
  width.hidden = !isDiff;
  fill(width, [["new", "width: this run"], ["old", "width: the other run"]], "new");

  function keydown(event: KeyboardEvent): void {
    if (event.key === "Enter") events.step(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") events.leave();
    else return;
    event.preventDefault();
  }

  /** Shows the state of the picture. `root` is the label of its root. */
  function update(view: string, state: Order, root: string, splits: readonly SplitKey[]): void {
    for (const press of presses) press.setAttribute("aria-pressed", String(press.dataset["view"] === view));
    const orders: [string, string][] = [["root", "from the root"], ["leaves", "inverted: from the leaves"]];
    if (state.kind === "around") orders.push(["around", `callers and callees of ${shorten(root, MAX_OPTION_CHARS)}`]);
    fill(order, orders, state.kind);
    const keys = splits.map((key): [string, string] => [key, `split by ${trackWord(key)}`]);
    fill(split, [["", "merged"], ...keys], state.split ?? "");
    split.hidden = splits.length === 0;
  }

  function showMatches(text: string, canStep: boolean): void {
    found.textContent = text;
    steps.hidden = !canStep;
  }

  return { box, input, update, showMatches };
}

function select(label: string, changed: (value: string) => void): HTMLSelectElement {
  const made = element("select", { "aria-label": label, change: () => changed(made.value) });
  return made;
}

function fill(list: HTMLSelectElement, options: [string, string][], chosen: string): void {
  list.replaceChildren(...options.map(([value, label]) => element("option", { value }, label)));
  list.value = chosen;
}
