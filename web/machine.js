// The resource usage of a sandbox over its life: processors, memory and network, as curves, in words, and as
// numbers.

import { call } from './api.js';
import { bytes, h, table } from './dom.js';
import { plot } from './plot.js';

const shown = 20; // rows of numbers

// curves converts samples, most of them counters, to the usage between consecutive samples.
export function curves(samples) {
  const points = [];
  for (let i = 1; i < samples.length; i++) {
    const [a, b] = [samples[i - 1], samples[i]];
    const seconds = (new Date(b.at) - new Date(a.at)) / 1000;
    if (seconds > 0) {
      points.push({ at: b.at, x: new Date(b.at) / 1000, cores: (b.cpu_seconds - a.cpu_seconds) / seconds, memory: b.memory_bytes,
        received: (b.received_bytes - a.received_bytes) / seconds, sent: (b.sent_bytes - a.sent_bytes) / seconds });
    }
  }
  return points;
}

const cores = (n) => `${n.toFixed(2)} core${n.toFixed(2) === '1.00' ? '' : 's'}`;
const rate = (n) => `${bytes(n)}/s`;

// openMachine shows the usage in el while the sandbox lives, and returns a function that stops it.
export function openMachine(el, id, { failed }) {
  const about = h('p', { class: 'meta' });
  const charts = h('div', { class: 'charts' });
  const numbers = h('div');
  el.replaceChildren(h('h2', null, 'The sandbox'), about, charts, h('details', null, h('summary', null, 'In numbers'), numbers));
  let ended = false;
  let timer;
  let drawn;

  // Each curve has a title, the unit of its axis, its series, and a description in words.
  const kinds = [
    { title: 'Cores', unit: (n) => String(n), series: [['cores', 'cores']], words: (p, box) => `${cores(p.at(-1).cores)} now${box.limits.cpu ? ` of ${box.limits.cpu}` : ''}, at most ${cores(p.reduce((n, one) => Math.max(n, one.cores), 0))}` },
    { title: 'Memory', unit: bytes, series: [['memory', 'memory']], words: (p, box, used) => `${bytes(p.at(-1).memory)} now${box.limits.memory_bytes ? ` of ${bytes(box.limits.memory_bytes)}` : ''}, at most ${bytes(used.peak_memory_bytes)}` },
    { title: 'Network', unit: rate, series: [['received', 'received'], ['sent', 'sent']], words: (p, box, used) => `${rate(p.at(-1).received)} received and ${rate(p.at(-1).sent)} sent now, ${bytes(used.samples.at(-1).received_bytes)} and ${bytes(used.samples.at(-1).sent_bytes)} in all` },
  ];

  async function draw(box, used) {
    const points = curves(used.samples);
    if (points.length === 0) {
      about.textContent = box.ended_at ? 'It ended before anything was measured.' : 'Nothing was measured yet.';
      return;
    }
    about.textContent = `${used.samples.at(-1).cpu_seconds.toFixed(1)} s of CPU time so far. Memory excludes the page cache.`;
    const x = points.map((p) => p.x);
    const data = (k) => k.series.map(([name, key]) => [name, points.map((p) => p[key])]);
    drawn ??= Promise.all(kinds.map((k) => plot(charts, k.title, x, data(k), { unit: k.unit })));
    const plots = await drawn;
    plots.forEach((one, i) => one.show(x, data(kinds[i]), kinds[i].words(points, box, used)));
    const step = Math.max(1, Math.ceil(points.length / shown));
    const rows = points.filter((_, i) => (points.length - 1 - i) % step === 0);
    numbers.replaceChildren(table('What the sandbox used', ['Time', 'Cores', 'Memory', 'Received', 'Sent'], rows.map((p) => [h('time', { datetime: p.at }, new Date(p.at).toLocaleTimeString()),
      h('data', { value: p.cores }, p.cores.toFixed(2)), h('data', { value: p.memory }, bytes(p.memory)), h('data', { value: p.received }, rate(p.received)), h('data', { value: p.sent }, rate(p.sent))])));
  }

  async function look() {
    let next = 5000;
    try {
      const [box, used] = await Promise.all([call('GET', `v1/sandboxes/${id}`), call('GET', `v1/sandboxes/${id}/usage`)]);
      if (ended) return;
      await draw(box, used);
      if (box.ended_at) return;
      next = Math.min(10e3, Math.max(2000, used.interval_seconds * 1000));
    } catch (p) {
      if (ended) return;
      if (p.code === 'unsupported') {
        about.textContent = p.detail;
        return;
      }
      if (p.status === 401 || !p.retryable) {
        failed(p);
        return;
      }
    }
    if (!ended) timer = setTimeout(look, next);
  }
  look();
  return () => {
    ended = true;
    clearTimeout(timer);
    drawn?.then((plots) => plots.forEach((one) => one.destroy()), () => {});
  };
}
