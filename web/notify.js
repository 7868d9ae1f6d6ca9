// Notifications of the browser about what waits in the inbox, if the person wants them.

import { h, own } from './dom.js';
import { prefer, preference } from './drafts.js';

const wanted = 'notify';

const show = (title, more) => new Notification(title, { icon: own('icon.svg'), ...more });

// notify tells the person about an item. Tabs of one browser show it once, as it has the same tag in each.
export function notify(item) {
  if (preference(wanted) !== 'yes' || window.Notification?.permission !== 'granted') return;
  const n = show(item.title || 'Harvest', { body: item.what, tag: `harvest-${item.number}` });
  n.onclick = () => {
    focus();
    location.hash = item.session_id ? `#/s/${item.session_id}` : '#/secrets';
    n.close();
  };
}

// notifyChoice returns the control that turns notifications on; nothing if the browser has none.
export function notifyChoice() {
  if (!window.Notification) return null;
  const problem = h('small', { role: 'status' });
  const box = h('input', { type: 'checkbox', checked: preference(wanted) === 'yes' && Notification.permission === 'granted', onchange: async () => {
    problem.textContent = '';
    prefer(wanted, '');
    if (!box.checked) return;
    try {
      if (await Notification.requestPermission() !== 'granted') throw new Error();
      show('Harvest', { body: 'You will be told here when a session waits for you.', tag: 'harvest' });
      prefer(wanted, 'yes');
    } catch { // a refusal, or a browser that lets no page notify
      box.checked = false;
      problem.textContent = 'The browser does not allow notifications of this page.';
    }
  } });
  return h('div', null, h('label', { class: 'choice' }, box, h('span', null, 'Notify me in this browser')), problem);
}
