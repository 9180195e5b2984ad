// Computes which part of the picture is visible. This part has at least the share `MIN_SHARE` of the picture, and never
// extends beyond the picture's ends.
import type { Span } from "./layout.ts";

/** Smallest share of the picture that can fill the canvas. */
const MIN_SHARE = 1e-9;

export function zoomAt(span: Span, whole: Span, x: number, factor: number): Span {
  const full = whole.high - whole.low;
  const length = Math.min(full, Math.max((span.high - span.low) / factor, full * MIN_SHARE));
  const share = (x - span.low) / (span.high - span.low);
  return shifted({ low: x - share * length, high: x + (1 - share) * length }, whole, 0);
}

/** Moves `span` by `distance`, but not beyond the ends of `whole`. */
export function shifted(span: Span, whole: Span, distance: number): Span {
  const length = span.high - span.low;
  const low = Math.max(whole.low, Math.min(span.low + distance, whole.high - length));
  return { low, high: low + length };
}

/** Moves `span` as little as possible so that it shows the start of `part`. */
export function revealing(span: Span, whole: Span, part: Span): Span {
  if (part.low >= span.high || part.high <= span.low) {
    return shifted(span, whole, part.low - span.low);
  }
  return span;
}
