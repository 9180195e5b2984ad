// The timeline: slices of each stream and launching thread, idle time for each cause, and the critical path. Dragging
// over a range zooms into it.
import { button, element } from "./flame/dom.ts";
import { grouped, human } from "./flame/format.ts";
import type { TimelineData } from "./report.ts";
import { legends, rowColours } from "./timeline_colours.ts";
import { TimelineCanvas } from "./timeline_canvas.ts";
import { type Range, pan, sliceAt, zoom } from "./timeline_model.ts";
import { type Row, readRows } from "./timeline_slices.ts";

/** Minimum width in pixels of a drag that zooms, and distance in pixels of the tooltip from the pointer. */
const [MIN_DRAG, TOOLTIP_DISTANCE] = [4, 14];
/** Time that is shown on each side of a part, as a multiple of the part's duration. */
const MARGIN = 1;
const HELP = "Drag to zoom. Arrow keys move, + and - zoom, Escape shows everything; so does Ctrl with the wheel.";

export class TimelineView {
  readonly root: HTMLElement;
  private readonly status = element("p", { class: "step-details", role: "status" }, HELP);
  private readonly tooltip = element("div", { class: "timeline-tooltip", hidden: true });
  private readonly frame = element("div", { class: "timeline-frame" });
  private readonly picture: TimelineCanvas;
  private readonly rows: Row[];
  private range: Range;
  private drag: { from: number; to: number } | null = null;
  private isScheduled = false;

  constructor(private readonly data: TimelineData, bytes: Uint8Array) {
    this.rows = readRows(data.rows, bytes, data.resolution);
    const colours = rowColours(data, this.rows);
    this.picture = new TimelineCanvas(this.rows, colours, (row, name) => this.nameOf(row, name));
    this.range = { from: 0, to: Math.max(data.end, 1) };
    this.canvas.setAttribute("aria-label", `timeline of ${data.rows.length} rows; ${HELP}`);
    const labels = element("ol", { class: "timeline-labels" }, ...data.rows.map((row) => element("li", { title: row.label }, row.label)));
    const zoomBy = (factor: number) => () => this.show(zoom(this.range, 0.5, factor, this.data.end));
    const bar = element(
      "p",
      { class: "table-bar" },
      button("zoom in", "zoom in (+)", zoomBy(0.5)),
      button("zoom out", "zoom out (-)", zoomBy(2)),
      button("all", "show everything (Escape)", () => this.showAll()),
    );
    this.frame.append(labels, this.canvas, this.tooltip);
    this.root = element("div", {}, bar, ...legends(data, this.rows, colours), this.frame, this.status, this.note());
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  private get canvas(): HTMLCanvasElement {
    return this.picture.canvas;
  }

  private note(): HTMLElement | null {
    const { resolution, skipped, left } = this.data;
    const notes = [
      resolution > 0 ? `Slices that last at most ${human(resolution, "ns")} together are merged.` : "",
      skipped > 0 ? `${grouped(skipped)} activities are not shown.` : "",
      left > 0 ? `${left} more streams and threads are not shown.` : "",
    ].filter((note) => note !== "");
    return notes.length > 0 ? element("p", { class: "scale" }, notes.join(" ")) : null;
  }

  private showAll(): void {
    this.picture.marks = [];
    this.show({ from: 0, to: Math.max(this.data.end, 1) });
  }

  private show(range: Range): void {
    this.range = range;
    this.status.textContent = `${human(range.from, "ns")} to ${human(range.to, "ns")}: ${human(range.to - range.from, "ns")}`;
    this.schedule();
  }

  /** Marks times in all rows. `marks` contains the start and the length of each marked time, one after the other. */
  mark(marks: number[], text: string): void {
    this.showAll();
    this.picture.marks = marks;
    this.status.textContent = `${text}: marked in all rows. Escape removes the marks.`;
  }

  /** Shows one of the marked times, with the same amount of time before and after it. */
  showPart(marks: number[], [start, end]: [start: number, end: number]): void {
    const margin = MARGIN * Math.max(end - start, 1);
    this.picture.marks = marks;
    this.show({ from: Math.max(start - margin, 0), to: Math.min(end + margin, Math.max(this.data.end, 1)) });
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
      if (this.drag) this.schedule();
    });
    this.canvas.addEventListener("pointerleave", () => (this.tooltip.hidden = true));
    this.canvas.addEventListener("pointerup", () => {
      const drag = this.drag;
      this.drag = null;
      if (!drag) return;
      const [low, high] = [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)];
      const span = this.range.to - this.range.from;
      if ((high - low) * this.canvas.clientWidth < MIN_DRAG) return this.schedule();
      this.show({ from: this.range.from + low * span, to: this.range.from + high * span });
    });
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.show(zoom(this.range, place(event)[0], event.deltaY > 0 ? 1.3 : 1 / 1.3, this.data.end));
    }, { passive: false });
    this.canvas.addEventListener("keydown", (event) => {
      const acts: Record<string, () => void> = {
        ArrowLeft: () => this.show(pan(this.range, -0.2, this.data.end)),
        ArrowRight: () => this.show(pan(this.range, 0.2, this.data.end)),
        "+": () => this.show(zoom(this.range, 0.5, 0.5, this.data.end)),
        "-": () => this.show(zoom(this.range, 0.5, 2, this.data.end)),
        Escape: () => this.showAll(),
      };
      const act = acts[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });
    for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", () => this.draw());
  }

  /** Shows in the tooltip the slice that is under the pointer, or the gap between two slices. */
  private tell(x: number, y: number): void {
    const row = this.rows[this.picture.rowAt(y)];
    this.tooltip.hidden = !row;
    if (!row) return;
    const time = this.range.from + x * (this.range.to - this.range.from);
    const at = sliceAt(row.levels[0]!, time);
    const text = at === null ? `${row.label}: nothing at ${human(time, "ns")}` : this.describe(row, at);
    this.status.textContent = this.tooltip.textContent = text;
    // The tooltip is on the side of the pointer that has more room.
    const { offsetLeft, offsetTop, clientWidth } = this.canvas;
    const isRight = x > 0.5;
    const pixel = offsetLeft + x * clientWidth;
    this.tooltip.style.left = isRight ? "" : `${pixel + TOOLTIP_DISTANCE}px`;
    this.tooltip.style.right = isRight ? `${this.frame.clientWidth - pixel + TOOLTIP_DISTANCE}px` : "";
    this.tooltip.style.top = `${offsetTop + y + TOOLTIP_DISTANCE}px`;
  }

  private nameOf(row: Row, name: number): string {
    if (row.kind === "idle") return this.data.causes[name]?.label ?? "";
    if (row.kind === "critical") return this.data.classes[name]?.label ?? "";
    return this.data.names[name] ?? "";
  }

  private describe(row: Row, at: number): string {
    const slices = row.levels[0]!;
    const [start, end, count] = [slices.start[at]!, slices.end[at]!, slices.count[at]!];
    const name = this.nameOf(row, slices.name[at]!);
    const times = `${human(end - start, "ns")} from ${human(start, "ns")}`;
    if (count === 1) return `${row.label}: ${name}, ${times}`;
    return `${row.label}: ${grouped(count)} slices, ${human(slices.busy[at]!, "ns")} in ${times}; the longest is ${name}`;
  }

  /** Draws in the next animation frame, once for all events before it. */
  private schedule(): void {
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      this.draw();
    });
  }

  private draw(): void {
    this.picture.draw(this.range, this.drag);
  }
}
