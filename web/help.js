// The keys of the page.

import { button, dialog, h, table } from './dom.js';
import { mac } from './shortcuts.js';

const mod = mac ? '⌘' : 'Ctrl';

const keys = {
  [`${mod}+K`]: 'Go to a session, a view or a list', '?': 'These keys', Enter: 'Send the prompt', 'Shift+Enter': 'Start a new line in the prompt', 'Ctrl+Enter': 'Create a sandbox from the first prompt',
  '← → Home End': 'Move between the views of a session', [`${mod}+S`]: 'Save the open file', 'Ctrl+Shift+C': 'Copy the selection of the terminal', 'Ctrl+F6': 'Leave the terminal', Esc: 'Close a dialog, a search, or the list on a phone',
};

export function openHelp() {
  if (document.querySelector('dialog')) return;
  const el = dialog('Keys', h('h2', null, 'Keys'), table('Keys', ['Key', 'What it does'], Object.entries(keys).map(([key, what]) => [h('kbd', null, key), what])), h('div', { class: 'row' }, button('Close', () => el.close(), { autofocus: true })));
}
