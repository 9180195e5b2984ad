// Names of frames with their kinds and places. The data's names come first; the viewer appends its own, such as `stream 7`.
import { type FlameModel, KIND_ROOT } from "./model.ts";

/** Characters that would hide or reorder the rest of a name. */
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Returns `name` with a visible sign for each character that could not be seen. */
export function visible(name: string): string {
  return name.replace(INVISIBLE, "\ufffd");
}

export class Names {
  readonly text: string[];
  readonly kind: number[];
  readonly place: (string | null)[];
  private readonly index = new Map<string, number>();

  constructor(model: FlameModel) {
    this.text = model.names.map(visible);
    this.kind = model.kinds.slice();
    this.place = model.places.slice();
    model.names.forEach((name, at) => this.index.set(key(name, this.kind[at]!, this.place[at]!), at));
  }

  /** Index of a name of the viewer's own or of another model. */
  intern(name: string, kind: number = KIND_ROOT, place: string | null = null): number {
    const found = this.index.get(key(name, kind, place));
    if (found !== undefined) return found;
    this.index.set(key(name, kind, place), this.text.length);
    this.kind.push(kind);
    this.place.push(place);
    return this.text.push(visible(name)) - 1;
  }
}

function key(name: string, kind: number, place: string | null): string {
  return `${kind}\n${place ?? ""}\n${name}`;
}
