// Values in words: human units for reading, exact digits for checking.
import type { Unit } from "./model.ts";

const TIME: [number, string][] = [[1e9, "s"], [1e6, "ms"], [1e3, "us"]];
const BYTES: [number, string][] = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

/** `1234567 ns` as `1.23 ms`, with three digits. */
export function human(value: number, unit: Unit): string {
  const size = Math.abs(value);
  const scale = unit === "samples" ? [] : unit === "ns" ? TIME : BYTES;
  for (const [factor, suffix] of scale) if (size >= factor) return `${digits(value / factor)} ${suffix}`;
  return exact(value, unit);
}

/** `1,234,567 ns`. */
export function exact(value: number, unit: Unit): string {
  const word = unit === "ns" ? "ns" : Math.abs(value) === 1 ? unit.slice(0, -1) : unit;
  return `${grouped(value)} ${word}`;
}

export function grouped(value: number): string {
  return value.toLocaleString("en");
}

/** Share of `part` in `whole`, `12.3 %`. */
export function percent(part: number, whole: number): string {
  if (whole === 0) return "0 %";
  const share = (100 * part) / whole;
  return share !== 0 && Math.abs(share) < 0.01 ? `${share < 0 ? "-" : ""}< 0.01 %` : `${digits(share)} %`;
}

/** `+12 %` of the old value, or a word for a frame that only one run has. */
export function change(now: number, old: number): string {
  if (now === old) return "unchanged";
  if (!now) return "gone";
  return old ? `${now > old ? "+" : ""}${percent(now - old, old)}` : "new";
}

export function signed(value: number, unit: Unit): string {
  return `${value > 0 ? "+" : ""}${human(value, unit)}`;
}

/** Three digits that matter, all digits before the point. */
function digits(value: number): string {
  const size = Math.abs(value);
  const decimals = size >= 99.95 || size === 0 ? 0 : size >= 9.995 ? 1 : 2;
  return String(Number(value.toFixed(decimals)));
}

/** At most `room` characters, the last one an ellipsis if the name is longer. */
export function shorten(name: string, room: number): string {
  return name.length <= room ? name : `${name.slice(0, room - 1)}…`;
}
