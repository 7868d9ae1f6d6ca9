// Light or dark: as the system has it, or as the person chooses for this browser.

import { prefer, preference } from './drafts.js';

export const themes = { '': 'As the system', light: 'Light', dark: 'Dark' };

const system = matchMedia('(prefers-color-scheme: dark)');
const listeners = new Set();

export const theme = () => (preference('theme') in themes ? preference('theme') : '');

export const isDark = () => (theme() ? theme() === 'dark' : system.matches);

// onTheme calls f after each change of the colours, until the function that it returns is called.
export function onTheme(f) {
  listeners.add(f);
  return () => listeners.delete(f);
}

export function setTheme(name) {
  prefer('theme', name);
  apply();
}

function apply() {
  document.documentElement.dataset.theme = theme();
  for (const f of listeners) f();
}

system.addEventListener('change', apply);
addEventListener('storage', (e) => { if (e.key === 'harvest:theme') apply(); }); // another tab has chosen
apply();
