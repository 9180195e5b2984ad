// Draw paints the visible part of a layout. Frames narrower than half a pixel are painted together: a row costs at most as many
// rectangles as it has pixels, whatever the number of frames.
import type { FrameColours, Fill } from "./fills.ts";
import { extentOf, firstEndingAfter, isCaller, rowOf, type Layout, type Span } from "./layout.ts";
import type { Names } from "./names.ts";

export const ROW_HEIGHT = 18;
const FONT = "12px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
/** A label has a margin on both sides and at least two characters. */
const MARGIN = 4;
const MIN_LABEL_CHARS = 2;
const MIN_FRAME_WIDTH = 0.5;
/** Frames at least this wide are set apart by a line of the background. */
const MIN_WIDTH_WITH_GAP = 3;
const MIN_WIDTH_WITH_HATCH = 6;

export interface Scene {
  layout: Layout;
  names: Names;
  rootLabel: string;
  /** Visible part below the root, and of the callers above. */
  below: Span;
  above: Span;
  /** Pixels of the picture above the top of the canvas. */
  scroll: number;
  width: number;
  height: number;
  colours: FrameColours;
  /** 1 for nodes that match the search, or null without one. */
  isMatch: Uint8Array | null;
  selected: number;
  hovered: number;
}

function labelOf(scene: Scene, node: number): string {
  return scene.names.label[scene.layout.tree.name[node]!] ?? scene.rootLabel;
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
  const { layout, width, colours } = scene;
  const { low, high } = rowIndex < layout.rootRow ? scene.above : scene.below;
  const scale = width / (high - low);
  const row = layout.rows[rowIndex]!;
  const top = rowIndex * ROW_HEIGHT - scene.scroll;
  for (let index = firstEndingAfter(layout, row, low); index < row.length; index++) {
    const node = row[index]!;
    const start = layout.start[node]!;
    if (start >= high) break;
    const left = Math.max(0, (start - low) * scale);
    const right = Math.min(width, (start + layout.width[node]! - low) * scale);
    const fill = colours.fillOf(node, scene.isMatch);
    if (right - left < MIN_FRAME_WIDTH) {
      const pixelEnd = Math.floor(left) + 1;
      context.fillStyle = fill.colour;
      context.fillRect(pixelEnd - 1, top, 1, ROW_HEIGHT - 1);
      index = Math.max(index, firstEndingAfter(layout, row, low + pixelEnd / scale) - 1);
      continue;
    }
    const gap = right - left >= MIN_WIDTH_WITH_GAP ? 1 : 0;
    drawFrame(context, fill, left, top, right - left - gap);
    const room = Math.floor((right - left - 2 * MARGIN) / charWidth);
    if (room >= MIN_LABEL_CHARS) {
      drawLabel(context, fill, shorten(labelOf(scene, node), room), left, top, charWidth, right - left - MARGIN);
    }
  }
}

function drawFrame(context: CanvasRenderingContext2D, fill: Fill, left: number, top: number, width: number): void {
  context.fillStyle = fill.colour;
  context.fillRect(left, top, width, ROW_HEIGHT - 1);
  if (fill.hatch && width >= MIN_WIDTH_WITH_HATCH) {
    context.fillStyle = fill.hatch;
    context.fillRect(left, top, width, ROW_HEIGHT - 1);
  }
}

function drawLabel(context: CanvasRenderingContext2D, fill: Fill, text: string, left: number, top: number, charWidth: number, room: number): void {
  if (fill.hatch) {
    context.fillStyle = fill.colour;
    context.fillRect(left + 1, top, text.length * charWidth + 2 * MARGIN - 1, ROW_HEIGHT - 1);
  }
  context.fillStyle = fill.text;
  context.fillText(text, left + MARGIN, top + ROW_HEIGHT / 2, room);
}

/** At most `room` characters, the last one an ellipsis if the name is longer. */
export function shorten(name: string, room: number): string {
  return name.length <= room ? name : `${name.slice(0, room - 1)}…`;
}

function outline(context: CanvasRenderingContext2D, scene: Scene, node: number, thickness: number): void {
  if (node < 0) return;
  const { layout } = scene;
  const row = rowOf(layout, node);
  const { low, high } = isCaller(layout, node) ? scene.above : scene.below;
  const scale = scene.width / (high - low);
  const extent = extentOf(layout, node);
  const left = Math.max(0, (extent.low - low) * scale);
  const right = Math.min(scene.width, (extent.high - low) * scale);
  if (right < left) return;
  context.strokeStyle = scene.colours.ink;
  context.lineWidth = thickness;
  const inset = thickness / 2;
  const top = row * ROW_HEIGHT - scene.scroll;
  context.strokeRect(left + inset, top + inset, Math.max(right - left - thickness - 1, 1), ROW_HEIGHT - 1 - thickness);
}
