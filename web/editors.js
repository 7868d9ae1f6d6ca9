// The ways into a sandbox from the user's own machine, over SSH: editors with a remote mode, and ssh itself.

import { button, copyButton, dialog, h } from './dom.js';

// links are the addresses that the editors register with the system. {at} is the host and the directory.
const links = { 'VS Code': 'vscode://vscode-remote/ssh-remote+{at}', Cursor: 'cursor://vscode-remote/ssh-remote+{at}', Zed: 'zed://ssh/{at}' };

// openEditors shows them for a sandbox, or for a session, whose sandbox may be replaced. dir is the directory to open.
export function openEditors(name, dir) {
  const host = `${name}.harvest`;
  const at = host + encodeURI(dir).replaceAll('#', '%23').replaceAll('?', '%3F');
  const line = (text) => {
    const pre = h('pre', { tabindex: '0' }, text);
    return h('div', { class: 'line' }, pre, copyButton(() => text, pre));
  };
  const el = dialog('Open in an editor', h('h2', null, 'Open in an editor'),
    h('p', null, 'Once, on your machine, with the command line of Harvest:'), line('harvest ssh-config --install'),
    h('p', { class: 'meta' }, `It must use this server: HARVEST_URL=${location.origin}, and HARVEST_API_KEY, unless the server runs on that machine.`),
    h('p', null, 'Then open the files here, where the agent works:'),
    h('div', { class: 'row editors' }, Object.entries(links).map(([editor, link], i) => h('a', { class: i === 0 ? 'button primary' : 'button', href: link.replace('{at}', () => at) }, editor))),
    h('p', null, 'Other programs, such as rsync and git, know the same host:'), line(`ssh ${host}`),
    h('div', { class: 'row' }, button('Close', () => el.close())));
}
