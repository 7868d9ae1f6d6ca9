// The keys that work in every view: the command palette and the help.

import { lists } from './lists.js';
import { panels } from './panel.js';
import { setTheme, themes } from './theme.js';

export const mac = /Mac|iPhone|iPad/.test(navigator.platform);

const typing = 'input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]';

// goTo is an entry of the palette that opens an address.
const goTo = (name, kind, hash) => ({ name, kind, run: () => { location.hash = hash; } });

async function palette(sessions, session) {
  const { openPalette } = await import('./palette.js');
  openPalette([
    goTo('New session', 'Session', '#/'),
    ...(session ? Object.entries({ '': 'Conversation', ...panels }).map(([id, name]) => goTo(name, 'View', `#/s/${session}${id && `/${id}`}`)) : []),
    ...sessions.map((s) => goTo(s.title || 'New session', s.repo ? `Session of ${s.repo}` : 'Session', `#/s/${s.id}`)),
    ...Object.entries(lists).map(([id, name]) => goTo(name, 'List', `#/${id}`)),
    ...Object.entries(themes).map(([id, name]) => ({ name, kind: 'Theme', run: () => setTheme(id) })),
    { name: 'Keys', kind: 'Help', run: help },
  ]);
}

const help = async () => (await import('./help.js')).openHelp();

// listen acts on the keys. sessions returns those of the list, shown the one that is open.
export function listen({ sessions, shown }) {
  addEventListener('keydown', (e) => {
    if (e.defaultPrevented || e.altKey || e.target.closest?.('.xterm')) return;
    if (e.key.toLowerCase() === 'k' && !e.shiftKey && (mac ? e.metaKey && !e.ctrlKey : e.ctrlKey && !e.metaKey)) {
      e.preventDefault();
      palette(sessions(), shown());
    } else if (e.key === '?' && !e.ctrlKey && !e.metaKey && !e.target.closest?.(typing)) {
      e.preventDefault();
      help();
    }
  });
}
