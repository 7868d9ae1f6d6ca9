// Plots of numbers over something, by uPlot, which is fetched for the first one. A plot has no text that could be read aloud: its numbers stand in
// a table beside it.

import { h } from './dom.js';

let library;
function load() {
  library ??= Promise.all([import('./vendor/uplot.js'), new Promise((done, failed) => {
    document.head.append(h('link', { rel: 'stylesheet', href: 'ui/vendor/uplot.css', onload: done, onerror: failed }));
  })]).then(([m]) => m.default);
  return library;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// plot draws series, each [name, numbers], into el. x are numbers, or Unix times.
export async function plot(el, title, x, series, { time = true, bars = false } = {}) {
  const uPlot = await load();
  const box = h('figure', { class: 'plot' }, h('figcaption', null, title));
  el.append(box);
  const colours = ['--k3', '--k4', '--k2', '--k1'].map(css);
  const axis = { stroke: css('--soft'), grid: { stroke: css('--line'), width: 1 }, ticks: { stroke: css('--line') } };
  const u = new uPlot({
    width: Math.max(240, box.clientWidth || 320), height: 190, scales: { x: { time } }, axes: [{ ...axis, ...(time ? {} : { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }) }, { ...axis, size: 60 }], legend: { show: series.length > 1, live: false }, cursor: { show: false },
    series: [{}, ...series.map(([label], i) => ({ label, stroke: colours[i % 4], fill: bars ? colours[i % 4] : undefined, width: 2, paths: bars ? uPlot.paths.bars({ size: [0.7, 40] }) : undefined, points: { show: !bars && x.length < 40 } }))],
  }, [x, ...series.map(([, y]) => y)], box);
  const sizes = new ResizeObserver(() => { if (box.clientWidth > 0 && Math.abs(box.clientWidth - u.width) > 8) u.setSize({ width: Math.max(240, box.clientWidth), height: 190 }); });
  sizes.observe(box);
  return {
    destroy() {
      sizes.disconnect();
      u.destroy();
    },
  };
}
