// The details box shows the selected frame below the picture, with a button for each action. Keyboard and touch users
// need this box, because they have no tooltip.
import { button, element } from "./dom.ts";
import { type Facts, factLines } from "./facts.ts";
import type { Command } from "./keyboard.ts";

export function createDetails(run: (command: Command) => void) {
  const facts = element("div", { class: "fg-facts" });
  const actions = element(
    "div",
    { class: "fg-actions" },
    button("Copy name", "Key c", () => run("copy-name")),
    button("Copy stack", "Key C", () => run("copy-stack")),
    button("Callers and callees", "Key s", () => run("around")),
    button("Hide", "Key h", () => run("hide")),
  );
  const box = element("section", { class: "fg-details", "aria-label": "Selected frame" }, facts, actions);

  function show(shown: Facts, isRoot: boolean): void {
    facts.replaceChildren(...factLines(shown));
    actions.hidden = isRoot;
  }

  return { box, show };
}
