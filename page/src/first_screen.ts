// The first screen of the page, which shows the findings about the run.
import { bars } from "./bars.ts";
import { element } from "./flame/dom.ts";
import { human } from "./flame/format.ts";
import type { Finding, Report } from "./report.ts";
import { command, sentence } from "./text.ts";

/** Number of findings on the first screen. */
const FIRST_FINDINGS = 3;

/** Returns the first screen of the page. `show` opens a view of the flame graph. */
export function firstScreen(report: Report, show: (view: string) => void): HTMLElement {
  return element(
    "section",
    { id: "summary", "aria-label": "Summary" },
    element("h1", {}, report.title),
    element("p", { class: "first-line" }, report.firstLine),
    ...report.culprits.map((line) => element("p", { class: "second-line" }, ...sentence(line))),
    ...report.changes.map((line) => element("p", { class: "change" }, line)),
    bars(report.bars, report.part),
    findings(report, show),
    element("ul", { class: "answers" }, ...report.answers.map((line) => element("li", {}, ...sentence(line)))),
    element("p", { class: completeClass(report) }, ...sentence(report.complete)),
    notRecorded(report),
  );
}

function completeClass(report: Report): string {
  return /not complete|lost [1-9]|\d+ lost|no activity/.test(report.complete) ? "complete incomplete" : "complete";
}

function findings(report: Report, show: (view: string) => void): HTMLElement {
  const cards = report.findings.map((finding) => card(finding, show));
  const list = element("ol", { class: "findings" }, ...cards.slice(0, FIRST_FINDINGS));
  const base = report.wall > 0 && report.findings.length > 0 ? element("span", { class: "base" }, ` in percent of ${report.part}, ${human(report.wall, "ns")}; costs overlap, so they do not add up`) : null;
  const heading = element("h2", {}, title(report.findings), base);
  const section = element("section", { class: "findings-section", "aria-label": "Findings" }, heading, list);
  if (cards.length === 0) section.append(element("p", {}, report.noneFound));
  const rest = cards.slice(FIRST_FINDINGS);
  if (rest.length > 0) {
    const label = `${rest.length} more ${rest.length === 1 ? "finding" : "findings"}`;
    const more = element("button", { type: "button", class: "more" }, label);
    more.addEventListener("click", () => {
      more.remove();
      list.append(...rest);
    });
    section.append(more);
  }
  return section;
}

function title(findings: Finding[]): string {
  if (findings.length === 0) return "Nothing stands out";
  return findings.every((finding) => finding.bad) ? "What is wrong in the data" : "What costs time";
}

function card(finding: Finding, show: (view: string) => void): HTMLElement {
  const cost = finding.share === null ? (finding.bad ? "wrong data" : "") : `${finding.share.toFixed(1)} %`;
  const time = finding.ns === null ? "" : ` ${human(finding.ns, "ns")}`;
  const head = element(
    "p",
    { class: "finding-head" },
    element("span", { class: finding.bad ? "cost bad" : "cost" }, cost),
    time === "" ? null : element("span", { class: "cost-time" }, time),
    element("span", { class: "finding-what" }, finding.what),
    element("code", { class: "finding-id" }, finding.id),
  );
  const open = element("button", { type: "button", class: "link" }, "show in the flame graph");
  open.addEventListener("click", () => show(finding.view));
  return element(
    "li",
    { class: "finding" },
    head,
    finding.culprit === "" ? null : element("p", { class: "culprit", title: finding.culprit }, finding.at),
    element("p", { class: "why" }, ...sentence(finding.why)),
    finding.remedy === "" ? null : element("p", { class: "remedy" }, ...sentence(finding.remedy)),
    command(finding.command),
    open,
  );
}

function notRecorded(report: Report): HTMLElement | null {
  if (report.notRecorded.length === 0) return null;
  const items = report.notRecorded.map(({ what, how }) => element("li", {}, ...sentence(`${what}: ${how}`)));
  return element("details", { class: "not-recorded" }, element("summary", {}, missing(report)), element("ul", {}, ...items));
}

/** Returns how many checks have no data, and how many other facts were not recorded, as text. */
function missing({ checksWithoutData: checks, otherFacts: others }: Report): string {
  const of = (count: number, noun: string) => `${count} ${noun}${count === 1 ? "" : "s"}`;
  const words = [checks > 0 ? `${of(checks, "check")} without data` : "", others > 0 ? `${of(others, "other fact")} not recorded` : ""];
  return words.filter((part) => part !== "").join(", ") || "Not recorded";
}
