// Names of frames with their kinds and places. The data's names come first; the viewer appends its own, such as `stream 7`.
import { shorten } from "./format.ts";
import { type FlameModel, KIND_ROOT } from "./model.ts";

/** Characters that would hide or reorder the rest of a name. */
const INVISIBLE = /[\0-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** The mark that folded stacks put on a kernel's name; the colour shows the same. */
const KERNEL_MARK = /\s*\[GPU\d*_Kernel\]\s*/;

/** File and line, at the start of the names of Python's functions. */
const PLACE = /^(\S+\.py\(\d+\)|nn\.Module): /;

/** The text of a frame with room for `room` characters: without its mark, and without its place if that is too long. */
export function fitted(name: string, room: number): string {
  const label = name.replace(KERNEL_MARK, "");
  return shorten(label.length <= room ? label : label.replace(PLACE, ""), room);
}

/** Returns `name` with a visible sign for each character that could not be seen. */
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

  /** Index of a name of the viewer's own or of another model. */
  function intern(name: string, ofKind: number | undefined = KIND_ROOT, at: string | null = null): number {
    return known.get(keyOf(name, ofKind, at)) ?? add(name, ofKind, at);
  }

  return { text, kind, place, intern };
}

function keyOf(name: string, kind: number | undefined, place: string | null | undefined): string {
  return `${kind}\n${place ?? ""}\n${name}`;
}
