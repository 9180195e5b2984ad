// The viewer connects all parts of the flame graph. Its state is a view, an order, hidden subtrees, a zoom, a selection
// and a search. A change of the view, the order or the hidden subtrees makes a new tree. Any other change only paints
// again.
import { DARK, LIGHT } from "./colours.ts";
import { createControls } from "./controls.ts";
import { fillCrumbs } from "./crumbs.ts";
import { createDetails } from "./details.ts";
import { button, copyText, element } from "./dom.ts";
import { type Facts, factsOf, sentence } from "./facts.ts";
import { frameColours } from "./fills.ts";
import { percent } from "./format.ts";
import { type Command, commandOf, HELP } from "./keyboard.ts";
import { isCaller, type Layout, layOut, neighbour, rowOf } from "./layout.ts";
import { legendOf } from "./legend.ts";
import { type FlameModel, SPLIT_KEYS, type Track } from "./model.ts";
import { keepRows, type Order, type Subtree, sumOf, treeOf } from "./order.ts";
import { compile, find, type Matches } from "./search.ts";
import { sourcesOf } from "./source.ts";
import { createStage } from "./stage.ts";
import { isDark, watchTheme } from "./theme.ts";
import { createTooltip } from "./tooltip.ts";
import { ancestors, nodeAt, pathOf } from "./tree.ts";
import { trackValues } from "./weights.ts";

export interface FlameOptions {
  view?: string;
  /** The run to compare with. Widths of frames show `model`, and colours show the change. */
  against?: FlameModel;
  onSelect?(name: string): void;
}

export interface FlameHandle {
  show(view: string): void;
  filterTracks(keep: (track: Track) => boolean): void;
  search(text: string): void;
  reset(): void;
  destroy(): void;
}

