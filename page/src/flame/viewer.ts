// Viewer joins the parts: the state is a view, an order, a zoom, a selection, a search and hidden subtrees. A change of the first two
// or the last makes another tree; the others only paint again.
import { DARK, LIGHT } from "./colours.ts";
import { Controls } from "./controls.ts";
import { fillCrumbs } from "./crumbs.ts";
import { Details } from "./details.ts";
import { copyText, element, button } from "./dom.ts";
import { factsOf, sentence, type Facts } from "./facts.ts";
import { frameColours } from "./fills.ts";
import { percent } from "./format.ts";
import { type Command, commandOf, HELP } from "./keyboard.ts";
import { ancestors, isCaller, type Layout, layOut, neighbour, rowOf } from "./layout.ts";
import { changeLegend, kindLegend } from "./legend.ts";
import { type FlameModel, KIND_ROOT, type Source, SPLIT_KEYS, type Track } from "./model.ts";
import { type Order, removeRows, type Subtree, treeOf } from "./order.ts";
import { compile, find, type Matches } from "./search.ts";
import { type Sources, sourcesOf } from "./source.ts";
import { Stage } from "./stage.ts";
import { isDark, watchTheme } from "./theme.ts";
import { Tooltip } from "./tooltip.ts";
import { nodeAt, pathOf } from "./tree.ts";
import { trackValues } from "./weights.ts";

export interface FlameOptions {
  view?: string;
  /** The run to compare with: widths show `model`, colours the change. */
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
  return new Viewer(host, sourcesOf(model, options.against), options);
}

class Viewer implements FlameHandle {
  private readonly controls: Controls;
  private readonly stage: Stage;
  private readonly details: Details;
  private readonly tooltip = new Tooltip();
  private readonly crumbs = element("ol", {});
  private readonly legend = element("ul", { class: "fg-legend", "aria-label": "Colours" });
  private readonly message = element("p", { class: "fg-message" });
  private readonly hiddenNote = element("p", { class: "fg-message", hidden: true });
  private readonly spoken = element("p", { class: "fg-offscreen", role: "status" });
  private readonly root: HTMLElement;
  private readonly unwatch: () => void;

  private source: Source;
  private order: Order = { kind: "root", name: -1, split: null };
  private keepTrack: (track: Track) => boolean = () => true;
  private hidden: Subtree[] = [];
  private isOldWidth = false;
  private layout!: Layout;
  /** Sum of all rows that are not hidden. */
  private whole = 0;
  private text = "";
  private matches: Matches | null = null;
  private matchIndex = -1;

  constructor(host: HTMLElement, private readonly sources: Sources, private readonly options: FlameOptions) {
    this.source = sources.views.find((view) => view.id === options.view) ?? sources.views[0]!;
    this.stage = new Stage({
      clicked: (node, event) => this.clicked(node, event),
      hovered: (node, event) => this.hovered(node, event),
      key: (event) => this.key(event),
      zoomChanged: () => this.showCrumbs(),
    });
    this.controls = new Controls(sources.views, options.against !== undefined, {
      view: (id) => this.show(id),
      order: (kind) => this.setOrder({ ...this.order, kind }),
      split: (split) => this.setOrder({ ...this.order, split }),
      width: (isOld) => this.setWidth(isOld),
      search: (text) => this.search(text),
      step: (by) => this.stepMatch(by),
      leave: () => this.leaveSearch(),
      reset: () => this.reset(),
    });
    this.details = new Details({
      copyName: () => this.run("copy-name"),
      copyStack: () => this.run("copy-stack"),
      hide: () => this.run("hide"),
      around: () => this.run("around"),
    });
    this.root = element(
      "div",
      { class: "fg" },
      this.controls.box,
      element("nav", { class: "fg-crumbs", "aria-label": "Zoom" }, this.crumbs),
      this.message,
      this.hiddenNote,
      this.stage.box,
      this.details.box,
      this.legend,
      element("p", { class: "fg-help" }, HELP),
      this.spoken,
      this.tooltip.box,
    );
    host.append(this.root);
    this.unwatch = watchTheme(() => this.recolour());
    this.rebuild();
  }

  show(view: string): void {
    const source = this.sources.views.find((candidate) => candidate.id === view);
    if (!source) return;
    this.source = source;
    this.setOrder({ kind: this.order.kind === "around" ? "root" : this.order.kind, name: -1, split: this.order.split });
  }

  filterTracks(keep: (track: Track) => boolean): void {
    this.keepTrack = keep;
    this.rebuild();
  }

  search(text: string): void {
    if (this.controls.input.value !== text) this.controls.input.value = text;
    this.text = text;
    this.findMatches();
  }

