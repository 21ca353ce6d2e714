// What is wrong with the texts of a page: cut off, on top of each other, or hard to read. Returns sentences.
(() => {
  const problems = [];
  const name = (node) => JSON.stringify(node.textContent.trim().slice(0, 40));
  const visible = (node) => {
    const box = node.getBoundingClientRect();
    return box.width > 0 && box.height > 0 && node.textContent.trim() && getComputedStyle(node).visibility !== "hidden";
  };
  const parse = (text) => {
    const parts = (text.match(/[\d.]+/g) || []).map(Number);
    const scale = text.startsWith("color(srgb") ? 255 : 1;
    return [parts[0] * scale, parts[1] * scale, parts[2] * scale, parts.length > 3 ? parts[3] : 1];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[3] * top[i] + (1 - top[3]) * below[i]).concat(1);
  const luminance = (c) => {
    const linear = c.slice(0, 3).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const contrast = (one, other) => {
    const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const paper = (node) => {
    const colours = [];
    for (let at = node; at; at = at.parentElement) colours.push(parse(getComputedStyle(at).backgroundColor));
    return colours.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const wanted = (style) => (parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && +style.fontWeight >= 700) ? 3 : 4.5);

  for (const node of document.body.querySelectorAll("*")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || node.closest("svg, script, style, noscript, .vega-actions") || !visible(node)) continue;
    const style = getComputedStyle(node);
    const found = contrast(over(parse(style.color), paper(node)), paper(node));
    if (found < wanted(style)) problems.push(`contrast ${found.toFixed(2)}: ${name(node)}`);
    const box = node.getBoundingClientRect();
    const scrolls = node.closest(".scroll, pre, details:not([open])");
    if (!scrolls && (box.right > document.documentElement.clientWidth + 1 || box.left < -1)) problems.push(`cut off: ${name(node)}`);
    if (!scrolls && style.overflow !== "visible" && node.scrollWidth > node.clientWidth + 1) problems.push(`cut off: ${name(node)}`);
  }
  // Slanted names: their boxes overlap, they do not, if their lines are far enough apart.
  const beside = (one, other) => {
    const [a, b] = [one, other].map((text) => text.getScreenCTM());
    if (Math.abs(a.b) < 0.1 || Math.abs(a.b - b.b) > 0.01) return false;
    const length = Math.hypot(a.a, a.b);
    return Math.abs((a.e - b.e) * a.b - (a.f - b.f) * a.a) / length >= 9;
  };
  for (const chart of document.querySelectorAll(".chart svg.marks")) {
    const frame = chart.getBoundingClientRect();
    const card = paper(chart.parentElement);
    const texts = [...chart.querySelectorAll("text")].filter((t) => visible(t) && getComputedStyle(t).opacity !== "0" && !t.closest("[display=none]"));
    const boxes = texts.map((t) => t.getBoundingClientRect());
    texts.forEach((text, i) => {
      const box = boxes[i];
      if (box.left < frame.left - 2 || box.right > frame.right + 2 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2)
        problems.push(`outside its chart: ${name(text)} of ${chart.closest(".chart").id}`);
      let below = card;
      if (text.closest(".on_colour_marks")) {
        const x = box.left + box.width / 2, y = box.top + box.height / 2;
        const square = [...chart.querySelectorAll(".mark-rect path")].find((p) => {
          const b = p.getBoundingClientRect();
          return b.left <= x && x <= b.right && b.top <= y && y <= b.bottom;
        });
        if (square) below = parse(getComputedStyle(square).fill);
      }
      const found = contrast(parse(getComputedStyle(text).fill), below);
      if (found < 4.5) problems.push(`contrast ${found.toFixed(2)}: ${name(text)} of ${chart.closest(".chart").id}`);
      for (let j = 0; j < i; j++) {
        const other = boxes[j];
        const across = Math.min(box.right, other.right) - Math.max(box.left, other.left);
        const down = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
        if (across > 2 && down > 4 && !beside(text, texts[j])) problems.push(`on top of each other: ${name(texts[j])} and ${name(text)} of ${chart.closest(".chart").id}`);
      }
    });
  }
  return [...new Set(problems)].slice(0, 30);
})()
