// Tests the contrast of colours by WCAG 2, and their distances as readers with dichromacy see them (Machado, Oliveira
// and Fernandes 2009, severity 1).
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { changeStep, contrast, DARK, faded, hatchLine, LIGHT, type Rgb, rgb, textOn } from "../src/flame/colours.ts";
import { KINDS } from "../src/flame/model.ts";
import { CAUSE_COLOURS, CLASS_COLOURS, NAME_COLOURS, OTHER_COLOUR } from "../src/timeline_colours.ts";

const MIN_CONTRAST = 4.5;
/** Minimum CIE76 distance between two colours. A distance of about 2.3 is just noticeable side by side. */
const MIN_DISTANCE = 10;

type Matrix = readonly [Rgb, Rgb, Rgb];
const SIGHTS: Record<string, Matrix> = {
  trichromacy: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritanopia: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};

function apply(matrix: Matrix, [red, green, blue]: Rgb): Rgb {
  const row = ([a, b, c]: Rgb) => a * red + b * green + c * blue;
  return [row(matrix[0]), row(matrix[1]), row(matrix[2])];
}

function lab(linear: Rgb): Rgb {
  const xyz = apply([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]], linear);
  const f = (value: number) => (value > 0.008856 ? Math.cbrt(value) : 7.787 * value + 16 / 116);
  const [x, y, z] = [f(xyz[0] / 0.95047), f(xyz[1]), f(xyz[2] / 1.08883)];
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

function seen(colour: string, sight: Matrix): Rgb {
  const linear = rgb(colour).map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }) as unknown as Rgb;
  const simulated = apply(sight, linear).map((part) => Math.min(1, Math.max(0, part))) as unknown as Rgb;
  return lab(simulated);
}

function distance(one: string, other: string, sight: Matrix): number {
  const [a, b] = [seen(one, sight), seen(other, sight)];
  return Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
}

test("contrast is WCAG's", () => {
  assert.equal(contrast("#000000", "#ffffff"), 21);
  assert.equal(contrast("#777777", "#ffffff").toFixed(2), "4.48");
});

test("text on every fill has a contrast of 4.5, faded by a search too, and on the hatch", () => {
  for (const palette of [LIGHT, DARK]) {
    assert.equal(palette.kinds.length, KINDS.length);
    const fills = [...palette.kinds, ...palette.changeFills];
    for (const fill of [...fills, ...fills.map((fill) => faded(fill, palette)), ...palette.kinds.map(hatchLine)]) {
      assert.ok(contrast(fill, textOn(fill)) >= MIN_CONTRAST, fill);
    }
    assert.ok(contrast(palette.ink, palette.background) >= MIN_CONTRAST);
  }
});

/** Colours of the rows of a timeline, which are the same in both schemes. */
const TIMELINE: Record<string, Record<string, string>> = {
  causes: { ...CAUSE_COLOURS, busy: "#1fa487" },
  classes: CLASS_COLOURS,
  names: Object.fromEntries([...NAME_COLOURS, OTHER_COLOUR].map((colour) => [colour, colour])),
};

test("text on the colours of a timeline and of the bars has a contrast of 4.5", () => {
  for (const fill of Object.values(TIMELINE).flatMap((palette) => Object.values(palette))) {
    assert.ok(contrast(fill, textOn(fill)) >= MIN_CONTRAST, fill);
  }
});

test("colours in a row of a timeline keep apart for readers with and without colour blindness", () => {
  const close: string[] = [];
  for (const [row, palette] of Object.entries(TIMELINE)) {
    const all = Object.entries(palette);
    for (const [sight, matrix] of Object.entries(SIGHTS)) {
      all.forEach(([one, colour], at) => {
        for (const [other, second] of all.slice(at + 1)) {
          const apart = distance(colour, second, matrix);
          if (apart < MIN_DISTANCE) close.push(`${row} ${sight}: ${one} and ${other} ${apart.toFixed(1)}`);
        }
      });
    }
  }
  assert.deepEqual(close, []);
});

test("causes have one colour in the bars and in the timeline, and text of the page has a contrast of 4.5 in both schemes", () => {
  const style = readFileSync("src/page.css", "utf8");
  const [light, dark] = style.split("prefers-color-scheme: dark").map((part) => new Map([...part.matchAll(/^ +--(\S+): (#[0-9a-f]{6});/gm)].map(([, name, colour]) => [name!, colour!])));
  const bars = { host_late: "host-late", launch_latency: "launch", dependency: "dependency", before_the_first: "before", after_the_last: "after", unknown: "unknown" };
  for (const [cause, name] of Object.entries(bars)) assert.equal(light!.get(name), CAUSE_COLOURS[cause], cause);
  assert.equal(light!.get("busy"), TIMELINE["causes"]!["busy"]);
  for (const scheme of [light!, dark!]) {
    for (const ink of ["fg", "muted", "accent", "warn"]) {
      for (const ground of ["bg", "panel"]) {
        const found = contrast(scheme.get(ink)!, scheme.get(ground)!);
        assert.ok(found >= MIN_CONTRAST, `${ink} on ${ground}: ${found.toFixed(2)}`);
      }
    }
  }
});

test("kinds keep apart for readers with and without colour blindness", () => {
  const close: string[] = [];
  for (const [scheme, palette] of Object.entries({ LIGHT, DARK })) {
    for (const [sight, matrix] of Object.entries(SIGHTS)) {
      palette.kinds.forEach((one, a) => {
        palette.kinds.forEach((other, b) => {
          const apart = distance(one, other, matrix);
          if (a < b && apart < MIN_DISTANCE) close.push(`${scheme} ${sight}: ${KINDS[a]} and ${KINDS[b]} ${apart.toFixed(1)}`);
        });
      });
    }
  }
  assert.deepEqual(close, []);
});

test("more and less keep apart", () => {
  for (const palette of [LIGHT, DARK]) {
    for (const matrix of Object.values(SIGHTS)) {
      assert.ok(distance(palette.changeFills[0]!, palette.changeFills[8]!, matrix) >= MIN_DISTANCE);
    }
  }
});

test("the step of a change is in the middle for none and at the ends for new and gone", () => {
  assert.deepEqual([changeStep(5, 5, 9), changeStep(5, 0, 9), changeStep(0, 5, 9), changeStep(0, 0, 9)], [4, 8, 0, 4]);
  assert.deepEqual([changeStep(20, 10, 9), changeStep(10, 20, 9), changeStep(101, 100, 9), changeStep(900, 1, 9)], [6, 2, 5, 7]);
});
