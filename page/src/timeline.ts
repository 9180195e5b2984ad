// The timeline: slices of each stream and launching thread on a canvas. A drag zooms.
import { button, element } from "./flame/dom.ts";
import { textOn } from "./flame/colours.ts";
import { grouped, human } from "./flame/format.ts";
import type { TimelineData } from "./report.ts";
import { legendOf, nameColours, OTHER_COLOUR } from "./timeline_colours.ts";
import { type Range, pan, type Row, rowOf, shown, sliceAt, ticks, zoom } from "./timeline_model.ts";

const ROW_HEIGHT = 20;
const AXIS_HEIGHT = 18;
/** Widths in pixels: of a slice with a name in it, of a drag that zooms, and between two marks of the axis. */
const [MIN_NAME, MIN_DRAG, MARK_GAP] = [36, 4, 110];
const HELP = "Drag to zoom. Arrow keys move, + and - zoom, Escape shows everything; so does Ctrl with the wheel.";

export function timeline(data: TimelineData): HTMLElement {
  return new TimelineView(data).root;
}

class TimelineView {
  readonly root: HTMLElement;
  private readonly canvas = element("canvas", { class: "timeline", tabindex: "0", role: "img" });
  private readonly status = element("p", { class: "step-details", role: "status" }, HELP);
  private readonly rows: Row[];
  private readonly colours: string[];
  private range: Range;
  private drag: { from: number; to: number } | null = null;

