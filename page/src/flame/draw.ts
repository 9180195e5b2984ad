// Paints the visible part of a layout. Frames narrower than half a pixel are painted together. Therefore a
// row has at most as many rectangles as pixels, regardless of the number of frames.
import type { Fill, FrameColours } from "./fills.ts";
import { extentOf, firstEndingAfter, isCaller, rowOf, type Layout, type Span } from "./layout.ts";
import { fitted, type Names } from "./names.ts";

export const ROW_HEIGHT = 18;
const FONT = "12px ui-monospace, monospace";
/** Margin in pixels on both sides of a label, and minimum number of characters that a label needs to be useful. */
const MARGIN = 4;
const MIN_LABEL_CHARS = 4;
const MIN_FRAME_WIDTH = 0.5;
/** Minimum width in pixels of a frame that is followed by a gap. A gap is a line in the background colour. */
const MIN_WIDTH_WITH_GAP = 3;

export interface Scene {
  layout: Layout;
  names: Names;
  rootLabel: string;
  /** Visible range of the frames below the root. `above` is the visible range of the callers above the root. */
  below: Span;
  above: Span;
  /** Height in pixels of the part of the picture above the top of the canvas. */
  scroll: number;
  width: number;
  height: number;
  colours: FrameColours;
  /** 1 for each node that matches the search; null if there is no search. */
  isMatch: Uint8Array | null;
  selected: number;
  hovered: number;
}

function labelOf(scene: Scene, node: number): string {
  return scene.names.text[scene.layout.tree.name[node]!] ?? scene.rootLabel;
}

export function draw(context: CanvasRenderingContext2D, scene: Scene, pixelRatio: number): void {
  context.setTransform(pixelRatio, 0, 0, pixelRatio, 0, 0);
  context.fillStyle = scene.colours.background;
  context.fillRect(0, 0, scene.width, scene.height);
  context.font = FONT;
  context.textBaseline = "middle";
  const charWidth = context.measureText("0").width;
  const first = Math.max(0, Math.floor(scene.scroll / ROW_HEIGHT));
  const end = Math.min(scene.layout.rows.length, Math.ceil((scene.scroll + scene.height) / ROW_HEIGHT));
  for (let row = first; row < end; row++) drawRow(context, scene, row, charWidth);
  outline(context, scene, scene.hovered, 1);
  outline(context, scene, scene.selected, 2);
}

function drawRow(context: CanvasRenderingContext2D, scene: Scene, rowIndex: number, charWidth: number): void {
  const { layout } = scene;
  const row = layout.rows[rowIndex]!;
  const top = rowIndex * ROW_HEIGHT - scene.scroll;
  const { low, high } = rowIndex < layout.rootRow ? scene.above : scene.below;
  // Narrow neighbours with the same colour are drawn as one rectangle, because there may be thousands of them.
  let [from, to, colour] = [0, 0, ""];
  const fillNarrow = () => fill(context, colour, from, top, to - from);
  for (let index = firstEndingAfter(layout, row, low); index < row.length; index++) {
    const node = row[index]!;
    if (layout.starts[node]! >= high) break;
    const [left, width] = pixelsOf(scene, node);
    const look = scene.colours.fillOf(node, scene.isMatch);
    if (width >= MIN_WIDTH_WITH_GAP) {
      drawFrame(context, look, labelOf(scene, node), left, top, width - 1, charWidth);
      continue;
    }
    if (left > to + 1 || look.colour !== colour) {
      fillNarrow();
      [from, colour] = [left, look.colour];
    }
    to = left + Math.max(width, 1);
    if (width < MIN_FRAME_WIDTH) {
      const nextPixel = low + ((Math.floor(left) + 1) * (high - low)) / scene.width;
      index = Math.max(index, firstEndingAfter(layout, row, nextPixel) - 1);
    }
  }
  fillNarrow();
}

/** Returns the left end and the width, in pixels, of the visible part of a frame. */
function pixelsOf(scene: Scene, node: number): [number, number] {
  const span = isCaller(scene.layout, node) ? scene.above : scene.below;
  const scale = scene.width / (span.high - span.low);
  const { low, high } = extentOf(scene.layout, node);
  const left = Math.max(0, (low - span.low) * scale);
  return [left, Math.min(scene.width, (high - span.low) * scale) - left];
}

function fill(context: CanvasRenderingContext2D, style: string | CanvasPattern, left: number, top: number, width: number): void {
  context.fillStyle = style;
  context.fillRect(left, top, width, ROW_HEIGHT - 1);
}

function drawFrame(
  context: CanvasRenderingContext2D, look: Fill, name: string, left: number, top: number, width: number, charWidth: number,
): void {
  fill(context, look.colour, left, top, width);
  if (look.hatch) fill(context, look.hatch, left, top, width);
  const room = Math.floor((width - 2 * MARGIN) / charWidth);
  if (room < MIN_LABEL_CHARS) return;
  const text = fitted(name, room);
  if (look.hatch) fill(context, look.colour, left + 1, top, text.length * charWidth + MARGIN); // The hatch would cross the letters.
  context.fillStyle = look.text;
  context.fillText(text, left + MARGIN, top + ROW_HEIGHT / 2, width - MARGIN);
}

function outline(context: CanvasRenderingContext2D, scene: Scene, node: number, thickness: number): void {
  if (node < 0) return;
  const [left, width] = pixelsOf(scene, node);
  if (width < 0) return;
  const top = rowOf(scene.layout, node) * ROW_HEIGHT - scene.scroll;
  context.strokeStyle = scene.colours.ink;
  context.lineWidth = thickness;
  const inset = thickness / 2;
  context.strokeRect(left + inset, top + inset, Math.max(width - thickness - 1, 1), ROW_HEIGHT - 1 - thickness);
}
