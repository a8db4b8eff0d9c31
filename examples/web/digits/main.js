import {fail, load, ready} from '../load.js';
import {Model} from './torch-webgpu/index.js';

const $ = id => document.getElementById(id);
const SIDE = 32, CELL = 4, PEN = 4.5; // the data are bitmaps of 32 × 32, counted in cells of 4 × 4
/** A stroke for each digit: points in the field, of which there are few. @type {Record<string, number[][]>} */
const GLYPHS = {
  0: [[.5, .2], [.36, .3], [.32, .5], [.36, .7], [.5, .8], [.64, .7], [.68, .5], [.64, .3], [.5, .2]],
  1: [[.4, .32], [.52, .2], [.52, .8]],
  2: [[.34, .32], [.42, .22], [.56, .2], [.66, .3], [.64, .44], [.34, .8], [.68, .8]],
  3: [[.34, .26], [.48, .2], [.62, .26], [.62, .4], [.48, .48], [.64, .56], [.66, .7], [.5, .8], [.34, .74]],
  4: [[.58, .8], [.58, .2], [.3, .6], [.72, .6]],
  5: [[.66, .2], [.38, .2], [.36, .46], [.54, .42], [.66, .54], [.64, .72], [.5, .8], [.34, .74]],
  6: [[.6, .2], [.42, .36], [.34, .6], [.42, .78], [.58, .78], [.66, .64], [.56, .52], [.38, .58]],
  7: [[.34, .2], [.68, .2], [.44, .8]],
  8: [[.5, .48], [.36, .38], [.38, .24], [.5, .2], [.62, .24], [.64, .38], [.5, .48], [.34, .62], [.38, .76], [.5, .8], [.62, .76], [.66, .62], [.5, .48]],
  9: [[.64, .34], [.54, .22], [.4, .24], [.36, .38], [.46, .48], [.62, .42], [.64, .34], [.6, .8]],
};

/** The strokes in the middle of a bitmap, as high as it is: images [1, 1, 8, 8] from 0 to 1. */
function image(strokes) {
  const points = strokes.flat(), low = [0, 1].map(k => Math.min(...points.map(p => p[k]))), high = [0, 1].map(k => Math.max(...points.map(p => p[k])));
  const extent = Math.max(high[1] - low[1], (high[0] - low[0]) * 1.1, 1e-3), scale = (SIDE - PEN - 1) / extent;
  const bitmap = new OffscreenCanvas(SIDE, SIDE), pen = bitmap.getContext('2d', {willReadFrequently: true});
  Object.assign(pen, {lineWidth: PEN, lineCap: 'round', lineJoin: 'round'});
  for (const stroke of strokes) {
    pen.beginPath();
    for (const p of [stroke[0], ...stroke]) pen.lineTo(...[0, 1].map(k => SIDE / 2 + (p[k] - (low[k] + high[k]) / 2) * scale));
    pen.stroke();
  }
  const {data} = pen.getImageData(0, 0, SIDE, SIDE), cells = new Float32Array(64);
  for (let y = 0; y < SIDE; y++)
    for (let x = 0; x < SIDE; x++) cells[8 * Math.floor(y / CELL) + Math.floor(x / CELL)] += data[4 * (SIDE * y + x) + 3] / 255 / CELL ** 2;
  return cells;
}

const model = await load(Model).catch(fail);
if (model) {
  const canvas = $('canvas'), pen = canvas.getContext('2d'), seen = $('seen').getContext('2d');
  let strokes = [], current = null, running = false, again = false, cells = new Float32Array(64);

  const meters = Array.from({length: 10}, (_, digit) => {
    const item = document.createElement('li'), meter = document.createElement('meter'), percent = document.createElement('span');
    meter.ariaLabel = `probability of ${digit}`;
    item.append(String(digit), meter, percent);
    $('bars').append(item);
    return {item, meter, percent};
  });

  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name);

  function draw() {
    pen.clearRect(0, 0, canvas.width, canvas.height);
    Object.assign(pen, {lineWidth: 34, lineCap: 'round', lineJoin: 'round', strokeStyle: colour('--ink')});
    for (const stroke of strokes) {
      pen.beginPath();
      for (const [x, y] of [stroke[0], ...stroke]) pen.lineTo(x * canvas.width, y * canvas.height);
      pen.stroke();
    }
  }

  function show() {
    const pixels = seen.createImageData(8, 8), shade = matchMedia('(prefers-color-scheme: dark)').matches ? 255 : 0;
    cells.forEach((value, k) => pixels.data.set([shade, shade, shade, 255 * value], 4 * k));
    seen.putImageData(pixels, 0, 0);
  }

  async function read() {
    if (running) { again = true; return; }
    running = true;
    try {
      do {
        again = false;
        if (!strokes.length) break;
        const start = performance.now();
        cells = image(strokes);
        show();
        const {probabilities} = await model.run({image: cells});
        $('time').textContent = `${(performance.now() - start).toFixed(1)} ms from the page to the GPU and back`;
        if (!strokes.length) break;
        const best = probabilities.data.indexOf(Math.max(...probabilities.data));
        meters.forEach(({item, meter, percent}, digit) => {
          meter.value = probabilities.data[digit];
          percent.textContent = `${(100 * probabilities.data[digit]).toFixed(1)} %`;
          item.className = digit === best ? 'best' : '';
        });
        const digit = Object.assign(document.createElement('b'), {textContent: String(best)});
        $('answer').replaceChildren(digit, probabilities.data[best] > 0.6 ? 'is what it reads.' : 'perhaps; it is not sure.');
        document.documentElement.dataset.digit = String(best);
      } while (again);
    } catch (error) {
      fail(error);
    } finally {
      running = false;
    }
  }

  const place = event => {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  };
  canvas.addEventListener('pointerdown', event => {
    canvas.setPointerCapture(event.pointerId);
    current = [place(event)];
    strokes.push(current);
    draw();
    read();
  });
  canvas.addEventListener('pointermove', event => {
    if (!current) return;
    current.push(...(event.getCoalescedEvents?.().map(place) ?? []), place(event));
    draw();
    read();
  });
  for (const name of ['pointerup', 'pointercancel']) canvas.addEventListener(name, () => { current = null; });
  canvas.addEventListener('keydown', ({key, ctrlKey, altKey, metaKey}) => { // for those who cannot draw
    if (ctrlKey || altKey || metaKey || !GLYPHS[key]) return;
    strokes = [GLYPHS[key]];
    draw();
    read();
  });
  $('clear').addEventListener('click', () => {
    strokes = [];
    draw();
    cells = new Float32Array(64);
    show();
    $('answer').replaceChildren(Object.assign(document.createElement('span'), {className: 'quiet', textContent: 'Draw in the field.'}));
    meters.forEach(({item, meter, percent}) => { meter.value = 0; percent.textContent = ''; item.className = ''; });
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { draw(); show(); });
  ready();
}
