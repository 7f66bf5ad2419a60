"use strict";
(() => {
  // a number at the beginning of a cell: "1,234", "60.0 ± 2.8", "-0.4 (p = 0.02)", "< 0.001", "12 %"
  const missing = new Set(["", "–", "—", "not run"]);
  const start = /^[<>≤≥~≈]?\s*([+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?))/i;
  const number = (text) => {
    const found = text.replace(/(\d),(?=\d{3})/g, "$1").replace(/^([<>≤≥~≈]?\s*)−/, "$1-").match(start);
    return found === null ? NaN : parseFloat(found[1].replace(/inf\w*/i, "Infinity"));
  };
  const order = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

  for (const table of document.querySelectorAll("table")) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells], original = [...body.rows];
    if (original.length < 2) continue;
    heads.forEach((head, column) => {
      if (head.textContent.trim() === "") return;
      const button = document.createElement("button");
      button.type = "button";
      button.title = "Sort by this column";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const next = now === null ? "ascending" : now === "ascending" ? "descending" : null;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        if (next === null) return body.append(...original);
        head.setAttribute("aria-sort", next);
        const keyed = original.map((row) => ({ row, text: row.cells[column].textContent.trim() }));
        const known = keyed.filter((k) => !missing.has(k.text));
        const numeric = known.every((k) => !Number.isNaN(number(k.text)));
        const sign = next === "ascending" ? 1 : -1;
        known.sort((a, b) => sign * (numeric ? number(a.text) - number(b.text) || 0 : order.compare(a.text, b.text)));
        body.append(...[...known, ...keyed.filter((k) => missing.has(k.text))].map((k) => k.row));
      });
    });
  }

  // figures are kept as they are on paper: variables become colours again
  for (const link of document.querySelectorAll("a.svg")) {
    link.hidden = false;
    link.addEventListener("click", () => {
      const drawing = link.closest("figure").querySelector(".drawing svg").cloneNode(true);
      drawing.removeAttribute("style");
      const text = new XMLSerializer().serializeToString(drawing).replace(/var\(--c([0-9a-f]{6})\)/g, "#$1");
      if (link.href.startsWith("blob:")) URL.revokeObjectURL(link.href);
      link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    });
  }

  // what scrolls can be reached by the keyboard; what does not is no stop on the way
  const stops = () => {
    for (const box of document.querySelectorAll(".scroll")) {
      if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  stops();
  addEventListener("load", stops);
  addEventListener("resize", stops);
  document.addEventListener("toggle", stops, true);

  // on paper nothing can be unfolded
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((d) => (d.open = true));
  });
  addEventListener("afterprint", () => folded.forEach((d) => (d.open = false)));
})();