  constructor(private readonly data: TimelineData) {
    this.rows = data.rows.map(rowOf);
    this.colours = nameColours(data);
    this.range = { from: 0, to: Math.max(data.end, 1) };
    this.canvas.setAttribute("aria-label", `timeline of ${data.rows.length} streams and threads; ${HELP}`);
    const labels = element("ol", { class: "timeline-labels" }, ...data.rows.map((row) => element("li", { title: row.label }, row.label)));
    const zoomBy = (factor: number) => () => this.show(zoom(this.range, 0.5, factor, this.data.end));
    const bar = element(
      "p",
      { class: "table-bar" },
      button("zoom in", "zoom in (+)", zoomBy(0.5)),
      button("zoom out", "zoom out (-)", zoomBy(2)),
      button("all", "show everything (Escape)", () => this.showAll()),
    );
    this.root = element("div", {}, bar, legendOf(data, this.colours), element("div", { class: "timeline-frame" }, labels, this.canvas), this.status, this.note());
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  private note(): HTMLElement | null {
    const { gap, skipped, left } = this.data;
    const notes = [
      gap > 0 ? `Slices with gaps under ${human(gap, "ns")} are merged.` : "",
      skipped > 0 ? `${grouped(skipped)} activities are not shown.` : "",
      left > 0 ? `${left} more streams and threads are not shown.` : "",
    ].filter((note) => note !== "");
    return notes.length > 0 ? element("p", { class: "scale" }, notes.join(" ")) : null;
  }

  private showAll(): void {
    this.show({ from: 0, to: Math.max(this.data.end, 1) });
  }

  private show(range: Range): void {
    this.range = range;
    this.status.textContent = `${human(range.from, "ns")} to ${human(range.to, "ns")}: ${human(range.to - range.from, "ns")}`;
    this.draw();
  }

  private listen(): void {
    const place = (event: MouseEvent): [x: number, y: number] => {
      const box = this.canvas.getBoundingClientRect();
      return [Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1), event.clientY - box.top];
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      const [x] = place(event);
      this.canvas.setPointerCapture(event.pointerId);
      this.drag = { from: x, to: x };
    });
    this.canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event);
      if (this.drag) this.drag.to = x;
      else this.tell(x, y);
      if (this.drag) this.draw();
    });
    this.canvas.addEventListener("pointerup", () => {
      const drag = this.drag;
      this.drag = null;
      if (!drag) return;
      const [low, high] = [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)];
      const span = this.range.to - this.range.from;
      if ((high - low) * this.canvas.clientWidth < MIN_DRAG) return this.draw();
      this.show({ from: this.range.from + low * span, to: this.range.from + high * span });
    });
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.show(zoom(this.range, place(event)[0], event.deltaY > 0 ? 1.3 : 1 / 1.3, this.data.end));
    }, { passive: false });
    this.canvas.addEventListener("keydown", (event) => {
      const acts: Record<string, () => Range> = {
        ArrowLeft: () => pan(this.range, -0.2, this.data.end),
        ArrowRight: () => pan(this.range, 0.2, this.data.end),
        "+": () => zoom(this.range, 0.5, 0.5, this.data.end),
        "-": () => zoom(this.range, 0.5, 2, this.data.end),
        Escape: () => ({ from: 0, to: Math.max(this.data.end, 1) }),
      };
      const act = acts[event.key];
      if (!act) return;
      event.preventDefault();
      this.show(act());
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Says what is under the pointer: a slice, or the gap between two. */
  private tell(x: number, y: number): void {
    const row = this.rows[Math.floor((y - AXIS_HEIGHT) / ROW_HEIGHT)];
    if (!row) return;
    const time = this.range.from + x * (this.range.to - this.range.from);
    const at = sliceAt(row, time);
    this.status.textContent = at === null ? `${row.label}: nothing at ${human(time, "ns")}` : this.describe(row, at);
  }

  private describe(row: Row, at: number): string {
    const [start, length, count] = [row.start[at]!, row.length[at]!, row.count[at]!];
    const name = this.data.names[row.name[at]!] ?? "";
    const times = `${human(length, "ns")} from ${human(start, "ns")}`;
    if (count === 1) return `${row.label}: ${name}, ${times}`;
    return `${row.label}: ${grouped(count)} slices, ${human(row.busy[at]!, "ns")} in ${times}; the longest is ${name}`;
  }

  private draw(): void {
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth;
    const height = AXIS_HEIGHT + this.rows.length * ROW_HEIGHT;
    const context = this.canvas.getContext("2d");
    if (!context || width === 0) return;
    [this.canvas.width, this.canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    this.canvas.style.height = `${height}px`;
    context.scale(ratio, ratio);
    const style = getComputedStyle(this.canvas);
    const [ink, line] = ["--fg", "--line"].map((name) => style.getPropertyValue(name).trim());
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const scale = width / (this.range.to - this.range.from);
    for (const tick of ticks(this.range, width / MARK_GAP)) {
      const x = (tick - this.range.from) * scale;
      context.fillStyle = line!;
      context.fillRect(x, 0, 1, height);
      context.fillStyle = ink!;
      context.fillText(human(tick, "ns"), x + 4, AXIS_HEIGHT / 2);
    }
    this.rows.forEach((row, at) => this.drawRow(context, row, AXIS_HEIGHT + at * ROW_HEIGHT, scale));
    if (this.drag) {
      const [low, high] = [Math.min(this.drag.from, this.drag.to), Math.max(this.drag.from, this.drag.to)];
      context.globalAlpha = 0.25;
      context.fillStyle = ink!;
      context.fillRect(low * width, 0, (high - low) * width, height);
      context.globalAlpha = 1;
    }
  }

  private drawRow(context: CanvasRenderingContext2D, row: Row, top: number, scale: number): void {
    let painted = -1;
    const [first, last] = shown(row, this.range);
    for (let at = first; at < last; at++) {
      const left = Math.max((row.start[at]! - this.range.from) * scale, 0);
      const right = Math.max((row.start[at]! + row.length[at]! - this.range.from) * scale, left + 1);
      // Of slices in one pixel, one is drawn.
      if (right <= painted) continue;
      const colour = this.colours[row.name[at]!] ?? OTHER_COLOUR;
      context.fillStyle = colour;
      context.fillRect(left, top + 1, right - left, ROW_HEIGHT - 2);
      painted = Math.floor(right);
      if (right - left < MIN_NAME) continue;
      context.save();
      context.beginPath();
      context.rect(left, top, Math.min(right, context.canvas.width) - left - 2, ROW_HEIGHT);
      context.clip();
      context.fillStyle = textOn(colour);
      context.fillText(this.data.names[row.name[at]!] ?? "", left + 3, top + ROW_HEIGHT / 2);
      context.restore();
    }
  }
}
