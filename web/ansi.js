// Terminal output as coloured text. Cursor movements are left out; a carriage return restarts the line.

import { h } from './dom.js';

// codes are control sequences, strings such as titles and links, and short escapes (ECMA-48).
const codes = /\x1b(?:\[([0-?]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[@-Z\\^_=>78]|[()][0-9A-B])/g; // eslint-disable-line no-control-regex
const base = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];

// bare returns a text without escape codes.
export const bare = (text) => last(text.replace(codes, ''));

// last keeps the final text of each line that was overprinted, as by progress bars.
const last = (text) => (text.includes('\r') ? text.replace(/\r+\n/g, '\n').replace(/[^\n]*\r(?=[^\n])/g, '').replace(/\r/g, '') : text);

// coloured returns nodes for a text.
export function coloured(text) {
  if (!text.includes('\x1b')) return [last(text)];
  const nodes = [];
  let style = { fg: '', bg: '', bold: false, dim: false };
  let at = 0;
  const put = (piece) => {
    if (piece === '') return;
    const classes = [style.bold && 'ansi-bold', style.dim && 'ansi-dim', base.includes(style.fg) && `ansi-${style.fg}`, base.includes(style.bg) && `ansi-bg-${style.bg}`].filter(Boolean);
    const el = classes.length > 0 || style.fg || style.bg ? h('span', { class: classes.join(' ') }, piece) : piece;
    if (style.fg.startsWith('rgb')) el.style.color = style.fg;
    if (style.bg.startsWith('rgb')) el.style.backgroundColor = style.bg;
    nodes.push(el);
  };
  text = last(text);
  for (const m of text.matchAll(codes)) {
    put(text.slice(at, m.index));
    at = m.index + m[0].length;
    if (m[2] === 'm' && !/[<=>?]/.test(m[1])) style = after(style, m[1]);
  }
  put(text.slice(at));
  return nodes;
}

// after returns the style after a code (ECMA-48, SGR).
function after(style, code) {
  const all = code.split(';');
  let next = { ...style };
  for (let i = 0; i < all.length; i++) {
    const [n, ...parts] = all[i].split(':').map(Number);
    if (n === 0) next = { fg: '', bg: '', bold: false, dim: false };
    else if (n === 1) next.bold = true;
    else if (n === 2) next.dim = true;
    else if (n === 22) next.bold = next.dim = false;
    else if (n >= 30 && n <= 37) next.fg = base[n - 30];
    else if (n >= 90 && n <= 97) next.fg = base[n - 90];
    else if (n === 39) next.fg = '';
    else if (n >= 40 && n <= 47) next.bg = base[n - 40];
    else if (n >= 100 && n <= 107) next.bg = base[n - 100];
    else if (n === 49) next.bg = '';
    else if (n === 38 || n === 48 || n === 58) { // with colons, or with semicolons
      const [kind, ...values] = parts.length > 0 ? parts : all.slice(i + 1, i + 5).map(Number);
      const colour = kind === 5 ? indexed(values[0]) : kind === 2 ? rgb(parts.length > 4 ? values.slice(-3) : values.slice(0, 3)) : '';
      if (n !== 58) next[n === 38 ? 'fg' : 'bg'] = colour; // 58 is the colour of underlines
      if (parts.length === 0) i += { 2: 4, 5: 2 }[kind] ?? 0;
    }
  }
  return next;
}

const rgb = (values) => `rgb(${[0, 1, 2].map((at) => values[at] || 0).join(' ')})`;

// indexed returns a colour of xterm's 256-colour table.
function indexed(n) {
  if (!(n >= 0 && n < 256)) return '';
  if (n < 16) return base[n % 8];
  if (n >= 232) return `rgb(${Array(3).fill(8 + 10 * (n - 232)).join(' ')})`;
  const level = (v) => (v === 0 ? 0 : 55 + 40 * v);
  return `rgb(${[Math.floor((n - 16) / 36), Math.floor((n - 16) / 6) % 6, (n - 16) % 6].map(level).join(' ')})`;
}