  reset(): void {
    this.stage.zoomTo(0);
    this.select(0);
  }

  destroy(): void {
    this.unwatch();
    this.stage.destroy();
    this.root.remove();
  }

  // The tree

  private setOrder(order: Order): void {
    this.order = order;
    this.rebuild();
  }

  private setWidth(isOld: boolean): void {
    this.isOldWidth = isOld;
    this.rebuild();
  }

  private rebuild(): void {
    const { source, order } = this;
    const splits = SPLIT_KEYS.filter((key) => trackValues(source, key).size > 1);
    if (order.split && !splits.includes(order.split)) order.split = null;
    const zoomed = this.layout && order.kind !== "around" ? pathOf(this.layout.tree, this.stage.zoomed) : [];
    const keep = this.keptRows();
    const tree = treeOf(source, this.sources.names, order, keep);
    this.layout = layOut(tree, this.isOldWidth && tree.old ? tree.old : tree.total);
    this.whole = sumOf(source, keep);
    const isEmpty = this.layout.width[0]! <= 0;
    this.stage.box.hidden = isEmpty;
    const palette = isDark() ? DARK : LIGHT;
    const colours = frameColours(this.stage.context2d, palette, this.sources.names, tree);
    this.stage.show(this.layout, this.sources.names, this.rootLabel(), colours);
    const name = order.kind === "around" ? this.sources.names.text[order.name]! : null;
    this.controls.update(source.id, order, name, splits);
    this.stage.canvas.setAttribute("aria-label", `Flame graph: ${this.rootLabel()}. ${HELP}`);
    this.showLegend();
    this.findMatches();
    this.stage.zoomTo(zoomed.length ? nodeAt(tree, zoomed, false) : 0);
    this.select(this.stage.zoomed);
    if (isEmpty) this.message.textContent = "Nothing to draw here: no frame has a value.";
  }

  /** Rows that neither the filter of tracks nor a hidden subtree removes; null for all. */
  private keptRows(): Uint8Array | null {
    const { source } = this;
    const keep = new Uint8Array(source.node.length);
    for (let row = 0; row < keep.length; row++) {
      const track = source.tracks[source.track[row]!];
      keep[row] = Number(!track || this.keepTrack(track));
    }
    const shown = sumOf(source, keep);
    const subtrees = this.hidden.filter((subtree) => subtree.view === source.id);
    for (const subtree of subtrees) removeRows(source, this.sources.names, subtree, keep);
    this.showHiddenNote(subtrees.length, shown, shown - sumOf(source, keep));
    return keep.includes(0) ? keep : null;
  }

  private rootLabel(): string {
    if (this.order.kind === "around") return this.sources.names.text[this.order.name]!;
    return `all ${this.source.label}`;
  }

  // Search

  private findMatches(): void {
    this.matchIndex = -1;
    const pattern = this.text === "" ? null : compile(this.text);
    this.matches = pattern && find(this.layout, this.sources.names, pattern);
    const { matches } = this;
    const places = matches?.topmost.length ?? 0;
    const share = matches ? `${percent(matches.sum, this.layout.width[0]!)} in ${places} ${places === 1 ? "place" : "places"}` : "";
    this.controls.showMatches(places || !matches ? share : "no match", places > 0);
    const problem = pattern?.problem;
    this.message.textContent = problem ? `Not a regular expression (${problem}): searched as text.` : "";
    this.spoken.textContent = share;
    this.stage.update({ isMatch: matches?.isMatch ?? null });
  }

  private stepMatch(by: 1 | -1): void {
    const places = this.matches?.topmost ?? [];
    if (places.length === 0) return;
    const start = this.matchIndex < 0 && by < 0 ? 0 : this.matchIndex;
    this.matchIndex = (start + by + places.length) % places.length;
    const node = places[this.matchIndex]!;
    this.select(node);
    this.stage.reveal(node);
  }

  private leaveSearch(): void {
    if (this.text !== "") this.search("");
    else this.stage.canvas.focus();
  }

  // Pointer and keys

  private clicked(node: number, event: MouseEvent): void {
    this.tooltip.hide();
    if (node < 0) return;
    this.select(node);
    if (event.altKey) this.run("hide");
    else if (event.type === "click") this.stage.zoomTo(node);
  }

  private hovered(node: number, event: PointerEvent): void {
    if (node < 0) this.tooltip.hide();
    else this.tooltip.show(this.facts(node), event.clientX, event.clientY);
  }

  private key(event: KeyboardEvent): void {
    const command = commandOf(event);
    if (!command) return;
    event.preventDefault();
    this.tooltip.hide();
    this.run(command);
  }

