(function () {
  "use strict";
  const MARGIN = 10, CHAR_WIDTH = 7.2, MIN_CHARS = 3, GAP = 0.6, MIN_WIDTH_WITH_GAP = 2;
  const PLACE = /^(\S+\.py\(\d+\)|nn\.Module): /;
  const svg = document.currentScript.ownerSVGElement;
  const part = (name) => svg.querySelector("." + name);
  const [details, reset, matched, box, search] = ["details", "reset", "matched", "box", "search"].map(part);
  const frames = [...svg.querySelectorAll(".frames > g")].map((group) => {
    const [title, rect, text = group.appendChild(document.createElementNS(svg.namespaceURI, "text"))] = group.children;
    const y = Number(rect.getAttribute("y"));
    text.setAttribute("y", y + 11);
    const name = title.textContent.replace(/ \([^(]*\)$/, "");
    const [start, weight] = group.dataset.at.split(" ").map(Number);
    return { group, rect, text, title, name, label: title.dataset.short || name, start, end: start + weight, y };
  });
  const root = frames[frames.length - 1];
  const isAlone = svg === document.documentElement;
  let zoomed = root;
  let width = svg.viewBox.baseVal.width;

  // Frames on top of the zoomed frame fill the picture. Frames below the zoomed frame are pale.
  function place() {
    const scale = (width - 2 * MARGIN) / (zoomed.end - zoomed.start);
    for (const frame of frames) {
      const isBelow = frame.y > zoomed.y;
      const isShown = isBelow ? frame.start <= zoomed.start && frame.end >= zoomed.end : frame.start >= zoomed.start && frame.end <= zoomed.end;
      frame.group.classList.toggle("outside", !isShown);
      frame.group.classList.toggle("around", isBelow && isShown);
      if (!isShown) continue;
      const from = Math.max(frame.start, zoomed.start);
      const to = Math.min(frame.end, zoomed.end);
      const [x, size] = [MARGIN + (from - zoomed.start) * scale, (to - from) * scale];
      frame.rect.setAttribute("x", x.toFixed(2));
      frame.rect.setAttribute("width", (size < MIN_WIDTH_WITH_GAP ? size : size - GAP).toFixed(2));
      frame.text.setAttribute("x", (x + 3).toFixed(2));
      frame.text.textContent = fitted(frame.label, Math.floor((size - 6) / CHAR_WIDTH));
    }
    reset.style.display = zoomed === root ? "none" : "block";
  }

  function fitted(label, room) {
    if (label.length <= room) return label;
    const name = label.replace(PLACE, "");
    if (name.length <= room) return name;
    return room < MIN_CHARS ? "" : name.slice(0, room - 1) + "\u2026";
  }

  function zoom(frame) {
    zoomed = frame;
    place();
  }

  function find() {
    const word = search.value;
    let expression = null;
    try {
      expression = word === "" ? null : new RegExp(word);
    } catch {
      expression = { test: (name) => name.includes(word) };
    }
    const found = frames.filter((frame) => {
      const isFound = expression !== null && (expression.test(frame.name) || expression.test(frame.label));
      frame.group.classList.toggle("found", isFound);
      return isFound;
    });
    // A frame on top of a matching frame adds nothing to the sum.
    let [sum, end] = [0, 0];
    for (const frame of found.sort((one, other) => one.start - other.start || other.end - one.end)) {
      sum += Math.max(frame.end - Math.max(frame.start, end), 0);
      end = Math.max(end, frame.end);
    }
    const share = (100 * sum) / (root.end - root.start);
    matched.textContent = expression === null ? "" : `${matched.dataset.word} ${share.toFixed(1)} %`;
  }

  function fit() {
    if (isAlone) {
      width = Math.max(window.innerWidth, 400);
      svg.setAttribute("width", width);
      svg.setAttribute("viewBox", `0 0 ${width} ${svg.getAttribute("height")}`);
      matched.setAttribute("x", width - MARGIN);
      box.setAttribute("x", width - MARGIN - Number(box.getAttribute("width")));
    }
    place();
  }

  const frameOf = (event) => frames.find((frame) => frame.group === event.target.closest(".frames > g"));
  svg.addEventListener("click", (event) => {
    const frame = frameOf(event);
    if (frame) zoom(frame);
  });
  svg.addEventListener("mouseover", (event) => {
    const frame = frameOf(event);
    details.textContent = frame ? frame.title.textContent : "";
  });
  reset.addEventListener("click", () => zoom(root));
  search.addEventListener("input", find);
  if (isAlone) {
    window.addEventListener("keydown", (event) => {
      const isFind = event.key === "/" || ((event.ctrlKey || event.metaKey) && event.key === "f");
      if (isFind && document.activeElement !== search) {
        event.preventDefault();
        search.focus();
      } else if (event.key === "Escape") {
        search.value = "";
        find();
        zoom(root);
      }
    });
    window.addEventListener("resize", fit);
  }
  box.style.display = "block";
  fit();
  // A picture that is taller than the window opens at its root.
  if (isAlone) window.scrollTo(0, Number(svg.getAttribute("height")));
})();
