// Converts the rows of a timeline to pixels: one line of pixels per row. A pixel has the colour of the name that takes
// most of the pixel's time.
import { type Range, shown } from "./timeline_model.ts";
import type { Slices } from "./timeline_slices.ts";

/** Minimum opacity of a pixel that contains a slice, so that even a short slice is visible in a long run. */
const MIN_OPACITY = 0.4;

/** For each pixel, the share of its time that slices cover, and the name that covers most of it. */
export class PixelLine {
  readonly cover: Float32Array;
  private readonly most: Float32Array;
  readonly name: Uint32Array;

  constructor(readonly width: number) {
    this.cover = new Float32Array(width);
    this.most = new Float32Array(width);
    this.name = new Uint32Array(width);
  }

  fill(slices: Slices, range: Range): void {
    this.cover.fill(0);
    this.most.fill(0);
    const scale = this.width / (range.to - range.from);
    const [first, last] = shown(slices, range);
    for (let at = first; at < last; at++) {
      const [start, end] = [slices.start[at]!, slices.end[at]!];
      const low = Math.max((start - range.from) * scale, 0);
      const high = Math.min((end - range.from) * scale, this.width);
      if (low > high || low >= this.width) continue;
      // If slices were merged, the gaps between them do not count as covered.
      const density = end > start ? Math.min(slices.busy[at]! / (end - start), 1) : 1;
      this.add(low, high, density, slices.name[at]!);
    }
  }

  private add(low: number, high: number, density: number, name: number): void {
    const [left, right] = [Math.floor(low), Math.min(Math.floor(high), this.width - 1)];
    for (let pixel = left; pixel <= right; pixel++) {
      const part = Math.max((Math.min(high, pixel + 1) - Math.max(low, pixel)) * density, 1e-6);
      // A slice that ends exactly where a pixel begins does not cover the pixel.
      if (pixel > left && high <= pixel) break;
      this.cover[pixel]! += part;
      if (part > this.most[pixel]!) {
        this.most[pixel] = part;
        this.name[pixel] = name;
      }
    }
  }

  /** Writes the pixels as red, green, blue and opacity. `colours` contains three numbers per name. */
  write(target: Uint8ClampedArray, offset: number, colours: Uint8Array): void {
    for (let pixel = 0; pixel < this.width; pixel++) {
      const [cover, to, from] = [this.cover[pixel]!, offset + 4 * pixel, 3 * this.name[pixel]!];
      if (cover <= 0) {
        target[to + 3] = 0;
        continue;
      }
      target[to] = colours[from]!;
      target[to + 1] = colours[from + 1]!;
      target[to + 2] = colours[from + 2]!;
      target[to + 3] = 255 * Math.min(Math.max(cover, MIN_OPACITY), 1);
    }
  }
}
