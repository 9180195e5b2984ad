// Stage is the canvas with its scroll bar, pointer and wheel. The canvas is as large as the visible part and stays in place while a
// spacer scrolls: browsers limit the height of a canvas, and stacks may be thousands of frames deep.
import { element } from "./dom.ts";
import { draw, ROW_HEIGHT, type Scene, type Span } from "./draw.ts";
import type { FrameColours } from "./fills.ts";
import { ancestors, firstEndingAfter, frameAt, isCaller, type Layout, rowOf } from "./layout.ts";
import type { Names } from "./names.ts";
import { revealing, shifted, zoomAt } from "./zoom.ts";

/** A pointer that moved less far has clicked, not dragged. */
const MIN_DRAG_PX = 4;
/** Rows shown before the first scroll bar appears, if the window is high enough. */
const MAX_ROWS = 36;
const WHEEL_ZOOM = 1.002;
const PX_PER_WHEEL_LINE = 16;

export interface StageEvents {
  clicked(node: number, event: MouseEvent): void;
  hovered(node: number, event: PointerEvent): void;
  key(event: KeyboardEvent): void;
  zoomChanged(): void;
}

export class Stage {
  readonly canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "flame graph" });
  private readonly space = element("div", { class: "fg-space" }, this.canvas);
  readonly box = element("div", { class: "fg-scroll" }, this.space);
  private readonly context = this.canvas.getContext("2d", { alpha: false })!;
  private readonly observer = new ResizeObserver(() => this.resize());
  private frame = 0;
  private drag: { x: number; from: Span; moved: boolean; above: boolean } | null = null;
  private scene: Scene | null = null;
  /** The frame that fills the width. */
  zoomed = 0;

  constructor(private readonly events: StageEvents) {
    this.observer.observe(this.box);
    this.box.addEventListener("scroll", () => this.redraw());
    const { canvas } = this;
    canvas.addEventListener("keydown", (event) => this.events.key(event));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.dragStart(event));
    canvas.addEventListener("pointermove", (event) => this.pointerMove(event));
    canvas.addEventListener("pointerleave", (event) => this.hover(-1, event));
    canvas.addEventListener("click", (event) => {
      if (!this.drag?.moved) this.events.clicked(this.nodeAt(event), event);
      this.drag = null;
    });
    canvas.addEventListener("contextmenu", (event) => {
      event.preventDefault();
      this.events.clicked(this.nodeAt(event), event);
    });
  }

  get context2d(): CanvasRenderingContext2D {
    return this.context;
  }

  /** Shows another tree from its root. */
  show(layout: Layout, names: Names, rootLabel: string, colours: FrameColours): void {
    const whole = { low: 0, high: layout.width[0]! };
    this.scene = {
      layout, names, rootLabel, colours,
      below: whole, above: whole,
      scroll: 0, width: 0, height: 0,
      isMatch: null, selected: -1, hovered: -1,
    };
    this.zoomed = 0;
    this.box.style.height = `${Math.min(layout.rows.length, MAX_ROWS) * ROW_HEIGHT}px`;
    this.fitSpace();
    this.resize();
    if (layout.rootRow > 0) this.box.scrollTop = layout.rootRow * ROW_HEIGHT - this.box.clientHeight / 2;
    else this.box.scrollTop = 0;
  }

  /** Replaces colours or matches without moving the picture. */
  update(part: Partial<Pick<Scene, "colours" | "isMatch" | "selected">>): void {
    if (this.scene) Object.assign(this.scene, part);
    this.redraw();
  }

  get selected(): number {
    return this.scene?.selected ?? -1;
  }

  zoomTo(node: number): void {
    const { scene } = this;
    if (!scene) return;
    const whole = this.whole(scene);
    scene.below = scene.above = whole;
    const span = { low: scene.layout.start[node]!, high: scene.layout.start[node]! + scene.layout.width[node]! };
    if (isCaller(scene.layout, node)) scene.above = span;
    else scene.below = span;
    this.zoomed = node;
    this.zoomEnded();
    this.reveal(node);
  }

  /** Enlarges around the selected frame, or the middle. */
  zoomBy(factor: number): void {
    const { scene } = this;
    if (!scene) return;
    const { layout, selected } = scene;
    const above = selected >= 0 && isCaller(layout, selected);
    const span = above ? scene.above : scene.below;
    const middle = selected < 0 ? (span.low + span.high) / 2 : layout.start[selected]! + layout.width[selected]! / 2;
    this.setSpan(above, zoomAt(span, this.whole(scene), Math.min(span.high, Math.max(span.low, middle)), factor));
  }

  /** Scrolls and shifts so that the frame is visible. */
  reveal(node: number): void {
    const { scene, box } = this;
    if (!scene) return;
    const { layout } = scene;
    const part = { low: layout.start[node]!, high: layout.start[node]! + layout.width[node]! };
    const above = isCaller(layout, node);
    const span = above ? scene.above : scene.below;
    const moved = revealing(span, this.whole(scene), part);
    if (moved !== span) this.setSpan(above, moved);
    const top = rowOf(layout, node) * ROW_HEIGHT;
    if (top < box.scrollTop) box.scrollTop = top - ROW_HEIGHT;
    if (top + ROW_HEIGHT > box.scrollTop + box.clientHeight) box.scrollTop = top + 2 * ROW_HEIGHT - box.clientHeight;
    this.redraw();
  }

  scrollPages(pages: number): void {
    this.box.scrollTop += pages * (this.box.clientHeight - ROW_HEIGHT);
  }

  redraw(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  destroy(): void {
    this.observer.disconnect();
    cancelAnimationFrame(this.frame);
  }

  private paint(): void {
    const { scene } = this;
    if (!scene || scene.width === 0 || scene.layout.width[0]! <= 0) return;
    scene.scroll = this.box.scrollTop;
    draw(this.context, scene, window.devicePixelRatio || 1);
  }

  private whole(scene: Scene): Span {
    return { low: 0, high: scene.layout.width[0]! };
  }

  private setSpan(above: boolean, span: Span): void {
    const { scene } = this;
    if (!scene) return;
    if (above) scene.above = span;
    else scene.below = span;
    const holds = (node: number) =>
      isCaller(scene.layout, node) === above &&
      scene.layout.start[node]! <= span.low && scene.layout.start[node]! + scene.layout.width[node]! >= span.high;
    this.zoomed = ancestors(scene.layout.tree, this.zoomed).reverse().find(holds) ?? 0;
    this.zoomEnded();
  }

  private zoomEnded(): void {
    this.fitSpace();
    this.events.zoomChanged();
    this.redraw();
  }

  /** Makes the picture as high as the deepest visible stack. */
  private fitSpace(): void {
    const { scene } = this;
    if (!scene) return;
    const { rows, rootRow } = scene.layout;
    const isVisible = (row: Int32Array) => {
      const node = row[firstEndingAfter(scene.layout, row, scene.below.low)];
      return node !== undefined && scene.layout.start[node]! < scene.below.high;
    };
    let end = rootRow + 1;
    while (end < rows.length && isVisible(rows[end]!)) end++;
    this.space.style.height = `${end * ROW_HEIGHT}px`;
  }

  private resize(): void {
    const { scene, canvas, box } = this;
    if (!scene) return;
    const ratio = window.devicePixelRatio || 1;
    scene.width = box.clientWidth;
    scene.height = box.clientHeight;
    canvas.width = Math.round(scene.width * ratio);
    canvas.height = Math.round(scene.height * ratio);
    canvas.style.width = `${scene.width}px`;
    canvas.style.height = `${scene.height}px`;
    // Setting the size clears the canvas: it is painted before the browser shows it.
    this.paint();
  }

  private nodeAt(event: MouseEvent): number {
    const at = this.position(event);
    return at && this.scene ? frameAt(this.scene.layout, at.row, at.x) : -1;
  }

  private position(event: MouseEvent): { row: number; x: number } | null {
    const { scene } = this;
    if (!scene || scene.width === 0) return null;
    const rectangle = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - rectangle.top + this.box.scrollTop) / ROW_HEIGHT);
    const span = row < scene.layout.rootRow ? scene.above : scene.below;
    const x = span.low + ((event.clientX - rectangle.left) / scene.width) * (span.high - span.low);
    return { row, x };
  }

  private hover(node: number, event: PointerEvent): void {
    if (this.scene && this.scene.hovered !== node) {
      this.scene.hovered = node;
      this.redraw();
    }
    this.events.hovered(node, event);
  }

  private wheel(event: WheelEvent): void {
    const at = this.position(event);
    const { scene } = this;
    if (!at || !scene) return;
    const unit = event.deltaMode === 1 ? PX_PER_WHEEL_LINE : 1;
    const above = at.row < scene.layout.rootRow;
    const span = above ? scene.above : scene.below;
    const sideways = event.shiftKey && event.deltaX === 0 ? event.deltaY : event.deltaX;
    if (event.ctrlKey || event.metaKey || event.altKey) {
      this.setSpan(above, zoomAt(span, this.whole(scene), at.x, WHEEL_ZOOM ** (-event.deltaY * unit)));
    } else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
      this.setSpan(above, shifted(span, this.whole(scene), ((sideways * unit) / scene.width) * (span.high - span.low)));
    } else {
      return; // The browser scrolls.
    }
    event.preventDefault();
  }

  private dragStart(event: PointerEvent): void {
    const at = this.position(event);
    const { scene } = this;
    if (!at || !scene || event.button !== 0) return;
    const above = at.row < scene.layout.rootRow;
    this.drag = { x: event.clientX, from: above ? scene.above : scene.below, moved: false, above };
  }

  private pointerMove(event: PointerEvent): void {
    const { drag, scene } = this;
    if (!scene) return;
    if (!drag || !(event.buttons & 1) || event.pointerType === "touch") {
      this.hover(this.nodeAt(event), event);
      return;
    }
    const distance = event.clientX - drag.x;
    if (Math.abs(distance) < MIN_DRAG_PX && !drag.moved) return;
    drag.moved = true;
    const { low, high } = drag.from;
    this.setSpan(drag.above, shifted(drag.from, this.whole(scene), (-distance / scene.width) * (high - low)));
  }
}