export function mountFlame(host: HTMLElement, model: FlameModel, options: FlameOptions = {}): FlameHandle {
  const { names, views } = sourcesOf(model, options.against);
  let source = views.find((view) => view.id === options.view) ?? views[0]!;
  let order: Order = { kind: "root", name: -1, split: null };
  let keepTrack: (track: Track) => boolean = () => true;
  let hidden: Subtree[] = [];
  let isOldWidth = false;
  let layout: Layout | undefined;
  /** Sum of the values of all visible rows. */
  let whole = 0;
  let searched = "";
  let matches: Matches | null = null;
  let matchIndex = -1;

  const tooltip = createTooltip();
  const stage = createStage({ clicked, hovered, key, zoomChanged: showCrumbs });
  const details = createDetails(run);
  const controls = createControls(views, options.against !== undefined, {
    view: show,
    order: (kind) => rebuild({ kind }),
    split: (split) => rebuild({ split }),
    width(isOld) {
      isOldWidth = isOld;
      rebuild();
    },
    search,
    step: stepMatch,
    leave: () => (searched ? search("") : stage.canvas.focus()),
    reset,
  });
  const crumbs = element("ol");
  const legend = element("ul", { class: "fg-legend", "aria-label": "Colours" });
  const message = element("p", { class: "fg-message" });
  const hiddenNote = element("p", { class: "fg-message" });
  const spoken = element("p", { class: "fg-offscreen", role: "status" });
  const root = element(
    "div",
    { class: "fg" },
    controls.box,
    element("nav", { class: "fg-crumbs", "aria-label": "Zoom" }, crumbs),
    message,
    hiddenNote,
    stage.box,
    details.box,
    legend,
    element("p", { class: "fg-kind" }, HELP),
    spoken,
    tooltip.box,
  );
  host.append(root);
  const lifetime = new AbortController();
  watchTheme(recolour, lifetime.signal);
  rebuild();

  // The tree

  function rebuild(change: Partial<Order> = {}): void {
    const zoomed = layout && !change.kind ? pathOf(layout.tree, stage.zoomed()) : [];
    const splits = SPLIT_KEYS.filter((key) => trackValues(source, key).size > 1);
    order = { ...order, ...change };
    if (order.split && !splits.includes(order.split)) order.split = null;
    const keep = keptRows();
    const tree = treeOf(source, names, order, keep);
    layout = layOut(tree, (isOldWidth && tree.old) || tree.total);
    whole = sumOf(source, keep);
    const isEmpty = layout.width[0]! <= 0;
    stage.box.hidden = isEmpty;
    stage.show(layout, names, rootLabel(), colours());
    stage.canvas.setAttribute("aria-label", `Flame graph: ${rootLabel()}`);
    controls.update(source.id, order, rootLabel(), splits);
    showLegend();
    findMatches();
    zoomAndSelect(nodeAt(tree, zoomed));
    if (isEmpty) message.textContent = "Nothing to draw: all values are 0.";
  }

  /** Returns the rows that neither the filter of tracks nor a hidden subtree removes. */
  function keptRows(): Uint8Array {
    const subtrees = hidden.filter((subtree) => subtree.view === source.id);
    const all = sumOf(source, keepRows(source, names, keepTrack, []));
    const keep = keepRows(source, names, keepTrack, subtrees);
    const share = percent(all - sumOf(source, keep), all);
    const again = button("Show hidden", "", () => {
      hidden = hidden.filter((subtree) => !subtrees.includes(subtree));
      rebuild();
    });
    hiddenNote.replaceChildren(...(subtrees.length ? [`Hidden subtrees: ${subtrees.length}, ${share} of all. `, again] : []));
    return keep;
  }

  function rootLabel(): string {
    return order.kind === "around" ? names.text[order.name]! : `all ${source.label}`;
  }

  function labelOf(node: number): string {
    return names.text[layout!.tree.name[node]!] ?? rootLabel();
  }

  // The functions that other modules call

  function show(view: string): void {
    source = views.find((candidate) => candidate.id === view) ?? source;
    rebuild({ kind: order.kind === "around" ? "root" : order.kind });
  }

  function filterTracks(keep: (track: Track) => boolean): void {
    keepTrack = keep;
    rebuild();
  }

  function search(text: string): void {
    if (controls.input.value !== text) controls.input.value = text;
    searched = text;
    findMatches();
  }

  function reset(): void {
    zoomAndSelect(0);
  }

  function destroy(): void {
    lifetime.abort();
    stage.destroy();
    root.remove();
  }

  // Search

  function findMatches(): void {
    const pattern = searched ? compile(searched) : null;
    matchIndex = -1;
    matches = pattern && find(layout!, names, pattern);
    const places = matches?.topmost.length ?? 0;
    const share = places && `${percent(matches!.sum, layout!.width[0]!)} in ${places} ${places === 1 ? "place" : "places"}`;
    const words = share || (matches ? "no match" : "");
    controls.showMatches(words, places > 0);
    const problem = pattern?.problem;
    message.textContent = problem ? `Not a regular expression (${problem}): searched as text.` : "";
    spoken.textContent = words;
    stage.update({ isMatch: matches && matches.isMatch });
  }

  function stepMatch(by: 1 | -1): void {
    const places = matches?.topmost ?? [];
    if (!places.length) return;
    const from = matchIndex < 0 && by < 0 ? 0 : matchIndex;
    matchIndex = (from + by + places.length) % places.length;
    moveTo(places[matchIndex]!);
  }

  // Pointer and keys

  function clicked(node: number, event: MouseEvent): void {
    tooltip.hide();
    if (node < 0) return;
    select(node);
    if (event.altKey) run("hide");
    else stage.zoomTo(node);
  }

  function hovered(node: number, event: PointerEvent): void {
    if (node < 0) tooltip.hide();
    else tooltip.show(facts(node), event.clientX, event.clientY);
  }

  function key(event: KeyboardEvent): void {
    const command = commandOf(event);
    if (!command) return;
    event.preventDefault();
    tooltip.hide();
    run(command);
  }

  function run(command: Command): void {
    const selected = stage.selected();
    switch (command) {
      case "zoom": return stage.zoomTo(selected);
      case "reset": return reset();
      case "in": return stage.zoomBy(2);
      case "out": return stage.zoomBy(0.5);
      case "search": return controls.input.select();
      case "next": return stepMatch(1);
      case "previous": return stepMatch(-1);
      case "root": return moveTo(0);
      case "hide": return hide(selected);
      case "around": return showAround(layout!.tree.name[selected]!);
      case "copy-name": return copy(labelOf(selected));
      case "copy-stack": return copy(stackOf(selected));
      default: return moveTo(neighbour(layout!, selected, command));
    }
  }

  function moveTo(node: number): void {
    select(node);
    stage.reveal(node);
  }

  function zoomAndSelect(node: number): void {
    stage.zoomTo(node);
    select(node);
  }

  function select(node: number): void {
    stage.update({ selected: node });
    details.show(facts(node), node === 0);
    if (!searched || node) spoken.textContent = sentence(facts(node), rowOf(layout!, node));
    if (node) options.onSelect?.(labelOf(node));
  }

  function facts(node: number): Facts {
    return factsOf(layout!.tree, node, names, rootLabel(), source, whole);
  }

  function showAround(name: number): void {
    if (name >= 0) rebuild({ kind: "around", name });
  }

  function hide(node: number): void {
    if (!node) return;
    hidden.push({ view: source.id, order, path: pathOf(layout!.tree, node), isCaller: isCaller(layout!, node) });
    rebuild();
  }

  /** Returns the names of the frames from the outermost to the innermost, one per line. */
  function stackOf(node: number): string {
    const path = pathOf(layout!.tree, node).map((name) => names.text[name]!);
    return (order.kind === "leaves" || isCaller(layout!, node) ? path.reverse() : path).join("\n");
  }

  function copy(text: string): void {
    void copyText(text).then((worked) => {
      const result = worked ? "Copied." : "Copying is forbidden here: select the name below.";
      message.textContent = spoken.textContent = result;
    });
  }

  // Around the picture

  function showCrumbs(): void {
    fillCrumbs(crumbs, ancestors(layout!.tree, stage.zoomed()), labelOf, zoomAndSelect);
  }

  function palette() {
    return isDark() ? DARK : LIGHT;
  }

  function colours() {
    return frameColours(stage.context, palette(), names, layout!.tree);
  }

  function recolour(): void {
    stage.update({ colours: colours() });
    showLegend();
  }

  function showLegend(): void {
    legend.replaceChildren(...legendOf(palette(), layout!.tree, names));
  }

  return { show, filterTracks, search, reset, destroy };
}
