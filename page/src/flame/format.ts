// Formats values for readers: with readable units, or with exact digits.
import type { Unit } from "./model.ts";

const TIME: [number, string][] = [[1e9, "s"], [1e6, "ms"], [1e3, "us"]];
const BYTES: [number, string][] = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

/** Formats a value with three digits: `1234567 ns` as `1.23 ms`. */
export function human(value: number, unit: Unit): string {
  const size = Math.abs(value);
  const scale = unit === "samples" ? [] : unit === "ns" ? TIME : BYTES;
  for (const [factor, suffix] of scale) if (size >= factor) return `${digits(value / factor)} ${suffix}`;
  return exact(value, unit);
}

/** Formats a value exactly: `1,234,567 ns`. */
export function exact(value: number, unit: Unit): string {
  const word = unit === "ns" ? "ns" : Math.abs(value) === 1 ? unit.slice(0, -1) : unit;
  return `${grouped(value)} ${word}`;
}

export function grouped(value: number): string {
  return value.toLocaleString("en");
}

/** Formats the share of `part` in `whole`: `12.3 %`. */
export function percent(part: number, whole: number): string {
  if (whole === 0) return "0 %";
  const share = (100 * part) / whole;
  return share !== 0 && Math.abs(share) < 0.01 ? `${share < 0 ? "-" : ""}< 0.01 %` : `${digits(share)} %`;
}

/** Formats a change in percent of the old value: `+12 %`. For a frame that only one run has, returns a word. */
export function change(now: number, old: number): string {
  if (now === old) return "unchanged";
  if (!now) return "gone";
  return old ? `${now > old ? "+" : ""}${percent(now - old, old)}` : "new";
}

export function signed(value: number, unit: Unit): string {
  return `${value > 0 ? "+" : ""}${human(value, unit)}`;
}

/** Formats a number with three significant digits. All digits before the decimal point are kept in any case. */
function digits(value: number): string {
  const size = Math.abs(value);
  const decimals = size >= 99.95 || size === 0 ? 0 : size >= 9.995 ? 1 : 2;
  return String(Number(value.toFixed(decimals)));
}

/** Cuts a name to `room` characters. If it is longer, the last character is an ellipsis. */
export function shorten(name: string, room: number): string {
  return name.length <= room ? name : `${name.slice(0, room - 1)}…`;
}
