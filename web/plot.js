// Plots, by uPlot, which is loaded for the first one. Screen readers cannot read a plot. Its numbers are in a
// table beside it, and the words below its title describe the most important of them.

import { h, own } from './dom.js';
import { onTheme } from './theme.js';

let library;
function load() {
  library ??= Promise.all([import('./vendor/uplot.js'), new Promise((done, failed) => {
    document.head.append(h('link', { rel: 'stylesheet', href: own('vendor/uplot.css'), onload: done, onerror: failed }));
  })]).then(([m]) => m.default);
  return library;
}

const forced = matchMedia('(forced-colors: active)');

// powers of two are the ticks of an axis of bytes.
const powers = Array.from({ length: 50 }, (_, i) => 2 ** i);

// plot draws series, each [name, numbers], into el. x are numbers, or Unix times; unit formats a number. It
// returns functions that show other data with other words, and that remove the plot.
export async function plot(el, title, x, series, { time = true, bars = false, unit = null } = {}) {
  const uPlot = await load();
  const words = h('span', { class: 'meta' });
  const box = h('figure', { class: 'plot' }, h('figcaption', null, title, ' ', words));
  el.append(box);
  // The colours are those of the current scheme, which may change.
  const probe = h('span', { hidden: true }); // a canvas knows no variables
  box.append(probe);
  const colour = (name) => () => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const colours = ['--k3', '--k4', '--k2', '--k1'].map(colour);
  const axis = { stroke: colour('--soft'), grid: { stroke: colour('--line'), width: 1 }, ticks: { stroke: colour('--line') } };
  const u = new uPlot({
    width: Math.max(240, box.clientWidth || 320), height: 190, scales: { x: { time }, ...(unit ? { y: { range: (_, min, max) => [0, max > 0 ? max * 1.1 : 1] } } : {}) }, axes: [{ ...axis, ...(time ? {} : { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }) }, { ...axis, size: unit ? 84 : 60, ...(unit ? { values: (_, marks) => marks.map(unit) } : {}), ...(unit && unit(1024) !== '1024' ? { incrs: powers } : {}) }], legend: { show: series.length > 1, live: false }, cursor: { show: false },
    series: [{}, ...series.map(([label], i) => ({ label, stroke: colours[i % 4], fill: bars ? colours[i % 4] : undefined, width: 2, paths: bars ? uPlot.paths.bars({ size: [0.7, 40] }) : undefined, points: { show: !bars && x.length < 40 } }))],
  }, [x, ...series.map(([, y]) => y)], box);
  const sizes = new ResizeObserver(() => { if (box.clientWidth > 0 && Math.abs(box.clientWidth - u.width) > 8) u.setSize({ width: Math.max(240, box.clientWidth), height: 190 }); });
  sizes.observe(box);
  const repaint = () => u.redraw();
  forced.addEventListener('change', repaint);
  const ignore = onTheme(repaint);
  return {
    show(x, series, text) {
      u.setData([x, ...series.map(([, y]) => y)]);
      words.textContent = text;
    },
    destroy() {
      sizes.disconnect();
      forced.removeEventListener('change', repaint);
      ignore();
      u.destroy();
    },
  };
}
