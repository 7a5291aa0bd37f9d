// What a page looks like to its reader, for tests/acceptance/page/mod.rs.
(() => {
  const numbers = (color) => (color.match(/[\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  // The colour behind an element: the nearest one that is not transparent.
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = numbers(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const contrast = (a, b) => {
    const [light, dark] = [luminance(a), luminance(b)].sort((x, y) => y - x);
    return (light + 0.05) / (dark + 0.05);
  };
  const faint = new Map();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let read = 0;
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const element = text.parentElement;
    const style = getComputedStyle(element);
    const color = numbers(style.color);
    // What is drawn transparent is no text for the eye.
    if (!text.data.trim() || element.closest(".unseen") || color[3] === 0 || !element.getClientRects().length) continue;
    read += 1;
    const ratio = contrast(color, behind(element));
    if (ratio < 4.5) faint.set(`${element.className || element.tagName}: ${text.data.trim().slice(0, 40)}`, ratio);
  }
  const bars = [...document.querySelectorAll(".track i")].map((bar) => {
    const [own, track] = [bar.getBoundingClientRect(), bar.parentElement.getBoundingClientRect()];
    return own.width > 0 && own.height > 0 && own.left >= track.left - 2.5 && own.left <= track.right;
  });
  const box = document.querySelector(".timeline .scroll");
  const named = (element) => element.getAttribute("aria-label") || element.getAttribute("aria-labelledby");
  return {
    width: Math.max(document.documentElement.scrollWidth, document.body.scrollWidth),
    height: document.documentElement.scrollHeight,
    light: luminance(behind(document.body)) > 0.5,
    texts: read,
    faint: [...faint],
    bars: bars.length,
    strayBars: bars.filter((fine) => !fine).length,
    timelineScrolls: box.scrollWidth > box.clientWidth,
    boxHeight: box.clientHeight,
    title: document.title,
    headings: [...document.querySelectorAll("h1, h2")].map((heading) => heading.tagName),
    unnamed: [...document.querySelectorAll("[role=img], [role=region]")].filter((element) => !named(element)).length,
    headless: [...document.querySelectorAll("table")].filter((table) => !table.caption || !table.querySelector("th[scope=col]")).length,
    ids: document.querySelectorAll("[id]").length - new Set([...document.querySelectorAll("[id]")].map((element) => element.id)).size,
  };
})()
