// Holds the selected step, which several panels show.

type Listener = (step: number | null) => void;

export class Selection {
  #step: number | null = null;
  #listeners: Listener[] = [];

  get step(): number | null {
    return this.#step;
  }

  set step(step: number | null) {
    this.#step = step;
    this.#listeners.forEach((listener) => listener(step));
  }

  listen(listener: Listener): void {
    this.#listeners.push(listener);
  }
}