  private run(command: Command): void {
    const { stage } = this;
    const selected = Math.max(stage.selected, 0);
    switch (command) {
      case "up": case "down": case "left": case "right": {
        const next = neighbour(this.layout, selected, command);
        this.select(next);
        return stage.reveal(next);
      }
      case "zoom": return stage.zoomTo(selected);
      case "reset": return this.reset();
      case "in": return stage.zoomBy(2);
      case "out": return stage.zoomBy(0.5);
      case "search": return this.controls.input.select();
      case "next": return this.stepMatch(1);
      case "previous": return this.stepMatch(-1);
      case "root": this.select(0); return stage.reveal(0);
      case "page-up": return stage.scrollPages(-1);
      case "page-down": return stage.scrollPages(1);
      case "hide": return this.hide(selected);
      case "around": return this.showAround(selected);
      case "copy-name": return this.copy(this.facts(selected).name);
      case "copy-stack": return this.copy(this.stackOf(selected));
    }
  }

  private select(node: number): void {
    const facts = this.facts(node);
    this.stage.update({ selected: node });
    this.details.show(facts, node === 0);
    this.spoken.textContent = sentence(facts, rowOf(this.layout, node));
    const name = this.layout.tree.name[node]!;
    if (name >= 0 && node > 0) this.options.onSelect?.(this.sources.names.text[name]!);
  }

  private facts(node: number): Facts {
    return factsOf(this.layout.tree, node, this.sources.names, this.rootLabel(), this.source.unit, this.whole);
  }

  private showAround(node: number): void {
    const name = this.layout.tree.name[node]!;
    if (name >= 0 && this.order.kind !== "around") this.setOrder({ ...this.order, kind: "around", name });
    else if (name >= 0 && name !== this.order.name) this.setOrder({ ...this.order, name });
  }

  private hide(node: number): void {
    if (node === 0) return;
    const { tree } = this.layout;
    const order = { ...this.order };
    this.hidden.push({ view: this.source.id, order, path: pathOf(tree, node), isCaller: isCaller(this.layout, node) });
    this.rebuild();
  }

  /** Frames from the outermost to the innermost, one per line. */
  private stackOf(node: number): string {
    const path = pathOf(this.layout.tree, node).map((name) => this.sources.names.text[name]!);
    const isReversed = this.order.kind === "leaves" || isCaller(this.layout, node);
    return (isReversed ? path.reverse() : path).join("\n");
  }

  private copy(text: string): void {
    void copyText(text).then((worked) => {
      const result = worked ? "Copied." : "This page may not copy: select the name below the picture.";
      this.message.textContent = result;
      this.spoken.textContent = result;
    });
  }

  // Around the picture

  private showCrumbs(): void {
    const { tree } = this.layout;
    const label = (node: number) => (tree.name[node]! < 0 ? this.rootLabel() : this.sources.names.text[tree.name[node]!]!);
    fillCrumbs(this.crumbs, ancestors(tree, this.stage.zoomed), label, (node) => {
      this.stage.zoomTo(node);
      this.select(node);
    });
  }

  private showHiddenNote(count: number, all: number, value: number): void {
    this.hiddenNote.hidden = count === 0;
    if (count === 0) return;
    const words = `${count} hidden ${count === 1 ? "subtree" : "subtrees"}, ${percent(value, all)} of all. `;
    const showAgain = button("Show hidden", "Show hidden subtrees again", () => {
      this.hidden = this.hidden.filter((subtree) => subtree.view !== this.source.id);
      this.rebuild();
    });
    this.hiddenNote.replaceChildren(words, showAgain);
  }

  private showLegend(): void {
    const palette = isDark() ? DARK : LIGHT;
    const { tree } = this.layout;
    if (tree.old) {
      this.legend.replaceChildren(...changeLegend(palette, this.source.unit === "ns" ? "time" : this.source.unit));
      return;
    }
    const kinds = new Set([...new Set(tree.name)].map((name) => (name < 0 ? KIND_ROOT : this.sources.names.kind[name]!)));
    this.legend.replaceChildren(...kindLegend(palette, kinds));
  }

  private recolour(): void {
    const colours = frameColours(this.stage.context2d, isDark() ? DARK : LIGHT, this.sources.names, this.layout.tree);
    this.stage.update({ colours });
    this.showLegend();
  }
}

function sumOf(source: Source, keep: Uint8Array | null): number {
  let sum = 0;
  for (let row = 0; row < source.value.length; row++) if (!keep || keep[row]) sum += source.value[row]!;
  return sum;
}
