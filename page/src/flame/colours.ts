// Colours for each kind of frame. Readers who cannot distinguish red and green can still distinguish the fills, which
// tests simulate. Text on a fill is black or white, whichever has more contrast. The contrast is at least 4.5:1 on any
// fill.

export type Rgb = readonly [number, number, number];

export interface Palette {
  background: string;
  /** Colour of lines around frames and of the text of the page. */
  ink: string;
  /** Fill colour of each kind of frame, in the order of `KINDS`. */
  kinds: readonly string[];
  /** Fill colours from "much less" to "much more". The one in the middle means "unchanged". */
  changeFills: readonly string[];
}

export const LIGHT: Palette = {
  background: "#ffffff",
  ink: "#1b1b1b",
  kinds: ["#d9d2bf", "#8ecbf2", "#e39ac6", "#2fb695", "#f5b133", "#f4ec6a", "#e8603c", "#eceff2", "#7f868f"],
  changeFills: ["#2b83ba", "#6cadd6", "#a9d0e8", "#d6e8f3", "#eeeeee", "#f9dfc4", "#f5bf86", "#ec9444", "#d9661a"],
};

export const DARK: Palette = {
  background: "#16181b",
  ink: "#e8e8e8",
  kinds: ["#b3ab95", "#5fa8d8", "#c274a5", "#11836b", "#dd9a1c", "#d8cf45", "#cf4c2a", "#3a4048", "#5d646e"],
  changeFills: ["#3d95cc", "#2f76a3", "#285a7a", "#274353", "#3b3f45", "#5a4530", "#80562b", "#b0701f", "#e08a2c"],
};

/** Index of the kind whose fill is hatched, so that readers can see idle time without colours. */
export const KIND_HATCHED = 6;

/** Returns the fill of frames that do not match a search, which is close to the background's colour. */
export function faded(fill: string, palette: Palette): string {
  return hex(mix(rgb(fill), rgb(palette.background), 0.75));
}

/** Returns the colour of the hatch lines on a fill. */
export function hatchLine(fill: string): string {
  return hex(mix(rgb(fill), textOn(fill) === "#000000" ? [255, 255, 255] : [0, 0, 0], 0.3));
}

/** Luminance above which black contrasts more than white, from (L + 0.05) / 0.05 = 1.05 / (L + 0.05). */
const BLACK_FROM = 0.179;

/** Returns black or white, whichever contrasts more with the fill. */
export function textOn(fill: string): string {
  return luminance(rgb(fill)) > BLACK_FROM ? "#000000" : "#ffffff";
}

/** Returns an index into `changeFills`. The first and the last fill are for frames that are in only one of the two
 * compared runs. */
export function changeStep(now: number, old: number, steps: number): number {
  const middle = (steps - 1) / 2;
  const larger = Math.max(now, old);
  if (now === old) return middle;
  const relative = (now - old) / larger;
  const size = Math.min(now, old) <= 0 ? middle : Math.ceil(Math.abs(relative) * (middle - 1));
  return middle + size * Math.sign(relative);
}

export function rgb(colour: string): Rgb {
  return [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16)) as unknown as Rgb;
}

function hex(colour: Rgb): string {
  return `#${colour.map((part) => Math.round(part).toString(16).padStart(2, "0")).join("")}`;
}

function mix(from: Rgb, to: Rgb, share: number): Rgb {
  return from.map((part, index) => part + (to[index]! - part) * share) as unknown as Rgb;
}

/** Returns the contrast ratio of two colours, as WCAG 2 defines it. */
export function contrast(one: string, other: string): number {
  const [low, high] = [luminance(rgb(one)), luminance(rgb(other))].sort((a, b) => a - b) as [number, number];
  return (high + 0.05) / (low + 0.05);
}

function luminance(colour: Rgb): number {
  const [red, green, blue] = colour.map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
