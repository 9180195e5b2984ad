// A table that the user can sort by a click on a column, and filter by a text.
import { element } from "./flame/dom.ts";
import { grouped, human, signed } from "./flame/format.ts";
import type { Cell, TableData } from "./report.ts";

/** Number of table rows to show at first, and to add with each click. */
const PAGE_ROWS = 30;
/** Minimum number of rows that a table needs to have a filter. */
const MIN_FILTERED_ROWS = 4;

/** Returns the data of the table without the columns whose values are all unknown. */
export function withoutUnknown(data: TableData): TableData {
  const kept = data.columns.map((_, at) => at).filter((at) => data.rows.some((row) => (row[at] ?? null) !== null));
  const pick = <T>(list: T[]) => kept.map((at) => list[at]!);
  return { ...data, columns: pick(data.columns), rows: data.rows.map(pick) };
}

/** Returns the table as an element. If `open` is given, it is called with the short name of the row that the user
 * chooses. */
export function table(all: TableData, label: string, open?: (name: string) => void): HTMLElement {
  const data = withoutUnknown(all);
  let [sortedBy, falling, limit, filter] = [-1, true, PAGE_ROWS, ""];
  const body = element("tbody");
  const status = element("p", { class: "table-status", role: "status" });
  const more = element("button", { type: "button", class: "more" }, "show more rows");
  const heads = data.columns.map((column, at) => {
    const sort = element("button", { type: "button" }, column.title);
    sort.addEventListener("click", () => {
      falling = sortedBy === at ? !falling : column.unit !== "name";
      sortedBy = at;
      draw();
    });
    return element("th", { scope: "col", class: column.unit === "name" ? "name" : "number" }, sort);
  });
  const draw = () => {
    const rows = sorted(data.rows.filter((row) => matches(row, filter)), sortedBy, falling);
    body.replaceChildren(...rows.slice(0, limit).map((row) => tableRow(data, row, open)));
    heads.forEach((head, at) => {
      if (at === sortedBy) head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    more.hidden = rows.length <= limit;
    const left = data.more > 0 ? `; ${grouped(data.more)} smaller ones are not on the page` : "";
    status.textContent = `${grouped(Math.min(limit, rows.length))} of ${grouped(rows.length)} rows${left}`;
  };
  more.addEventListener("click", () => {
    limit += PAGE_ROWS * 10;
    draw();
  });
  const input = element("input", { type: "search", placeholder: "filter", "aria-label": `filter ${label}` });
  input.addEventListener("input", () => {
    filter = input.value.toLowerCase();
    limit = PAGE_ROWS;
    draw();
  });
  draw();
  const grid = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body);
  const scroller = element("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": label }, grid);
  const bar = data.rows.length >= MIN_FILTERED_ROWS ? element("p", { class: "table-bar" }, input) : null;
  return element("div", { class: "table" }, bar, scroller, element("div", { class: "table-foot" }, status, more));
}

function tableRow(data: TableData, row: Cell[], open?: (name: string) => void): HTMLElement {
  const cells = data.columns.map((column, at) => {
    const value = row[at] ?? null;
    if (column.unit !== "name") return element("td", { class: "number" }, text(value, column.unit));
    const [short, full] = Array.isArray(value) ? value : [String(value ?? ""), String(value ?? "")];
    if (!open || at > 0) return element("td", { class: "name", title: full }, short);
    const name = element("button", { type: "button", class: "link", title: `find in the flame graph: ${full}` }, short);
    name.addEventListener("click", () => open(short));
    return element("td", { class: "name" }, name);
  });
  return element("tr", {}, ...cells);
}

/** Returns the text for a number. An unknown number is a dash. */
export function text(value: Cell, unit: TableData["columns"][number]["unit"]): string {
  if (typeof value !== "number") return value === null ? "–" : String(value);
  if (unit === "ns") return human(value, "ns");
  if (unit === "change") return signed(value, "ns");
  if (unit === "change_percent") return `${value > 0 ? "+" : ""}${value.toFixed(1)} %`;
  return unit === "percent" ? `${value.toFixed(1)} %` : grouped(value);
}

function matches(row: Cell[], filter: string): boolean {
  if (filter === "") return true;
  const contains = (cell: Cell) =>
    Array.isArray(cell) ? cell.some((name) => name.toLowerCase().includes(filter)) : String(cell).toLowerCase().includes(filter);
  return row.some((cell) => typeof cell !== "number" && cell !== null && contains(cell));
}

/** Returns the rows sorted by a column, in the given direction. Rows whose number is unknown are last. */
export function sorted(rows: Cell[][], column: number, falling: boolean): Cell[][] {
  if (column < 0) return rows;
  const sign = falling ? -1 : 1;
  const key = (row: Cell[]) => {
    const cell = row[column] ?? null;
    return Array.isArray(cell) ? cell[0] : cell;
  };
  return [...rows].sort((a, b) => {
    const [one, other] = [key(a), key(b)];
    if (one === null || other === null) return Number(one === null) - Number(other === null);
    const order = typeof one === "number" && typeof other === "number" ? one - other : String(one) < String(other) ? -1 : 1;
    return sign * order;
  });
}
