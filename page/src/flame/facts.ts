// Facts about one frame, for the tooltip, the line below the picture, and screen readers.
import { element } from "./dom.ts";
import { change, exact, grouped, human, percent, signed } from "./format.ts";
import { KINDS, type Unit, type View } from "./model.ts";
import type { Names } from "./names.ts";
import type { Tree } from "./tree.ts";

export interface Facts {
  name: string;
  kind: string;
  place: string | null;
  /** Pairs of a label and a value. The most important pair is first. */
  numbers: [string, string][];
}

export function factsOf(tree: Tree, node: number, names: Names, rootLabel: string, view: View, whole: number): Facts {
  const { unit } = view;
  const name = tree.name[node]!;
  const total = tree.total[node]!;
  const count = tree.count[node]!;
  const parent = tree.parent[node]!;
  const numbers: [string, string][] = [["total", both(total, unit)]];
  if (tree.old) numbers.push(...comparison(total, tree.old[node]!, unit));
  if (count > 0) numbers.push(["count", [grouped(count), view.counts].filter(Boolean).join(" ")]);
  if (tree.oldCount?.[node]) numbers.push(["count before", grouped(tree.oldCount[node]!)]);
  if (count > 0 && unit !== "samples") numbers.push(["average", human(total / count, unit)]);
  if (parent >= 0) numbers.push(["of its parent", percent(total, tree.total[parent]!)]);
  numbers.push(["of all", percent(total, whole)]);
  return {
    name: names.text[name] ?? rootLabel,
    kind: KINDS[names.kind[name] ?? -1] ?? "",
    place: names.place[name] ?? null,
    numbers,
  };
}

function comparison(now: number, old: number, unit: Unit): [string, string][] {
  const difference = now === old ? "unchanged" : `${signed(now - old, unit)} (${change(now, old)})`;
  return [["before", both(old, unit)], ["change", difference]];
}

function both(value: number, unit: Unit): string {
  const [short, long] = [human(value, unit), exact(value, unit)];
  return short === long ? long : `${short} (${long})`;
}

/** Returns the facts as a sentence for screen readers. */
export function sentence(facts: Facts, row: number): string {
  const numbers = facts.numbers.map(([label, value]) => (label.startsWith("of ") ? `${value} ${label}` : `${label} ${value}`));
  return [facts.name, facts.kind, facts.place, `row ${row}`, ...numbers].filter(Boolean).join(", ");
}

/** Returns name, kind, place and numbers as elements. */
export function factLines(facts: Facts): HTMLElement[] {
  const numbers = facts.numbers.flatMap(([label, value]) => [element("dt", {}, label), element("dd", {}, value)]);
  const where = element("div", { class: "fg-kind" }, [facts.kind, facts.place].filter(Boolean).join(" · "));
  return [element("strong", {}, facts.name), where, element("dl", {}, ...numbers)];
}
