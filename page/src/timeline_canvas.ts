// Draws the visible part of a timeline. A row is drawn as one line of pixels, which is stretched to the height of the
// row. Therefore drawing takes the same time for any number of slices.
import { textOn } from "./flame/colours.ts";
import { element } from "./flame/dom.ts";
import { human } from "./flame/format.ts";
import { channels, OTHER_COLOUR, type RowColours } from "./timeline_colours.ts";
import { type Range, shown, ticks } from "./timeline_model.ts";
import { PixelLine } from "./timeline_pixels.ts";
import { levelFor, type Row, type Slices } from "./timeline_slices.ts";

const ROW_HEIGHT = 20;
const AXIS_HEIGHT = 18;
/** Minimum widths in pixels: of a slice whose name is written into it, of the gap between two marks of the axis, and of
 * a mark. */
const [MIN_NAME, AXIS_GAP, MIN_MARK] = [36, 110, 2];

export class TimelineCanvas {
  readonly canvas = element("canvas", { class: "timeline", tabindex: "0", role: "img" });
  /** Start and length of each marked time, one after the other. */
  marks: number[] = [];
  private readonly lines = element("canvas");
  private readonly height: number;
  private readonly channels: Record<Row["kind"], Uint8Array>;
  private line = new PixelLine(0);
  private pixels: ImageData | null = null;

  constructor(private readonly rows: Row[], private readonly fills: RowColours, private readonly nameOf: (row: Row, name: number) => string) {
    const { critical, idle, stream, thread } = fills;
    this.channels = { critical: channels(critical), idle: channels(idle), stream: channels(stream), thread: channels(thread) };
    // The height is set before the first drawing, so that drawing does not move other parts of the page.
    this.height = AXIS_HEIGHT + rows.length * ROW_HEIGHT;
    this.canvas.style.height = `${this.height}px`;
  }

  rowAt(y: number): number {
    return Math.floor((y - AXIS_HEIGHT) / ROW_HEIGHT);
  }

  /** Draws a range of the run. `drag`: the part of the width over which the user drags. */
  draw(range: Range, drag: { from: number; to: number } | null): void {
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth;
    const { height } = this;
    const context = this.canvas.getContext("2d");
    if (!context || width === 0) return;
    const [columns, lines] = [Math.round(width * ratio), Math.round(height * ratio)];
    // Setting a new size clears the canvas, and takes longer than the drawing. So the size is set only if it has
    // changed.
    if (this.canvas.width !== columns || this.canvas.height !== lines) [this.canvas.width, this.canvas.height] = [columns, lines];
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const style = getComputedStyle(this.canvas);
    const [ink, line] = ["--fg", "--line"].map((name) => style.getPropertyValue(name).trim());
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const scale = width / (range.to - range.from);
    for (const tick of ticks(range, width / AXIS_GAP)) {
      const x = (tick - range.from) * scale;
      context.fillStyle = line!;
      context.fillRect(x, 0, 1, height);
      context.fillStyle = ink!;
      context.fillText(human(tick, "ns"), x + 4, AXIS_HEIGHT / 2);
    }
    this.drawRows(context, range, this.canvas.width, width);
    this.drawMarks(context, range, scale, height, ink!);
    if (drag) band(context, ink!, Math.min(drag.from, drag.to) * width, Math.abs(drag.to - drag.from) * width, 0, height);
  }

  private drawRows(context: CanvasRenderingContext2D, range: Range, pixels: number, width: number): void {
    if (this.rows.length === 0) return;
    const target = this.lines.getContext("2d");
    if (!target) return;
    if (this.line.width !== pixels || !this.pixels) {
      this.line = new PixelLine(pixels);
      [this.lines.width, this.lines.height] = [pixels, this.rows.length];
      this.pixels = target.createImageData(pixels, this.rows.length);
    }
    const nanosPerPixel = (range.to - range.from) / pixels;
    const levels = this.rows.map((row) => levelFor(row, nanosPerPixel));
    this.rows.forEach((row, at) => {
      this.line.fill(levels[at]!, range);
      this.line.write(this.pixels!.data, at * pixels * 4, this.channels[row.kind]);
    });
    target.putImageData(this.pixels, 0, 0);
    context.imageSmoothingEnabled = false;
    this.rows.forEach((row, at) => {
      const top = AXIS_HEIGHT + at * ROW_HEIGHT;
      context.drawImage(this.lines, 0, at, pixels, 1, 0, top + 1, width, ROW_HEIGHT - 2);
      this.drawNames(context, row, levels[at]!, range, [top, width]);
    });
  }

  /** Writes the names of slices into the slices that are wide enough. */
  private drawNames(context: CanvasRenderingContext2D, row: Row, slices: Slices, range: Range, [top, width]: [number, number]): void {
    const scale = width / (range.to - range.from);
    const [first, last] = shown(slices, range);
    const minLength = MIN_NAME / scale;
    for (let at = first; at < last; at++) {
      const [start, end] = [slices.start[at]!, slices.end[at]!];
      if (end - start < minLength) continue;
      const left = Math.max((start - range.from) * scale, 0);
      const right = Math.min((end - range.from) * scale, width);
      if (right - left < MIN_NAME) continue;
      context.save();
      context.beginPath();
      context.rect(left, top, right - left - 2, ROW_HEIGHT);
      context.clip();
      context.fillStyle = textOn(this.fills[row.kind][slices.name[at]!] ?? OTHER_COLOUR);
      context.fillText(this.nameOf(row, slices.name[at]!), left + 3, top + ROW_HEIGHT / 2);
      context.restore();
    }
  }

  private drawMarks(context: CanvasRenderingContext2D, range: Range, scale: number, height: number, ink: string): void {
    for (let at = 0; at < this.marks.length; at += 2) {
      const [start, length] = [this.marks[at]!, this.marks[at + 1]!];
      if (start > range.to || start + length < range.from) continue;
      const left = (Math.max(start, range.from) - range.from) * scale;
      const right = (Math.min(start + length, range.to) - range.from) * scale;
      const mark = Math.max(right - left, MIN_MARK);
      band(context, ink, left, mark, AXIS_HEIGHT, height);
      context.fillStyle = ink;
      context.fillRect(left, AXIS_HEIGHT - 3, mark, 3);
    }
  }
}

/** Darkens a part of the width. In dark mode, lightens it. */
function band(context: CanvasRenderingContext2D, ink: string, left: number, width: number, top: number, bottom: number): void {
  context.globalAlpha = 0.2;
  context.fillStyle = ink;
  context.fillRect(left, top, width, bottom - top);
  context.globalAlpha = 1;
}
