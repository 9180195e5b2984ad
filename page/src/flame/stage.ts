// The stage is the canvas with its scroll bar, pointer and wheel. The canvas is only as large as the visible part and
// stays in place while a spacer scrolls. The reason is that browsers limit the height of a canvas, and stacks may be
// thousands of frames deep.
import { element } from "./dom.ts";
import { draw, ROW_HEIGHT, type Scene } from "./draw.ts";
import type { FrameColours } from "./fills.ts";
import { extentOf, frameAt, isCaller, type Layout, lastRowWithin, rowOf, type Span } from "./layout.ts";
import type { Names } from "./names.ts";
import { isPrinted } from "./theme.ts";
import { revealing, shifted, zoomAt } from "./zoom.ts";

/** Minimum distance of a drag in pixels. If the pointer moved less, the action is a click. */
const MIN_DRAG_PX = 4;
/** Maximum height of the picture in rows. A higher picture can be scrolled. */
const MAX_ROWS = 36;
/** Zoom factor per pixel of the mouse wheel. One notch of 100 pixels enlarges by 1.22. */
const WHEEL_ZOOM = 1.002;

export interface StageEvents {
  clicked(node: number, event: MouseEvent): void;
  /** Called when the pointer moves. `node` is -1 outside the frames. */
  hovered(node: number, event: PointerEvent): void;
  key(event: KeyboardEvent): void;
  zoomChanged(): void;
}

export type Stage = ReturnType<typeof createStage>;

