"use strict";
(() => {
  const EVERY = 2000; // milliseconds
  const FOCUS = "main a, main summary, main [tabindex]";
  const notice = document.getElementById("connection");
  let version = document.documentElement.dataset.version;
  // Neither the eye nor the keyboard loses its place: charts keep their height, folds stay open, focus stays.
  const keep = () => {
    const focus = [...document.querySelectorAll(FOCUS)].filter((each) => !each.closest(".vega-embed"));
    return {
      heights: new Map([...document.querySelectorAll(".chart")].map((each) => [each.id, each.offsetHeight])),
      open: new Set([...document.querySelectorAll("details.fold[open] > summary")].map((each) => each.textContent)),
      focused: focus.indexOf(document.activeElement),
    };
  };
  const restore = (kept) => {
    document.querySelectorAll(".chart").forEach((each) => {
      each.style.minHeight = (kept.heights.get(each.id) ?? 160) + "px";
    });
    document.querySelectorAll("details.fold > summary").forEach((each) => {
      each.parentElement.open = kept.open.has(each.textContent);
    });
    const focus = [...document.querySelectorAll(FOCUS)].filter((each) => !each.closest(".vega-embed"));
    focus[kept.focused]?.focus({preventScroll: true});
  };
  const renew = (text) => {
    const next = new DOMParser().parseFromString(text, "text/html");
    const kept = keep();
    for (const part of ["header", "main"]) {
      document.querySelector(part).replaceWith(next.querySelector(part));
    }
    document.title = next.title;
    restore(kept);
    dispatchEvent(new Event("renewed"));
  };
  const look = async () => {
    try {
      const answer = await fetch("/", {headers: {"If-None-Match": `"${version}"`}, cache: "no-store"});
      if (answer.status === 200) {
        version = answer.headers.get("ETag").slice(1, -1);
        renew(await answer.text());
      } else if (answer.status !== 304) {
        throw new Error(answer.statusText);
      }
      notice.hidden = true;
    } catch {
      notice.textContent = "Nothing new arrives: sparsefed watch has ended or does not answer.";
      notice.hidden = false;
    }
    setTimeout(look, EVERY);
  };
  setTimeout(look, EVERY);
})();
