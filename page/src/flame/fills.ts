// Chooses the fill of each frame. It depends on the frame's kind, or on the frame's change if two runs are compared.
import { changeStep, faded, hatchLine, KIND_HATCHED, type Palette, textOn } from "./colours.ts";
import { element } from "./dom.ts";
import { KIND_ROOT } from "./model.ts";
import type { Names } from "./names.ts";
import type { Tree } from "./tree.ts";

export interface Fill {
  colour: string;
  text: string;
  /** Pattern of hatch lines over the colour, or null for a plain fill. */
  hatch: CanvasPattern | null;
}

export interface FrameColours {
  background: string;
  ink: string;
  fillOf(node: number, isMatch: Uint8Array | null): Fill;
}

/** Returns the fills for all frames. `context` creates the pattern of hatch lines. */
export function frameColours(context: CanvasRenderingContext2D, palette: Palette, names: Names, tree: Tree): FrameColours {
  const byKind = palette.kinds.map((colour, kind) => pair(context, palette, colour, kind === KIND_HATCHED));
  const byChange = palette.changeFills.map((colour) => pair(context, palette, colour, false));
  const pairOf = (node: number) => {
    if (tree.old) return byChange[changeStep(tree.total[node]!, tree.old[node]!, byChange.length)]!;
    return byKind[names.kind[tree.name[node]!] ?? KIND_ROOT]!;
  };
  return {
    background: palette.background,
    ink: palette.ink,
    fillOf: (node, isMatch) => pairOf(node)[isMatch && !isMatch[node] ? 1 : 0],
  };
}

/** Returns a fill, and the corresponding fill for frames that do not match a search. */
function pair(context: CanvasRenderingContext2D, palette: Palette, colour: string, isHatched: boolean): [Fill, Fill] {
  const pale = faded(colour, palette);
  const hatch = isHatched ? hatchOf(context, hatchLine(colour)) : null;
  return [
    { colour, text: textOn(colour), hatch },
    { colour: pale, text: textOn(pale), hatch: null },
  ];
}

function hatchOf(context: CanvasRenderingContext2D, line: string): CanvasPattern | null {
  const tile = element("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d")!;
  pen.strokeStyle = line;
  pen.lineWidth = 1.5;
  for (const shift of [-8, 0, 8]) {
    pen.moveTo(shift, 8);
    pen.lineTo(shift + 8, 0);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}
