// A server of the sandbox, in a frame. It has its own host name, so that its content cannot read or do anything
// with this page's rights.

import { call } from './api.js';
import { button, field, h, problemBox } from './dom.js';

const widths = [['', 'That of the view'], ['360', 'Phone, 360'], ['820', 'Tablet, 820'], ['1280', 'Desktop, 1280']]; // pixels

export async function open(body, { sandbox }) {
  const id = await sandbox();
  if (!id) {
    body.replaceChildren(h('p', null, 'There is no sandbox yet.'));
    return undefined;
  }
  const box = await call('GET', `v1/sandboxes/${id}`).catch(() => ({})); // without its ports, one can be typed
  const ports = box.ports ?? [];
  const port = h('input', { type: 'number', min: '1', max: '65535', step: '1', value: String(ports[0] ?? 8000), required: true });
  const path = h('input', { type: 'text', value: '/', autocomplete: 'off', spellcheck: 'false' });
  const error = h('div');
  const frame = h('div', { class: 'frame' });
  const outside = h('span');
  let link = null;
  const width = h('select', { onchange: () => { frame.style.width = width.value && `${width.value}px`; } }, widths.map(([value, name]) => h('option', { value }, name)));
  const reload = button('Reload', () => { // the frame has another origin, which this page cannot reload
    const shown = frame.querySelector('iframe');
    shown.replaceWith(shown.cloneNode());
  }, { hidden: true });
  const known = ports.map((number) => {
    const label = box.port_details?.find((d) => d.port === number)?.label;
    return button(label ? `${label} (${number})` : `Port ${number}`, () => {
      port.value = number;
      form.requestSubmit();
    });
  });
  const form = h('form', { class: 'inline' }, field('Port', port), field('Path', path), h('button', { type: 'submit', class: 'primary' }, 'Open'), known, field('Width', width), reload, outside);
  body.replaceChildren(h('h2', null, 'Preview'), form, error, frame);
  frame.append(h('p', { class: 'meta' }, 'Start a server in the sandbox, such as "python3 -m http.server 8000", and open its port here.'));

  const revoke = () => {
    if (link) call('DELETE', `v1/sandboxes/${id}/links/${link}`).catch(() => {}); // it also expires
    link = null;
  };
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    error.replaceChildren();
    revoke();
    try {
      const made = await call('POST', `v1/sandboxes/${id}/links`, { port: Number(port.value), expires_in_seconds: 3600 });
      link = made.id;
      const to = new URL(path.value || '/', made.url);
      to.search = `${to.search}${to.search ? '&' : '?'}${new URL(made.url).search.slice(1)}`;
      // The server allows only its own pages to show ports in frames. So the frame's request must name this
      // page's origin, without the path.
      frame.replaceChildren(h('iframe', { src: to.href, title: `Port ${port.value} of the sandbox`, referrerpolicy: 'origin',
        sandbox: 'allow-scripts allow-forms allow-popups allow-modals allow-downloads allow-same-origin' }));
      reload.hidden = false;
      outside.replaceChildren(button('Open in a new tab', () => window.open(to.href, '_blank', 'noopener,noreferrer')));
    } catch (p) {
      error.replaceChildren(problemBox(p));
    }
  });
  return revoke;
}
