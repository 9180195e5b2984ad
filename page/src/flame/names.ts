// Names of frames with their kinds and places. The names in the data come first. The viewer appends its own names, such
// as `stream 7`.
import { shorten } from "./format.ts";
import { type FlameModel, KIND_ROOT } from "./model.ts";

/** Characters that would hide the rest of a name, or change the order of its letters. */
const INVISIBLE = /[\0-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Mark in the names of kernels in folded stacks. Labels omit the mark, because the colour shows that the frame is a
 * kernel. */
const KERNEL_MARK = /\s*\[GPU\d*_Kernel\]\s*/;

/** File and line, which are at the start of the names of Python functions. */
const PLACE = /^(\S+\.py\(\d+\)|nn\.Module): /;

/** Returns the text of a frame in at most `room` characters. The mark is omitted, and so is the place if there is no
 * room for it. */
export function fitted(name: string, room: number): string {
  const label = name.replace(KERNEL_MARK, "");
  return shorten(label.length <= room ? label : label.replace(PLACE, ""), room);
}

/** Returns `name` with a visible character in place of each invisible one. */
export function visible(name: string): string {
  return name.replace(INVISIBLE, "\ufffd");
}

export type Names = ReturnType<typeof createNames>;

export function createNames(model: FlameModel) {
  const text: string[] = [];
  const kind: number[] = [];
  const place: (string | null | undefined)[] = [];
  const known = new Map<string, number>();
  const add = (name: string, ofKind: number | undefined, at: string | null | undefined) => {
    kind.push(ofKind ?? 0);
    place.push(at);
    known.set(keyOf(name, ofKind, at), text.length);
    return text.push(visible(name)) - 1;
  };
  model.names.forEach((name, index) => add(name, model.kinds[index], model.places[index]));

  /** Returns the index of a name from the viewer itself or from another model. Adds the name if it is new. */
  function intern(name: string, ofKind: number | undefined = KIND_ROOT, at: string | null = null): number {
    return known.get(keyOf(name, ofKind, at)) ?? add(name, ofKind, at);
  }

  return { text, kind, place, intern };
}

function keyOf(name: string, kind: number | undefined, place: string | null | undefined): string {
  return `${kind}\n${place ?? ""}\n${name}`;
}
