// Elements without a framework. Nothing here takes HTML as text: what agents, repositories and file names say becomes text nodes.

// h makes an element. Attributes with a function are listeners, true is an attribute without value, null and false are none.
export function h(tag, attrs, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(attrs ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') el.addEventListener(name.replace(/^on/, ''), value);
    else if (name === 'value') el.value = value;
    else el.setAttribute(name, value === true ? '' : value);
  }
  el.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return el;
}

export const button = (label, onclick, attrs) => h('button', { type: 'button', onclick, ...attrs }, label);

// field is a labelled input; the label's text is also what screen readers say.
export function field(label, input, help) {
  return h('label', { class: 'field' }, h('span', null, label), input, help && h('small', null, help));
}

export function ms(n) {
  if (n < 1000) return `${n < 10 ? n.toFixed(1) : Math.round(n)} ms`;
  if (n < 60e3) return `${(n / 1000).toFixed(1)} s`;
  return `${Math.floor(n / 60e3)} min ${Math.round((n % 60e3) / 1000)} s`;
}

export const money = (usd) => `$${usd.toFixed(usd < 1 ? 4 : 2)}`;

export function ago(time) {
  const s = Math.max(0, (Date.now() - new Date(time)) / 1000);
  if (s < 60) return 'just now';
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ago`;
  return new Date(time).toLocaleDateString();
}

// problemBox shows what went wrong where it did, with what to do about it.
export function problemBox(p, ...actions) {
  return h('div', { class: 'problem', role: 'alert' },
    h('strong', null, (p.stage ? `${p.stage}: ` : '') + (p.detail || p.title || String(p))),
    p.remedy && h('p', null, p.remedy), p.request_id && h('small', null, `Request ${p.request_id}`), actions.length > 0 && h('div', { class: 'row' }, actions));
}

// copyButton copies a text; where browsers allow that to secure origins only, it selects it.
export function copyButton(text, from) {
  const b = button('Copy', async () => {
    try {
      await navigator.clipboard.writeText(text());
      b.textContent = 'Copied';
    } catch {
      getSelection().selectAllChildren(from);
      b.textContent = 'Selected';
    }
    setTimeout(() => { b.textContent = 'Copy'; }, 1500);
  }, { class: 'small copy', 'aria-label': 'Copy' });
  return b;
}
