/** What the page shows of its worker, which does the work. */
/** @param {string} id */
const element = id => /** @type {HTMLElement} */ (document.getElementById(id));

/** @param {number} value */
function bytes(value) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; unit++) value /= 1000;
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

function browserName() {
  const agent = navigator.userAgent;
  for (const [mark, name] of [['Edg/', 'Edge'], ['Firefox/', 'Firefox'], ['Chrome/', 'Chrome'], ['Safari/', 'Safari']]) {
    const at = agent.indexOf(mark);
    if (at >= 0) return `${name} ${parseInt(agent.slice(at + mark.length), 10) || ''}`.trim();
  }
  return 'a browser';
}

/** @type {Worker | null} */ let worker = null;
/** @type {Record<string, number> | null} */ let before = null;
let beforeMs = 0;

/** @param {string} state @param {string} text */
function show(state, text) {
  const status = element('status'), over = state === 'failed' || state === 'ended' || state === 'left';
  document.documentElement.dataset.state = state;
  status.textContent = text;
  status.className = state === 'working' ? 'good' : state === 'failed' || state === 'lost' ? 'bad' : '';
  element('work').hidden = !before && over;
  element('leave').hidden = element('meaning').hidden = over;
  element('again').hidden = !over;
}

/** @param {Record<string, number>} counts */
function count(counts) {
  const now = performance.now(), seconds = (now - beforeMs) / 1000;
  if (before) {
    element('commands').textContent = Math.round((counts.commands - before.commands) / seconds).toLocaleString('en');
    element('in').textContent = bytes((counts.received - before.received) / seconds);
    element('out').textContent = bytes((counts.sent - before.sent) / seconds);
  }
  element('frames').textContent = counts.frames.toLocaleString('en');
  element('received').textContent = bytes(counts.received);
  element('sent').textContent = bytes(counts.sent);
  element('memory').textContent = bytes(counts.memory);
  before = counts;
  beforeMs = now;
}

/** Phones switch the screen off, and the page with it, while nobody touches them. */
async function stayAwake() {
  try {
    await navigator.wakeLock?.request('screen');
  } catch {
    // It is refused while the page is hidden, or the battery is low.
  }
}

function join() {
  worker?.terminate();
  before = null;
  const token = new URLSearchParams(location.hash.slice(1)).get('token');
  if (!token) {
    show('failed', 'This link lacks its end: open it whole, as the program shows it.');
    return;
  }
  show('joining', 'Looking for a GPU …');
  worker = new Worker('worker.js', {type: 'module'});
  worker.onmessage = ({data}) => {
    if (data.state) show(data.state, data.text);
    if (data.gpu) {
      element('gpu').textContent = data.gpu;
      element('work').hidden = false;
    }
    if (data.counts) count(data.counts);
  };
  worker.onerror = () => show('failed', 'This browser cannot run the page: a current Chrome, Edge, Firefox or Safari can.');
  worker.postMessage({url: `${location.origin.replace(/^http/, 'ws')}/session`, token, browser: browserName()});
  stayAwake();
}

element('leave').onclick = () => {
  worker?.terminate();
  worker = null;
  show('left', 'You left. The program cannot compute here any more.');
};
element('again').onclick = join;
document.addEventListener('visibilitychange', () => {
  if (worker && document.visibilityState === 'visible') stayAwake();
});
globalThis.addEventListener('hashchange', join);
join();
