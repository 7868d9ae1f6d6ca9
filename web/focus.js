// The keyboard focus. Elements that have it may be replaced, removed or disabled; it then moves on purpose, since
// a browser would return it to the beginning of the page.

import { fill } from './dom.js';

const controls = 'a[href], button, input, select, textarea, summary, [tabindex]';
const name = (el) => el.getAttribute('aria-label') ?? el.getAttribute('href') ?? (el.name || el.textContent);
const usable = (el) => !el.disabled && el.checkVisibility();

// keyboard reports whether the device has a keyboard. On a touch screen, a text field with the focus calls up one that
// covers half of the screen.
export const keyboard = () => !matchMedia('(pointer: coarse)').matches;

// isLost reports whether no element has the focus.
export const isLost = () => document.activeElement === null || document.activeElement === document.body;

// take gives the focus to an element that may be no control, such as a heading.
export function take(el) {
  if (!el.matches(controls)) el.tabIndex = -1;
  el.focus({ preventScroll: true });
}

// takeView gives the focus to the heading of the view, or to an element in its place.
export function takeView(el = document.querySelector('main h1') ?? document.getElementById('main')) {
  if (el) take(el);
}

// refill replaces the children of an element, like replaceChildren. A control with the focus passes it on: to the
// control with the same name, else to the one at the same place, else to the element itself.
export function refill(el, ...children) {
  const had = document.activeElement !== el && el.contains(document.activeElement) ? document.activeElement : null;
  const before = had && [...el.querySelectorAll(controls)];
  fill(el, children);
  if (!had || el.contains(document.activeElement)) return;
  const same = (all) => all.filter((c) => name(c) === name(had)); // rows may have buttons of the same name
  const after = [...el.querySelectorAll(controls)].filter(usable);
  take(same(after)[same(before).indexOf(had)] ?? after[Math.min(before.indexOf(had), after.length - 1)] ?? el);
}

// disable disables controls and returns a function that enables them again, which also returns the focus to the
// control that lost it.
export function disable(all) {
  const had = all.find((c) => c === document.activeElement);
  for (const c of all) c.disabled = true;
  return () => {
    for (const c of all) c.disabled = false;
    if (had && (isLost() || document.activeElement === had) && had.isConnected) had.focus({ preventScroll: true });
  };
}
