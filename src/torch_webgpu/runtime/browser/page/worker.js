/** The connection to the Python program, and its devices: in a worker, which browsers do not slow down in the background. */
import {getCapabilities, openDevice} from './torch-webgpu/device.js';
import {Gpu} from './gpu.js';

const ALIVE_MS = 2000, STATS_MS = 500, MAX_TEXT = 1 << 16;
/** @type {Gpu | null} */ let gpu = null;
/** @type {WebSocket | null} */ let socket = null;
const counts = {frames: 0, received: 0, sent: 0, commands: 0};

/** @param {string} state @param {string} text */
const show = (state, text) => postMessage({state, text});
/** @param {object} message */
const tell = message => socket?.send(JSON.stringify(message));

/** @param {unknown} error */
const words = error => String(/** @type {any} */ (error)?.message ?? error).slice(0, 2000);

/** @param {{epoch: number, features: string[], limits: Record<string, number>}} message */
async function open({epoch, features, limits}) {
  close();
  try {
    const device = await openDevice({features, limits}), opened = new Gpu(device, epoch);
    gpu = opened;
    device.lost.then(({message, reason}) => {
      if (gpu !== opened) return;
      show('lost', `The GPU was lost: ${message || reason}`);
      tell({type: 'lost', epoch, message: `${message || reason}`.slice(0, 2000)});
    });
    show('working', 'A Python program computes here.');
    tell({type: 'opened', epoch});
  } catch (error) {
    show('waiting', words(error));
    tell({type: 'refused', epoch, message: words(error)});
  }
}

function close() {
  const old = gpu;
  gpu = null;
  old?.device.destroy();
}

/** @param {unknown} error */
function refuse(error) {
  close();
  show('failed', `The program sent what this page does not understand: ${words(error)}`);
  socket?.close(4400, words(error).slice(0, 80));
}

/** @param {string} text */
function takeText(text) {
  if (text.length > MAX_TEXT) throw new Error('a long text');
  const message = JSON.parse(text);
  if (message.type === 'welcome') show('waiting', 'Joined. Waiting for the program to compute.');
  else if (message.type === 'close') close();
  else if (message.type === 'open') {
    const {epoch, features, limits} = message;
    const right = Number.isInteger(epoch) && Array.isArray(features) && features.every(name => typeof name === 'string')
      && limits && Object.values(limits).every(Number.isInteger);
    if (!right) throw new Error('a device that cannot be opened');
    open(message);
  } else throw new Error('a text of no known type');
}

/** @param {ArrayBuffer} frame */
function takeFrame(frame) {
  counts.frames++;
  counts.received += frame.byteLength;
  const before = gpu?.commands ?? 0, reply = gpu?.run(frame);
  counts.commands += (gpu?.commands ?? 0) - before;
  reply?.then(bytes => {
    if (socket?.readyState !== WebSocket.OPEN) return;
    counts.sent += bytes.byteLength;
    socket.send(bytes);
  }, refuse);
}

/** What is said where the program closes the connection. @type {Record<number, string>} */
const CLOSED = {
  1001: 'The program has ended. Thank you.',
  4400: 'The program and this page do not understand each other: reload the page.',
  4401: 'This link is not valid: it is of another program, or of one that has ended.',
  4409: 'Another tab computes for this program already. Close it to use this one.',
  4410: 'This program began on another GPU, and cannot go on with this one.',
};

/** @param {{url: string, token: string, browser: string}} options */
async function join({url, token, browser}) {
  const capabilities = await getCapabilities();
  if (!capabilities.available) {
    show('failed', `${capabilities.reason}`);
    return;
  }
  const {vendor, architecture, description} = capabilities;
  postMessage({gpu: [description, vendor, architecture].filter(Boolean).join(' ') || 'GPU'});
  const opened = new WebSocket(url, ['torch-webgpu.1', token]);
  let joined = false;
  opened.binaryType = 'arraybuffer';
  opened.onopen = () => {
    joined = true;
    socket = opened;
    tell({type: 'hello', version: 1, adapter: {...capabilities, browser}});
  };
  opened.onmessage = ({data}) => {
    try {
      if (typeof data === 'string') takeText(data);
      else takeFrame(data);
    } catch (error) {
      refuse(error);
    }
  };
  opened.onclose = ({code}) => {
    socket = null;
    close();
    show(code === 1001 ? 'ended' : 'failed', CLOSED[code] ?? (joined ? 'The connection to the program broke.' : 'The program does not answer: it has ended, or this link is of another one.'));
  };
}

setInterval(() => tell({type: 'alive'}), ALIVE_MS);
setInterval(() => postMessage({counts: {...counts, memory: gpu?.memory ?? 0}}), STATS_MS);
globalThis.onmessage = ({data}) => join(data).catch(error => show('failed', words(error)));
