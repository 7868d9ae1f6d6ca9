// Markdown of agents, which is hostile until it is sanitised. No script, style, form, frame or image passes, no
// address other than those of the web and mail, and no id or class that could imitate a part of this page. It
// loads nothing from other servers.

import { Marked } from './vendor/marked.js';
import DOMPurify from './vendor/purify.js';
import { copyButton, fill, h } from './dom.js';

const marked = new Marked({
  gfm: true,
  renderer: {
    checkbox({ checked }) { return checked ? '☑ ' : '☐ '; }, // a form element would be removed
    // A picture's address could leak the agent's data to another server.
    image({ href, text }) { return `<a href="${href.replace(/["<>&]/g, (c) => `&#${c.charCodeAt(0)};`)}">${(text || 'picture').replace(/[<>&]/g, (c) => `&#${c.charCodeAt(0)};`)}</a>`; },
  },
});

const purify = DOMPurify(window);
const allowed = {
  ALLOWED_TAGS: ['a', 'b', 'blockquote', 'br', 'code', 'del', 'details', 'em', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'hr', 'i', 'kbd', 'li', 'ol', 'p', 'pre', 's',
    'span', 'strong', 'sub', 'summary', 'sup', 'table', 'tbody', 'td', 'th', 'thead', 'tr', 'ul'],
  ALLOWED_ATTR: ['href', 'title', 'start', 'align', 'colspan', 'rowspan', 'class'],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ADD_URI_SAFE_ATTR: ['align', 'colspan', 'rowspan', 'start'], // their values are not addresses
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

purify.addHook('uponSanitizeAttribute', (node, data) => {
  if (data.attrName === 'class' && !(node.nodeName === 'CODE' && /^language-[\w+#.-]{1,30}$/.test(data.attrValue))) data.keepAttr = false;
});

// markdown returns a fragment. Code is highlighted once the text is complete, not while it streams.
export function markdown(text, complete) {
  const fragment = purify.sanitize(marked.parse(text), allowed);
  for (const a of fragment.querySelectorAll('a[href]')) {
    a.target = '_blank';
    a.rel = 'noopener noreferrer nofollow';
  }
  for (const block of fragment.querySelectorAll('p, li, h1, h2, h3, h4, h5, h6, td, th, blockquote')) block.dir = 'auto';
  for (const table of fragment.querySelectorAll('table')) {
    const box = h('div', { class: 'wide', tabindex: '0' });
    table.replaceWith(box);
    box.append(table);
  }
  for (const code of fragment.querySelectorAll('pre > code')) {
    const pre = code.parentElement;
    const language = /language-(\S+)/.exec(code.className)?.[1] ?? '';
    const box = h('div', { class: 'codeblock' }, h('div', { class: 'codehead' }, h('span', null, language || 'text'), copyButton(() => code.textContent, code)));
    pre.replaceWith(box);
    pre.tabIndex = 0;
    box.append(pre);
    if (complete) highlight(code, language);
  }
  return fragment;
}

let loading;

// highlight colours code once the library is loaded, which happens for the first code.
async function highlight(code, language) {
  loading ??= import('./vendor/highlight.js').then((m) => m.default);
  const hljs = await loading;
  const text = code.textContent;
  if (!hljs.getLanguage(language) || text.length > 100_000) return;
  fill(code, paint(hljs.highlight(text, { language, ignoreIllegals: true })._emitter.rootNode.children));
}

// paint makes nodes of the library's tree, so that the library's HTML need not be trusted.
function paint(children) {
  return children.map((c) => (typeof c === 'string' ? document.createTextNode(c) : h('span', { class: `hljs-${String(c.scope).split('.')[0]}` }, paint(c.children))));
}