export function createStage(events: StageEvents) {
  const canvas = element("canvas", { tabindex: "0", role: "application" });
  const space = element("div", { class: "fg-space" }, canvas);
  const box = element("div", { class: "fg-scroll" }, space);
  const context = canvas.getContext("2d", { alpha: false })!;
  const observer = new ResizeObserver(() => resize() && paint());
  let frame = 0;
  let drag: { x: number; from: Span; moved: boolean; above: boolean } | null = null;
  let scene: Scene;
  /** Node whose frame fills the width of the picture. */
  let zoomed = 0;

  observer.observe(box);
  box.addEventListener("scroll", redraw);
  canvas.addEventListener("keydown", events.key);
  canvas.addEventListener("wheel", wheel, { passive: false });
  canvas.addEventListener("pointerdown", dragStart);
  canvas.addEventListener("pointermove", pointerMove);
  canvas.addEventListener("pointerleave", (event) => hover(-1, event));
  canvas.addEventListener("click", click);

  /** Shows another tree from its root. */
  function show(layout: Layout, names: Names, rootLabel: string, colours: FrameColours): void {
    const below = extentOf(layout, 0);
    scene = {
      layout, names, rootLabel, colours, below, above: below,
      scroll: 0, width: 0, height: 0, isMatch: null, selected: 0, hovered: -1,
    };
    zoomed = 0;
    box.style.height = `${Math.min(layout.rows.length, MAX_ROWS) * ROW_HEIGHT}px`;
    fitSpace();
    resize();
    redraw();
    box.scrollTop = layout.rootRow && layout.rootRow * ROW_HEIGHT - box.clientHeight / 2;
  }

  /** Replaces colours, matches or the selection. The picture does not move. */
  function update(part: Partial<Pick<Scene, "colours" | "isMatch" | "selected">>): void {
    Object.assign(scene, part);
    redraw();
  }

  function zoomTo(node: number): void {
    scene.below = scene.above = extentOf(scene.layout, 0);
    setSpan(isCaller(scene.layout, node), extentOf(scene.layout, node), node);
    reveal(node);
  }

  /** Enlarges the picture around the visible part of the selected frame. */
  function zoomBy(factor: number): void {
    const above = isCaller(scene.layout, scene.selected);
    const span = spanOf(above);
    const { low, high } = extentOf(scene.layout, scene.selected);
    const middle = (Math.max(low, span.low) + Math.min(high, span.high)) / 2;
    setSpan(above, zoomAt(span, extentOf(scene.layout, 0), middle, factor));
  }

  /** Scrolls and moves the picture so that the frame is visible. */
  function reveal(node: number): void {
    const above = isCaller(scene.layout, node);
    const span = spanOf(above);
    const moved = revealing(span, extentOf(scene.layout, 0), extentOf(scene.layout, node));
    if (moved !== span) setSpan(above, moved);
    const top = rowOf(scene.layout, node) * ROW_HEIGHT;
    if (top < box.scrollTop) box.scrollTop = top - ROW_HEIGHT;
    if (top + ROW_HEIGHT > box.scrollTop + box.clientHeight) box.scrollTop = top + 2 * ROW_HEIGHT - box.clientHeight;
    redraw();
  }

  function redraw(): void {
    if (isPrinted()) paint();
    else frame ||= requestAnimationFrame(paint);
  }

  function destroy(): void {
    observer.disconnect();
    cancelAnimationFrame(frame);
  }

  function paint(): void {
    frame = 0;
    if (scene.width === 0 || scene.layout.width[0]! <= 0) return;
    scene.scroll = box.scrollTop;
    draw(context, scene, devicePixelRatio);
  }

  function spanOf(above: boolean): Span {
    return above ? scene.above : scene.below;
  }

  /** Sets the visible range. Without `node`, the zoomed frame becomes the deepest frame that fills the width. */
  function setSpan(above: boolean, span: Span, node = frameThatHolds(above, span)): void {
    if (above) scene.above = span;
    else scene.below = span;
    zoomed = node;
    fitSpace();
    events.zoomChanged();
    redraw();
  }

  function frameThatHolds(above: boolean, span: Span): number {
    const { layout } = scene;
    if (span.high - span.low >= layout.width[0]!) return 0;
    let node = 0;
    for (let row = layout.rootRow; ; ) {
      row += above ? -1 : 1;
      const next = frameAt(layout, row, span.low);
      if (next < 0 || extentOf(layout, next).high < span.high) return node;
      node = next;
    }
  }

  /** Makes the picture as high as the deepest visible stack. */
  function fitSpace(): void {
    space.style.height = `${(lastRowWithin(scene.layout, scene.below) + 1) * ROW_HEIGHT}px`;
  }

  /** Fits the canvas into its box. A new size clears the canvas, so the picture must be painted before the browser
   * shows the canvas. */
  function resize(): boolean {
    let isNew = false;
    scene.width = box.clientWidth;
    scene.height = box.clientHeight;
    for (const side of ["width", "height"] as const) {
      const pixels = Math.round(scene[side] * devicePixelRatio);
      if (canvas[side] === pixels) continue;
      canvas[side] = pixels;
      canvas.style[side] = `${scene[side]}px`;
      isNew = true;
    }
    return isNew;
  }

  function position(event: MouseEvent) {
    const rectangle = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - rectangle.top + box.scrollTop) / ROW_HEIGHT);
    const above = row < scene.layout.rootRow;
    const span = spanOf(above);
    const perPixel = (span.high - span.low) / scene.width;
    return { row, above, span, perPixel, x: span.low + (event.clientX - rectangle.left) * perPixel };
  }

  function frameUnder(event: MouseEvent): number {
    const { row, x } = position(event);
    return frameAt(scene.layout, row, x);
  }

  function click(event: MouseEvent): void {
    if (!drag?.moved) events.clicked(frameUnder(event), event);
    drag = null;
  }

  function hover(node: number, event: PointerEvent): void {
    if (scene.hovered !== node) redraw();
    scene.hovered = node;
    events.hovered(node, event);
  }

  /** Handles the mouse wheel. Distances are in pixels, because Firefox gives lines only to pages that read
   * `deltaMode`. */
  function wheel(event: WheelEvent): void {
    const { above, span, perPixel, x } = position(event);
    const whole = extentOf(scene.layout, 0);
    const [sideways, down] = event.shiftKey ? [event.deltaX || event.deltaY, 0] : [event.deltaX, event.deltaY];
    if (event.ctrlKey || event.metaKey || event.altKey) {
      setSpan(above, zoomAt(span, whole, x, WHEEL_ZOOM ** (-event.deltaY)));
    } else if (Math.abs(sideways) > Math.abs(down)) {
      setSpan(above, shifted(span, whole, sideways * perPixel));
    } else {
      return; // In this case the browser scrolls.
    }
    event.preventDefault();
  }

  function dragStart(event: PointerEvent): void {
    const { above, span } = position(event);
    drag = { x: event.clientX, from: span, moved: false, above };
  }

  function pointerMove(event: PointerEvent): void {
    if (!drag || !(event.buttons & 1) || event.pointerType === "touch") return hover(frameUnder(event), event);
    const distance = event.clientX - drag.x;
    drag.moved ||= Math.abs(distance) >= MIN_DRAG_PX;
    if (!drag.moved) return;
    const perPixel = (drag.from.high - drag.from.low) / scene.width;
    setSpan(drag.above, shifted(drag.from, extentOf(scene.layout, 0), -distance * perPixel));
  }

  return {
    box, canvas, context, show, update, zoomTo, zoomBy, reveal, destroy,
    selected: () => scene.selected,
    zoomed: () => zoomed,
  };
}
